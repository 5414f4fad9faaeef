"""`robfcp show`: a calibration or its later life, to read, to ask what if, or as a page."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from robfcp.arguments import exact_level
from robfcp.calibration import Calibration, by_class, diagnose, document, what_if
from robfcp.calibration import letters as letter_files
from robfcp.certificate import at_least, at_most
from robfcp.cli import console
from robfcp.cli.console import Printer, basic, expert
from robfcp.cli.server import about, show_calibration
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.files import read_limited
from robfcp.guarantees import FcpThreshold, label_shift, outside_of, promises
from robfcp.guarantees import alike as likeness
from robfcp.monitoring import AlarmHistory, Chain, MonitorState, chain_path
from robfcp.page import History, write_history_page, write_page

MAX_BYTES = 2**28
SHOWN = 10
HISTORIES: dict[str, type[Any]] = {
    "alarms": AlarmHistory,
    "chain": Chain,
    "monitor": MonitorState,
}


def show(
    printer: Printer,
    file: Annotated[
        Path,
        typer.Argument(help="A calibration; or a record of alarms, a monitor's state, a chain."),
    ],
    html: console.Html = None,
    title: Annotated[str, basic("What the page is headed with.")] = "",
    study: Annotated[str, basic("The study or protocol, for the page.")] = "",
    run_by: Annotated[str, basic("Who ran it, for the page.")] = "",
    date: Annotated[str | None, basic("The page's date; today's if not given.")] = None,
    history: Annotated[list[Path] | None, basic("Alarms or monitors for the page.")] = None,
    liars: Annotated[
        list[str] | None, basic("What if so many lie: 0,5,9.", "--liars", "-m")
    ] = None,
    coverage: Annotated[list[str] | None, basic("What if this were wanted.")] = None,
    alike: Annotated[float | None, basic("What if honest sites differ by at most this.")] = None,
    output: console.Output = None,
    plot: console.Plot = None,
    confidence: Annotated[float, expert("Of the certificates.")] = 0.95,
    record: Annotated[Path | None, expert("The calibration's record, if not beside it.")] = None,
    server_key: console.ServerKey = None,
) -> None:
    """Say what is proved if 0, 5, 9, ... sites lie and what each promise would cost; or a page.

    The chain of rounds beside a calibration is on its page. A record of alarms, a monitor's state
    or a chain says where it stands, and makes a page of the history.

    [dim]Example: robfcp show calibration.json -m 0,2,5,9 --coverage 0.9[/dim]
    [dim]Example: robfcp show calibration.json --html page.html --title "Outcome after stroke"[/dim]
    """
    console.prepare(output, html)
    console.prepare_figure(plot)
    if document.kind_of(read_limited(file, MAX_BYTES)) in HISTORIES:
        past = _read_history([file, *(history or [])])
        lines = [] if past.alarms is None else [past.alarms.line]
        lines += [f"{name}: {state.line}" for name, state in past.monitors]
        lines += [] if past.chain is None else past.chain.changes()
        printer.line("\n".join(lines))
        if html is not None:
            write_history_page(past, html)
        _end(printer, html, output, {"lines": lines})
        return
    with printer.busy("computing what is proved"):
        calibration = Calibration.load(file, console.pinned_key(server_key))
        if record is not None:
            calibration = calibration.with_record(record)
        if html is not None:
            past = _history_of(calibration, file, history or [])
            write_page(calibration, html, past, about(title, study, run_by, date))
            _end(printer, html, output, {"sites": calibration.federation.n_clients})
            return
        federation, asked = calibration.federation, [exact_level(text) for text in coverage or ()]
        if plot is not None and calibration.by is not None and asked:
            raise RobfcpError(
                f"--plot: by {calibration.by} the calibration's own thresholds are drawn; drop "
                "--coverage"
            )
        numbers = _numbers(liars, federation.n_clients)
        sure: dict[str, Any] = {"confidence": confidence, "alike": alike}
        outcomes = [
            _judged(calibration, level, numbers, **sure)
            for level in asked or [level.coverage for level in calibration.levels]
        ]
        alone = {m: likeness.estimate_heterogeneity(federation, m, confidence) for m in numbers}
        limits = [
            max((one.threshold for one in each if one.budgets), default=np.inf)
            for _, each in outcomes
        ]
        sites = _sites(calibration, limits if asked else None)
        within = _within_classes(federation, max(numbers), confidence)
    show_calibration(calibration, diagnose(calibration), printer)
    if alike is not None:
        unlike = likeness.least_liars(federation, alike, confidence)
        words = "every site is as alike as stated, as far as the reports tell"
        if unlike:
            many = "1 site is" if unlike == 1 else f"{unlike} sites are"
            words = f"at least {many} not as alike as stated"
        printer.line(f"With {at_least(confidence)} confidence, {words}.")
    for level, each in outcomes:
        _show_level(printer, level, each, calibration.by, **sure)
    _explain(printer, calibration, outcomes)
    _show_alike(printer, alone, within, max(numbers))
    _show_sites(printer, sites)
    if plot is not None:
        from robfcp.figures import plot_by_class, plot_certificates, save

        drawn: Any = [one for _, each in outcomes for one in each]
        save(plot_by_class(calibration) if calibration.by else plot_certificates(drawn), plot)
        printer.wrote(plot)
    data = {
        "n_clients": federation.n_clients,
        "n_samples": federation.n_samples,
        "levels": [
            {
                "coverage": level,
                "by": calibration.by,
                "parts": each,
                "no_rule_survives": promises.liars_no_rule_survives(federation.sizes, level),
            }
            for level, each in outcomes
        ],
        "alike": alone,
        "sites": sites,
        "classes": within,
    }
    _end(printer, html, output, data)


Outcome = tuple[Fraction, tuple[what_if.Budgets, ...]]  # a level; one part without classes


def _judged(
    calibration: Calibration, level: Fraction, numbers: Sequence[int], **sure: Any
) -> Outcome:
    """One level: the calibration's own thresholds, or FCP's of those it trusts."""
    federation, mask = calibration.federation, calibration.trusted_mask
    stored = next((one for one in calibration.levels if one.coverage == level), None)

    def edge(members: tuple[str, ...], held: Federation) -> int | None:
        """The edge of the threshold that these classes share; None where it is infinite."""
        if stored is not None:
            limit = stored.threshold
            if members:
                limit = next(one.threshold for one in stored.parts if one.name in members)
            return int(held.grid.edge_at(limit)) if np.isfinite(limit) else None
        place = {client: k for k, client in enumerate(federation.ids)}
        trusted = mask[[place[client] for client in held.ids]] if members else mask
        return FcpThreshold(held, trusted).index(level) if trusted.any() else None

    if calibration.by is None:
        return level, (what_if.what_if(federation, level, edge((), federation), numbers, **sure),)
    clusters = calibration.record.clusters
    return level, what_if.what_if_by(
        federation, calibration.by, level, edge, numbers, clusters=clusters, **sure
    )


def _show_level(
    printer: Printer,
    level: Fraction,
    parts: Sequence[what_if.Budgets],
    by: str | None,
    confidence: float,
    alike: float | None,
) -> None:
    """One level's table, the classes of which least is proved first."""

    def weakest(one: what_if.Budgets) -> tuple[float, float]:
        """Unheld first, then by what is proved against most liars, then against fewest."""
        rows = one.budgets
        return (rows[-1].certificate.lower, rows[0].certificate.lower) if rows else (-1.0, -1.0)

    rows: list[list[object]] = []
    for one in sorted(parts, key=weakest)[:SHOWN]:
        first: list[object] = [one.name, one.holders]
        if not one.budgets:
            rows.append([*first, "-", "", "nothing", "", "-", "-", "-", "-"])
            continue
        first.append(one.threshold)
        for row in one.budgets:
            bound, full = row.certificate, row.full_sets_from
            proved = [at_least(bound.lower), at_most(bound.upper)]
            proved = ["nothing", ""] if bound.vacuous else proved
            promised = row.marginal, row.pac, row.alike
            rows.append([*first, row.m, *proved, *promised, "-" if full is None else full])
            first = ["", "", ""]
    columns = [by or "", "sites", "threshold", "m", "from", "to", "marginal", "pac", "alike"]
    columns.append("full at")
    hidden = {"alike"} if alike is None else set()
    head = f"what if coverage {float(level):g} and m liars, {confidence:.0%} sure"
    if by is None:
        hidden |= {"", "sites"}
    else:
        more = f", the {SHOWN} weakest of {len(parts)}" if len(parts) > SHOWN else ""
        once = " at once" if len(parts) > 1 else ""
        head = f"by {by} at {float(level):g}{more}, {confidence:.0%} sure{once}"
    shown = [k for k, name in enumerate(columns) if name not in hidden]
    printer.table(head, [columns[k] for k in shown], [[row[k] for k in shown] for row in rows])


