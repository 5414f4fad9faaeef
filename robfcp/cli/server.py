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

from robfcp.calibration import Calibration, file_format
from robfcp.calibration import audit as auditing
from robfcp.calibration import calibrate as run
from robfcp.calibration import letters as letter_files
from robfcp.certificate import at_least, at_most
from robfcp.cli import console
from robfcp.cli.console import Printer, agreed, basic, expert
from robfcp.cli.input_tables import REPORTS, ROUND, expanded, expects, read_outputs
from robfcp.cli.site import read_letter
from robfcp.defence import DEFENCES, Consensus, Defence, named_defence
from robfcp.diagnosis import Diagnosis, diagnose
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, read_tables, report_files, write_verdicts
from robfcp.files import read_limited
from robfcp.guarantees import Promise, named_promise, outside_of
from robfcp.monitoring import compare_rounds
from robfcp.page import About, write_page
from robfcp.report import Report, agreement, signing
from robfcp.scores import ClassificationScore

VERDICTS = ".verdicts.parquet"
PROMISES = ("marginal", "pac", "label-shift")
SHOWN_CLASSES = 20
SHOWN_EVENTS = ("round", "client", "verdict", "reason", "result")

_OURS = re.compile(rb'\{"kind":"(calibration|letter|record|monitor)"')

Reports = Annotated[list[Path], typer.Argument(help="The sites' reports: files, tables, folders.")]
AuditFile = Annotated[Path | None, expert("Append what happened to this log.", "--audit")]


@dataclass(frozen=True)
class Agreement:
    """Who may report, and what was agreed."""

    keys: console.Keys = None
    revoked: Annotated[Path | None, agreed("Public keys that count no more, one a line.")] = None
    sizes: Annotated[Path | None, agreed("JSON of {site: samples}: refuse other sizes.")] = None
    quorum: Annotated[float | None, agreed("Least number of valid reports, or their share.")] = None
    round: console.Round = None
    terms: console.TermsFile = None
    model: console.Model = None
    score: Annotated[str | None, agreed("Refuse reports of another score.")] = None
    grid: Annotated[str | None, agreed("Refuse reports on another grid.")] = None
    epsilon: Annotated[float | None, agreed("Refuse reports of another epsilon.")] = None
    delta: Annotated[float | None, agreed("Refuse reports of another delta.")] = None
    max_share: Annotated[float | None, agreed("Refuse a larger share of all samples.")] = None

    def stated(self) -> agreement.Terms:
        """The terms, from their file and besides."""
        names = ("round", "model", "score", "grid", "epsilon", "delta")
        own = {name: getattr(self, name) for name in names}
        return console.agreed_terms(self.terms, None, **own)

    def read(self, files: Any) -> Federation:
        """The reports that are as agreed; the others are its faults."""
        as_it_is = ("keys", "revoked", "sizes", "max_share")
        known: Any = {name: getattr(self, name) for name in as_it_is}
        quorum = self.quorum if self.quorum is None or self.quorum < 1 else int(self.quorum)
        return Federation.read(files, terms=self.stated(), quorum=quorum, **known)


def files_of_sites(paths: Sequence[Path], printer: Printer) -> list[Path]:
    """The files of reports; calibrations and their like among them are said, and are no site's."""
    found = []
    for path in expanded(paths, ROUND, report_files):
        with suppress(OSError), path.open("rb") as stream:
            if ours := _OURS.match(stream.read(40)):
                printer.line(f"{path}: is a {ours[1].decode()}, not a report; it was left aside.")
                continue
        found.append(path)
    return found


def collect(
    printer: Printer,
    agreed_on: Agreement,
    reports: Reports,
    output: Annotated[Path, basic("Parquet file for the valid reports.", "--output", "-o")],
) -> None:
    """Check signatures, round and duplicates once, and keep the valid reports in one table.

    It holds no signatures: calibrate it without --keys; its certificate says they were not checked.

    [dim]Example: robfcp collect inbox -o round.parquet --round r1[/dim]
    [dim]Example: robfcp collect inbox -o round.parquet --terms round.toml --quorum 0.8[/dim]
    """
    files = files_of_sites(reports, printer)
    console.prepare(output, endings=(".parquet",), inputs=files)
    with printer.busy(f"reading {len(files)} reports"):
        found = agreed_on.read(files)
        found.save(output)
    signatures = found.checked.signatures
    said = {"faulty": found.faulty, "missing": found.missing, "signatures": signatures}
    many = f"{found.n_clients} valid reports of {len(files)} files"
    printer.line(f"{many} (signatures: {signatures}) -> {output}")
    printer.list("faulty", [fault.reason for fault in found.faulty])
    printer.list("missing", found.missing)
    printer.list("the same report twice, counted once", found.repeated)
    printer.json({"output": str(output), "clients": list(found.ids), **said})


