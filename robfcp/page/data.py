"""What the page embeds: the calibration for the eye, compactly."""

from __future__ import annotations

import base64
import hashlib
import platform
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._version import __version__
from robfcp.calibration import Calibration, Level, Settings, diagnose
from robfcp.federation import Federation, comparable, smoothed_below, whole
from robfcp.grid import Grid
from robfcp.guarantees import Certificate
from robfcp.page.about import About
from robfcp.page.message import diagnoses_data, message
from robfcp.page.offers import Offers, OfferTable, what_if
from robfcp.page.strata import strata_data, strata_notes
from robfcp.page.words import headline, loss_notes, percent

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
            "m": calibration.n_malicious,
            "guarantee": calibration.settings.guarantee,
            "certificate_confidence": calibration.settings.certificate_confidence,
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
        ("confidence level", ", ".join(str(x.confidence_level) for x in calibration.levels)),
        ("number of liars used", str(calibration.n_malicious)),
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
    for name, value in asdict(settings).items():
        if name != "parameters":
            yield name, value
        for own, setting in value.items() if name == "parameters" else ():
            yield f"{settings.defence}: {own}", setting


def _privacy(calibration: Calibration) -> str:
    """What noise the reports hold, and how many of them."""
    stated = calibration.federation.noise.statements().items()
    return "; ".join(f"{n} reports {words}" for words, n in stated) or "none"


def _level(level: Level) -> dict[str, Any]:
    certificate: Certificate = level.certificate
    return {
        "level": percent(float(level.confidence_level)),
        "value": float(level.confidence_level),
        "threshold": number(level.threshold),
        "tolerance": level.tolerance,
        "lower": certificate.lower,
        "upper": certificate.upper,
        "statement": certificate.statement,
        "curve": [[point.m, point.lower, point.upper] for point in level.curve],
        "empty_from": level.empty_from,
        "assumptions": [assumption.text for assumption in certificate.assumptions],
    }


def _clients(calibration: Calibration, level: Level, below: NDArray[np.int64]) -> dict[str, Any]:
    """Columns: name, size, maliciousness, trusted, share at or below the threshold, reason."""
    federation = calibration.federation
    edge = federation.grid.edge_at(level.threshold)
    covered = np.clip(below[:, edge] / federation.masses, 0, 1)
    return {
        "id": list(federation.ids),
        "size": federation.sizes.tolist(),
        "maliciousness": [float(f"{value:.6g}") for value in calibration.maliciousness],
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
        "tolerance": table.tolerance.tolist(),
        "lower": [[float(f"{x:.9g}") for x in row] for row in table.lower],
        "upper": [[float(f"{x:.9g}") for x in row] for row in table.upper],
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
