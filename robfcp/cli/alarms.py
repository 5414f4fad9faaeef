"""`robfcp alarms`: the server merges what monitored sites report, when some of them lie."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from robfcp.calibration import merge, read_alarms
from robfcp.cli._common import Json, Output, Printer, Quiet, save_json
from robfcp.reports import read_keys

SHOWN = 12


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("alarms", no_args_is_help=True)(alarms)


def alarms(
    reports: Annotated[list[Path], typer.Argument(help="The sites' e-report files.")],
    malicious: Annotated[
        int, typer.Option("--malicious", "-m", min=0, help="The most sites that may lie.")
    ],
    sites: Annotated[
        int | None, typer.Option(help="How many are watched; silent ones are no evidence.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Chance of a false alarm, ever.")] = 0.05,
    independent: Annotated[
        bool, typer.Option("--independent", help="Sites' samples are independent: also multiply.")
    ] = False,
    keys: Annotated[
        Path | None, typer.Option(help="registry.toml of public keys; unsigned ones are refused.")
    ] = None,
    round: Annotated[str | None, typer.Option(help="Refuse e-reports of another round.")] = None,
    output: Output = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge sites' e-reports into one alarm that at most m liars cannot ring, and list sites.

    [dim]Example: robfcp alarms e-*.json -m 2[/dim]
    """
    printer = Printer(as_json, quiet)
    public = None if keys is None else read_keys(keys)
    found, faults = read_alarms(reports, keys=public, round=round)
    if sites is None and public is not None:
        sites = len(public)
    merged = merge(
        found, malicious, n_sites=sites, delta=delta, independent=independent, faulty=faults
    )
    data = {**asdict(merged), "alarm": merged.alarm, "drift": merged.drift, "line": merged.line}
    if output is not None:
        save_json(output, data)
    rows = [
        ("mean of the K - m smallest", f"{_tens(merged.log_mean)}", "any dependence"),
        ("product of (0.9 + 0.1 W)", f"{_tens(merged.log_product)}", "independent sites only"),
        ("drift, mean of the K - m smallest", f"{_tens(merged.log_drift)}", "any dependence"),
        ("alarm at", f"{-math.log10(delta):.2f}", f"delta {delta:g}"),
    ]
    printer.table(f"{merged.n_sites} sites", ["evidence", "log10", "holds under"], rows)
    for line in [*(f"alarms  {name}" for name in merged.alarmed)][:SHOWN]:
        printer.line(line)
    for fault in faults[:SHOWN]:
        printer.line(f"faulty  {fault.reason}")
    printer.line(merged.line)
    printer.json(data)


def _tens(log: float) -> str:
    return f"{log / math.log(10):.2f}" if math.isfinite(log) else "-"
