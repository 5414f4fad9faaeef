"""How often the diagnosis is right: `python benchmarks/diagnosis.py`, for docs/guides/page.md.

It needs nothing but the package: the outputs ship with it. A few minutes on two cores.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from robfcp.files import write_atomically
from robfcp.lab import outputs, partitions
from robfcp.lab.attacks.simple import SwappedLabels
from robfcp.lab.faults import NAMES, NOBODY, named_table, report, told
from robfcp.lab.natural import FEDERATIONS, MIN_SIZE

DOCS = Path(__file__).resolve().parent.parent / "docs"

TEXT = """{table}

In all {right} of {total} faults were named ({share:.0%}), at the first half {first:.0%}. Where
"labels swapped" was told of swapped labels, the two
classes were the right ones in {pairs[0]} of {pairs[1]} cases. Of {honest} sites with nothing wrong
{calm} were told of nothing or of another mix of classes.
With real earlier models in place of the imitation:

{early}"""


def main() -> None:
    """Measure and write the page."""
    rows = named_table("second")
    first = [row for row in named_table("first", most=20) if row.fault != NOBODY]
    faults = [row for row in rows if row.fault != NOBODY]
    nothing = [row for row in rows if row.fault == NOBODY]
    names = list(dict.fromkeys(row.federation for row in rows))
    lines = ["| fault | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for fault in NAMES:
        own = {row.federation: row for row in faults if row.fault == fault}
        cells = [f"{own[name].right} of {own[name].sites}" for name in names]
        lines.append(f"| {fault} | " + " | ".join(cells) + " |")
    right, total = sum(row.right for row in faults), sum(row.sites for row in faults)
    text = TEXT.format(
        table="\n".join(lines),
        right=right,
        total=total,
        share=right / total,
        first=sum(row.right for row in first) / sum(row.sites for row in first),
        honest=sum(row.sites for row in nothing),
        calm=sum(row.right for row in nothing),
        early="\n".join(earlier()),
        pairs=swapped_pairs(),
    )
    page = (DOCS / "guides" / "page.md").read_text(encoding="utf-8")
    before, rest = page.split("<!-- diagnosis -->")
    after = rest.split("<!-- end of diagnosis -->")[1]
    marked = f"{before}<!-- diagnosis -->\n\n{text}\n\n<!-- end of diagnosis -->{after}"
    write_atomically(DOCS / "guides" / "page.md", marked)


def swapped_pairs(most: int = 30) -> tuple[int, int]:
    """Of swapped labels that were called so: how often the two classes were right, of how many."""
    right = called = 0
    for federation in FEDERATIONS:
        given, sites = federation.load()
        parts = partitions.by_site(sites, MIN_SIZE)
        n_classes, names = given.probabilities.shape[1], list(parts)
        samples = [(given.probabilities[part], given.labels[part]) for part in parts.values()]
        honest = [report(name, *one, n_classes) for name, one in zip(names, samples, strict=True)]
        rng = np.random.default_rng(0)
        for k in rng.permutation(np.arange(len(names))[1::2])[:most].tolist():
            (wrong,) = SwappedLabels().forge(samples, np.array([k]), rng)
            common = np.argsort(-np.bincount(samples[k][1], minlength=n_classes), kind="stable")
            odd = report(names[k], *wrong, n_classes)
            found = told([*honest[:k], odd, *honest[k + 1 :]], names[k])
            if found.cause == "labels swapped":
                called += 1
                right += set(found.classes) == {str(c) for c in common[:2]}
    return right, called


def earlier() -> list[str]:
    """One line a data set whose earlier model ships."""
    lines = []
    for dataset in ("cifar10", "mnist"):
        now, then = (outputs.load(dataset, "beta0.5", stage) for stage in ("final", "early"))
        n_classes = now.probabilities.shape[1]
        parts = partitions.dirichlet(now.labels, 40, 0.5, 3)
        parts = [part for part in parts if len(part) >= 50]
        honest = [
            report(f"site-{k:02d}", now.probabilities[part], now.labels[part], n_classes)
            for k, part in enumerate(parts)
        ]
        causes: Counter[str] = Counter()
        for k, part in enumerate(parts):
            name = honest[k].client
            old = report(name, then.probabilities[part], then.labels[part], n_classes)
            causes[told([*honest[:k], old, *honest[k + 1 :]], name).cause] += 1
        told_all = ", ".join(f"{cause} ({n})" for cause, n in causes.most_common())
        accuracy = [
            float(np.mean(one.probabilities.argmax(1) == one.labels)) for one in (now, then)
        ]
        lines.append(
            f"- {dataset}, {accuracy[1]:.0%} accurate, the others' {accuracy[0]:.0%}, "
            f"{len(parts)} sites: {told_all}."
        )
    return lines


if __name__ == "__main__":
    main()
