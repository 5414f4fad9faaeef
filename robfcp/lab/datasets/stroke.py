"""The International Stroke Trial: 466 hospitals in 36 countries, from the published table.

Sandercock, Niewada, Czlonkowska and the International Stroke Trial Collaborative Group (2011),
"The International Stroke Trial database", Trials 12:101. Open Data Commons Attribution licence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.columns import Columns, flags, members, numbers, read_columns
from robfcp.lab.datasets.files import Source, locate
from robfcp.lab.datasets.table import SiteTable

SOURCE = Source(name="stroke", home="https://doi.org/10.7488/ds/104", folder="ist")
FILES = ("IST.csv", "IST_corrected.csv", "natural/ist/IST.csv")
CLASSES = ("dead", "dependent", "not recovered", "recovered")  # OCCODE 1..4, at six months
PATIENTS = 19435
NUMBERS = ("RDELAY", "AGE", "RSBP")  # hours since onset, years, systolic blood pressure
FLAGS = (  # woke with it, atrial fibrillation, CT done, infarct visible, heparin, aspirin, deficits
    "RSLEEP", "RATRIAL", "RCT", "RVISINF", "RHEP24", "RASP3", *(f"RDEF{k}" for k in range(1, 9)),
)  # fmt: skip
WORDS = {"SEX": ("M",), "RCONSC": ("D", "U"), "STYPE": ("TACS", "PACS", "LACS", "POCS")}
BASELINE = (*NUMBERS, *FLAGS, *WORDS)
_UNKNOWN = frozenset({"0", "9", ""})


def load(directory: Path, verify: bool) -> SiteTable:
    """Every patient whose outcome at six months is known, with what was known at randomisation.

    Features are the columns in `BASELINE`: nothing from after randomisation, no treatment, and not
    the trial's own predictions (EXPDD, EXPD6, EXPD14). Columns: site (hospital), country, group
    (stroke syndrome), year (of randomisation; empty where the table has none).
    """
    path = locate(directory, SOURCE, FILES)
    table = read_columns(path, SOURCE, (*BASELINE, "HOSPNUM", "COUNTRY", "OCCODE", "RDATE"))
    if verify and len(table["OCCODE"]) != PATIENTS:
        raise RobfcpError(
            f"stroke: {path} holds {len(table['OCCODE'])} of the {PATIENTS} patients; get the "
            f"table from {SOURCE.home}, or pass --no-verify to use these"
        )
    outcome = [_outcome(value, path) for value in table["OCCODE"]]
    kept = np.array([value >= 0 for value in outcome])
    features = _features(table)
    return SiteTable(
        name="stroke",
        x=np.column_stack(list(features.values()))[kept],
        y=np.array(outcome, np.int64)[kept],
        classes=CLASSES,
        columns={
            "site": np.array([f"hospital {name}" for name in table["HOSPNUM"]])[kept],
            "country": np.array(table["COUNTRY"])[kept],
            "group": np.array(table["STYPE"])[kept],
            "year": np.array([_year(value) for value in table["RDATE"]])[kept],
        },
        features=tuple(features),
    )


def _outcome(value: str, path: Path) -> int:
    """The class 0..3, or -1 where the outcome is unknown."""
    if value in _UNKNOWN:
        return -1
    if value not in ("1", "2", "3", "4"):
        raise RobfcpError(
            f"stroke: {path} has OCCODE {value!r}, not 0..4 or 9; get it from {SOURCE.home}"
        )
    return int(value) - 1


def _year(value: str) -> str:
    """'1991' from 'Jan-91'; months come in whatever language the table was converted in."""
    digits = value[-2:]
    return f"19{digits}" if digits.isdecimal() else ""


def _features(table: Columns) -> dict[str, np.ndarray]:
    found = {name: numbers(table[name], name, SOURCE) for name in NUMBERS}
    found |= {name: flags(table[name], name, SOURCE) for name in FLAGS}
    for name, words in WORDS.items():
        found |= {f"{name}={word}": members(table[name], word) for word in words}
    return found
