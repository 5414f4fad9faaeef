"""What a site types: a key, the round's terms, its report, and prediction sets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer
from msgspec.structs import asdict
from numpy.typing import NDArray

from robfcp._files import read_bounded, write_atomically
from robfcp._validation import abbreviate, check_client_name
from robfcp.cli import console
from robfcp.cli.console import Printer, advanced_option, option, privacy_option, round_option
from robfcp.cli.model_outputs import ModelOutputs, ReaderOptions, expected_task
from robfcp.cli.table_files import is_number
from robfcp.cli.tables import read_outputs
from robfcp.errors import RobfcpError
from robfcp.privacy import Privacy, PrivacyLedger, logistic_binning, parse_binning
from robfcp.reports import Report, StratifiedCounts, signing, stratum_labels
from robfcp.reports import terms as round_terms
from robfcp.scores import (
    BUILTIN_SCORES,
    ClassificationScore,
    Risk,
    get_score,
    scores_with_nan,
)

if TYPE_CHECKING:
    from robfcp.calibration import Calibration
    from robfcp.local import ClientFeedback
    from robfcp.local._threshold import LocalCalibration

BINNINGS = ("default", "extended", "open-ended", "uniform:BINS", "logistic:BINS")
PRIVATE_N_BINS = 32  # of private reports of scores in [0, 1] unless told
OUTPUT_SUFFIXES = (".csv", ".npy", ".parquet")
_OWN = ("id", "row", "set", "size")
_FORMULA = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"  # what spreadsheets compute, full-width ones too


def keygen(
    printer: Printer,
    client: Annotated[str, typer.Argument(help="This site's registered name.")],
    output: Annotated[Path, option("Where the key goes.", "--output", "-o")] = Path("robfcp.key"),
) -> None:
    """Make a private key for this site and print the lines the server's registry needs.

    [dim]Example: robfcp keygen site-3 -o site-3.key[/dim]
    [dim]Example: robfcp keygen server -o server.key[/dim]
    """
    check_client_name(client)
    console.prepare_outputs(output)
    public = signing.generate_key(output)
    printer.line(f"# Private key -> {output} (keep it here). For the server's registry.toml:\n")
    printer.line(f"[{json.dumps(client)}]\nkey = {json.dumps(public)}")
    printer.json({"client": client, "key": public, "private_key": str(output)})


def terms(
    printer: Printer,
    file: Annotated[Path, typer.Argument(help="round.toml: round, model, score, grid, epsilon.")],
    sign: console.Sign = None,
    server_key: console.ServerKey = None,
) -> None:
    """Show the terms of a round; the server signs them, the sites check that it has.

    [dim]Example: robfcp terms round.toml --sign server.key[/dim]
    [dim]Example: robfcp terms round.toml[/dim]
    """
    found = round_terms.read_terms(file, console.parse_public_key(server_key))
    stated = {name: value for name, value in asdict(found).items() if value}
    printer.table(str(file), ["what", "agreed"], list(stated.items()))
    if sign is not None:
        printer.line(f"-> {round_terms.sign_terms(file, signing.load_key(sign))}")
    printer.json(stated)


@dataclass(frozen=True)
class NoiseOptions:
    """The noise of a private report, beside its epsilon."""

    delta: Annotated[float, privacy_option("Of (epsilon, delta)-privacy; 0: Laplace noise.")] = 0.0
    neighbours: Annotated[str, privacy_option("Or add-remove: hides how many samples.")] = (
        "substitution"
    )
    samples_per_patient: Annotated[
        int, privacy_option("Most samples of one person; protects all.")
    ] = 1
    rounds: Annotated[int, privacy_option("How many reports share the budget.")] = 1


def report(
    printer: Printer,
    reading: ReaderOptions,
    noise: NoiseOptions,
    data: Annotated[Path, typer.Argument(help="Outputs with labels: .csv, .npz or .parquet.")],
    client: Annotated[str, option("This site's registered name.", "--client", "-c")],
    output: Annotated[Path, option("Where the report goes.", "--output", "-o")],
    score: Annotated[
        str | None, option("The score agreed on, or lac", among=BUILTIN_SCORES)
    ] = None,
    classes: Annotated[str | None, option("The probability columns as a,b,c.")] = None,
    by_class: Annotated[bool | None, option("Keep counts by class.", "--by-class/--pooled")] = None,
    group: Annotated[str | None, option("Keep counts by this column instead.")] = None,
    round: console.Round = None,
    model: console.Model = None,
    grid: Annotated[str | None, round_option("The bins of scores", among=BINNINGS)] = None,
    terms: console.TermsFile = None,
    server_key: console.ServerKey = None,
    sign: console.Sign = None,
    epsilon: Annotated[float | None, privacy_option("Add noise: differential privacy.")] = None,
    ledger: Annotated[
        Path | None, privacy_option("File of what was spent; --epsilon needs it.")
    ] = None,
    dataset: Annotated[str | None, privacy_option("The data's name in the ledger.")] = None,
    least: Annotated[
        int, privacy_option("Merge classes with fewer samples into '(other)'.", min=1)
    ] = 1,
    fine: Annotated[bool, privacy_option("Show cells of fewer than five.", "--fine")] = False,
    groups: Annotated[str | None, advanced_option("All groups there are, as a,b,c.")] = None,
    set_sizes: Annotated[bool, advanced_option("Tell the size of sets too; not private.")] = False,
    risk: Annotated[
        str | None, advanced_option("A loss, not scores", among=Risk.multilabel)
    ] = None,
    randomized: Annotated[
        bool | None, advanced_option("Randomise the score, if it can be.")
    ] = None,
    seed: console.Seed = 0,
) -> None:
    """Turn one site's calibration outputs into a report file to send to the server.

    [dim]Example: robfcp report site-3.csv --client site-3 -o reports/site-3.json[/dim]
    [dim]Example: robfcp report site-3.csv -c site-3 --score aps --round r1 -o site-3.json[/dim]
    """
    told = console.load_terms(
        terms, server_key, round=round, model=model, score=score, grid=grid, epsilon=epsilon
    )
    console.prepare_outputs(output, ledger)
    with printer.busy("making the report"):
        drawn = {} if randomized is None else {"randomized": randomized}
        rule = get_score(told.score or "lac", **drawn)
        if told.delta is not None:
            noise = replace(noise, delta=told.delta)
        if told.epsilon is None and noise != NoiseOptions():
            raise RobfcpError("--delta: privacy options need --epsilon; give it or drop them")
        stated = cast(Any, vars(noise))
        privacy = None if told.epsilon is None else Privacy(told.epsilon, **stated)
        named = None if classes is None else tuple(name.strip() for name in classes.split(","))
        # one refused sample of a private report would tell of it: they become NaN
        guess = told.score is None and privacy is None
        reading = replace(
            reading, classes=named, guess_task=guess, allow_invalid=privacy is not None
        )
        outputs = read_outputs(
            data,
            needs_targets=True,
            columns=[group],
            expects=expected_task(rule, risk),
            reading=reading,
        )
        if outputs.score:
            rule = get_score(outputs.score, **drawn)
            printer.line(f"{data}: holds numbers, not classes: --score {rule.name}.")
        edges = rule.default_binning() if told.grid is None else parse_binning(told.grid)
        if privacy is not None and told.grid is None:
            if tuple(edges.edges[[0, -1]]) != (0.0, 1.0):
                raise RobfcpError(
                    f"--grid: noise would drown the {edges.n_bins} bins that {rule.name} has by "
                    "default; name a coarse one, "
                    "or make one with robfcp.recommend_binning(prior=...)"
                )
            edges = logistic_binning(PRIVATE_N_BINS)
        check_client_name(client)
        if groups is not None and group is None:
            raise RobfcpError("--groups: names go with a column; pass --group COLUMN too")
        if set_sizes and risk is not None:
            raise RobfcpError("--set-sizes: only scores of classes make sets; leave it out")
        if privacy is None and ledger is not None:
            raise RobfcpError("--ledger: only private reports are recorded; give --epsilon")
        if privacy is not None and ledger is None:
            raise RobfcpError("--epsilon: needs --ledger FILE, where a site records its spending")
        names: Any = outputs.classes if isinstance(rule, ClassificationScore) else None
        if group is not None:
            names = None if groups is None else [name.strip() for name in groups.split(",")]
        context: Any = {"round": told.round, "model": told.model, "privacy": privacy}
        sample = client, outputs.predictions, cast(NDArray[Any], outputs.targets)
        if risk is None:
            context |= {
                "score": rule,
                "classes": names,
                "groups": None if group is None else outputs.columns[group],
                "stratify_by_class": by_class,
                "include_all_labels": set_sizes,
                "rng": console.derive_seed(seed, "report", client),
                "min_class_count": least,
            }
            if privacy is not None and np.isnan(scores_with_nan(rule, *sample[1:], 0)).mean() > 0.1:
                outputs.notes.append(
                    "More than a tenth of the samples have no score and count as the worst: look "
                    "whether labels and columns are right (this line is for you, not to be sent)."
                )
        make = (
            Report.from_predictions if risk is None else partial(Report.from_multilabel, risk=risk)
        )
        try:
            made = make(*sample, binning=edges, fine=fine, **context)
            exact = made if privacy else make(*sample, binning=edges, fine=True, **context)
        except RobfcpError as error:
            raise RobfcpError(f"{data}: {error}") from error
        if privacy is not None and ledger is not None:  # what is not written is not paid for
            PrivacyLedger(ledger, dataset or data.name).charge(privacy, told.round)
        made.save(output, None if sign is None else signing.load_key(sign))
    size = output.stat().st_size
    printer.line(f"{client}: {made.n_samples} samples in {size} bytes -> {output}")
    printer.line("\n".join(outputs.notes))
    rare: list[str] = []
    if made.strata is not None:
        sizes = zip(
            stratum_labels(made.strata.names), made.strata.stratum_sizes.tolist(), strict=True
        )
        rare = [name for name, n in sizes if 0 < n < StratifiedCounts.MIN_CELL_COUNT]
        printer.line(f"Counts by {made.strata.by} are kept; --pooled withholds them.")
    elif by_class is False or exact.strata is not None:
        few = "" if by_class is False else " (fewer than 25 samples a class; --by-class keeps them)"
        printer.line(f"Labels are withheld{few}: no thresholds by class, no comparison by class.")
    if privacy is not None:
        printer.line(f"The report is {privacy.statement}.")
    elif made.n_small_cells:
        printer.line(
            f"{made.n_small_cells} cells hold fewer than five samples: a reader sees "
            f"{'scores' if made.strata is None else 'labels and scores'} of single ones."
        )
    else:
        shown, true = (np.cumsum(one.counts) / one.counts.sum() for one in (made, exact))
        at = [int(np.searchsorted(side, 0.9)) for side in (shown, true)]
        coarse = at[0] == at[1] and edges.n_bins < 100
        price = f"a grid of only {edges.n_bins} bins" if coarse else "cells of five"
        kept = "Nobody sees single ones: no cell but the last bin's holds fewer than five samples."
        if rare:
            kept = f"Fewer than five samples: {made.strata and made.strata.by} {abbreviate(rare)}. "
            kept += "How many shows, no score of theirs does; --pooled withholds it."
        if set_sizes:
            kept = "--set-sizes shows the scores of all labels one by one, of single samples too."
        printer.line(
            f"{kept} The price of {price}: what holds 90% by its counts holds "
            f"{true[at[0]]:.0%} of them; with --fine {true[at[1]]:.0%}."
        )
    said = {"client": client, "n_samples": made.n_samples, "grid": made.grid.digest}
    said |= {"score": rule.name} if risk is None else {"risk": risk}
    printer.json(
        {**said, "output": str(output), "privacy": privacy, "thin_cells": made.n_small_cells}
    )


@dataclass(frozen=True)
class ThresholdOptions:
    """The threshold that a site uses: of which level, and the federation's or its own."""

    level: Annotated[str | None, option("A level, 0.95 say, if not the first.", "--level")] = None
    local: Annotated[Path | None, option("This site's outputs: own threshold.", "--local")] = None

    def read(
        self, path: Path, reading: ReaderOptions, key: str | None = None, seed: int = 0
    ) -> tuple[
        Calibration,
        Calibration | LocalCalibration,
        int,
        ClientFeedback | None,
    ]:
        """The calibration in a file or a site's letter, what holds the threshold that is used, the
        level's place, and the letter."""
        from robfcp.calibration import Calibration

        letter = read_feedback(path, key)
        if letter is not None:
            loaded = letter.calibration
        else:
            # What the other clients' reports prove for this client stands in the record.
            loaded = Calibration.load(path, key, record=self.local is not None)
        known = [float(one.coverage) for one in loaded.levels]
        try:
            place = 0 if self.level is None else known.index(float(self.level))
        except ValueError:
            raise RobfcpError(
                f"--level: {self.level!r} is none of the calibration's levels "
                f"{', '.join(map(str, known))}; take one of them, or calibrate with --coverage"
            ) from None
        if self.local is None:
            return loaded, loaded, place, letter
        found, rng = (
            read_outputs_for(loaded, self.local, reading),
            console.derive_seed(seed, "localise"),
        )
        own = found.predictions, cast(NDArray[Any], found.targets), rng
        if letter is not None:
            return loaded, letter.calibrate_locally(*own), place, letter
        from robfcp.local._threshold import calibrate_unseen_client

        return loaded, calibrate_unseen_client(loaded, *own), place, None


