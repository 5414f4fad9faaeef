"""What a site types to predict: the threshold it uses, its sets or intervals, and their files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer
from numpy.typing import NDArray

from robfcp._files import read_bounded, write_atomically
from robfcp.cli import console
from robfcp.cli.console import Printer, option
from robfcp.cli.model_outputs import ModelOutputs, ReaderOptions, expected_task
from robfcp.cli.table_files import is_number
from robfcp.cli.tables import read_outputs
from robfcp.errors import RobfcpError
from robfcp.scores import ClassificationScore, Risk

if TYPE_CHECKING:
    from robfcp.calibration import Calibration
    from robfcp.local import ClientFeedback, LocalCalibration

OUTPUT_SUFFIXES = (".csv", ".npy", ".parquet")
_RESERVED_COLUMNS = ("id", "row", "set", "size")  # of files of sets
_FORMULA_STARTS = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"  # what spreadsheets compute, full-width too


@dataclass(frozen=True)
class LoadedThreshold:
    """The threshold that a site uses, and what it comes from.

    Attributes
    ----------
    calibration : Calibration
        What the file holds.
    source : Calibration or LocalCalibration
        What holds the threshold: the calibration, or this site's own one.
    level_index : int
        Which of its levels is used.
    feedback : ClientFeedback, optional
        The site's letter, where the file is one.
    """

    calibration: Calibration
    source: Calibration | LocalCalibration
    level_index: int
    feedback: ClientFeedback | None

    @property
    def coverage(self) -> float:
        """The wanted coverage of the level that is used."""
        return float(self.calibration.levels[self.level_index].coverage)


@dataclass(frozen=True)
class ThresholdOptions:
    """The threshold that a site uses: of which level, and the federation's or its own."""

    level: Annotated[
        str | None, option("Coverage level, for example 0.95, if not the first.", "--level")
    ] = None
    local_data: Annotated[
        Path | None,
        option("Labeled outputs of this client, for a local threshold.", "--local-data"),
    ] = None

    def read(
        self, path: Path, reading: ReaderOptions, key: str | None = None, seed: int = 0
    ) -> LoadedThreshold:
        """Return the threshold of the calibration in a file or a site's letter.

        Parameters
        ----------
        path : Path
            A calibration, or a site's letter.
        reading : ReaderOptions
            How this site's outputs are to be read.
        key : str, optional
            The server's public key, by which the file must be signed.
        seed : int
            For randomized scores.
        """
        from robfcp.calibration import Calibration

        feedback = read_feedback(path, key)
        if feedback is not None:
            calibration = feedback.calibration
        else:
            # What the other clients' reports prove for this client stands in the record.
            calibration = Calibration.load(path, key, record=self.local_data is not None)
        level_index = self._level_index(calibration)
        if self.local_data is None:
            return LoadedThreshold(calibration, calibration, level_index, feedback)

        outputs = read_outputs_for(calibration, self.local_data, reading)
        targets = cast(NDArray[Any], outputs.targets)
        rng = console.derive_seed(seed, "localize")
        if feedback is not None:
            local = feedback.calibrate_locally(outputs.predictions, targets, rng)
        else:
            from robfcp.local import calibrate_unseen_client

            local = calibrate_unseen_client(calibration, outputs.predictions, targets, rng)
        return LoadedThreshold(calibration, local, level_index, feedback)

    def _level_index(self, calibration: Calibration) -> int:
        """Return which of a calibration's levels is meant: the first unless one is named."""
        if self.level is None:
            return 0
        coverages = [float(level.coverage) for level in calibration.levels]
        try:
            return coverages.index(float(self.level))
        except ValueError:
            raise RobfcpError(
                f"--level: {self.level!r} is none of the calibration's levels "
                f"{', '.join(map(str, coverages))}; take one of them, or calibrate with --coverage"
            ) from None


def read_feedback(path: Path, key: str | None = None) -> ClientFeedback | None:
    """Return the letter in a file; None where it holds something else."""
    from robfcp._sealed import file_kind
    from robfcp.calibration import CalibrationDocument

    if file_kind(read_bounded(path, CalibrationDocument.max_bytes)) != "client-feedback":
        return None
    from robfcp.local import ClientFeedback  # with what servers have: only predicting needs none

    return ClientFeedback.load(path, key)


