"""How often the diagnosis is right: `python benchmarks/diagnosis.py`, for docs/guides/page.md.

It needs nothing but the package: the outputs ship with it. A few minutes on two cores. Faults are
put into default reports and into exact counts by class. Which two labels are swapped is measured on
exact counts by class, since class totals do not show; earlier models are those of default reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from measure import markdown
from numpy.typing import NDArray

from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import get_attack
from robfcp.experiments.data_faults import (
    NAMES,
    NO_FAULT,
    DiagnosisResult,
    diagnosed_cause,
    diagnosis_accuracy_table,
    make_report,
)
from robfcp.experiments.natural_partitions import FEDERATIONS, MIN_SIZE, REPORT_KINDS
from robfcp.reports import Report

N_FIRST_HALF = 20  # sites of the first half that are tried
N_SWAPPED = 30  # sites whose labels are swapped in the test of pairs


def faults_named() -> None:
    """Put faults into one real site at a time, of the half of the sites that fitted nothing."""
    rows_of_kind = {
        kind: diagnosis_accuracy_table("second", min_cell_count=min_cell_count)
        for kind, min_cell_count in REPORT_KINDS.items()
    }
    print(_accuracy_table(rows_of_kind))
    for kind, rows in rows_of_kind.items():
        first_rows = diagnosis_accuracy_table(
            "first", max_size=N_FIRST_HALF, min_cell_count=REPORT_KINDS[kind]
        )
        first_faults = [row for row in first_rows if row.fault != NO_FAULT]
        n_right = sum(row.n_correct for row in first_faults)
        n_diagnosed = sum(row.n_clients for row in first_faults)
        print(f"\n{kind} reports: {_accuracy_text(rows)} First half {n_right / n_diagnosed:.0%}.")
        _print_wrong_causes(rows)


def _print_wrong_causes(rows: Sequence[DiagnosisResult]) -> None:
    """Print the causes named in place of each fault."""
    wrong_causes: dict[str, Counter[str]] = {}
    for row in rows:
        if row.fault == NO_FAULT:
            continue
        causes = wrong_causes.setdefault(row.fault, Counter())
        for cause, count in row.diagnosed_causes.items():
            if cause not in NAMES[row.fault]:
                causes[cause] += count
    for fault, causes in wrong_causes.items():
        print(f"- {fault}: {_causes_text(causes)}")


def _accuracy_table(rows_of_kind: Mapping[str, Sequence[DiagnosisResult]]) -> str:
    """Return a line a fault and a column a federation and kind: how many were named right."""
    cells_of_fault: dict[str, list[str]] = {fault: [fault] for fault in (*NAMES, NO_FAULT)}
    head = ["fault"]
    for federation in FEDERATIONS:
        for kind, rows in rows_of_kind.items():
            head.append(f"{federation.title}, {kind}")
            for row in rows:
                if row.federation == federation.title:
                    cells_of_fault[row.fault].append(f"{row.n_correct} of {row.n_clients}")
    return markdown(head, cells_of_fault.values())


def _accuracy_text(rows: Sequence[DiagnosisResult]) -> str:
    """Return how many faults were named, and at how many sites without one no cause was named."""
    faulty_rows = [row for row in rows if row.fault != NO_FAULT]
    benign_rows = [row for row in rows if row.fault == NO_FAULT]
    n_named = sum(row.n_correct for row in faulty_rows)
    n_faults = sum(row.n_clients for row in faulty_rows)
    n_quiet = sum(row.n_correct for row in benign_rows)
    n_faultless = sum(row.n_clients for row in benign_rows)
    faults_text = f"{n_named} of {n_faults} faults named"
    return f"{faults_text}, no cause named at {n_quiet} of {n_faultless} sites without a fault."


def _causes_text(causes: Counter[str]) -> str:
    """Return causes with their counts, the commonest first."""
    return ", ".join(f"{cause} ({count})" for cause, count in causes.most_common())


def swapped_pairs() -> None:
    """Count, of swapped labels that were called so, how often the two classes were right."""
    n_right = 0
    n_called = 0
    for federation in FEDERATIONS:
        data, site_of_sample = federation.load()
        client_rows = partitions.partition_by_site(site_of_sample, MIN_SIZE)
        n_classes = data.probabilities.shape[1]
        names = list(client_rows)
        samples = [(data.probabilities[rows], data.labels[rows]) for rows in client_rows.values()]
        reports = [
            make_report(name, probabilities, labels, n_classes, min_cell_count=1)
            for name, (probabilities, labels) in zip(names, samples, strict=True)
        ]
        rng = np.random.default_rng(0)
        second_half = np.arange(len(names))[1::2]
        for k in rng.permutation(second_half)[:N_SWAPPED].tolist():
            probabilities, labels = get_attack("label-swap")(samples, [k], rng)[k]
            swapped = make_report(names[k], probabilities, labels, n_classes, min_cell_count=1)
            diagnosis = diagnosed_cause([*reports[:k], swapped, *reports[k + 1 :]], names[k])
            if diagnosis.cause == "labels swapped":
                class_counts = np.bincount(samples[k][1], minlength=n_classes)
                commonest = np.argsort(-class_counts, kind="stable")[:2]
                n_called += 1
                if set(diagnosis.classes) == {str(c) for c in commonest}:
                    n_right += 1
    print(f"\nThe two classes of 'labels swapped' were right in {n_right} of {n_called} cases.")


def earlier_models() -> None:
    """Replace the model by the same one some rounds earlier, at one site at a time."""
    for dataset in ("cifar10", "mnist"):
        final = outputs.load(dataset, "beta0.5", "final")
        early = outputs.load(dataset, "beta0.5", "early")
        client_rows = partitions.partition_dirichlet(final.labels, 40, 0.5, 3)
        client_rows = [rows for rows in client_rows if len(rows) >= 50]
        reports = _model_reports(final, client_rows)
        causes: Counter[str] = Counter()
        for k, early_report in enumerate(_model_reports(early, client_rows)):
            round_reports = [*reports[:k], early_report, *reports[k + 1 :]]
            causes[diagnosed_cause(round_reports, early_report.client).cause] += 1
        print(
            f"- {dataset}, {early.accuracy:.0%} accurate, the others' {final.accuracy:.0%}: "
            f"{_causes_text(causes)}"
        )


def _model_reports(model: outputs.Outputs, client_rows: Sequence[NDArray[np.intp]]) -> list[Report]:
    """Return the report of each site on the outputs of one model."""
    n_classes = model.probabilities.shape[1]
    return [
        make_report(f"site-{k:02d}", model.probabilities[rows], model.labels[rows], n_classes)
        for k, rows in enumerate(client_rows)
    ]


if __name__ == "__main__":
    faults_named()
    swapped_pairs()
    earlier_models()
