"""What the page embeds: the calibration for the eye, compactly."""

from __future__ import annotations

import base64
import hashlib
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp import __version__
from robfcp.calibration import (
    Calibration,
    Level,
    Settings,
    covered_by_stratum,
    diagnose,
    own_thresholds,
    stratum_limits,
)
from robfcp.certificate import Certificate
from robfcp.defence import Consensus, Defence, NoDefence, defence_again, threshold_of
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, comparable, smoothed_below, whole
from robfcp.grid import Grid
from robfcp.guarantees import (
    CountBounds,
    Marginal,
    Pac,
    Promise,
    bounds_of,
    coverage_interval,
    most_liars,
)
from robfcp.page.sentences import diagnoses_data, headline, loss_notes, message, percent

LONGEST = 200


@dataclass(frozen=True)
class About:
    """The lines at the top of a page; empty ones are left out.

    Parameters
    ----------
    title
        What the calibration is for.
    study
        The study, protocol or project.
    by
        Who ran it.
    date
        When, as people write it.

    Examples
    --------
    >>> from robfcp.page import About
    >>> About("Outcome after stroke", study="IST", by="A. Analyst", date="15 November 2026").lines
    ('IST', '15 November 2026', 'run by A. Analyst')
    """

    title: str = ""
    study: str = ""
    by: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        for one in fields(self):
            if len(getattr(self, one.name)) > LONGEST:
                raise RobfcpError(f"{one.name}: more than {LONGEST} letters do not fit the page")

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands beside the title."""
        by = f"run by {self.by}" if self.by else ""
        return tuple(part for part in (self.study, self.date, by) if part)


MOST_STRATA = 60
MOST_SITES = 60
WITH_OWN = 20  # sites shown, whose letters are worked out


def strata_data(calibration: Calibration) -> dict[str, Any] | None:
    """A row for each class or group, and for the worst sites their mix and own coverage.

    None where the reports keep no such counts.
    """
    federation = calibration.federation
    strata = federation.strata
    if strata is None:
        return None
    limits = stratum_limits(strata, calibration.levels[0])
    covered, sizes = covered_by_stratum(strata, federation.grid, calibration.levels[0])
    totals = sizes.sum(axis=0)
    order = np.argsort(-totals, kind="stable")[:MOST_STRATA]
    own = covered.sum(axis=1) / np.maximum(sizes.sum(axis=1), 1)
    sites = np.argsort(own, kind="stable")[:MOST_SITES]
    levels = {one.name: one for one in calibration.levels[0].strata}
    worst = [federation.ids[strata.rows[r]] for r in sites[:WITH_OWN]]
    letters = own_thresholds(calibration, set(worst))
    return {
        "by": strata.by,
        "n_strata": strata.n_strata,
        "n_sites": len(strata.rows),
        "pooled_only": [
            federation.ids[k] for k in np.setdiff1d(range(federation.n_clients), strata.rows)
        ],
        "own_thresholds": bool(levels),
        "rows": [
            {
                "name": strata.labels[c],
                "threshold": None if not np.isfinite(limits[c]) else float(limits[c]),
                "sites": int((sizes[:, c] > 0).sum()),
                "samples": int(totals[c]),
                "covered": _share(covered[:, c].sum(), totals[c]),
                "proved": _proved(levels.get(strata.labels[c])),
                "protection": getattr(levels.get(strata.labels[c]), "protection", ""),
            }
            for c in order
        ],
        "sites": [
            {
                "name": federation.ids[strata.rows[r]],
                "samples": int(sizes[r].sum()),
                "covered": round(float(own[r]), 5),
                "own": _own(letters.get(federation.ids[strata.rows[r]])),
                "mix": [_share(sizes[r, c], sizes[r].sum()) for c in order],
                "by": [_share(covered[r, c], sizes[r, c]) for c in order],
            }
            for r in sites
        ],
    }


def strata_notes(calibration: Calibration) -> tuple[str, ...]:
    """How to read the sliders of a page with a threshold for each class."""
    if calibration.by is None:
        return ()
    return (
        f"There is a threshold for each {calibration.by}; the sliders and charts above the table "
        "speak of one threshold for all of them.",
    )


def _own(letter: Any) -> list[float | None] | None:
    """The threshold that the site's letter comes to, and the share of its samples it covers."""
    if letter is None:
        return None
    return [letter.threshold if np.isfinite(letter.threshold) else None, round(letter.covered, 5)]


def _share(part: float, whole: float) -> float | None:
    return round(float(part) / float(whole), 5) if whole > 0 else None


