"""What a site types for a round: a key, the round's terms, and its report."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from msgspec.structs import asdict
from numpy.typing import NDArray

from robfcp._validation import abbreviate, check_client_name
from robfcp.binning import Binning
from robfcp.cli import console
from robfcp.cli.console import Printer, advanced_option, option, privacy_option, round_option
from robfcp.cli.model_outputs import ModelOutputs, ReaderOptions, expected_task
from robfcp.cli.tables import read_outputs
from robfcp.errors import RobfcpError, RobfcpWarning
from robfcp.privacy import Privacy, PrivacyLedger, logistic_binning, parse_binning
from robfcp.reports import (
    DEFAULT_MIN_CELL_COUNT,
    MIN_SAMPLES_PER_CLASS,
    Report,
    StratifiedCounts,
    counts_in_lowest_bins,
    signing,
    single_stratum,
    stratum_labels,
)
from robfcp.reports import terms as round_terms
from robfcp.scores import (
    BUILTIN_SCORES,
    ClassificationScore,
    Risk,
    Score,
    get_score,
    scores_with_nan,
)

BINNINGS = ("default", "extended", "open-ended", "uniform:BINS", "logistic:BINS")
DEFAULT_SCORE = "lac"
PRIVATE_N_BINS = 32  # of private reports of scores in [0, 1] unless another binning is named
MAX_UNSCORED = 0.1  # fraction of samples without a score from which a private report warns
PRICED_COVERAGE = 0.9  # at which the cost of coarsening is stated
FEW_BINS = 100  # with fewer, the binning may cost more than coarsening


def keygen(
    printer: Printer,
    client: Annotated[str, typer.Argument(help="Registered name of this client.")],
    output: Annotated[Path, option("File for the private key.", "--output", "-o")] = Path(
        "robfcp.key"
    ),
) -> None:
    """Generate a private key for this client, and print its entry for the server's registry.

    [dim]Example: robfcp keygen site-3 -o site-3.key[/dim]
    [dim]Example: robfcp keygen server -o server.key[/dim]
    """
    check_client_name(client)
    console.prepare_outputs(output)
    public_key = signing.generate_key(output)
    printer.line(f"# Private key -> {output} (keep it here). For the server's registry.toml:\n")
    printer.line(f"[{json.dumps(client)}]\nkey = {json.dumps(public_key)}")
    printer.json({"client": client, "key": public_key, "private_key": str(output)})


def terms(
    printer: Printer,
    file: Annotated[
        Path, typer.Argument(help="round.toml: round, model, score, binning, dp-epsilon.")
    ],
    sign: console.Sign = None,
    server_key: console.ServerKey = None,
) -> None:
    """Show the terms of a round; the server signs them, the clients verify the signature.

    [dim]Example: robfcp terms round.toml --sign server.key[/dim]
    [dim]Example: robfcp terms round.toml[/dim]
    """
    agreed_terms = round_terms.read_terms(file, console.parse_public_key(server_key))
    terms_as_json = {name: value for name, value in asdict(agreed_terms).items() if value}
    printer.table(str(file), ["term", "value"], list(terms_as_json.items()))
    if sign is not None:
        signature_path = round_terms.sign_terms(file, signing.load_key(sign))
        printer.line(f"-> {signature_path}")
    printer.json(terms_as_json)


@dataclass(frozen=True)
class ReportOptions:
    """What a report is of, what was agreed for its round, and how much of it is seen."""

    score: Annotated[str | None, option("Score of the round, or lac", among=BUILTIN_SCORES)] = None
    classes: Annotated[str | None, option("Names of the probability columns, as a,b,c.")] = None
    stratify_by_class: Annotated[
        bool | None,
        option("Report counts by class, or no labels.", "--stratify-by-class/--withhold-labels"),
    ] = None
    group: Annotated[str | None, option("Report counts by the groups in this column instead.")] = (
        None
    )
    round: console.Round = None
    model: console.Model = None
    binning: Annotated[str | None, round_option("Binning of the scores", among=BINNINGS)] = None
    terms: console.TermsFile = None
    server_key: console.ServerKey = None
    sign: console.Sign = None
    dp_epsilon: Annotated[
        float | None, privacy_option("Privacy budget: add differentially private noise.")
    ] = None
    ledger: Annotated[Path | None, privacy_option("Privacy ledger; --dp-epsilon needs it.")] = None
    dataset: Annotated[str | None, privacy_option("Name of the data in the ledger.")] = None
    min_class_count: Annotated[
        int, privacy_option("Merge classes with fewer samples into '(other)'.", min=1)
    ] = 1
    min_cell_count: Annotated[
        int | None,
        privacy_option("Minimum number of samples of each cell (5); 1: exact counts.", min=1),
    ] = None
    groups: Annotated[str | None, advanced_option("Names of all groups, as a,b,c.")] = None
    include_all_labels: Annotated[
        bool,
        advanced_option(
            "Report scores of all labels too: the server then knows mean set sizes. Not private."
        ),
    ] = False
    risk: Annotated[
        str | None, advanced_option("Report a loss instead of scores", among=Risk.multilabel)
    ] = None
    randomized: Annotated[bool | None, advanced_option("Randomize the score, where it can be.")] = (
        None
    )
    seed: console.Seed = 0

    def terms_with_options(self) -> round_terms.RoundTerms:
        """Return the terms of their file, joined with the options."""
        return console.load_terms(
            self.terms,
            self.server_key,
            round=self.round,
            model=self.model,
            score=self.score,
            binning=self.binning,
            dp_epsilon=self.dp_epsilon,
            min_cell_count=self.min_cell_count,
        )

    def get_score(self, name: str) -> Score:
        """Return the score of a name, randomized or not where that is stated."""
        if self.randomized is None:
            return get_score(name)
        return get_score(name, randomized=self.randomized)

    def check(self, client: str, privacy: Privacy | None) -> None:
        """Refuse a name that no client may have, and options that do not go together."""
        check_client_name(client)
        if self.groups is not None and self.group is None:
            raise RobfcpError("--groups: names belong to a column; pass --group COLUMN too")
        if self.min_class_count > 1 and self.group is None and not self.stratify_by_class:
            raise RobfcpError(
                "--min-class-count: merges classes in counts by class; pass --stratify-by-class too"
            )
        if self.include_all_labels and self.risk is not None:
            raise RobfcpError(
                "--include-all-labels: only scores of classes make sets; leave it out"
            )
        if privacy is None and self.ledger is not None:
            raise RobfcpError("--ledger: only private reports are recorded; give --dp-epsilon")
        if privacy is not None and self.ledger is None:
            raise RobfcpError(
                "--dp-epsilon: needs --ledger FILE, where a site records its spending"
            )


@dataclass(frozen=True)
class NoiseOptions:
    """The noise of a private report, beside its epsilon."""

    dp_delta: Annotated[
        float, privacy_option("Delta of (epsilon, delta)-privacy; 0: Laplace noise.")
    ] = 0.0
    neighbors: Annotated[
        str, privacy_option("substitution, or add-remove, which protects the sample size.")
    ] = "substitution"
    max_samples_per_patient: Annotated[
        int,
        privacy_option("Maximum number of samples of one patient, who is protected as a whole."),
    ] = 1
    n_rounds: Annotated[int, privacy_option("Number of reports that share the budget.")] = 1


@dataclass(frozen=True)
class ReportResult:
    """A client's report, and what is to be said of it.

    Attributes
    ----------
    report : Report
        What is sent.
    exact : Report
        The same without cells of five, which stays at the client; the report itself if private.
    score : Score
        The score that the file's outputs are for.
    privacy : Privacy, optional
        What the report's noise gives.
    notes : list of str
        What is to be said of the file.
    """

    report: Report
    exact: Report
    score: Score
    privacy: Privacy | None
    notes: list[str]


def report(
    options: ReportOptions,
    printer: Printer,
    reading: ReaderOptions,
    noise: NoiseOptions,
    data: Annotated[Path, typer.Argument(help="Outputs with labels: .csv, .npz or .parquet.")],
    client: Annotated[str, option("Registered name of this client.", "--client", "-c")],
    output: Annotated[Path, option("File for the report.", "--output", "-o")],
) -> None:
    """Turn the calibration outputs of one client into a report to send to the server.

    [dim]Example: robfcp report site-3.csv --client site-3 -o reports/site-3.json[/dim]
    [dim]Example: robfcp report site-3.csv -c site-3 --score aps --round r1 -o site-3.json[/dim]
    """
    agreed_terms = options.terms_with_options()
    console.prepare_outputs(output, options.ledger)
    with printer.busy("making the report"):
        result = _make_report(data, client, agreed_terms, options, reading, noise, printer)
        if result.privacy is not None and options.ledger is not None:
            # What is not written is not paid for.
            ledger = PrivacyLedger(options.ledger, options.dataset or data.name)
            ledger.charge(result.privacy, agreed_terms.round)
        result.report.save(output, console.load_private_key(options.sign))

    size = output.stat().st_size
    printer.line(f"{client}: {result.report.n_samples} samples in {size} bytes -> {output}")
    printer.line("\n".join(result.notes))
    _print_strata(result, options, printer)
    _print_what_is_seen(result, options, printer)
    report_as_json = {
        "client": client,
        "n_samples": result.report.n_samples,
        "binning": result.report.binning.digest,
    }
    if options.risk is None:
        report_as_json["score"] = result.score.name
    else:
        report_as_json["risk"] = options.risk
    printer.json(
        {
            **report_as_json,
            "output": str(output),
            "privacy": result.privacy,
            "min_cell_count": result.report.min_cell_count,
        }
    )


def _make_report(
    data: Path,
    client: str,
    agreed_terms: round_terms.RoundTerms,
    options: ReportOptions,
    reading: ReaderOptions,
    noise: NoiseOptions,
    printer: Printer,
) -> ReportResult:
    """Return the report of the outputs in a file.

    The order of the steps decides which of several mistakes is named.
    """
    score = options.get_score(agreed_terms.score or DEFAULT_SCORE)
    privacy = _parse_privacy(agreed_terms, noise)
    outputs = _read_labeled_outputs(data, score, privacy, agreed_terms, options, reading)
    if outputs.score:
        score = options.get_score(outputs.score)
        printer.line(f"{data}: holds numbers, not classes: --score {score.name}.")
    binning = _choose_binning(agreed_terms, score, privacy)
    options.check(client, privacy)

    arguments: dict[str, Any] = {
        "round": agreed_terms.round,
        "model": agreed_terms.model,
        "privacy": privacy,
    }
    make: Callable[..., Report]
    if options.risk is not None:
        make = partial(Report.from_multilabel, risk=options.risk)
    else:
        make = Report.from_predictions
        arguments |= _score_arguments(client, outputs, score, options)
        if privacy is not None:
            _note_unscored_samples(outputs, score)

    sample = (client, outputs.predictions, cast(NDArray[Any], outputs.targets))
    min_cell_count = agreed_terms.min_cell_count or DEFAULT_MIN_CELL_COUNT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RobfcpWarning)  # of rough counts, which are printed
            report_to_send = make(
                *sample, binning=binning, min_cell_count=min_cell_count, **arguments
            )
            exact = report_to_send
            if privacy is None:
                exact = make(*sample, binning=binning, min_cell_count=1, **arguments)
    except RobfcpError as error:
        raise RobfcpError(f"{data}: {error}") from error
    return ReportResult(report_to_send, exact, score, privacy, outputs.notes)


def _parse_privacy(agreed_terms: round_terms.RoundTerms, noise: NoiseOptions) -> Privacy | None:
    """Return the privacy of a report; None where no epsilon was agreed or given."""
    if agreed_terms.dp_delta is not None:
        noise = replace(noise, dp_delta=agreed_terms.dp_delta)
    if agreed_terms.dp_epsilon is not None:
        return Privacy(
            agreed_terms.dp_epsilon,
            delta=noise.dp_delta,
            neighbors=cast(Any, noise.neighbors),
            max_samples_per_patient=noise.max_samples_per_patient,
            n_rounds=noise.n_rounds,
        )
    defaults = vars(NoiseOptions())
    for name, value in vars(noise).items():
        if value != defaults[name]:
            option_name = name.replace("_", "-")
            raise RobfcpError(f"--{option_name}: needs --dp-epsilon; give it, or omit this option")
    return None


def _read_labeled_outputs(
    data: Path,
    score: Score,
    privacy: Privacy | None,
    agreed_terms: round_terms.RoundTerms,
    options: ReportOptions,
    reading: ReaderOptions,
) -> ModelOutputs:
    """Return the outputs of a file with their labels."""
    is_private = privacy is not None
    class_names = None
    if options.classes is not None:
        class_names = tuple(_split_names(options.classes))
    reading = replace(
        reading,
        classes=class_names,
        guess_task=agreed_terms.score is None and not is_private,
        # One refused sample of a private report would tell of it: such samples become NaN.
        allow_invalid=is_private,
    )
    return read_outputs(
        data,
        needs_targets=True,
        columns=[options.group],
        expects=expected_task(score, options.risk),
        reading=reading,
    )


def _split_names(text: str) -> list[str]:
    """Return the names in a text that separates them by commas."""
    return [name.strip() for name in text.split(",")]


def _choose_binning(
    agreed_terms: round_terms.RoundTerms, score: Score, privacy: Privacy | None
) -> Binning:
    """Return the binning that was agreed, else the score's default, or a coarse one if private."""
    if agreed_terms.binning is not None:
        return parse_binning(agreed_terms.binning)
    default = score.default_binning()
    if privacy is None:
        return default
    if tuple(default.edges[[0, -1]]) != (0.0, 1.0):
        raise RobfcpError(
            f"--binning: noise would drown the {default.n_bins} bins that {score.name} has by "
            "default; name a coarse one, or make one with robfcp.recommend_binning(prior=...)"
        )
    return logistic_binning(PRIVATE_N_BINS)


