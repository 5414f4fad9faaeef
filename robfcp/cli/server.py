"""What the server types: collect reports, calibrate them, and verify what was made of them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer
from msgspec import structs
from numpy.typing import NDArray

from robfcp import audit as auditing
from robfcp._files import read_bounded
from robfcp._sealed import sha256_of
from robfcp.calibration import Calibration
from robfcp.calibration import _calibrate as run
from robfcp.certificates import format_lower, format_upper
from robfcp.cli import console
from robfcp.cli.client import read_feedback
from robfcp.cli.console import Printer, advanced_option, option, round_option
from robfcp.cli.tables import REPORTS, ROUND, expand_paths, expected_task, read_outputs
from robfcp.defense import DEFENSES, Consensus, Defense, get_defense
from robfcp.diagnosis import Diagnosis, diagnose
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.fleet import list_report_files, read_tables, write_verdict_table
from robfcp.guarantees import Guarantee, clients_not_covered, get_guarantee
from robfcp.local import save_feedback
from robfcp.monitoring import compare_rounds
from robfcp.page import PageInfo, write_html
from robfcp.reports import Report, signing
from robfcp.reports.terms import RoundTerms
from robfcp.scores import ClassificationScore

VERDICTS = ".verdicts.parquet"
GUARANTEES = ("marginal", "pac", "label-shift")
SHOWN_CLASSES = 20
SHOWN_EVENTS = ("round", "client", "verdict", "reason", "result")

_OURS = re.compile(rb'\{"kind":"(calibration|letter|record|monitor)"')

Reports = Annotated[list[Path], typer.Argument(help="The sites' reports: files, tables, folders.")]
AuditFile = Annotated[Path | None, advanced_option("Append what happened to this log.", "--audit")]


@dataclass(frozen=True)
class RoundOptions:
    """Who may report, and what was agreed."""

    keys: console.Keys = None
    revoked: Annotated[Path | None, round_option("Public keys that count no more, one a line.")] = (
        None
    )
    sizes: Annotated[Path | None, round_option("JSON of {site: samples}: refuse other sizes.")] = (
        None
    )
    quorum: Annotated[
        float | None, round_option("Least number of valid reports, or their share.")
    ] = None
    round: console.Round = None
    terms: console.TermsFile = None
    model: console.Model = None
    score: Annotated[str | None, round_option("Refuse reports of another score.")] = None
    grid: Annotated[str | None, round_option("Refuse reports on another grid.")] = None
    epsilon: Annotated[float | None, round_option("Refuse reports of another epsilon.")] = None
    delta: Annotated[float | None, round_option("Refuse reports of another delta.")] = None
    max_share: Annotated[float | None, round_option("Refuse a larger share of all samples.")] = None

    def terms_with_options(self) -> RoundTerms:
        """The terms, from their file and besides."""
        names = ("round", "model", "score", "grid", "epsilon", "delta")
        own = {name: getattr(self, name) for name in names}
        return console.load_terms(self.terms, None, **own)

    def read(self, files: Any) -> Federation:
        """The reports that are as agreed; the others are its faults."""
        quorum = self.quorum if self.quorum is None or self.quorum < 1 else int(self.quorum)
        return Federation.from_files(
            files,
            terms=self.terms_with_options(),
            quorum=quorum,
            keys=self.keys,
            revoked=self.revoked,
            registered_sizes=self.sizes,
            max_client_share=self.max_share,
        )


def report_paths(paths: Sequence[Path], printer: Printer) -> list[Path]:
    """The files of reports; calibrations and their like among them are said, and are no site's."""
    found = []
    for path in expand_paths(paths, ROUND, list_report_files):
        with suppress(OSError), path.open("rb") as stream:
            if ours := _OURS.match(stream.read(40)):
                printer.line(f"{path}: is a {ours[1].decode()}, not a report; it was left aside.")
                continue
        found.append(path)
    return found