def calibrate(
    printer: Printer,
    agreed_on: Agreement,
    reports: Reports,
    output: console.Output = None,
    coverage: Annotated[list[str] | None, basic("Wanted coverage (0.9); may be repeated.")] = None,
    promise: Annotated[str | None, basic("What must hold though some lie", among=PROMISES)] = None,
    liars: Annotated[int | None, basic("The most sites that may lie.", min=0)] = None,
    alike: Annotated[float | None, basic("How much honest sites may differ.")] = None,
    by: Annotated[str | None, basic("A threshold for each", among=("class", "group"))] = None,
    defence: Annotated[str, basic("Whom to trust", among=DEFENCES)] = Consensus.name,
    html: console.Html = None,
    letters: Annotated[Path | None, basic("Folder for a letter to each site.")] = None,
    previous: Annotated[Path | None, basic("Last round's calibration: say what changed.")] = None,
    sign: console.Sign = None,
    confidence: Annotated[float, expert("With which certificates hold.")] = 0.95,
    mix: Annotated[list[str] | None, expert("Label mix: uniform, any or flu=0.1,cold=0.9.")] = None,
    samples: Annotated[int | None, expert("Most samples liars may hold (marginal).")] = None,
    anchor: Annotated[Path | None, expert("Trusted samples: outputs, or a report of them.")] = None,
    risk: Annotated[list[str] | None, expert("Of reports of losses: the mean accepted.")] = None,
    exactly: Annotated[int | None, expert("Consensus leaves out exactly so many.")] = None,
    exclude: Annotated[
        list[str] | None, agreed("Set this client's report aside; may be repeated.")
    ] = None,
    spark: Annotated[str | None, expert("Read tables by Spark: its master's URL.")] = None,
    audit: AuditFile = None,
) -> None:
    """Find whom to trust, take one threshold, and say what is proved about it.

    [dim]Example: robfcp calibrate reports/*.json --promise marginal --liars 5 -o c.json[/dim]
    [dim]Example: robfcp calibrate reports/*.json -o c.json --html page.html --letters letters[/dim]
    """
    key = None if sign is None else signing.load_key(sign)
    files = list(reports) if spark is not None else files_of_sites(reports, printer)
    folder = None if letters is None else letters / "any"
    inputs = files if previous is None else [*files, previous]
    console.prepare(output, html, audit, folder, inputs=inputs)
    with printer.busy(f"calibrating {len(files)} reports"):
        before = None if previous is None else Calibration.load(previous)
        federation = agreed_on.read(files if spark is None else read_tables(files, spark))
        federation = federation.without(exclude or ())
        told = {"liars": liars, "samples": samples, "mix": _mix(mix), "alike": alike}
        held = promise_of(promise, told)
        calibration = run.calibrate(
            federation,
            _one_or_all(coverage) or 0.9,
            risk=_one_or_all(risk),
            by=by,
            defence=defence_of(defence, None if held else liars, exactly),
            promise=held,
            anchor=None if anchor is None else trusted_samples(anchor, federation),
            confidence=confidence,
        )
        # Before anything is written, as it reads the record of the earlier calibration.
        comparison = None if before is None else compare_rounds(before, calibration)
        kept = calibration.with_record(None) if federation.stored else calibration
        if output is not None and federation.stored:  # in place of a record nobody could hold
            verdicts = calibration.trusted_mask, calibration.reasons
            write_verdicts(federation, *verdicts, output.with_suffix(VERDICTS))
        if output is not None:
            kept.save(output, key)
        if audit is not None:
            terms = structs.asdict(agreed_on.stated())
            known = {"sizes": agreed_on.sizes, "keys": agreed_on.keys, **terms}
            said: Any = {name: str(value) for name, value in known.items() if value is not None}
            record, names = calibration.record, ("defence", "parameters", "promise")
            said["settings"] = {n: msgspec.to_builtins(getattr(record, n)) for n in names}
            auditing.log_round(auditing.AuditLog(audit), calibration, said)
        if html is not None:
            write_page(calibration, html, about=about())
        if letters is not None:
            letter_files.save_letters(calibration, letters, key)
        found = {} if federation.stored else diagnose(calibration)
    show_calibration(calibration, found, printer)
    data = _as_data(calibration, found)
    if comparison is not None:
        printer.line("\n  ".join([f"since {previous}:", *comparison.lines]))
        data["comparison"] = comparison
    if output is not None:
        beside = output.with_suffix(VERDICTS) if federation.stored else kept.record_path(output)
        printer.line(f"-> {output}, what it rests on in {beside.name}")
    printer.wrote(html, letters)
    printer.json(data)


