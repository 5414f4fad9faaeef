"""`robfcp verify`: is a calibration what its evidence gives, and who signed it?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from robfcp.calibration import (
    MAX_CALIBRATION_BYTES,
    AuditLog,
    Calibration,
    Letter,
    check_own_report,
    diagnose,
    digest_of,
    kind_of,
    verify_calibration,
)
from robfcp.cli._common import Json, Printer, Quiet, ServerKey, pinned_key, prepare
from robfcp.cli._sites import show_sites
from robfcp.errors import RobfcpError
from robfcp.files import read_limited
from robfcp.report import Report, signing


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", no_args_is_help=True)(verify)


def verify(
    calibration: Annotated[
        Path, typer.Argument(help="A file written by robfcp calibrate, or a site's letter.")
    ],
    evidence: Annotated[
        Path | None, typer.Argument(help="Its evidence; the file beside it if not given.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="A site's own report, which the evidence must hold.")
    ] = None,
    server_key: ServerKey = None,
    audit: Annotated[Path | None, typer.Option(help="Append the outcome to this log.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compute threshold, verdicts and certificates again from the reports and say what differs.

    It also says who was left out and why. A letter says what it tells its site.

    [dim]Example: robfcp verify calibration.json calibration.evidence.json[/dim]
    [dim]Example: robfcp verify calibration.json --report reports/site-03.json[/dim]
    """
    printer = Printer(as_json, quiet)
    prepare(audit)
    if kind_of(read_limited(calibration, MAX_CALIBRATION_BYTES)) == "letter":
        _verify_letter(calibration, server_key, printer)
        return
    with printer.busy("computing everything again"):
        loaded = Calibration.load(calibration, pinned_key(server_key))
        if evidence is not None:
            loaded = loaded.with_evidence(evidence)
        found = verify_calibration(loaded)
        if report is not None:
            found += check_own_report(loaded, _read(report))
    if audit is not None:
        result = f"{len(found)} differences" if found else "as its evidence gives it"
        digest = digest_of(read_limited(calibration, MAX_CALIBRATION_BYTES))
        AuditLog(audit).write("file verified", digest=digest, result=result)
    for difference in found:
        printer.line(difference.line)
    sites = diagnose(loaded)
    printer.json(
        {
            "calibration": str(calibration),
            "signature": "by the pinned key" if server_key else "not checked",
            "differences": [
                {"what": d.what, "stated": d.stated, "recomputed": d.recomputed} for d in found
            ],
            "diagnoses": {name: asdict(one) for name, one in sites.items()},
        }
    )
    if found:
        raise RobfcpError(
            f"{calibration}: {len(found)} of its statements are not what its evidence gives "
            f"(first: {found[0].line}); do not use it"
        )
    signed = "signed by the pinned key" if server_key else "signature not checked"
    own = (
        "That these are the sites' reports each site can check with --report."
        if report is None
        else f"The report in {report} is among them, as it was sent."
    )
    printer.line(
        f"Everything is as the {loaded.federation.n_clients} reports in the evidence give it "
        f"({signed}). {own}"
    )
    show_sites(loaded, sites, printer)


def _verify_letter(path: Path, server_key: str | None, printer: Printer) -> None:
    """What a letter says to its site, its digest and, with a key, its signature checked."""
    letter = Letter.load(path, pinned_key(server_key))
    signed = "signed by the pinned key" if server_key else "signature not checked"
    printer.line(letter.sentence)
    printer.line(f"The letter is whole ({signed}); its evidence stays at the server.")
    printer.json(
        {
            "letter": str(path),
            "signature": "by the pinned key" if server_key else "not checked",
            "client": letter.client,
            "verdict": letter.verdict,
            "diagnosis": letter.diagnosis,
            "advice": letter.advice,
            "reason": letter.reason,
        }
    )


def _read(path: Path) -> Report:
    """A site's own report, signed or not."""
    return Report.from_json(signing.unwrap(read_limited(path)), str(path))
