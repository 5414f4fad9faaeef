"""`robfcp localise`: a site's own threshold, from its letter and its own data."""

from __future__ import annotations

from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from robfcp import metrics
from robfcp.calibration import Localised
from robfcp.cli._common import (
    Json,
    LevelOption,
    Output,
    Printer,
    Quiet,
    Seed,
    ServerKey,
    level_place,
    pinned_key,
    prepare,
    stream,
)
from robfcp.cli._data import IdColumn, LabelColumn, Logits, Normalise, reading_of
from robfcp.cli._local import localised_from, read_for
from robfcp.cli._outputs import FileOutputs
from robfcp.cli._sets import ENDINGS, NonEmpty, class_names, filled_words, sets_as_csv, write_result
from robfcp.cli._sites import letter_note
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
        Path,
        typer.Argument(help="The site's labelled calibration outputs: .csv, .npz or .parquet."),
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
    non_empty: NonEmpty = False,
    level: LevelOption = None,
    ids: IdColumn = None,
    label: LabelColumn = None,
    logits: Logits = False,
    normalise: Normalise = False,
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
    if non_empty and predict is None:
        raise RobfcpError("--non-empty: is about predicted sets; pass --predict and -o too")
    prepare(output, endings=ENDINGS)
    filled = 0.0
    with printer.busy("localising"):
        reading = replace(reading_of(None, logits, normalise, label), ids=ids)
        local = localised_from(letter, data, reading, pinned_key(server_key), seed)
        place = level_place([Fraction(str(one.coverage)) for one in local.levels], level)
        if predict is not None and output is not None:
            outputs = read_for(local.calibration, predict, reading, needs_targets=False)
            filled = _write_sets(local, outputs, output, (place, clip, non_empty, seed))
    for one in local.levels:
        printer.table(
            f"{local.client} at {one.coverage:g}, {one.n} samples of its own",
            ["from", "threshold", "set size", "proved"],
            [(name, limit, round(size, 3), proved) for name, limit, size, proved in one.rows],
        )
        for statement in one.statements:
            printer.line(f"- {statement}")
    for note in local.remarks:
        printer.line(note)
    if non_empty:
        printer.line(filled_words(filled))
    letter_note(letter, printer)
    if output is not None:
        printer.line(f"-> {output}")
    printer.json(as_data(local))


def _write_sets(
    local: Localised, outputs: FileOutputs, output: Path, how: tuple[int, bool, bool, int]
) -> float:
    """Write the sets of one level; the share of them that were empty."""
    level, clip, non_empty, seed = how

    def predicted(non_empty: bool) -> NDArray[np.bool_]:
        rng = stream(seed, "predict")
        sets = local.predict_set(outputs.predictions, rng, clip=clip, non_empty=non_empty)
        return sets[:, :, level] if local.calibration.several else sets

    chosen = predicted(non_empty)
    text = sets_as_csv(chosen, outputs.sample_ids, class_names(local.calibration))
    write_result(output, chosen, text)
    return metrics.empty_share(predicted(False) if non_empty else chosen)


def as_data(local: Localised) -> dict[str, Any]:
    """The thresholds for programs."""
    return {
        "client": local.client,
        "levels": [{**asdict(one), "statements": list(one.statements)} for one in local.levels],
        "remarks": list(local.remarks),
    }
