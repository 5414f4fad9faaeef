"""Letters on the stroke trial: `python benchmarks/letters.py [--splits 100] [--malicious 5]`.

Hospitals as they are: those with at least 50 patients report half of them by class, drawn anew in
every split; hospitals with at least 100 patients are looked at on their other half, which nobody
has seen. Nobody lies, and the number of liars allowed for is stated. Prints the tables of
docs/certificates.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from robfcp import LAC, Report, calibrate
from robfcp.calibration import letters
from robfcp.lab.natural import FEDERATIONS
from robfcp.lab.partitions import by_site

REPORTING, LOOKED_AT = 50, 100
FORMS = ("one threshold", "own data", "federation", "clipped")


def one_split(
    given: tuple[NDArray[np.float64], NDArray[np.intp]],
    sites: dict[str, NDArray[np.intp]],
    rng: np.random.Generator,
    m: int,
) -> NDArray[np.float64]:
    """(hospitals looked at, forms, 2) coverage and mean set size on the patients kept back."""
    p, y = given
    score = LAC()
    halves = {name: np.split(rng.permutation(own), [len(own) // 2]) for name, own in sites.items()}
    names = [f"outcome-{c}" for c in range(p.shape[1])]
    reports = [
        Report.from_scores(
            name, score(p[mine], y[mine]), score=score, labels=y[mine], classes=names
        )
        for name, (mine, _) in halves.items()
    ]
    calibration = calibrate(reports, defence="none")
    looked_at = {name for name, own in sites.items() if len(own) >= LOOKED_AT}
    found = []
    for letter in letters(calibration, looked_at):
        mine, rest = halves[letter.client]
        local = letter.at_site(p[mine], y[mine])
        one = local.levels[0]
        every, true = score.all_labels(p[rest]), score(p[rest], y[rest])
        limits = [calibration.levels[0].threshold, one.own, one.unclipped, one.threshold]
        found.append([[(true <= q).mean(), (every <= q).sum(axis=1).mean()] for q in limits])
    return np.array(found)


def table(splits: int, m: int) -> Iterable[Sequence[str]]:
    """The forms side by side, then each hospital's clipped threshold against its own data's."""
    outputs, site = FEDERATIONS[0].load()
    sites = by_site(site, REPORTING)
    given = outputs.probabilities, outputs.labels
    found = np.mean(
        [one_split(given, sites, np.random.default_rng([7, s]), m) for s in range(splits)], axis=0
    )
    samples = np.array([len(own) // 2 for own in sites.values() if len(own) >= LOOKED_AT])
    yield ["", "worst hospital", "under .87", "under .88", "under .9", "mean", "mean set size"]
    for k, form in enumerate(FORMS):
        covered = found[:, k, 0]
        under = [f"{(covered < floor).sum()} of {len(covered)}" for floor in (0.87, 0.88, 0.9)]
        mean = [f"{covered.mean():.3f}", f"{found[:, k, 1].mean():.2f}"]
        yield [form, f"{covered.min():.3f}", *under, *mean]
    yield []
    yield ["own samples", "hospitals", *[f"set size, {form}" for form in FORMS], "above own data"]
    for low, high in ((50, 60), (60, 75), (75, 100), (100, 200), (200, 400)):
        here = (samples >= low) & (samples < high)
        sizes = [f"{found[here, k, 1].mean():.3f}" for k in range(len(FORMS))]
        above = int((found[here, 3, 1] > found[here, 1, 1] + 1e-9).sum())
        yield [f"{low} to {high - 1}", str(here.sum()), *sizes, str(above)]


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--malicious", type=int, default=5)
    arguments = parser.parse_args()
    first = True
    for row in table(arguments.splits, arguments.malicious):
        print("| " + " | ".join(row) + " |" if row else "", flush=True)
        if row and first:
            print("|" + " --- |" * len(row))
        first = not row


if __name__ == "__main__":
    main()
