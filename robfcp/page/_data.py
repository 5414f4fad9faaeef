"""What the page of a calibration embeds: one function for each section that its scripts read.

The scripts in `assets` are named where they read a section; `DATA` is what they call all of it.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from robfcp import __version__
from robfcp._sealed import sha256_of
from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp.binning import Binning
from robfcp.calibration import Calibration, CoverageLevel
from robfcp.diagnosis import Diagnosis, diagnose
from robfcp.federation import Federation
from robfcp.guarantees import count_bounds, coverage_intervals
from robfcp.page._auditor import auditor_questions
from robfcp.page._format import finite_or_none, round_for_plot
from robfcp.page._impact import impact_text, mean_sizes_by_bin
from robfcp.page._strata import strata_data
from robfcp.page._text import headline_text, reading_notes, summary_text

N_PLOT_BINS = 160  # bins that a distribution is drawn with, about
CDF_BAND_LEVELS = (0.05, 0.5, 0.95)  # of the benign clients' CDFs: lower curve, median, upper curve
_DIAGNOSIS_FIELDS = {  # the page's keys, and the attributes of a diagnosis
    "summary": "summary",
    "coverage_text": "coverage_text",
    "description": "description",
    "recommendation": "recommendation",
    "alternative": "alternative",
}


@dataclass(frozen=True)
class PageInfo:
    """The lines at the top of a page; empty ones are omitted.

    Parameters
    ----------
    title : str
        What the calibration is for.
    study : str
        The study, protocol or project.
    run_by : str
        Who ran it.
    date : str
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
        """The texts beside the title."""
        author = f"run by {self.run_by}" if self.run_by else ""
        lines = (self.study, self.date, author)
        return tuple(line for line in lines if line)


def page_data(calibration: Calibration, info: PageInfo) -> dict[str, Any]:
    """Return everything the page shows, as JSON values.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.
    info : PageInfo
        The lines at the top.
    """
    federation = calibration.federation
    first_level = calibration.levels[0]
    pooled_counts = federation.with_integer_counts().pooled_midpoints()
    bins = plot_bins(pooled_counts, federation.binning)
    diagnoses = diagnose(calibration)
    summary = summary_text(calibration, diagnoses)

    return {
        # The top of the page, in sentences (page.js).
        "info": {"title": info.title, "lines": info.lines},
        "impact": impact_text(calibration),
        "summary": summary,
        "headline": headline_text(calibration, first_level),
        # The cards of the flagged and suspicious clients, and the chart of certificates.
        "diagnoses": diagnoses_data(diagnoses),
        "risk": msgspec.to_builtins(calibration.risk),
        "levels": [level_data(level) for level in calibration.levels],
        # The distributions of scores, and the table of clients.
        "binning": binning_data(federation, first_level, bins),
        "plot_bins": bins.tolist(),
        "clients": clients_data(calibration),
        "counts": counts_data(federation, bins),
        "cdf_band": cdf_band(calibration, bins),
        "rejected_reports": msgspec.to_builtins(calibration.rejected_reports),
        "missing_clients": list(calibration.missing_clients),
        "coverage_band": coverage_band(calibration, bins),
        "mean_set_sizes": mean_set_sizes(calibration),
        "settings": settings_data(calibration),
        "strata": strata_data(calibration),
        # The end of the page, for an auditor (page.js).
        "auditor": list(auditor_questions(calibration, summary["sentence"]).items()),
        "audit": audit_rows(calibration),
        "notes": [*calibration.notes, *reading_notes(calibration)],
    }


def diagnoses_data(diagnoses: Mapping[str, Diagnosis]) -> dict[str, dict[str, str]]:
    """Return the texts on each unusual client, for the cards (diagnoses.js, clients.js)."""
    data = {}
    for client, diagnosis in diagnoses.items():
        texts = {key: getattr(diagnosis, name) for key, name in _DIAGNOSIS_FIELDS.items()}
        data[client] = texts
    return data


def level_data(level: CoverageLevel) -> dict[str, Any]:
    """Return a level's threshold, certificate and curve of certificates.

    Read by the table of levels and the model card (page.js) and the chart of certificates
    (distributions.js).
    """
    certificate = level.certificate
    return {
        "coverage": float(level.coverage),
        "threshold": finite_or_none(level.threshold),
        "lower": certificate.lower,
        "upper": certificate.upper,
        "statement": certificate.statement,
        "certificate_points": [
            [point.max_malicious, point.lower, point.upper] for point in level.certificate_points
        ],
        "vacuous_from": level.vacuous_from,
        "assumptions": [assumption.text for assumption in certificate.assumptions],
    }


