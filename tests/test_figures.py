"""Figures show the numbers they are given, in one style, and leave pyplot alone."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from effort import thorough
from makers import beta_scores, reports_of

import robfcp
from robfcp import Federation, figures
from robfcp.calibration.what_if import what_if
from robfcp.defence import Consensus
from robfcp.errors import RobfcpError
from robfcp.figures import FORMATS
from robfcp.guarantees import fcp_index
from robfcp.lab.simulation import plot_comparison


def federation(attackers: int = 2) -> Federation:
    return Federation.from_reports(reports_of(beta_scores(0, 14, 60, attackers)))


def rows() -> list[Any]:
    """Three runs of each attack and defence."""
    found = []
    for attack, cost in (("coverage", 0.1), ("gaussian", 0.02)):
        for defence, share in (("none", 1.0), ("rob-fcp", 0.5), ("consensus", 0.0)):
            covered = 0.9 - cost * share + 0.001 * np.arange(3)
            told = {"set_size": 1.8, "honest_coverage": 0.9, "honest_set_size": 1.8}
            names = {"attack": attack, "defence": defence, **told}
            found += [SimpleNamespace(coverage=each, **names) for each in covered]
    return found


def test_comparison_shows_means_and_extremes_over_the_runs() -> None:
    axes = plot_comparison(rows(), 0.9)
    bars = {container.get_label(): container for container in axes[0].containers}
    assert set(bars) == {"undefended", "rob-fcp", "consensus"}
    mean, (low, high), _ = bars["undefended"].lines
    for drawn, wanted in ((mean, [0.801, 0.881]), (low, [0.8, 0.88]), (high, [0.802, 0.882])):
        np.testing.assert_allclose(np.asarray(drawn.get_ydata(), float), wanted)
    assert [tick.get_text() for tick in axes[1].get_xticklabels()] == ["coverage", "gaussian"]


def test_lines_look_different_and_heatmaps_write_every_number() -> None:
    lines = {name: [1, 2] for name in ("none", "rob-fcp", Consensus.name, "a", "b")}
    ax = figures.plot_lines([0, 1], lines, {"a": ([0, 1], [2, 3])}, level=0.9, title="t")
    looks = {(line.get_color(), line.get_marker()) for line in ax.get_lines()[: len(lines)]}
    assert len(looks) == len(lines)
    values = np.array([[-0.1, 0.02], [0.0, np.nan]])
    ax = figures.plot_heatmap(values, ["a", "b"], ["x", "y"], title="t", label="error")
    assert [text.get_text() for text in ax.texts] == ["-0.100", "+0.020", "+0.000", ""]


def test_certificate_figure_shows_the_bands_of_certify() -> None:
    reports, level = federation(), Fraction(9, 10)
    outcome = what_if(reports, level, fcp_index(reports, level), (0, 1, 3), confidence=0.95)
    lower = [row.certificate.lower for row in outcome.budgets]
    (ax, *_) = figures.plot_certificates([outcome])
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), lower)


def test_calibration_figures_tell_flagged_from_trusted_clients() -> None:
    calibration = robfcp.calibrate(federation(), defence=robfcp.RobFCP(liars=2))
    ax = figures.plot_oddness(calibration)
    sizes = {str(part.get_label()): len(part.get_offsets()) for part in ax.collections}
    assert sizes == {"trusted": 12, "flagged": 2}
    ax = figures.plot_cdf(calibration)
    thin = [line for line in ax.get_lines() if line.get_color() == figures.VERMILION]
    assert len(thin) == 2
    assert ax.get_lines()[-1].get_xdata()[0] == calibration.threshold  # type: ignore[index]


@pytest.mark.parametrize("suffix", thorough(list(FORMATS), "svg"))
def test_saved_figures_are_the_same_bytes_again(suffix: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        calibration = robfcp.calibrate(federation(), defence=robfcp.RobFCP(liars=2))
        figures.save(figures.plot_cdf(calibration), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_unknown_formats_are_refused_and_nothing_outside_the_axes_is_touched(tmp_path) -> None:
    before, ax = dict(mpl.rcParams), figures.new_axes()[0]
    with pytest.raises(RobfcpError, match=r"use \.png, \.svg or \.pdf"):
        figures.save(figures.new_axes(2), tmp_path / "figure.bmp")
    assert figures.plot_lines([0, 1], {"a": [1, 2]}, ax=ax) is ax
    assert dict(mpl.rcParams) == before


BY_CLASS: Any = {"by": "class", "defence": "none", "promise": robfcp.Marginal(liars=1)}


def labelled_sites(rare: int = 2) -> list[robfcp.Report]:
    rng, held, found = np.random.default_rng(1), {"classes": ["easy", "hard", "rare"]}, []
    for k in range(8):
        labels = rng.choice(3, 150, p=[0.6, 0.4, 0.0] if k >= rare else [0.5, 0.3, 0.2])
        scores = rng.random(150) ** np.array([3.0, 1.0, 1.0])[labels]
        found.append(robfcp.Report.from_scores(f"s{k}", scores, labels=labels, **held))
    return found


def proved(ax: Any) -> list[Any]:
    """The bars behind what is reported."""
    return [line for line in ax.lines if line.get_linewidth() == 6]


def test_classes_are_shown_with_what_is_reported_proved_and_set() -> None:
    calibration = robfcp.calibrate(labelled_sites(), **BY_CLASS)
    coverage, thresholds = figures.plot_by_class(calibration)
    names = [tick.get_text() for tick in coverage.get_yticklabels()]
    shares = dict(zip(names, coverage.collections[0].get_offsets()[:, 0], strict=True))
    grid = calibration.federation.grid
    for c, limit in enumerate(calibration.threshold):
        counts = sum(report.strata.dense()[c] for report in labelled_sites())
        edge = np.searchsorted(grid.upper, limit)
        wanted = counts[: edge + 1].sum() / counts.sum()
        assert shares.pop(("easy", "hard", "rare")[c]) == pytest.approx(wanted)
    assert not shares
    assert {tuple(bar.get_xdata()) for bar in proved(coverage)} == {(0.9, 1.0)}
    labels = coverage.get_legend_handles_labels()[1]
    assert {"proved", "proved, held by few", "reported samples", "wanted, 0.9"} == set(labels)
    calibration = robfcp.calibrate(labelled_sites(rare=1), **BY_CLASS)
    coverage, thresholds = figures.plot_by_class(calibration)
    assert "infinite: in every set" in thresholds.get_legend_handles_labels()[1]
    assert [len(drawn.get_offsets()) for drawn in thresholds.collections] == [2, 1]
    assert len(proved(coverage)) == 3  # a full set always covers
    calibration = robfcp.calibrate(labelled_sites(), [0.8, 0.9], defence="none")
    coverage, thresholds = figures.plot_by_class(calibration, level=1)
    assert not proved(coverage)
    assert set(thresholds.collections[0].get_offsets()[:, 0]) == {calibration.threshold[1]}


def test_of_very_many_classes_the_least_covered_are_shown_and_of_none_nothing() -> None:
    rng = np.random.default_rng(2)
    held = {"labels": rng.integers(0, 60, 6000), "classes": 60}
    report = robfcp.Report.from_scores("a", rng.random(6000), **held)
    coverage, _ = figures.plot_by_class(robfcp.calibrate([report], defence="none"))
    assert len(coverage.get_yticklabels()) == 40
    with pytest.raises(RobfcpError, match="keep no classes or groups"):
        figures.plot_by_class(robfcp.calibrate(federation(), defence="none"))
