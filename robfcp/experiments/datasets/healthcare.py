"""People at their own sites: patients and sleepers, from the official tables.

- stroke: Sandercock, Niewada, Czlonkowska and the International Stroke Trial Collaborative Group
  (2011), "The International Stroke Trial database", Trials 12:101. Open Data Commons Attribution.
- heart: Janosi, Steinbrunn, Pfisterer and Detrano (1989), "Heart Disease", UCI Machine Learning
  Repository. CC BY 4.0.
- sleep: tables of thirty-second epochs made from Sleep-EDF Expanded or SHHS.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.experiments.datasets.files import Dataset, SiteTable, Source, Split

STROKE = Source("stroke", "https://doi.org/10.7488/ds/104", "ist")
HEART = Source("heart", "https://doi.org/10.24432/C52P4X", "heart_disease")
SLEEP = Source(
    "sleep",
    "https://physionet.org/content/sleep-edfx/ (or https://sleepdata.org/datasets/shhs)",
    "sleep",
)

STROKE_CLASSES = ("dead", "dependent", "not recovered", "recovered")  # OCCODE 1..4, at six months
STROKE_PATIENTS = 19435
STROKE_NUMBERS = ("RDELAY", "AGE", "RSBP")  # hours since onset, years, systolic blood pressure
STROKE_FLAGS = (  # woke with it, atrial fibrillation, CT, infarct seen, heparin, aspirin, deficits
    "RSLEEP", "RATRIAL", "RCT", "RVISINF", "RHEP24", "RASP3", *(f"RDEF{k}" for k in range(1, 9)),
)  # fmt: skip
STROKE_WORDS = {"SEX": ("M",), "RCONSC": ("D", "U"), "STYPE": ("TACS", "PACS", "LACS", "POCS")}
STROKE_BASELINE = (*STROKE_NUMBERS, *STROKE_FLAGS, *STROKE_WORDS)


def load_stroke(directory: Path, verify: bool) -> SiteTable:
    """466 hospitals in 36 countries: every patient whose outcome at six months is known.

    Features are the columns in `STROKE_BASELINE`: nothing from after randomisation, no treatment,
    and not the trial's own predictions (EXPDD, EXPD6, EXPD14). Columns: site (hospital), country,
    group (stroke syndrome), year (of randomisation; empty where the table has none).
    """
    path = STROKE.locate(directory, "IST.csv", "IST_corrected.csv", "natural/ist/IST.csv")
    needed = (*STROKE_BASELINE, "HOSPNUM", "COUNTRY", "OCCODE", "RDATE")
    table = STROKE.read_columns(path, needed)
    STROKE.check_number(path, len(table["OCCODE"]), STROKE_PATIENTS, "patients", verify)
    outcome = {"1": 0, "2": 1, "3": 2, "4": 3, "0": -1, "9": -1, "": -1}  # -1: not known
    for value in table["OCCODE"]:
        if value not in outcome:
            raise STROKE.wrong(f"{path} has OCCODE {value!r}, not 0..4 or 9")
    y = np.array([outcome[value] for value in table["OCCODE"]])
    x = {name: STROKE.numbers(table[name], name) for name in STROKE_NUMBERS}
    x |= {name: STROKE.flags(table[name], name) for name in STROKE_FLAGS}
    for name, words in STROKE_WORDS.items():
        column = np.char.upper(np.array(table[name]))
        x |= {f"{name}={word}": (column == word).astype(np.float32) for word in words}
    years = [date[-2:] for date in table["RDATE"]]  # Jan-91, months in any language
    known = y >= 0
    return SiteTable(
        name="stroke",
        x=np.column_stack(list(x.values()))[known],
        y=y[known],
        classes=STROKE_CLASSES,
        columns={
            "site": np.array([f"hospital {name}" for name in table["HOSPNUM"]])[known],
            "country": np.array(table["COUNTRY"])[known],
            "group": np.array(table["STYPE"])[known],
            "year": np.array([f"19{y}" if y.isdecimal() else "" for y in years])[known],
        },
        features=tuple(x),
    )


HEART_FEATURES = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal",
)  # fmt: skip
HEART_SITES = {  # hospital: file, patients, country
    "Cleveland": ("processed.cleveland.data", 303, "USA"),
    "Hungarian": ("processed.hungarian.data", 294, "Hungary"),
    "Switzerland": ("processed.switzerland.data", 123, "Switzerland"),
    "VA Long Beach": ("processed.va.data", 200, "USA"),
}
HEART_CLASSES = ("healthy", "diseased")  # the last column: 0, or 1..4


def load_heart(directory: Path, verify: bool) -> SiteTable:
    """920 patients with 13 features, NaN where one was not measured.

    Columns: site (hospital), country, group (sex).
    """
    parts = [_heart_site(directory, name, verify) for name in HEART_SITES]
    table, sizes = np.concatenate(parts), [len(part) for part in parts]
    return SiteTable(
        name="heart",
        x=table[:, :-1],
        y=(table[:, -1] > 0).astype(np.int64),
        classes=HEART_CLASSES,
        columns={
            "site": np.repeat(list(HEART_SITES), sizes),
            "country": np.repeat([country for *_, country in HEART_SITES.values()], sizes),
            "group": np.where(table[:, 1] > 0, "male", "female"),
        },
        features=HEART_FEATURES,
    )


def _heart_site(directory: Path, site: str, verify: bool) -> NDArray[np.float32]:
    """(n, 14) one hospital's file: thirteen features, then the diagnosis."""
    file, patients, _ = HEART_SITES[site]
    path = HEART.locate(directory, file, f"natural/{HEART.folder}/{file}")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split(",") for line in lines if line.strip()]
    width = len(HEART_FEATURES) + 1
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise HEART.wrong(f"{path} line {number} has {len(row)} values, not {width}")
    HEART.check_number(path, len(rows), patients, "patients", verify)
    values = [value.strip() for row in rows for value in row]
    table = HEART.numbers(values, path.name).reshape(-1, width)
    if np.isnan(table[:, -1]).any():
        raise HEART.wrong(f"{path} lacks a diagnosis")
    return table