def read_feedback(path: Path, key: str | None = None) -> ClientFeedback | None:
    """The letter in a file; None where it holds something else."""
    from robfcp._sealed import file_kind
    from robfcp.calibration import CalibrationDocument

    if file_kind(read_bounded(path, CalibrationDocument.max_bytes)) != "letter":
        return None
    from robfcp.local import ClientFeedback  # with what servers have: only predicting needs none

    return ClientFeedback.load(path, key)


def read_outputs_for(
    calibration: Calibration, data: Path, reading: ReaderOptions, labelled: bool = True, **more: Any
) -> ModelOutputs:
    """Outputs for a calibration, in its order of classes; with their truth unless told."""
    kind = expected_task(calibration.score, calibration.risk)
    how = replace(reading, classes=calibration.classes)
    found = read_outputs(data, needs_targets=labelled, expects=kind, reading=how, **more)
    if kind == "values" and calibration.score is not None:  # refused here, by the file's name
        p, truth = found.predictions, found.targets
        try:
            calibration.score(p, np.zeros(p.shape[:1]) if truth is None or not labelled else truth)
        except RobfcpError as error:
            raise RobfcpError(f"{data}: {error}") from None
    return found


def predict(
    printer: Printer,
    reading: ReaderOptions,
    used: ThresholdOptions,
    calibration: Annotated[Path | None, typer.Argument(help="Left out with --letter.")] = None,
    data: Annotated[Path | None, typer.Argument(help=".csv, .npz, .npy or .parquet.")] = None,
    output: Annotated[
        Path | None, option("The sets: .csv, .parquet or .npy.", "--output", "-o")
    ] = None,
    letter: Annotated[Path | None, option("This site's letter; needs --local.")] = None,
    non_empty: Annotated[bool, option("Likeliest label into empty sets.", "--non-empty")] = False,
    group: Annotated[
        str | None, option("The column or npz array with each sample's group.")
    ] = None,
    model: console.Model = None,
    server_key: console.ServerKey = None,
    seed: console.Seed = 0,
) -> None:
    """Turn model outputs into prediction sets (or intervals); with labels, say how well they cover.

    With --letter and --local by the site's own threshold: the federation's for its label mix, from
    the letter that the server wrote it, clipped to its own samples.

    [dim]Example: robfcp predict calibration.json test.csv -o sets.csv[/dim]
    [dim]Example: robfcp predict new.csv --letter letter.json --local own.csv -o sets.csv[/dim]
    """
    if letter is not None:
        if data is not None:
            raise RobfcpError("--letter: holds its calibration; name no other one, only outputs")
        if used.local is None:
            raise RobfcpError("--letter: a site's own threshold needs its samples; pass --local")
        calibration, data = letter, calibration
    if calibration is None:
        raise RobfcpError("calibration: is missing; name one, or this site's letter with --letter")
    if data is None and (used.local is None or output is not None or non_empty):
        raise RobfcpError("data: is missing; name the outputs to predict from")
    console.prepare_outputs(output, endings=OUTPUT_SUFFIXES)
    figures: dict[str, Any] = {}
    notes: list[str] = []
    with printer.busy("predicting"):
        key = console.parse_public_key(server_key)
        loaded, watched, place, told = used.read(calibration, reading, key, seed)
        made_for = loaded.summary.model
        if model is not None and made_for is not None and model != made_for:
            raise RobfcpError(
                f"{calibration}: was made for model {made_for}, not {model}; its threshold means "
                "nothing for another one: calibrate again"
            )
        if data is not None:
            outputs = read_outputs_for(loaded, data, reading, labelled=False, columns=[group])
            notes += outputs.notes
            groups = {} if used.local else {"groups": outputs.columns.get(group or "")}
            how: Any = {"level": place, "rng": console.derive_seed(seed, "predict"), **groups}
            found, figures, text = _predict_level(
                watched, loaded, outputs, non_empty=non_empty, **how
            )
            if output is not None:
                write_atomically(output, write_sets(output.suffix.lower(), found, text))
    if used.local is not None:
        own: Any = watched
        for one in own.levels:
            title = f"{own.client} at {one.coverage:g}, {one.n} samples of its own"
            limits = one.federation, one.own, one.threshold
            rows = zip(("federation", "own data", "clipped"), limits, one.set_sizes, strict=True)
            printer.table(title, ["from", "threshold", "set size"], rows)
            printer.line("\n".join(f"- {statement}" for statement in one.statements))
        notes = [*own.notes, *notes]
        levels = [{**vars(one), "statements": one.statements} for one in own.levels]
        figures |= {"client": own.client, "levels": levels, "remarks": own.notes}
    if data is not None:
        shown = {name: value for name, value in figures.items() if isinstance(value, float)}
        printer.table(
            f"{len(found)} samples at {float(loaded.levels[place].coverage):g}",
            [name.replace("_", " ") for name in shown],
            [list(shown.values())],
        )
    if "filled" in figures:
        notes.append(
            f"{figures['filled']:.1%} of the sets were empty and hold their likeliest label now: "
            "the lower bound of coverage holds, its upper one no longer."
        )
    printer.line("\n".join(notes))
    print_verdict(told, printer)
    printer.wrote(output)
    printer.json(figures)