def read_outputs_for(
    calibration: Calibration,
    data: Path,
    reading: ReaderOptions,
    *,
    needs_targets: bool = True,
    columns: Sequence[str | None] = (),
) -> ModelOutputs:
    """Return the outputs in a file for a calibration, in its order of classes.

    Parameters
    ----------
    calibration : Calibration
        It says which classes there are, and what its score or risk is computed from.
    data : Path
        The file of outputs.
    reading : ReaderOptions
        How the file is to be read.
    needs_targets : bool
        Whether a file without the truth is refused.
    columns : sequence of str or None
        Further columns to be read.
    """
    task = expected_task(calibration.score, calibration.risk)
    outputs = read_outputs(
        data,
        needs_targets=needs_targets,
        columns=columns,
        expects=task,
        reading=replace(reading, classes=calibration.classes),
    )
    if task == "values" and calibration.score is not None:
        # What the score refuses is refused by the file's name, before anything is computed.
        targets = outputs.targets
        if targets is None or not needs_targets:
            targets = np.zeros(outputs.predictions.shape[:1])
        try:
            calibration.score(outputs.predictions, targets)
        except RobfcpError as error:
            raise RobfcpError(f"{data}: {error}") from None
    return outputs


@dataclass(frozen=True)
class Prediction:
    """Sets or intervals of some samples.

    Attributes
    ----------
    values : (n, C) or (n, 2) ndarray
        Which labels are in each set, or the ends of each interval.
    figures : dict of str to float
        How good they are.
    csv_text : str
        The same as CSV.
    """

    values: NDArray[Any]
    figures: dict[str, float]
    csv_text: str


def predict(
    printer: Printer,
    reading: ReaderOptions,
    threshold_options: ThresholdOptions,
    calibration: Annotated[
        Path | None, typer.Argument(help="Calibration; omitted with --feedback.")
    ] = None,
    data: Annotated[Path | None, typer.Argument(help=".csv, .npz, .npy or .parquet.")] = None,
    output: Annotated[
        Path | None, option("File for the sets: .csv, .parquet or .npy.", "--output", "-o")
    ] = None,
    feedback: Annotated[Path | None, option("Feedback to this client; needs --local-data.")] = None,
    non_empty: Annotated[
        bool, option("Put the most likely label into empty sets.", "--non-empty")
    ] = False,
    group: Annotated[
        str | None, option("Column or npz array with the group of each sample.")
    ] = None,
    model: console.Model = None,
    server_key: console.ServerKey = None,
    seed: console.Seed = 0,
) -> None:
    """Turn model outputs into prediction sets or intervals; with labels, print their coverage.

    With --feedback and --local-data the client's local threshold is used: that of its peers for its
    label distribution, from the server's feedback, clipped to its samples.

    [dim]Example: robfcp predict calibration.json test.csv -o sets.csv[/dim]
    [dim]Example: robfcp predict new.csv --feedback f.json --local-data local.csv -o s.csv[/dim]
    """
    is_local = threshold_options.local_data is not None
    calibration, data = _resolve_inputs(calibration, data, feedback, is_local=is_local)
    if data is None and (not is_local or output is not None or non_empty):
        raise RobfcpError("data: is missing; name the outputs to predict from")
    console.prepare_outputs(output, endings=OUTPUT_SUFFIXES)

    prediction = None
    notes: list[str] = []
    with printer.busy("predicting"):
        key = console.parse_public_key(server_key)
        threshold = threshold_options.read(calibration, reading, key, seed)
        _check_model(calibration, threshold.calibration, model)
        if data is not None:
            outputs = read_outputs_for(
                threshold.calibration, data, reading, needs_targets=False, columns=[group]
            )
            notes += outputs.notes
            # A local threshold is the same for all groups.
            groups = {} if is_local else {"groups": outputs.columns.get(group or "")}
            rng = console.derive_seed(seed, "predict")
            prediction = predict_level(threshold, outputs, rng, non_empty=non_empty, **groups)
            if output is not None:
                content = write_sets(output.suffix.lower(), prediction.values, prediction.csv_text)
                write_atomically(output, content)

    figures: dict[str, Any] = {} if prediction is None else dict(prediction.figures)
    if is_local:
        local = cast("LocalCalibration", threshold.source)
        _print_local_thresholds(local, printer)
        notes = [*local.notes, *notes]
        figures |= _local_thresholds_as_json(local)
    if prediction is not None:
        _print_figures(prediction, threshold, printer)
        notes += _filled_sets_notes(prediction)
    printer.line("\n".join(notes))
    print_verdict(threshold.feedback, printer)
    printer.wrote(output)
    printer.json(figures)


def _resolve_inputs(
    calibration: Path | None, data: Path | None, feedback: Path | None, *, is_local: bool
) -> tuple[Path, Path | None]:
    """Return the file of the threshold and that of the outputs, which is then the only argument."""
    if feedback is not None:
        if data is not None:
            raise RobfcpError("--feedback: contains its calibration; pass the outputs alone")
        if not is_local:
            raise RobfcpError(
                "--feedback: a local threshold needs the client's samples; pass --local-data"
            )
        return feedback, calibration
    if calibration is None:
        raise RobfcpError(
            "calibration: is missing; name one, or this site's letter with --feedback"
        )
    return calibration, data


