"""Metrics: how good prediction sets and intervals are, on labelled test data.

May import scores and what stands before them; only the commands use it.
"""

from robfcp.metrics.intervals import interval_coverage, interval_width
from robfcp.metrics.overview import summary
from robfcp.metrics.parts import (
    class_coverage,
    client_coverage,
    coverage_gap,
    group_coverage,
    size_stratified_coverage,
    size_stratified_violation,
)
from robfcp.metrics.sets import coverage, covered, empty_share, set_size, singleton_share

__all__ = [
    "class_coverage",
    "client_coverage",
    "coverage",
    "coverage_gap",
    "covered",
    "empty_share",
    "group_coverage",
    "interval_coverage",
    "interval_width",
    "set_size",
    "singleton_share",
    "size_stratified_coverage",
    "size_stratified_violation",
    "summary",
]
