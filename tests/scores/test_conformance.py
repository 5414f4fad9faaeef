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


def test_a_score_of_ones_own_goes_from_reports_to_sets_but_not_into_files(tmp_path):
    (p, y), score = outputs(0, 1500, 4), Margin()
    assert "float16 and float32 are taken" in robfcp.scores.check_score(score)
    calibration = robfcp.calibrate(
        reports_of(score(p[:1000], y[:1000]).reshape(10, 100), score=score)
    )
    sets = calibration.predict_set(p[1000:])
    assert 0.85 < robfcp.metrics.coverage(sets, y[1000:]) < 0.96
    calibration.save(tmp_path / "c.json")
    again = robfcp.Calibration.load(tmp_path / "c.json", record=True)
    with pytest.raises(RobfcpError, match="pass score="):
        again.predict_set(p[1000:])
    np.testing.assert_array_equal(again.predict_set(p[1000:], score=score), sets)
    assert [report.score for report in again.federation] == [None] * 10


def made(base=Margin, *fields, **changed):
    """A score that differs from another one."""
    return make_dataclass("Wrong", fields, bases=(base,), namespace=changed, frozen=True)()


def surprise(self, p, u):
    return np.random.default_rng().random(p.shape)


def logarithm(self, p, u):
    return -np.log(np.maximum(p, 0), where=p > 0, out=np.full(p.shape, np.inf))


def writes(self, p, u):
    p[:, 0] = 0
    return 1 - p


def own_label(self, p, label, u):
    return 1 - p[np.arange(len(p)), label]


def unchecked(self, predictions, targets, rng=None):
    return Margin.label_scores(self, np.asarray(predictions), 1)[np.arange(len(targets)), targets]


def moved(self, predictions, threshold):
    return robfcp.AbsoluteResidual.interval(self, predictions, threshold) + 1


class Open(robfcp.ClassificationScore):
    name = "open"
    label_scores = logarithm


Nameless = type("Nameless", (robfcp.ClassificationScore,), {"label_scores": logarithm})
Residual = robfcp.AbsoluteResidual


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (Margin, "no instance"),
        (Open(), "no instance of a dataclass"),
        (make_dataclass("Changeable", (), bases=(Open,))(), "can be changed"),
        (made(Nameless), "has no name"),
        (made(Open, ("name", str, "field")), "the name is a parameter"),
        (made(Margin, ("given", object, field(default_factory=object))), "plain numbers"),
        (made(label_scores=lambda self, p, u: 5 - p), "leave its default grid"),
        (made(default_binning=lambda self: 100), "must return a robfcp.Grid"),
        (made(label_scores=logarithm, default_binning=Residual.default_binning), "NaN or infinite"),
        (made(label_scores=surprise), "draws numbers of its own"),
        (made(label_scores=lambda self, p, u: (1 - p) / (1 + len(p))), "depends on other samples"),
        (
            made(label_scores=lambda self, p, u: 1 - p[:, :1], _score_labels=own_label),
            "for every label",
        ),
        (made(_score_labels=lambda self, p, label, u: np.zeros(len(p))), "differ"),
        (made(__call__=lambda self, p, y, rng=None: 1 - np.asarray(p)), "return"),
        (made(label_scores=writes), "changes the array"),
        (made(label_scores=lambda self, p, u: (1 - p) ** (p.itemsize / 8)), "gives other scores"),
        (made(__call__=unchecked), "the base checks"),
        (made(Residual, interval=None), "has no interval"),
        (made(Residual, interval=moved), "interval is not where"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_a_score_is_said(score, message):
    with pytest.raises(RobfcpError, match=message):
        robfcp.scores.check_score(score)