def _check_model(path: Path, calibration: Calibration, model: str | None) -> None:
    """Refuse a calibration that was made for another model than the one that is named."""
    calibrated_model = calibration.summary.model
    if model is None or calibrated_model is None or model == calibrated_model:
        return
    raise RobfcpError(
        f"{path}: was made for model {calibrated_model}, not {model}; its threshold means "
        "nothing for another one: calibrate again"
    )


def _print_local_thresholds(local: LocalCalibration, printer: Printer) -> None:
    """Print the thresholds of each level at one site, and what they prove."""
    for level in local.levels:
        thresholds = (level.peer_threshold, level.local_upper, level.threshold)
        sources = ("federation", "own data", "clipped")
        printer.table(
            f"{local.client} at {level.coverage:g}, {level.n_samples} samples of its own",
            ["from", "threshold", "set size"],
            zip(sources, thresholds, level.mean_set_sizes, strict=True),
        )
        printer.line("\n".join(f"- {statement}" for statement in level.statements))


def _local_thresholds_as_json(local: LocalCalibration) -> dict[str, Any]:
    """Return the thresholds at one site for programs."""
    levels = [{**vars(level), "statements": level.statements} for level in local.levels]
    return {"client": local.client, "levels": levels, "notes": local.notes}


def _print_figures(prediction: Prediction, threshold: LoadedThreshold, printer: Printer) -> None:
    """Print how good sets or intervals are."""
    figures = {
        name: value for name, value in prediction.figures.items() if isinstance(value, float)
    }
    printer.table(
        f"{len(prediction.values)} samples at {threshold.coverage:g}",
        [name.replace("_", " ") for name in figures],
        [list(figures.values())],
    )


def _filled_sets_notes(prediction: Prediction) -> list[str]:
    """Return what is to be said of sets that would have been empty."""
    if "filled" not in prediction.figures:
        return []
    return [
        f"{prediction.figures['filled']:.1%} of the sets were empty and hold their likeliest label "
        "now: the lower bound of coverage holds, its upper one no longer."
    ]


def print_verdict(feedback: ClientFeedback | None, printer: Printer) -> None:
    """Print what a site's letter says of it, where it is more than that it was used."""
    if feedback is not None and (feedback.verdict != "benign" or feedback.diagnosis):
        printer.line(feedback.sentence)


def predict_level(
    threshold: LoadedThreshold,
    outputs: ModelOutputs,
    rng: int,
    *,
    non_empty: bool,
    **groups: Any,
) -> Prediction:
    """Return sets or intervals at one level, and how good they are where labels are there.

    Parameters
    ----------
    threshold : LoadedThreshold
        Whose threshold is used.
    outputs : ModelOutputs
        Predictions for n samples.
    rng : int
        A seed, for randomized scores.
    non_empty : bool
        Whether empty sets get their likeliest label.
    **groups : ndarray or None
        Each sample's group as `groups`, for a threshold of the federation.
    """
    calibration = threshold.calibration
    if calibration.risk is not None:
        return _predict_labels(threshold, outputs)
    if calibration.score is None or isinstance(calibration.score, ClassificationScore):
        return _predict_sets(threshold, outputs, rng, non_empty=non_empty, **groups)
    return _predict_intervals(threshold, outputs, non_empty=non_empty, **groups)


def _at_level(values: NDArray[Any], threshold: LoadedThreshold) -> NDArray[Any]:
    """Return the sets or intervals of the level that is used, of those of all levels."""
    if threshold.calibration.has_multiple_levels:
        return values[:, :, threshold.level_index]
    return values


def _predict_labels(threshold: LoadedThreshold, outputs: ModelOutputs) -> Prediction:
    """Return sets of labels whose risk is controlled."""
    from robfcp import metrics

    all_levels = threshold.calibration.predict_multilabel(outputs.predictions)
    sets = _at_level(all_levels, threshold)
    figures = {"mean_set_size": metrics.mean_set_size(sets)}
    name = cast(Risk, threshold.calibration.risk).name
    if outputs.targets is not None and name in Risk.multilabel:
        losses = Risk(name).multilabel_losses(sets, outputs.targets)
        figures[name] = float(losses.mean())
    return Prediction(sets, figures, sets_as_csv(sets, outputs))