def collect(
    printer: Printer,
    agreed_on: RoundOptions,
    reports: Reports,
    output: Annotated[Path, option("Parquet file for the valid reports.", "--output", "-o")],
) -> None:
    """Check signatures, round and duplicates once, and keep the valid reports in one table.

    It holds no signatures: calibrate it without --keys; its certificate says they were not checked.

    [dim]Example: robfcp collect inbox -o round.parquet --round r1[/dim]
    [dim]Example: robfcp collect inbox -o round.parquet --terms round.toml --quorum 0.8[/dim]
    """
    files = report_paths(reports, printer)
    console.prepare_outputs(output, endings=(".parquet",), inputs=files)
    with printer.busy(f"reading {len(files)} reports"):
        found = agreed_on.read(files)
        found.save(output)
    signatures = found.verification.signatures
    said = {
        "faulty": found.rejected_reports,
        "missing": found.missing_clients,
        "signatures": signatures,
    }
    many = f"{found.n_clients} valid reports of {len(files)} files"
    printer.line(f"{many} (signatures: {signatures}) -> {output}")
    printer.list("faulty", [fault.reason for fault in found.rejected_reports])
    printer.list("missing", found.missing_clients)
    printer.list("the same report twice, counted once", found.resubmitted_clients)
    printer.json({"output": str(output), "clients": list(found.clients), **said})


def calibrate(
    printer: Printer,
    agreed_on: RoundOptions,
    reports: Reports,
    output: console.Output = None,
    coverage: Annotated[list[str] | None, option("Wanted coverage (0.9); may be repeated.")] = None,
    promise: Annotated[
        str | None, option("What must hold though some lie", among=GUARANTEES)
    ] = None,
    liars: Annotated[int | None, option("The most sites that may lie.", min=0)] = None,
    alike: Annotated[float | None, option("How much honest sites may differ.")] = None,
    by: Annotated[str | None, option("A threshold for each", among=("class", "group"))] = None,
    defence: Annotated[str, option("Whom to trust", among=DEFENSES)] = Consensus.name,
    html: console.Html = None,
    letters: Annotated[Path | None, option("Folder for a letter to each site.")] = None,
    previous: Annotated[Path | None, option("Last round's calibration: say what changed.")] = None,
    sign: console.Sign = None,
    confidence: Annotated[float, advanced_option("With which certificates hold.")] = 0.95,
    mix: Annotated[
        list[str] | None, advanced_option("Label mix: uniform, any or flu=0.1,cold=0.9.")
    ] = None,
    samples: Annotated[
        int | None, advanced_option("Most samples liars may hold (marginal).")
    ] = None,
    anchor: Annotated[
        Path | None, advanced_option("Trusted samples: outputs, or a report of them.")
    ] = None,
    risk: Annotated[
        list[str] | None, advanced_option("Of reports of losses: the mean accepted.")
    ] = None,
    exactly: Annotated[int | None, advanced_option("Consensus leaves out exactly so many.")] = None,
    exclude: Annotated[
        list[str] | None, round_option("Set this client's report aside; may be repeated.")
    ] = None,
    spark: Annotated[str | None, advanced_option("Read tables by Spark: its master's URL.")] = None,
    audit: AuditFile = None,
) -> None:
    """Find whom to trust, take one threshold, and say what is proved about it.

    [dim]Example: robfcp calibrate reports/*.json --promise marginal --liars 5 -o c.json[/dim]
    [dim]Example: robfcp calibrate reports/*.json -o c.json --html page.html --letters letters[/dim]
    """
    key = None if sign is None else signing.load_key(sign)
    files = list(reports) if spark is not None else report_paths(reports, printer)
    folder = None if letters is None else letters / "any"
    inputs = files if previous is None else [*files, previous]
    console.prepare_outputs(output, html, audit, folder, inputs=inputs)
    with printer.busy(f"calibrating {len(files)} reports"):
        before = None if previous is None else Calibration.load(previous, record=True)
        federation = agreed_on.read(files if spark is None else read_tables(files, spark))
        federation = federation.without(exclude or ())
        told = {
            "liars": liars,
            "samples": samples,
            "mix": _parse_label_distributions(mix),
            "alike": alike,
        }
        held = parse_guarantee(promise, told)
        calibration = run.calibrate(
            federation,
            _scalar_or_list(coverage) or 0.9,
            risk_level=_scalar_or_list(risk),
            by=by,
            defense=parse_defense(defence, None if held else liars, exactly),
            guarantee=held,
            trusted_report=None if anchor is None else read_trusted_report(anchor, federation),
            certificate_confidence=confidence,
        )
        # Before anything is written, as it reads the record of the earlier calibration.
        comparison = None if before is None else compare_rounds(before, calibration)
        kept = calibration.with_record(None) if federation.is_out_of_core else calibration
        if (
            output is not None and federation.is_out_of_core
        ):  # in place of a record nobody could hold
            verdicts = calibration.benign_mask, calibration.reasons
            write_verdict_table(federation, *verdicts, output.with_suffix(VERDICTS))
        if output is not None:
            kept.save(output, key)
        if audit is not None:
            terms = structs.asdict(agreed_on.terms_with_options())
            known = {"sizes": agreed_on.sizes, "keys": agreed_on.keys, **terms}
            said: Any = {name: str(value) for name, value in known.items() if value is not None}
            record = calibration.require_record()
            said["settings"] = {
                "defence": record.defense,
                "parameters": record.parameters,
                "promise": msgspec.to_builtins(record.guarantee),
            }
            auditing.log_calibration(auditing.AuditLog(audit), calibration, said)
        if html is not None:
            write_html(calibration, html, info=page_info())
        if letters is not None:
            save_feedback(calibration, letters, key)
        found = {} if federation.is_out_of_core else diagnose(calibration)
    print_calibration(calibration, found, printer)
    data = calibration_as_json(calibration, found)
    if comparison is not None:
        printer.line("\n  ".join([f"since {previous}:", *comparison.lines]))
        data["comparison"] = comparison
    if output is not None:
        beside = (
            output.with_suffix(VERDICTS) if federation.is_out_of_core else kept.record_path(output)
        )
        printer.line(f"-> {output}, what it rests on in {beside.name}")
    printer.wrote(html, letters)
    printer.json(data)