def about(title: str = "", study: str = "", run_by: str = "", date: str | None = None) -> About:
    """What the page says about itself, with today's date unless another is given."""
    today = datetime.date.today()
    return About(title, study, run_by, f"{today.day} {today:%B %Y}" if date is None else date)


def trusted_samples(path: Path, federation: Federation) -> Report:
    """The report of trusted samples in a file, or of the model outputs and labels in it."""
    if path.suffix.lower() in REPORTS:
        return Report.load(path)
    score = federation.score
    if score is None:
        raise RobfcpError("--anchor: the reports name no score; pass a report of the samples")
    sample = read_outputs(path, needs_targets=True, expects=expects(score))
    names: Any = sample.classes if isinstance(score, ClassificationScore) else None
    outputs = sample.predictions, cast(NDArray[Any], sample.targets)
    told = {"score": score, "classes": names, "grid": federation.grid}
    return Report.of("(server)", *outputs, fine=True, **told)  # it stays here


def promise_of(name: str | None, told: Mapping[str, Any]) -> Promise | None:
    """The promise that words name, as Python takes it."""
    if name is not None:
        return named_promise(name, **told)
    beside = next((one for one, value in told.items() if one != "liars" and value is not None), "")
    if beside:
        raise RobfcpError(f"--{beside}: belongs to a promise; state which one with --promise")
    return None


def defence_of(name: str, liars: int | None, exactly: int | None) -> Defence:
    """The defence that words name, as Python takes it."""
    if exactly is None:
        return named_defence(name, liars)
    if name != Consensus.name:
        raise RobfcpError(f"--exactly: is of --defence {Consensus.name}; use --liars")
    return Consensus(exactly=exactly)


def _one_or_all(texts: list[str] | None) -> Any:
    """One level, several, or none."""
    return texts if texts is None or len(texts) > 1 else texts[0]


def _mix(texts: list[str] | None) -> Any:
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
    return _one_or_all(found or None)


