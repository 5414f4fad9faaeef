"""The protocol test passes every score we ship and stops at every way to get one wrong."""

from dataclasses import asdict, dataclass, field, make_dataclass
from typing import ClassVar

import numpy as np
import pytest
from makers import outputs, reports_of

import robfcp
from robfcp.errors import RobfcpError
from robfcp.scores._base import BUILTIN_SCORES, Score, get_score


@pytest.mark.parametrize("name", sorted(BUILTIN_SCORES))
def test_every_score_we_ship_passes(name):
    kind = BUILTIN_SCORES[name]
    assert isinstance(kind(), Score)
    assert get_score(name, **asdict(kind())) == kind()
    assert len(robfcp.scores.check_score(kind())) >= 7
    if "randomized" in kind.__dataclass_fields__:
        robfcp.scores.check_score(kind(randomized=False))


@dataclass(frozen=True)
class Margin(robfcp.ClassificationScore):
    name: ClassVar[str] = "margin"

    def label_scores(self, probabilities, uniforms):
        return (1 + probabilities.max(axis=1, keepdims=True).astype(float) - probabilities) / 2


def test_a_custom_score_goes_from_reports_to_sets_but_not_into_files(tmp_path):
    (p, y), score = outputs(0, 1500, 4), Margin()
    assert "float16 and float32 are taken" in robfcp.scores.check_score(score)
    calibration = robfcp.calibrate(
        reports_of(score(p[:1000], y[:1000]).reshape(10, 100), score=score)
    )
    sets = calibration.predict_set(p[1000:])
    assert 0.85 < robfcp.metrics.coverage(sets, y[1000:]) < 0.96
    calibration.save(tmp_path / "c.json")
    loaded = robfcp.Calibration.load(tmp_path / "c.json", record=True)
    with pytest.raises(RobfcpError, match="pass score="):
        loaded.predict_set(p[1000:])
    np.testing.assert_array_equal(loaded.predict_set(p[1000:], score=score), sets)
    assert [report.score for report in loaded.federation] == [None] * 10


def make_wrong_score(base=Margin, *fields, **changed):
    """A score that differs from another one."""
    return make_dataclass("Wrong", fields, bases=(base,), namespace=changed, frozen=True)()


def random_scores(self, p, u):
    return np.random.default_rng().random(p.shape)


def log_scores(self, p, u):
    return -np.log(np.maximum(p, 0), where=p > 0, out=np.full(p.shape, np.inf))


def overwriting_scores(self, p, u):
    p[:, 0] = 0
    return 1 - p


def score_own_label(self, p, label, u):
    return 1 - p[np.arange(len(p)), label]


def unchecked_scores(self, predictions, targets, rng=None):
    return Margin.label_scores(self, np.asarray(predictions), 1)[np.arange(len(targets)), targets]


def shifted_interval(self, predictions, threshold):
    return robfcp.AbsoluteResidual.interval(self, predictions, threshold) + 1


class Open(robfcp.ClassificationScore):
    name = "open"
    label_scores = log_scores


Nameless = type("Nameless", (robfcp.ClassificationScore,), {"label_scores": log_scores})
Residual = robfcp.AbsoluteResidual


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (Margin, "no instance"),
        (Open(), "no instance of a dataclass"),
        (make_dataclass("Changeable", (), bases=(Open,))(), "can be changed"),
        (make_wrong_score(Nameless), "has no name"),
        (make_wrong_score(Open, ("name", str, "field")), "the name is a parameter"),
        (
            make_wrong_score(Margin, ("given", object, field(default_factory=object))),
            "plain numbers",
        ),
        (make_wrong_score(label_scores=lambda self, p, u: 5 - p), "leave its default binning"),
        (make_wrong_score(default_binning=lambda self: 100), "must return a robfcp.Grid"),
        (
            make_wrong_score(label_scores=log_scores, default_binning=Residual.default_binning),
            "NaN or infinite",
        ),
        (make_wrong_score(label_scores=random_scores), "draws numbers of its own"),
        (
            make_wrong_score(label_scores=lambda self, p, u: (1 - p) / (1 + len(p))),
            "depends on other samples",
        ),
        (
            make_wrong_score(
                label_scores=lambda self, p, u: 1 - p[:, :1], _score_labels=score_own_label
            ),
            "for every label",
        ),
        (make_wrong_score(_score_labels=lambda self, p, label, u: np.zeros(len(p))), "differ"),
        (make_wrong_score(__call__=lambda self, p, y, rng=None: 1 - np.asarray(p)), "return"),
        (make_wrong_score(label_scores=overwriting_scores), "changes the array"),
        (
            make_wrong_score(label_scores=lambda self, p, u: (1 - p) ** (p.itemsize / 8)),
            "gives other scores",
        ),
        (make_wrong_score(__call__=unchecked_scores), "the base checks"),
        (make_wrong_score(Residual, interval=None), "has no interval"),
        (make_wrong_score(Residual, interval=shifted_interval), "interval is not where"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_names_what_is_wrong_with_a_score(score, message):
    with pytest.raises(RobfcpError, match=message):
        robfcp.scores.check_score(score)