def _explain(printer: Printer, calibration: Calibration, outcomes: Sequence[Outcome]) -> None:
    """What the columns mean, and where nothing is proved."""
    by, sizes = calibration.by, calibration.federation.sizes
    whose = "the honest sites' coverage with this threshold (each weighted by its samples)"
    if by is not None:
        whose = f"a {by}'s coverage at the honest ones among the sites that hold it"
    printer.line(
        f"from, to: either more than m lie or {whose} lies there; all rows are true at once with "
        "the stated confidence. marginal, pac, alike (pac for sites declared alike): thresholds "
        "that would guarantee the wanted level. full at: so many liars can make every set full "
        "under the marginal threshold."
    )
    if by is not None:
        printer.line(
            f"A {by} that m or fewer sites hold cannot be protected from m liars by anybody."
        )
        return
    for level, (whole,) in outcomes:
        if whole.empty_from is not None:
            printer.line(f"At {float(level):g} nothing is proved from {whole.empty_from} liars on.")
    limit = promises.liars_no_rule_survives(sizes, outcomes[0][0])
    if limit is not None:
        printer.line(
            f"Against {limit} or more of {len(sizes)}, liars can make every set full, whatever "
            f"rule promises {float(outcomes[0][0]):g}, unless it is stated how alike sites are."
        )
    outside = outside_of(calibration.federation)
    if outside:
        printer.line(f"outside every certificate (missing or faulty): {', '.join(outside)}")


