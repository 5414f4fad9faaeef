"""Drift as it happens: `python benchmarks/drift.py` monitors real sites, for docs/alarms.md.

The stroke trial by year, country and hospital; sleep by night and by age. Outputs ship with the
package; everything is seeded; a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import into_page, markdown
from numpy.typing import NDArray

import robfcp
from robfcp.evaluation import CoverageEvaluation
from robfcp.experiments import outputs
from robfcp.figures import BLUE, GRAY, VERMILION, new_axes, save, style
from robfcp.monitoring import AlarmHistory

DOCS = Path(__file__).parents[1] / "docs"
MIN_SAMPLES = 20  # of a site that calibrates
SCORE = robfcp.LAC()
DELTA = 0.05  # probability of a false alarm
YEARS = (1994, 1995, 1996)  # watched in the stroke trial
STROKE_MAX_MALICIOUS = 2
LOG_ALARM = np.log(2 / DELTA)  # one of two tests: each has half of delta
CLIP = (-4, 9)  # of the logarithms that are drawn

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Watched:
    """One monitor on one stretch of samples."""

    name: str
    monitor: robfcp.Monitor
    evaluation: CoverageEvaluation

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        state = self.monitor.state
        return [
            self.name,
            f"{state.min_coverage:.3f}",
            f"{self.evaluation.overall.coverage:.3f}",
            self.evaluation.result,
            *self.alarm_cells,
            f"{state.n_samples:,}",
        ]

    @property
    def alarm_cells(self) -> list[str]:
        """After how many samples coverage and drift had an alarm; a dash where they had none."""
        alarms = self.monitor.state.alarm_steps
        return [f"{alarms[kind]:,}" if kind in alarms else "-" for kind in ("coverage", "drift")]

    @property
    def has_alarm(self) -> bool:
        """Whether coverage or drift had an alarm."""
        return self.alarm_cells != ["-", "-"]


HEAD = ["min. coverage", "coverage", "evaluation", "coverage alarm at", "drift alarm at", "samples"]


def report_of(data: outputs.Outputs, name: str, rows: Rows) -> robfcp.Report:
    """Return one site's report."""
    scores = SCORE(data.probabilities[rows], data.labels[rows])
    return robfcp.Report.from_scores(name, scores, score=SCORE)


def reports_of(
    data: outputs.Outputs, rows: Rows, client_of_sample: NDArray[np.str_]
) -> list[robfcp.Report]:
    """Return a report of every site that has `MIN_SAMPLES` of these rows."""
    reports = []
    for name in np.unique(client_of_sample[rows]):
        client_rows = rows[client_of_sample[rows] == name]
        if len(client_rows) >= MIN_SAMPLES:
            reports.append(report_of(data, str(name), client_rows))
    return reports


def pooled(reports: Sequence[robfcp.Report]) -> robfcp.Report:
    """Return all reports as one: what fresh scores are compared with."""
    counts = np.sum([report.counts for report in reports], axis=0)
    return robfcp.Report("all sites", counts, SCORE.default_binning(), SCORE)


def watch(
    name: str,
    calibration: robfcp.Calibration,
    report: robfcp.Report,
    data: outputs.Outputs,
    rows: Rows,
    min_coverage: float | None,
) -> Watched:
    """Feed rows, in their order, to a new monitor.

    Parameters
    ----------
    name : str
        Of what is watched.
    calibration : Calibration
        What is watched.
    report : Report
        What scores are compared with.
    data : Outputs
        The samples.
    rows : array of int
        Those that come in.
    min_coverage : float or None
        The minimum coverage; None for what the client's own report supports.
    """
    monitor = robfcp.Monitor(
        calibration, reference_report=report, client=name, min_coverage=min_coverage, seed=0
    )
    probabilities = data.probabilities[rows]
    labels = data.labels[rows]
    monitor.update(probabilities, labels, batch=name)
    evaluation = calibration.evaluate(probabilities, labels, min_coverage=min_coverage)
    return Watched(name, monitor, evaluation)


