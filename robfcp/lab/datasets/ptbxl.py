"""PTB-XL electrocardiograms from the official tables: one site a recording site.

Wagner et al. (2020), "PTB-XL, a large publicly available electrocardiography dataset", Scientific
Data 7:154. Only the tables are read; signals are named in the column `record`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.columns import numbers, read_columns
from robfcp.lab.datasets.files import Source, locate
from robfcp.lab.datasets.table import SiteTable

SOURCE = Source(name="ptbxl", home="https://doi.org/10.13026/kfzx-aw45", folder="ptb-xl")
RECORDS = 21799
CLASSES = ("NORM", "MI", "STTC", "CD", "HYP")  # diagnostic superclasses
FEATURES = ("age", "sex", "height", "weight")


def load(directory: Path, verify: bool) -> SiteTable:
    """Records with a recording site and a diagnosis; the label is the superclass of the most
    likely diagnostic statement, the first of `CLASSES` where several are.

    Read from ptbxl_database.csv and scp_statements.csv. Columns: site, group (device), record
    (the path of the signal at 100 Hz).
    """
    path = locate(directory, SOURCE, ("ptbxl_database.csv",))
    needed = (*FEATURES, "site", "device", "scp_codes", "filename_lr")
    table = read_columns(path, SOURCE, needed)
    if verify and len(table["site"]) < RECORDS:
        raise RobfcpError(
            f"ptbxl: {path} holds {len(table['site'])} of the {RECORDS} records; get the table "
            f"from {SOURCE.home}, or pass --no-verify to use these"
        )
    superclass = _superclasses(directory)
    label = np.array([_label(text, superclass, path) for text in table["scp_codes"]])
    place = numbers(table["site"], "site", SOURCE)
    kept = (label >= 0) & ~np.isnan(place)
    x = np.column_stack([numbers(table[name], name, SOURCE) for name in FEATURES])
    return SiteTable(
        name="ptbxl",
        x=x[kept],
        y=label[kept].astype(np.int64),
        classes=CLASSES,
        columns={
            "site": np.array([f"site {value:g}" for value in place[kept]]),
            "group": np.array(table["device"])[kept],
            "record": np.array(table["filename_lr"])[kept],
        },
        features=FEATURES,
    )


def _superclasses(directory: Path) -> dict[str, int]:
    """The class of every diagnostic statement."""
    path = locate(directory, SOURCE, ("scp_statements.csv",))
    with path.open(encoding="utf-8") as stream:
        first = stream.readline().split(",")[0]  # official: the codes' column has no name
    table = read_columns(path, SOURCE, (first.strip(), "diagnostic_class"))
    codes = zip(table[first.strip()], table["diagnostic_class"], strict=True)
    return {code: CLASSES.index(word) for code, word in codes if word in CLASSES}


def _label(text: str, superclass: dict[str, int], path: Path) -> int:
    """The superclass of the likeliest diagnosis in {'NORM': 100.0, 'SR': 0.0}; -1 without one."""
    try:
        likelihood = {str(k): float(v) for k, v in json.loads(text.replace("'", '"')).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise RobfcpError(
            f"ptbxl: {path} has scp_codes {text[:40]!r}, not {{'NORM': 100.0}}; get the table from "
            f"{SOURCE.home}"
        ) from error
    found = [(-value, superclass[code]) for code, value in likelihood.items() if code in superclass]
    return min(found)[1] if found else -1