def _predict_intervals(
    threshold: LoadedThreshold, outputs: ModelOutputs, *, non_empty: bool, **groups: Any
) -> Prediction:
    """Return the interval of each sample."""
    from robfcp import metrics

    all_levels = threshold.calibration.predict_interval(
        outputs.predictions, non_empty=non_empty, **groups
    )
    intervals = _at_level(all_levels, threshold)
    figures = {"width": metrics.interval_width(intervals)}
    if outputs.targets is not None:
        figures["coverage"] = metrics.interval_coverage(intervals, outputs.targets)
    # In full: what is read back from the file is the same number.
    lines = [(repr(lower), repr(upper)) for lower, upper in intervals.tolist()]
    return Prediction(intervals, figures, _as_csv(outputs, ["lower", "upper"], lines))


def _predict_sets(
    threshold: LoadedThreshold,
    outputs: ModelOutputs,
    rng: int,
    *,
    non_empty: bool,
    **groups: Any,
) -> Prediction:
    """Return the prediction set of each sample."""
    from robfcp import metrics

    def sets_of(*, non_empty: bool) -> NDArray[np.bool_]:
        """Return the (n, C) sets at the level that is used."""
        all_levels = threshold.source.predict_set(
            outputs.predictions, rng, non_empty=non_empty, **groups
        )
        return _at_level(all_levels, threshold)

    sets = sets_of(non_empty=non_empty)
    figures: dict[str, float] = {}
    if outputs.targets is not None:
        figures |= metrics.summary(sets, outputs.targets)
    figures["mean_set_size"] = metrics.mean_set_size(sets)
    figures["empty_set_rate"] = metrics.empty_set_rate(sets)
    figures["singleton_rate"] = metrics.singleton_rate(sets)
    if non_empty:
        figures["filled"] = metrics.empty_set_rate(sets_of(non_empty=False))
    return Prediction(sets, figures, sets_as_csv(sets, outputs))


def sets_as_csv(sets: NDArray[np.bool_], outputs: ModelOutputs) -> str:
    """Return one line a sample: its set in words, how many labels that are, and a column a class.

    Classes are called by name where they have one, else by number.

    Parameters
    ----------
    sets : (n, C) bool ndarray
        Which labels are in each set.
    outputs : ModelOutputs
        For the names of samples and classes.
    """
    class_names = outputs.names or tuple(str(index) for index in range(sets.shape[1]))
    class_columns = []
    for name in class_names:
        class_columns.append(f"class {name}" if name in _RESERVED_COLUMNS else name)

    lines = _lines_of_sets(sets, class_names)
    return _as_csv(outputs, ["set", "size", *class_columns], lines)


def _lines_of_sets(
    sets: NDArray[np.bool_], class_names: Sequence[str]
) -> Iterator[Sequence[object]]:
    """Yield a line for each set: its labels, how many they are, and 0 or 1 for each class."""
    for is_in_set in sets:
        labels = [class_names[index] for index in np.flatnonzero(is_in_set).tolist()]
        yield [" | ".join(labels), len(labels), *is_in_set.astype(np.int64).tolist()]


def write_sets(suffix: str, values: NDArray[Any], csv_text: str) -> bytes | str:
    """Return the content of a file of sets: the CSV text, the same as Parquet, or the bare array.

    Parameters
    ----------
    suffix : str
        Of the file: .csv, .parquet or .npy.
    values : ndarray
        The sets or intervals.
    csv_text : str
        The same as CSV.
    """
    if suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, values, allow_pickle=False)
        return buffer.getvalue()
    if suffix == ".parquet":
        return _csv_as_parquet(csv_text)
    return csv_text


def _csv_as_parquet(csv_text: str) -> bytes:
    """Return a CSV table as a Parquet file; names of samples and sets stay text."""
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet, string

    text_columns = arrow_csv.ConvertOptions(column_types={"id": string(), "set": string()})
    table = arrow_csv.read_csv(io.BytesIO(csv_text.encode()), convert_options=text_columns)
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _as_csv(
    outputs: ModelOutputs, column_names: Sequence[str], lines: Iterable[Sequence[object]]
) -> str:
    """Return lines as CSV, each after its sample's id, or else its `row` as programs count."""
    id_column = "id"
    ids: Iterable[object] | None = outputs.ids
    if ids is None:
        id_column = "row"
        ids = range(len(outputs.predictions))

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_escape_formula(name) for name in (id_column, *column_names)])
    for sample_id, line in zip(ids, lines, strict=True):
        writer.writerow([_escape_formula(cell) for cell in (str(sample_id), *line)])
    return buffer.getvalue()


def _escape_formula(cell: object) -> object:
    """Return a cell with a mark before text that a spreadsheet would compute."""
    if not isinstance(cell, str) or not cell:
        return cell
    if cell[0] in _FORMULA_STARTS and not is_number(cell):
        return f"'{cell}"
    return cell
