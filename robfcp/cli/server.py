"""What the server types: collect reports, calibrate them, and verify what was made of them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from msgspec import structs
from numpy.typing import NDArray

from robfcp._files import read_bounded
from robfcp._sealed import sha256_of
from robfcp.audit import AuditLog, Discrepancy, find_own_report, verify_calibration
from robfcp.calibration import Calibration, CoverageLevel, coverage_of_alpha
from robfcp.certificates import format_lower, format_upper
from robfcp.cli import console
from robfcp.cli.console import Printer, advanced_option, option, round_option
from robfcp.cli.model_outputs import expected_task
from robfcp.cli.prediction import read_feedback
from robfcp.cli.tables import REPORTS, ROUND, expand_paths, read_outputs
from robfcp.defense import DEFENSES, Consensus, Defense, get_defense
from robfcp.diagnosis import Diagnosis, diagnose
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.fleet import UNNAMED_TABLE, list_report_files, list_unnamed_tables, read_tables
from robfcp.guarantees import Guarantee, get_guarantee, missing_or_rejected_clients
from robfcp.local import ClientFeedback
from robfcp.page import PageInfo
from robfcp.reports import Report, signing
from robfcp.reports.terms import RoundTerms
from robfcp.rounds import RoundFiles, RoundResult, RoundSettings, run_round
from robfcp.scores import ClassificationScore

GUARANTEES = ("marginal", "pac", "label-shift")
LABEL_DISTRIBUTIONS = ("uniform", "any")  # those with a name
DEFAULT_COVERAGE = 0.9
SHOWN_CLASSES = 20
SHOWN_EVENTS = ("round", "client", "verdict", "reason", "result")

# How the files begin that robfcp writes beside reports, and how many bytes of a file say so.
_WRITTEN_BY_SERVER = re.compile(rb'\{"kind":"(calibration|client-feedback|record|monitor)"')
_KIND_BYTES = 40

Reports = Annotated[
    list[Path], typer.Argument(help="Reports of the clients: files, tables or folders.")
]
AuditFile = Annotated[
    Path | None, advanced_option("Append the events of the round to this log.", "--audit")
]


@dataclass(frozen=True)
class RoundOptions:
    """Who may report, and what was agreed."""

    keys: console.Keys = None
    revoked: Annotated[Path | None, round_option("File of revoked public keys, one per line.")] = (
        None
    )
    registered_sizes: Annotated[
        Path | None, round_option("JSON of {client: samples}; other sizes are refused.")
    ] = None
    quorum: Annotated[
        float | None, round_option("Minimum number of valid reports, or their fraction.")
    ] = None
    round: console.Round = None
    terms: console.TermsFile = None
    model: console.Model = None
    score: Annotated[str | None, round_option("Score of the round; others are refused.")] = None
    binning: Annotated[str | None, round_option("Binning of the round; others are refused.")] = None
    dp_epsilon: Annotated[
        float | None, round_option("Privacy budget of the round; others are refused.")
    ] = None
    dp_delta: Annotated[
        float | None, round_option("Privacy delta of the round; others are refused.")
    ] = None
    max_client_share: Annotated[
        float | None, round_option("Cap on one client's fraction of all samples.")
    ] = None

    def terms_with_options(self) -> RoundTerms:
        """Return the terms of their file, joined with the options."""
        return console.load_terms(
            self.terms,
            None,
            round=self.round,
            model=self.model,
            score=self.score,
            binning=self.binning,
            dp_epsilon=self.dp_epsilon,
            dp_delta=self.dp_delta,
        )

    def agreement_texts(self) -> dict[str, str]:
        """Return what was agreed in words, for the log."""
        agreed = {"registered_sizes": self.registered_sizes, "keys": self.keys}
        agreed |= structs.asdict(self.terms_with_options())
        return {name: str(value) for name, value in agreed.items() if value is not None}

    def read(self, files: Any) -> Federation:
        """Return the reports that are as agreed; the others are rejected."""
        # Below 1 it is a share of the reports, else their number.
        quorum = self.quorum if self.quorum is None or self.quorum < 1 else int(self.quorum)
        return Federation.from_files(
            files,
            terms=self.terms_with_options(),
            quorum=quorum,
            keys=self.keys,
            revoked=self.revoked,
            registered_sizes=self.registered_sizes,
            max_client_share=self.max_client_share,
        )


def report_paths(paths: Sequence[Path], printer: Printer) -> list[Path]:
    """Return the files of reports; print which others among them were left aside."""
    for path in paths:
        if path.is_dir():
            for table in list_unnamed_tables(path):
                printer.line(f"{table}: {UNNAMED_TABLE}.")

    report_files = []
    for path in expand_paths(paths, ROUND, list_report_files):
        # What cannot be opened is refused with a reason where it is read.
        kind = None
        with suppress(OSError), path.open("rb") as stream:
            kind = _WRITTEN_BY_SERVER.match(stream.read(_KIND_BYTES))
        if kind is not None:
            printer.line(f"{path}: is a {kind[1].decode()}, not a report; it was left aside.")
        else:
            report_files.append(path)
    return report_files


def collect(
    printer: Printer,
    agreed_on: RoundOptions,
    reports: Reports,
    output: Annotated[Path, option("Parquet file for the valid reports.", "--output", "-o")],
) -> None:
    """Validate reports once, with their signatures, and store the valid ones in one table.

    The table holds no signatures: calibrate from it without --keys.

    [dim]Example: robfcp collect inbox -o round.parquet --round r1[/dim]
    [dim]Example: robfcp collect inbox -o round.parquet --terms round.toml --quorum 0.8[/dim]
    """
    files = report_paths(reports, printer)
    console.prepare_outputs(output, endings=(".parquet",), inputs=files)

    with printer.busy(f"reading {len(files)} reports"):
        federation = agreed_on.read(files)
        federation.save(output)

    signatures = federation.verification.signatures
    printer.line(
        f"{federation.n_clients} valid reports of {len(files)} files "
        f"(signatures: {signatures}) -> {output}"
    )
    printer.list("rejected", [rejected.reason for rejected in federation.rejected_reports])
    printer.list("missing", federation.missing_clients)
    printer.list("resubmitted, counted once", federation.resubmitted_clients)
    printer.json(
        {
            "output": str(output),
            "clients": list(federation.clients),
            "rejected_reports": federation.rejected_reports,
            "missing_clients": federation.missing_clients,
            "signatures": signatures,
        }
    )


@dataclass(frozen=True)
class CalibrateOptions:
    """What a round is asked for, and where its results go."""

    output: console.Output = None
    coverage: Annotated[list[str] | None, option("Target coverage (0.9); may be repeated.")] = None
    alpha: Annotated[list[str] | None, advanced_option("The same as --coverage 1 - ALPHA.")] = None
    guarantee: Annotated[str | None, option("Guarantee of the thresholds", among=GUARANTEES)] = None
    max_malicious: Annotated[
        int | None, option("Malicious clients at most.", "--max-malicious", "-m", min=0)
    ] = None
    heterogeneity: Annotated[float | None, option("How much benign clients may differ.")] = None
    by: Annotated[str | None, option("One threshold for each", among=("class", "group"))] = None
    defense: Annotated[str, option("Which clients are excluded", among=DEFENSES)] = Consensus.name
    html: console.Html = None
    feedback: Annotated[Path | None, option("Folder for the feedback to each client.")] = None
    previous: Annotated[Path | None, option("Calibration of the last round, to compare with.")] = (
        None
    )
    sign: console.Sign = None
    certificate_confidence: Annotated[float, advanced_option("Confidence of certificates.")] = 0.95
    label_distribution: Annotated[
        list[str] | None, advanced_option("Label distribution: uniform, any or flu=0.1,cold=0.9.")
    ] = None
    max_malicious_samples: Annotated[
        int | None, advanced_option("Malicious samples at most (marginal).")
    ] = None
    trusted_data: Annotated[
        Path | None, advanced_option("Trusted data of the server: outputs, or their report.")
    ] = None
    risk_level: Annotated[
        list[str] | None, advanced_option("For reports of losses: the accepted mean loss.")
    ] = None
    n_malicious: Annotated[int | None, advanced_option("Exclude exactly so many clients.")] = None
    exclude: Annotated[
        list[str] | None, round_option("Exclude this client's report; may be repeated.")
    ] = None
    spark: Annotated[str | None, advanced_option("Read tables with Spark: URL of its master.")] = (
        None
    )
    audit: AuditFile = None

    def round_files(self) -> RoundFiles:
        """Return where the results of the round go."""
        return RoundFiles(
            calibration=self.output,
            page=self.html,
            audit_log=self.audit,
            feedback=self.feedback,
            page_info=page_info(),
        )

    def target_coverage(self) -> Any:
        """Return the target coverage, or several of them, of --coverage or --alpha."""
        if self.alpha is None:
            return _scalar_or_list(self.coverage) or DEFAULT_COVERAGE
        if self.coverage is not None:
            raise RobfcpError("--alpha: means --coverage 1 - ALPHA; give one of them, not both")
        return _scalar_or_list(coverage_of_alpha(self.alpha))

    def settings(
        self, federation: Federation, previous: Calibration | None, agreement: Mapping[str, str]
    ) -> RoundSettings:
        """Return what the round is asked for.

        Parameters
        ----------
        federation : Federation
            It says how trusted samples are to be scored.
        previous : Calibration or None
            The calibration of the round before.
        agreement : mapping of str to str
            What was agreed beforehand, for the log.
        """
        guarantee_options = {
            "max_malicious": self.max_malicious,
            "max_malicious_samples": self.max_malicious_samples,
            "label_distribution": _parse_label_distributions(self.label_distribution),
            "heterogeneity": self.heterogeneity,
        }
        guarantee = parse_guarantee(self.guarantee, guarantee_options)
        max_malicious = None
        if guarantee is None:
            # A guarantee says itself how many clients may be malicious.
            max_malicious = self.max_malicious
        return RoundSettings(
            coverage=self.target_coverage(),
            risk_level=_scalar_or_list(self.risk_level),
            by=self.by,
            defense=parse_defense(self.defense, max_malicious, self.n_malicious),
            guarantee=guarantee,
            trusted_report=read_trusted_report(self.trusted_data, federation),
            certificate_confidence=self.certificate_confidence,
            previous=previous,
            agreement=agreement,
        )


def calibrate(
    options: CalibrateOptions, printer: Printer, agreed_on: RoundOptions, reports: Reports
) -> None:
    """Decide which clients are excluded, compute the thresholds and certify their coverage.

    [dim]Example: robfcp calibrate reports/*.json --guarantee marginal -m 5 -o c.json[/dim]
    [dim]Example: robfcp calibrate reports/*.json -o c.json --html page.html[/dim]
    """
    key = console.load_private_key(options.sign)
    # Spark lists the tables of a folder itself.
    report_files = report_paths(reports, printer) if options.spark is None else list(reports)
    files = options.round_files()
    inputs = list(report_files)
    if options.previous is not None:
        inputs.append(options.previous)
    console.prepare_outputs(*files.paths(), inputs=inputs)

    with printer.busy(f"calibrating {len(report_files)} reports"):
        # The order of reading decides which of several mistakes is named.
        previous = None
        if options.previous is not None:
            previous = Calibration.load(options.previous, record=True)
        sources: Any = report_files
        if options.spark is not None:
            sources = read_tables(report_files, options.spark)
        federation = agreed_on.read(sources).without(options.exclude or ())
        settings = options.settings(federation, previous, agreed_on.agreement_texts())
        result = run_round(federation, settings, files, key)
        diagnoses = result.diagnose()
    show_round(result, diagnoses, files, options.previous, printer)


def show_round(
    result: RoundResult,
    diagnoses: Mapping[str, Diagnosis],
    files: RoundFiles,
    previous: Path | None,
    printer: Printer,
) -> None:
    """Print what a round gave and where it was written."""
    print_calibration(result.calibration, diagnoses, printer)
    data = calibration_as_json(result.calibration, diagnoses)
    if result.comparison is not None:
        printer.line("\n  ".join([f"since {previous}:", *result.comparison.lines]))
        data["comparison"] = result.comparison
    if result.evidence is not None:
        printer.line(f"-> {files.calibration}, audit record in {result.evidence.name}")
    printer.wrote(files.page, files.feedback)
    printer.json(data)


def page_info(
    title: str = "", study: str = "", run_by: str = "", date: str | None = None
) -> PageInfo:
    """Return what the page says about itself, with today's date unless another is given."""
    if date is None:
        today = datetime.date.today()
        date = f"{today.day} {today:%B %Y}"
    return PageInfo(title, study, run_by, date)


def read_trusted_report(path: Path | None, federation: Federation) -> Report | None:
    """Return the report of trusted samples in a file, or of the outputs and labels in it."""
    if path is None:
        return None
    if path.suffix.lower() in REPORTS:
        return Report.load(path)
    score = federation.score
    if score is None:
        raise RobfcpError("--trusted-data: the reports name no score; pass a report of the samples")
    sample = read_outputs(path, needs_targets=True, expects=expected_task(score))
    class_names: Any = sample.classes if isinstance(score, ClassificationScore) else None
    return Report.from_predictions(
        "(server)",
        sample.predictions,
        cast(NDArray[Any], sample.targets),
        score=score,
        classes=class_names,
        binning=federation.binning,
        min_cell_count=1,  # nobody else sees it
    )


def parse_guarantee(name: str | None, options: Mapping[str, Any]) -> Guarantee | None:
    """Return the guarantee of a name; refuse options of one where none is named."""
    if name is not None:
        return get_guarantee(name, **options)
    for option_name, value in options.items():
        if option_name != "max_malicious" and value is not None:
            raise RobfcpError(
                f"--{option_name.replace('_', '-')}: belongs to a guarantee; choose one with "
                "--guarantee"
            )
    return None


def parse_defense(name: str, max_malicious: int | None, n_malicious: int | None) -> Defense:
    """Return the defense of a name, with the bound on malicious clients or their exact number."""
    if n_malicious is None:
        return get_defense(name, max_malicious)
    if name != Consensus.name:
        raise RobfcpError(
            f"--n-malicious: belongs to --defense {Consensus.name}; use --max-malicious"
        )
    return Consensus(n_malicious=n_malicious, max_malicious=max_malicious)


def _scalar_or_list(values: list[Any] | None) -> Any:
    """Return one value, several, or none."""
    if values is None or len(values) > 1:
        return values
    return values[0]


def _parse_label_distributions(texts: list[str] | None) -> Any:
    """Return one label distribution or several: 'uniform', 'any' or {name: share}."""
    if not texts:
        return None
    return _scalar_or_list([_parse_label_distribution(text) for text in texts])


def _parse_label_distribution(text: str) -> str | dict[str, float]:
    """Return what stands for a label distribution: its name, or NAME=SHARE,NAME=SHARE."""
    if text in LABEL_DISTRIBUTIONS:
        return text
    fractions = {}
    for pair in text.split(","):
        name, _, fraction = pair.rpartition("=")  # from the right: names may contain "="
        try:
            fractions[name.strip()] = float(fraction)
        except ValueError:
            raise RobfcpError(
                f"--label-distribution: {text!r:.60} is neither uniform, any nor "
                "NAME=FRACTION,NAME=FRACTION"
            ) from None
    return fractions


def print_calibration(
    calibration: Calibration, diagnoses: Mapping[str, Diagnosis], printer: Printer
) -> None:
    """Print a calibration for people.

    Parameters
    ----------
    calibration : Calibration
        With its record.
    diagnoses : mapping of str to Diagnosis
        What the reports of some clients look like.
    printer : Printer
        Where it goes.
    """
    _print_levels(calibration, printer)
    for level in calibration.levels:
        _print_strata(level, printer)
        printer.line(f"For {calibration.target_text(level)}: {level.certificate.statement}.")
    _print_assumptions(calibration, printer)
    printer.line("\n".join(calibration.notes))

    # Nobody reads the names of a million clients: the verdict table has them.
    if not calibration.federation.is_out_of_core:
        _print_clients(calibration, diagnoses, printer)


def _print_levels(calibration: Calibration, printer: Printer) -> None:
    """Print the threshold of each level, and how many clients are included and excluded."""
    summary = calibration.summary
    federation = calibration.federation
    if calibration.is_guaranteed:
        column_names = ["clients not flagged", "clients flagged"]
    else:
        column_names = ["clients included", "clients excluded"]
    rows = []
    for level in calibration.levels:
        rows.append(
            (
                f"{float(level.coverage):g}",
                level.threshold,
                summary.n_benign,
                summary.n_flagged,
                summary.n_rejected,
            )
        )
    printer.table(
        f"{federation.n_clients} clients, {federation.n_samples} samples, "
        f"defense {calibration.defense}",
        ["level", "threshold", *column_names, "reports rejected"],
        rows,
    )


def _print_strata(level: CoverageLevel, printer: Printer) -> None:
    """Print the classes or groups of a level: those not protected first, then the worst."""
    if not level.strata:
        return
    by = level.certificate.by
    strata = sorted(level.strata, key=_worst_first)
    rows = []
    for stratum in strata[:SHOWN_CLASSES]:
        lower = format_lower(stratum.certificate.lower)
        upper = format_upper(stratum.certificate.upper)
        counts = (stratum.n_clients, stratum.n_samples)
        rows.append((stratum.name, stratum.threshold, *counts, lower, upper, stratum.protection))
    printer.table(
        f"by {by} at {float(level.coverage):g}, {len(rows)} of {len(strata)}, worst first",
        [by, "threshold", "clients", "samples", "at least", "at most", ""],
        rows,
    )


def _worst_first(stratum: Any) -> tuple[bool, float]:
    """Return what strata are sorted by: weakly protected and unprotected ones come first."""
    return "protected" not in stratum.protection, stratum.certificate.lower


def _print_assumptions(calibration: Calibration, printer: Printer) -> None:
    """Print the assumptions of the certificates, once where they are the same for all levels."""
    different = dict.fromkeys(level.certificate.assumptions for level in calibration.levels)
    for assumptions in different:
        texts = [assumption.text for assumption in assumptions]
        printer.line("\n- ".join(["Assumptions:", *texts]))


def _print_clients(
    calibration: Calibration, diagnoses: Mapping[str, Diagnosis], printer: Printer
) -> None:
    """Print the excluded, suspicious and missing clients, and the rejected reports."""
    flagged = [diagnoses[client] for client in calibration.flagged_clients]
    suspicious = [diagnosis for diagnosis in diagnoses.values() if diagnosis.is_benign]
    flagged_word = "flagged" if calibration.is_guaranteed else "excluded"
    printer.list(flagged_word, _diagnosis_lines(flagged, calibration.reasons))
    printer.list("suspicious", _diagnosis_lines(suspicious, calibration.reasons))
    printer.list("rejected", [rejected.reason for rejected in calibration.rejected_reports])
    printer.list("missing", calibration.missing_clients)
    printer.list("resubmitted, counted once", calibration.federation.resubmitted_clients)


def _diagnosis_lines(diagnoses: Iterable[Diagnosis], reasons: Mapping[str, str]) -> list[str]:
    """Return a line for each diagnosis: description, recommendation, reason, further clients."""
    by_description: dict[tuple[str, str], list[Diagnosis]] = {}
    for diagnosis in diagnoses:
        key = (diagnosis.description, diagnosis.recommendation)
        by_description.setdefault(key, []).append(diagnosis)

    lines = []
    for first, *further in by_description.values():
        reason = reasons.get(first.client, "")
        line = f"{first.client}: {first.with_defense_reason(reason)}"
        if further:
            clients = [diagnosis.client for diagnosis in further]
            line += f"; likewise {', '.join(clients)}"
        lines.append(line)
    return lines


def calibration_as_json(
    calibration: Calibration, diagnoses: Mapping[str, Diagnosis]
) -> dict[str, Any]:
    """Return the calibration for programs, without the counts."""
    federation = calibration.federation
    data = {
        "levels": [_level_as_json(level) for level in calibration.levels],
        "n_clients": federation.n_clients,
        "n_samples": federation.n_samples,
        "n_malicious": calibration.n_malicious,
        "max_malicious": calibration.max_malicious,
        "rejected_reports": calibration.rejected_reports,
        "missing_clients": calibration.missing_clients,
        "clients_not_covered": missing_or_rejected_clients(federation),
        "notes": calibration.notes,
    }
    if federation.is_out_of_core:
        return data

    flagged = {}
    for client in calibration.flagged_clients:
        flagged[client] = calibration.reasons.get(client, "")
    suspicious = [client for client, diagnosis in diagnoses.items() if diagnosis.is_benign]
    maliciousness = calibration.maliciousness.tolist()
    return {
        **data,
        "benign_clients": calibration.benign_clients,
        "flagged_clients": flagged,
        "suspicious_clients": suspicious,
        "verdicts": calibration.verdicts,
        "diagnoses": diagnoses,
        "maliciousness": dict(zip(federation.clients, maliciousness, strict=True)),
    }


def _level_as_json(level: CoverageLevel) -> dict[str, Any]:
    """Return a level as its file has it, with the certificate's sentence."""
    certificate = level.certificate
    return {
        **structs.asdict(level.to_document()),
        "coverage": float(level.coverage),
        "certificate": {
            **structs.asdict(certificate),
            "is_vacuous": certificate.is_vacuous,
            "statement": certificate.statement,
            "per_client_lower": certificate.per_client_lower,
        },
    }


def verify(
    printer: Printer,
    file: Annotated[
        Path, typer.Argument(help="A calibration, client feedback, or a log (.jsonl).")
    ],
    record: Annotated[Path | None, typer.Argument(help="Its record, if it is elsewhere.")] = None,
    report: Annotated[Path | None, option("A client's report, to be found in the record.")] = None,
    server_key: console.ServerKey = None,
    audit: AuditFile = None,
) -> None:
    """Compute threshold, verdicts and certificates again from the reports and say what differs.

    It also says who was left out and why. A letter says what it tells its site; of a server's log
    every line is checked.

    [dim]Example: robfcp verify calibration.json --report reports/site-03.json[/dim]
    [dim]Example: robfcp verify audit.jsonl[/dim]
    """
    if file.suffix.lower() == ".jsonl":
        show_log(AuditLog(file), printer)
        return
    console.prepare_outputs(audit)
    key = console.parse_public_key(server_key)
    signature = "by the pinned key" if server_key else "not checked"
    feedback = read_feedback(file, key)
    if feedback is not None:
        show_feedback(feedback, file, signature, printer)
        return

    with printer.busy("computing everything again"):
        calibration = Calibration.load(file, key, record=True if record is None else record)
        discrepancies = verify_calibration(calibration)
        if report is not None:
            own_report = Report.from_json(signing.unwrap(read_bounded(report)), str(report))
            discrepancies += find_own_report(calibration, own_report)
    digest = sha256_of(calibration.to_json())
    if audit is not None:
        result = f"{len(discrepancies)} differences" if discrepancies else "as its record gives it"
        AuditLog(audit).write("file verified", digest=digest, result=result)
    show_verification(calibration, discrepancies, file, report, signature, printer)


def show_log(log: AuditLog, printer: Printer) -> None:
    """Print the events of a server's log, whose chain of digests is checked by reading it."""
    events = list(log.events())
    rows = []
    for event in events:
        details = [str(event[key]) for key in SHOWN_EVENTS if event.get(key) is not None]
        rows.append((event.get("time"), event.get("event"), " ".join(details)))
    printer.table(f"{len(events)} events, the digests match", ["time", "event", "about"], rows)
    if events:
        last_digest = events[-1]["line_digest"]
        printer.line(f"The last line's digest, to be noted elsewhere: {last_digest}")
    printer.json(events)


def show_feedback(feedback: ClientFeedback, file: Path, signature: str, printer: Printer) -> None:
    """Print what the feedback in a file tells its client."""
    printer.line(
        f"{feedback.sentence}\n"
        f"The letter is whole (signature: {signature}); its record stays at the server."
    )
    printer.json(
        {
            "feedback": str(file),
            "signature": signature,
            "client": feedback.client,
            "verdict": feedback.verdict,
            "diagnosis": feedback.diagnosis,
            "recommendation": feedback.recommendation,
            "reason": feedback.reason,
        }
    )


def show_verification(
    calibration: Calibration,
    discrepancies: Sequence[Discrepancy],
    file: Path,
    report: Path | None,
    signature: str,
    printer: Printer,
) -> None:
    """Print what differs from a calibration's record; raise where anything does."""
    digest = sha256_of(calibration.to_json())
    diagnoses = diagnose(calibration)
    printer.line("\n".join(discrepancy.line for discrepancy in discrepancies))
    printer.json(
        {
            "calibration": str(file),
            "signature": signature,
            "differences": discrepancies,
            "digest": digest,
            **calibration_as_json(calibration, diagnoses),
        }
    )
    if discrepancies:
        raise RobfcpError(
            f"{file}: {len(discrepancies)} of its statements are not what its record gives "
            f"(first: {discrepancies[0].line}); do not use it"
        )

    origin = "That these are the sites' reports each site can check with --report."
    if report is not None:
        origin = f"The report in {report} is among them, as it was sent."
    printer.line(
        f"Everything is as the {calibration.federation.n_clients} reports in the record give it "
        f"(signature: {signature}). {origin}\n"
        f"Digest of the file without key and signature, as page and log have it: {digest}"
    )
    print_calibration(calibration, diagnoses, printer)