def print_verdict(letter: ClientFeedback | None, printer: Printer) -> None:
    """What a site's letter says of it, where it is more than that it was used."""
    if letter is not None and (letter.verdict != "trusted" or letter.diagnosis):
        printer.line(letter.sentence)


def _predict_level(
    watched: Calibration | LocalCalibration,
    calibration: Calibration,
    outputs: ModelOutputs,
    *,
    level: int,
    non_empty: bool,
    rng: int,
    **how: Any,
) -> tuple[NDArray[Any], dict[str, Any], str]:
    """Sets or intervals at one level, how good they are, and the same as CSV."""
    from robfcp import metrics

    p, truth, score = outputs.predictions, outputs.targets, calibration.score

    def at_level(found: NDArray[Any]) -> NDArray[Any]:
        return found[:, :, level] if calibration.has_multiple_levels else found

    if calibration.risk is not None:
        sets = at_level(calibration.predict_multilabel(p))
        figures, name = {"set_size": metrics.mean_set_size(sets)}, calibration.risk.name
        if truth is not None and name in Risk.multilabel:
            figures[name] = float(Risk(name).multilabel_losses(sets, truth).mean())
        return sets, figures, sets_as_csv(sets, outputs)
    if score is not None and not isinstance(score, ClassificationScore):
        ends = at_level(calibration.predict_interval(p, non_empty=non_empty, **how))
        figures = {"width": metrics.interval_width(ends)}
        if truth is not None:
            figures["coverage"] = metrics.interval_coverage(ends, truth)
        lines = zip(*(map(repr, end.tolist()) for end in ends.T), strict=True)
        return ends, figures, _csv(outputs, ["low", "high"], lines)
    sets = at_level(watched.predict_set(p, rng, non_empty=non_empty, **how))
    figures = {} if truth is None else dict(metrics.summary(sets, truth))
    figures |= {"set_size": metrics.mean_set_size(sets), "empty": metrics.empty_set_rate(sets)}
    figures["singletons"] = metrics.singleton_rate(sets)
    if non_empty:
        figures["filled"] = metrics.empty_set_rate(at_level(watched.predict_set(p, rng, **how)))
    return sets, figures, sets_as_csv(sets, outputs)