def _proved(one: Any) -> list[float] | None:
    return None if one is None else [one.certificate.lower, one.certificate.upper]


LEVELS = tuple(Fraction(step, 100) for step in range(50, 100)) + (Fraction(995, 1000),)
COARSE_LEVELS = tuple(Fraction(level, 100) for level in (50, 70, 80, 85, 90, 95, 98, 99))
MANY = 48
FEW = 12
INFINITE = -1

Ends = tuple[NDArray[np.float64], NDArray[np.float64]]
Proved = Callable[[NDArray[np.intp]], Ends]


@dataclass(frozen=True, eq=False)
class OfferTable:
    """Outcomes by number of liars and level, (M, L): the threshold's edge (-1 = infinite) and
    the coverage proved."""

    liars: tuple[int, ...]
    levels: tuple[Fraction, ...]
    index: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Offers:
    """The tables of the modes on offer, and for each number of liars whom the defence leaves out
    and where the coverage of every shown edge lies. `frozen` says why the defence could not be run
    again: the recorded clients are then left out at every number."""

    tables: dict[str, OfferTable]
    liars: tuple[int, ...]
    excluded: tuple[NDArray[np.intp], ...]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    frozen: str = ""


def what_if(calibration: Calibration, shown: NDArray[np.intp]) -> Offers:
    """Every setting the page offers, computed as `calibrate` would; `shown` are edges to plot."""
    federation, settings = calibration.federation, calibration.settings
    bounds = bounds_of(federation)
    own = tuple(level.coverage for level in calibration.levels)
    coarse = tuple(sorted({*COARSE_LEVELS, *own}))
    few = _numbers(federation.n_clients, calibration.liars, FEW)
    many = _numbers(federation.n_clients, calibration.liars, MANY)
    # where counts may fall every edge must be looked at, which takes longer
    levels = coarse if bounds.falling else tuple(sorted({*LEVELS, *own}))
    liars = few if bounds.falling else tuple(sorted({*many, *few}))
    rule, frozen = _rule(settings)
    excluded = _excluded(calibration, liars, rule)
    proved = [_proved_offer(calibration, m, bounds) for m in liars]
    tables = {
        "defence": _defended(
            calibration,
            bounds=bounds,
            levels=levels,
            liars=liars,
            excluded=excluded,
            proved=proved,
            rule=rule,
        ),
        "marginal": _marginal(bounds, federation.grid.n_bins, levels, liars),
    }
    promise = settings.promise
    plain = isinstance(promise, Marginal) and promise.samples is None
    if promise is not None and not plain and settings.by is None:
        stated = few if isinstance(promise, Pac) else (calibration.liars,)
        tables["stated"] = _called(federation, promise, settings.confidence, coarse, stated)
    bounds.foresee(shown, liars)
    curves = [at(shown) for at in proved]
    return Offers(
        tables,
        liars,
        excluded,
        np.stack([low for low, _ in curves]),
        np.stack([high for _, high in curves]),
        frozen,
    )


def _numbers(n_clients: int, own: int, many: int) -> tuple[int, ...]:
    """0 .. (K-1)/2 and the stated number: all of them, or `many`, densest among the small ones."""
    most = (n_clients - 1) // 2
    if most <= many:
        return tuple(sorted({*range(most + 1), own}))
    spread = np.round(most * np.linspace(0, 1, many) ** 2).astype(int)
    return tuple(sorted({*spread.tolist(), *range(min(8, many)), own}))


def _rule(settings: Settings) -> tuple[Defence | None, str]:
    """The defence made again, or why it cannot be."""
    try:
        return defence_again(settings.defence, settings.parameters), ""
    except RobfcpError as error:
        return None, str(error)


def _excluded(
    calibration: Calibration, liars: tuple[int, ...], rule: Defence | None
) -> tuple[NDArray[np.intp], ...]:
    """Whom the defence leaves out when told each number; as recorded where it cannot be told."""
    evidence = calibration.evidence
    federation = comparable(evidence.federation)
    most = (federation.n_clients - 1) // 2
    recorded = np.flatnonzero(~evidence.trusted_mask)
    if rule is None or isinstance(rule, NoDefence):
        return (recorded,) * len(liars)
    finding = rule.look(federation) if isinstance(rule, Consensus) else None

    def left_out(m: int) -> NDArray[np.intp]:
        told, own = min(m, most), m == calibration.liars and calibration.settings.promise is None
        if own:
            return recorded
        if isinstance(rule, Consensus) and finding is not None:
            number = {"at_most": told} if rule.exactly is None else {"exactly": told}
            trusted = replace(rule, **number).judge(federation, finding).trusted
        else:
            trusted = replace(cast(Any, rule), liars=told)(federation).trusted
        return np.flatnonzero(~trusted)

    return tuple(left_out(m) for m in liars)


