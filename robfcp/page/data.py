"""What the page embeds: the calibration for the eye, compactly."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp import __version__
from robfcp.calibration import Calibration, file_format, letters
from robfcp.diagnosis import diagnose
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.guarantees import curve, engine
from robfcp.page import sentences


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

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands beside the title."""
        by = f"run by {self.by}" if self.by else ""
        return tuple(part for part in (self.study, self.date, by) if part)


MOST_STRATA = 60
MOST_SITES = 20  # the worst, whose letters are worked out


def strata_data(calibration: Calibration) -> dict[str, Any] | None:
    """A row for each class or group, and for the worst sites in use their mix and own coverage.

    What sites hold that were left out is counted apart. None where the reports keep no such counts.
    """
    federation = calibration.federation
    strata = federation.strata
    if strata is None:
        return None
    used = calibration.trusted_mask[strata.rows]
    limits, covered, sizes = calibration.covered_by_class(calibration.levels[0])
    every, totals, hits = sizes.sum(axis=0), sizes[used].sum(axis=0), covered[used].sum(axis=0)
    order = np.sort(np.argsort(-every, kind="stable")[:MOST_STRATA])
    shares = covered.sum(axis=1) / np.maximum(sizes.sum(axis=1), 1)
    sites = np.flatnonzero(used)[np.argsort(shares[used], kind="stable")][:MOST_SITES]
    levels = {one.name: one for one in calibration.levels[0].parts}
    names = {r: federation.ids[strata.rows[r]] for r in sites.tolist()}
    own_letters = letters.own_thresholds(calibration, set(names.values()))
    return {
        "by": strata.by,
        "n_strata": strata.n_strata,
        "pooled_only": [
            federation.ids[k] for k in np.setdiff1d(range(federation.n_clients), strata.rows)
        ],
        "rows": [
            {
                "name": strata.labels[c],
                "threshold": number(limits[c]),
                "sites": int((sizes[used, c] > 0).sum()),
                "samples": int(totals[c]),
                "out": int(every[c] - totals[c]),
                "covered": _share(hits[c], totals[c]),
                "proved": [own.certificate.lower, own.certificate.upper] if own else None,
                "protection": own.protection if own else "",
            }
            for c in order
            for own in [levels.get(strata.labels[c])]
        ],
        "sites": [
            {
                "name": client,
                "samples": int(sizes[r].sum()),
                "covered": round(float(shares[r]), 5),
                "own": [number(own[0]), round(own[1], 5)] if own else None,
                "mix": [_share(sizes[r, c], sizes[r].sum()) for c in order],
                "by": [_share(covered[r, c], sizes[r, c]) for c in order],
            }
            for r, client in names.items()
            for own in [own_letters.get(client)]
        ],
    }


def _share(part: float, whole: float) -> float | None:
    return round(float(part) / float(whole), 5) if whole > 0 else None


VIEW = 160  # edges a distribution is drawn with
_TOLD = ("short", "fact", "finding", "advice", "instead")  # of a diagnosis


def page_data(calibration: Calibration, about: About) -> dict[str, Any]:
    """Everything the page shows, as JSON values."""
    federation, grid = calibration.federation, calibration.federation.grid
    view = view_edges(federation.rounded().pooled(), grid)
    first = calibration.levels[0]

    # The bins whose edges the charts show: those that curves are drawn with, and the threshold's.
    used = view
    if np.isfinite(first.threshold):
        used = np.union1d(view, grid.edge_at(first.threshold))

    below, drawn = map(_smoothed, (federation, federation.comparable()))
    shares = np.clip(below[:, view] / federation.masses[:, None], 0, 1)[calibration.trusted_mask]
    rising = np.maximum.accumulate(shares, axis=1)  # as counts with noise may not
    low, middle, high = np.quantile(rising, [0.05, 0.5, 0.95], axis=0)
    found = diagnose(calibration)
    verdict = sentences.message(calibration, found)
    return {
        "about": {"title": about.title, "lines": about.lines},
        "harm": sentences.harm(calibration),
        "message": verdict,
        "headline": sentences.headline(calibration, first),
        "diagnoses": {
            client: {name: getattr(one, name) for name in _TOLD} for client, one in found.items()
        },
        "risk": None if calibration.risk is None else msgspec.to_builtins(calibration.risk),
        "levels": [
            {
                "value": float(level.coverage),
                "threshold": number(level.threshold),
                "lower": level.certificate.lower,
                "upper": level.certificate.upper,
                "statement": level.certificate.statement,
                "curve": [[point.m, point.lower, point.upper] for point in level.curve],
                "empty_from": level.empty_from,
                "assumptions": [assumption.text for assumption in level.certificate.assumptions],
            }
            for level in calibration.levels
        ],
        "grid": {
            "name": grid.name,
            "bins": grid.n_bins,
            "low": number(grid.edges[0]),
            "used": used.tolist(),
            "edges": [number(federation.threshold_at(int(edge))) for edge in used],
        },
        "view": view.tolist(),
        "clients": {
            "id": list(federation.ids),
            "size": federation.sizes.tolist(),
            "oddness": [float(f"{value:.6g}") for value in calibration.oddness],
            "trusted": calibration.trusted_mask.astype(int).tolist(),
            "covered": rounded(calibration.covered_at_sites()[:, 0]),
            "reason": {c: calibration.reasons.get(c, "") for c in calibration.flagged},
        },
        "counts": np.diff(drawn[:, view], prepend=0).ravel().tolist(),
        "crowd": {"low": rounded(low), "middle": rounded(middle), "high": rounded(high)},
        "faulty": msgspec.to_builtins(calibration.faulty),
        "missing": list(calibration.missing),
        "coverage_band": coverage_band(calibration, view),
        "mean_set_sizes": mean_set_sizes(calibration),
        "own": {
            "m": calibration.liars,
            "guarantee": first.certificate.kind if calibration.promised else None,
            "confidence": calibration.confidence,
        },
        "strata": strata_data(calibration),
        "brief": list(sentences.for_the_auditor(calibration, verdict["first"]).items()),
        "audit": audit(calibration),
        "notes": [*calibration.remarks, *sentences.how_to_read(calibration)],
    }


