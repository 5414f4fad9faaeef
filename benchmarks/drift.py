"""Drift as it happens: `python benchmarks/drift.py` watches real sites, for docs/alarms.md.

The stroke trial by year, country and hospital; sleep by night and by age. Outputs ship with the
package; everything is seeded; a minute on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import into_page, markdown
from numpy.typing import NDArray

import robfcp
from robfcp.experiments import outputs
from robfcp.figures import BLUE, GREY, VERMILION, new_axes, save, style
from robfcp.monitoring import AlarmHistory

DOCS = Path(__file__).parents[1] / "docs"
LEAST = 20  # samples of a site that calibrates
SCORE = robfcp.LAC()
Rows = NDArray[np.intp]
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Watched:
    """One monitor on one stretch of samples."""

    name: str
    monitor: robfcp.Monitor
    check: robfcp.calibration.coverage_check.Check

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        reading = self.monitor.state
        alarms = reading.alarms
        return [
            self.name,
            f"{reading.floor:.3f}",
            f"{self.check.overall.coverage:.3f}",
            self.check.verdict,
            f"{alarms['coverage']:,}" if "coverage" in alarms else "-",
            f"{alarms['drift']:,}" if "drift" in alarms else "-",
            f"{reading.n:,}",
        ]


HEAD = ["floor", "coverage", "check", "floor rings at", "drift rings at", "samples"]


def report_of(data: outputs.Outputs, name: str, rows: Rows) -> robfcp.Report:
    """One site's report."""
    scores = SCORE(data.probabilities[rows], data.labels[rows])
    return robfcp.Report.from_scores(name, scores, score=SCORE)


def reports_of(data: outputs.Outputs, rows: Rows, sites: NDArray[np.str_]) -> list[robfcp.Report]:
    """A report of every site that has LEAST of these rows."""
    found = []
    for name in np.unique(sites[rows]):
        own = rows[sites[rows] == name]
        if len(own) >= LEAST:
            found.append(report_of(data, str(name), own))
    return found


def pooled(reports: Sequence[robfcp.Report]) -> robfcp.Report:
    """All reports as one: what fresh scores are compared with."""
    counts = np.sum([report.counts for report in reports], axis=0)
    return robfcp.Report("all sites", counts, SCORE.default_binning(), SCORE)


def watch(
    name: str,
    calibration: robfcp.Calibration,
    report: robfcp.Report,
    data: outputs.Outputs,
    rows: Rows,
    own: bool = False,
) -> Watched:
    """Feed the rows, in their order, to a new monitor of the certificate, or of the own floor."""
    floor = None if own else calibration.certificate.lower
    monitor = robfcp.Monitor(
        calibration, reference_report=report, client=name, min_coverage=floor, seed=0
    )
    fresh = data.probabilities[rows], data.labels[rows]
    monitor.update(*fresh, batch=name)
    return Watched(name, monitor, calibration.evaluate(*fresh, min_coverage=floor))


def stroke() -> tuple[list[Watched], list[robfcp.Monitor], AlarmHistory]:
    """Hospitals calibrate with the patients of 1991 to 1993; those of 1994 to 1996 come in by year.

    Countries and hospitals against the certificate; then every calibrating hospital against its own
    report, merged year by year while two may lie.
    """
    data, rng = outputs.load("stroke", outputs.NATURAL), np.random.default_rng(0)
    year = data.column("year").astype(int)
    country, hospital = data.column("country"), data.column("site")
    reports = reports_of(data, np.flatnonzero(year <= 1993), hospital)
    calibration, crowd = (
        robfcp.calibrate(reports, defense=robfcp.Consensus(at_most=2)),
        pooled(reports),
    )

    def by_year(mask: NDArray[np.bool_]) -> Rows:
        late = [rng.permutation(np.flatnonzero(mask & (year == y))) for y in (1994, 1995, 1996)]
        return np.concatenate(late)

    found = [
        watch(
            f"patients of {y}", calibration, crowd, data, rng.permutation(np.flatnonzero(year == y))
        )
        for y in (1994, 1995, 1996)
    ]
    for column, least in ((country, 400), (hospital, 180)):
        names, sizes = np.unique(column[year > 1993], return_counts=True)
        for name in names[np.argsort(-sizes, kind="stable")][: int((sizes >= least).sum())]:
            found.append(watch(str(name), calibration, crowd, data, by_year(column == name)))
    history = AlarmHistory(calibration.fingerprint, "1993", len(reports), 2, 0.05)
    own = [robfcp.Monitor(calibration, reference_report=report, seed=0) for report in reports]
    for step, y in enumerate((1994, 1995, 1996), 1):
        sent = []
        for report, monitor in zip(reports, own, strict=True):
            rows = rng.permutation(np.flatnonzero((hospital == report.client) & (year == y)))
            if len(rows):
                fresh = data.probabilities[rows], data.labels[rows]
                monitor.update(*fresh, batch=str(y))
            sent.append(monitor.e_value_report("1993", step))
        _, history = history.with_inspection(sent, step)
    return found, own, history


