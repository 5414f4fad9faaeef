"""`robfcp predict`: class probabilities become prediction sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from robfcp import metrics
from robfcp.calibration import Calibration, load_calibration
from robfcp.cli._common import Json, Output, Printer, Quiet, Seed, ServerKey, pinned_key
from robfcp.cli._data import FileOutputs, read_outputs
from robfcp.cli._sets import in_order, sets_as_csv, write_result
from robfcp.errors import RobfcpError
from robfcp.scores import RISKS, ClassificationScore


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict", no_args_is_help=True)(predict)


def predict(
    calibration: Annotated[Path, typer.Argument(help="A calibration, or a site's letter.")],
    data: Annotated[Path, typer.Argument(help="Model outputs: .npz, .npy or .csv.")],
    output: Output = None,
    level: Annotated[
        int, typer.Option(help="Which confidence level of the calibration, counted from 0.")
    ] = 0,
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
    with printer.busy("predicting"):
        loaded = load_calibration(calibration, pinned_key(server_key))
        _check_model(calibration, loaded, model)
        if not 0 <= level < len(loaded.levels):
            raise RobfcpError(f"--level: {level} is not 0 to {len(loaded.levels) - 1}")
        outputs = read_outputs(data, needs_targets=False, columns=[group])
        groups = None if group is None else outputs.columns[group]
        result, figures, text = _predicted(loaded, in_order(loaded, outputs), level, seed, groups)
        if output is not None:
            write_result(output, result, text)
    printer.table(f"{len(result)} samples", list(figures), [list(figures.values())])
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
    seed: int,
    groups: NDArray[Any] | None = None,
) -> tuple[NDArray[Any], dict[str, float], str]:
    """Sets or intervals at one level, how good they are, and the same as CSV."""
    if calibration.risk is not None:
        sets = calibration.predict_multilabel(outputs.predictions)
        chosen = sets[:, :, level] if calibration.several else sets
        return chosen, _risk_figures(calibration, chosen, outputs), sets_as_csv(chosen)
    if isinstance(calibration.score, ClassificationScore):
        sets = calibration.predict_set(outputs.predictions, seed, groups=groups)
        chosen = sets[:, :, level] if calibration.several else sets
        names = calibration.classes if isinstance(calibration.classes, tuple) else ()
        return chosen, _set_figures(chosen, outputs), sets_as_csv(chosen, names)
    ends = calibration.predict_interval(outputs.predictions, groups=groups)
    pairs = ends[:, :, level] if calibration.several else ends
    text = "low,high\n" + "".join(f"{low!r},{high!r}\n" for low, high in pairs.tolist())
    return pairs, _interval_figures(pairs, outputs), text


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
    if outputs.targets is not None and name in RISKS:
        figures[name] = float(RISKS[name].losses(sets, outputs.targets).mean())
    return figures


def _interval_figures(ends: NDArray[np.float64], outputs: FileOutputs) -> dict[str, float]:
    figures = {"width": metrics.interval_width(ends)}
    if outputs.targets is not None:
        figures["coverage"] = metrics.interval_coverage(ends, outputs.targets)
    return figures
