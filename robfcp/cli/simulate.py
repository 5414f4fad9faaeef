"""`robfcp simulate`: honest, attacked and defended federations side by side."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from robfcp.cli._common import (
    Json,
    Output,
    Printer,
    Quiet,
    Seed,
    completes,
    json_text,
    prepare,
    prepare_figure,
)
from robfcp.cli._range import (
    Beta,
    By,
    Confidence,
    Data,
    ExcludeOption,
    Malicious,
    MinSize,
    ScoreName,
    SiteColumn,
    Sites,
    chosen_by,
    natural_column,
    range_options,
)
from robfcp.cli._shipped import chosen_outputs
from robfcp.defence import DEFAULT, DEFENCES
from robfcp.errors import RobfcpError
from robfcp.files import write_atomically
from robfcp.lab.attacks import ATTACKS
from robfcp.lab.simulation import Row, records, summarise
from robfcp.lab.simulation import simulate as run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
    data: Data = "pathmnist",
    attack: Annotated[
        str,
        typer.Option(help=f"One of {', '.join(ATTACKS)}.", autocompletion=completes(*ATTACKS)),
    ] = "coverage",
    share: Annotated[float, typer.Option(help="Share of sites that attack.")] = 0.4,
    clients: Annotated[int, typer.Option(min=1, help="Number of artificial sites.")] = 100,
    beta: Beta = None,
    defence: Annotated[
        list[str] | None, typer.Option(help=f"May be repeated; {', '.join(DEFENCES)}.")
    ] = None,
    sites: Sites = "artificial",
    site_column: SiteColumn = "site",
    min_size: MinSize = 20,
    malicious: Malicious = "known",
    exclude: ExcludeOption = "outstanding",
    confidence: Confidence = 0.9,
    score: ScoreName = "lac",
    by: By = None,
    seeds: Annotated[int, typer.Option(help="Number of runs.")] = 5,
    seed: Seed = 0,
    output: Output = None,
    plot: Annotated[Path | None, typer.Option(help="Write a figure to this PNG or PDF.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run honest, attacked and defended federations on real model outputs.

    [dim]Example: robfcp simulate mnist --attack coverage --share 0.4 --plot attack.png[/dim]
    [dim]Example: robfcp simulate stroke --sites natural --attack swapped-labels[/dim]
    """
    printer = Printer(as_json, quiet)
    defences = defence or ["none", "rob-fcp", DEFAULT]
    prepare(output, endings=(".json", ".csv"))
    prepare_figure(plot)
    outputs = chosen_outputs(data, natural_column(sites, site_column, beta))
    rule, told = range_options(score, malicious)
    with printer.progress() as bar:
        task = bar.add_task("simulating", total=seeds * len(defences))
        rows = run(
            outputs.predictions,
            outputs.labels,
            attack=attack,
            share=share,
            n_clients=clients,
            defences=defences,
            beta=beta,
            sites=outputs.sites,
            min_size=min_size,
            coverage=confidence,
            score=rule,
            malicious=told,
            exactly=exclude == "exactly",
            by=chosen_by(by),
            seeds=seeds,
            rng=seed,
            progress=lambda: bar.advance(task),
        )
    show(rows, printer, "known" if malicious == "known" else "estimated")
    if output is not None:
        write_rows(output, rows)
        printer.line(f"-> {output}")
    if plot is not None:
        from robfcp.figures import save
        from robfcp.lab.simulation import plot_comparison

        save(plot_comparison(rows, confidence), plot)
        printer.line(f"-> {plot}")
    printer.json({"rows": records(rows), "summary": list(summarise(rows))})


def show(rows: tuple[Row, ...], printer: Printer, number: str) -> None:
    """The means over the seeds for people."""
    first = rows[0]
    printer.table(
        f"{first.n_malicious} of {first.n_clients} sites attack ({first.attack}), "
        f"number {number}{', a threshold for each class' if first.by else ''}",
        [
            "defence",
            "coverage",
            *(["worst class"] if first.by else []),
            "set size",
            "error",
            "flagged",
            "caught",
        ],
        [
            (
                record["defence"],
                f"{record['coverage']:.3f}",
                *([f"{record['worst_class_coverage']:.3f}"] if first.by else []),
                f"{record['set_size']:.2f}",
                f"{record['error']:+.3f}",
                f"{record['flagged']:.1f}",
                f"{record['caught']:.1f}",
            )
            for record in summarise(rows)
        ],
    )


def write_rows(path: Path, rows: tuple[Row, ...]) -> None:
    """All rows as CSV or JSON, by the file's ending."""
    data = records(rows)
    if path.suffix == ".json":
        write_atomically(path, json_text(data) + "\n")
    elif path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(data[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(data)
        write_atomically(path, text.getvalue())
    else:
        raise RobfcpError(f"{path}: cannot write {path.suffix or 'this'}; use .csv or .json")
