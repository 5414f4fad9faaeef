"""Natural federations: `python benchmarks/natural.py` writes docs/natural.md and its figure.

It needs nothing but the package: the outputs ship with it. Under a minute on two cores.
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

from robfcp._util.files import write_atomically
from robfcp.figures import BLUE, GREY, new_axes, save
from robfcp.lab import natural, outputs

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
Rows = Sequence[dict[str, Any]]
LOADERS = ("fed-heart", "fed-isic2019", "wisdm", "ptbxl")

INTRO = """# Natural federations

Written by `python benchmarks/natural.py`; do not edit. Here nobody cut a data set into clients: the
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

The stroke model sees what was known at randomisation:
{features}.
It sees no treatment, nothing of the follow-up and none of the trial's own predictions. The
models are gradient-boosted trees of scikit-learn.

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

Nobody lies; one threshold for all sites, asked for 0.9, on the test halves of {seeds} random
halvings of every site. *Dealt* is the same with the samples dealt out to the sites at random, so
that only sampling noise is left. What is promised is coverage on average over the samples of all
sites; ranks that assume exchangeability only within sites make it a little more than 0.9. No single
site is promised anything.
"""

UNLIKE = """
## How unlike sites are, and whether the label mix explains it

Mean over the sites of X²/df, each site's scores in {bins} bins against those of all others: 1 where
sites are alike. *Given its labels* compares with what the site's own label counts would lead to if
scores were alike within classes; what remains above 1 is beyond label shift. *Explained* is the
share of the excess over 1 that is gone; below zero, sites differ more once the label mix is
accounted for than before. Epochs of one sleeper are not independent, which alone raises X².
"""

FOUND = """
## Who is found

A fifth of the sites lie (one of the four heart hospitals), the defences estimate how many; {seeds}
seeds. *Error* is coverage minus that of the honest sites alone, *found* counts liars left out,
*accused* honest sites left out. The first seven are mistakes that happen without any malice.

- `swapped-labels`: the site's two commonest classes coded the wrong way round.
- `old-model`: probabilities of a worse model, emulated: softmax(0.5 log p + noise).
- `other-class-order`: the columns in another order.
- `temperature`, `temperature-flat`: probabilities sharpened (p², normalised) or flattened (√p).
- `stale-file`: another site's file sent again. Of two equal reports nobody can say which is the
  copy, so the honest owner is accused as well.
- `subset`: only the easier half of the samples.
"""


def main() -> None:
    """Measure, print the tables' sizes, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=DOCS, help="the folder of the page")
    arguments = parser.parse_args()
    seeds, folder = arguments.seeds, arguments.output
    described = [natural.described(one) for one in natural.FEDERATIONS]
    unlike = [natural.unlike(one) for one in natural.FEDERATIONS]
    by_site = [natural.by_site(one, seeds=seeds) for one in natural.FEDERATIONS]
    spread = [natural.spread(rows) for rows in by_site]
    sites = [row for rows in by_site for row in rows]
    found = natural.found_table(seeds, seeds)
    (folder / "natural").mkdir(parents=True, exist_ok=True)
    for name, rows in (("sites", sites), ("found", found)):
        write_atomically(folder / "natural" / f"{name}.csv", as_csv(rows))
    draw(sites, folder / "natural" / "coverage.png")
    write_atomically(folder / "natural.md", page(described, spread, unlike, found, seeds))
    print(f"-> {folder / 'natural.md'}: {len(sites)} sites, {len(found)} settings")


def page(described: Rows, spread: Rows, unlike: Rows, found: Rows, seeds: int) -> str:
    """docs/natural.md."""
    entries = [entry for entry in outputs.entries() if entry["split"] == outputs.NATURAL]
    stroke = next(entry for entry in entries if entry["dataset"] == "stroke")
    names = dict.fromkeys(name.split("=")[0] for name in stroke["features"])
    features = fill(", ".join(names), 100)
    sources = "\n".join(
        f"| {e['source']} | {e['site']} | {e['predicted']} | {e['trained_on']} | {e['licence']} "
        f"| [{e['doi']}](https://doi.org/{e['doi']}) |"
        for e in entries
    )
    loaders = ", ".join(f"`{name}`" for name in LOADERS)
    parts = [
        INTRO.format(
            sources=sources, features=features, loaders=loaders, min_size=natural.MIN_SIZE
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
            ["federation", "all samples", "mean of sites", "worst site", "tenth part below", "best",
             "sites below 0.85", "dealt: worst", "tenth part below", "best", "below 0.85"],
            [
                [r["federation"], f"{r['overall']:.3f}", f"{r['mean']:.3f}",
                 f"{r['worst']:.3f} ({r['worst_site']})",
                 f"{r['tenth']:.3f}", f"{r['best']:.3f}", f"{r['low']:.0%}",
                 f"{r['worst_dealt']:.3f}", f"{r['tenth_dealt']:.3f}", f"{r['best_dealt']:.3f}",
                 f"{r['low_dealt']:.0%}"]
                for r in spread
            ],
        ),
        "\n![Coverage by site](natural/coverage.png)\n\n[sites.csv](natural/sites.csv)",
        UNLIKE.format(bins=natural.BINS),
        table(
            ["federation", "sites", "X²/df against the others", "given its labels", "explained"],
            [
                [r["federation"], r["sites"], f"{r['pooled']:.2f}", f"{r['given_labels']:.2f}",
                 f"{r['explained']:.0%}"]
                for r in unlike
            ],
        ),
        "\n## Nobody lies\n\nHonest sites accused a run, the number of liars estimated.\n",
        table(
            ["federation", "sites", "rob-fcp", "band"],
            [
                [r["federation"], r["honest"], f"{r['rob-fcp_false_alarms']:.1f}",
                 f"{r['band_false_alarms']:.1f}"]
                for r in found if not r["liars"]
            ],
        ),
        FOUND.format(seeds=seeds),
        *(liars(one.title, found) for one in natural.FEDERATIONS),
        "[found.csv](natural/found.csv)\n",
    ]  # fmt: skip
    return "\n".join(parts)


def liars(title: str, found: Rows) -> str:
    """The faults of one federation, a line each."""
    rows = [row for row in found if row["federation"] == title and row["liars"]]
    first = rows[0]
    lines = [
        [
            f"`{r['attack']}`", f"{r['none_error']:+.3f}", f"{r['rob-fcp_error']:+.3f}",
            f"{r['rob-fcp_found']:.1f}", f"{r['rob-fcp_false_alarms']:.1f}",
            f"{r['band_error']:+.3f}", f"{r['band_found']:.1f}", f"{r['band_false_alarms']:.1f}",
        ]
        for r in rows
    ]  # fmt: skip
    head = ["fault", "undefended: error", "rob-fcp: error", "found", "accused", "band: error",
            "found", "accused"]  # fmt: skip
    return (
        f"### {title[0].upper()}{title[1:]}: {first['liars']} of "
        f"{first['liars'] + first['honest']} lie\n\n{table(head, lines)}\n"
    )


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


def draw(rows: Rows, path: Path) -> None:
    """Every site's coverage over its size, and the same with the samples dealt out at random."""
    titles = list(dict.fromkeys(row["federation"] for row in rows))
    axes = new_axes(len(titles), 3.4)
    for ax, title in zip(axes, titles, strict=True):
        chosen = [row for row in rows if row["federation"] == title]
        size = [row["samples"] for row in chosen]
        for key, colour, label in (("dealt", GREY, "dealt at random"), ("coverage", BLUE, "sites")):
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
