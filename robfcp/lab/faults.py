"""Faults as they happen, put into real sites: what they cost, and whether they are named right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration import Calibration
from robfcp.calibration.calibrate import calibrate
from robfcp.defence import Assessment, Consensus
from robfcp.diagnosis import Diagnosis, diagnose
from robfcp.federation import Federation
from robfcp.lab import outputs, partitions
from robfcp.lab.attacks import named_attack
from robfcp.lab.natural import FEDERATIONS, MIN_SIZE, NaturalFederation
from robfcp.lab.worlds import Measured
from robfcp.report import Report, Strata
from robfcp.scores import LAC

OUTCOMES = ("dead", "dependent", "not recovered", "recovered")
FAULTS = ("swapped-labels", "other-class-order", "old-model", "stale-file", "temperature-flat")
LIE = "all scores equal"
DEFENCES = ("none", "rob-fcp", "rob-fcp-released", Consensus.name)
HONEST = "honest hospitals only"

Half = Literal["first", "second"]  # of the sites, every other one by name
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
    """

    reports: tuple[Report, ...]
    faults: Mapping[str, str]
    tests: Mapping[str, Pair]

    @property
    def honest(self) -> tuple[Report, ...]:
        """The reports of the others."""
        return tuple(one for one in self.reports if one.client not in self.faults)


def stroke_story(
    *,
    faults: Sequence[str] = FAULTS,
    liars: int = 14,
    lie: float = 0.0,
    seed: int = 0,
) -> Story:
    """Hospitals with at least a hundred patients; one makes each fault.

    Besides, `liars` report one score only, which is the simplest lie.
    """
    given = outputs.load("stroke", outputs.NATURAL)
    parts = partitions.by_site(given.column("site"), 100)
    rng = np.random.default_rng(seed)
    names, own, tests = list(parts), [], {}
    for name, part in parts.items():
        mixed = rng.permutation(part)
        two_thirds = 2 * len(mixed) // 3
        own.append((given.probabilities[mixed[:two_thirds]], given.labels[mixed[:two_thirds]]))
        tests[name] = given.probabilities[mixed[two_thirds:]], given.labels[mixed[two_thirds:]]
    wrong = [*faults, *([LIE] * liars)]
    chosen = rng.permutation(len(names))[: len(wrong)]
    odd = dict(zip(chosen.tolist(), wrong, strict=True))
    wrongdoers = np.sort(chosen)  # a file by mistake is that of a hospital where nothing is wrong
    reports = []
    for k, name in enumerate(names):
        pair = own[k]
        if odd.get(k, LIE) != LIE:
            pair = named_attack(odd[k])(own, wrongdoers, rng)[k]
        sizes = LAC().all_labels(pair[0])
        told = lie if odd.get(k) == LIE else None
        reports.append(report(name, *pair, OUTCOMES, lie=told, label_scores=sizes))
    return Story(tuple(reports), {names[k]: odd[k] for k in sorted(odd)}, tests)


def compared(story: Story, defences: Sequence[str] = DEFENCES) -> list[dict[str, Any]]:
    """The honest hospitals alone, then everybody under each defence."""
    alone = _line(HONEST, calibrate(story.honest, defence="none"), story)
    return [alone, *(_line(one, calibrate(story.reports, defence=one), story) for one in defences)]


def report(
    name: str,
    probabilities: NDArray[Any],
    labels: NDArray[np.intp],
    classes: Any,
    *,
    lie: float | None = None,
    label_scores: NDArray[np.float64] | None = None,
    fine: bool = True,
) -> Report:
    """A site's report by class, of one score only if told so; not fine: as `Report.of` makes it."""
    score = LAC()
    scores = score(probabilities, labels) if lie is None else np.full(len(labels), lie)
    by: dict[str, Any] = {"labels": labels, "classes": classes, "label_scores": label_scores}
    if not fine and len(labels) < Strata.CROWD * probabilities.shape[1]:
        by = {}
    return Report.from_scores(name, scores, score=score, fine=fine, **by)


