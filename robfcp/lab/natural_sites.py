"""What single sites of a natural federation get: one threshold, one a class, their own letter.

Nobody lies here; letters and classes still pay for what they allow for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.calibration import calibrate, letters
from robfcp.federation import Federation
from robfcp.guarantees import Marginal
from robfcp.lab import partitions
from robfcp.lab.natural import MIN_SIZE, NaturalFederation
from robfcp.lab.simulation import thresholds_of
from robfcp.lab.worlds import federation_of
from robfcp.scores import LAC, check_labels, check_probabilities

ALLOWED = 0.1  # the share of the sites that letters allow to lie
LOW = 0.85
RULES = ("pooled", "by class", "letter", "own data")
TITLES = {
    "pooled": "one threshold for all",
    "dealt": "the same, samples dealt at random",
    "by class": "a threshold for each class",
    "letter": "each site's own letter",
    "own data": "each site's own data alone",
}
Limits = NDArray[np.float64]  # (K, C) the threshold of each class at each site


@dataclass(frozen=True, eq=False)
class SiteOutcomes:
    """Means over random halvings of every site into calibration and test samples.

    `coverage` and `set_size` are (K,) of the sites' test halves, `classes` (C,) coverage of each
    class over all of them.
    """

    sites: tuple[str, ...]
    coverage: NDArray[np.float64]
    set_size: NDArray[np.float64]
    classes: NDArray[np.float64]


def site_outcomes(
    probabilities: ArrayLike,
    labels: ArrayLike,
    sites: ArrayLike,
    *,
    rules: Sequence[str] = RULES,
    seeds: int = 20,
    min_size: int = MIN_SIZE,
    confidence_level: float = 0.9,
    allowed: float = ALLOWED,
    rng: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, SiteOutcomes]:
    """Each rule's outcomes at every site, all rules on the same halvings.

    `pooled` is one threshold for all, `by class` one a class, `letter` what `Letter.at_site` gives
    the site while at most the share `allowed` of the sites (one at least) may lie, `own data` its
    own PAC threshold.
    """
    array = check_probabilities(probabilities)
    label = check_labels(labels, array.shape)
    score, n_classes = LAC(), array.shape[1]
    every = score.all_labels(array)
    true = every[np.arange(len(label)), label]
    parts = partitions.by_site(sites, max(2, min_size))
    covered, sizes = ({rule: np.zeros(len(parts)) for rule in rules} for _ in range(2))
    classes = {rule: np.zeros(n_classes) for rule in rules}
    for seed in range(seeds):
        generator = np.random.default_rng([rng, seed])
        halves = [np.array_split(generator.permutation(part), 2) for part in parts.values()]
        federation = federation_of(
            [true[own] for own, _ in halves],
            score.default_grid(),
            score,
            list(parts),
            labels=[label[own] for own, _ in halves],
            n_classes=n_classes,
        )
        own = [(array[half], label[half]) for half, _ in halves]
        test = np.concatenate([half for _, half in halves])
        owner = np.repeat(np.arange(len(parts)), [len(half) for _, half in halves])
        for rule, limits in _limits(federation, own, rules, confidence_level, allowed):
            hit = true[test] <= limits[owner, label[test]]
            size = (every[test] <= limits[owner]).sum(axis=1)
            covered[rule] += np.bincount(owner, hit) / np.bincount(owner)
            sizes[rule] += np.bincount(owner, size) / np.bincount(owner)
            number = np.bincount(label[test], minlength=n_classes)
            hits = np.bincount(label[test], hit, minlength=n_classes)
            classes[rule] += hits / np.maximum(number, 1)
        advance()
    return {
        rule: SiteOutcomes(
            tuple(parts), covered[rule] / seeds, sizes[rule] / seeds, classes[rule] / seeds
        )
        for rule in rules
    }


def _limits(
    federation: Federation,
    own: Sequence[tuple[NDArray[Any], NDArray[np.intp]]],
    rules: Sequence[str],
    level: float,
    allowed: float,
) -> Iterator[tuple[str, Limits]]:
    """Each rule with its thresholds."""
    shape = (federation.n_clients, len(federation.strata.labels) if federation.strata else 1)
    plain = {"coverage": level, "defence": "none"}
    if "pooled" in rules:
        one = calibrate(federation, **plain).levels[0].threshold  # type: ignore[arg-type]
        yield "pooled", np.full(shape, one)
    if "by class" in rules:
        found = calibrate(federation, **plain, by="class").levels[0]  # type: ignore[arg-type]
        yield "by class", np.broadcast_to(thresholds_of(found), shape)
    if "letter" not in rules and "own data" not in rules:
        return
    liars = max(1, round(allowed * federation.n_clients))
    calibration = calibrate(federation, level, defence="none", promise=Marginal(liars))
    local = [
        letter.at_site(*samples).levels[0]
        for letter, samples in zip(letters(calibration), own, strict=True)
    ]
    for rule, limits in (
        ("letter", [one.threshold for one in local]),
        ("own data", [one.own for one in local]),
    ):
        if rule in rules:
            yield rule, np.broadcast_to(np.array(limits)[:, None], shape)


def by_site(
    federation: NaturalFederation,
    *,
    seeds: int = 20,
    min_size: int = MIN_SIZE,
    advance: Callable[[], None] = lambda: None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row a site with its samples, accuracy, and coverage and set size under every rule; and a
    row a rule with how these are spread (`dealt`: samples dealt out to the sites at random)."""
    given, sites = federation.load()
    data, common = (given.probabilities, given.labels), {"seeds": seeds, "min_size": min_size}
    found = site_outcomes(*data, sites, **common, advance=advance)  # type: ignore[arg-type]
    dealt = np.random.default_rng(0).permutation(sites)
    found["dealt"] = site_outcomes(*data, dealt, rules=("pooled",), **common)["pooled"]  # type: ignore[arg-type]
    right = given.probabilities.argmax(axis=1) == given.labels
    parts = partitions.by_site(sites, max(2, min_size))
    rows: list[dict[str, Any]] = []
    for k, (name, part) in enumerate(parts.items()):
        row: dict[str, Any] = {
            "federation": federation.title,
            "site": name,
            "samples": len(part),
            "accuracy": float(right[part].mean()),
        }
        for rule, outcome in found.items():
            row[rule] = float(outcome.coverage[k])
            row[f"{rule}, set size"] = float(outcome.set_size[k])
        rows.append(row)
    order = ("pooled", "dealt", *RULES[1:])
    return rows, [spread(federation.title, rows, rule, found[rule]) for rule in order]


