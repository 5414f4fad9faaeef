"""What a hundred million devices would cost: `python benchmarks/scale.py` writes docs/scale.md.

Measures what one report costs at a device, on the wire, at a shard and at the judge, in seconds of
processor time, and multiplies. Rounds run in processes of their own, whose memory is theirs alone.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import intake
import numpy as np
from scipy.stats import hypergeom

import robfcp
from robfcp.files import write_atomically
from robfcp.report import MAX_SAMPLES, check_named_key, generate_key, load_key, sign

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
SIZES = (20_000, 100_000)
NUMBERS = (10**6, 10**7, 10**8)
SAMPLES = (10**4, 10**5, 10**6)
LIARS, EXCEEDED, DELTA = 0.01, 1e-3, 0.01
FLOWER = (0.3, 0.9)  # ms a client, as benchmarks/flower.py measures and the guide states
KINDS = {False: "plain", True: "by ten classes"}
ALL, ASKED, CORES = NUMBERS[-1], SAMPLES[1], 64

TEXT = """# A hundred million devices

Written by `python benchmarks/scale.py`; do not edit. Times are seconds of one processor, measured
with {largest} reports of {samples} samples on the default grid, 30% of them lies; memory is the
growth of the peak from {smallest} to {largest} reports. Everything beyond that is multiplication,
not measurement. How the stages grow is in [speed and scale](speed.md).

## One report

{one_report}

A report with a single bin in use has {fixed} of these {all_json} bytes: the grid's digest, the
score and the names of the fields. Columns say that once for all reports. A private report is read
by itself, JSON or columns ({private}), because its noise is checked against its own statement.

## Everybody reports

{everybody}

By ten classes:

{by_class}

Shards need nothing of each other: each receives its part, checks it and writes a file of columns
(`robfcp pack`, `pack_reports`). The judge maps the files and merges them, and the calibration is
the same to the byte as from one process. Shards may stand anywhere, in any number. What the judge
holds is the limit: it works on all reports at once, in the memory of one machine. Sums stay exact
up to {claims} reports that each claim as many samples as a report may; beyond, register the sizes.

## What the engines carry

{engines}

Flower takes {flower} ms a node more than the core, measured in one process (`python
benchmarks/flower.py`, [guide](guides/flower.md)); a real network adds its own. The server asks
everybody and holds every answer until the deadline, so it is the bottleneck long before the judge.
Run one server a region, let each write its reports with `robfcp.pack_reports`, and calibrate from
all files. What a message costs on NVFlare was not measured; the way is the same. With files,
opening one can cost more than checking what is in it and is not in the table: let a shard pack what
it receives.