class StrokeTrial:
    """The stroke trial: hospitals calibrate with the patients of 1991 to 1993."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.data = outputs.load("stroke", outputs.NATURAL)
        self.year = self.data.column("year").astype(int)
        self.country = self.data.column("country")
        self.hospital = self.data.column("site")
        self.reports = reports_of(self.data, np.flatnonzero(self.year <= 1993), self.hospital)
        defense = robfcp.Consensus(max_malicious=STROKE_MAX_MALICIOUS)
        self.calibration = robfcp.calibrate(self.reports, defense=defense)

    def watch_groups(self) -> list[Watched]:
        """Watch years, countries and hospitals against the certificate."""
        watched = []
        for year in YEARS:
            rows = self.rng.permutation(np.flatnonzero(self.year == year))
            watched.append(self._watch(f"patients of {year}", rows))
        for column, min_size in ((self.country, 400), (self.hospital, 180)):
            names, sizes = np.unique(column[self.year > 1993], return_counts=True)
            largest_first = names[np.argsort(-sizes, kind="stable")]
            n_large = int((sizes >= min_size).sum())
            for name in largest_first[:n_large]:
                watched.append(self._watch(str(name), self._rows_by_year(column == name)))
        return watched

    def _watch(self, name: str, rows: Rows) -> Watched:
        """Watch rows against the certificate."""
        min_coverage = self.calibration.certificate.lower
        reference = pooled(self.reports)
        return watch(name, self.calibration, reference, self.data, rows, min_coverage)

    def _rows_by_year(self, mask: NDArray[np.bool_]) -> Rows:
        """Return the rows of a group, year after year, in random order within a year."""
        years = [self.rng.permutation(np.flatnonzero(mask & (self.year == year))) for year in YEARS]
        return np.concatenate(years)

    def watch_together(self) -> tuple[list[robfcp.Monitor], AlarmHistory]:
        """Watch every calibrating hospital against its own report, merged year by year."""
        monitors = [
            robfcp.Monitor(self.calibration, reference_report=report, seed=0)
            for report in self.reports
        ]
        history = AlarmHistory(
            self.calibration.fingerprint,
            "1993",
            len(self.reports),
            STROKE_MAX_MALICIOUS,
            DELTA,
        )
        for step, year in enumerate(YEARS, 1):
            e_value_reports = []
            for report, monitor in zip(self.reports, monitors, strict=True):
                is_fresh = (self.hospital == report.client) & (self.year == year)
                rows = self.rng.permutation(np.flatnonzero(is_fresh))
                if len(rows):
                    monitor.update(
                        self.data.probabilities[rows], self.data.labels[rows], batch=str(year)
                    )
                e_value_reports.append(monitor.e_value_report("1993", step))
            _, history = history.with_inspection(e_value_reports, step)
        return monitors, history


def sleep() -> tuple[list[Watched], list[Watched]]:
    """Watch second nights, and the older.

    Subjects calibrate with their first night, the second is watched; then the young calibrate and
    the older are watched. Epochs come in random order: in their own they depend on each other.
    """
    rng = np.random.default_rng(0)
    data = outputs.load("sleep", outputs.NATURAL)
    night = data.column("night")
    age = data.column("age").astype(int)
    subject = data.column("site")

    reports = reports_of(data, np.flatnonzero(night == "1"), subject)
    calibration = robfcp.calibrate(reports, defense=robfcp.Consensus(max_malicious=4))
    second_nights = []
    for report in reports:
        is_second = (subject == report.client) & (night == "2")
        rows = rng.permutation(np.flatnonzero(is_second))
        if len(rows) >= MIN_SAMPLES:
            second_nights.append(watch(report.client, calibration, report, data, rows, None))

    young = reports_of(data, np.flatnonzero(age < 40), subject)
    calibration = robfcp.calibrate(young, defense=robfcp.Consensus(max_malicious=1))
    reference = pooled(young)
    older = []
    for low, high in ((50, 60), (60, 70), (70, 80), (80, 102)):
        rows = rng.permutation(np.flatnonzero((age >= low) & (age < high)))
        name = f"age {low} to {high - 1}"
        min_coverage = calibration.certificate.lower
        older.append(watch(name, calibration, reference, data, rows, min_coverage))
    return second_nights, older


def summary(title: str, monitors: Sequence[robfcp.Monitor]) -> list[str]:
    """Return a row that says how many of some monitors had alarms."""
    n = len(monitors)
    cells = [title, str(n)]
    for kind in ("coverage", "drift"):
        n_alarms = sum(kind in monitor.state.alarm_steps for monitor in monitors)
        cells.append(f"{n_alarms} ({n_alarms / n:.0%})")
    n_samples = sum(monitor.state.n_samples for monitor in monitors)
    return [*cells, f"{n_samples:,}"]


@style()
def draw(stroke: Sequence[Watched], older: Sequence[Watched]) -> None:
    """Draw e-values against the minimum coverage: the stroke trial by group, sleep by age."""
    left, right = new_axes(2)
    _draw_panel(left, stroke, "Stroke trial from 1994 on")
    _draw_panel(right, older, "Sleep of the older, calibrated on the young")
    left.set_ylabel("e-value, log10")
    save(np.array([left, right]), DOCS / "images" / "drift.png")


def _draw_panel(ax: Any, watched: Sequence[Watched], title: str) -> None:
    """Draw the e-values of some monitors; those with an alarm in color and with their names."""
    for stretch in watched:
        state = stretch.monitor.state
        n = [point.n_samples for point in state.points]
        e_values = np.array([point.log_e_coverage for point in state.points]) / np.log(10)
        clipped = np.clip(e_values, *CLIP)
        has_alarm = "coverage" in state.alarm_steps
        ax.plot(n, clipped, color=VERMILION if has_alarm else GRAY, linewidth=1.2)
        if has_alarm or len(watched) < 6:
            ax.annotate(
                stretch.name,
                (n[-1], clipped[-1]),
                fontsize=7.5,
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
            )
    ax.axhline(LOG_ALARM / np.log(10), color=BLUE, linestyle="--", linewidth=1)
    ax.set(xlabel="samples", title=title, xscale="log")


def inspection_table(history: AlarmHistory) -> str:
    """Return a line a year of the hospitals together."""
    lines = []
    for inspection, merged in zip(history.inspections, history.merged, strict=True):
        reports = inspection.e_value_reports.values()
        n_alone = sum(report.log_e_coverage >= LOG_ALARM for report in reports)
        lines.append(
            [
                str(1993 + inspection.step),
                f"{n_alone}",
                f"{merged.log_mean_e_value / np.log(10):.2f}",
                f"{merged.log_e_exchangeability / np.log(10):.2f}",
                ", ".join(merged.alarming_clients) or "-",
            ]
        )
    head = [
        "the calibrating hospitals together, at most two malicious",
        "alarms alone",
        "mean of the K - m smallest, log10",
        "drift, log10",
        "listed",
    ]
    return markdown(head, lines)


def main() -> None:
    """Watch, print, and write the tables and the figure into the docs."""
    trial = StrokeTrial()
    groups = trial.watch_groups()
    monitors, history = trial.watch_together()
    second_nights, older = sleep()

    shown_groups = [
        group for group in groups if group.name.startswith("patients") or group.has_alarm
    ]
    summaries = [
        summary("stroke trial, hospitals, 1994 to 1996", monitors),
        summary("sleep, second night after the first", [night.monitor for night in second_nights]),
    ]
    tables = [
        markdown(
            ["stroke trial, calibrated on 1991 to 1993", *HEAD],
            [group.cells for group in shown_groups],
        ),
        inspection_table(history),
        markdown(
            ["against the site's report", "sites", "coverage alarms", "drift alarms", "samples"],
            summaries,
        ),
        markdown(
            ["sleep, calibrated on 25 to 34 years", *HEAD], [stretch.cells for stretch in older]
        ),
    ]
    text = "\n\n".join(tables)
    print(text)
    draw(groups, older)
    into_page(DOCS / "alarms.md", "drift", text)


if __name__ == "__main__":
    main()