def binning_data(federation: Federation, level: CoverageLevel, bins: IndexArray) -> dict[str, Any]:
    """Return the bins and edges that charts show, for the axis of scores (data.js, scores.js).

    Parameters
    ----------
    federation : Federation
        The reports of the round.
    level : CoverageLevel
        The level whose threshold the charts show; its bin is among those returned.
    bins : (E,) ndarray of int
        The bins that curves are drawn with.
    """
    binning = federation.binning
    bins_shown = bins
    if np.isfinite(level.threshold):
        bins_shown = np.union1d(bins, binning.bin_index_of_threshold(level.threshold))
    return {
        "name": binning.name,
        "n_bins": binning.n_bins,
        "lowest_edge": finite_or_none(binning.edges[0]),
        "bins": bins_shown.tolist(),
        "upper_edges": [
            finite_or_none(federation.threshold_at(int(index))) for index in bins_shown
        ],
    }


def clients_data(calibration: Calibration) -> dict[str, Any]:
    """Return the columns of the clients' table and chart (clients.js)."""
    federation = calibration.federation
    reasons = calibration.reasons
    return {
        "client": list(federation.clients),
        "n_samples": federation.sample_sizes.tolist(),
        "maliciousness": [float(f"{value:.6g}") for value in calibration.maliciousness],
        "benign": calibration.benign_mask.astype(int).tolist(),
        "coverage": round_for_plot(calibration.client_coverage()[:, 0]),
        "reason": {client: reasons.get(client, "") for client in calibration.flagged_clients},
    }


def counts_data(federation: Federation, bins: IndexArray) -> list[int]:
    """Return every client's samples between the edges of some bins, client by client (data.js).

    Midpoints of coarsened counts are rounded to whole samples.
    """
    cumulative = _cumulative_counts_to_total(federation.as_sample_counts())
    cumulative = np.rint(cumulative).astype(np.int64)
    counts: list[int] = np.diff(cumulative[:, bins], prepend=0).ravel().tolist()
    return counts


def cdf_band(calibration: Calibration, bins: IndexArray) -> dict[str, list[float]]:
    """Return the band of most benign clients' CDFs, for their chart (distributions.js)."""
    federation = calibration.federation
    cumulative = _cumulative_counts_to_total(federation)
    cdfs = np.clip(cumulative[:, bins] / federation.total_counts[:, None], 0, 1)
    benign_cdfs = cdfs[calibration.benign_mask]

    # Counts with noise may fall, a CDF does not.
    benign_cdfs = np.maximum.accumulate(benign_cdfs, axis=1)
    lower, median, upper = np.quantile(benign_cdfs, CDF_BAND_LEVELS, axis=0)
    return {
        "lower": round_for_plot(lower),
        "median": round_for_plot(median),
        "upper": round_for_plot(upper),
    }


def _cumulative_counts_to_total(federation: Federation) -> FloatArray:
    """Return (K, H) counts at or below every edge, which end at each client's total.

    Coarsened counts are the midpoints of what they may be, in halves.

    Private counts need not add up to n_k: at edge t of H, t/H of the difference is added, the best
    unbiased mean of the noisy sum up to t and of n_k less the noisy sum above.
    """
    cumulative = federation.cumulative_midpoints()
    if not federation.has_noise:
        return cumulative

    n_bins = cumulative.shape[1]
    fractions = np.arange(1, n_bins + 1) / n_bins
    difference = federation.total_counts - cumulative[:, -1]
    return cumulative + np.rint(difference[:, None] * fractions).astype(np.int64)