SLEEP_STAGES = ("W", "N1", "N2", "N3", "REM")
_KEPT = ("night", "age")  # columns of sites, where all tables have them
Epochs = dict[str, NDArray[Any]]  # x, y, subject and what is kept


def load_sleep(directory: Path, verify: bool) -> Dataset:
    """Half of the subjects (every second, by number) to train on, the others to calibrate and test.

    Every table in `sleep/` is read and joined: an npz with x (n, d), y in 0..4 and subject.
    Features are standardised by the training subjects' median and interquartile range and clipped
    to +-8.
    """
    found = _epochs(directory, verify)
    number = np.unique(found["subject"], return_inverse=True)[1]
    training = number % 2 == 0
    x = found["x"]
    low, middle, high = np.percentile(x[training].astype(np.float64), [25, 50, 75], axis=0)
    scaled = np.clip((x - middle) / np.where(high > low, high - low, 1.0), -8, 8)
    every = Split(scaled.astype(np.float32), found["y"], number.astype(np.int64))
    train, test = every.take(np.flatnonzero(training)), every.take(np.flatnonzero(~training))
    return Dataset("sleep", train, test, SLEEP_STAGES)


def load_sleepers(directory: Path, verify: bool) -> SiteTable:
    """All epochs of all subjects, features as they are; columns: site (the subject), and night and
    age where the tables have them."""
    found = _epochs(directory, verify)
    number = np.unique(found["subject"], return_inverse=True)[1]
    site = np.array([f"subject {k + 1:02d}" for k in range(number.max() + 1)])[number]
    names = {name: found[name] for name in _KEPT if name in found}
    return SiteTable("sleep", found["x"], found["y"], SLEEP_STAGES, {"site": site, **names})


def _epochs(directory: Path, verify: bool) -> Epochs:
    """Features, stages, subjects and other columns of every table in the folder."""
    folder = directory / SLEEP.folder
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise RobfcpError(
            f"sleep: no table of epochs (*.npz) in {folder}; make one from {SLEEP.home}: x, y in "
            "0..4, subject"
        )
    tables = []
    for path in paths:
        with np.load(path, allow_pickle=False) as content:
            known = ("x", "y", "subject", *_KEPT)
            tables.append({key: content[key] for key in known if key in content})
        missing = [name for name in known[:3] if name not in tables[-1]]
        if missing:
            raise RobfcpError(f"sleep: {path} needs x, y and subject (no {missing[0]}); rebuild it")
    widths = {table["x"].shape[1] for table in tables}
    if len(widths) > 1:
        raise RobfcpError(f"sleep: tables in {folder} have {sorted(widths)} features; fix them")
    shared = [name for name in tables[0] if all(name in table for table in tables)]
    found = {name: np.concatenate([table[name] for table in tables]) for name in shared}
    if verify and not np.isfinite(found["x"]).all():
        raise RobfcpError(f"sleep: {folder} holds features that are not finite; clean the table")
    kinds = {"x": np.float32, "y": np.int64, **dict.fromkeys(_KEPT, np.str_)}
    return {name: values.astype(kinds.get(name, values.dtype)) for name, values in found.items()}


LOADERS = {"sleep": (SLEEP, load_sleep)}
SITE_LOADERS = {
    "stroke": (STROKE, load_stroke),
    "heart": (HEART, load_heart),
    "sleep": (SLEEP, load_sleepers),
}