def _proved_offer(calibration: Calibration, m: int, bounds: CountBounds) -> Proved:
    """The coverage proved at given edges against m liars, as `certify` computes it."""
    n_edges, delta = calibration.federation.grid.n_bins, 1 - calibration.settings.confidence

    def at(edges: NDArray[np.intp]) -> Ends:
        places, where = np.unique(edges, return_inverse=True)
        low, high = coverage_interval(bounds, places, m, delta, n_edges)
        return low[where], high[where]

    return at


def _defended(
    calibration: Calibration,
    bounds: CountBounds,
    levels: tuple[Fraction, ...],
    liars: tuple[int, ...],
    excluded: tuple[NDArray[np.intp], ...],
    proved: list[Proved],
    rule: Defence | None,
) -> OfferTable:
    """The defence's own threshold on the clients it trusts, with the certificate of any."""
    federation = calibration.federation
    shape = (len(liars), len(levels))
    index = np.empty(shape, dtype=np.int64)
    lower, upper = np.ones(shape), np.ones(shape)
    edges: dict[bytes, list[int]] = {}  # by whom is left out: often the same for many numbers
    for row, out in enumerate(excluded):
        mask = np.ones(federation.n_clients, dtype=bool)
        mask[out] = False
        if mask.tobytes() not in edges:
            own = threshold_of(rule, federation, mask)
            found = [own.index(level) for level in levels]
            edges[mask.tobytes()] = [INFINITE if edge is None else edge for edge in found]
        index[row] = edges[mask.tobytes()]
    for edge in np.unique(index[index != INFINITE]):  # only what some row asks for
        wanted = np.flatnonzero((index == edge).any(axis=1))
        bounds.foresee(np.array([edge]), [liars[row] for row in wanted])
    for row in range(len(liars)):
        finite = index[row] != INFINITE
        if finite.any():
            lower[row, finite], upper[row, finite] = proved[row](index[row, finite])
    return OfferTable(liars, levels, index, lower, upper)


def _marginal(
    bounds: CountBounds,
    n_bins: int,
    levels: tuple[Fraction, ...],
    liars: tuple[int, ...],
) -> OfferTable:
    """The threshold guaranteed against each m: the first edge that holds against so many."""
    wanted = np.array(liars)
    index = np.empty((len(liars), len(levels)), dtype=np.int64)
    for column, level in enumerate(levels):
        low, high = np.zeros(len(liars), dtype=np.intp), np.full(len(liars), n_bins)
        while (low < high).any():
            middle = (low + high) // 2
            edges = np.minimum(middle, n_bins - 1)
            enough = most_liars(bounds, edges, level) >= wanted
            enough |= middle == n_bins
            low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
            low = np.minimum(low, high)
        index[:, column] = np.where(high == n_bins, INFINITE, high)
    lower = np.broadcast_to(np.array([float(level) for level in levels]), index.shape)
    return OfferTable(liars, levels, index, lower, np.ones(index.shape))


def _called(
    federation: Federation,
    promise: Promise,
    confidence: float,
    levels: tuple[Fraction, ...],
    liars: tuple[int, ...],
) -> OfferTable:
    """A promise at a few settings, each computed as `calibrate` does."""
    index = np.empty((len(liars), len(levels)), dtype=np.int64)
    lower, upper = np.empty(index.shape), np.empty(index.shape)
    for row, m in enumerate(liars):
        told = promise if promise.liars is None else msgspec.structs.replace(promise, liars=m)
        for column, level in enumerate(levels):
            found, certificate = told.threshold(federation, level, confidence)
            index[row, column] = INFINITE if found is None else found
            lower[row, column], upper[row, column] = certificate.lower, certificate.upper
    return OfferTable(liars, levels, index, lower, upper)


VIEW = 160  # edges a distribution is drawn with


