"""`robfcp localise`: a site's own threshold, from its letter and its own data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from robfcp.calibration import (
    Localised,
)
from robfcp.cli._common import Json, Output, Printer, Quiet, Seed, ServerKey, pinned_key
from robfcp.cli._data import read_outputs
from robfcp.cli._local import localised_from
from robfcp.cli._sets import in_order, sets_as_csv, write_result
from robfcp.errors import RobfcpError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("localise", no_args_is_help=True)(localise)


def localise(
    letter: Annotated[
        Path,
        typer.Argument(help="The site's letter; without one, a calibration with its evidence."),
    ],
    data: Annotated[
        Path, typer.Argument(help="The site's labelled calibration outputs: .npz or .csv.")
    ],
    predict: Annotated[
        Path | None, typer.Option(help="New outputs: predict with the site's own threshold.")
    ] = None,
    output: Output = None,
    clip: Annotated[
        bool,
        typer.Option(
            "--clip/--no-clip",
            help="Never above the site's own threshold, or keep the promise on average.",
        ),
    ] = True,
    level: Annotated[
        int, typer.Option(help="Which confidence level of the calibration, counted from 0.")
    ] = 0,
    server_key: ServerKey = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Clip the federation's threshold for this site's label mix to the site's own data.

    [dim]Example: robfcp localise letter.json own.csv --predict new.csv -o sets.csv[/dim]
    [dim]Example: robfcp localise letter.json own.csv --no-clip[/dim]
    """
    printer = Printer(as_json, quiet)
    if (predict is None) != (output is None):
        raise RobfcpError("--predict: goes with -o, where the sets are written; pass both")
    with printer.busy("localising"):
        own = read_outputs(data, needs_targets=True)
        local = localised_from(letter, own, pinned_key(server_key), seed)
        if not 0 <= level < len(local.levels):
            raise RobfcpError(f"--level: {level} is not 0 to {len(local.levels) - 1}")
        if predict is not None and output is not None:
            _write_sets(local, predict, output, (level, clip, seed))
    for one in local.levels:
        printer.table(
            f"{local.client} at {one.confidence_level:g}, {one.n} samples of its own",
            ["from", "threshold", "set size", "proved"],
            [(name, limit, round(size, 3), proved) for name, limit, size, proved in one.rows],
        )
        for statement in one.statements:
            printer.line(f"- {statement}")
    for note in local.notes:
        printer.line(note)
    if output is not None:
        printer.line(f"-> {output}")
    printer.json(as_data(local))


def _write_sets(local: Localised, new: Path, output: Path, how: tuple[int, bool, int]) -> None:
    level, clip, seed = how
    calibration = local.calibration
    outputs = in_order(calibration, read_outputs(new, needs_targets=False))
    sets = local.predict_set(outputs.predictions, seed, clip=clip)
    chosen = sets[:, :, level] if calibration.several else sets
    names = calibration.classes if isinstance(calibration.classes, tuple) else ()
    write_result(output, chosen, sets_as_csv(chosen, names))


def as_data(local: Localised) -> dict[str, Any]:
    """The thresholds for programs."""
    return {
        "client": local.client,
        "levels": [{**asdict(one), "statements": list(one.statements)} for one in local.levels],
        "notes": list(local.notes),
    }
