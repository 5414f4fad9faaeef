"""Natural federations: `python benchmarks/natural.py` writes docs/natural.md and its figure.

It needs nothing but the package: the outputs ship with it. About a quarter of an hour on two cores,
most of it the letters of 118 hospitals.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from robfcp.figures import BLUE, GREEN, GREY, ORANGE, new_axes, save
from robfcp.files import write_atomically
from robfcp.lab import natural, outputs
from robfcp.lab.attacks import EVERYDAY

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
Rows = Sequence[dict[str, Any]]
CURVES = (
    ("dealt", GREY, "dealt at random"),
    ("pooled", BLUE, "one threshold"),
    ("by class", ORANGE, "one a class"),
    ("letter", GREEN, "own letter"),
)
LOADERS = ("fed-heart", "fed-isic2019", "wisdm", "ptbxl")

INTRO = """# Natural federations

Written by `python benchmarks/natural.py`; do not edit. Here nobody cut a data set into sites: the
sites are the hospitals, countries and sleepers the data came from. Every hospital's and every
sleeper's probabilities come from a model that never saw it, so it is as strange to the model as a
new one would be. (Where countries are the sites, the model has seen other hospitals of the same
country.)

| data | site | samples | model learns from | licence | source |
|---|---|---|---|---|---|
{sources}

The files ship with the package, with attribution in `robfcp/lab/outputs/ATTRIBUTION.md`. To make
them again from the official files:

<!-- not run: needs the official data -->
```sh
robfcp train stroke --model leave-sites-out --data-dir DATA -o stroke-leave-sites-out.npz
robfcp train heart --model leave-sites-out --data-dir DATA -o heart-leave-sites-out.npz
robfcp train sleep --model leave-sites-out --data-dir DATA -o sleep-leave-sites-out.npz
```

The stroke model sees what was known at randomisation, no treatment, nothing of the follow-up and
none of the trial's own predictions. The models are gradient-boosted trees of scikit-learn.

Everything on this page can be tried in other settings:

```sh
robfcp simulate stroke --sites natural --attack swapped-labels --share 0.2 --seeds 2
robfcp redteam heart --sites natural --attack subset --share 0.25 --seeds 1
```

`--site-column country` makes countries the sites, `--min-size` leaves small sites out, and
`--malicious estimate` does not tell the defences how many lie. In Python:

```python
from robfcp.lab import outputs, simulate

stroke = outputs.load("stroke", "leave-sites-out")
rows = simulate(
    stroke.probabilities,
    stroke.labels,
    sites=stroke.column("country"),
    attack="old-model",
    share=0.2,
    seeds=1,
)
```

Loaders for federations to fetch oneself are in `robfcp.lab.datasets.load_sites`:
{loaders}.

## Sites and models

Sites with fewer than {min_size} samples are left out of all that follows. *Commonest* is the
accuracy of always naming the commonest class.
"""

COVERAGE = """
## Coverage by site

Nobody lies, 0.9 is asked for, and what is shown is measured on the test halves of {seeds} random
halvings of every site; *all samples* and set sizes weigh sites by their samples.

- *One threshold for all* promises 0.9 on average over the samples of all sites, and nothing to any
  single site or class. *Dealt at random* is the same with the samples dealt out to the sites by
  chance: what only sampling noise does.
- *A threshold for each class* promises 0.9 of every class, again over all sites.
- *Own letter* is what `robfcp localise` makes of the letter `calibrate --letters` writes, with one
  site in ten (one at least) allowed to lie: a threshold for the site's own label mix from the other
  sites' reports, which covers 0.9 on average here where sites differ by their label mix only,
  clipped by the site's own data, which hold whatever the others do.
- *Own data alone* is the threshold that the site's own half proves with 97.5% confidence; where
  that half is too small, sets are full.
"""

UNLIKE = """
## How unlike sites are, and whether the label mix explains it

Mean over the sites of X²/df, each site's scores in {bins} bins against those of all others: 1 where
sites are alike. *Given its labels* compares with what the site's own label counts would lead to if
scores were alike within classes; what remains above 1 is beyond label shift. *Explained* is the
share of the excess over 1 that is gone; below zero, sites differ more once the label mix is
accounted for than before. Epochs of one sleeper are not independent, which alone raises X².
"""

SURPRISES = """
## What surprised us

"""

FOUND = """
## Who is found

A fifth of the sites lie (one of the four heart hospitals), the defences estimate how many; {seeds}
seeds. In each cell the error, coverage minus that of the honest sites alone, of no defence / the
published rule / `consensus`; then how many of the liars `consensus` left out. The first seven are
mistakes that happen without any malice.

- `swapped-labels`: the site's two commonest classes coded the wrong way round.
- `old-model`: probabilities of a worse model, emulated: softmax(0.5 log p + noise).
- `other-class-order`: the columns in another order.
- `temperature`, `temperature-flat`: probabilities sharpened (p², normalised) or flattened (√p).
- `stale-file`: another site's file sent again. Of two equal reports nobody can say which is the
  copy: `consensus` leaves out nobody, but both count once and a note names them.