def sleep() -> tuple[list[Watched], list[Watched]]:
    """Subjects calibrate with their first night, the second is watched; then the young calibrate
    and the older are watched. Epochs come in random order: in their own they depend on each other.
    """
    data, rng = outputs.load("sleep", outputs.NATURAL), np.random.default_rng(0)
    night, age, subject = data.column("night"), data.column("age").astype(int), data.column("site")
    reports = reports_of(data, np.flatnonzero(night == "1"), subject)
    calibration = robfcp.calibrate(reports, defense=robfcp.Consensus(at_most=4))
    second = []
    for report in reports:
        rows = rng.permutation(np.flatnonzero((subject == report.client) & (night == "2")))
        if len(rows) >= LEAST:
            second.append(watch(report.client, calibration, report, data, rows, own=True))
    young = reports_of(data, np.flatnonzero(age < 40), subject)
    calibration, crowd = robfcp.calibrate(young, defense=robfcp.Consensus(at_most=1)), pooled(young)
    older = [
        watch(f"age {low} to {high - 1}", calibration, crowd, data,
              rng.permutation(np.flatnonzero((age >= low) & (age < high))))
        for low, high in ((50, 60), (60, 70), (70, 80), (80, 102))
    ]  # fmt: skip
    return second, older


def summary(title: str, monitors: Sequence[robfcp.Monitor]) -> list[str]:
    """How many of many monitors rang."""
    alarms = [one.state.alarms for one in monitors]
    n = len(monitors)
    floor, drift = (sum(name in a for a in alarms) for name in ("coverage", "drift"))
    samples = sum(one.state.n for one in monitors)
    shares = [f"{count} ({count / n:.0%})" for count in (floor, drift)]
    return [title, str(n), *shares, f"{samples:,}"]


@style()
def draw(trial: Sequence[Watched], older: Sequence[Watched]) -> None:
    """Alarms against the floor: the stroke trial from 1994 on, and sleep by age."""
    left, right = new_axes(2)
    for ax, watched, title in (
        (left, trial, "Stroke trial from 1994 on"),
        (right, older, "Sleep of the older, calibrated on the young"),
    ):
        for one in watched:
            n = [point.n for point in one.monitor.state.curve]
            logs = np.array([point.coverage for point in one.monitor.state.curve]) / np.log(10)
            rang = "coverage" in one.monitor.state.alarms
            ax.plot(n, np.clip(logs, -4, 9), color=VERMILION if rang else GREY, linewidth=1.2)
            if rang or len(watched) < 6:
                ax.annotate(one.name, (n[-1], np.clip(logs[-1], -4, 9)), fontsize=7.5,
                            xytext=(3, 0), textcoords="offset points", va="center")  # fmt: skip
        ax.axhline(np.log10(2 / 0.05), color=BLUE, linestyle="--", linewidth=1)
        ax.set(xlabel="samples", title=title, xscale="log")
    left.set_ylabel("alarm strength, log10")
    save(np.array([left, right]), DOCS / "images" / "drift.png")


def main() -> None:
    """Watch, print, and write the tables and the figure into the docs."""
    trial, own, history = stroke()
    second, older = sleep()
    looks = [
        [
            str(1993 + look.step),
            f"{sum(one.log_coverage >= np.log(40) for one in look.sites.values())}",
            f"{merged.log_mean / np.log(10):.2f}",
            f"{merged.log_drift / np.log(10):.2f}",
            ", ".join(merged.alarmed) or "-",
        ]
        for look, merged in zip(history.looks, history.merged, strict=True)
    ]
    tables = [
        markdown(
            ["stroke trial, calibrated on 1991 to 1993", *HEAD],
            [w.cells for w in trial if w.name[:8] == "patients" or {*w.cells[4:6]} != {"-"}],
        ),
        markdown(
            ["the calibrating hospitals together, two may lie", "ring alone",
             "mean of the K - m smallest, log10", "drift, log10", "listed"],
            looks,
        ),
        markdown(
            ["against the site's own report", "sites", "floor rings", "drift rings", "samples"],
            [summary("stroke trial, hospitals, 1994 to 1996", own),
             summary("sleep, second night after the first", [one.monitor for one in second])],
        ),
        markdown(["sleep, calibrated on 25 to 34 years", *HEAD], [w.cells for w in older]),
    ]  # fmt: skip
    text = "\n\n".join(tables)
    print(text)
    draw(trial, older)
    into_page(DOCS / "alarms.md", "drift", text)


if __name__ == "__main__":
    main()