def _show_alike(
    printer: Printer, found: dict[int, Any], within: dict[str, Any] | None, m: int
) -> None:
    """How alike the reports look, which is never used by itself and falls with m."""
    printer.table(
        f"how far sites seem to differ ({next(iter(found.values())).label})",
        ["m", "suggested", "seen", "by chance", "at least"],
        [
            (m, *(f"{x:.3f}" for x in (one.suggested, one.observed, one.by_chance, one.at_least)))
            for m, one in found.items()
        ],
    )
    printer.line(
        "If m may lie, the m reports farthest from the middle are set aside, since a liar can look "
        "as unlike as it wants: seen is how far the next one is, so it falls as m grows. State how "
        "alike sites are from what you know of them: liars who stay close to the others are not "
        "set aside, and honest sites that differ most are."
    )
    if within is None:
        return
    thin, shift = within["hardly_protected"], within["least_shift"]
    if thin:
        named = ", ".join(thin[:SHOWN]) + (", ..." if len(thin) > SHOWN else "")
        printer.line(f"Against {m} liars hardly protected, held by at most {2 * m} sites: {named}.")
    if shift is not None:
        printer.line(
            f"Label shift: the smallest at which none of them would be dropped is {shift:.3f} "
            "(a diagnostic, liars included; it is not used by itself)."
        )


def _within_classes(federation: Federation, m: int, confidence: float) -> dict[str, Any] | None:
    """What reports by class tell: who is alike within classes, and which classes liars can own."""
    strata = federation.strata
    if strata is None or strata.by != "class":
        return None
    holders = (strata.sizes > 0).sum(axis=0)
    thin = [strata.labels[c] for c in np.flatnonzero((holders > 0) & (holders <= 2 * m))]
    shift = None
    if federation.exact_strata is not None and m < len(strata.rows) <= label_shift.MOST_COMPARED:
        shift = label_shift.least_shift(federation, m, confidence)
    return {"hardly_protected": thin, "least_shift": shift}