- `subset`: only the easier half of the samples.
"""


def main() -> None:
    """Measure, print the tables' sizes, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=DOCS, help="the folder of the page")
    parser.add_argument(
        "--keep-sites", action="store_true", help="take sites.csv and rules.csv as they are"
    )
    parser.add_argument("--keep-found", action="store_true", help="take found.csv as it is")
    arguments = parser.parse_args()
    seeds, folder = arguments.seeds, arguments.output
    described = [natural.described(one) for one in natural.FEDERATIONS]
    unlike = [natural.unlike(one) for one in natural.FEDERATIONS]
    if arguments.keep_sites:
        sites, spread = (
            read_csv(folder / "natural" / f"{name}.csv") for name in ("sites", "rules")
        )
    else:
        sites, spread = measured_sites(seeds)
    if arguments.keep_found:
        found = read_csv(folder / "natural" / "found.csv")
    else:
        found = natural.found_table(seeds, seeds)
    (folder / "natural").mkdir(parents=True, exist_ok=True)
    for name, rows in (("sites", sites), ("rules", spread), ("found", found)):
        write_atomically(folder / "natural" / f"{name}.csv", as_csv(rows))
    draw(sites, folder / "natural" / "coverage.png")
    write_atomically(folder / "natural.md", page(described, spread, unlike, found, seeds))
    print(f"-> {folder / 'natural.md'}: {len(sites)} sites, {len(found)} settings")


def measured_sites(seeds: int) -> tuple[Rows, Rows]:
    """A row a site, and a row a federation and rule."""
    sites, spread = [], []
    for one in natural.FEDERATIONS:
        rows, rules = natural.by_site(one, seeds=seeds)
        sites += rows
        spread += rules
        print(f"{one.title}: {len(rows)} sites", flush=True)
    return sites, spread


def page(described: Rows, spread: Rows, unlike: Rows, found: Rows, seeds: int) -> str:
    """docs/natural.md."""
    entries = [entry for entry in outputs.entries() if entry["split"] == outputs.NATURAL]
    sources = "\n".join(
        f"| {e['source']} | {e['site']} | {e['predicted']} | {e['trained_on']} | {e['licence']} "
        f"| [{e['doi']}](https://doi.org/{e['doi']}) |"
        for e in entries
    )
    loaders = ", ".join(f"`{name}`" for name in LOADERS)
    parts = [
        INTRO.format(
            sources=sources, loaders=loaders, min_size=natural.MIN_SIZE
        ),
        table(
            ["federation", "sites", "used", "samples used", "a site: least, median, most",
             "accuracy", "commonest", "worst site", "best site"],
            [
                [r["federation"], r["sites"], r["sites_used"], r["samples_used"],
                 f"{r['least']}, {r['median']:g}, {r['most']}", f"{r['accuracy']:.3f}",
                 f"{r['commonest_class']:.3f}", f"{r['worst_accuracy']:.3f}",
                 f"{r['best_accuracy']:.3f}"]
                for r in described
            ],
        ),
        COVERAGE.format(seeds=seeds),
        table(
            ["federation", "rule", "all samples", "worst site",
             f"sites below {natural.LOW}", "worst class", "set size"],
            [
                [r["federation"], natural.TITLES[r["rule"]], f"{r['overall']:.3f}",
                 f"{r['worst']:.3f}", f"{r['low']:.0%}", f"{r['worst_class']:.3f}",
                 f"{r['set_size']:.2f}"]
                for r in spread
            ],
        ),
        "\n![Coverage by site](natural/coverage.png)\n",
        "[sites.csv](natural/sites.csv), [rules.csv](natural/rules.csv)",
        UNLIKE.format(bins=natural.BINS),
        table(
            ["federation", "sites", "X²/df against the others", "given its labels", "explained"],
            [
                [r["federation"], r["sites"], f"{r['pooled']:.2f}", f"{r['given_labels']:.2f}",
                 f"{r['explained']:.0%}"]
                for r in unlike
            ],
        ),
        "\n## Nobody lies\n\nHonest sites accused a run, the number of liars estimated, and the "
        "error of coverage\nagainst one threshold of everybody.\n",
        table(
            ["federation", "sites", *(f"{name}: accused, error" for name in natural.COMPARED)],
            [
                [r["federation"], r["honest"],
                 *(f"{r[f'{name}_false_alarms']:.1f}, {r[f'{name}_error']:+.3f}"
                   for name in natural.COMPARED)]
                for r in found if not r["liars"]
            ],
        ),
        SURPRISES + surprises(spread, unlike, found),
        FOUND.format(seeds=seeds),
        faults(found),
        "\n[found.csv](natural/found.csv)\n",
    ]  # fmt: skip
    return "\n".join(parts)


