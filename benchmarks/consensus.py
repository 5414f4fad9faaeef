"""What consensus holds: `python benchmarks/consensus.py [PART ...] [--report FILE] [--docs]`.

Parts: gross, few, gaussian, stealth, nobody, groups, natural, sensitivity, adaptive. Clients draw
with replacement, by class, from one half of a set of shipped outputs, tests from the other half;
natural sites are halved. Constants were chosen on TUNED with small seeds; tables are of HELD OUT
sets, of heart disease and of the stroke trial, with seeds from 10,000 on. Everything is seeded.
"""

from __future__ import annotations

import argparse
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp import APS, LAC, Federation, Grid
from robfcp.defence import Band, Constants, RobFCP, RobFCPReleased, VotedThreshold, find_copies
from robfcp.defence.consensus import stand_out
from robfcp.federation import DenseCounts, Stratified
from robfcp.guarantees import fcp_index
from robfcp.lab import outputs
from robfcp.lab.attacks import Adaptive, Attack, Gaussian, Ghost, Push, Truncation, named_attack

LEVEL = Fraction(9, 10)
GRID = Grid.default()
TUNED = (
    ("cifar10", "beta0.5", "final"),
    ("mnist", "iid", "final"),
    ("pathmnist", "beta0.5", "final"),
    ("sleep", "iid", "final"),
)
HELD_OUT = (
    ("cifar10", "iid", "final"),
    ("mnist", "beta0.5", "early"),
    ("pathmnist", "iid", "final"),
    ("sleep", "beta0.5", "final"),
    ("tinyimagenet", "beta0.5", "final"),
)
NATURAL = (("sleep", "site"), ("stroke", "country"), ("stroke", "site"), ("heart", "site"))
PAGE = Path(__file__).parents[1] / "docs" / "defence.md"
Scores = list[NDArray[np.float64]]


@dataclass
class World:
    """One run: scores and labels of every client, tests of every client, who lies."""

    scores: Scores
    labels: list[NDArray[np.intp]]
    tests: Scores
    n_classes: int
    registered: bool = False  # sizes, beforehand
    honest: Scores = field(default_factory=list)
    bad: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    def __post_init__(self) -> None:
        self.honest = list(self.scores)

    @property
    def benign(self) -> NDArray[np.intp]:
        """Who does not lie."""
        return np.setdiff1d(np.arange(len(self.scores)), self.bad)

    def federation(self, classes: bool = True) -> Federation:
        """The reports as the server has them."""
        found = federation_of(self.scores, self.labels, self.n_classes if classes else 1)
        return replace(found, registered=self.registered)

    def coverage(self, index: int | None) -> float:
        """Of the benign clients' tests, weighted by their sizes."""
        edge = np.inf if index is None else GRID.upper[index]
        sizes = [len(self.honest[k]) for k in self.benign]
        return float(
            np.average([(self.tests[k] <= edge).mean() for k in self.benign], weights=sizes)
        )


def federation_of(scores: Scores, labels: Sequence[NDArray[np.intp]], n_classes: int) -> Federation:
    """Reports by class on the default grid; pooled with one class."""
    width = GRID.n_bins
    table = np.zeros((len(scores), n_classes, width), dtype=np.int64)
    for k, (own, label) in enumerate(zip(scores, labels, strict=True)):
        np.add.at(table[k], (label if n_classes > 1 else 0, GRID.index(own)), 1)
    pooled = Federation.from_counts(table.sum(axis=1), GRID)
    if n_classes == 1:
        return pooled
    flat = DenseCounts(table.reshape(len(scores), -1))
    return replace(
        pooled, strata=Stratified("class", n_classes, flat, np.arange(len(scores)), width)
    )


@cache
def halves(name: tuple[str, str, str], score: str) -> tuple[list[Scores], int]:
    """Scores by class, rising, of both halves of a set of outputs."""
    shipped = outputs.load(name[0], name[1], name[2])  # type: ignore[arg-type]
    order = np.random.default_rng(0).permutation(len(shipped.labels))[:20_000]
    probabilities, labels = shipped.probabilities[order], shipped.labels[order]
    scores = LAC()(probabilities, labels) if score == "lac" else APS()(probabilities, labels, rng=1)
    n_classes = probabilities.shape[1]
    cut = len(order) // 2
    parts = [
        [np.sort(scores[place][labels[place] == c]) for c in range(n_classes)]
        for place in (slice(cut), slice(cut, None))
    ]
    return parts, n_classes


