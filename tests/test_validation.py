"""Validation of arguments: arrays of other libraries, logits, and missing values."""

from dataclasses import dataclass, replace
from functools import partial, partialmethod
from typing import Any

import numpy as np
import pandas as pd
import pytest
from makers import outputs
from scipy.special import expit, softmax

import robfcp
from robfcp._validation import as_array
from robfcp.errors import RobfcpError


@dataclass
class Tensor:
    """A tensor as far as it is used, without its library."""

    values: Any
    dtype: str = "torch.float32"
    device: str = "cuda:0"
    grad: bool = True
    is_sparse: bool = False

    shape = property(lambda self: np.shape(self.values))
    detach = partialmethod(replace, grad=False)
    to_dense = partialmethod(replace, is_sparse=False)
    float = partialmethod(replace, dtype="torch.float32")
    resolve_conj = resolve_neg = partialmethod(replace)

    def __array__(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def to(self, device):
        if self.device == "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        return replace(self, device=device)

    def is_floating_point(self):
        return "float" in self.dtype

    def numpy(self):
        assert (self.device, self.grad, self.is_sparse) == ("cpu", False, False)
        assert self.dtype in ("torch.float16", "torch.float32", "torch.float64", "torch.int64")
        return np.asarray(self.values)


class OnDevice:
    """An array of a library that copies only on request."""

    __cuda_array_interface__ = ()

    def get(self):
        return np.array(PROBABILITIES)


PROBABILITIES = [[0.75, 0.25], [0.5, 0.5]]


def test_tensors_of_any_kind_are_converted_and_those_without_data_refused():
    dtypes = [f"torch.{dtype}" for dtype in ("float16", "bfloat16", "float64", "float8_e4m3fn")]
    tensors = [Tensor(PROBABILITIES, dtype, is_sparse="8" in dtype) for dtype in dtypes]
    for values in (*tensors, [Tensor(row) for row in PROBABILITIES], OnDevice()):
        np.testing.assert_array_equal(as_array("p", values), PROBABILITIES)
    for values, message in (
        ([Tensor([1.0]), Tensor([1.0, 2.0])], "p: rows differ in length"),
        (
            Tensor(PROBABILITIES, device="meta"),
            "p: hold no numbers that can be read; pass an array",
        ),
    ):
        with pytest.raises(RobfcpError, match=message):
            as_array("p", values)


@pytest.mark.train
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn"])
def test_real_tensors_are_scored(kind):
    torch = pytest.importorskip("torch")
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        p = torch.tensor(PROBABILITIES).to(getattr(torch, kind)).to(device).requires_grad_()
        np.testing.assert_array_equal(robfcp.LAC()(p, torch.tensor([0, 1])), [0.25, 0.5])


def test_rounded_floats_of_short_types_sum_to_one():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(10, 0.5), 2000).astype(np.float32)
    bits = (p.view(np.uint32) + 0x8000) & 0xFFFF0000  # as bfloat16 stores them
    robfcp.LAC()(bits.astype(np.uint32).view(np.float32), np.zeros(2000, dtype=int))


def test_softmax_keeps_the_digits_of_probabilities():
    logits = np.array([[0.0, 1.0, 2.0], [40.0, 0.0, 0.0], [-800.0, 0.0, 800.0], [0, 0, -np.inf]])
    probabilities = robfcp.softmax(logits)
    np.testing.assert_allclose(probabilities, softmax(logits, axis=1), rtol=1e-12)
    assert robfcp.LAC()(probabilities, [0, 0, 2, 2])[1] == pytest.approx(2 * np.exp(-40), rel=1e-9)
    for binary_logits in ([2.0], [[2.0]]):  # of the second of two classes
        np.testing.assert_allclose(robfcp.softmax(binary_logits), [[1 - expit(2), expit(2)]])
    bfloat16 = Tensor(logits.astype(np.float32), "torch.bfloat16")
    np.testing.assert_allclose(robfcp.softmax(bfloat16), probabilities, atol=1e-6)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([[0.0, 1.0], [np.nan, 0.0]], "row 1 holds NaN"),
        ([[np.inf, 0.0]], "row 0 holds NaN or infinity"),
        ([[-np.inf, -np.inf]], "row 0"),
        *((shape, "shape") for shape in (np.zeros((2, 3, 4)), np.zeros((2, 0)), 3.0)),
        ([["a", "b"]], "real numbers"),
    ],
)
def test_invalid_logits_are_refused(logits, message):
    with pytest.raises(RobfcpError, match=message):
        robfcp.softmax(logits)


def test_tensors_are_accepted_from_reports_to_evaluation():
    p, y = outputs(0, 600)
    tensor, label_tensor = Tensor(p), Tensor(y, "torch.int64", grad=False)
    reports = [
        robfcp.Report.from_predictions(f"s{k}", tensor, label_tensor, min_cell_count=1)
        for k in range(6)
    ]
    assert reports == [
        robfcp.Report.from_predictions(f"s{k}", p, y, min_cell_count=1) for k in range(6)
    ]
    calibration = robfcp.calibrate(reports, defense="none")
    np.testing.assert_array_equal(calibration.predict_set(tensor), calibration.predict_set(p))
    assert calibration.evaluate(tensor, label_tensor).overall == calibration.evaluate(p, y).overall
    assert robfcp.Monitor(calibration).update(tensor, label_tensor).n_samples == 600


ROW_PROBABILITIES, LABELS = outputs(0, 60)
NAMES = ["mild", "grave", "dead"]


def with_missing(values, row, missing=np.nan):
    values = values.astype(object if missing is None or values.dtype.kind == "O" else float)
    values[row] = missing
    return values


@pytest.mark.parametrize("missing", [np.nan, None, pd.NA])
def test_missing_values_are_refused_everywhere_by_their_row(missing):
    federation = robfcp.Federation.from_counts([[50, 30, 20]] * 20, score=robfcp.LAC())
    calibration = robfcp.calibrate(federation, defense="none")
    label_arrays = (
        LABELS.astype(object if missing is pd.NA else int),
        np.array(NAMES, dtype=object)[LABELS],
    )
    from_scores = robfcp.Report.from_scores
    coverage = partial(robfcp.metrics.coverage, ROW_PROBABILITIES > 0.2)
    calls = [
        (
            "probabilities: row 7 holds NaN",
            partial(robfcp.APS(), with_missing(ROW_PROBABILITIES, 7), LABELS, 0),
        ),
        ("row 7 holds NaN", partial(calibration.predict_set, with_missing(ROW_PROBABILITIES, 7))),
        (
            "a: scores: row 9 is NaN",
            partial(from_scores, "a", with_missing(ROW_PROBABILITIES[:, 0], 9)),
        ),
    ]
    for y in (with_missing(label_array, 4, missing) for label_array in label_arrays):
        calls += [
            (
                "a: labels: row 4 is",
                partial(from_scores, "a", ROW_PROBABILITIES[:, 0], labels=y, classes=NAMES),
            ),
            (
                "labels: row 4 is missing; fill it in",
                partial(robfcp.APS(), ROW_PROBABILITIES, y, 0),
            ),
            (
                "targets: row 4 is",
                partial(calibration.evaluate, ROW_PROBABILITIES, y, min_coverage=0.8),
            ),
            ("labels: row 4 is", partial(coverage, y, classes=NAMES)),
        ]
    for message, call in calls:
        with pytest.raises(RobfcpError, match=message):
            call()
