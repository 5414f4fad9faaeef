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
from robfcp._sealed import sha256_of
from robfcp.binning import Binning
from robfcp.calibration import Calibration
from robfcp.diagnosis import diagnose
from robfcp.federation import Federation
from robfcp.guarantees import count_bounds, coverage_intervals
from robfcp.local._feedback import local_thresholds
from robfcp.page import _text


@dataclass(frozen=True)
class PageInfo:
    """The lines at the top of a page; empty ones are left out.

    Parameters
    ----------
    title
        What the calibration is for.
    study
        The study, protocol or project.
    run_by
        Who ran it.
    date
        When, as people write it.

    Examples
    --------
    >>> from robfcp.page import PageInfo
    >>> title, date = "Outcome after stroke", "15 November 2026"
    >>> PageInfo(title, study="IST", run_by="A. Analyst", date=date).lines
    ('IST', '15 November 2026', 'run by A. Analyst')
    """

    title: str = ""
    study: str = ""
    run_by: str = ""
    date: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands beside the title."""
        by = f"run by {self.run_by}" if self.run_by else ""
        return tuple(part for part in (self.study, self.date, by) if part)


MAX_STRATA_SHOWN = 60
MAX_CLIENTS_SHOWN = 20  # the worst, whose letters are worked out


def strata_data(calibration: Calibration) -> dict[str, Any] | None:
    """A row for each class or group, and for the worst sites in use their mix and own coverage.

    What sites hold that were left out is counted apart. None where the reports keep no such counts.
    """
    federation = calibration.federation
    strata = federation.strata
    if strata is None:
        return None
    used = calibration.benign_mask[strata.rows]
    limits, covered, sizes = calibration.class_coverage(calibration.levels[0])
    every, totals, hits = sizes.sum(axis=0), sizes[used].sum(axis=0), covered[used].sum(axis=0)
    order = np.sort(np.argsort(-every, kind="stable")[:MAX_STRATA_SHOWN])
    shares = covered.sum(axis=1) / np.maximum(sizes.sum(axis=1), 1)
    sites = np.flatnonzero(used)[np.argsort(shares[used], kind="stable")][:MAX_CLIENTS_SHOWN]
    levels = {one.name: one for one in calibration.levels[0].strata}
    names = {r: federation.clients[strata.rows[r]] for r in sites.tolist()}
    own_letters = local_thresholds(calibration, set(names.values()))
    return {
        "by": strata.by,
        "n_strata": strata.n_strata,
        "pooled_only": [
            federation.clients[k] for k in np.setdiff1d(range(federation.n_clients), strata.rows)
        ],
        "rows": [
            {
                "name": strata.labels[c],
                "threshold": finite_or_none(limits[c]),
                "sites": int((sizes[used, c] > 0).sum()),
                "samples": int(totals[c]),
                "out": int(every[c] - totals[c]),
                "covered": _fraction(hits[c], totals[c]),
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
                "own": [finite_or_none(own[0]), round(own[1], 5)] if own else None,
                "mix": [_fraction(sizes[r, c], sizes[r].sum()) for c in order],
                "by": [_fraction(covered[r, c], sizes[r, c]) for c in order],
            }
            for r, client in names.items()
            for own in [own_letters.get(client)]
        ],
    }


def _fraction(part: float, whole: float) -> float | None:
    return round(float(part) / float(whole), 5) if whole > 0 else None


N_PLOT_BINS = 160  # edges a distribution is drawn with
_DIAGNOSIS_FIELDS = {  # the page's keys, and the attributes of a diagnosis
    "short": "summary",
    "fact": "coverage_text",
    "finding": "finding",
    "advice": "advice",
    "instead": "instead",
}


def page_data(calibration: Calibration, about: PageInfo) -> dict[str, Any]:
    """Everything the page shows, as JSON values."""
    federation, grid = calibration.federation, calibration.federation.binning
    view = plot_bins(federation.with_integer_counts().pooled_counts(), grid)
    first = calibration.levels[0]

    # The bins whose edges the charts show: those that curves are drawn with, and the threshold's.
    used = view
    if np.isfinite(first.threshold):
        used = np.union1d(view, grid.bin_index_of_threshold(first.threshold))

    below, drawn = map(_smoothed, (federation, federation.as_sample_counts()))
    shares = np.clip(below[:, view] / federation.total_counts[:, None], 0, 1)[
        calibration.benign_mask
    ]
    rising = np.maximum.accumulate(shares, axis=1)  # as counts with noise may not
    low, middle, high = np.quantile(rising, [0.05, 0.5, 0.95], axis=0)
    found = diagnose(calibration)
    verdict = _text.summary_text(calibration, found)
    return {
        "about": {"title": about.title, "lines": about.lines},
        "harm": _text.impact_text(calibration),
        "message": verdict,
        "headline": _text.headline_text(calibration, first),
        "diagnoses": {
            client: {key: getattr(one, name) for key, name in _DIAGNOSIS_FIELDS.items()}
            for client, one in found.items()
        },
        "risk": None if calibration.risk is None else msgspec.to_builtins(calibration.risk),
        "levels": [
            {
                "value": float(level.coverage),
                "threshold": finite_or_none(level.threshold),
                "lower": level.certificate.lower,
                "upper": level.certificate.upper,
                "statement": level.certificate.statement,
                "curve": [
                    [point.m, point.lower, point.upper] for point in level.certificate_points
                ],
                "empty_from": level.vacuous_from,
                "assumptions": [assumption.text for assumption in level.certificate.assumptions],
            }
            for level in calibration.levels
        ],
        "grid": {
            "name": grid.name,
            "bins": grid.n_bins,
            "low": finite_or_none(grid.edges[0]),
            "used": used.tolist(),
            "edges": [finite_or_none(federation.threshold_at(int(edge))) for edge in used],
        },
        "view": view.tolist(),
        "clients": {
            "id": list(federation.clients),
            "size": federation.sample_sizes.tolist(),
            "oddness": [float(f"{value:.6g}") for value in calibration.maliciousness],
            "trusted": calibration.benign_mask.astype(int).tolist(),
            "covered": round_for_plot(calibration.client_coverage()[:, 0]),
            "reason": {c: calibration.reasons.get(c, "") for c in calibration.flagged_clients},
        },
        "counts": np.diff(drawn[:, view], prepend=0).ravel().tolist(),
        "crowd": {
            "low": round_for_plot(low),
            "middle": round_for_plot(middle),
            "high": round_for_plot(high),
        },
        "faulty": msgspec.to_builtins(calibration.rejected_reports),
        "missing": list(calibration.missing_clients),
        "coverage_band": coverage_band(calibration, view),
        "mean_set_sizes": mean_set_sizes(calibration),
        "own": {
            "m": calibration.n_malicious,
            "guarantee": first.certificate.kind if calibration.is_guaranteed else None,
            "confidence": calibration.certificate_confidence,
        },
        "strata": strata_data(calibration),
        "brief": list(_text.auditor_questions(calibration, verdict["first"]).items()),
        "audit": audit_rows(calibration),
        "notes": [*calibration.notes, *_text.reading_notes(calibration)],
    }


def _smoothed(federation: Federation) -> NDArray[np.int64]:
    """(K, H) counts at or below every edge.

    Private counts need not add up to n_k: what is left over by edge t of H is t/H of it, the best
    unbiased mean of the noisy sum up to t and of n_k less the noisy sum above.
    """
    below = federation.cumulative_counts()
    if not federation.has_noise:
        return below
    passed = np.arange(1, below.shape[1] + 1) / below.shape[1]
    leftover = federation.total_counts - below[:, -1]
    return below + np.rint(leftover[:, None] * passed).astype(np.int64)


def plot_bins(pooled: NDArray[np.int64], grid: Binning) -> NDArray[np.intp]:
    """About VIEW bins to draw a distribution with: half equiprobable, half spread evenly."""
    n_bins, upper = grid.n_bins, grid.upper_edges
    if n_bins <= N_PLOT_BINS:
        return np.arange(n_bins)
    wanted = np.linspace(0, 1, N_PLOT_BINS // 2)
    equiprobable = np.searchsorted(np.cumsum(pooled) / pooled.sum(), wanted).clip(max=n_bins - 1)
    occupied = upper[(pooled > 0) & np.isfinite(upper)]
    low, high = (occupied[0], occupied[-1]) if occupied.size else (0.0, 0.0)
    spread = grid.bin_index_of_threshold(np.linspace(low, high, N_PLOT_BINS // 4))
    steps = np.linspace(0, n_bins - 1, N_PLOT_BINS // 4).astype(np.intp)
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
    bounds = count_bounds(calibration.federation)
    delta = 1 - calibration.certificate_confidence
    lower, upper = coverage_intervals(bounds, bins, [calibration.n_malicious], delta)
    return {"lower": round_for_plot(lower[0]), "upper": round_for_plot(upper[0])}


def mean_set_sizes(calibration: Calibration) -> list[float] | None:
    """Return the mean number of labels in a set at each level, at the sites that were used.

    None where no site reported the scores of all labels, and where every class or group has a
    threshold of its own.
    """
    federation = calibration.federation
    if federation.all_label_counts is None or calibration.by is not None:
        return None

    sizes = _text.mean_set_sizes(federation, federation.all_label_counts, calibration.benign_mask)
    thresholds = [level.threshold for level in calibration.levels]
    # An infinite threshold is that of the last bin: its sets hold every label.
    return round_for_plot(sizes[federation.binning.bin_index_of_threshold(thresholds)])


def finite_or_none(value: float) -> float | None:
    """A float for JSON; infinite ones become null."""
    return float(value) if np.isfinite(value) else None


def round_for_plot(values: NDArray[np.float64]) -> list[float]:
    """Five decimals, enough to draw with."""
    return [float(value) for value in np.round(values, 5)]


def audit_rows(calibration: Calibration) -> list[tuple[str, str]]:
    """Names and values an auditor needs to make the same calibration again."""
    federation, record = calibration.federation, calibration.require_record()
    checked = msgspec.structs.asdict(calibration.verification)
    noise = Counter(p.statement for p in federation.privacy if p is not None)
    rows = {
        "calibration digest (SHA-256 without key and signature)": sha256_of(calibration.to_json()),
        "record digest (SHA-256 of the file)": calibration.record_digest,
        "made with": f"robfcp {calibration.version}",
        "page made with": f"robfcp {__version__}, Python {platform.python_version()}",
        "wanted": ", ".join(map(calibration.target_text, calibration.levels)),
        "defence": record.defense,
        "promise": record.guarantee,
        "by": calibration.by,
        "clusters": record.clusters,
        "confidence": calibration.certificate_confidence,
        **{f"{record.defense}: {name}": value for name, value in record.parameters.items()},
        **{f"checked: {name}": value for name, value in checked.items()},
        "score": "not named" if federation.score is None else repr(federation.score),
        "grid": f"{federation.binning.name}, {federation.binning.n_bins} bins",
        "grid digest": federation.binning.digest,
        "round": federation.round,
        "model": federation.model,
        "privacy": "; ".join(f"{n} reports {words}" for words, n in noise.items()) or None,
        "reports digest": sha256_of(federation.counts.astype("<i8").tobytes()),
    }
    return [(name, "none" if value is None else str(value)) for name, value in rows.items()]
