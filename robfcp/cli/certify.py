"""`robfcp certify`: everything that can be proved about a round, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import typer

from robfcp.calibration import (
    MAX_CALIBRATION_BYTES,
    Budgets,
    Calibration,
    default_budgets,
    kind_of,
    what_if,
)
from robfcp.certificate import at_least, at_most
from robfcp.cli._certify_by import ByStratum, judged, show_strata, strata_levels
from robfcp.cli._certify_data import frame, level_data
from robfcp.cli._certify_sites import by_site, show_sites, within_classes
from robfcp.cli._common import (
    EvidenceOption,
    Json,
    Output,
    Printer,
    Quiet,
    ServerKey,
    pinned_key,
    prepare,
    prepare_figure,
    save_json,
)
from robfcp.cli._paths import REPORTS, expanded
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.files import read_limited
from robfcp.guarantees import (
    FcpThreshold,
    HeterogeneityEstimate,
    estimate_heterogeneity,
    exact_level,
    least_liars,
    liars_no_rule_survives,
    outside_of,
)
from robfcp.lab.published import PublishedBound, bound_for


class Round(NamedTuple):
    """What is certified: the reports, FCP's threshold on those trusted, the thresholds in use."""

    federation: Federation
    plain: FcpThreshold
    thresholds: dict[Fraction, int | None]
    everybody: bool
    calibration: Calibration | None = None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("certify", no_args_is_help=True)(certify)


