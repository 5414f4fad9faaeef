"""How often the diagnosis is right: `python benchmarks/diagnosis.py` writes docs/diagnosis.md.

It needs nothing but the package: the outputs ship with it. A few minutes on two cores.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from robfcp.files import write_atomically
from robfcp.lab import outputs, partitions
from robfcp.lab.attacks.simple import SwappedLabels
from robfcp.lab.faults import NAMES, NOBODY, named_table, report, told
from robfcp.lab.natural import FEDERATIONS, MIN_SIZE

DOCS = Path(__file__).resolve().parent.parent / "docs"

TEXT = """# What happened at a site: the diagnosis

Written by `python benchmarks/diagnosis.py`; do not edit.

Most sites whose reports are odd do not lie: somebody swapped two labels, used last year's model
or sent the wrong file. For every site that was left out, and every one that was used but looks
odd, `robfcp` says what its report looks like and what to check:

```python
calibration = robfcp.Calibration.load("calibration.json")
for name, found in robfcp.diagnose(calibration).items():
    print(found.sentence, found.advice)
```

`robfcp calibrate` prints it, `--json` holds it, the [page](guides/page.md) begins with it. The
diagnosis reads the reports and whom the calibration trusts; it does not matter which defence
decided that.

## How it works

A report by class says how a site's scores of each class lie among the other sites' scores of
that class. Evenly, if nothing is wrong. Each fault bends that in its own way:

| what it looks like | what is seen |
|---|---|
| labels swapped | two classes score far too high, the rest as elsewhere |
| labels mixed up | most classes score far too high |
| another model | all classes score higher, with more very low scores or more middling ones |
| probabilities too extreme | too many very low and very high scores in all classes |
| much smaller spread | no very low and no very high scores |
| hard cases missing | no high scores in any class |
| scores all equal | 95% of the scores in one bin where the others' are not |
| copy, part of another report | the same counts, or counts within another report's beyond chance |
| other mix of classes | scores as elsewhere in every class, other shares: often no fault |
| other cases | some classes differ in no way that has a name |
| not told | nothing differs |

The likeliest of these is told; where another explains the report nearly as well, that is told
too. Pooled reports are compared as one class, which tells less. Private reports are not
diagnosed: the noise hides the cause. A site that was *used* is listed where fewer of its own
cases are covered than chance allows and at least 7 points too few, or where its report shows a
fault beyond doubt.

## How often it is right

The faults of `robfcp simulate --attack` were put into one real site at a time, and that site
was left out. The laws behind the diagnosis were fitted to the first half of the sites (every
other one by name); here are the others. "Right" means: the fault by its name (an old model may
show as another model, as too extreme or too flat; of a wrong class order, and of labels drawn
at random, "swapped" counts as well).

{table}

In all {right} of {total} faults were named ({share:.0%}). At the first half it is {first:.0%}.
The second half was looked at several times and the laws changed twice afterwards: it was
not fitted, but it is not untouched either.

Where "labels swapped" was told of swapped labels, the two classes were the right ones in
{pairs[0]} of {pairs[1]} cases.

What was said instead:

{instead}

Of {honest} sites with nothing wrong {calm} were told of nothing or of another mix of classes;
the others are mostly sleepers, who really differ. A site is diagnosed only when it was left out
or stands out, so an honest site hears of a fault it does not have only then. Two labels that a
weak model hardly tells apart can be swapped without leaving much of a trace.

## An earlier model, for real

`old-model` is an imitation. The outputs that ship hold two real ones, the same model some
rounds earlier:

{early}

Beside a model that is nearly always right, a much worse one cannot be told from wrong labels: the
advice then names both.
"""


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
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for row in faults:
        said[row.fault].update(
            {cause: n for cause, n in row.said.items() if cause not in NAMES[row.fault]}
        )
    instead = [
        f"- {fault}: " + ", ".join(f"{cause} ({n})" for cause, n in other.most_common())
        for fault, other in said.items()
        if other
    ]
    right, total = sum(row.right for row in faults), sum(row.sites for row in faults)
    text = TEXT.format(
        table="\n".join(lines),
        right=right,
        total=total,
        share=right / total,
        first=sum(row.right for row in first) / sum(row.sites for row in first),
        instead="\n".join(instead),
        honest=sum(row.sites for row in nothing),
        calm=sum(row.right for row in nothing),
        early="\n".join(earlier()),
        pairs=swapped_pairs(),
    )
    write_atomically(DOCS / "diagnosis.md", text)


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
