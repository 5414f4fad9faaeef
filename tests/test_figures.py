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

SITES = reports_of(beta_scores(0, 14, 60, 2))
FLAGGED = robfcp.calibrate(SITES, defense=robfcp.RobFCP(liars=2))


def test_comparison_shows_means_and_extremes_over_the_runs():
    told = {"set_size": 1.8, "honest_coverage": 0.9, "honest_set_size": 1.8, "defence": "none"}
    cells = [("coverage", 0.8), ("coverage", 0.802), ("gaussian", 0.88), ("gaussian", 0.882)]
    rows: list[Any] = [SimpleNamespace(attack=a, coverage=c, **told) for a, c in cells]
    bars = {one.get_label(): one for one in plot_comparison(rows, 0.9)[0].containers}
    mean, (low, high), _ = bars["undefended"].lines
    for drawn, wanted in ((mean, [0.801, 0.881]), (low, [0.8, 0.88]), (high, [0.802, 0.882])):
        np.testing.assert_allclose(np.asarray(drawn.get_ydata(), float), wanted)


def test_lines_look_different_and_heatmaps_write_every_number():
    looks = figures._method_styles(("none", "rob-fcp", "consensus", "a", "b"))
    assert len({look for _, look in looks}) == 5
    ax = figures.plot_heatmap([[-0.1, 0.02], [0.0, np.nan]], ["a", "b"], ["x", "y"])
    assert [text.get_text() for text in ax.texts] == ["-0.100", "+0.020", "+0.000", ""]


def test_calibration_figures_tell_flagged_from_trusted_clients_and_what_is_proved():
    ax = figures.plot_maliciousness(FLAGGED)
    sizes = {str(part.get_label()): len(part.get_offsets()) for part in ax.collections}
    assert sizes == {"used": 12, "flagged": 2}
    ax = figures.plot_cdf(FLAGGED)
    assert [line.get_color() for line in ax.get_lines()].count(figures.VERMILION) == 2
    assert ax.get_lines()[-1].get_xdata()[0] == FLAGGED.threshold  # type: ignore[index]
    proved = [point.lower for point in FLAGGED.certificates.values()]
    np.testing.assert_allclose(
        figures.plot_certificates(FLAGGED).get_lines()[0].get_ydata(), proved
    )


def test_curves_of_coarsened_reports_are_at_midpoints():
    """Half-way between the counts as sent and the most they can be: hardly off on average."""
    drawn = []
    for min_cell_count in (5, 1):
        reports = reports_of(beta_scores(0, 14, 60), min_cell_count=min_cell_count)
        calibration = robfcp.calibrate(reports, defense="none")
        lines = {str(line.get_label()): line for line in figures.plot_cdf(calibration).get_lines()}
        drawn.append(np.asarray(lines["sites used, pooled"].get_ydata(), float))
        if min_cell_count > 1:
            federation = calibration.federation
            as_sent = np.cumsum(federation.pooled_counts()) / federation.n_samples
            lowest_counts = federation.counts_in_lowest_bins().pooled_counts()
            most = np.cumsum(lowest_counts) / federation.n_samples
    curve, exact = drawn
    np.testing.assert_allclose(curve, (as_sent + most) / 2)
    weights = np.diff(exact, prepend=0)
    error, error_as_sent = (
        np.average(other - exact, weights=weights) for other in (curve, as_sent)
    )
    assert abs(error) < abs(error_as_sent) / 5


@pytest.mark.parametrize("suffix", thorough(list(FORMATS), "svg"))
def test_saved_figures_are_the_same_bytes_and_nothing_else_is_touched(suffix, tmp_path):
    before, ax = dict(mpl.rcParams), figures.new_axes()[0]
    for name in ("a", "b"):
        figures.save(figures.plot_cdf(FLAGGED), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    with pytest.raises(robfcp.RobfcpError, match=r"use \.png, \.svg or \.pdf"):
        figures.save(figures.new_axes(2), tmp_path / "figure.bmp")
    assert figures.plot_certificates(FLAGGED, ax=ax) is ax
    assert dict(mpl.rcParams) == before
