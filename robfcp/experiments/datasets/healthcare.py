"""Patients and sleepers by the sites they come from, from the official tables.

- stroke: Sandercock, Niewada, Czlonkowska and the International Stroke Trial Collaborative Group
  (2011), "The International Stroke Trial database", Trials 12:101. Open Data Commons Attribution.
- heart: Janosi, Steinbrunn, Pfisterer and Detrano (1989), "Heart Disease", UCI Machine Learning
  Repository. CC BY 4.0.
- sleep: tables of thirty-second epochs computed from Sleep-EDF Expanded or SHHS.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import IntArray
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
STROKE_CATEGORIES = {  # column: values with a feature each
    "SEX": ("M",),
    "RCONSC": ("D", "U"),
    "STYPE": ("TACS", "PACS", "LACS", "POCS"),
}
STROKE_BASELINE = (*STROKE_NUMBERS, *STROKE_FLAGS, *STROKE_CATEGORIES)
UNKNOWN_OUTCOME = -1
STROKE_OUTCOMES = {  # OCCODE: label
    "1": 0,
    "2": 1,
    "3": 2,
    "4": 3,
    "0": UNKNOWN_OUTCOME,
    "9": UNKNOWN_OUTCOME,
    "": UNKNOWN_OUTCOME,
}


def load_stroke(directory: Path, verify: bool) -> SiteTable:
    """Load 466 hospitals in 36 countries: every patient with an outcome at six months.

    Features are the columns in `STROKE_BASELINE`: nothing from after randomization, no treatment,
    and not the predictions of the trial (EXPDD, EXPD6, EXPD14). Columns: site (hospital), country,
    group (stroke syndrome), year (of randomization; empty where the table has none).
    """
    path = STROKE.locate(directory, "IST.csv", "IST_corrected.csv", "natural/ist/IST.csv")
    needed = (*STROKE_BASELINE, "HOSPNUM", "COUNTRY", "OCCODE", "RDATE")
    table = STROKE.read_columns(path, needed)
    STROKE.check_count(path, len(table["OCCODE"]), STROKE_PATIENTS, "patients", verify)

    for value in table["OCCODE"]:
        if value not in STROKE_OUTCOMES:
            raise STROKE.error(f"{path} has OCCODE {value!r}, not 0..4 or 9")
    labels = np.array([STROKE_OUTCOMES[value] for value in table["OCCODE"]])

    features = _stroke_features(table)
    columns = {
        "site": np.array([f"hospital {name}" for name in table["HOSPNUM"]]),
        "country": np.array(table["COUNTRY"]),
        "group": np.array(table["STYPE"]),
        "year": np.array([_stroke_year(date) for date in table["RDATE"]]),
    }
    has_outcome = labels != UNKNOWN_OUTCOME
    return SiteTable(
        name="stroke",
        x=np.column_stack(list(features.values()))[has_outcome],
        y=labels[has_outcome],
        classes=STROKE_CLASSES,
        columns={name: column[has_outcome] for name, column in columns.items()},
        features=tuple(features),
    )


def _stroke_features(table: dict[str, list[str]]) -> dict[str, NDArray[np.float32]]:
    """Return the features of all patients, (n,) each: numbers, flags, then categories."""
    features = {name: STROKE.parse_numbers(table[name], name) for name in STROKE_NUMBERS}
    for name in STROKE_FLAGS:
        features[name] = STROKE.parse_flags(table[name], name)
    for name, categories in STROKE_CATEGORIES.items():
        column = np.char.upper(np.array(table[name]))
        for category in categories:
            features[f"{name}={category}"] = (column == category).astype(np.float32)
    return features


def _stroke_year(date: str) -> str:
    """Return the year of a date such as Jan-91, with the month in any language."""
    year = date[-2:]
    return f"19{year}" if year.isdecimal() else ""


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
    """Load 920 patients with 13 features, NaN where one was not measured.

    Columns: site (hospital), country, group (sex).
    """
    hospital_tables = [_load_heart_hospital(directory, name, verify) for name in HEART_SITES]
    sizes = [len(table) for table in hospital_tables]
    countries = [country for _, _, country in HEART_SITES.values()]
    table = np.concatenate(hospital_tables)
    is_male = table[:, HEART_FEATURES.index("sex")] > 0
    return SiteTable(
        name="heart",
        x=table[:, :-1],
        y=(table[:, -1] > 0).astype(np.int64),
        classes=HEART_CLASSES,
        columns={
            "site": np.repeat(list(HEART_SITES), sizes),
            "country": np.repeat(countries, sizes),
            "group": np.where(is_male, "male", "female"),
        },
        features=HEART_FEATURES,
    )


def _load_heart_hospital(directory: Path, hospital: str, verify: bool) -> NDArray[np.float32]:
    """Return the table of a hospital, (n, 14): thirteen features, then the diagnosis."""
    filename, n_patients, _ = HEART_SITES[hospital]
    path = HEART.locate(directory, filename, f"natural/{HEART.folder}/{filename}")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split(",") for line in lines if line.strip()]

    n_columns = len(HEART_FEATURES) + 1
    for line_number, row in enumerate(rows, 1):
        if len(row) != n_columns:
            raise HEART.error(f"{path} line {line_number} has {len(row)} values, not {n_columns}")
    HEART.check_count(path, len(rows), n_patients, "patients", verify)

    values = [value.strip() for row in rows for value in row]
    table = HEART.parse_numbers(values, path.name).reshape(-1, n_columns)
    if np.isnan(table[:, -1]).any():
        raise HEART.error(f"{path} lacks a diagnosis")
    return table


SLEEP_STAGES = ("W", "N1", "N2", "N3", "REM")
MAX_FEATURE = 8  # interquartile ranges from the median; farther features are clipped
_REQUIRED_ARRAYS = ("x", "y", "subject")
_OPTIONAL_ARRAYS = ("night", "age")  # columns of the sites, if all tables have them
Epochs = dict[str, NDArray[Any]]  # the required arrays and those of the optional ones there are


def load_sleep(directory: Path, verify: bool) -> Dataset:
    """Load half of the subjects (every second) to train on, the others to calibrate and test.

    Every table in `sleep/` is read and joined: an npz with x (n, d), y in 0..4 and subject.
    Features are standardized by the training subjects' median and interquartile range and clipped
    to +-8.
    """
    epochs = _load_epochs(directory, verify)
    subject_index = _subject_indices(epochs)
    is_training = subject_index % 2 == 0

    features = epochs["x"]
    training_features = features[is_training].astype(np.float64)
    low, median, high = np.percentile(training_features, [25, 50, 75], axis=0)
    spread = np.where(high > low, high - low, 1.0)
    scaled = np.clip((features - median) / spread, -MAX_FEATURE, MAX_FEATURE)

    samples = Split(scaled.astype(np.float32), epochs["y"], subject_index)
    train = samples.take(np.flatnonzero(is_training))
    test = samples.take(np.flatnonzero(~is_training))
    return Dataset("sleep", train, test, SLEEP_STAGES)


def load_sleepers(directory: Path, verify: bool) -> SiteTable:
    """Load all epochs of all subjects, with features as they are.

    Columns: site (the subject), and night and age if the tables have them.
    """
    epochs = _load_epochs(directory, verify)
    subject_index = _subject_indices(epochs)
    subjects = np.array([f"subject {k + 1:02d}" for k in range(subject_index.max() + 1)])
    columns = {"site": subjects[subject_index]}
    for name in _OPTIONAL_ARRAYS:
        if name in epochs:
            columns[name] = epochs[name]
    return SiteTable("sleep", epochs["x"], epochs["y"], SLEEP_STAGES, columns)


def _subject_indices(epochs: Epochs) -> IntArray:
    """Return the index of the subject of each epoch, (n,), in the order of the subjects' names."""
    return np.unique(epochs["subject"], return_inverse=True)[1].astype(np.int64)


