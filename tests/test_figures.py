"""Figures show the numbers they are given, in one style, and leave pyplot alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from effort import thorough
from makers import beta_scores, reports_of

import robfcp
from robfcp import figures
from robfcp.experiments.simulation import plot_comparison
from robfcp.figures import FORMATS

REPORTS = reports_of(beta_scores(0, 14, 60, 2))
CALIBRATION = robfcp.calibrate(REPORTS, defense=robfcp.RobFCP(n_malicious=2))


def test_comparison_shows_means_and_extremes_over_the_runs():
    common = {
        "defense": "none",
        "set_size": 1.8,
        "benign_coverage": 0.9,
        "benign_set_size": 1.8,
    }
    results = [
        ("coverage", 0.8),
        ("coverage", 0.802),
        ("gaussian", 0.88),
        ("gaussian", 0.882),
    ]
    rows: list[Any] = [
        SimpleNamespace(attack=attack, coverage=coverage, **common) for attack, coverage in results
    ]
    containers = plot_comparison(rows, 0.9)[0].containers
    error_bars = {container.get_label(): container for container in containers}
    mean, (low, high), _ = error_bars["undefended"].lines
    for line, expected in ((mean, [0.801, 0.881]), (low, [0.8, 0.88]), (high, [0.802, 0.882])):
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), expected)


def test_methods_have_distinct_styles_and_heatmaps_show_every_number():
    styles = figures._method_styles(("none", "rob-fcp", "consensus", "a", "b"))
    assert len({style for _, style in styles}) == 5
    ax = figures.plot_heatmap([[-0.1, 0.02], [0.0, np.nan]], ["a", "b"], ["x", "y"])
    assert [text.get_text() for text in ax.texts] == ["-0.100", "+0.020", "+0.000", ""]


def test_calibration_figures_separate_flagged_from_benign_clients_and_show_certificates():
    ax = figures.plot_maliciousness(CALIBRATION)
    n_points = {str(points.get_label()): len(points.get_offsets()) for points in ax.collections}
    assert n_points == {"benign": 12, "flagged": 2}
    ax = figures.plot_cdf(CALIBRATION)
    assert [line.get_color() for line in ax.get_lines()].count(figures.VERMILION) == 2
    assert ax.get_lines()[-1].get_xdata()[0] == CALIBRATION.threshold  # type: ignore[index]
    lower_bounds = [point.lower for point in CALIBRATION.certificates.values()]
    np.testing.assert_allclose(
        figures.plot_certificates(CALIBRATION).get_lines()[0].get_ydata(), lower_bounds
    )


def pooled_cdf(calibration):
    """Return the heights of the pooled CDF in its figure."""
    lines = {str(line.get_label()): line for line in figures.plot_cdf(calibration).get_lines()}
    return np.asarray(lines["benign clients, pooled"].get_ydata(), float)


def test_curves_of_coarsened_reports_are_at_midpoints():
    """Half-way between the reported counts and the largest possible: hardly off on average."""
    calibrations = []
    for min_cell_count in (5, 1):
        reports = reports_of(beta_scores(0, 14, 60), min_cell_count=min_cell_count)
        calibrations.append(robfcp.calibrate(reports, defense="none"))
    coarsened_cdf, exact_cdf = map(pooled_cdf, calibrations)

    federation = calibrations[0].federation
    reported_cdf = np.cumsum(federation.pooled_counts()) / federation.n_samples
    lowest_counts = federation.counts_in_lowest_bins().pooled_counts()
    largest_cdf = np.cumsum(lowest_counts) / federation.n_samples
    np.testing.assert_allclose(coarsened_cdf, (reported_cdf + largest_cdf) / 2)

    weights = np.diff(exact_cdf, prepend=0)
    error = np.average(coarsened_cdf - exact_cdf, weights=weights)
    error_of_reported = np.average(reported_cdf - exact_cdf, weights=weights)
    assert abs(error) < abs(error_of_reported) / 5


@pytest.mark.parametrize("suffix", thorough(list(FORMATS), "svg"))
def test_saved_figures_are_the_same_bytes_and_nothing_else_is_touched(suffix, tmp_path):
    settings = dict(mpl.rcParams)
    ax = figures.new_axes()[0]
    for name in ("a", "b"):
        figures.save(figures.plot_cdf(CALIBRATION), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    with pytest.raises(robfcp.RobfcpError, match=r"use \.png, \.svg or \.pdf"):
        figures.save(figures.new_axes(2), tmp_path / "figure.bmp")
    assert figures.plot_certificates(CALIBRATION, ax=ax) is ax
    assert dict(mpl.rcParams) == settings
