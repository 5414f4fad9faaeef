"""The protocol test passes every score we ship and stops at every way to get one wrong."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

import robfcp
from robfcp.errors import RobfcpError
from robfcp.scores import SCORES


@pytest.mark.parametrize("name", sorted(SCORES))
def test_every_score_we_ship_passes(name):
    kind = SCORES[name]
    assert len(robfcp.check_score(kind())) >= 7
    if "randomized" in kind.__dataclass_fields__:
        robfcp.check_score(kind(randomized=False))


@dataclass(frozen=True)
class Margin(robfcp.ClassificationScore):
    name: ClassVar[str] = "margin"

    def of_all(self, p, u):
        return (1 + p.max(axis=1, keepdims=True).astype(float) - p) / 2


def test_a_score_of_ones_own_goes_from_reports_to_sets():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(4, 0.5), 1500)
    y = (p.cumsum(axis=1) > rng.random((1500, 1))).argmax(axis=1)
    score = Margin()
    assert "float16 and float32 are taken" in robfcp.check_score(score)
    parts = np.array_split(score(p[:1000], y[:1000]), 10)
    reports = [robfcp.Report.from_scores(f"site-{k}", part) for k, part in enumerate(parts)]
    sets = robfcp.calibrate(reports).predict_set(p[1000:], score=score)
    assert 0.85 < robfcp.metrics.coverage(sets, y[1000:]) < 0.96


def test_files_do_not_state_a_score_they_cannot_make_again(tmp_path):
    report = robfcp.Report.from_scores("a", [0.1, 0.6] * 20, score=Margin())
    report.save(tmp_path / "a.json")
    assert robfcp.Report.load(tmp_path / "a.json").score is None
    calibration = robfcp.calibrate([report])
    assert calibration.predict_set([[0.5, 0.5]]).all()
    calibration.save(tmp_path / "c.json")
    again = robfcp.Calibration.load(tmp_path / "c.json")
    with pytest.raises(RobfcpError, match="pass score="):
        again.predict_set([[0.5, 0.5]])
    assert again.predict_set([[0.5, 0.5]], score=Margin()).all()
    assert again.flagged == ()


class Plain(robfcp.ClassificationScore):
    name = "plain"

    def of_all(self, p, u):
        return 1 - p


@dataclass(frozen=True)
class Nameless(robfcp.ClassificationScore):
    def of_all(self, p, u):
        return 1 - p


@dataclass(frozen=True)
class NamedByField(Plain):
    name: str = "field"


@dataclass(frozen=True)
class Listed(Margin):
    weights: tuple[float, ...] = (1.0,)
    given: object = field(default_factory=object)


@dataclass(frozen=True)
class Far(Margin):
    def of_all(self, p, u):
        return 5 - p


@dataclass(frozen=True)
class NoGrid(Margin):
    def default_grid(self):
        return 100


@dataclass(frozen=True)
class Unbounded(Margin):
    def of_all(self, p, u):
        with np.errstate(divide="ignore"):
            return -np.log(p)

    def default_grid(self):
        return robfcp.Grid.open_ended()


@dataclass(frozen=True)
class Dice(Margin):
    def of_all(self, p, u):
        return np.random.default_rng().random(p.shape)


@dataclass(frozen=True)
class Relative(Margin):
    def of_all(self, p, u):
        return (1 - p) / (1 + len(p))


@dataclass(frozen=True)
class Narrow(Margin):
    def of_all(self, p, u):
        return 1 - p[:, :1]

    def _of_labels(self, p, label, u):
        return 1 - p[np.arange(len(p)), label]


@dataclass(frozen=True)
class Two(Margin):
    def _of_labels(self, p, label, u):
        return np.zeros(len(p))


@dataclass(frozen=True)
class Wide(Margin):
    def _of_labels(self, p, label, u):
        return 1 - p

    def __call__(self, predictions, targets, rng=None):
        return 1 - np.asarray(predictions)


@dataclass(frozen=True)
class Writes(Margin):
    def of_all(self, p, u):
        scores = 1 - p
        p[:, 0] = 0
        return scores


@dataclass(frozen=True)
class Coarse(Margin):
    def of_all(self, p, u):
        return 1 - p if p.dtype == np.float64 else np.ones(p.shape)


@dataclass(frozen=True)
class Trusting(Margin):
    def __call__(self, predictions, targets, rng=None):
        p = np.asarray(predictions)
        return (1 + p.max(axis=1) - p[np.arange(len(p)), targets]) / 2


@dataclass(frozen=True)
class Pointless(robfcp.AbsoluteResidual):
    name: ClassVar[str] = "pointless"
    interval = None


@dataclass(frozen=True)
class Shifted(robfcp.AbsoluteResidual):
    name: ClassVar[str] = "shifted"

    def interval(self, predictions, threshold):
        return super().interval(predictions, threshold) + 1


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (Margin, "no instance"),
        (Plain(), "no instance of a dataclass"),
        (Nameless(), "has no name"),
        (NamedByField(), "the name is a parameter"),
        (Listed(), "plain numbers"),
        (Far(), "leave its default grid"),
        (NoGrid(), "must return a robfcp.Grid"),
        (Unbounded(), "NaN or infinite"),
        (Dice(), "draws numbers of its own"),
        (Relative(), "depends on other samples"),
        (Narrow(), "a score for every label"),
        (Two(), "differ"),
        (Wide(), "return"),
        (Writes(), "changes the array"),
        (Coarse(), "gives other scores"),
        (Trusting(), "the base checks"),
        (Pointless(), "has no interval"),
        (Shifted(), "interval is not where"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_what_is_wrong_with_a_score_is_said(score, message):
    with pytest.raises(RobfcpError, match=message):
        robfcp.check_score(score)


def test_a_score_that_can_be_changed_is_refused():
    @dataclass
    class Open(Plain):
        pass

    with pytest.raises(RobfcpError, match="can be changed"):
        robfcp.check_score(Open())