def world(
    name: tuple[str, str, str],
    clients: int,
    size: int,
    beta: float | None,
    sizes: str,
    seed: int,
    *,
    score: str = "lac",
    spread: float = 0.0,
    group: tuple[float, float] = (0.0, 0.0),
) -> World:
    """Clients of a set of outputs: their label mixes, their sizes, and how hard their samples are.

    A client's samples of a class are drawn with density exp(t rank); t is normal with deviation
    `spread`, and `group` = (share, t) adds t for a share of the clients.
    """
    key = zlib.crc32(repr((name, clients, size, beta, sizes, score, spread, group)).encode())
    rng = np.random.default_rng([seed, key])
    (calibration, tests), n_classes = halves(name, score)
    held = np.array([min(len(a), len(b)) >= 5 for a, b in zip(calibration, tests, strict=True)])
    mixes = np.array([len(part) for part in calibration], dtype=float) * held
    mixes = np.tile(mixes / mixes.sum(), (clients, 1))
    if beta is not None:
        mixes = rng.dirichlet(np.full(n_classes, beta), clients) * held
        mixes /= mixes.sum(axis=1, keepdims=True)
    number = np.full(clients, size)
    if sizes == "lognormal":
        number = np.maximum(10, np.round(size * np.exp(rng.normal(-0.32, 0.8, clients)))).astype(
            int
        )
    if sizes == "unequal":
        number = np.round(np.exp(rng.uniform(np.log(40), np.log(900), clients))).astype(int)
    tilts = spread * rng.standard_normal(clients)
    tilts[: round(group[0] * clients)] += group[1]

    def drawn(parts: Scores, k: int, n: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        labels = rng.choice(n_classes, n, p=mixes[k])
        ranks = rng.random(n)
        if abs(tilts[k]) > 1e-9:
            ranks = np.log1p(ranks * np.expm1(tilts[k])) / tilts[k]
        scores = np.empty(n)
        for c in np.unique(labels):
            mine = labels == c
            places = np.minimum((ranks[mine] * len(parts[c])).astype(int), len(parts[c]) - 1)
            scores[mine] = parts[c][places]
        return scores, labels

    own = [drawn(calibration, k, int(number[k])) for k in range(clients)]
    checks = [drawn(tests, k, 300)[0] for k in range(clients)]
    return World([s for s, _ in own], [y for _, y in own], checks, n_classes)


@cache
def natural_scores(dataset: str, column: str) -> tuple[NDArray[Any], ...]:
    """LAC scores, labels, site and number of classes of outputs with their own sites."""
    shipped = outputs.load(dataset, outputs.NATURAL)
    scores = LAC()(shipped.probabilities, shipped.labels)
    return scores, shipped.labels, shipped.column(column), np.array(shipped.probabilities.shape[1])


def natural(dataset: str, column: str, seed: int, least: int = 50) -> World:
    """Sites as they are, each halved and its calibration half resampled."""
    scores, labels, site, n_classes = natural_scores(dataset, column)
    rng = np.random.default_rng([seed, zlib.crc32(f"{dataset} {column}".encode())])
    parts: list[list[Any]] = [[], [], []]
    for name, size in zip(*np.unique(site, return_counts=True), strict=True):
        if size < least:
            continue
        order = rng.permutation(np.flatnonzero(site == name))
        first = rng.choice(order[: size // 2], size // 2)
        for part, values in zip(
            parts, (scores[first], labels[first], scores[order[size // 2 :]]), strict=True
        ):
            part.append(values)
    return World(*parts, int(n_classes))


def attacked(made: World, attack: Attack | str, share: float, seed: int) -> World:
    """The world with a share of the clients lying; one at least."""
    rng = np.random.default_rng([seed, 99])
    number = max(1, round(share * len(made.scores)))
    made.bad = np.sort(rng.permutation(len(made.scores))[:number])
    if attack == "all-wrong":
        for k in made.bad:
            made.scores[k], made.labels[k] = _all_wrong(made.scores[k], made, k, rng)
        return made
    rule = named_attack(attack) if isinstance(attack, str) else attack
    pairs = list(zip(made.scores, made.labels, strict=True))
    if rule.on == "pairs":
        forged = rule(pairs, made.bad, rng)
        made.scores, made.labels = [s for s, _ in forged], [y for _, y in forged]
    else:
        made.scores = rule(made.scores, made.bad, rng)
        made.labels = [np.resize(y, len(s)) for s, y in zip(made.scores, made.labels, strict=True)]
    return made


def _all_wrong(
    scores: NDArray[np.float64], made: World, k: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Every label another one: LAC's score of a wrong label is 1 - its probability, which is at
    most the true label's score; where that is small the score is near 1."""
    shift = rng.integers(1, made.n_classes, len(scores))
    labels = (made.labels[k] + shift) % made.n_classes
    return 1 - np.minimum(scores, 1) * rng.random(len(scores)) / 2, labels


def run(made: World, rules: Sequence[str], classes: bool = True) -> dict[str, tuple[float, ...]]:
    """(error, share of liars found, whether an honest client was left out, loss beyond none's)."""
    federation = made.federation(classes)
    alone = federation_of(
        [made.honest[k] for k in made.benign], [made.labels[k] for k in made.benign], 1
    )
    honest = made.coverage(fcp_index(alone, LEVEL))
    liars = np.zeros(federation.n_clients, dtype=bool)
    liars[made.bad] = True
    found = {}
    for rule in rules:
        index, out = RULES[rule](federation, len(made.bad))
        error = made.coverage(index) - honest
        caught = float(out[liars].mean()) if liars.any() else 0.0
        harm = error - min(0.0, found["none"][0]) if "none" in found else 0.0
        found[rule] = (error, caught, float(out[~liars].any()), min(0.0, harm))
    return found


def consensus(
    federation: Federation, _: int, constants: Constants | None = None
) -> tuple[int | None, NDArray[np.bool_]]:
    """The rule with any constants."""
    constants = constants or Constants()
    out = stand_out(federation, constants).outstanding
    copies = find_copies(federation)
    return VotedThreshold(federation, ~out, "partial", copies, constants).index(LEVEL), out


def _trusted(rule: Any) -> Callable[..., tuple[int | None, NDArray[np.bool_]]]:
    def decided(federation: Federation, m: int) -> tuple[int | None, NDArray[np.bool_]]:
        trusted = rule(federation, min(m, (federation.n_clients - 1) // 2)).trusted
        return fcp_index(federation, LEVEL, trusted), ~trusted

    return decided


def _band(federation: Federation, _: int) -> tuple[int | None, NDArray[np.bool_]]:
    out = Band().look(federation).outstanding
    return fcp_index(federation, LEVEL, ~out), out


RULES: dict[str, Callable[..., tuple[int | None, NDArray[np.bool_]]]] = {
    "none": lambda federation, _: (
        fcp_index(federation, LEVEL),
        np.zeros(federation.n_clients, bool),
    ),
    "rob-fcp": _trusted(RobFCP()),
    "rob-fcp-released": _trusted(RobFCPReleased()),
    "band": _band,
    "consensus": consensus,
}
for _field in fields(Constants):  # half and twice of every constant
    for _factor in (0.5, 2.0):
        _usual = Constants()
        _changed = replace(_usual, **{_field.name: _factor * getattr(_usual, _field.name)})
        RULES[f"{_field.name} x {_factor:g}"] = lambda federation, m, changed=_changed: consensus(
            federation, m, changed
        )

Cell = tuple[str, Callable[[], World], tuple[str, ...], bool]
COMPARED = ("none", "rob-fcp", "rob-fcp-released", "band", "consensus")
STEALTH: tuple[tuple[str, Attack | str], ...] = (
    ("truncation at .75", Truncation(0.75)),
    ("truncation at .9", Truncation(0.9)),
    ("stairs", "stairs"),
    ("push", Push()),
    ("ghost at .85", Ghost(0.85)),
    ("ghost at .5", Ghost(0.5)),
    ("mimic", "mimic-low"),
    ("pair mimic", "pair-mimic"),
)


def gross(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """All scores minimal or maximal."""
    for seed in seeds:
        for name in names:
            for clients in (5, 10, 20, 50, 100):
                for beta in (None, 0.5, 0.3, 0.1):
                    rng = np.random.default_rng([seed, clients, int(10 * (beta or 0))])
                    size, sizes = (
                        int(rng.choice([50, 500])),
                        str(rng.choice(["equal", "lognormal"])),
                    )
                    score = str(rng.choice(["lac", "lac", "aps"]))
                    share = float(rng.choice([0.1, 0.2, 0.4]))
                    attack = str(rng.choice(["coverage", "efficiency"]))
                    if clients * size > 25_000:
                        size = 100
                    for classes in (True, False):
                        keys = [
                            "gross, all",
                            f"K = {clients}",
                            f"Dirichlet {beta or 'none'}",
                            f"share {share:g}",
                            sizes,
                        ]
                        what = "by class" if classes else "pooled"
                        yield (
                            [f"{what}: {key}" for key in keys],
                            ("world", name, clients, size, beta, sizes, seed, {"score": score}),
                            (attack, share),
                            rules,
                            classes,
                        )


def few(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """One of a few unequal sites has all its labels wrong."""
    for seed in seeds:
        for name in names:
            for clients in (4, 6, 8, 16):
                for beta in (None, 1.0, 0.3):
                    made = ("world", name, clients, 0, beta, "unequal", seed, {})
                    for attack in (("all-wrong", 0.01), None):
                        what = "one all wrong" if attack else "nobody"
                        yield [f"{what}, K = {clients}", f"{what}, all"], made, attack, rules, True


def gaussian(
    seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED
) -> Iterator[Any]:
    """The paper's third attack."""
    for seed in seeds:
        for name in names:
            for clients, size, beta, sizes in (
                (20, 250, 0.5, "equal"),
                (50, 50, None, "equal"),
                (10, 100, 0.3, "lognormal"),
                (100, 50, 0.5, "lognormal"),
            ):
                for share in (0.1, 0.2, 0.4):
                    made = ("world", name, clients, size, beta, sizes, seed, {})
                    key = f"K = {clients}, n = {size}, Dirichlet {beta or 'none'}, {sizes}"
                    yield (
                        ["gaussian, all", key, f"gaussian, share {share:g}"],
                        made,
                        (Gaussian(0.5), share),
                        rules,
                        True,
                    )


def stealth(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """40% that stay close to honest reports."""
    for seed in seeds:
        for name in names:
            for title, attack in STEALTH:
                for clients, size, beta, sizes, spread in (
                    (100, 50, None, "equal", 0.0),
                    (50, 50, 0.5, "lognormal", 0.0),
                    (20, 250, 0.5, "equal", 0.0),
                    (20, 250, 0.1, "lognormal", 0.0),
                    (20, 200, 1.0, "lognormal", 0.5),
                ):
                    made = ("world", name, clients, size, beta, sizes, seed, {"spread": spread})
                    yield [title, "stealth, all"], made, (attack, 0.4), rules, True


def nobody(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """Nobody lies, in one group of clients who differ by labels and by difficulty."""
    for seed in seeds:
        for name in names:
            for clients in (3, 4, 5, 8, 12, 20, 50, 100):
                for beta, spread in ((None, 0.0), (0.3, 0.0), (1.0, 0.5)):
                    rng = np.random.default_rng([seed, clients])
                    size, sizes = (
                        int(rng.choice([50, 250])),
                        str(rng.choice(["equal", "lognormal"])),
                    )
                    made = ("world", name, clients, size, beta, sizes, seed, {"spread": spread})
                    for classes in (True, False):
                        what = "by class" if classes else "pooled"
                        yield (
                            [f"{what}: nobody, K = {clients}", f"{what}: nobody, all"],
                            made,
                            None,
                            rules,
                            classes,
                        )


def groups(seeds: range, names: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """Two honest groups that differ within classes; nobody lies."""
    for seed in seeds:
        for name in names:
            for share, tilt in ((0.3, 1.5), (0.2, 2.5), (0.4, 1.5), (0.3, -1.5), (0.3, -2.5)):
                made = ("world", name, 20, 200, None, "equal", seed, {"group": (share, tilt)})
                kind = "harder" if tilt > 0 else "easier"
                yield (
                    [f"{share:.0%} {kind} (t = {tilt:g})", "two groups, all"],
                    made,
                    None,
                    rules,
                    True,
                )


def by_nature(seeds: range, _: Sequence[Any], rules: tuple[str, ...] = COMPARED) -> Iterator[Any]:
    """Sites as they are: nobody, one site all wrong, gross liars, gaussian."""
    for seed in seeds:
        for dataset, column in NATURAL:
            made = ("natural", dataset, column, seed)
            title = f"{dataset} by {column}"
            for what, attack in (
                ("nobody", None),
                ("one all wrong", ("all-wrong", 0.01)),
                ("20% minimal", ("coverage", 0.2)),
                ("20% maximal", ("efficiency", 0.2)),
                ("20% gaussian", (Gaussian(0.5), 0.2)),
            ):
                yield [f"{title}: {what}"], made, attack, rules, True
            yield (
                [f"{title}: nobody, sizes registered"],
                ("registered", *made[1:]),
                None,
                rules,
                True,
            )


def sensitivity(seeds: range, names: Sequence[Any]) -> Iterator[Any]:
    """Half and twice of every constant."""
    rules = ("none", "consensus", *(rule for rule in RULES if " x " in rule))
    for seed in seeds:
        for name in names:
            for clients, size, beta, sizes in (
                (5, 100, 0.3, "lognormal"),
                (10, 200, 0.1, "equal"),
                (20, 100, 0.5, "lognormal"),
                (50, 50, 0.3, "lognormal"),
            ):
                made = ("world", name, clients, size, beta, sizes, seed, {"spread": 0.3})
                for what, attack in (
                    ("gross", ("coverage", 0.4)),
                    ("gross", ("efficiency", 0.2)),
                    ("gaussian", (Gaussian(0.5), 0.4)),
                    ("stealth", (Truncation(0.75), 0.4)),
                    ("stealth", (Push(), 0.4)),
                    ("stealth", ("mimic-low", 0.4)),
                    ("one all wrong", ("all-wrong", 0.01)),
                    ("nobody", None),
                ):
                    yield [what], made, attack, rules, True


PARTS: dict[str, tuple[Callable[..., Iterator[Any]], int, Sequence[Any]]] = {
    "gross": (gross, 4, HELD_OUT[:4]),
    "few": (few, 12, HELD_OUT[:4]),
    "gaussian": (gaussian, 6, HELD_OUT),
    "stealth": (stealth, 5, HELD_OUT[:4]),
    "nobody": (nobody, 10, HELD_OUT[:4]),
    "groups": (groups, 8, HELD_OUT[:4]),
    "natural": (by_nature, 200, ()),
    "sensitivity": (sensitivity, 2, TUNED),
}


def _measured(cell: Any) -> tuple[list[str], dict[str, tuple[float, ...]]]:
    keys, (kind, *made), attack, rules, classes = cell
    if kind in ("natural", "registered"):
        found = natural(*made)
        found.registered = kind == "registered"
        seed = made[-1]
    else:
        *place, options = made
        found, seed = world(*place, **options), made[6 - 1]
    if attack is not None:
        found = attacked(found, *attack, seed)
    return keys, run(found, rules, classes)


def measured(part: str, first: int, share: float, processes: int) -> dict[str, Any]:
    """One part's table: rows of keys, for each rule mean and extremes of the error and rates."""
    cells, seeds, names = PARTS[part]
    number = max(1, round(share * seeds))
    found: dict[str, dict[str, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    every = list(cells(range(first, first + number), names))
    with Pool(processes) as pool:
        for keys, results in pool.imap_unordered(_measured, every, chunksize=4):
            for key in keys:
                for rule, values in results.items():
                    found[key][rule].append(values)
    return {
        key: {rule: _summary(np.array(values)) for rule, values in rules.items()}
        for key, rules in sorted(found.items())
    }


def _summary(values: NDArray[np.float64]) -> dict[str, float]:
    errors = np.sort(values[:, 0])
    return {
        "runs": len(values),
        "error": float(np.abs(errors).mean()),
        "low": float(errors[0]),
        "high": float(errors[-1]),
        "found": float(values[:, 1].mean()),
        "accused": float(values[:, 2].mean()),
        "harm": float(values[:, 3].min()),
    }


def adaptive(first: int, trials: int, processes: int) -> dict[str, Any]:
    """The attacker who searches: its worst coverage beside the undefended one's."""
    tasks = [
        (name, clients, size, beta, first + seed, trials)
        for name in HELD_OUT[:2]
        for clients, size, beta in ((10, 200, None), (20, 200, 0.5), (50, 50, None))
        for seed in range(2)
    ]
    with Pool(processes) as pool:
        rows = pool.map(_searched, tasks, chunksize=1)
    return {"rows": rows, "trials": trials}


def _searched(task: Any) -> dict[str, Any]:
    name, clients, size, beta, seed, trials = task
    made = world(name, clients, size, beta, "equal", seed)
    federation = made.federation()
    bad = np.sort(np.random.default_rng(seed).permutation(clients)[: round(0.4 * clients)])
    made.bad = bad
    worst = {
        rule: Adaptive(against=rule, trials=number).search(federation, bad, seed)
        for rule, number in (("none", trials // 10), ("consensus", trials))
    }
    return {
        "set": "/".join(name),
        "clients": clients,
        "beta": beta,
        **{rule: found.coverage for rule, found in worst.items()},
        "family": worst["consensus"].family,
    }


def table(rows: dict[str, Any], rules: Sequence[str]) -> str:
    """A Markdown table of one part."""
    lines = ["| case (runs) | " + " | ".join(rules) + " |", "|---" * (len(rules) + 1) + "|"]
    for key, found in rows.items():
        cells = []
        for rule in rules:
            one = found[rule]
            cells.append(
                f"{one['error']:.4f} [{one['low']:+.3f}, {one['high']:+.3f}] "
                f"{one['found']:.0%}/{one['accused']:.0%}"
            )
        lines.append(f"| {key} ({found[rules[0]]['runs']}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sensitivity_table(rows: dict[str, Any]) -> str:
    """Half and twice of each constant: errors by attack, one wrong site found, false alarms."""
    lines = [
        "| constant | gross | gaussian | stealth | worst run | one wrong found | false alarms |",
        "|---|---|---|---|---|---|---|",
    ]
    for rule in next(iter(rows.values())):
        if rule == "none":
            continue
        worst = min(found[rule]["low"] for found in rows.values())
        cells = [f"{rows[key][rule]['error']:.4f}" for key in ("gross", "gaussian", "stealth")]
        rates = rows["one all wrong"][rule]["found"], rows["nobody"][rule]["accused"]
        name = "as it is" if rule == "consensus" else rule
        rest = f"{worst:+.3f} | {rates[0]:.0%} | {rates[1]:.1%}"
        lines.append(f"| {name} | {' | '.join(cells)} | {rest} |")
    return "\n".join(lines)


def written(results: dict[str, Any]) -> dict[str, str]:
    """The pages of tables, by part."""
    pages = {}
    for part, rows in results.items():
        if part == "adaptive":
            lines = [
                "| set | K | Dirichlet | undefended | consensus | found by |",
                "|---" * 6 + "|",
            ]
            lines += [
                f"| {row['set']} | {row['clients']} | {row['beta'] or 'none'} | "
                f"{row['none']:.3f} | "
                f"{row['consensus']:.3f} | {row['family']} |"
                for row in rows["rows"]
            ]
            pages[part] = "\n".join(lines)
        elif part == "sensitivity":
            pages[part] = sensitivity_table(rows)
        else:
            pages[part] = table(rows, COMPARED)
    return pages


def with_table(page: str, part: str, text: str) -> str:
    """The page with the table of one part between its marks."""
    start, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->"
    before, rest = page.split(start)
    return f"{before}{start}\n{text}\n\n{end}{rest.split(end)[1]}"


def main() -> None:
    """Run the parts asked for and write what they give."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join((*PARTS, "adaptive")))
    parser.add_argument("--first", type=int, default=10_000, help="the first seed")
    parser.add_argument("--share", type=float, default=1.0, help="of the runs")
    parser.add_argument("--trials", type=int, default=1000, help="of the adaptive search")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", type=Path, help="keep the numbers here, as JSON; read them too")
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/defence.md")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    if arguments.report and arguments.report.exists():
        results = json.loads(arguments.report.read_text(encoding="utf-8"))
    for part in arguments.parts:
        if part == "adaptive":
            results[part] = adaptive(arguments.first, arguments.trials, arguments.processes)
        else:
            results[part] = measured(part, arguments.first, arguments.share, arguments.processes)
        if arguments.report:
            arguments.report.write_text(json.dumps(results, indent=1), encoding="utf-8")
    for part, text in written(results).items():
        print(f"## {part}\n\n{text}\n", flush=True)
        if arguments.docs:
            PAGE.write_text(
                with_table(PAGE.read_text(encoding="utf-8"), part, text), encoding="utf-8"
            )


if __name__ == "__main__":
    main()