def _sites(calibration: Calibration, limits: list[float] | None) -> list[dict[str, Any]]:
    """Each site's own reported scores under the thresholds; worst first.

    The worst ones also under the threshold that their letters come to, where these hold one.
    """
    federation, own = calibration.federation, {}
    covered = (
        by_class.covered_at_sites(calibration)
        if limits is None
        else by_class.site_coverage(federation, limits)
    )
    order = np.argsort(covered[:, 0], kind="stable").tolist()
    if limits is None:
        own = letter_files.own_thresholds(calibration, {federation.ids[k] for k in order[:SHOWN]})
    return [
        {
            "client": federation.ids[k],
            "samples": int(federation.sizes[k]),
            "coverage": covered[k].tolist(),
            "own": own[federation.ids[k]]._asdict() if federation.ids[k] in own else None,
        }
        for k in order
    ]


def _show_sites(printer: Printer, sites: list[dict[str, Any]]) -> None:
    """The worst sites; with what their own letters do for them, where there are any."""
    more = f", the {SHOWN} lowest of {len(sites)}" if len(sites) > SHOWN else ""
    own = any(one["own"] for one in sites)
    rows = []
    for one in sites[:SHOWN]:
        rows.append([one["client"], one["samples"], ", ".join(f"{c:.3f}" for c in one["coverage"])])
        if own:
            at = one["own"]
            rows[-1] += ["-", "-"] if at is None else [at["threshold"], f"{at['covered']:.3f}"]
    columns = ["site", "samples", "covered"] + ["own threshold", "covers"] * own
    printer.table(f"coverage each site reports of its own samples{more}", columns, rows)
    if own:
        printer.line(
            "own threshold: what the site's letter comes to (robfcp predict --letter), up to one "
            "bin: the others' reports for its label mix, clipped by its own samples."
        )


def _numbers(texts: list[str] | None, n_clients: int) -> tuple[int, ...]:
    """The numbers of liars asked about."""
    parts = [part.strip() for text in texts or () for part in text.split(",") if part.strip()]
    for part in parts:
        number = console.natural(part)
        if number is None or number >= n_clients:
            raise RobfcpError(
                f"--liars: {part!r} is not a number below the {n_clients} sites; "
                f"give numbers from 0 to {n_clients - 1}, separated by commas"
            )
    return tuple(sorted({*map(int, parts)})) or what_if.default_budgets(n_clients)


def _read_history(paths: Sequence[Path]) -> History:
    """Records of alarms, states of monitors and chains, in any order; one of each but monitors."""
    found: dict[str, list[Any]] = {kind: [] for kind in HISTORIES}
    for path in paths:
        data = read_limited(path, MAX_BYTES)
        kind = document.kind_of(data)
        if kind not in found:
            raise RobfcpError(
                f"{path}: is no history; pass what alarms --history, monitor --state or calibrate "
                "--previous wrote"
            )
        if found[kind] and kind != "monitor":
            raise RobfcpError(f"{path}: is the second {kind} file; pass one")
        one = HISTORIES[kind].from_json(data, str(path))
        found[kind].append((one.client or path.stem, one) if kind == "monitor" else one)
    if found["alarms"] and found["monitor"]:
        raise RobfcpError(
            "history: a server's record and sites' monitors go on different pages; pass one kind"
        )
    alarms, chain = (next(iter(found[kind]), None) for kind in ("alarms", "chain"))
    return History(alarms, tuple(found["monitor"]), chain)


def _history_of(calibration: Calibration, path: Path, paths: Sequence[Path]) -> History:
    """The history files stated, and the chain that lies beside the calibration."""
    beside = chain_path(path)
    found = _read_history([*paths, *([beside] if beside.exists() and beside not in paths else [])])
    watched = {state.calibration for _, state in found.monitors}
    watched |= set() if found.alarms is None else {found.alarms.calibration}
    if watched - {calibration.identity}:
        raise RobfcpError(f"{path}: the history is that of another calibration; pass its own")
    if found.chain is not None and found.chain.links[-1].calibration != calibration.identity:
        raise RobfcpError(f"{beside}: is not the chain of {path}; pass the newest calibration")
    return found


def _end(printer: Printer, html: Path | None, output: Path | None, data: dict[str, Any]) -> None:
    """The same for programs, and where things went."""
    if html is not None:
        data = {**data, "html": str(html), "bytes": html.stat().st_size}
        printer.line(f"page ({html.stat().st_size / 1000:.0f} kB) -> {html}")
    console.save_json(output, data)
    printer.wrote(output)
    printer.json(data)