def page_info(
    title: str = "", study: str = "", run_by: str = "", date: str | None = None
) -> PageInfo:
    """What the page says about itself, with today's date unless another is given."""
    today = datetime.date.today()
    return PageInfo(title, study, run_by, f"{today.day} {today:%B %Y}" if date is None else date)


def read_trusted_report(path: Path, federation: Federation) -> Report:
    """The report of trusted samples in a file, or of the model outputs and labels in it."""
    if path.suffix.lower() in REPORTS:
        return Report.load(path)
    score = federation.score
    if score is None:
        raise RobfcpError("--anchor: the reports name no score; pass a report of the samples")
    sample = read_outputs(path, needs_targets=True, expects=expected_task(score))
    names: Any = sample.classes if isinstance(score, ClassificationScore) else None
    outputs = sample.predictions, cast(NDArray[Any], sample.targets)
    told = {"score": score, "classes": names, "binning": federation.binning}
    return Report.from_predictions("(server)", *outputs, fine=True, **told)  # it stays here


def parse_guarantee(name: str | None, told: Mapping[str, Any]) -> Guarantee | None:
    """The promise that words name, as Python takes it."""
    if name is not None:
        return get_guarantee(name, **told)
    beside = next((one for one, value in told.items() if one != "liars" and value is not None), "")
    if beside:
        raise RobfcpError(f"--{beside}: belongs to a promise; state which one with --promise")
    return None


