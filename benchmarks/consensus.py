"""What consensus holds: `python benchmarks/consensus.py [PART ...] [--report FILE] [--docs]`.

Parts: gross, few, gaussian, stealth, turned, upward, nobody, groups, natural, sensitivity. Clients
draw with replacement, by class, from one half of a set of shipped outputs, tests from the other;
natural sites are halved. Numbers were chosen on TUNED with small seeds; tables are of HELD OUT
sets, of heart disease and of the stroke trial, with seeds from 10,000 on. Everything is seeded.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import consensus_cells as cells
import numpy as np
from consensus_worlds import World, attacked, federation_of, natural, world
from measure import into_page, markdown
from numpy.typing import NDArray

from robfcp import Federation
from robfcp.defense import Consensus, Defense, RobFCP, RobFCPReleased
from robfcp.defense.consensus import Tuning
from robfcp.guarantees import fcp_bin_index

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


SHOWN = {  # the rows that stand on the page; docs/defence holds all of them
    "gross": r"class: gross, all",
    "few": r", all",
    "gaussian": r"all",
    "stealth": r"all",
    "turned": r"^. (hub|squeeze|class-c[a-z]*|size-inflation) .[0-9]",
    "upward": r"keep-30, 40",
    "groups": r"all",
    "nobody": r"class: nobody, all",
    "natural": r"(sleep|stroke).*nobody \(",
    "sensitivity": r"as it is|x 2",
}


def run(made: World, rules: Sequence[str], classes: bool = True) -> dict[str, tuple[float, ...]]:
    """(error, share of liars found, whether an honest client was left out, loss beyond none's)."""
    federation = made.federation(classes)
    alone = federation_of(
        [made.honest[k] for k in made.benign], [made.labels[k] for k in made.benign], 1
    )
    honest = made.coverage(fcp_bin_index(alone, LEVEL))
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


def ours(
    federation: Federation, m: int, *, exactly: bool = False, tuning: Tuning | None = None
) -> tuple[int | None, NDArray[np.bool_]]:
    """The threshold's bin and the excluded clients of the default defense, given m or not."""
    number = min(m, (federation.n_clients - 1) // 2) if exactly else None
    rule = Consensus(exactly=number, tuning=tuning or Tuning())
    assessment = rule.assess(federation)
    return assessment.threshold_rule(federation).bin_index(LEVEL), ~assessment.benign_mask


def _rob_fcp(defense: Callable[[int], Defense]) -> Callable[..., Any]:
    def decided(federation: Federation, m: int) -> tuple[int | None, NDArray[np.bool_]]:
        given = defense(min(m, (federation.n_clients - 1) // 2))
        benign_mask = given.assess(federation).benign_mask
        return fcp_bin_index(federation, LEVEL, benign_mask), ~benign_mask

    return decided


RULES: dict[str, Callable[..., tuple[int | None, NDArray[np.bool_]]]] = {
    "none": lambda found, _: (fcp_bin_index(found, LEVEL), np.zeros(found.n_clients, bool)),
    "rob-fcp": _rob_fcp(RobFCP),
    "rob-fcp-released": _rob_fcp(RobFCPReleased),
    "consensus": ours,
    "exactly": partial(ours, exactly=True),
}
CHOSEN = (  # the constants that follow from no theorem
    "fdr_level",
    "log_heterogeneity_sd",
    "max_relative_weight",
    "prior_strength",
    "min_mass_ratio",
    "crossing_margin",
    "plausible_misfit_ratio",
    "upper_clip",
)
for _name in CHOSEN:  # half and twice of every constant
    for _factor in (0.5, 2.0):
        _tuning = replace(Tuning(), **{_name: _factor * getattr(Tuning(), _name)})
        RULES[f"{_name} x {_factor:g}"] = partial(ours, tuning=_tuning)
VARIED = tuple(rule for rule in RULES if " x " in rule)

PARTS: dict[str, tuple[Callable[..., Iterator[Any]], int, Sequence[Any]]] = {
    "gross": (cells.gross, 4, HELD_OUT[:4]),
    "few": (cells.few, 12, HELD_OUT[:4]),
    "gaussian": (cells.gaussian, 6, HELD_OUT),
    "stealth": (cells.stealth, 5, HELD_OUT[:4]),
    "turned": (cells.turned, 4, HELD_OUT[:4]),
    "upward": (cells.upward, 4, HELD_OUT[:4]),
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
    with ProcessPoolExecutor(processes) as pool:
        for keys, results in pool.map(_measured, every, chunksize=4):
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


def written(part: str, rows: dict[str, Any]) -> str:
    """The table of one part in Markdown."""
    if part == "sensitivity":
        head = ["constant", "gross", "gaussian", "stealth", "upward", "worst run", "one wrong"]
        lines = []
        for rule in next(iter(rows.values())):
            cells = [f"{rows[key][rule]['error']:.4f}" for key in head[1:5]]
            worst = min(found[rule]["low"] for found in rows.values())
            rates = rows["one all wrong"][rule]["found"], rows["nobody"][rule]["accused"]
            name = "as it is" if rule == "consensus" else rule
            lines.append([name, *cells, f"{worst:+.3f}", f"{rates[0]:.0%}", f"{rates[1]:.1%}"])
        return markdown([*head, "false alarms"], lines)
    lines = []
    for key, found in rows.items():
        cells = (
            f"{one['error']:.4f} [{one['low']:+.3f}, {one['high']:+.3f}] "
            f"{one['found']:.0%}/{one['accused']:.0%}"
            for one in found.values()
        )
        lines.append([f"{key} ({found['none']['runs']})", *cells])
    return markdown(["case (runs)", *next(iter(rows.values()))], lines)


def main() -> None:
    """Run the parts asked for and write what they give."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--first", type=int, default=10_000, help="the first seed")
    parser.add_argument("--share", type=float, default=1.0, help="of the runs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", type=Path, help="keep the numbers here, as JSON; read them too")
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/defence.md")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    if arguments.report and arguments.report.exists():
        results = json.loads(arguments.report.read_text(encoding="utf-8"))
    for part in arguments.parts:
        results[part] = measured(part, arguments.first, arguments.share, arguments.processes)
        if arguments.report:
            arguments.report.write_text(json.dumps(results, indent=1), encoding="utf-8")
    for part, rows in results.items():
        text = written(part, rows)
        print(f"## {part}\n\n{text}\n", flush=True)
        if arguments.docs:
            head, lines = text.splitlines()[:2], text.splitlines()[2:]
            chosen = [line for line in lines if re.search(SHOWN.get(part, ""), line)]
            into_page(PAGE, part, "\n".join([*head, *chosen]))
            cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
            with (PAGE.parent / "defence" / f"{part}.csv").open("w", encoding="utf-8") as stream:
                csv.writer(stream, lineterminator="\n").writerows(cells)


if __name__ == "__main__":
    main()