def _smoothed(federation: Federation) -> NDArray[np.int64]:
    """(K, H) counts at or below every edge.

    Private counts need not add up to n_k: what is left over by edge t of H is t/H of it, the best
    unbiased mean of the noisy sum up to t and of n_k less the noisy sum above.
    """
    below = federation.cumulative()
    if not federation.noisy:
        return below
    passed = np.arange(1, below.shape[1] + 1) / below.shape[1]
    leftover = federation.masses - below[:, -1]
    return below + np.rint(leftover[:, None] * passed).astype(np.int64)


def view_edges(pooled: NDArray[np.int64], grid: Grid) -> NDArray[np.intp]:
    """About VIEW bins to draw a distribution with: half equiprobable, half spread evenly."""
    n_bins, upper = grid.n_bins, grid.upper
    if n_bins <= VIEW:
        return np.arange(n_bins)
    wanted = np.linspace(0, 1, VIEW // 2)
    equiprobable = np.searchsorted(np.cumsum(pooled) / pooled.sum(), wanted).clip(max=n_bins - 1)
    occupied = upper[(pooled > 0) & np.isfinite(upper)]
    low, high = (occupied[0], occupied[-1]) if occupied.size else (0.0, 0.0)
    spread = grid.edge_at(np.linspace(low, high, VIEW // 4))
    steps = np.linspace(0, n_bins - 1, VIEW // 4).astype(np.intp)
    return np.unique(np.concatenate([equiprobable, spread, steps, [n_bins - 1]]))


def coverage_band(calibration: Calibration, bins: NDArray[np.intp]) -> dict[str, list[float]]:
    """Return between which bounds coverage is certified, for a threshold at each of some bins.

    The bounds hold with the calibration's confidence if no more clients are malicious than the
    calibration's certificate allows.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.
    bins : ndarray of shape (E,)
        The bins whose upper edges are the thresholds.

    Returns
    -------
    dict
        "lower" and "upper", E bounds each.
    """
    bounds = engine.counts_of(calibration.federation)
    delta = 1 - calibration.confidence
    lower, upper = curve.coverage_interval(bounds, bins, [calibration.liars], delta)
    return {"lower": rounded(lower[0]), "upper": rounded(upper[0])}


def mean_set_sizes(calibration: Calibration) -> list[float] | None:
    """Return the mean number of labels in a set at each level, at the sites that were used.

    None where no site reported the scores of all labels, and where every class or group has a
    threshold of its own.
    """
    federation = calibration.federation
    if federation.set_sizes is None or calibration.by is not None:
        return None

    sizes = sentences.set_sizes(federation, federation.set_sizes, calibration.trusted_mask)
    thresholds = [level.threshold for level in calibration.levels]
    # An infinite threshold is that of the last bin: its sets hold every label.
    return rounded(sizes[federation.grid.edge_at(thresholds)])


def number(value: float) -> float | None:
    """A float for JSON; infinite ones become null."""
    return float(value) if np.isfinite(value) else None


def rounded(values: NDArray[np.float64]) -> list[float]:
    """Five decimals, enough to draw with."""
    return [float(value) for value in np.round(values, 5)]


def audit(calibration: Calibration) -> list[tuple[str, str]]:
    """Names and values an auditor needs to make the same calibration again."""
    federation, record = calibration.federation, calibration.record
    checked = msgspec.structs.asdict(calibration.checked)
    noise = Counter(p.statement for p in federation.privacy if p is not None)
    rows = {
        "calibration digest (SHA-256 without key and signature)": file_format.digest_of(
            calibration.to_json()
        ),
        "record digest (SHA-256 of the file)": calibration.record_digest,
        "made with": f"robfcp {calibration.version}",
        "page made with": f"robfcp {__version__}, Python {platform.python_version()}",
        "wanted": ", ".join(map(calibration.wanted, calibration.levels)),
        "defence": record.defence,
        "promise": record.promise,
        "by": calibration.by,
        "clusters": record.clusters,
        "confidence": calibration.confidence,
        **{f"{record.defence}: {name}": value for name, value in record.parameters.items()},
        **{f"checked: {name}": value for name, value in checked.items()},
        "score": "not named" if federation.score is None else repr(federation.score),
        "grid": f"{federation.grid.name}, {federation.grid.n_bins} bins",
        "grid digest": federation.grid.digest,
        "round": federation.round,
        "model": federation.model,
        "privacy": "; ".join(f"{n} reports {words}" for words, n in noise.items()) or None,
        "reports digest": file_format.digest_of(federation.counts.astype("<i8").tobytes()),
    }
    return [(name, "none" if value is None else str(value)) for name, value in rows.items()]