A signature takes {signature} to check. The shard does that, and the record says so
([files](guides/files.md#many-reports-in-one-file)). Shards are then part of the server: who
controls one controls its reports.

## Ask a sample

Nobody needs {all} reports for one threshold. Let the server draw whom it asks, uniformly,
when it is settled who lies. Then

- *the number of liars among those asked* is hypergeometric. If at most {liars} of all devices lie,
  more than m of those asked do with a chance of at most {exceeded}. State that m; the chance adds
  to that of the guarantee;
- *what is proved* speaks of the honest devices that were asked, weighted by their samples;
- *all honest devices*, if each has as many samples: at every edge of the grid at once their mean
  coverage differs from that of the honest ones asked by at most the width, with a chance of at
  least {sure}. The width is sqrt(ln(2 H / {delta}) / (2 K')), by Hoeffding's inequality for draws
  without replacement at each of the H edges; K' is the number of honest devices asked. Devices that
  do not answer are outside of it: those who answer may be of another kind.

{some}

Ask for a level that is higher by the width, and the promise is about all of them.

## Do not add up on the way

A region could send one histogram, the sum of its devices'. That is a federation of regions: the
defence sees regions, a lying device moves its region's histogram unseen, and m counts regions. It
is right where whole regions are trusted or not, and wrong for devices. Columns take {ratio} of the
bytes of JSON and keep every device apart: send these.
"""


def busy(work: Any, repeats: int = 3) -> float:
    """The least seconds of processor time of a piece of work."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def single() -> dict[str, float]:
    """What is measured of single reports: at a device, fixed bytes, private ones, signatures."""
    scores = np.random.default_rng(0).beta(0.4, 2, intake.SAMPLES)
    score, grid, repeats = robfcp.LAC(), robfcp.Grid.uniform(32), 200
    budget = robfcp.Privacy(1.0)
    private = [
        robfcp.Report.from_scores(f"{k}", scores, grid, privacy=budget).to_json()
        for k in range(repeats)
    ]
    report = robfcp.Report.from_scores("a", scores, score=score, round="r")
    with tempfile.TemporaryDirectory() as folder:
        public = generate_key(Path(folder) / "a.key")
        signed = sign(report, load_key(Path(folder) / "a.key"))

    def make() -> None:
        for _ in range(repeats):
            robfcp.Report.from_scores("a", scores, score=score).to_json()

    def check() -> None:
        for _ in range(repeats):
            check_named_key(signed, "a")

    assert public in signed.decode()
    return {
        "device": busy(make) / repeats,
        "fixed": len(next(intake.lines(10, liars=1.0))),
        "private": busy(lambda: robfcp.Federation.from_reports(private)) / repeats,
        "signature": busy(check) / repeats,
    }


def measured() -> dict[bool, dict[str, float]]:
    """Costs of one report without classes and with ten."""
    rounds = [one for n_clients in SIZES for one in intake.rounds(n_clients)]
    found = {}
    for by_class in KINDS:
        few, many = (
            {
                one["form"]: one
                for one in rounds
                if one["by_class"] == by_class and one["clients"] == size
            }
            for size in SIZES
        )
        data = list(intake.lines(SIZES[0], intake.CLASSES if by_class else 0))
        each = 1 / SIZES[1]
        columns, text = many["columns"], many["jsonl"]
        more = columns["peak_mib"] - few["columns"]["peak_mib"]
        held = columns["intake_peak_mib"] - few["columns"]["intake_peak_mib"]
        found[by_class] = {
            "json bytes": text["bytes"],
            "column bytes": columns["bytes"],
            "check": busy(lambda data=data: _packed(data)) / SIZES[0],
            "json": text["intake_cpu_seconds"] * each,
            "columns": columns["intake_cpu_seconds"] * each,
            "judge": (columns["cpu_seconds"] - columns["intake_cpu_seconds"]) * each,
            "intake memory": held * 2**20 / (SIZES[1] - SIZES[0]),
            "memory": more * 2**20 / (SIZES[1] - SIZES[0]),
        }
    return found


def _packed(data: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        robfcp.pack_reports(data, Path(folder) / "reports.columns")


def seconds(value: float) -> str:
    """A time in the unit people would use."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def size(value: float) -> str:
    """Bytes likewise."""
    for unit, power in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= power:
            return f"{value / power:.3g} {unit}"
    return f"{value:.0f} bytes"


def table(head: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def one_report(device: float, found: dict[bool, dict[str, float]]) -> str:
    """What one report costs, and where."""
    lines = [["making it at the device", seconds(device), ""]]
    rows = {
        "JSON on the wire": lambda cost: size(cost["json bytes"]),
        "in a file of columns": lambda cost: size(cost["column bytes"]),
        "checking the JSON and writing columns (a shard)": lambda cost: seconds(cost["check"]),
        "intake of JSON (the judge)": lambda cost: seconds(cost["json"]),
        "intake of columns (the judge)": lambda cost: seconds(cost["columns"]),
        "whom to trust, threshold, certificate (the judge)": lambda cost: seconds(cost["judge"]),
        "memory at the judge, intake alone": lambda cost: size(cost["intake memory"]),
        "memory at the judge, whole round": lambda cost: size(cost["memory"]),
    }
    lines += [[name, *(row(found[kind]) for kind in KINDS)] for name, row in rows.items()]
    return table(["one report of fifty samples", *KINDS.values()], lines)


def everybody(found: dict[bool, dict[str, float]], by_class: bool, cores: int) -> str:
    """All devices report: network, shards, judge."""
    cost = found[by_class]
    lines = [
        [
            f"{number:,}",
            size(number * cost["json bytes"]),
            seconds(number * cost["check"] / cores),
            size(number * cost["column bytes"]),
            seconds(number * cost["columns"]),
            seconds(number * cost["judge"]),
            size(number * cost["memory"]),
        ]
        for number in NUMBERS
    ]
    head = ["devices", "JSON received", f"shards on {cores} cores", "columns", "judge: intake"]
    return table([*head, "judge: the rest", "judge: memory"], lines)


def some(found: dict[bool, dict[str, float]]) -> str:
    """A sample of the devices reports: what it costs and what it adds to the statement."""
    n_bins = robfcp.Grid.default().n_bins
    cost = found[False]
    lines = []
    for number in SAMPLES:
        bound = int(hypergeom.isf(EXCEEDED, ALL, round(LIARS * ALL), number))
        width = math.sqrt(math.log(2 * n_bins / DELTA) / (2 * (number - bound)))
        judge = number * (cost["columns"] + cost["judge"])
        costs = [size(number * cost["json bytes"]), seconds(judge), size(number * cost["memory"])]
        lines.append([f"{number:,}", f"{bound:,}", f"{width:.4f}", *costs])
    head = ["devices asked", "m", "width", "JSON received", "judge", "memory"]
    return table(head, lines)


def page(found: dict[bool, dict[str, float]], apart: dict[str, float]) -> str:
    """The page."""
    plain = found[False]
    engines = [
        ["Flower, one server, from", *(seconds(k * FLOWER[0] / 1000) for k in (ASKED, ALL))],
        ["Flower, one server, to", *(seconds(k * FLOWER[1] / 1000) for k in (ASKED, ALL))],
        ["one shard that checks JSON", *(seconds(k * plain["check"]) for k in (ASKED, ALL))],
    ]
    return TEXT.format(
        largest=f"{SIZES[1]:,}",
        smallest=f"{SIZES[0]:,}",
        samples=intake.SAMPLES,
        one_report=one_report(apart["device"], found),
        fixed=f"{apart['fixed']:.0f}",
        all_json=f"{plain['json bytes']:.0f}",
        private=seconds(apart["private"]),
        everybody=everybody(found, False, CORES),
        by_class=everybody(found, True, CORES),
        engines=table(["way", f"{ASKED:,} devices", f"{ALL:,} devices"], engines),
        flower=f"{FLOWER[0]} to {FLOWER[1]}",
        signature=seconds(apart["signature"]),
        all=f"{ALL:,}",
        claims=f"{2**63 // MAX_SAMPLES:,}",
        liars=f"{LIARS:.0%}",
        exceeded=f"{EXCEEDED:g}",
        delta=DELTA,
        sure=1 - DELTA,
        some=some(found),
        ratio=f"{plain['column bytes'] / plain['json bytes']:.0%}",
    )


def main() -> None:
    """Measure, multiply, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="to the terminal, not to the page")
    chosen = parser.parse_args()
    text = page(measured(), single())
    if chosen.print:
        print(text)
    else:
        write_atomically(PAGE, text)


if __name__ == "__main__":
    main()
