"""`robfcp redteam`: every attack against every defence, the worst of each marked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from robfcp.cli._common import (
    Json,
    Output,
    Printer,
    Quiet,
    Seed,
    prepare,
    prepare_figure,
    save_json,
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
from robfcp.lab.attacks import ATTACKS, Adaptive
from robfcp.lab.redteam import DEFENCES, SHARES, Cell, Stopped, plot_redteam, records, worst
from robfcp.lab.redteam import redteam as run

NARROW, USUAL, WIDE = 30, 17, 23  # signs of the first columns, and of one for each defence


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("redteam")(redteam)


def redteam(
    data: Data = "mnist",
    attack: Annotated[
        list[str] | None, typer.Option(help=f"May be repeated; all of {', '.join(ATTACKS)}.")
    ] = None,
    defence: Annotated[
        list[str] | None, typer.Option(help=f"May be repeated; {', '.join(DEFENCES)}.")
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option(help="Share of sites that attack; may be repeated.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Number of artificial sites.")] = 20,
    beta: Beta = None,
    sites: Sites = "artificial",
    site_column: SiteColumn = "site",
    min_size: MinSize = 20,
    malicious: Malicious = "known",
    exclude: ExcludeOption = "outstanding",
    confidence: Confidence = 0.9,
    score: ScoreName = "lac",
    by: By = None,
    trials: Annotated[int, typer.Option(help="Free steps of the adaptive attacker.")] = 50,
    seeds: Annotated[int, typer.Option(help="Number of runs.")] = 3,
    seed: Seed = 0,
    output: Output = None,
    plot: Annotated[Path | None, typer.Option(help="Write a heat map to this file.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run all attacks against all defences on real model outputs.

    Each cell holds coverage minus that of the honest sites alone, and the set size over theirs;
    a star marks the worst of each defence. With --by class it ends with the worst class's coverage.

    [dim]Example: robfcp redteam mnist --share 0.4 --plot redteam.png[/dim]
    [dim]Example: robfcp redteam heart --sites natural --attack subset --share 0.25 --seeds 1[/dim]
    """
    printer = Printer(as_json, quiet)
    prepare(output)
    prepare_figure(plot)
    attacks, defences, shares = attack or tuple(ATTACKS), defence or DEFENCES, share or SHARES
    rule, told = range_options(score, malicious)
    outputs = chosen_outputs(data, natural_column(sites, site_column, beta))
    with printer.progress() as bar:
        task = bar.add_task("attacking", total=len(attacks) * len(defences) * len(shares) * seeds)
        whole = True
        try:
            cells = run(
                outputs.predictions,
                outputs.labels,
                attacks=attacks,
                defences=defences,
                shares=shares,
                n_clients=clients,
                beta=beta,
                sites=outputs.sites,
                min_size=min_size,
                coverage=confidence,
                score=rule,
                malicious=told,
                exactly=exclude == "exactly",
                by=chosen_by(by),
                trials=trials,
                seeds=seeds,
                rng=seed,
                progress=lambda: bar.advance(task),
            )
        except Stopped as stopped:
            cells, whole = stopped.cells, False
            if not cells:
                raise
    if not as_json:
        show(cells, printer)
    if output is not None:
        save_json(output, records(cells))
        printer.line(f"-> {output}")
    if plot is not None:
        from robfcp.figures import save

        save(plot_redteam(cells), plot)
        printer.line(f"-> {plot}")
    printer.json(records(cells))
    if not whole:
        done = len({(cell.attack, cell.share) for cell in cells})
        print(
            f"robfcp: stopped by Ctrl-C; what is shown and written are the {done} of "
            f"{len(attacks) * len(shares)} attacks that had a run",
            file=sys.stderr,
        )
        raise typer.Exit(130)


def show(cells: tuple[Cell, ...], printer: Printer) -> None:
    """The cells for people: a line an attack and share, a column a defence."""
    marked = worst(cells)
    lines: dict[tuple[str, float], dict[str, Cell]] = {}
    for cell in cells:
        lines.setdefault((cell.attack, cell.share), {})[cell.defence] = cell
    by_class = ", worst class" if cells[0].by else ""
    title = f"coverage - honest, set size / honest{by_class}; * worst"
    names = list(marked)
    room = max(1, (printer.console.width - NARROW) // (WIDE if by_class else USUAL))
    for first in range(0, len(names), room):
        shown = names[first : first + room]
        table = Table(title=None if first else title, title_justify="left")
        for column in ("attack", "share", *shown):
            left = column == "attack"
            table.add_column(column, justify="left" if left else "right", overflow="fold")
        for (attack, share), row in lines.items():
            adaptive = isinstance(ATTACKS[attack], Adaptive)
            texts = [_text(row.get(name), marked[name] is row.get(name)) for name in shown]
            table.add_row(Text(attack, style="italic" if adaptive else ""), f"{share:.0%}", *texts)
        printer.console.print(table)
    for name, cell in marked.items():
        printer.line(
            f"{name}: worst under {cell.attack} by {cell.share:.0%}: coverage {cell.coverage:.3f} "
            f"(honest {cell.honest_coverage:.3f}), set size {cell.set_size:.2f} "
            f"(honest {cell.honest_set_size:.2f}){_worst_class(cell)}"
        )


def _text(cell: Cell | None, is_worst: bool) -> Text:
    if cell is None:
        return Text("not run", style="dim")
    words = f"{cell.error:+.3f} {cell.growth:.2f}x"
    if cell.by:
        words += f" {cell.worst_class_coverage:.3f}"
    return Text(words + ("*" if is_worst else " "), style="bold red" if is_worst else "")


def _worst_class(cell: Cell) -> str:
    if not cell.by:
        return ""
    worst, honest = cell.worst_class_coverage, cell.honest_worst_class_coverage
    return f", worst class {worst:.3f} (honest {honest:.3f})"
