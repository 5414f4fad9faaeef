"""Data faults at real sites: what they cost, and whether the diagnosis names them correctly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import FloatArray, IndexArray
from robfcp.calibration import Calibration, calibrate
from robfcp.defense import Assessment, Consensus
from robfcp.diagnosis import Diagnosis, diagnose
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import get_attack
from robfcp.experiments.natural_partitions import FEDERATIONS, MIN_SIZE, NaturalFederation
from robfcp.experiments.scenarios import TestMetrics
from robfcp.federation import Federation
from robfcp.reports import DEFAULT_MIN_CELL_COUNT, Report
from robfcp.scores import LAC

OUTCOMES = ("dead", "dependent", "not recovered", "recovered")
FAULTS = (
    "label-swap",
    "class-permutation",
    "degraded-model",
    "wrong-file",
    "temperature-scaling-flat",
)
CRAFTED_REPORT = "all scores equal"
DEFENSES = ("none", "rob-fcp", "rob-fcp-released", Consensus.name)
BENIGN_ONLY = "benign hospitals only"
MIN_PATIENTS = 100  # of a hospital of the fault scenario

Half = Literal["first", "second"]  # of the sites, every other one by name
Samples = tuple[NDArray[Any], IndexArray]  # probabilities (n, C) and labels (n,)


@dataclass(frozen=True, eq=False)
class FaultScenario:
    """Hospitals of the stroke trial, two thirds of each for calibration and one for testing.

    Parameters
    ----------
    reports : tuple of Report
        The reports of the hospitals.
    faults : mapping of str to str
        What is wrong at the hospitals where something is.
    tests : mapping of str to (probabilities, labels)
        The test patients of each hospital.
    """

    reports: tuple[Report, ...]
    faults: Mapping[str, str]
    tests: Mapping[str, Samples]

    @property
    def benign_reports(self) -> tuple[Report, ...]:
        """The reports of the hospitals without a fault."""
        return tuple(report for report in self.reports if report.client not in self.faults)


def stroke_fault_scenario(
    *,
    faults: Sequence[str] = FAULTS,
    n_malicious: int = 14,
    crafted_score: float = 0.0,
    seed: int = 0,
    min_cell_count: int = DEFAULT_MIN_CELL_COUNT,
) -> FaultScenario:
    """Make the reports of hospitals with at least a hundred patients, some of them wrong.

    Parameters
    ----------
    faults : sequence of str
        Data faults, each at one hospital.
    n_malicious : int
        The number of further hospitals that report equal scores only, the simplest attack.
    crafted_score : float
        The score that these report.
    seed : int
        The seed of all randomness.
    min_cell_count : int
        The minimum cell count of all reports; 1 for exact counts by class.
    """
    shipped = outputs.load("stroke", outputs.NATURAL)
    hospitals = partitions.partition_by_site(shipped.column("site"), MIN_PATIENTS)
    names = list(hospitals)
    rng = np.random.default_rng(seed)

    calibration_samples: list[Samples] = []
    tests: dict[str, Samples] = {}
    for name, patients in hospitals.items():
        shuffled = rng.permutation(patients)
        n_calibration = 2 * len(shuffled) // 3
        calibration_rows, test_rows = np.split(shuffled, [n_calibration])
        calibration_samples.append(_samples_of(shipped, calibration_rows))
        tests[name] = _samples_of(shipped, test_rows)

    faults_and_attacks = [*faults, *([CRAFTED_REPORT] * n_malicious)]
    faulty_rows = rng.permutation(len(names))[: len(faults_and_attacks)]
    fault_of_row = dict(zip(faulty_rows.tolist(), faults_and_attacks, strict=True))

    # A file sent by mistake is that of a hospital where nothing is wrong, so that the attack that
    # makes a fault must know all wrong hospitals.
    sorted_faulty_rows = np.sort(faulty_rows)
    reports = []
    for k, name in enumerate(names):
        fault = fault_of_row.get(k)
        samples = calibration_samples[k]
        if fault is not None and fault != CRAFTED_REPORT:
            samples = get_attack(fault)(calibration_samples, sorted_faulty_rows, rng)[k]
        report = make_report(
            name,
            *samples,
            OUTCOMES,
            crafted_score=crafted_score if fault == CRAFTED_REPORT else None,
            label_scores=LAC().score_all_labels(samples[0]),
            min_cell_count=min_cell_count,
        )
        reports.append(report)
    fault_of_name = {names[k]: fault_of_row[k] for k in sorted(fault_of_row)}
    return FaultScenario(tuple(reports), fault_of_name, tests)


def _samples_of(shipped: outputs.Outputs, rows: IndexArray) -> Samples:
    """Return the probabilities and labels of some samples."""
    return shipped.probabilities[rows], shipped.labels[rows]


def compare_defenses(
    scenario: FaultScenario, defenses: Sequence[str] = DEFENSES
) -> list[dict[str, Any]]:
    """Measure the hospitals without a fault alone, then all of them under each defense."""
    benign_calibration = calibrate(scenario.benign_reports, defense="none")
    lines = [_comparison_line(BENIGN_ONLY, benign_calibration, scenario)]
    for defense in defenses:
        calibration = calibrate(scenario.reports, defense=defense)
        lines.append(_comparison_line(defense, calibration, scenario))
    return lines


def make_report(
    name: str,
    probabilities: NDArray[Any],
    labels: IndexArray,
    classes: Any,
    *,
    crafted_score: float | None = None,
    label_scores: FloatArray | None = None,
    min_cell_count: int = DEFAULT_MIN_CELL_COUNT,
) -> Report:
    """Make a default report with class totals, of `crafted_score` alone where it is given.

    With a minimum cell count of 1 it holds exact counts by class.
    """
    score = LAC()
    if crafted_score is None:
        scores = score(probabilities, labels)
    else:
        scores = np.full(len(labels), crafted_score)

    return Report.from_scores(
        name,
        scores,
        score=score,
        min_cell_count=min_cell_count,
        labels=labels,
        classes=classes,
        all_label_scores=label_scores,
    )


def _comparison_line(
    defense: str, calibration: Calibration, scenario: FaultScenario
) -> dict[str, Any]:
    """Measure a threshold on the test patients of the hospitals without a fault."""
    names = [report.client for report in scenario.benign_reports]
    tests = [scenario.tests[name] for name in names]
    sizes = np.array([len(labels) for _, labels in tests])
    client_index = np.repeat(np.arange(len(tests)), sizes)
    probabilities = np.concatenate([client_probabilities for client_probabilities, _ in tests])
    labels = np.concatenate([client_labels for _, client_labels in tests])
    label_scores = LAC().score_all_labels(probabilities)
    threshold = calibration.levels[0].threshold
    metrics = TestMetrics.from_scores(label_scores, labels, client_index, threshold)

    measures = metrics.measures()
    miscoverage = 1 - metrics.client_means(metrics.is_covered)
    n_missed = np.rint(sizes * miscoverage).astype(int).tolist()
    flagged = calibration.flagged_clients
    n_detected = sum(name in scenario.faults for name in flagged)
    return {
        "defense": defense,
        "coverage": measures["coverage"],
        "mean_set_size": measures["set_size"],
        "class_coverage": metrics.class_coverage.tolist(),
        "worst_class_coverage": measures["worst_class_coverage"],
        "worst_class_name": OUTCOMES[int(np.nanargmin(metrics.class_coverage))],
        "worst_client_coverage": measures["worst_client_coverage"],
        "n_missed": dict(zip(names, n_missed, strict=True)),
        "n_detected": n_detected,
        "n_false_positives": len(flagged) - n_detected,
    }


_CODING = ("labels swapped", "labels permuted")
_MODEL = ("different model", "overconfident probabilities", "scores under-dispersed")

# Which causes name a fault. Of two classes another order is a swap, and the report by class
# seldom shows which classes a wrong order confuses; an old model may be less sure or too sure.
NAMES: dict[str, tuple[str, ...]] = {
    "label-swap": ("labels swapped",),
    "class-permutation": _CODING,
    "label-poisoning": _CODING,
    "degraded-model": _MODEL,
    "temperature-scaling": ("overconfident probabilities",),
    "temperature-scaling-flat": ("scores under-dispersed",),
    "wrong-file": ("duplicate report",),
    "selection-bias": ("large scores missing",),
    "all-zero": ("scores all equal",),
}
NO_FAULT = "no fault"
_NO_FAULT_CAUSES = ("unexplained", "different label distribution")  # correct where nothing is wrong


@dataclass(frozen=True)
class DiagnosisResult:
    """The diagnoses of one fault in one federation.

    Parameters
    ----------
    federation, fault : str
        Their names.
    n_clients : int
        The number of sites that were given the fault, one at a time.
    n_correct : int
        At how many of them the cause was named correctly.
    diagnosed_causes : dict of str to int
        How often each cause was diagnosed, the most frequent first.
    min_cell_count : int
        The minimum cell count of all reports.
    """

    federation: str
    fault: str
    n_clients: int
    n_correct: int
    diagnosed_causes: dict[str, int]
    min_cell_count: int


@dataclass(frozen=True)
class _ExcludeClient:
    """A defense that excludes one given client, so that the diagnosis alone is judged."""

    client: str
    name: ClassVar[str] = "leave-out"

    def assess(self, federation: Federation) -> Assessment:
        benign_mask = np.array([name != self.client for name in federation.clients])
        maliciousness = (~benign_mask).astype(np.float64)
        return Assessment(maliciousness, benign_mask, {self.client: "told so"})


def diagnosis_accuracy(
    federation: NaturalFederation,
    faults: Sequence[str] = (*NAMES, NO_FAULT),
    *,
    half: Half = "second",
    max_size: int = 30,
    seed: int = 0,
    min_cell_count: int = DEFAULT_MIN_CELL_COUNT,
) -> Iterator[DiagnosisResult]:
    """Diagnose sites of a federation, each with each fault, all other sites without.

    Parameters
    ----------
    federation : NaturalFederation
        The sites.
    faults : sequence of str
        The faults, and `NO_FAULT`.
    half : {"first", "second"}
        Which sites: every other one by name. The distributions of the diagnosis were fitted to
        the first half.
    max_size : int
        At most so many sites of that half, drawn at random.
    seed : int
        The seed of all randomness.
    min_cell_count : int
        The minimum cell count of all reports; 1 for exact counts by class.

    Yields
    ------
    DiagnosisResult
        One for each fault.
    """
    shipped, site_of_sample = federation.load()
    rows_of_clients = partitions.partition_by_site(site_of_sample, MIN_SIZE)
    names = list(rows_of_clients)
    n_classes = shipped.probabilities.shape[1]
    samples = [_samples_of(shipped, rows) for rows in rows_of_clients.values()]
    benign_reports = [
        make_report(name, *client_samples, n_classes, min_cell_count=min_cell_count)
        for name, client_samples in zip(names, samples, strict=True)
    ]

    rng = np.random.default_rng(seed)
    first_index = 1 if half == "second" else 0
    client_indices = rng.permutation(np.arange(len(names))[first_index::2])[:max_size].tolist()
    for fault in faults:
        causes: Counter[str] = Counter()
        for k in client_indices:
            probabilities, labels = samples[k]
            if fault not in ("all-zero", NO_FAULT):
                probabilities, labels = get_attack(fault)(samples, [k], rng)[k]
            reports = list(benign_reports)
            reports[k] = make_report(
                names[k],
                probabilities,
                labels,
                n_classes,
                crafted_score=0.0 if fault == "all-zero" else None,
                min_cell_count=min_cell_count,
            )
            causes[diagnosed_cause(reports, names[k]).cause] += 1
        n_correct = sum(causes[cause] for cause in NAMES.get(fault, _NO_FAULT_CAUSES))
        yield DiagnosisResult(
            federation=federation.title,
            fault=fault,
            n_clients=len(client_indices),
            n_correct=n_correct,
            diagnosed_causes=dict(causes.most_common()),
            min_cell_count=min_cell_count,
        )


def diagnosed_cause(reports: Sequence[Report], client: str) -> Diagnosis:
    """Return the diagnosis of a client that is excluded."""
    calibration = calibrate(reports, defense=_ExcludeClient(client))
    return diagnose(calibration, [client])[client]


def diagnosis_accuracy_table(
    half: Half = "second", max_size: int = 30, *, min_cell_count: int = DEFAULT_MIN_CELL_COUNT
) -> list[DiagnosisResult]:
    """Return the results of all faults in all natural federations.

    Parameters
    ----------
    half, max_size, min_cell_count
        As in `diagnosis_accuracy`.
    """
    rows: list[DiagnosisResult] = []
    for federation in FEDERATIONS:
        rows.extend(
            diagnosis_accuracy(
                federation, half=half, max_size=max_size, min_cell_count=min_cell_count
            )
        )
    return rows
