"""What callers pass: arrays of other libraries, logits, and values that are missing."""

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
    """What a tensor can do, as far as it matters, without its library."""

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
    """An array of a library that copies only when told to."""

    __cuda_array_interface__ = ()

    def get(self):
        return np.array(P)


P = [[0.75, 0.25], [0.5, 0.5]]


def test_tensors_of_any_kind_are_fetched_and_those_without_data_refused():
    kinds = [f"torch.{kind}" for kind in ("float16", "bfloat16", "float64", "float8_e4m3fn")]
    tensors = [Tensor(P, kind, is_sparse="8" in kind) for kind in kinds]
    for given in (*tensors, [Tensor(row) for row in P], OnDevice()):
        np.testing.assert_array_equal(as_array("p", given), P)
    for given, words in (
        ([Tensor([1.0]), Tensor([1.0, 2.0])], "p: rows differ in length"),
        (Tensor(P, device="meta"), "p: hold no numbers that can be read; pass an array"),
    ):
        with pytest.raises(RobfcpError, match=words):
            as_array("p", given)


@pytest.mark.train
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn"])
def test_real_tensors_are_scored(kind):
    torch = pytest.importorskip("torch")
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        p = torch.tensor(P).to(getattr(torch, kind)).to(device).requires_grad_()
        np.testing.assert_array_equal(robfcp.LAC()(p, torch.tensor([0, 1])), [0.25, 0.5])


def test_rounded_floats_of_short_kinds_still_sum_to_one():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(10, 0.5), 2000).astype(np.float32)
    bits = (p.view(np.uint32) + 0x8000) & 0xFFFF0000  # as bfloat16 keeps them
    robfcp.LAC()(bits.astype(np.uint32).view(np.float32), np.zeros(2000, dtype=int))


def test_logits_become_probabilities_that_keep_their_digits():
    logits = np.array([[0.0, 1.0, 2.0], [40.0, 0.0, 0.0], [-800.0, 0.0, 800.0], [0, 0, -np.inf]])
    p = robfcp.softmax(logits)
    np.testing.assert_allclose(p, softmax(logits, axis=1), rtol=1e-12)
    assert robfcp.LAC()(p, [0, 0, 2, 2])[1] == pytest.approx(2 * np.exp(-40), rel=1e-9)
    for one in ([2.0], [[2.0]]):  # of the second of two classes
        np.testing.assert_allclose(robfcp.softmax(one), [[1 - expit(2), expit(2)]])
    short = Tensor(logits.astype(np.float32), "torch.bfloat16")
    np.testing.assert_allclose(robfcp.softmax(short), p, atol=1e-6)


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
def test_logits_that_are_none_are_refused(logits, message):
    with pytest.raises(RobfcpError, match=message):
        robfcp.softmax(logits)


def test_tensors_go_from_outputs_to_sets():
    p, y = outputs(0, 600)
    given, truth = Tensor(p), Tensor(y, "torch.int64", grad=False)
    sent = [
        robfcp.Report.from_predictions(f"s{k}", given, truth, min_cell_count=1) for k in range(6)
    ]
    assert sent == [
        robfcp.Report.from_predictions(f"s{k}", p, y, min_cell_count=1) for k in range(6)
    ]
    calibration = robfcp.calibrate(sent, defense="none")
    np.testing.assert_array_equal(calibration.predict_set(given), calibration.predict_set(p))
    assert calibration.evaluate(given, truth).overall == calibration.evaluate(p, y).overall
    assert robfcp.Monitor(calibration).update(given, truth).n == 600


ROWS, LABELS = outputs(0, 60)
NAMES = ["mild", "grave", "dead"]


def holed(values, row, hole=np.nan):
    values = values.astype(object if hole is None or values.dtype.kind == "O" else float)
    values[row] = hole
    return values


@pytest.mark.parametrize("hole", [np.nan, None, pd.NA])
def test_missing_values_are_refused_everywhere_by_their_row(hole):
    federation = robfcp.Federation.from_counts([[50, 30, 20]] * 20, score=robfcp.LAC())
    calibration = robfcp.calibrate(federation, defense="none")
    kinds = LABELS.astype(object if hole is pd.NA else int), np.array(NAMES, dtype=object)[LABELS]
    made, covered = robfcp.Report.from_scores, partial(robfcp.metrics.coverage, ROWS > 0.2)
    calls = [
        ("probabilities: row 7 holds NaN", partial(robfcp.APS(), holed(ROWS, 7), LABELS, 0)),
        ("row 7 holds NaN", partial(calibration.predict_set, holed(ROWS, 7))),
        ("a: scores: row 9 is NaN", partial(made, "a", holed(ROWS[:, 0], 9))),
    ]
    for y in (holed(kind, 4, hole) for kind in kinds):
        calls += [
            ("a: labels: row 4 is", partial(made, "a", ROWS[:, 0], labels=y, classes=NAMES)),
            ("labels: row 4 is missing; fill it in", partial(robfcp.APS(), ROWS, y, 0)),
            ("labels: row 4 is", partial(calibration.evaluate, ROWS, y, min_coverage=0.8)),
            ("labels: row 4 is", partial(covered, y, classes=NAMES)),
        ]
    for message, call in calls:
        with pytest.raises(RobfcpError, match=message):
            call()