def _score_arguments(
    client: str, outputs: ModelOutputs, score: Score, options: ReportOptions
) -> dict[str, Any]:
    """Return what `Report.from_predictions` takes beside `Report.from_multilabel`."""
    groups = None
    stratum_names: Any = None
    if options.group is not None:
        groups = outputs.columns[options.group]
        if options.groups is not None:
            stratum_names = _split_names(options.groups)
    elif isinstance(score, ClassificationScore):
        stratum_names = outputs.classes
    return {
        "score": score,
        "classes": stratum_names,
        "groups": groups,
        "stratify_by_class": options.stratify_by_class,
        "include_all_labels": options.include_all_labels,
        "rng": console.derive_seed(options.seed, "report", client),
        "min_class_count": options.min_class_count,
    }


def _note_unscored_samples(outputs: ModelOutputs, score: Score) -> None:
    """Note for the client alone where many samples of a private report have no score."""
    targets = cast(NDArray[Any], outputs.targets)
    scores = scores_with_nan(score, outputs.predictions, targets, 0)
    if np.isnan(scores).mean() > MAX_UNSCORED:
        outputs.notes.append(
            "More than a tenth of the samples have no score and count as the worst: look "
            "whether labels and columns are right (this line is for you, not to be sent)."
        )


def _print_strata(result: ReportResult, options: ReportOptions, printer: Printer) -> None:
    """Print what the report says of classes or groups."""
    report = result.report
    if report.strata is not None:
        printer.line(
            f"Counts by {report.strata.by} are reported; --withhold-labels withholds them."
        )
        n_strata = report.strata.n_strata
        is_rough = report.n_samples < MIN_SAMPLES_PER_CLASS * n_strata and report.min_cell_count > 1
        if is_rough:
            printer.line(
                f"{report.n_samples} samples of {n_strata} strata are fewer than "
                f"{MIN_SAMPLES_PER_CLASS} of each: coarsened counts by {report.strata.by} are "
                "inaccurate."
            )
        return
    if report.class_totals is not None:
        printer.line(
            "The number of samples of each class is reported to the nearest "
            f"{report.min_cell_count}, without their scores; --stratify-by-class reports counts by "
            "class, --withhold-labels reports no labels."
        )
        return
    if options.stratify_by_class is None and result.privacy is None and report.min_cell_count > 1:
        is_of_classes = isinstance(result.score, ClassificationScore) and options.risk is None
        if is_of_classes:
            printer.line(
                "No class has enough samples to be stated: no comparison by class, no thresholds "
                "by class."
            )
        return
    if isinstance(result.score, ClassificationScore) and options.risk is None:
        printer.line("Labels are withheld: no thresholds by class, no comparison by class.")


