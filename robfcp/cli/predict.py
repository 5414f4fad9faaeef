"""`robfcp predict`: class probabilities become prediction sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from robfcp import metrics
from robfcp.calibration import Calibration, load_calibration
from robfcp.cli._common import (
    Json,
    LevelOption,
    Printer,
    Quiet,
    Seed,
    ServerKey,
    level_place,
    pinned_key,
    prepare,
    stream,
)
from robfcp.cli._data import (
    IdColumn,
    LabelColumn,
    Logits,
    Normalise,
    expects,
    read_outputs,
    reading_of,
)
from robfcp.cli._outputs import FileOutputs
from robfcp.cli._sets import (
    ENDINGS,
    NonEmpty,
    class_names,
    filled_words,
    intervals_as_csv,
    sets_as_csv,
    write_result,
)
from robfcp.cli._sites import letter_note
from robfcp.errors import RobfcpError
from robfcp.scores import ClassificationScore, Risk


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict", no_args_is_help=True)(predict)


def predict(
    calibration: Annotated[Path, typer.Argument(help="A calibration, or a site's letter.")],
    data: Annotated[Path, typer.Argument(help="Model outputs: .csv, .npz, .npy or .parquet.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where sets go: .csv (id, set, size, classes) or .npy."
        ),
    ] = None,
    level: LevelOption = None,
    non_empty: NonEmpty = False,
    ids: IdColumn = None,
    label: LabelColumn = None,
    logits: Logits = False,
    normalise: Normalise = False,
    group: Annotated[
        str | None, typer.Option(help="The column or npz array with each sample's group.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's name or digest: refuse another one's threshold.")
    ] = None,
    server_key: ServerKey = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn model outputs into prediction sets (or intervals); with labels, say how well they cover.

    [dim]Example: robfcp predict calibration.json test.csv -o sets.csv[/dim]
    [dim]Example: robfcp predict letter.json new.csv -o sets.csv --json[/dim]
    """
    printer = Printer(as_json, quiet)
    prepare(output, endings=ENDINGS)
    with printer.busy("predicting"):
        loaded = load_calibration(calibration, pinned_key(server_key))
        _check_model(calibration, loaded, model)
        place = level_place([one.coverage for one in loaded.levels], level)
        reading = replace(
            reading_of(None, logits, normalise, label), ids=ids, classes=loaded.classes
        )
        outputs = read_outputs(
            data,
            needs_targets=False,
            columns=[group],
            expects=expects(loaded.score, loaded.risk),
            reading=reading,
        )
        groups = None if group is None else outputs.columns[group]
        rng = stream(seed, "predict")
        result, figures, text = _predicted(loaded, outputs, place, rng, groups, non_empty)
        if output is not None:
            write_result(output, result, text)
    printer.table(
        f"{len(result)} samples at {float(loaded.levels[place].coverage):g}",
        [name.replace("_", " ") for name in figures],
        [list(figures.values())],
    )
    for note in outputs.notes:
        printer.line(note)
    if "filled" in figures:
        printer.line(filled_words(figures["filled"]))
    letter_note(calibration, printer)
    if output is not None:
        printer.line(f"-> {output}")
    printer.json(figures)


def _check_model(path: Path, calibration: Calibration, model: str | None) -> None:
    """Refuse outputs of another model than the calibration was made for, where both are stated."""
    made_for = calibration.summary.model
    if model is not None and made_for is not None and model != made_for:
        raise RobfcpError(
            f"{path}: was made for model {made_for}, not {model}; its threshold means nothing for "
            "another one: calibrate again"
        )


def _predicted(
    calibration: Calibration,
    outputs: FileOutputs,
    level: int,
    rng: np.random.Generator,
    groups: NDArray[Any] | None,
    non_empty: bool,
) -> tuple[NDArray[Any], dict[str, float], str]:
    """Sets or intervals at one level, how good they are, and the same as CSV."""
    names, ids = class_names(calibration), outputs.sample_ids
    if calibration.risk is not None:
        sets = calibration.predict_multilabel(outputs.predictions)
        chosen = sets[:, :, level] if calibration.several else sets
        return chosen, _risk_figures(calibration, chosen, outputs), sets_as_csv(chosen, ids)
    if isinstance(calibration.score, ClassificationScore) or calibration.score is None:
        kept = rng.bit_generator.state
        sets = calibration.predict_set(outputs.predictions, rng, groups=groups, non_empty=non_empty)
        chosen = sets[:, :, level] if calibration.several else sets
        figures = _set_figures(chosen, outputs)
        if non_empty:
            rng.bit_generator.state = kept
            bare = calibration.predict_set(outputs.predictions, rng, groups=groups)
            figures["filled"] = metrics.empty_share(
                bare[:, :, level] if calibration.several else bare
            )
        return chosen, figures, sets_as_csv(chosen, ids, names)
    ends = calibration.predict_interval(outputs.predictions, groups=groups, non_empty=non_empty)
    pairs = ends[:, :, level] if calibration.several else ends
    return pairs, _interval_figures(pairs, outputs), intervals_as_csv(pairs, ids)


def _set_figures(sets: NDArray[np.bool_], outputs: FileOutputs) -> dict[str, float]:
    if outputs.targets is not None:
        return dict(metrics.summary(sets, outputs.targets))
    return {
        "set_size": metrics.set_size(sets),
        "singletons": metrics.singleton_share(sets),
        "empty": metrics.empty_share(sets),
    }


def _risk_figures(
    calibration: Calibration, sets: NDArray[np.bool_], outputs: FileOutputs
) -> dict[str, float]:
    figures = {"set_size": metrics.set_size(sets)}
    name = calibration.risk.name if calibration.risk else ""
    if outputs.targets is not None and name in Risk.multilabel:
        figures[name] = float(Risk(name).multilabel_losses(sets, outputs.targets).mean())
    return figures


def _interval_figures(ends: NDArray[np.float64], outputs: FileOutputs) -> dict[str, float]:
    figures = {"width": metrics.interval_width(ends)}
    if outputs.targets is not None:
        figures["coverage"] = metrics.interval_coverage(ends, outputs.targets)
    return figures