def sets_as_csv(sets: NDArray[np.bool_], outputs: ModelOutputs) -> str:
    """One line a sample: its set in words, how many labels that are, and a column a class.

    Classes are called by name where they have one, else by number.
    """
    shown = outputs.names or tuple(map(str, range(sets.shape[1])))
    heads = [f"class {name}" if name in _OWN else name for name in shown]
    lines = (
        [" | ".join(shown[c] for c in np.flatnonzero(row)), int(row.sum()), *map(int, row)]
        for row in sets
    )
    return _csv(outputs, ["set", "size", *heads], lines)


def write_sets(kind: str, sets: NDArray[Any], text: str) -> bytes | str:
    """The CSV text, the same as Parquet, or the bare array."""
    buffer = io.BytesIO()
    if kind == ".npy":
        np.save(buffer, sets, allow_pickle=False)
    if kind != ".parquet":
        return buffer.getvalue() or text
    from pyarrow import csv, parquet, string

    names = csv.ConvertOptions(column_types=dict.fromkeys(("id", "set"), string()))
    parquet.write_table(csv.read_csv(io.BytesIO(text.encode()), convert_options=names), buffer)
    return buffer.getvalue()


def _csv(outputs: ModelOutputs, header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """The lines, each after its sample's own id, or else its `row` as programs count, from 0."""
    first, ids = "id", outputs.ids
    if ids is None:
        first, ids = "row", np.arange(len(outputs.predictions))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_escape_formula(name) for name in (first, *header)])
    named = zip(ids, lines, strict=True)
    writer.writerows([_escape_formula(cell) for cell in (str(name), *line)] for name, line in named)
    return buffer.getvalue()


def _escape_formula(cell: object) -> object:
    """The cell, with a mark before text that a spreadsheet would compute."""
    formula = isinstance(cell, str) and cell[:1] in _FORMULA and not is_number(cell)
    return f"'{cell}" if cell and formula else cell
