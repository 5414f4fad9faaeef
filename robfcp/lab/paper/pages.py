"""Writes every table and figure to a directory, and pages from the files in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robfcp.errors import RobfcpError
from robfcp.figures import save
from robfcp.files import write_atomically
from robfcp.lab.natural import found_table
from robfcp.lab.paper import charts, tables
from robfcp.lab.paper.cases import DETECTORS, EVERY, EXPERIMENTS, LABELS
from robfcp.lab.paper.runs import FCP, OURS, RELEASED, TEXT, run_cases

Rows = Sequence[Mapping[str, Any]]
EXTRAS: dict[str, tuple[str, Callable[[int], list[dict[str, Any]]], Callable[[Rows], Any]]] = {
    "bounds": ("Bounds against measured coverage", tables.bounds, charts.draw_bounds),
    "theorem": (
        "Where Theorem 1 says anything",
        lambda seeds: tables.theorem(),
        charts.draw_theorem,
    ),
    "runtime": (
        "Seconds from the reports to the threshold, the CPU here and an RTX A6000 as published",
        lambda seeds: tables.runtime(),
        charts.draw_runtime,
    ),
    "natural": (
        "Natural federations: who is found, and who is accused (not in the paper)",
        lambda seeds: found_table(max(2, seeds // 2), seeds),
        charts.draw_natural,
    ),
}
KEYS = ("dataset", "model", "split", "ratio", "attack", "variant")
READING = """`coverage ±sd / set size`. *Honest alone* is what the honest clients get without
anybody else; **bold** cells are more than 0.02 off it. *Closed form* is undefended FCP's expected
coverage. Which of text and code made the published figures is not said in the paper.
"""
INTRO = """# Results: the paper's text, its released code and ours side by side

Written by `robfcp reproduce all -o out/paper --page docs/results.md` from outputs that ship with
the package: no network, no GPU. Target coverage 0.9; means over {seeds} seeds, each a new split
of the test samples over the clients, halved into calibration and test, with new attackers.

![Distance from the honest coverage in {total} cells, ours and theirs]({folder}/overview.png)

## Over all cells

Distance from the honest clients' coverage.

{standings}

In {leads} of {total} cells a rival is nearer than ours by more than {ahead} of coverage:
[all of them]({folder}/rivals.md).

## The tables

"""
RIVALS = """# Where a rival is ahead

Cells in which the best rival's coverage is nearer to the honest clients' alone than ours by more
than {ahead}: {leads} of {total}. Columns are coverage minus that of the honest clients alone, and
mean set size.

{table}

[All results](../results.md)
"""


def titles() -> dict[str, str]:
    """Every experiment's name and what it shows."""
    named = {name: title for name, (title, _) in EXPERIMENTS.items()}
    return named | {name: title for name, (title, *_) in EXTRAS.items()}


def reproduce(
    names: Sequence[str],
    directory: Path,
    *,
    seeds: int = 10,
    workers: int | None = None,
    resume: bool = True,
    start: Callable[[int], None] = lambda total: None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[dict[str, Any]]]:
    """Run the named experiments; each leaves NAME.csv, NAME.json and NAME.png in the directory."""
    known = titles()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RobfcpError(f"{unknown[0]}: no such experiment; choose from {', '.join(known)}, all")
    if seeds < 2:
        raise RobfcpError(f"seeds: {seeds} gives no spread; use at least 2")
    directory.mkdir(parents=True, exist_ok=True)
    store = directory / "runs"
    if not resume:
        for path in store.glob("*.json"):
            path.unlink()
    chosen = {name: list(EXPERIMENTS[name][1]()) for name in names if name in EXPERIMENTS}
    everything = [(case.world, case.run) for cases in chosen.values() for case in cases]
    results = run_cases(
        everything, seeds=seeds, store=store, workers=workers, start=start, advance=advance
    )
    found = {}
    for name in names:
        if name in EXPERIMENTS:
            rows = tables.make_rows(chosen[name], results)
            figure, lines = charts.draw(name, known[name], rows), tables.remarks(rows)
        else:
            rows = EXTRAS[name][1](seeds)
            figure, lines = EXTRAS[name][2](rows), []
        found[name] = rows
        content = {"experiment": name, "title": known[name], "remarks": lines, "rows": rows}
        write_atomically(directory / f"{name}.csv", tables.to_csv(rows))
        write_atomically(directory / f"{name}.json", json.dumps(content, indent=1) + "\n")
        save(figure, directory / f"{name}.png")
    return found


def write_page(directory: Path, page: Path) -> None:
    """Write the page from the JSON files in `directory`, its sections in a folder beside it."""
    contents = {}
    for name in titles():
        path = directory / f"{name}.json"
        if path.is_file():
            contents[name] = json.loads(path.read_text(encoding="utf-8"))
    if not contents:
        raise RobfcpError(f"{directory}: holds no results; run `robfcp reproduce all` first")
    folder = page.parent / page.stem
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        for suffix in (".png", ".csv"):
            if (directory / f"{name}{suffix}").is_file():
                shutil.copyfile(directory / f"{name}{suffix}", folder / f"{name}{suffix}")
        write_atomically(folder / f"{name}.md", _section(name, content))
    found = tables.cells(contents)
    leads = tables.beaten(found)
    save(charts.draw_overview(found), folder / "overview.png")
    counts = {"leads": len(leads), "total": len(found), "ahead": tables.AHEAD}
    write_atomically(folder / "rivals.md", RIVALS.format(table=_lead_table(leads), **counts))
    rows = [row for content in contents.values() for row in content["rows"]]
    text = INTRO.format(
        seeds=min((row["seeds"] for row in rows if "seeds" in row), default=0),
        folder=page.stem,
        standings=_standings(found),
        **counts,
    )
    links = {name: content["title"] for name, content in contents.items()}
    links |= {  # pages kept by hand beside those written here
        name: title
        for name, title in (
            ("contradictions", "Where the paper contradicts itself, or its code"),
            ("models", "The shipped models and how their training differs"),
        )
        if (folder / f"{name}.md").is_file()
    }
    text += "".join(f"- [{title}]({page.stem}/{name}.md)\n" for name, title in links.items())
    write_atomically(page, text)