def _print_what_is_seen(result: ReportResult, options: ReportOptions, printer: Printer) -> None:
    """Print what a reader of the report sees of single samples, and what hiding them costs."""
    if result.privacy is not None:
        printer.line(f"The report is {result.privacy.statement}.")
        return
    if result.report.min_cell_count == 1:
        visible = "scores" if result.report.strata is None else "labels and scores"
        printer.line(f"The counts are exact: a reader sees {visible} of single samples.")
        return
    hidden = _hidden_samples_text(result.report, options)
    printer.line(f"{hidden} {_coarsening_cost_text(result)}")


def _hidden_samples_text(sent_report: Report, options: ReportOptions) -> str:
    """Return what a coarsened report shows of single samples."""
    min_cell_count = sent_report.min_cell_count
    if sent_report.n_samples < min_cell_count:
        return (
            f"Fewer than {min_cell_count} samples all count in the last bin: the report says how "
            "many they are, and nothing of their scores."
        )
    rare = _rare_strata(sent_report.strata, min_cell_count)
    if sent_report.strata is not None and rare:
        return (
            f"Fewer than {min_cell_count} samples: {sent_report.strata.by} {abbreviate(rare)}. "
            "A reader sees how many, and nothing of their scores; --withhold-labels withholds both."
        )
    if options.include_all_labels:
        return (
            f"Every cell but the last bin's holds at least {min_cell_count} samples, and of "
            f"--include-all-labels at least {min_cell_count} labels, which may be of one sample."
        )
    return (
        f"Every cell but the last bin's holds at least {min_cell_count} samples: no count is that "
        "of a single one."
    )