def page_data(calibration: Calibration, about: About) -> dict[str, Any]:
    """Everything the page shows, as JSON values; arrays of counts as base64 varints."""
    federation, grid = calibration.federation, calibration.federation.grid
    view = view_edges(whole(federation).pooled(), grid)
    offers = what_if(calibration, view)
    used = np.unique(
        np.concatenate([view, *(t.index[t.index >= 0] for t in offers.tables.values())])
    )
    first = calibration.levels[0]
    below = smoothed_below(federation)
    drawn = smoothed_below(comparable(federation))
    shares = rising_shares(below[:, view], federation.masses[:, None])
    found = diagnose(calibration)
    return {
        "about": {"title": about.title, "lines": about.lines},
        "message": asdict(message(calibration, found)),
        "headline": asdict(headline(calibration, first)),
        "diagnoses": diagnoses_data(found),
        "levels": [_level(level) for level in calibration.levels],
        "grid": {
            "name": grid.name,
            "bins": grid.n_bins,
            "low": number(grid.edges[0]),
            "used": used.tolist(),
            "edges": [number(federation.threshold_at(int(edge))) for edge in used],
        },
        "view": view.tolist(),
        "clients": _clients(calibration, first, below),
        "counts": base64.b64encode(varints(np.diff(drawn[:, view], prepend=0))).decode(),
        "crowd": crowd(shares[calibration.trusted_mask]),
        "everybody": rounded(rising_shares(below[:, view].sum(axis=0), federation.masses.sum())),
        "faulty": [asdict(fault) for fault in calibration.faulty],
        "missing": list(calibration.missing),
        "whatif": _what_if(offers, federation),
        "own": {
            "m": calibration.liars,
            "guarantee": first.certificate.kind if calibration.settings.promise else None,
            "confidence": calibration.settings.confidence,
        },
        "strata": strata_data(calibration),
        "audit": audit(calibration),
        "notes": [*calibration.remarks, *loss_notes(calibration), *strata_notes(calibration)],
    }