def _section(name: str, content: Mapping[str, Any]) -> str:
    """The experiment's page; its figure and its CSV file lie beside it."""
    lines = [f"# {content['title']}\n", f"`robfcp reproduce {name} -o out/paper`\n"]
    lines += [f"- {remark}" for remark in content["remarks"]]
    lines.append(f"\n![{content['title']}]({name}.png)\n")
    rows = content["rows"]
    if name == "counting":
        lines.append(_counting_table(rows))
    elif "method" in rows[0]:
        lines += [READING, _pivot(rows)]
    else:
        lines.append(markdown(list(rows[0]), ([_plain(v) for v in row.values()] for row in rows)))
    lines.append(f"\n[{name}.csv]({name}.csv) · [all results](../results.md)")
    return "\n".join(lines) + "\n"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _pivot(rows: Rows) -> str:
    """A line a setting, a column a method."""
    settings: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        settings.setdefault(tuple(row[key] for key in KEYS), {})[row["method"]] = row
    present = [name for name in EVERY if any(name in found for found in settings.values())]
    used = [
        i
        for i, key in enumerate(KEYS)
        if len({str(s[i]) for s in settings}) > 1 or key == "dataset"
    ]
    stated = {
        name: label
        for name, label in ((FCP, "FCP, published"), (TEXT, "Rob-FCP, published"))
        if any(_stated(found.get(name)) for found in settings.values())
    }
    head = [KEYS[i] for i in used] + ["honest alone", "closed form", *stated.values()]
    head += [LABELS[name] for name in present]
    lines = []
    for setting, found in settings.items():
        first = next(iter(found.values()))
        form = next((r["expected"] for r in found.values() if r["expected"] is not None), None)
        cells = [f"{setting[i]:.0%}" if KEYS[i] == "ratio" else str(setting[i]) for i in used]
        cells.append(f"{first['honest_coverage']:.3f} / {first['honest_set_size']:.2f}")
        cells.append("" if form is None else f"{form:.3f}")
        cells += [_stated(found.get(name)) for name in stated]
        lines.append([*cells, *(_cell(found.get(name)) for name in present)])
    return markdown(head, lines)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    text = f"{row['coverage']:.3f} ±{row['coverage_sd']:.3f} / {row['set_size']:.2f}"
    return f"**{text}**" if abs(tables.error(row)) > tables.APART else text


def _stated(row: Mapping[str, Any] | None) -> str:
    """The figure the paper published for this cell."""
    if row is None or row["published_coverage"] is None:
        return ""
    return f"{row['published_coverage']:g} / {row['published_set_size']:g}"


def _counting_table(rows: Rows) -> str:
    ratios = sorted({row["ratio"] for row in rows})
    found: dict[tuple[str, ...], dict[tuple[float, str], float]] = {}
    for row in rows:
        key = (row["dataset"], row["model"], row["split"], row["variant"])
        found.setdefault(key, {})[row["ratio"], row["method"]] = row["assumed"]
    lines = [
        [
            *setting,
            *(
                " / ".join(f"{own[ratio, name]:.1f}" for name in DETECTORS)
                if (ratio, DETECTORS[0]) in own
                else ""
                for ratio in ratios
            ),
        ]
        for setting, own in found.items()
    ]
    names = " / ".join(LABELS[name] for name in DETECTORS)
    head = ["dataset", "model", "split", "attack", *(f"{r:.0%}" for r in ratios)]
    return f"Mean estimates for the true share above them: {names}.\n\n{markdown(head, lines)}"


def _standings(found: Sequence[tables.PaperCell]) -> str:
    lines = [
        (LABELS[one["method"]], f"{one['mean']:.4f}", f"{one['worst']:+.3f}", one["in"],
         f"{one['off']} of {one['total']}")
        for one in tables.standings(found)
    ]  # fmt: skip
    return markdown(["method", "mean", "worst", "in", "over 0.02 in"], lines)


def _lead_table(leads: Iterable[tuple[float, str, tables.PaperCell]]) -> str:
    named = (FCP, TEXT, RELEASED, OURS)
    lines = []
    for lead, rival, cell in leads:
        texts = [
            f"{tables.error(row):+.3f} / {row['set_size']:.2f}"
            if (row := cell.rows.get(name))
            else ""
            for name in named
        ]
        lines.append([cell.experiment, cell.setting, LABELS[rival], f"{lead:.3f}", *texts])
    head = ["table", "setting", "ahead", "by", *(LABELS[name] for name in named)]
    return markdown(head, lines)
