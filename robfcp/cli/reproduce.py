"""`robfcp reproduce`: every table and figure of the paper, ours beside theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from robfcp.cli._common import Json, Printer, Quiet, prepare
from robfcp.errors import RobfcpError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reproduce")(reproduce)


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or all; without any they are listed.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where tables and figures go.")] = (
        Path("out/paper")
    ),
    seeds: Annotated[int, typer.Option(help="Runs of every cell.")] = 10,
    workers: Annotated[int | None, typer.Option(help="Processes; all cores unless told.")] = None,
    resume: Annotated[bool, typer.Option(help="Keep what an earlier call has run.")] = True,
    page: Annotated[
        Path | None, typer.Option(help="Write a Markdown page of all results found in the output.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat the paper's experiments on shipped model outputs.

    Each leaves NAME.csv and NAME.png. A call that was stopped goes on where it was.

    [dim]Example: robfcp reproduce main benign -o out/paper[/dim]
    [dim]Example: robfcp reproduce bounds --seeds 2 --workers 1 -o out/paper[/dim]
    """
    from robfcp.lab import paper

    printer = Printer(as_json, quiet)
    known = paper.titles()
    if not names:
        printer.table("robfcp reproduce NAME ... (or all)", ["name", "shows"], known.items())
        printer.json({"experiments": known})
        return
    if workers is not None and workers < 1:
        raise RobfcpError(f"--workers: {workers} is not a number of processes; give 1 or more")
    prepare(page, output / "any")
    chosen = list(known) if "all" in names else list(dict.fromkeys(names))
    with printer.progress() as bar:
        task = bar.add_task("running", total=None)
        tables = paper.reproduce(
            chosen,
            output,
            seeds=seeds,
            workers=workers,
            resume=resume,
            start=lambda total: bar.update(task, total=total),
            advance=lambda: bar.advance(task),
        )
    for name, rows in tables.items():
        _show(printer, name, known[name], rows, detailed=len(chosen) == 1)
    if page is not None:
        paper.write_page(output, page)
        printer.line(f"-> {page}")
    for name in chosen:
        printer.line(f"-> {output / name}.csv and .png")
    printer.json(tables)


def _show(printer: Printer, name: str, title: str, rows: Sequence[Any], *, detailed: bool) -> None:
    if name == "natural":
        _show_natural(printer, rows)
        return
    if "method" not in rows[0]:
        printer.table(f"{name}: {title}", list(rows[0]), [list(row.values()) for row in rows])
        return
    from robfcp.lab.paper import remarks

    if detailed:
        columns = [
            "cell",
            "attack",
            "method",
            "coverage",
            "published",
            "closed form",
            "size",
            "published",
        ]
        printer.table(
            f"{name}: {title}",
            columns,
            [
                (
                    " ".join(row[key] for key in ("dataset", "model", "split", "variant"))
                    + f" {row['ratio']:.0%}",
                    row["attack"],
                    row["method"],
                    f"{row['coverage']:.3f} ±{row['coverage_sd']:.3f}",
                    "" if row["published_coverage"] is None else f"{row['published_coverage']:.3f}",
                    "" if row["expected"] is None else f"{row['expected']:.3f}",
                    f"{row['set_size']:.2f}",
                    "" if row["published_set_size"] is None else f"{row['published_set_size']:.2f}",
                )
                for row in rows
            ],
        )
    else:
        printer.line(f"{name}: {title} ({len(rows)} rows)", style="bold")
    for line in remarks(rows):
        printer.line(f"  {line}")


def _show_natural(printer: Printer, rows: Sequence[dict[str, Any]]) -> None:
    """A table a federation: errors of coverage, and how many liars / honest sites are left out."""
    from robfcp.lab.natural import COMPARED

    for title in dict.fromkeys(row["federation"] for row in rows):
        group = [row for row in rows if row["federation"] == title]
        printer.table(
            f"{title}: {group[-1]['liars']} of {group[0]['honest']} lie; error, liars/honest out",
            ["fault", "none", *(word for name in COMPARED for word in (name, "out"))],
            [
                (
                    row["attack"],
                    f"{row['none_error']:+.3f}",
                    *(
                        text
                        for defence in COMPARED
                        for text in (
                            f"{row[f'{defence}_error']:+.3f}",
                            f"{row[f'{defence}_found']:.1f}/{row[f'{defence}_false_alarms']:.1f}",
                        )
                    ),
                )
                for row in group
            ],
        )
