"""`robfcp show`: a calibration or its later life, to read, to ask what if, or as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from robfcp._files import read_bounded
from robfcp._sealed import file_kind
from robfcp._typing import FloatArray
from robfcp._validation import abbreviate, check_fraction, parse_level
from robfcp.calibration import Calibration, SensitivityTable, sensitivity
from robfcp.certificates import format_lower, format_upper
from robfcp.cli import console
from robfcp.cli.console import Printer, advanced_option, option
from robfcp.cli.server import page_info, print_calibration
from robfcp.diagnosis import diagnose
from robfcp.errors import RobfcpError
from robfcp.guarantees import (
    ClientIntervals,
    HeterogeneityEstimate,
    breakdown_point_of_any_rule,
    estimate_heterogeneity,
    missing_or_rejected_clients,
)
from robfcp.local import ClientFeedback
from robfcp.monitoring import AlarmHistory, MonitorState
from robfcp.page import PageHistory, write_html
from robfcp.schemas import FILE_SCHEMAS, file_schema

MAX_BYTES = 2**28
MAX_SHOWN = 10  # strata, and clients
MAX_DIGITS = 15  # of a number of clients
USUAL_NUMBERS = (0, 1, 2)  # of malicious clients that are shown unless others are named
USUAL_PERCENTAGES = (5, 9, 20, 40)
HISTORY_KINDS = (AlarmHistory.kind, MonitorState.kind)  # of files


@dataclass(frozen=True)
class ShowOptions:
    """Whether a page is written, and what is asked of a calibration."""

    html: console.Html = None
    title: Annotated[str, option("Title of the page.")] = ""
    study: Annotated[str, option("Study or protocol, for the page.")] = ""
    run_by: Annotated[str, option("Who ran the round, for the page.")] = ""
    date: Annotated[str | None, option("Date of the page (today).")] = None
    history: Annotated[list[Path] | None, option("Alarm histories or monitor states.")] = None
    max_malicious: Annotated[
        list[str] | None, option("Certify for so many malicious clients.", "--max-malicious", "-m")
    ] = None
    coverage: Annotated[list[str] | None, option("Certify for this target coverage.")] = None
    heterogeneity: Annotated[float | None, option("Certify for this heterogeneity.")] = None
    server_key: console.ServerKey = None
    certificate_confidence: Annotated[float, advanced_option("Confidence of certificates.")] = 0.95
    schema: Annotated[
        str | None, advanced_option("Print the JSON Schema of a kind of file", among=FILE_SCHEMAS)
    ] = None


@dataclass(frozen=True)
class LevelOutlook:
    """What holds at one level of coverage, and what each guarantee would cost.

    Attributes
    ----------
    level : Fraction
        The wanted coverage.
    tables : sequence of SensitivityTable
        One for all clients, or one for each class or group.
    breakdown_point : int or None
        From how many malicious clients on no rule that guarantees the level can avoid full sets.
    """

    level: Fraction
    tables: Sequence[SensitivityTable]
    breakdown_point: int | None


@dataclass(frozen=True)
class Outlook:
    """What a calibration proves for several numbers of malicious clients.

    Attributes
    ----------
    calibration : Calibration
        With its record.
    levels : list of LevelOutlook
        Its levels, or those asked for.
    heterogeneity : mapping of int to HeterogeneityEstimate
        {malicious clients: how far the others seem to differ}.
    client_coverage : (K, L) ndarray
        The coverage of each client's own samples at each of the calibration's levels.
    lowest_first : list of int
        The clients by their coverage at the first level.
    """

    calibration: Calibration
    levels: list[LevelOutlook]
    heterogeneity: Mapping[int, HeterogeneityEstimate]
    client_coverage: FloatArray
    lowest_first: list[int]


def show(
    options: ShowOptions,
    printer: Printer,
    file: Annotated[
        Path | None,
        typer.Argument(help="A calibration, an alarm history or a monitor state."),
    ] = None,
) -> None:
    """Print what is certified for each number of malicious clients and what guarantees cost.

    With --html it writes a page instead. Of an alarm history or a monitor state it prints the
    current state. With --schema it prints the format of a kind of file; no file is needed.

    [dim]Example: robfcp show calibration.json -m 0,2,5,9 --coverage 0.9[/dim]
    [dim]Example: robfcp show calibration.json --html page.html --title "Outcome after stroke"[/dim]
    """
    if options.schema is not None:
        print(json.dumps(file_schema(options.schema), indent=2))
        return
    if file is None:
        raise RobfcpError("file: none is named; pass a calibration, or --schema KIND")
    check_fraction(
        "--certificate-confidence", options.certificate_confidence, "give for example 0.95"
    )
    console.prepare_outputs(options.html)
    if (file / "monitor.json").exists():  # a folder that monitor keeps
        file = file / "monitor.json"
    kind = file_kind(read_bounded(file, MAX_BYTES))
    if kind == ClientFeedback.kind:
        raise RobfcpError(f"{file}: is a site's letter; robfcp verify says what it tells")
    if kind in HISTORY_KINDS:
        _show_history(file, options, printer)
        return

    with printer.busy("computing what is proved"):
        key = console.parse_public_key(options.server_key)
        calibration = Calibration.load(file, key, record=True)
        if options.html is not None:
            _write_page(calibration, file, options, options.html)
        else:
            outlook = _compute_outlook(calibration, options)
    if options.html is not None:
        _finish(printer, options.html, {"n_clients": calibration.federation.n_clients})
        return
    _print_outlook(outlook, options, printer)
    _finish(printer, None, _outlook_as_json(outlook))


def _show_history(file: Path, options: ShowOptions, printer: Printer) -> None:
    """Print where alarms or monitors stand, and write their page where it is wanted."""
    history = _read_history([file, *(options.history or [])])
    lines = []
    if history.alarms is not None:
        lines.append(history.alarms.line)
    for name, state in history.monitors:
        lines.append(f"{name}: {state.line}")
    printer.line("\n".join(lines))
    if options.html is not None:
        write_html(history, options.html)
    _finish(printer, options.html, {"lines": lines})


def _write_page(calibration: Calibration, file: Path, options: ShowOptions, html: Path) -> None:
    """Write the page of a calibration, with its history where files of it are named."""
    history = _history_of(calibration, file, options.history or [])
    info = page_info(options.title, options.study, options.run_by, options.date)
    write_html(calibration, html, history, info)


def _compute_outlook(calibration: Calibration, options: ShowOptions) -> Outlook:
    """Return what a calibration proves for the numbers of malicious clients asked about."""
    federation = calibration.federation
    levels = [parse_level(text) for text in options.coverage or ()]
    max_malicious_values = _parse_max_malicious(options.max_malicious, federation.n_clients)
    if not levels:
        levels = [level.coverage for level in calibration.levels]

    outlooks = []
    for level in levels:
        tables = sensitivity(
            calibration,
            level,
            max_malicious_values,
            certificate_confidence=options.certificate_confidence,
            heterogeneity=options.heterogeneity,
        )
        breakdown_point = breakdown_point_of_any_rule(federation.sample_sizes, level)
        outlooks.append(LevelOutlook(level, tables, breakdown_point))

    heterogeneity = {}
    for max_malicious in max_malicious_values:
        heterogeneity[max_malicious] = estimate_heterogeneity(
            federation, max_malicious, options.certificate_confidence
        )
    client_coverage = calibration.client_coverage()
    lowest_first = np.argsort(client_coverage[:, 0], kind="stable").tolist()
    return Outlook(calibration, outlooks, heterogeneity, client_coverage, lowest_first)


def _parse_max_malicious(texts: list[str] | None, n_clients: int) -> tuple[int, ...]:
    """Return the numbers of malicious clients asked about: 0,2,5; else some usual ones.

    Parameters
    ----------
    texts : list of str, optional
        Each of them numbers, separated by commas.
    n_clients : int
        All numbers must lie below.
    """
    values = set()
    for item in ",".join(texts or ()).split(","):
        digits = item.strip()
        if not digits:
            continue
        is_count = digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS
        if not is_count or int(digits) >= n_clients:
            raise RobfcpError(
                f"--max-malicious: {digits!r:.40} is not a number below the {n_clients} sites; "
                f"give numbers from 0 to {n_clients - 1}, separated by commas"
            )
        values.add(int(digits))
    if not values:
        fractions = {n_clients * percentage // 100 for percentage in USUAL_PERCENTAGES}
        values = {value for value in fractions.union(USUAL_NUMBERS) if value < n_clients}
    return tuple(sorted(values))


def _print_outlook(outlook: Outlook, options: ShowOptions, printer: Printer) -> None:
    """Print a calibration, and what it proves for several numbers of malicious clients."""
    calibration = outlook.calibration
    print_calibration(calibration, diagnose(calibration), printer)
    if options.heterogeneity is not None:
        _print_declared_heterogeneity(
            calibration, options.heterogeneity, options.certificate_confidence, printer
        )
    for level in outlook.levels:
        _print_sensitivity(level, calibration.by, options, printer)
    _print_how_to_read(calibration.by, printer)
    if calibration.by is None:
        for level in outlook.levels:
            _print_limits(level, printer)

    not_covered = missing_or_rejected_clients(calibration.federation)
    if not_covered:
        printer.line(f"outside every certificate (missing or faulty): {abbreviate(not_covered)}")
    _print_heterogeneity(outlook.heterogeneity, printer)
    _print_client_coverage(outlook, printer)


def _print_declared_heterogeneity(
    calibration: Calibration, heterogeneity: float, confidence: float, printer: Printer
) -> None:
    """Print how many clients differ by more than is declared, at least."""
    intervals = ClientIntervals(calibration.federation, 1 - confidence)
    n_incompatible = intervals.n_incompatible(heterogeneity)
    subject = "every site may be"
    if n_incompatible:
        subject = f"at least {n_incompatible} of the sites are not"
    printer.line(f"With {format_lower(confidence)} confidence, {subject} as alike as stated.")


def _print_sensitivity(
    outlook: LevelOutlook, by: str | None, options: ShowOptions, printer: Printer
) -> None:
    """Print what holds at one level for each number of malicious clients, weakest strata first."""
    level = float(outlook.level)
    title = f"coverage {level:g} against m malicious clients, "
    title += f"{options.certificate_confidence:.0%} confidence"
    columns = ["threshold", "m", "from", "to", "marginal", "pac", "heterogeneous pac"]
    if by is not None:
        limit_text = _limit_text("weakest", len(outlook.tables))
        title = (
            f"by {by} at {level:g}{limit_text}, {options.certificate_confidence:.0%} confidence "
            "at once"
        )
        columns = [by, "clients", *columns]

    rows: list[list[object]] = []
    for table in sorted(outlook.tables, key=_bounds_against_most)[:MAX_SHOWN]:
        rows += _sensitivity_rows(table, by)
    if options.heterogeneity is None:
        # Nothing is declared that the last column would rest on.
        columns = columns[:-1]
        rows = [row[:-1] for row in rows]
    printer.table(title, columns, rows)


def _bounds_against_most(table: SensitivityTable) -> list[float]:
    """Return the certified lower bounds, against most malicious clients first.

    Strata that no client has samples of have none: sorted by this they come before all others.
    """
    return [row.certificate.lower for row in reversed(table.rows)]


def _sensitivity_rows(table: SensitivityTable, by: str | None) -> list[list[object]]:
    """Return a row for each number of malicious clients, or one where no client has samples."""
    stratum = [] if by is None else [table.name, table.n_clients]
    if not table.rows:
        return [[*stratum, "", "", "nothing", "", "", "", ""]]
    rows = []
    for row in table.rows:
        lower = format_lower(row.certificate.lower)
        upper = format_upper(row.certificate.upper)
        thresholds = [row.marginal, row.pac, row.heterogeneity_guarantee]
        rows.append([*stratum, table.threshold, row.max_malicious, lower, upper, *thresholds])
    return rows


def _limit_text(order: str, n_rows: int) -> str:
    """Return what a title says where only the first rows of an order are shown."""
    if n_rows <= MAX_SHOWN:
        return ""
    return f", the {MAX_SHOWN} {order} of {n_rows}"


def _print_how_to_read(by: str | None, printer: Printer) -> None:
    """Print what the columns of the tables mean."""
    coverage = "the coverage of benign clients"
    if by is not None:
        coverage = f"the coverage of a {by} at its benign clients"
    printer.line(
        f"from, to: {coverage} is in this range, unless more than m clients are malicious; all "
        "rows hold at once. "
        "marginal, pac, heterogeneous pac (with --heterogeneity): thresholds that would guarantee "
        "the target coverage."
    )


def _print_limits(outlook: LevelOutlook, printer: Printer) -> None:
    """Print from how many malicious clients on nothing is proved, and nothing can be."""
    level = float(outlook.level)
    vacuous_from = outlook.tables[0].vacuous_from
    if vacuous_from is not None:
        printer.line(f"At {level:g} nothing is proved from {vacuous_from} liars on.")
    if outlook.breakdown_point is not None:
        printer.line(
            f"{outlook.breakdown_point} or more liars can make every set full, whatever rule "
            f"promises {level:g}, unless it is stated how alike sites are."
        )


def _print_heterogeneity(estimates: Mapping[int, HeterogeneityEstimate], printer: Printer) -> None:
    """Print how far clients seem to differ for each number of malicious ones."""
    rows = []
    for max_malicious, estimate in estimates.items():
        values = (
            estimate.recommended,
            estimate.observed,
            estimate.expected_by_chance,
            estimate.lower_bound,
        )
        rows.append((max_malicious, *(f"{value:.3f}" for value in values)))
    label = next(iter(estimates.values())).label
    printer.table(
        f"heterogeneity between clients ({label})",
        ["m", "recommended", "observed", "by chance", "at least"],
        rows,
    )
    printer.line(
        "observed: how far the farthest report is once m are excluded, so it falls as m grows. "
        "Give the heterogeneity from what you know of the clients: malicious ones that stay close "
        "are not excluded."
    )


def _print_client_coverage(outlook: Outlook, printer: Printer) -> None:
    """Print the coverage that clients report of their own samples, the lowest first."""
    federation = outlook.calibration.federation
    rows = []
    for index in outlook.lowest_first[:MAX_SHOWN]:
        coverage = ", ".join(f"{value:.3f}" for value in outlook.client_coverage[index])
        rows.append((federation.clients[index], federation.sample_sizes[index], coverage))
    limit_text = _limit_text("lowest", len(outlook.lowest_first))
    if federation.is_coarsened.any():
        limit_text = f", estimated from coarsened counts{limit_text}"
    printer.table(
        f"coverage each site reports of its own samples{limit_text}",
        ["client", "samples", "coverage"],
        rows,
    )


def _outlook_as_json(outlook: Outlook) -> dict[str, Any]:
    """Return for programs what a calibration proves."""
    federation = outlook.calibration.federation
    levels = []
    for level in outlook.levels:
        levels.append(
            {
                "coverage": level.level,
                "by": outlook.calibration.by,
                "strata": level.tables,
                "breakdown_point": level.breakdown_point,
            }
        )
    coverage_by_client = {}
    for index in outlook.lowest_first:
        coverage_by_client[federation.clients[index]] = outlook.client_coverage[index]
    return {
        "n_clients": federation.n_clients,
        "n_samples": federation.n_samples,
        "levels": levels,
        "heterogeneity": outlook.heterogeneity,
        "client_coverage": coverage_by_client,
    }


def _read_history(paths: Sequence[Path]) -> PageHistory:
    """Return a record of alarms, or the states of monitors: one of the former, many of the latter.

    Parameters
    ----------
    paths : sequence of Path
        All of one kind.
    """
    alarms: AlarmHistory | None = None
    monitors: list[tuple[str, MonitorState]] = []
    for path in paths:
        content = read_bounded(path, MAX_BYTES)
        kind = file_kind(content)
        if kind not in HISTORY_KINDS:
            raise RobfcpError(
                f"{path}: is no history; pass what merge-alarms --history or monitor --state wrote"
            )
        if kind == AlarmHistory.kind:
            if alarms is not None:
                raise RobfcpError(f"{path}: is the second {kind} file; pass one")
            alarms = AlarmHistory.from_json(content, str(path))
        else:
            state = MonitorState.from_json(content, str(path))
            monitors.append((state.client or path.stem, state))
    if alarms is not None and monitors:
        raise RobfcpError(
            "--history: an alarm history and monitor states go on different pages; pass one kind"
        )
    return PageHistory(alarms, tuple(monitors))


def _history_of(calibration: Calibration, path: Path, paths: Sequence[Path]) -> PageHistory:
    """Return what some files tell of a calibration; refuse those of another calibration."""
    history = _read_history(paths)
    watched = {state.calibration for _, state in history.monitors}
    if history.alarms is not None:
        watched.add(history.alarms.calibration)
    if watched - {calibration.fingerprint}:
        raise RobfcpError(f"{path}: the history is that of another calibration; pass its own")
    return history


def _finish(printer: Printer, html: Path | None, data: dict[str, Any]) -> None:
    """Print the same for programs, and where the page went."""
    if html is not None:
        n_bytes = html.stat().st_size
        data = {**data, "html": str(html), "bytes": n_bytes}
        printer.line(f"page ({n_bytes / 1000:.0f} kB) -> {html}")
    printer.json(data)