def _load_epochs(directory: Path, verify: bool) -> Epochs:
    """Join the arrays of all tables in the folder."""
    folder = directory / SLEEP.folder
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise RobfcpError(
            f"sleep: no table of epochs (*.npz) in {folder}; make one from {SLEEP.home}: x, y in "
            "0..4, subject"
        )
    tables = [_load_epoch_table(path) for path in paths]
    widths = {table["x"].shape[1] for table in tables}
    if len(widths) > 1:
        raise RobfcpError(f"sleep: tables in {folder} have {sorted(widths)} features; fix them")

    epochs: Epochs = {}
    for name in (*_REQUIRED_ARRAYS, *_OPTIONAL_ARRAYS):
        arrays = [table[name] for table in tables if name in table]
        if len(arrays) == len(tables):
            epochs[name] = np.concatenate(arrays)
    if verify and not np.isfinite(epochs["x"]).all():
        raise RobfcpError(f"sleep: {folder} holds features that are not finite; clean the table")

    epochs["x"] = epochs["x"].astype(np.float32)
    epochs["y"] = epochs["y"].astype(np.int64)
    for name in _OPTIONAL_ARRAYS:
        if name in epochs:
            epochs[name] = epochs[name].astype(np.str_)
    return epochs


def _load_epoch_table(path: Path) -> Epochs:
    """Read the arrays of a table of epochs; refuse it if a required one is missing."""
    with np.load(path, allow_pickle=False) as content:
        names = [name for name in (*_REQUIRED_ARRAYS, *_OPTIONAL_ARRAYS) if name in content]
        table = {name: content[name] for name in names}
    for name in _REQUIRED_ARRAYS:
        if name not in table:
            raise RobfcpError(f"sleep: {path} needs x, y and subject (no {name}); rebuild it")
    return table


LOADERS = {"sleep": (SLEEP, load_sleep)}
SITE_LOADERS = {
    "stroke": (STROKE, load_stroke),
    "heart": (HEART, load_heart),
    "sleep": (SLEEP, load_sleepers),
}
