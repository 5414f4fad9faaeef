"""`robfcp show`: a calibration or its later life, to read, to ask what if, or as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from robfcp._files import read_bounded
from robfcp._sealed import file_kind
from robfcp._validation import abbreviate, parse_level
from robfcp.calibration import Calibration, sensitivity
from robfcp.certificates import format_lower, format_upper
from robfcp.cli import console
from robfcp.cli.console import Printer, advanced_option, option
from robfcp.cli.server import page_info, print_calibration
from robfcp.diagnosis import diagnose
from robfcp.errors import RobfcpError
from robfcp.guarantees import (
    ClientIntervals,
    breakdown_point_of_any_rule,
    clients_not_covered,
    estimate_heterogeneity,
)
from robfcp.monitoring import AlarmHistory, MonitorState
from robfcp.page import PageHistory, write_html

MAX_BYTES = 2**28
SHOWN = 10
HISTORIES: dict[str, type[Any]] = {"alarms": AlarmHistory, "monitor": MonitorState}


def show(
    printer: Printer,
    file: Annotated[Path, typer.Argument(help="A calibration; or alarms, a monitor.")],
    html: console.Html = None,
    title: Annotated[str, option("What the page is headed with.")] = "",
    study: Annotated[str, option("The study or protocol, for the page.")] = "",
    run_by: Annotated[str, option("Who ran it, for the page.")] = "",
    date: Annotated[str | None, option("The page's date; today's if not given.")] = None,
    history: Annotated[list[Path] | None, option("Files of alarms or monitors.")] = None,
    liars: Annotated[list[str] | None, option("What if so many lie.", "--liars", "-m")] = None,
    coverage: Annotated[list[str] | None, option("What if this coverage were wanted.")] = None,
    alike: Annotated[float | None, option("What if honest sites differ by at most this.")] = None,
    server_key: console.ServerKey = None,
    confidence: Annotated[float, advanced_option("With which certificates hold.")] = 0.95,
) -> None:
    """Say what is proved for each number of liars and what each promise would cost; or a page.

    A record of alarms or a monitor's state says where it stands, and makes a page of the history.

    [dim]Example: robfcp show calibration.json -m 0,2,5,9 --coverage 0.9[/dim]
    [dim]Example: robfcp show calibration.json --html page.html --title "Outcome after stroke"[/dim]
    """
    console.prepare_outputs(html)
    if (file / "monitor.json").exists():  # a folder that monitor keeps
        file = file / "monitor.json"
    kind = file_kind(read_bounded(file, MAX_BYTES))
    if kind == "letter":
        raise RobfcpError(f"{file}: is a site's letter; robfcp verify says what it tells")
    if kind in HISTORIES:
        past = _read_history([file, *(history or [])])
        lines = [] if past.alarms is None else [past.alarms.line]
        lines += [f"{name}: {state.line}" for name, state in past.monitors]
        printer.line("\n".join(lines))
        if html is not None:
            write_html(past, html)
        _end(printer, html, {"lines": lines})
        return
    with printer.busy("computing what is proved"):
        calibration = Calibration.load(file, console.parse_public_key(server_key), record=True)
        if html is not None:
            past = _history_of(calibration, file, history or [])
            write_html(calibration, html, past, page_info(title, study, run_by, date))
            _end(printer, html, {"sites": calibration.federation.n_clients})
            return
        federation, asked = calibration.federation, [parse_level(text) for text in coverage or ()]
        numbers = _numbers(liars, federation.n_clients)
        sure: dict[str, Any] = {
            "certificate_confidence": confidence,
            "heterogeneity": alike,
        }
        outcomes = [
            (level, sensitivity(calibration, level, numbers, **sure))
            for level in asked or [level.coverage for level in calibration.levels]
        ]
        alone = {m: estimate_heterogeneity(federation, m, confidence) for m in numbers}
        covered = calibration.client_coverage()
        lowest = np.argsort(covered[:, 0], kind="stable").tolist()
    print_calibration(calibration, diagnose(calibration), printer)
    if alike is not None:
        unlike = ClientIntervals(federation, 1 - confidence).n_incompatible(alike)
        words = f"at least {unlike} of the sites are not" if unlike else "every site may be"
        printer.line(f"With {format_lower(confidence)} confidence, {words} as alike as stated.")
    by, columns = calibration.by, ["threshold", "m", "from", "to", "marginal", "pac", "alike"]
    kept = None if alike is not None else -1
    for level, each in outcomes:
        head = f"what if coverage {float(level):g} and m liars, {confidence:.0%} sure"
        if by is not None:
            more = f", the {SHOWN} weakest of {len(each)}" if len(each) > SHOWN else ""
            head = f"by {by} at {float(level):g}{more}, {confidence:.0%} sure at once"
        # unheld first, then by what is proved against most liars, then against fewest
        weakest = sorted(each, key=lambda x: [b.certificate.lower for b in x.budgets[::-1]])
        rows: list[Any] = []
        for one in weakest[:SHOWN]:
            first = () if by is None else (one.name, one.holders)
            rows += [
                [
                    *first,
                    one.threshold,
                    row.m,
                    format_lower(proved.lower),
                    format_upper(proved.upper),
                    *more,
                ]
                for row in one.budgets
                for proved, *more in [(row.certificate, row.marginal, row.pac, row.alike)]
            ] or [[*first, "", "", "nothing", *[""] * 4]]  # of what nobody holds
        heads = [*(() if by is None else (by, "sites")), *columns]
        printer.table(head, heads[:kept], [row[:kept] for row in rows])
    whose = f"a {by}'s coverage at its honest sites" if by else "the honest sites' coverage"
    printer.line(
        f"from, to: either more than m lie or {whose} lies there, all rows at once. marginal, pac, "
        "alike (pac for sites declared alike): thresholds that would guarantee the wanted level."
    )
    limits = [breakdown_point_of_any_rule(federation.sample_sizes, level) for level, _ in outcomes]
    for (level, parts), limit in zip(outcomes, limits, strict=True):
        if by is None and parts[0].empty_from is not None:
            start = parts[0].empty_from
            printer.line(f"At {float(level):g} nothing is proved from {start} liars on.")
        if by is None and limit is not None:
            printer.line(
                f"{limit} or more liars can make every set full, whatever rule promises "
                f"{float(level):g}, unless it is stated how alike sites are."
            )
    if outside := clients_not_covered(federation):
        printer.line(f"outside every certificate (missing or faulty): {abbreviate(outside)}")
    printer.table(
        f"how far sites seem to differ ({next(iter(alone.values())).label})",
        ["m", "suggested", "seen", "by chance", "at least"],
        [
            (
                m,
                *(
                    f"{x:.3f}"
                    for x in (
                        one.recommended,
                        one.observed,
                        one.expected_by_chance,
                        one.lower_bound,
                    )
                ),
            )
            for m, one in alone.items()
        ],
    )
    printer.line(
        "seen: how far the farthest report is once m are set aside, so it falls as m grows. State "
        "how alike sites are from what you know of them: liars who stay close are not set aside."
    )
    more = f", the {SHOWN} lowest of {len(lowest)}" if len(lowest) > SHOWN else ""
    printer.table(
        f"coverage each site reports of its own samples{more}",
        ["site", "samples", "covered"],
        [
            (
                federation.clients[k],
                federation.sample_sizes[k],
                ", ".join(f"{c:.3f}" for c in covered[k]),
            )
            for k in lowest[:SHOWN]
        ],
    )
    data = {
        "n_clients": federation.n_clients,
        "n_samples": federation.n_samples,
        "levels": [
            {"coverage": level, "by": by, "parts": each, "no_rule_survives": limit}
            for (level, each), limit in zip(outcomes, limits, strict=True)
        ],
        "alike": alone,
        "sites": {federation.clients[k]: covered[k] for k in lowest},
    }
    _end(printer, html, data)


def _numbers(texts: list[str] | None, n_clients: int) -> tuple[int, ...]:
    """The numbers of liars asked about."""
    parts = [part.strip() for text in texts or () for part in text.split(",") if part.strip()]
    for part in parts:
        plain = part.isascii() and part.isdigit() and len(part) < 16
        if not plain or int(part) >= n_clients:
            raise RobfcpError(
                f"--liars: {part!r:.40} is not a number below the {n_clients} sites; "
                f"give numbers from 0 to {n_clients - 1}, separated by commas"
            )
    usual = [0, 1, 2, *(n_clients * percent // 100 for percent in (5, 9, 20, 40))]
    return tuple(sorted({*map(int, parts)} or {m for m in usual if m < n_clients}))


def _read_history(paths: Sequence[Path]) -> PageHistory:
    """A record of alarms or states of monitors: one of the former, any number of the latter."""
    found: dict[str, list[Any]] = {kind: [] for kind in HISTORIES}
    for path in paths:
        data = read_bounded(path, MAX_BYTES)
        kind = file_kind(data)
        if kind not in found:
            raise RobfcpError(
                f"{path}: is no history; pass what alarms --history or monitor --state wrote"
            )
        if found[kind] and kind != "monitor":
            raise RobfcpError(f"{path}: is the second {kind} file; pass one")
        one = HISTORIES[kind].from_json(data, str(path))
        found[kind].append((one.client or path.stem, one) if kind == "monitor" else one)
    if found["alarms"] and found["monitor"]:
        raise RobfcpError(
            "history: a server's record and sites' monitors go on different pages; pass one kind"
        )
    alarms = found["alarms"][0] if found["alarms"] else None
    return PageHistory(alarms, tuple(found["monitor"]))


def _history_of(calibration: Calibration, path: Path, paths: Sequence[Path]) -> PageHistory:
    """What some files tell of a calibration, refused where one is of another calibration."""
    found = _read_history(paths)
    watched = {state.calibration for _, state in found.monitors}
    watched |= set() if found.alarms is None else {found.alarms.calibration}
    if watched - {calibration.fingerprint}:
        raise RobfcpError(f"{path}: the history is that of another calibration; pass its own")
    return found


def _end(printer: Printer, html: Path | None, data: dict[str, Any]) -> None:
    """The same for programs, and where things went."""
    if html is not None:
        data = {**data, "html": str(html), "bytes": html.stat().st_size}
        printer.line(f"page ({html.stat().st_size / 1000:.0f} kB) -> {html}")
    printer.json(data)
