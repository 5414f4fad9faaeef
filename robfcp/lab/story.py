"""A round of real hospitals with faults as they happen: who makes them and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration import Calibration, calibrate
from robfcp.defence import DEFAULT
from robfcp.lab import outputs, partitions
from robfcp.lab.attacks import named_attack
from robfcp.report import Report
from robfcp.scores import LAC

OUTCOMES = ("dead", "dependent", "not recovered", "recovered")
FAULTS = ("swapped-labels", "other-class-order", "old-model", "stale-file", "temperature-flat")
LIE = "all scores zero"
DEFENCES = ("none", "rob-fcp", "rob-fcp-released", DEFAULT)
HONEST = "honest hospitals only"

Pair = tuple[NDArray[Any], NDArray[np.intp]]


@dataclass(frozen=True, eq=False)
class Story:
    """Hospitals of the stroke trial, two thirds of each for calibration and one for testing.

    Parameters
    ----------
    reports
        What the hospitals send.
    faults
        What is wrong at those where something is.
    tests
        Each hospital's test patients: probabilities and labels.
    classes
        The outcomes' names.
    """

    reports: tuple[Report, ...]
    faults: Mapping[str, str]
    tests: Mapping[str, Pair]
    classes: tuple[str, ...] = OUTCOMES

    @property
    def honest(self) -> tuple[Report, ...]:
        """The reports of the others."""
        return tuple(one for one in self.reports if one.client not in self.faults)


@dataclass(frozen=True)
class Line:
    """What one way to calibrate gives at the hospitals where nothing is wrong."""

    defence: str
    coverage: float
    set_size: float
    worst_class: float
    worst_class_name: str
    worst_site: float
    worst_site_name: str
    found: int
    false_alarms: int


def stroke_story(
    *,
    min_size: int = 100,
    faults: Sequence[str] = FAULTS,
    repeats: int = 1,
    liars: int = 14,
    seed: int = 0,
) -> Story:
    """Hospitals with at least `min_size` patients; `repeats` of them make each fault.

    Besides, `liars` report zeros only, which is the simplest lie.
    """
    given = outputs.load("stroke", outputs.NATURAL)
    parts = partitions.by_site(given.column("site"), min_size)
    rng = np.random.default_rng(seed)
    names, own, tests = list(parts), [], {}
    for name, part in parts.items():
        mixed = rng.permutation(part)
        two_thirds = 2 * len(mixed) // 3
        own.append((given.probabilities[mixed[:two_thirds]], given.labels[mixed[:two_thirds]]))
        tests[name] = given.probabilities[mixed[two_thirds:]], given.labels[mixed[two_thirds:]]
    wrong = [*(fault for fault in faults for _ in range(repeats)), *([LIE] * liars)]
    chosen = rng.permutation(len(names))[: len(wrong)]
    odd = dict(zip(chosen.tolist(), wrong, strict=True))
    wrongdoers = np.sort(chosen)  # a file by mistake is that of a hospital where nothing is wrong
    reports = []
    for k, name in enumerate(names):
        pair = own[k]
        if odd.get(k, LIE) != LIE:
            attack: Any = named_attack(odd[k])
            pair = attack.forge(own, wrongdoers, rng)[int(np.searchsorted(wrongdoers, k))]
        reports.append(_report(name, pair, zero=odd.get(k) == LIE))
    return Story(tuple(reports), {names[k]: odd[k] for k in sorted(odd)}, tests)


def compared(story: Story, defences: Sequence[str] = DEFENCES) -> tuple[Line, ...]:
    """The honest hospitals alone, then everybody under each defence."""
    lines = [_line(HONEST, calibrate(story.honest, defence="none"), story)]
    for defence in defences:
        lines.append(_line(defence, calibrate(story.reports, defence=defence), story))
    return tuple(lines)


def _report(name: str, pair: Pair, zero: bool) -> Report:
    score = LAC()
    scores = np.zeros(len(pair[1])) if zero else score(*pair)
    return Report.from_scores(
        name,
        scores,
        score=score,
        labels=pair[1],
        classes=OUTCOMES,
        label_scores=score.all_labels(pair[0]),
    )


def _line(defence: str, calibration: Calibration, story: Story) -> Line:
    """Coverage and set size on the test patients of the honest hospitals."""
    limit = calibration.levels[0].threshold
    names = [one.client for one in story.honest]
    score = LAC()
    hits = [score(*story.tests[name]) <= limit for name in names]
    sizes = [(score.all_labels(story.tests[name][0]) <= limit).sum(axis=1) for name in names]
    every, label = np.concatenate(hits), np.concatenate([story.tests[name][1] for name in names])
    by_class = [float(every[label == c].mean()) for c in range(len(story.classes))]
    by_site = [float(one.mean()) for one in hits]
    worst, site = int(np.argmin(by_class)), int(np.argmin(by_site))
    caught = [name for name in calibration.flagged if name in story.faults]
    return Line(
        defence=defence,
        coverage=float(every.mean()),
        set_size=float(np.concatenate(sizes).mean()),
        worst_class=by_class[worst],
        worst_class_name=story.classes[worst],
        worst_site=by_site[site],
        worst_site_name=names[site],
        found=len(caught),
        false_alarms=len(calibration.flagged) - len(caught),
    )