def _line(defence: str, calibration: Calibration, story: Story) -> dict[str, Any]:
    """Coverage and set size on the test patients of the hospitals where nothing is wrong."""
    names = [one.client for one in story.honest]
    tests = [story.tests[name] for name in names]
    sizes = np.array([len(labels) for _, labels in tests])
    owner = np.repeat(np.arange(len(tests)), sizes)
    every = LAC().all_labels(np.concatenate([part for part, _ in tests]))
    label = np.concatenate([labels for _, labels in tests])
    found = Measured.of(every, label, owner, calibration.levels[0].threshold)
    numbers = found.numbers()
    wrong = np.rint(sizes * (1 - found.by_site(found.hits))).astype(int).tolist()
    caught = [name for name in calibration.flagged if name in story.faults]
    return {
        "defence": defence,
        "coverage": numbers["coverage"],
        "set_size": numbers["set_size"],
        "by_class": found.by_class.tolist(),
        "worst_class": numbers["worst_class_coverage"],
        "worst_class_name": OUTCOMES[int(np.nanargmin(found.by_class))],
        "worst_site": numbers["worst_site_coverage"],
        "wrong": dict(zip(names, wrong, strict=True)),
        "found": len(caught),
        "false_alarms": len(calibration.flagged) - len(caught),
    }


_CODING = ("labels swapped", "labels mixed up")
_MODEL = ("another model", "probabilities too extreme", "much smaller spread")

# Which causes name a fault. Of two classes another order is a swap, and the report by class
# seldom tells which classes a wrong order confuses; an old model may be less sure or too sure.
NAMES: dict[str, tuple[str, ...]] = {
    "swapped-labels": ("labels swapped",),
    "other-class-order": _CODING,
    "label-poisoning": _CODING,
    "old-model": _MODEL,
    "temperature": ("probabilities too extreme",),
    "temperature-flat": ("much smaller spread",),
    "stale-file": ("copy",),
    "subset": ("hard cases missing",),
    "all-zero": ("scores all equal",),
}
NOBODY = "nothing wrong"


@dataclass(frozen=True)
class Named:
    """One fault in one federation: how many sites it was put into, what was said of them."""

    federation: str
    fault: str
    sites: int
    right: int
    said: dict[str, int]


@dataclass(frozen=True)
class _LeaveOut:
    """Leaves one site out, so that the diagnosis is judged and not a defence."""

    client: str
    name: ClassVar[str] = "leave-out"

    def __call__(self, federation: Federation) -> Assessment:
        trusted = np.array([name != self.client for name in federation.ids])
        return Assessment((~trusted).astype(np.float64), trusted, {self.client: "told so"})


def named(
    federation: NaturalFederation,
    faults: Sequence[str] = (*NAMES, NOBODY),
    *,
    half: Half = "second",
    most: int = 30,
    seed: int = 0,
    fine: bool = True,
) -> Iterator[Named]:
    """One row a fault: each site of one half of them is given the fault, alone, and diagnosed.

    The laws of the diagnosis were fitted to the first half (every other site by name).
    """
    given, sites = federation.load()
    parts = partitions.by_site(sites, MIN_SIZE)
    samples = [(given.probabilities[part], given.labels[part]) for part in parts.values()]
    names, n_classes = list(parts), given.probabilities.shape[1]
    made = partial(report, classes=n_classes, fine=fine)
    honest = [made(name, *pair) for name, pair in zip(names, samples, strict=True)]
    rng = np.random.default_rng(seed)
    chosen = np.arange(len(names))[half == "second" :: 2]
    chosen = rng.permutation(chosen)[:most]
    for fault in faults:
        said: Counter[str] = Counter()
        for k in chosen.tolist():
            faulty = honest[k]
            if fault == "all-zero":
                faulty = made(names[k], *samples[k], lie=0.0)
            elif fault != NOBODY:
                faulty = made(names[k], *named_attack(fault)(samples, [k], rng)[k])
            said[told([*honest[:k], faulty, *honest[k + 1 :]], names[k]).cause] += 1
        right = sum(said[cause] for cause in NAMES.get(fault, ("not told", "other mix of classes")))
        yield Named(federation.title, fault, len(chosen), right, dict(said.most_common()))


def told(reports: Sequence[Report], client: str) -> Diagnosis:
    """The diagnosis of a client that is left out."""
    calibration = calibrate(reports, defence=_LeaveOut(client))
    return diagnose(calibration, [client])[client]


def named_table(half: Half = "second", most: int = 30, *, fine: bool = True) -> list[Named]:
    """All faults in all natural federations."""
    return [row for one in FEDERATIONS for row in named(one, half=half, most=most, fine=fine)]