def parse_defense(name: str, liars: int | None, exactly: int | None) -> Defense:
    """The defence that words name, as Python takes it."""
    if exactly is None:
        return get_defense(name, liars)
    if name != Consensus.name:
        raise RobfcpError(f"--exactly: is of --defence {Consensus.name}; use --liars")
    return Consensus(exactly=exactly)


def _scalar_or_list(texts: list[str] | None) -> Any:
    """One level, several, or none."""
    return texts if texts is None or len(texts) > 1 else texts[0]


def _parse_label_distributions(texts: list[str] | None) -> Any:
    """One label mix or several: 'uniform', 'any' or NAME=SHARE,NAME=SHARE."""
    found: list[Any] = []
    for text in texts or ():
        pairs = [pair.rpartition("=") for pair in text.split(",")]
        try:
            named = {name.strip(): float(share) for name, _, share in pairs}
        except ValueError:
            if text not in ("uniform", "any"):
                raise RobfcpError(
                    f"--mix: {text!r:.60} is neither uniform, any nor NAME=SHARE,NAME=SHARE"
                ) from None
        found.append(text if text in ("uniform", "any") else named)
    return _scalar_or_list(found or None)


def print_calibration(
    calibration: Calibration, found: Mapping[str, Diagnosis], printer: Printer
) -> None:
    """The calibration for people; of many classes those that are least protected and worst."""
    federation = calibration.federation
    told = calibration.summary
    many = told.n_trusted, told.n_flagged, told.n_faulty
    heads = ("not flagged", "flagged") if calibration.is_guaranteed else ("used", "left out")
    printer.table(
        f"{federation.n_clients} sites, {federation.n_samples} samples, "
        f"defence {calibration.defense}",
        ["level", "threshold", *(f"sites {head}" for head in heads), "reports refused"],
        [(f"{float(level.coverage):g}", level.threshold, *many) for level in calibration.levels],
    )
    for level in calibration.levels:
        at, by = f"{float(level.coverage):g}", level.certificate.by
        worst = sorted(
            level.strata, key=lambda one: ("protected" not in one.protection, one.certificate.lower)
        )
        if worst:
            printer.table(
                f"by {by} at {at}, {min(SHOWN_CLASSES, len(worst))} of {len(worst)}, worst first",
                [by, "threshold", "sites", "samples", "at least", "at most", ""],
                [
                    (one.name, one.threshold, one.n_clients, one.n_samples, *span, one.protection)
                    for one in worst[:SHOWN_CLASSES]
                    for span in [
                        (format_lower(one.certificate.lower), format_upper(one.certificate.upper))
                    ]
                ],
            )
        printer.line(f"For {calibration.target_text(level)}: {level.certificate.statement}.")
    for assumed in dict.fromkeys(level.certificate.assumptions for level in calibration.levels):
        printer.line("\n- ".join(["It rests on:", *(one.text for one in assumed)]))
    printer.line("\n".join(calibration.notes))
    if federation.is_out_of_core:
        return

    def grouped(sites: Iterable[Diagnosis]) -> list[str]:
        """What is seen, what to do, the defence's reason, and who else looks like that."""
        alike: dict[tuple[str, str], list[Diagnosis]] = {}
        for one in sites:
            alike.setdefault((one.finding, one.advice), []).append(one)
        lines = []
        for first, *others in alike.values():
            reason = calibration.reasons.get(first.client, "")
            line = f"{first.client}: {first.with_defense_reason(reason)}"
            likewise = ", ".join(one.client for one in others)
            lines.append(line + (f"; likewise {likewise}" if likewise else ""))
        return lines

    out = "flagged" if calibration.is_guaranteed else "left out"
    printer.list(out, grouped(found[client] for client in calibration.flagged_clients))
    printer.list("look at", grouped(one for one in found.values() if one.trusted))
    printer.list("faulty", [fault.reason for fault in calibration.rejected_reports])
    printer.list("missing", calibration.missing_clients)
    printer.list("the same report twice, counted once", calibration.federation.resubmitted_clients)