def surprises(spread: Rows, unlike: Rows, found: Rows) -> str:
    """What one would not have guessed, in figures of the tables."""
    rule = {(r["federation"], r["rule"]): r for r in spread}
    mix = {r["federation"]: r["explained"] for r in unlike}
    stroke, countries, heart, sleep = (one.title for one in natural.FEDERATIONS)
    quiet = next(r for r in found if r["federation"] == stroke and not r["liars"])
    faults = [r for r in found if r["federation"] == stroke and r["attack"] in EVERYDAY]
    ours = natural.COMPARED[-1]
    share = np.mean([r[f"{ours}_found"] / r["liars"] for r in faults])
    left = max((r[f"{ours}_error"] for r in faults), key=abs)

    def moved(title: str, to: str, field: str) -> str:
        return f"from {rule[title, 'pooled'][field]:.3f} to {rule[title, to][field]:.3f}"

    lines = [
        f"The published rule accuses {quiet['rob-fcp_false_alarms']:.0f} of {quiet['honest']} "
        f"honest hospitals when nobody lies; `{ours}` {quiet[f'{ours}_false_alarms']:.1f}.",
        f"Label mixes explain {mix[countries]:.0%} of what sets countries apart, {mix[sleep]:.0%} "
        f"of what sets sleepers apart, and {mix[heart]:.0%} at the heart hospitals: given its "
        "labels, a hospital there is stranger than without.",
        f"A threshold for each class takes the worst class of the stroke trial "
        f"{moved(stroke, 'by class', 'worst_class')}, but the worst hospital only "
        f"{moved(stroke, 'by class', 'worst')}, and the worst heart hospital "
        f"{moved(heart, 'by class', 'worst')}: classes are not sites.",
        f"A site's own letter takes the worst hospital {moved(stroke, 'letter', 'worst')} and the "
        f"worst sleeper {moved(sleep, 'letter', 'worst')}, for sets "
        f"{moved(stroke, 'letter', 'set_size')} and {moved(sleep, 'letter', 'set_size')} labels, "
        "although one site in ten may lie and sleepers are far from label shift.",
        f"Everyday mistakes are hard to see among real hospitals: when a fifth of them make one, "
        f"`{ours}` leaves out {share:.0%} of those that do, over the seven mistakes; coverage then "
        f"errs by {left:+.3f} at most.",
        _worse(found, ours),
    ]  # fmt: skip
    return "\n".join(
        fill(f"- {line}", 100, subsequent_indent="  ", break_on_hyphens=False) for line in lines
    )


def _worse(found: Rows, ours: str) -> str:
    """Where the defence errs by more than no defence at all."""
    cases = [
        f"`{r['attack']}` among {r['federation']} ({r[f'{ours}_error']:+.3f}, undefended "
        f"{r['none_error']:+.3f})"
        for r in sorted(found, key=lambda r: abs(r["none_error"]) - abs(r[f"{ours}_error"]))
        if r["liars"] and abs(r[f"{ours}_error"]) > abs(r["none_error"]) + 0.01
    ]
    if not cases:
        return f"Nowhere does `{ours}` err by a point more than no defence at all."
    words = "; ".join(cases)
    return f"`{ours}` can err by a point or more beyond no defence at all: {words}."


def faults(found: Rows) -> str:
    """A line a fault, a column a federation."""
    rows = {(r["attack"], r["federation"]): r for r in found if r["liars"]}
    titles = [one.title for one in natural.FEDERATIONS]
    names = ("none", *natural.COMPARED)
    ours = natural.COMPARED[-1]
    lines = [
        [
            f"`{attack}`",
            *(
                " / ".join(f"{rows[attack, title][f'{name}_error']:+.3f}" for name in names)
                + f"; {rows[attack, title][f'{ours}_found']:.1f}"
                for title in titles
            ),
        ]
        for attack in dict.fromkeys(attack for attack, _ in rows)
    ]
    counts = {title: r["liars"] for (_, title), r in rows.items()}
    return table(["fault", *(f"{title}, {counts[title]} lie" for title in titles)], lines)


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def as_csv(rows: Rows) -> str:
    """The rows with a header, numbers to six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()


def read_csv(path: Path) -> Rows:
    """The rows as_csv wrote."""
    with path.open(encoding="utf-8") as stream:
        return [{k: number(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def number(text: str) -> object:
    """A whole number, another number, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def draw(rows: Rows, path: Path) -> None:
    """Every site's coverage, sorted, under each rule; and with the samples dealt out at random."""
    titles = list(dict.fromkeys(row["federation"] for row in rows))
    axes = new_axes(len(titles), 3.4)
    for ax, title in zip(axes, titles, strict=True):
        chosen = [row for row in rows if row["federation"] == title]
        size = [row["samples"] for row in chosen]
        for key, colour, label in CURVES:
            ax.plot(
                np.arange(len(chosen)) / len(chosen),
                np.sort([row[key] for row in chosen]),
                "o-" if len(chosen) < 10 else "-",
                color=colour,
                label=label,
            )
        ax.axhline(0.9, color="black", linewidth=0.6, linestyle=":")
        ax.set(
            title=f"{title} ({min(size)} to {max(size)} samples)", xlabel="share of sites, sorted"
        )
        ax.set_ylim(0.55, 1.01)
    axes[0].set_ylabel("coverage")
    axes[0].legend(fontsize=7.5)
    save(axes, path)


if __name__ == "__main__":
    main()
