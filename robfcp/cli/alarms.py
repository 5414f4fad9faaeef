"""`robfcp alarms`: the server merges what monitored sites report, when some of them lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from robfcp.cli._common import Json, Keys, Output, Printer, Quiet, prepare, save_json
from robfcp.cli._paths import REPORTS, expanded
from robfcp.errors import QuorumError, RobfcpError
from robfcp.federation import Fault
from robfcp.monitoring import AlarmHistory, EReport, Merged, merge, read_alarms, record_look
from robfcp.page import History, write_history_page
from robfcp.report import agreement

SHOWN = 12


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("alarms", no_args_is_help=True)(alarms)


def alarms(
    reports: Annotated[
        list[Path], typer.Argument(help="The sites' e-report files, or their folder.")
    ],
    malicious: Annotated[
        int, typer.Option("--malicious", "-m", min=0, help="The most sites that may lie.")
    ],
    sites: Annotated[
        int | None, typer.Option(help="How many are watched; silent ones count for nothing.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Chance of a false alarm, ever; 0.05 unless stated.")
    ] = None,
    independent: Annotated[
        bool, typer.Option("--independent", help="Sites' samples are independent: also multiply.")
    ] = False,
    keys: Keys = None,
    round: Annotated[str | None, typer.Option(help="Refuse e-reports of another round.")] = None,
    quorum: Annotated[
        int, typer.Option(min=1, help="Least number of valid e-reports; fewer are refused.")
    ] = 1,
    step: Annotated[
        int | None, typer.Option(min=0, help="Refuse e-reports of another reporting date.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="Keep every look in this file; needs --step.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write a page of the history; needs --history.")
    ] = None,
    output: Output = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge sites' e-reports into one alarm that at most m liars cannot ring, and list sites.

    [dim]Example: robfcp alarms e-*.json -m 2[/dim]
    [dim]Example: robfcp alarms e-*.json -m 1 --step 1 --history alarms.json --html h.html[/dim]
    """
    printer = Printer(as_json, quiet)
    if history is not None and step is None:
        raise RobfcpError("--history: needs --step, the number of the reporting date")
    if html is not None and history is None:
        raise RobfcpError("--html: shows a history; pass --history, where it is kept")
    reports = expanded(reports, REPORTS)
    prepare(output, history, html)
    public = None if keys is None else agreement.read_keys(keys)
    known = AlarmHistory.load(history) if history is not None and history.exists() else None
    found, faults = read_alarms(
        reports,
        keys=public,
        round=round,
        calibration=None if known is None else known.calibration,
        step=step,
    )
    _check_quorum(found, faults, quorum)
    if sites is None and public is not None:
        sites = len(public)
    if history is None or step is None:
        level = 0.05 if delta is None else delta
        merged = merge(
            found, malicious, n_sites=sites, delta=level, independent=independent, faulty=faults
        )
        line, data = merged.line, _as_data(merged)
    else:
        merged, known = record_look(
            history,
            found,
            malicious,
            step=step,
            round=round,
            n_sites=sites,
            delta=delta,
            independent=independent or None,
            faulty=faults,
        )
        line = known.line
        data = {**_as_data(merged), "line": line, "rang": known.rang, "looks": len(known.looks)}
        if html is not None:
            write_history_page(History(alarms=known), html)
    if output is not None:
        save_json(output, data)
    rows = [
        ("mean of the K - m smallest", f"{_tens(merged.log_mean)}", "any dependence"),
        ("product of (0.9 + 0.1 W)", f"{_tens(merged.log_product)}", "independent sites only"),
        ("drift, mean of the K - m smallest", f"{_tens(merged.log_drift)}", "any dependence"),
        ("alarm at", f"{-math.log10(merged.delta):.2f}", f"delta {merged.delta:g}"),
    ]
    printer.table(f"{merged.n_sites} sites", ["alarm strength", "log10", "holds under"], rows)
    for name in merged.alarmed[:SHOWN]:
        printer.line(f"alarms  {name}")
    for fault in merged.faulty[:SHOWN]:
        printer.line(f"faulty  {fault.reason}")
    printer.line(line)
    for written in (history, html):
        if written is not None:
            printer.line(f"-> {written}")
    printer.json(data)


def _check_quorum(found: Sequence[EReport], faults: Sequence[Fault], quorum: int) -> None:
    """Refuse to say that no alarm rang where too few were heard to ring it."""
    if len(found) < quorum:
        first = f" (first fault: {faults[0].reason})" if faults else ""
        raise QuorumError(
            f"only {len(found)} of {len(found) + len(faults)} e-reports are valid but the quorum "
            f"is {quorum}{first}; ask the faulty sites again or lower the quorum"
        )


def _as_data(merged: Merged) -> dict[str, Any]:
    """What the alarms come to, for programs."""
    return {**asdict(merged), "alarm": merged.alarm, "drift": merged.drift, "line": merged.line}


def _tens(log: float) -> str:
    return f"{log / math.log(10):.2f}" if math.isfinite(log) else "-"
