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
from robfcp.calibration._calibrate import calibrate
from robfcp.defense import Assessment, Consensus
from robfcp.diagnosis import Diagnosis, diagnose
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import get_attack
from robfcp.experiments.natural_partitions import FEDERATIONS, MIN_SIZE, NaturalFederation
from robfcp.experiments.scenarios import TestMetrics
from robfcp.federation import Federation
from robfcp.reports import Report, StratifiedCounts
from robfcp.scores import LAC

OUTCOMES = ("dead", "dependent", "not recovered", "recovered")
FAULTS = ("swapped-labels", "other-class-order", "old-model", "stale-file", "temperature-flat")
CRAFTED_REPORT = "all scores equal"
DEFENSES = ("none", "rob-fcp", "rob-fcp-released", Consensus.name)
BENIGN_ONLY = "honest hospitals only"

Half = Literal["first", "second"]  # of the sites, every other one by name
Pair = tuple[NDArray[Any], NDArray[np.intp]]


@dataclass(frozen=True, eq=False)
class FaultScenario:
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
    def benign_reports(self) -> tuple[Report, ...]:
        """The reports of the others."""
        return tuple(one for one in self.reports if one.client not in self.faults)


def stroke_fault_scenario(
    *,
    faults: Sequence[str] = FAULTS,
    n_malicious: int = 14,
    crafted_score: float = 0.0,
    seed: int = 0,
) -> FaultScenario:
    """Hospitals with at least a hundred patients; one makes each fault.

    Besides, `liars` report one score only, which is the simplest lie.
    """
    given = outputs.load("stroke", outputs.NATURAL)
    parts = partitions.partition_by_site(given.column("site"), 100)
    rng = np.random.default_rng(seed)
    names, own, tests = list(parts), [], {}
    for name, part in parts.items():
        mixed = rng.permutation(part)
        two_thirds = 2 * len(mixed) // 3
        own.append((given.probabilities[mixed[:two_thirds]], given.labels[mixed[:two_thirds]]))
        tests[name] = given.probabilities[mixed[two_thirds:]], given.labels[mixed[two_thirds:]]
    wrong = [*faults, *([CRAFTED_REPORT] * n_malicious)]
    chosen = rng.permutation(len(names))[: len(wrong)]
    odd = dict(zip(chosen.tolist(), wrong, strict=True))
    wrongdoers = np.sort(chosen)  # a file by mistake is that of a hospital where nothing is wrong
    reports = []
    for k, name in enumerate(names):
        pair = own[k]
        if odd.get(k, CRAFTED_REPORT) != CRAFTED_REPORT:
            pair = get_attack(odd[k])(own, wrongdoers, rng)[k]
        sizes = LAC().score_all_labels(pair[0])
        told = crafted_score if odd.get(k) == CRAFTED_REPORT else None
        reports.append(make_report(name, *pair, OUTCOMES, lie=told, label_scores=sizes))
    return FaultScenario(tuple(reports), {names[k]: odd[k] for k in sorted(odd)}, tests)


def compare_defenses(
    story: FaultScenario, defences: Sequence[str] = DEFENSES
) -> list[dict[str, Any]]:
    """The honest hospitals alone, then everybody under each defence."""
    alone = _line(BENIGN_ONLY, calibrate(story.benign_reports, defense="none"), story)
    return [alone, *(_line(one, calibrate(story.reports, defense=one), story) for one in defences)]


def make_report(
    name: str,
    probabilities: NDArray[Any],
    labels: NDArray[np.intp],
    classes: Any,
    *,
    lie: float | None = None,
    label_scores: NDArray[np.float64] | None = None,
    fine: bool = True,
) -> Report:
    """A site's report by class, of one score only if told so.

    Not fine: as `Report.from_predictions` makes it.
    """
    score = LAC()
    scores = score(probabilities, labels) if lie is None else np.full(len(labels), lie)
    by: dict[str, Any] = {"labels": labels, "classes": classes, "all_label_scores": label_scores}
    if not fine and len(labels) < StratifiedCounts.MIN_SAMPLES_PER_CLASS * probabilities.shape[1]:
        by = {}
    return Report.from_scores(name, scores, score=score, fine=fine, **by)


def _line(defence: str, calibration: Calibration, story: FaultScenario) -> dict[str, Any]:
    """Coverage and set size on the test patients of the hospitals where nothing is wrong."""
    names = [one.client for one in story.benign_reports]
    tests = [story.tests[name] for name in names]
    sizes = np.array([len(labels) for _, labels in tests])
    owner = np.repeat(np.arange(len(tests)), sizes)
    every = LAC().score_all_labels(np.concatenate([part for part, _ in tests]))
    label = np.concatenate([labels for _, labels in tests])
    found = TestMetrics.of(every, label, owner, calibration.levels[0].threshold)
    numbers = found.numbers()
    wrong = np.rint(sizes * (1 - found.by_site(found.hits))).astype(int).tolist()
    caught = [name for name in calibration.flagged_clients if name in story.faults]
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
        "false_alarms": len(calibration.flagged_clients) - len(caught),
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
NO_FAULT = "nothing wrong"


@dataclass(frozen=True)
class DiagnosisResult:
    """One fault in one federation: how many sites it was put into, what was said of them."""

    federation: str
    fault: str
    sites: int
    right: int
    said: dict[str, int]


@dataclass(frozen=True)
class _ExcludeClient:
    """Leaves one site out, so that the diagnosis is judged and not a defence."""

    client: str
    name: ClassVar[str] = "leave-out"

    def assess(self, federation: Federation) -> Assessment:
        trusted = np.array([name != self.client for name in federation.clients])
        return Assessment((~trusted).astype(np.float64), trusted, {self.client: "told so"})


def diagnosis_accuracy(
    federation: NaturalFederation,
    faults: Sequence[str] = (*NAMES, NO_FAULT),
    *,
    half: Half = "second",
    most: int = 30,
    seed: int = 0,
    fine: bool = True,
) -> Iterator[DiagnosisResult]:
    """One row a fault: each site of one half of them is given the fault, alone, and diagnosed.

    The laws of the diagnosis were fitted to the first half (every other site by name).
    """
    given, sites = federation.load()
    parts = partitions.partition_by_site(sites, MIN_SIZE)
    samples = [(given.probabilities[part], given.labels[part]) for part in parts.values()]
    names, n_classes = list(parts), given.probabilities.shape[1]
    made = partial(make_report, classes=n_classes, fine=fine)
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
            elif fault != NO_FAULT:
                faulty = made(names[k], *get_attack(fault)(samples, [k], rng)[k])
            said[diagnosed_cause([*honest[:k], faulty, *honest[k + 1 :]], names[k]).cause] += 1
        right = sum(said[cause] for cause in NAMES.get(fault, ("not told", "other mix of classes")))
        yield DiagnosisResult(federation.title, fault, len(chosen), right, dict(said.most_common()))


def diagnosed_cause(reports: Sequence[Report], client: str) -> Diagnosis:
    """The diagnosis of a client that is left out."""
    calibration = calibrate(reports, defense=_ExcludeClient(client))
    return diagnose(calibration, [client])[client]


def diagnosis_accuracy_table(
    half: Half = "second", most: int = 30, *, fine: bool = True
) -> list[DiagnosisResult]:
    """All faults in all natural federations."""
    return [
        row
        for one in FEDERATIONS
        for row in diagnosis_accuracy(one, half=half, most=most, fine=fine)
    ]
