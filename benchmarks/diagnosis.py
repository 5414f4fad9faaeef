"""How often the diagnosis is right: `python benchmarks/diagnosis.py`, for docs/guides/page.md.

It needs nothing but the package: the outputs ship with it. A few minutes on two cores.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from measure import markdown

from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import get_attack
from robfcp.experiments.data_faults import (
    NAMES,
    NO_FAULT,
    diagnosed_cause,
    diagnosis_accuracy_table,
    make_report,
)
from robfcp.experiments.natural_partitions import FEDERATIONS, MIN_SIZE


def named() -> None:
    """Faults put into one real site at a time, of the half of the sites that fitted nothing."""
    rows = diagnosis_accuracy_table("second")
    first = [row for row in diagnosis_accuracy_table("first", most=20) if row.fault != NO_FAULT]
    names = list(dict.fromkeys(row.federation for row in rows))
    found = {(row.fault, row.federation): row for row in rows}
    cells = (
        [fault, *(f"{found[fault, n].right} of {found[fault, n].sites}" for n in names)]
        for fault in (*NAMES, NO_FAULT)
    )
    print(markdown(["fault", *names], cells))
    faults = [row for row in rows if row.fault != NO_FAULT]
    share = sum(row.right for row in first) / sum(row.sites for row in first)
    for kind, every in (("fine", rows), ("as by default", diagnosis_accuracy_table(fine=False))):
        right, total, well, honest = (
            sum(getattr(row, what) for row in every if (row.fault == NO_FAULT) == nobody)
            for nobody in (False, True)
            for what in ("right", "sites")
        )
        print(f"\n{kind}: {right} of {total} faults named, {well} of {honest} sites told nothing.")
    print(f"First half {share:.0%}.")
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for row in faults:
        said[row.fault].update({c: n for c, n in row.said.items() if c not in NAMES[row.fault]})
    for fault, other in said.items():
        print(f"- {fault}: " + ", ".join(f"{cause} ({n})" for cause, n in other.most_common()))


def swapped_pairs(most: int = 30) -> None:
    """Of swapped labels that were called so: how often the two classes were right, of how many."""
    right = called = 0
    for federation in FEDERATIONS:
        given, sites = federation.load()
        parts = partitions.partition_by_site(sites, MIN_SIZE)
        n_classes, names = given.probabilities.shape[1], list(parts)
        samples = [(given.probabilities[part], given.labels[part]) for part in parts.values()]
        honest = [
            make_report(name, *one, n_classes) for name, one in zip(names, samples, strict=True)
        ]
        rng = np.random.default_rng(0)
        for k in rng.permutation(np.arange(len(names))[1::2])[:most].tolist():
            common = np.argsort(-np.bincount(samples[k][1], minlength=n_classes), kind="stable")
            odd = make_report(
                names[k], *get_attack("swapped-labels")(samples, [k], rng)[k], n_classes
            )
            found = diagnosed_cause([*honest[:k], odd, *honest[k + 1 :]], names[k])
            if found.cause == "labels swapped":
                called += 1
                right += set(found.classes) == {str(c) for c in common[:2]}
    print(f"\nThe two classes of 'labels swapped' were right in {right} of {called} cases.")


def earlier() -> None:
    """The same model some rounds earlier, at one site at a time."""
    for dataset in ("cifar10", "mnist"):
        now, then = (outputs.load(dataset, "beta0.5", stage) for stage in ("final", "early"))
        n_classes = now.probabilities.shape[1]
        parts = [p for p in partitions.partition_dirichlet(now.labels, 40, 0.5, 3) if len(p) >= 50]
        honest, old = (
            [
                make_report(
                    f"site-{k:02d}", model.probabilities[part], model.labels[part], n_classes
                )
                for k, part in enumerate(parts)
            ]
            for model in (now, then)
        )
        causes = Counter(
            diagnosed_cause([*honest[:k], one, *honest[k + 1 :]], one.client).cause
            for k, one in enumerate(old)
        )
        words = ", ".join(f"{cause} ({n})" for cause, n in causes.most_common())
        print(f"- {dataset}, {then.accuracy:.0%} accurate, the others' {now.accuracy:.0%}: {words}")


if __name__ == "__main__":
    named()
    swapped_pairs()
    earlier()