def certify(
    files: Annotated[list[Path], typer.Argument(help="Report files, or one calibration file.")],
    malicious: Annotated[
        list[str] | None,
        typer.Option("--malicious", "-m", help="Numbers of liars, as 0,5,9 or repeated."),
    ] = None,
    confidence: Annotated[
        list[str] | None,
        typer.Option("--confidence", help="What if this coverage were wanted; may be repeated."),
    ] = None,
    certificate_confidence: Annotated[float, typer.Option(help="Of the certificates.")] = 0.95,
    heterogeneity: Annotated[
        float | None, typer.Option(help="Stated bound on how much honest sites differ.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="Judge each 'class' or 'group' by itself; by default as calibrated."),
    ] = None,
    sizes: Annotated[
        Path | None, typer.Option(help="JSON registry {site: samples}; others are refused.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw proved coverage and tolerance curves (.png, .svg, .pdf)."),
    ] = None,
    evidence: EvidenceOption = None,
    server_key: ServerKey = None,
    output: Output = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what is proved if 0, 5, 9, ... sites lie, and what each promise would cost.

    [dim]Example: robfcp certify calibration.json -m 0,2,5,9 --confidence 0.9 --plot c.png[/dim]
    [dim]Example: robfcp certify calibration.json --json[/dim]
    """
    prepare(output)
    prepare_figure(plot)
    federation, plain, thresholds, everybody, calibration = _read(
        expanded(files, REPORTS), sizes, evidence, pinned_key(server_key)
    )
    budgets = _budgets(malicious, federation.n_clients)
    levels = [exact_level(text) for text in confidence] if confidence else None
    wanted = levels or list(thresholds) or [exact_level(0.9)]
    printer = Printer(as_json, quiet)
    if by is None and calibration is not None:
        by = calibration.by
    if plot is not None and by is not None and (calibration is None or levels):
        raise RobfcpError(f"--plot: by {by} a calibration's own thresholds are drawn; pass that")
    diagnostics = {
        m: estimate_heterogeneity(federation, m, certificate_confidence) for m in budgets
    }
    if heterogeneity is not None:
        _show_unlike(printer, federation, heterogeneity, certificate_confidence)
    sure: dict[str, Any] = {"confidence": certificate_confidence, "alike": heterogeneity}
    if by is not None:
        found = judged(federation, calibration, by, wanted, budgets, printer, **sure)
        for one in found:
            show_strata(printer, one)
        limits = [_largest(one) for one in found]
        data = frame(federation, strata_levels(found), diagnostics)
    else:
        with printer.progress() as progress:
            outcomes = [
                what_if(
                    federation,
                    level,
                    thresholds[level] if level in thresholds else plain.index(level),
                    budgets,
                    track=partial(progress.track, description=f"level {float(level):g}"),
                    **sure,
                )
                for level in wanted
            ]
        for outcome in outcomes:
            _show(printer, federation, outcome, _source(outcome.level in thresholds, everybody))
        _explain(printer, federation, outcomes)
        limits = [outcome.threshold for outcome in outcomes]
        data = frame(federation, level_data(federation, outcomes), diagnostics)
    _show_diagnostics(printer, federation, diagnostics)
    sites_data = by_site(federation, limits, None if levels else calibration)
    show_sites(printer, sites_data)
    shift = within_classes(printer, federation, max(budgets), certificate_confidence)
    if plot is not None:
        from robfcp.figures import plot_by_class, plot_certificates, save

        drawn = plot_certificates(outcomes) if by is None else plot_by_class(cast(Any, calibration))
        save(drawn, plot)
        printer.line(f"-> {plot}")
    data = {**data, "sites": sites_data, "classes": shift}
    if output is not None:
        save_json(output, data)
        printer.line(f"-> {output}")
    printer.json(data)


def _show_unlike(printer: Printer, federation: Federation, sigma: float, confidence: float) -> None:
    """How many sites, at least, are not as alike as stated."""
    unlike = least_liars(federation, sigma, confidence)
    words = "every site is as alike as stated, as far as the reports tell"
    if unlike:
        sites = "1 site is" if unlike == 1 else f"{unlike} sites are"
        words = f"at least {sites} not as alike as stated"
    printer.line(f"With {at_least(confidence)} confidence, {words}.")


def _largest(found: ByStratum) -> float:
    """Of the thresholds of all classes: what a site without classes is held to."""
    return max((one.outcome.threshold for one in found.strata if one.outcome), default=np.inf)


def _read(
    files: list[Path], sizes: Path | None, evidence: Path | None, server_key: str | None
) -> Round:
    """The reports, or a calibration with its evidence and the rank it was made with."""
    if len(files) != 1 or not _is_calibration(files[0]):
        if evidence is not None:
            raise RobfcpError("--evidence: belongs to a calibration; pass that, or the reports")
        if server_key is not None:
            raise RobfcpError("--server-key: signs calibrations; for signed reports use calibrate")
        federation = Federation.read(files, sizes=sizes)
        return Round(federation, FcpThreshold(federation), {}, True)
    if sizes is not None:
        raise RobfcpError("--sizes: a calibration already holds its sizes; pass the reports")
    calibration = Calibration.load(files[0], server_key)
    if evidence is not None:
        calibration = calibration.with_evidence(evidence)
    federation, trusted = calibration.federation, calibration.trusted_mask
    edges = {
        level.coverage: int(federation.grid.edge_at(level.threshold))
        if np.isfinite(level.threshold)
        else None
        for level in calibration.levels
    }
    plain = FcpThreshold(federation, trusted)
    return Round(federation, plain, edges, bool(trusted.all()), calibration)


def _source(stored: bool, everybody: bool) -> str:
    if stored:
        return "the calibration's"
    return "undefended FCP's" if everybody else "the trusted sites'"


def _is_calibration(path: Path) -> bool:
    return kind_of(read_limited(path, MAX_CALIBRATION_BYTES)) == "calibration"


def _budgets(texts: list[str] | None, n_clients: int) -> tuple[int, ...]:
    if not texts:
        return default_budgets(n_clients)
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    for part in parts:
        if not (part.isascii() and part.isdigit()) or int(part) >= n_clients:
            raise RobfcpError(
                f"--malicious: {part!r} is not a number below the {n_clients} sites; "
                f"give numbers from 0 to {n_clients - 1}, separated by commas"
            )
    return tuple(sorted({int(part) for part in parts}))


def _show(printer: Printer, federation: Federation, outcome: Budgets, source: str) -> None:
    """One level's table."""
    confidence = outcome.budgets[0].certificate.confidence or 0.0
    alike = outcome.budgets[0].alike is not None
    columns = ["m", "from", "to", "marginal", "pac"]
    columns += ["alike"] if alike else []
    columns += ["full at", "paper"]
    rows = []
    for row in outcome.budgets:
        bound = row.certificate
        cells: list[object] = [
            row.m,
            "nothing" if bound.vacuous else at_least(bound.lower),
            "" if bound.vacuous else at_most(bound.upper),
            row.marginal,
            row.pac,
        ]
        cells += [row.alike] if alike else []
        cells += [
            "-" if row.full_sets_from is None else row.full_sets_from,
            _paper_words(bound_for(federation.sizes, float(outcome.level), row.m)),
        ]
        rows.append(cells)
    title = f"coverage {float(outcome.level):g}, {source} threshold {outcome.threshold:.4g}"
    printer.table(f"{title}, {confidence:.0%} sure", columns, rows)


def _paper_words(bound: PublishedBound | None) -> str:
    if bound is None:
        return "-"
    return "vacuous" if bound.vacuous else f"{max(bound.lower, 0):.3f}-{min(bound.upper, 1):.3f}"


def _explain(
    printer: Printer,
    federation: Federation,
    outcomes: list[Budgets],
) -> None:
    """What the columns mean, and where nothing is proved."""
    printer.line(
        "from, to: either more than m sites lie or the honest sites' coverage with this "
        "threshold (each weighted by its number of samples) lies there; all rows are true at once "
        "with the stated confidence. marginal, pac, alike (pac for sites declared "
        "alike): thresholds guaranteed at the wanted level. full "
        "at: so many liars can make every set full under the marginal threshold. paper: theorem 1 "
        "as published (sigma = 0), known to be false for sites that differ."
    )
    for outcome in outcomes:
        if outcome.empty_from is not None:
            printer.line(
                f"At {float(outcome.level):g} nothing is proved from {outcome.empty_from} liars on."
            )
    limit = liars_no_rule_survives(federation.sizes, outcomes[0].level)
    if limit is not None:
        printer.line(
            f"Against {limit} or more of {federation.n_clients}, liars can make every set full, "
            f"whatever rule promises {float(outcomes[0].level):g}, unless it is stated how "
            "alike sites are."
        )


def _show_diagnostics(
    printer: Printer, federation: Federation, diagnostics: Mapping[int, HeterogeneityEstimate]
) -> None:
    """What is never used by itself, why it falls with m, and of whom nothing is said."""
    label = next(iter(diagnostics.values())).label
    printer.table(
        f"heterogeneity the reports suggest ({label})",
        ["m", "suggested", "seen", "by chance", "at least"],
        [
            (m, *(f"{x:.3f}" for x in (one.suggested, one.observed, one.by_chance, one.at_least)))
            for m, one in diagnostics.items()
        ],
    )
    printer.line(
        "If m may lie, the m reports farthest from the middle are set aside, since a liar can look "
        "as unlike as it wants: seen is how far the next one is, so it falls as m grows. State a "
        "heterogeneity with the m it was read at, from what you know of the sites: liars who "
        "stay close to the others are not set aside, and honest sites that differ most are."
    )
    outside = outside_of(federation)
    if outside:
        printer.line(f"outside every certificate (missing or faulty): {', '.join(outside)}")
