"""What consensus holds: `python benchmarks/consensus.py [PART ...] [--report FILE] [--docs]`.

Parts: gross, few, gaussian, stealth, nobody, groups, natural, sensitivity, adaptive. Clients draw
with replacement, by class, from one half of a set of shipped outputs, tests from the other half;
natural sites are halved. Constants were chosen on TUNED with small seeds; tables are of HELD OUT
sets, of heart disease and of the stroke trial, with seeds from 10,000 on. Everything is seeded.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import consensus_cells as cells
import numpy as np
from consensus_cells import COMPARED
from consensus_worlds import World, attacked, federation_of, natural, world
from numpy.typing import NDArray

from robfcp import Federation
from robfcp.defence import RobFCP, RobFCPReleased
from robfcp.defence.consensus import VotedThreshold, stand_out
from robfcp.defence.copies import find_copies
from robfcp.defence.expected_scores import Constants
from robfcp.guarantees import fcp_index, rank_charge
from robfcp.lab.attacks import Adaptive

LEVEL = Fraction(9, 10)
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
PAGE = Path(__file__).parents[1] / "docs" / "defence.md"


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
    out = stand_out(federation, constants).stands_out
    copies = find_copies(federation)
    return VotedThreshold(federation, ~out, rank_charge, copies, constants).index(LEVEL), out


def _trusted(rule: Any) -> Callable[..., tuple[int | None, NDArray[np.bool_]]]:
    def decided(federation: Federation, m: int) -> tuple[int | None, NDArray[np.bool_]]:
        trusted = rule(min(m, (federation.n_clients - 1) // 2))(federation).trusted
        return fcp_index(federation, LEVEL, trusted), ~trusted

    return decided


RULES: dict[str, Callable[..., tuple[int | None, NDArray[np.bool_]]]] = {
    "none": lambda federation, _: (
        fcp_index(federation, LEVEL),
        np.zeros(federation.n_clients, bool),
    ),
    "rob-fcp": _trusted(RobFCP),
    "rob-fcp-released": _trusted(RobFCPReleased),
    "consensus": consensus,
}
for _field in fields(Constants):  # half and twice of every constant
    for _factor in (0.5, 2.0):
        _usual = Constants()
        _changed = replace(_usual, **{_field.name: _factor * getattr(_usual, _field.name)})
        RULES[f"{_field.name} x {_factor:g}"] = lambda federation, m, changed=_changed: consensus(
            federation, m, changed
        )
VARIED = tuple(rule for rule in RULES if " x " in rule)

PARTS: dict[str, tuple[Callable[..., Iterator[Any]], int, Sequence[Any]]] = {
    "gross": (cells.gross, 4, HELD_OUT[:4]),
    "few": (cells.few, 12, HELD_OUT[:4]),
    "gaussian": (cells.gaussian, 6, HELD_OUT),
    "stealth": (cells.stealth, 5, HELD_OUT[:4]),
    "nobody": (cells.nobody, 10, HELD_OUT[:4]),
    "groups": (cells.groups, 8, HELD_OUT[:4]),
    "natural": (cells.by_nature, 200, ()),
    "sensitivity": (partial(cells.sensitivity, varied=VARIED), 2, TUNED),
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
    every_cell, seeds, names = PARTS[part]
    number = max(1, round(share * seeds))
    found: dict[str, dict[str, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    every = list(every_cell(range(first, first + number), names))
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


SHOWN = {  # the rows that stand on the page; docs/defence holds all of them
    "gross": r"gross, all|class: share 0.4",
    "few": r", all",
    "gaussian": r"all|share 0.4",
    "stealth": r"all|^. (ghost at .5|mimic|push)",
    "groups": r"all|easier",
    "nobody": r", all",
    "natural": r"nobody \(|one all wrong|country: nobody",
    "sensitivity": r"as it is|(least|prior|tail) x 2|cap x 0.5|level x 2",
    "adaptive": r". 50 .",
}


def shown(part: str, text: str) -> str:
    """The head of a table and its rows for the page."""
    lines = text.splitlines()
    return "\n".join(
        [*lines[:2], *(line for line in lines[2:] if re.search(SHOWN.get(part, ""), line))]
    )


def as_csv(text: str) -> str:
    """A table as comma-separated values."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([rows[0], *rows[2:]])
    return stream.getvalue()


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
            page = with_table(PAGE.read_text(encoding="utf-8"), part, shown(part, text))
            PAGE.write_text(page, encoding="utf-8")
            (PAGE.parent / "defence").mkdir(exist_ok=True)
            (PAGE.parent / "defence" / f"{part}.csv").write_text(as_csv(text), encoding="utf-8")


if __name__ == "__main__":
    main()
