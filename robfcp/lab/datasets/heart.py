"""UCI heart disease: four hospitals, from the official processed.*.data files.

Janosi, Steinbrunn, Pfisterer and Detrano (1989), "Heart Disease", UCI Machine Learning Repository.
CC BY 4.0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.columns import numbers
from robfcp.lab.datasets.files import Source, locate
from robfcp.lab.datasets.table import SiteTable

SOURCE = Source(name="heart", home="https://doi.org/10.24432/C52P4X", folder="heart_disease")
FEATURES = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal",
)  # fmt: skip
SITES = {  # hospital: file, patients, country
    "Cleveland": ("processed.cleveland.data", 303, "USA"),
    "Hungarian": ("processed.hungarian.data", 294, "Hungary"),
    "Switzerland": ("processed.switzerland.data", 123, "Switzerland"),
    "VA Long Beach": ("processed.va.data", 200, "USA"),
}
CLASSES = ("healthy", "diseased")  # the last column: 0, or 1..4


def load(directory: Path, verify: bool) -> SiteTable:
    """920 patients with 13 features, NaN where one was not measured.

    Columns: site (hospital), country, group (sex).
    """
    parts = {name: read_site(directory, SOURCE, name, verify) for name in SITES}
    table = np.concatenate(list(parts.values()))
    sizes = [len(part) for part in parts.values()]
    countries = [country for _, _, country in SITES.values()]
    return SiteTable(
        name="heart",
        x=table[:, :-1],
        y=(table[:, -1] > 0).astype(np.int64),
        classes=CLASSES,
        columns={
            "site": np.repeat(list(parts), sizes),
            "country": np.repeat(countries, sizes),
            "group": np.where(table[:, 1] > 0, "male", "female"),
        },
        features=FEATURES,
    )


def read_site(directory: Path, source: Source, site: str, verify: bool) -> np.ndarray:
    """(n, 14) one hospital's file: thirteen features, then the diagnosis."""
    file, patients, _ = SITES[site]
    path = locate(directory, source, (file, f"natural/{SOURCE.folder}/{file}"))
    rows = [
        line.split(",") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    wrong = next((k for k, row in enumerate(rows, 1) if len(row) != len(FEATURES) + 1), None)
    if wrong is not None:
        raise RobfcpError(
            f"{source.name}: {path} line {wrong} has {len(rows[wrong - 1])} values, not "
            f"{len(FEATURES) + 1}; get the file from {source.home}"
        )
    if verify and len(rows) != patients:
        raise RobfcpError(
            f"{source.name}: {path} holds {len(rows)} of the {patients} patients; get the file "
            f"from {source.home}, or pass --no-verify to use these"
        )
    values = [value.strip() for row in rows for value in row]
    table = numbers(values, path.name, source).reshape(-1, len(FEATURES) + 1)
    if np.isnan(table[:, -1]).any():
        raise RobfcpError(
            f"{source.name}: {path} lacks a diagnosis; get the file from {source.home}"
        )
    return table
