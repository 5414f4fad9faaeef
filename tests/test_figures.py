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
from robfcp.figures import FORMATS
from robfcp.lab.simulation import plot_comparison

SITES = reports_of(beta_scores(0, 14, 60, 2))
FLAGGED = robfcp.calibrate(SITES, defence=robfcp.RobFCP(liars=2))


def test_comparison_shows_means_and_extremes_over_the_runs() -> None:
    told = {"set_size": 1.8, "honest_coverage": 0.9, "honest_set_size": 1.8, "defence": "none"}
    cells = [("coverage", 0.8), ("coverage", 0.802), ("gaussian", 0.88), ("gaussian", 0.882)]
    rows: list[Any] = [SimpleNamespace(attack=a, coverage=c, **told) for a, c in cells]
    bars = {one.get_label(): one for one in plot_comparison(rows, 0.9)[0].containers}
    mean, (low, high), _ = bars["undefended"].lines
    for drawn, wanted in ((mean, [0.801, 0.881]), (low, [0.8, 0.88]), (high, [0.802, 0.882])):
        np.testing.assert_allclose(np.asarray(drawn.get_ydata(), float), wanted)


def test_lines_look_different_and_heatmaps_write_every_number() -> None:
    lines = {name: [1, 2] for name in ("none", "rob-fcp", "consensus", "a", "b")}
    ax = figures.plot_lines([0, 1], lines, {"a": ([0, 1], [2, 3])}, level=0.9, title="t")
    assert len({(line.get_color(), line.get_marker()) for line in ax.get_lines()[:5]}) == 5
    ax = figures.plot_heatmap([[-0.1, 0.02], [0.0, np.nan]], ["a", "b"], ["x", "y"])
    assert [text.get_text() for text in ax.texts] == ["-0.100", "+0.020", "+0.000", ""]


def test_calibration_figures_tell_flagged_from_trusted_clients_and_what_is_proved() -> None:
    ax = figures.plot_oddness(FLAGGED)
    sizes = {str(part.get_label()): len(part.get_offsets()) for part in ax.collections}
    assert sizes == {"used": 12, "flagged": 2}
    ax = figures.plot_cdf(FLAGGED)
    assert [line.get_color() for line in ax.get_lines()].count(figures.VERMILION) == 2
    assert ax.get_lines()[-1].get_xdata()[0] == FLAGGED.threshold  # type: ignore[index]
    proved = [point.lower for point in FLAGGED.curve.values()]
    np.testing.assert_allclose(figures.plot_curve(FLAGGED).get_lines()[0].get_ydata(), proved)


@pytest.mark.parametrize("suffix", thorough(list(FORMATS), "svg"))
def test_saved_figures_are_the_same_bytes_and_nothing_else_is_touched(suffix, tmp_path) -> None:
    before, ax = dict(mpl.rcParams), figures.new_axes()[0]
    for name in ("a", "b"):
        figures.save(figures.plot_cdf(FLAGGED), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    with pytest.raises(robfcp.RobfcpError, match=r"use \.png, \.svg or \.pdf"):
        figures.save(figures.new_axes(2), tmp_path / "figure.bmp")
    assert figures.plot_lines([0, 1], {"a": [1, 2]}, ax=ax) is ax
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(("rare", "kind"), [(2, "proved, held by few"), (1, "always covered")])
def test_classes_are_shown_with_what_is_reported_proved_and_set(rare: int, kind: str) -> None:
    rng, names, reports = np.random.default_rng(1), ["easy", "hard", "rare"], []
    for k in range(8):
        labels = rng.choice(3, 150, p=[0.6, 0.4, 0.0] if k >= rare else [0.5, 0.3, 0.2])
        scores = rng.random(150) ** np.array([3.0, 1.0, 1.0])[labels]
        reports.append(robfcp.Report.from_scores(f"s{k}", scores, labels=labels, classes=names))
    promise = robfcp.Marginal(liars=1)
    calibration = robfcp.calibrate(reports, by="class", defence="none", promise=promise)
    coverage, thresholds = figures.plot_by_class(calibration)
    drawn = [tick.get_text() for tick in coverage.get_yticklabels()]
    shares = dict(zip(drawn, coverage.collections[0].get_offsets()[:, 0], strict=True))
    for c, limit in enumerate(calibration.threshold):
        counts = sum(report.strata.dense()[c] for report in reports)
        edge = np.searchsorted(calibration.federation.grid.upper, limit)
        assert shares[names[c]] == pytest.approx(counts[: edge + 1].sum() / counts.sum())
    labels = coverage.get_legend_handles_labels()[1]
    assert set(labels) == {"proved", kind, "reported samples", "wanted, 0.9"}
    infinite = "infinite: in every set" in thresholds.get_legend_handles_labels()[1]
    assert infinite is (kind == "always covered")


def test_of_very_many_classes_the_least_covered_are_shown_and_of_none_nothing() -> None:
    rng = np.random.default_rng(2)
    held = {"labels": rng.integers(0, 60, 6000), "classes": 60}
    report = robfcp.Report.from_scores("a", rng.random(6000), **held)
    many = robfcp.calibrate([report], defence="none")
    assert len(figures.plot_by_class(many)[0].get_yticklabels()) == 40
    with pytest.raises(robfcp.RobfcpError, match="keep no classes or groups"):
        figures.plot_by_class(FLAGGED)