def spread(
    title: str, rows: Sequence[dict[str, Any]], rule: str, outcome: SiteOutcomes
) -> dict[str, Any]:
    """How one rule's coverage and set sizes are spread over a federation's sites."""
    values, weights = outcome.coverage, [row["samples"] for row in rows]
    return {
        "federation": title,
        "rule": rule,
        "overall": float(np.average(values, weights=weights)),
        "mean": float(values.mean()),
        "worst_site": outcome.sites[int(values.argmin())],
        "worst": float(values.min()),
        "tenth": float(np.quantile(values, 0.1)),
        "best": float(values.max()),
        "low": float((values < LOW).mean()),
        "worst_class": float(outcome.classes.min()),
        "set_size": float(np.average(outcome.set_size, weights=weights)),
    }


def by_size(rows: Sequence[dict[str, Any]], parts: int = 3) -> list[dict[str, Any]]:
    """The sites of one federation in groups of about equal number, two at least in each, the
    smallest first: what each rule gives them in the mean. One group where all have one size."""
    ordered = sorted(rows, key=lambda row: (row["samples"], row["site"]))
    alike = ordered[0]["samples"] == ordered[-1]["samples"]
    parts = 1 if alike else max(1, min(parts, len(ordered) // 2))
    found: list[dict[str, Any]] = []
    for group in np.array_split(np.arange(len(ordered)), parts):
        chosen = [ordered[k] for k in group]
        line: dict[str, Any] = {
            "federation": chosen[0]["federation"],
            "sites": len(chosen),
            "least": chosen[0]["samples"],
            "most": chosen[-1]["samples"],
        }
        for rule in RULES:
            values = np.array([row[rule] for row in chosen])
            line[f"{rule}, low"] = float((values < LOW).mean())
            line[f"{rule}, worst"] = float(values.min())
            line[f"{rule}, set size"] = float(np.mean([row[f"{rule}, set size"] for row in chosen]))
        found.append(line)
    return found