def _rare_strata(strata: StratifiedCounts | None, min_cell_count: int) -> list[str]:
    """Return the classes or groups that have samples, but fewer than a cell is to hold."""
    if strata is None:
        return []
    rare = []
    for name, n_samples in zip(
        stratum_labels(strata.names), strata.stratum_sizes.tolist(), strict=True
    ):
        if 0 < n_samples < min_cell_count:
            rare.append(name)
    return rare


def _coarsening_cost_text(result: ReportResult) -> str:
    """Return how far a coarsened report is from its exact counts at 90%.

    A binning of few bins moves scores up as well, whether counts are coarsened or not.
    """
    exact_cdf = np.cumsum(result.exact.counts) / result.exact.counts.sum()
    exact_bin = int(np.searchsorted(exact_cdf, PRICED_COVERAGE))

    # The bounds that a server has, and the bin that it takes at their midpoints.
    report = result.report
    lowest = counts_in_lowest_bins(
        report.strata or single_stratum(report.counts),
        report.min_cell_count * report.counts_per_sample,
    )
    lower = np.cumsum(report.counts)
    upper = np.cumsum(lowest)
    bin_index = int(np.searchsorted((lower + upper) / 2, PRICED_COVERAGE * lower[-1]))

    n_bins = result.report.binning.n_bins
    if bin_index == exact_bin and n_bins < FEW_BINS:
        return (
            f"The cost of a binning of only {n_bins} bins: the threshold for 90% of these counts "
            f"holds {exact_cdf[exact_bin]:.1%} of them."
        )
    return (
        "The cost of coarsening: the threshold for 90% of these counts holds "
        f"{exact_cdf[bin_index]:.1%} of them, where exact counts would give "
        f"{exact_cdf[exact_bin]:.1%}, and the server knows it to hold "
        f"{lower[bin_index] / lower[-1]:.1%} to {upper[bin_index] / lower[-1]:.1%}, of which "
        "guarantees take the lower."
    )