def calibration_as_json(calibration: Calibration, found: Mapping[str, Diagnosis]) -> dict[str, Any]:
    """The calibration for programs, without the counts."""
    federation = calibration.federation
    data = {
        "levels": [
            {
                **structs.asdict(level.to_document()),
                "coverage": float(level.coverage),
                "certificate": {
                    **structs.asdict(level.certificate),
                    "vacuous": level.certificate.is_vacuous,
                    "statement": level.certificate.statement,
                    "at_every_site": level.certificate.per_client_lower,
                },
            }
            for level in calibration.levels
        ],
        "n_clients": federation.n_clients,
        "n_samples": federation.n_samples,
        "liars": calibration.n_malicious,
        "liars_stated": calibration.n_malicious_given,
        "faulty": calibration.rejected_reports,
        "missing": calibration.missing_clients,
        "outside": clients_not_covered(federation),
        "remarks": calibration.notes,
    }
    if federation.is_out_of_core:
        return data
    return data | {
        "trusted": calibration.benign_clients,
        "flagged": {
            name: calibration.reasons.get(name, "") for name in calibration.flagged_clients
        },
        "diagnoses": found,
        "oddness": dict(zip(federation.clients, calibration.maliciousness.tolist(), strict=True)),
    }


def verify(
    printer: Printer,
    file: Annotated[Path, typer.Argument(help="A calibration, a letter, or a log (.jsonl).")],
    record: Annotated[Path | None, typer.Argument(help="Its record, if not beside it.")] = None,
    report: Annotated[Path | None, option("A site's own report, to be found in it.")] = None,
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
        events = list(auditing.AuditLog(file).events())
        rows = [
            (event.get("time"), event.get("event"), " ".join(map(str, about)))
            for event in events
            for about in [[event[key] for key in SHOWN_EVENTS if event.get(key) is not None]]
        ]
        printer.table(f"{len(events)} events, the chain holds", ["time", "event", "about"], rows)
        if events:
            printer.line(
                f"The last line's digest, to be noted elsewhere: {events[-1]['line_digest']}"
            )
        printer.json(events)
        return
    console.prepare_outputs(audit)
    key = console.parse_public_key(server_key)
    signature = "by the pinned key" if server_key else "not checked"
    letter = read_feedback(file, key)
    if letter is not None:
        whole = f"The letter is whole (signature: {signature}); its record stays at the server."
        printer.line(f"{letter.sentence}\n{whole}")
        told = ("client", "verdict", "diagnosis", "advice", "reason")
        said = {name: getattr(letter, name) for name in told}
        printer.json({"letter": str(file), "signature": signature, **said})
        return
    with printer.busy("computing everything again"):
        loaded = Calibration.load(file, key, record=True if record is None else record)
        found = auditing.verify_calibration(loaded)
        if report is not None:
            own = Report.from_json(signing.unwrap(read_bounded(report)), str(report))
            found += auditing.find_own_report(loaded, own)
    digest = sha256_of(loaded.to_json())
    if audit is not None:
        result = f"{len(found)} differences" if found else "as its record gives it"
        auditing.AuditLog(audit).write("file verified", digest=digest, result=result)
    printer.line("\n".join(difference.line for difference in found))
    sites = diagnose(loaded)
    said = {"calibration": str(file), "signature": signature, "differences": found}
    printer.json({**said, "digest": digest, **calibration_as_json(loaded, sites)})
    if found:
        raise RobfcpError(
            f"{file}: {len(found)} of its statements are not what its record gives "
            f"(first: {found[0].line}); do not use it"
        )
    whose = "That these are the sites' reports each site can check with --report."
    if report is not None:
        whose = f"The report in {report} is among them, as it was sent."
    printer.line(
        f"Everything is as the {loaded.federation.n_clients} reports in the record give it "
        f"(signature: {signature}). {whose}\n"
        f"Digest of the file without key and signature, as page and log have it: {digest}"
    )
    print_calibration(loaded, sites, printer)