def show_calibration(
    calibration: Calibration, found: Mapping[str, Diagnosis], printer: Printer
) -> None:
    """The calibration for people; of many classes those that are least protected and worst."""
    federation = calibration.federation
    told = calibration.summary
    many = told.n_trusted, told.n_flagged, told.n_faulty
    heads = ("not flagged", "flagged") if calibration.promised else ("used", "left out")
    printer.table(
        f"{federation.n_clients} sites, {federation.n_samples} samples, "
        f"defence {calibration.defence}",
        ["level", "threshold", *(f"sites {head}" for head in heads), "reports refused"],
        [(f"{float(level.coverage):g}", level.threshold, *many) for level in calibration.levels],
    )
    for level in calibration.levels:
        at, by = f"{float(level.coverage):g}", level.certificate.by
        worst = sorted(
            level.parts, key=lambda one: ("protected" not in one.protection, one.certificate.lower)
        )
        if worst:
            printer.table(
                f"by {by} at {at}, {min(SHOWN_CLASSES, len(worst))} of {len(worst)}, worst first",
                [by, "threshold", "sites", "samples", "at least", "at most", ""],
                [
                    (one.name, one.threshold, one.holders, one.samples, *span, one.protection)
                    for one in worst[:SHOWN_CLASSES]
                    for span in [(at_least(one.certificate.lower), at_most(one.certificate.upper))]
                ],
            )
        printer.line(f"For {calibration.wanted(level)}: {level.certificate.statement}.")
    for assumed in dict.fromkeys(level.certificate.assumptions for level in calibration.levels):
        printer.line("\n- ".join(["It rests on:", *(one.text for one in assumed)]))
    printer.line("\n".join(calibration.remarks))
    if federation.stored:
        return

    def grouped(sites: Iterable[Diagnosis]) -> list[str]:
        """What is seen, what to do, the defence's reason, and who else looks like that."""
        alike: dict[tuple[str, str], list[Diagnosis]] = {}
        for one in sites:
            alike.setdefault((one.finding, one.advice), []).append(one)
        lines = []
        for first, *others in alike.values():
            line = f"{first.client}: {first.because(calibration.reasons.get(first.client, ''))}"
            likewise = ", ".join(one.client for one in others)
            lines.append(line + (f"; likewise {likewise}" if likewise else ""))
        return lines

    out = "flagged" if calibration.promised else "left out"
    printer.list(out, grouped(found[client] for client in calibration.flagged))
    printer.list("look at", grouped(one for one in found.values() if one.trusted))
    printer.list("faulty", [fault.reason for fault in calibration.faulty])
    printer.list("missing", calibration.missing)
    printer.list("the same report twice, counted once", calibration.federation.repeated)


def _as_data(calibration: Calibration, found: Mapping[str, Diagnosis]) -> dict[str, Any]:
    """The calibration for programs, without the counts."""
    federation = calibration.federation
    data = {
        "levels": [
            {
                **structs.asdict(level),
                "certificate": {
                    **structs.asdict(level.certificate),
                    "vacuous": level.certificate.vacuous,
                    "statement": level.certificate.statement,
                    "at_every_site": level.certificate.at_every_site,
                },
            }
            for level in calibration.levels
        ],
        "n_clients": federation.n_clients,
        "n_samples": federation.n_samples,
        "liars": calibration.liars,
        "liars_stated": calibration.liars_stated,
        "faulty": calibration.faulty,
        "missing": calibration.missing,
        "outside": outside_of(federation),
        "remarks": calibration.remarks,
    }
    if federation.stored:
        return data
    return data | {
        "trusted": calibration.trusted,
        "flagged": {name: calibration.reasons.get(name, "") for name in calibration.flagged},
        "diagnoses": found,
        "oddness": dict(zip(federation.ids, calibration.oddness.tolist(), strict=True)),
    }


def verify(
    printer: Printer,
    file: Annotated[Path, typer.Argument(help="A calibration, a letter, or a log (.jsonl).")],
    record: Annotated[Path | None, typer.Argument(help="Its record, if not beside it.")] = None,
    report: Annotated[Path | None, basic("A site's own report, to be found in it.")] = None,
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
    console.prepare(audit)
    key = console.pinned_key(server_key)
    signature = "by the pinned key" if server_key else "not checked"
    letter = read_letter(file, key)
    if letter is not None:
        whole = f"The letter is whole (signature: {signature}); its record stays at the server."
        printer.line(f"{letter.sentence}\n{whole}")
        told = ("client", "verdict", "diagnosis", "advice", "reason")
        said = {name: getattr(letter, name) for name in told}
        printer.json({"letter": str(file), "signature": signature, **said})
        return
    with printer.busy("computing everything again"):
        loaded = Calibration.load(file, key)
        if record is not None:
            loaded = loaded.with_record(record)
        found = auditing.verify_calibration(loaded)
        if report is not None:
            own = Report.from_json(signing.unwrap(read_limited(report)), str(report))
            found += auditing.check_own_report(loaded, own)
    digest = file_format.digest_of(loaded.to_json())
    if audit is not None:
        result = f"{len(found)} differences" if found else "as its record gives it"
        auditing.AuditLog(audit).write("file verified", digest=digest, result=result)
    printer.line("\n".join(difference.line for difference in found))
    sites = diagnose(loaded)
    said = {"calibration": str(file), "signature": signature, "differences": found}
    printer.json({**said, "digest": digest, **_as_data(loaded, sites)})
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
    show_calibration(loaded, sites, printer)