def plot_bins(pooled_counts: IntArray | FloatArray, binning: Binning) -> IndexArray:
    """Return about N_PLOT_BINS bins to draw distributions with; all where there are no more.

    Half of them are equiprobable, a quarter is spread evenly over the scores, a quarter over the
    bins.

    Parameters
    ----------
    pooled_counts : (H,) ndarray
        All clients' counts together, at midpoints.
    binning : Binning
        The H bins.
    """
    n_bins = binning.n_bins
    if n_bins <= N_PLOT_BINS:
        return np.arange(n_bins)

    probabilities = np.linspace(0, 1, N_PLOT_BINS // 2)
    pooled_cdf = np.cumsum(pooled_counts) / pooled_counts.sum()
    equiprobable = np.searchsorted(pooled_cdf, probabilities).clip(max=n_bins - 1)

    is_occupied = (pooled_counts > 0) & np.isfinite(binning.upper_edges)
    occupied_edges = binning.upper_edges[is_occupied]
    low, high = 0.0, 0.0
    if occupied_edges.size:
        low, high = occupied_edges[0], occupied_edges[-1]
    scores = np.linspace(low, high, N_PLOT_BINS // 4)
    even_in_scores = binning.bin_index_of_threshold(scores)

    even_in_bins = np.linspace(0, n_bins - 1, N_PLOT_BINS // 4).astype(np.intp)
    return np.unique(np.concatenate([equiprobable, even_in_scores, even_in_bins, [n_bins - 1]]))


def coverage_band(calibration: Calibration, bins: IndexArray) -> dict[str, list[float]]:
    """Return the bounds of certified coverage, for a threshold at each of some bins.

    Drawn behind the distributions (distributions.js). The bounds hold with the calibration's
    confidence if no more clients are malicious than the calibration's certificate allows.

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
    """Return the mean number of labels in a set at each level, at the benign clients.

    None where no client reported the scores of all labels, and where every class or group has its
    own threshold. A column of the table of levels (page.js).
    """
    federation = calibration.federation
    if federation.all_label_counts is None or calibration.by is not None:
        return None

    sizes = mean_sizes_by_bin(federation, federation.all_label_counts, calibration.benign_mask)
    thresholds = [level.threshold for level in calibration.levels]
    # An infinite threshold is that of the last bin: its sets hold every label.
    return round_for_plot(sizes[federation.binning.bin_index_of_threshold(thresholds)])


def settings_data(calibration: Calibration) -> dict[str, Any]:
    """Return the settings that the texts beside the charts state (distributions.js)."""
    guarantee = None
    if calibration.is_guaranteed:
        guarantee = calibration.levels[0].certificate.kind
    return {
        "n_malicious": calibration.n_malicious,
        "guarantee": guarantee,
        "certificate_confidence": calibration.certificate_confidence,
    }


def audit_rows(calibration: Calibration) -> list[tuple[str, str]]:
    """Return names and values an auditor needs to repeat the calibration (page.js)."""
    federation = calibration.federation
    binning = federation.binning
    record = calibration.require_record()
    verification = msgspec.structs.asdict(calibration.verification)

    rows: dict[str, object] = {
        "calibration digest (SHA-256 without key and signature)": sha256_of(calibration.to_json()),
        "record digest (SHA-256 of the file)": calibration.record_sha256,
        "made with": f"robfcp {calibration.version}",
        "page made with": f"robfcp {__version__}, Python {platform.python_version()}",
        "target": ", ".join(map(calibration.target_text, calibration.levels)),
        "defense": record.defense,
        "guarantee": record.guarantee,
        "by": calibration.by,
        "clusters": record.clusters,
        "certificate_confidence": calibration.certificate_confidence,
    }
    for name, value in record.parameters.items():
        rows[f"{record.defense}: {name}"] = value
    for name, value in verification.items():
        rows[f"verification: {name}"] = value

    rows["score"] = "not stated" if federation.score is None else repr(federation.score)
    rows["binning"] = f"{binning.name}, {binning.n_bins} bins"
    rows["binning digest"] = binning.digest
    rows["round"] = federation.round
    rows["model"] = federation.model
    rows["privacy"] = _privacy_text(federation)
    rows["reports digest"] = sha256_of(federation.counts.astype("<i8").tobytes())
    return [(name, "none" if value is None else str(value)) for name, value in rows.items()]


def _privacy_text(federation: Federation) -> str | None:
    """Return how many reports hold which noise; None where no report holds any."""
    statements = [privacy.statement for privacy in federation.privacy if privacy is not None]
    report_counts = Counter(statements)
    texts = [f"{count} reports {statement}" for statement, count in report_counts.items()]
    return "; ".join(texts) or None