def view_edges(pooled: NDArray[np.int64], grid: Grid) -> NDArray[np.intp]:
    """About VIEW bins to draw a distribution with: half equiprobable, half spread evenly."""
    n_bins, upper = grid.n_bins, grid.upper
    if n_bins <= VIEW:
        return np.arange(n_bins)
    wanted = np.linspace(0, 1, VIEW // 2)
    equiprobable = np.searchsorted(np.cumsum(pooled) / pooled.sum(), wanted).clip(max=n_bins - 1)
    occupied = upper[(pooled > 0) & np.isfinite(upper)]
    places = occupied
    if occupied.size:
        places = np.linspace(occupied[0], occupied[-1], VIEW // 4)
    spread = grid.edge_at(places)
    steps = np.linspace(0, n_bins - 1, VIEW // 4).astype(np.intp)
    return np.unique(np.concatenate([equiprobable, spread, steps, [n_bins - 1]]))


def rising_shares(below: NDArray[np.int64], total: ArrayLike) -> NDArray[np.float64]:
    """Shares in [0, 1] that never fall, as counts with noise may."""
    return np.maximum.accumulate(np.clip(below / np.asarray(total), 0, 1), axis=-1)


def crowd(shares: NDArray[np.float64]) -> dict[str, list[float]]:
    """The trusted clients' CDFs at each shown edge: 5%, 50% and 95% quantiles."""
    low, middle, high = np.quantile(shares, [0.05, 0.5, 0.95], axis=0)
    return {"low": rounded(low), "middle": rounded(middle), "high": rounded(high)}


def varints(values: NDArray[np.int64]) -> bytes:
    """Whole numbers x as 2x, or -2x - 1 if negative: seven bits a byte, the lowest first, the top
    bit set on all but the last byte of each."""
    signed = np.asarray(values, dtype=np.int64).ravel()
    flat = ((signed << 1) ^ (signed >> 63)).astype(np.uint64)
    length = np.ones(flat.size, dtype=np.intp)
    rest = flat >> np.uint64(7)
    while rest.any():
        length += rest > 0
        rest = rest >> np.uint64(7)
    ends = np.cumsum(length)
    out = np.empty(int(ends[-1]) if ends.size else 0, dtype=np.uint8)
    for place in range(int(length.max(initial=0))):
        chosen = length > place
        more = length[chosen] > place + 1
        digit = (flat[chosen] >> np.uint64(7 * place)) & np.uint64(127)
        out[(ends - length)[chosen] + place] = digit.astype(np.uint8) | (more * np.uint8(128))
    return out.tobytes()


def number(value: float) -> float | None:
    """A float for JSON; infinite ones become null."""
    return float(value) if np.isfinite(value) else None


def rounded(values: NDArray[np.float64]) -> list[float]:
    """Five decimals, enough to draw with."""
    return [float(value) for value in np.round(values, 5)]


def audit(calibration: Calibration) -> list[tuple[str, str]]:
    """Names and values an auditor needs to make the same calibration again."""
    federation, settings = calibration.federation, calibration.settings
    score = federation.score
    rows = [
        ("calibration digest (SHA-256 of the file)", _sha256(calibration.to_json())),
        ("evidence digest (SHA-256 of the file)", calibration.evidence_digest),
        ("made with", f"robfcp {calibration.version}"),
        ("page made with", f"robfcp {__version__}, Python {platform.python_version()}"),
        ("coverage", ", ".join(str(x.coverage) for x in calibration.levels)),
        ("number of liars", str(calibration.liars)),
        ("that number was", "stated" if calibration.liars_stated else "read off the reports"),
        *((name.replace("_", " "), _shown(value)) for name, value in _settings(settings)),
        *((f"checked: {name}", value) for name, value in asdict(calibration.checked).items()),
        ("score", "not named" if score is None else repr(score)),
        ("grid", f"{federation.grid.name}, {federation.grid.n_bins} bins"),
        ("grid digest", federation.grid.digest),
        ("round", _shown(federation.round)),
        ("model", _shown(federation.model)),
        ("privacy", _privacy(calibration)),
        ("reports digest", _sha256(np.ascontiguousarray(federation.counts, dtype="<i8").tobytes())),
    ]
    return rows


def _settings(settings: Settings) -> Iterator[tuple[str, object]]:
    """The settings one by one; the defence with its parameters."""
    for name in ("defence", "promise", "by", "clusters", "confidence"):
        yield name, getattr(settings, name)
    for own, setting in settings.parameters.items():
        yield f"{settings.defence}: {own}", setting


def _privacy(calibration: Calibration) -> str:
    """What noise the reports hold, and how many of them."""
    stated = Counter(p.statement for p in calibration.federation.privacy if p is not None)
    return "; ".join(f"{n} reports {words}" for words, n in stated.items()) or "none"


def _level(level: Level) -> dict[str, Any]:
    certificate: Certificate = level.certificate
    return {
        "level": percent(float(level.coverage)),
        "value": float(level.coverage),
        "threshold": number(level.threshold),
        "lower": certificate.lower,
        "upper": certificate.upper,
        "statement": certificate.statement,
        "curve": [[point.m, point.lower, point.upper] for point in level.curve],
        "empty_from": level.empty_from,
        "assumptions": [assumption.text for assumption in certificate.assumptions],
    }


def _clients(calibration: Calibration, level: Level, below: NDArray[np.int64]) -> dict[str, Any]:
    """Columns: name, size, oddness, trusted, share at or below the threshold, reason."""
    federation = calibration.federation
    edge = federation.grid.edge_at(level.threshold)
    covered = np.clip(below[:, edge] / federation.masses, 0, 1)
    return {
        "id": list(federation.ids),
        "size": federation.sizes.tolist(),
        "oddness": [float(f"{value:.6g}") for value in calibration.oddness],
        "trusted": calibration.trusted_mask.astype(int).tolist(),
        "covered": rounded(covered),
        "reason": {c: calibration.reasons.get(c, "") for c in calibration.flagged},
    }


def _what_if(offers: Offers, federation: Federation) -> dict[str, Any]:
    sizes = expected_sizes(offers, federation)
    return {
        "tables": {
            name: {**_table(table), "size": sizes.get(name)}
            for name, table in offers.tables.items()
        },
        "liars": list(offers.liars),
        "excluded": [out.tolist() for out in offers.excluded],
        "proved": {
            "lower": [rounded(row) for row in offers.lower],
            "upper": [rounded(row) for row in offers.upper],
        },
        "frozen": offers.frozen,
    }


def expected_sizes(offers: Offers, federation: Federation) -> dict[str, list[list[float]]]:
    """For each table the mean number of labels in a set, (M, L), at the sites that tell it.

    Those that the defence would leave out are left out; {} where nobody tells.
    """
    told = federation.set_sizes
    if told is None:
        return {}
    curves = []
    for out in offers.excluded:
        kept = ~np.isin(told.rows, out)
        total = max(1, int(federation.sizes[told.rows[kept]].sum()))
        curves.append(np.cumsum(told.table.pooled(kept)) / total)
    place = {m: row for row, m in enumerate(offers.liars)}
    return {  # -1, an infinite threshold, is the last bin: every label
        name: [
            rounded(curves[place[m]][row]) for m, row in zip(table.liars, table.index, strict=True)
        ]
        for name, table in offers.tables.items()
    }


def _table(table: OfferTable) -> dict[str, Any]:
    """Rows by number of liars; columns by level."""
    return {
        "liars": list(table.liars),
        "levels": [float(level) for level in table.levels],
        "index": table.index.tolist(),
        "lower": [[float(f"{x:.9g}") for x in row] for row in table.lower],
        "upper": [[float(f"{x:.9g}") for x in row] for row in table.upper],
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
