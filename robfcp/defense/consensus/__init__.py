"""The default defense: an outlier test against plausible reference sets, and clipped votes.

`Consensus` is the defense, `Tuning` holds its constants, and `analyze_outliers` gives the evidence
on every client. `estimate_class_counts` and `divide_among_classes` tell classes apart where reports
state class totals alone. May import what `defense` may, and the base classes of `defense`.
"""

from robfcp.defense.consensus._class_estimates import (
    divide_among_classes,
    estimate_class_counts,
)
from robfcp.defense.consensus._consensus import (
    Consensus,
    OutlierAnalysis,
    analyze_outliers,
    estimate_n_malicious,
)
from robfcp.defense.consensus._tuning import DEFAULT_TUNING, Tuning

__all__ = [
    "DEFAULT_TUNING",
    "Consensus",
    "OutlierAnalysis",
    "Tuning",
    "analyze_outliers",
    "divide_among_classes",
    "estimate_class_counts",
    "estimate_n_malicious",
]
