"""`robfcp check`: does a calibration still hold on fresh labelled samples?"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from robfcp.calibration import Calibration, Check, Localised, Part, load_calibration
from robfcp.cli._common import (
    Json,
    LevelOption,
    LocalOption,
    Output,
    Printer,
    Quiet,
    Seed,
    level_place,
    prepare,
    save_json,
    stream,
)
from robfcp.cli._data import IdColumn, LabelColumn, Logits, Normalise, reading_of
from robfcp.cli._local import localised_from, read_for
from robfcp.cli._sets import class_names
from robfcp.cli._sites import letter_note


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", no_args_is_help=True)(check)


def check(
    calibration: Annotated[Path, typer.Argument(help="A calibration, or a site's letter.")],
    data: Annotated[Path, typer.Argument(help="Fresh labelled outputs: .csv, .npz or .parquet.")],
    output: Output = None,
    group: Annotated[
        str | None, typer.Option(help="A column to split by: night, ward, scanner.")
    ] = None,
    floor: Annotated[
        float | None, typer.Option(help="Hold coverage against this, not the certificate.")
    ] = None,
    local: LocalOption = None,
    confidence: Annotated[float, typer.Option(help="Of the exact intervals.")] = 0.95,
    level: LevelOption = None,
    ids: IdColumn = None,
    label: LabelColumn = None,
    logits: Logits = False,
    normalise: Normalise = False,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say whether fresh labelled samples are covered as promised, or how many more would tell.

    [dim]Example: robfcp check calibration.json fresh.csv --group night[/dim]
    [dim]Example: robfcp check letter.json test.csv --floor 0.85[/dim]
    """
    printer = Printer(as_json, quiet)
    prepare(output)
    with printer.busy("checking"):
        loaded = load_calibration(calibration)
        reading = replace(reading_of(None, logits, normalise, label), ids=ids)
        outputs = read_for(loaded, data, reading, needs_targets=True, columns=[group])
        assert outputs.targets is not None
        watched: Calibration | Localised = loaded
        if local is not None:
            watched = localised_from(calibration, local, reading)
        found = watched.check(
            outputs.predictions,
            outputs.targets,
            groups=None if group is None else outputs.columns[group],
            level=level_place([one.coverage for one in loaded.levels], level),
            floor=floor,
            confidence=confidence,
            rng=stream(seed, "check"),
        )
        found = replace(found, classes=_called(found.classes, class_names(loaded)))
        if output is not None:
            save_json(output, as_data(found))
    _table(printer, f"{found.overall.n} fresh samples", "part", (found.overall,))
    _table(printer, "by class, all intervals together", "class", found.classes)
    _table(printer, f"by {group}, all intervals together", "group", found.groups)
    sizes = ", ".join(f"{size}: {count}" for size, count in found.set_sizes.items())
    printer.line(f"mean set size {found.set_size:.4g}" + (f" (sets of {sizes})" if sizes else ""))
    printer.line(found.line)
    for note in outputs.notes:
        printer.line(note)
    letter_note(calibration, printer)
    printer.json(as_data(found))


def _called(parts: tuple[Part, ...], names: tuple[str, ...]) -> tuple[Part, ...]:
    """The classes by name where the calibration knows their names."""
    return tuple(replace(part, name=names[int(part.name)]) for part in parts) if names else parts


def _table(printer: Printer, title: str, first: str, parts: tuple[Part, ...]) -> None:
    rows = [(p.name, p.n, f"{p.coverage:.4f}", f"{p.low:.4f}", f"{p.high:.4f}") for p in parts]
    if rows:
        printer.table(title, [first, "samples", "coverage", "at least", "at most"], rows)


def as_data(found: Check) -> dict[str, Any]:
    """The check for programs."""
    return {
        **asdict(found),
        **{
            name: [{**asdict(part), "coverage": part.coverage} for part in getattr(found, name)]
            for name in ("classes", "groups")
        },
        "coverage": found.overall.coverage,
        "line": found.line,
    }
