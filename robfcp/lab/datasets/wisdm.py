"""WISDM activity recognition from the raw text file of the accelerometer: one site a user.

Kwapisz, Weiss and Moore (2010), "Activity recognition using cell phone accelerometers", SensorKDD.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.files import Source, locate
from robfcp.lab.datasets.table import SiteTable

SOURCE = Source(name="wisdm", home="https://www.cis.fordham.edu/wisdm/dataset.php", folder="wisdm")
FILE = "WISDM_ar_v1.1_raw.txt"
ACTIVITIES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")
WINDOW = 200  # readings: ten seconds at 20 Hz
FEATURES = tuple(
    f"{word} {axis}" for word in ("mean", "sd", "least", "most", "step") for axis in "xyz"
)
Reading = tuple[str, str, tuple[float, float, float]]


def load(directory: Path, verify: bool) -> SiteTable:
    """Windows of 200 readings of one user and activity in a row; site: the user.

    Features are mean, standard deviation, least, most and mean absolute step of each axis. The
    official file has broken readings; they are left out, as are windows cut short.
    """
    path = locate(directory, SOURCE, (f"WISDM_ar_v1.1/{FILE}", FILE))
    rows, label, user = [], [], []
    for (who, activity), run in groupby(_readings(path), lambda reading: reading[:2]):
        track = np.array([values for _, _, values in run])
        for start in range(0, len(track) - WINDOW + 1, WINDOW):
            rows.append(_described(track[start : start + WINDOW]))
            label.append(ACTIVITIES.index(activity))
            user.append(f"user {int(who):02d}")
    if not rows:
        raise RobfcpError(
            f"wisdm: {path} holds no {WINDOW} readings user,activity,time,x,y,z; of one activity "
            f"in a row; get it from {SOURCE.home}"
        )
    return SiteTable(
        "wisdm", np.stack(rows), np.array(label), ACTIVITIES, {"site": np.array(user)}, FEATURES
    )


def _readings(path: Path) -> Iterator[Reading]:
    """User, activity and acceleration of every reading that is whole."""
    for text in path.read_text(encoding="latin-1").replace("\n", ";").split(";"):
        parts = [part.strip() for part in text.strip().rstrip(",").split(",")]
        if len(parts) != 6 or not parts[0].isdigit() or parts[1] not in ACTIVITIES:
            continue
        try:
            x, y, z = (float(part) for part in parts[3:])
        except ValueError:
            continue
        if np.isfinite((x, y, z)).all():
            yield parts[0], parts[1], (x, y, z)


def _described(track: NDArray[np.float64]) -> NDArray[np.float32]:
    steps = np.abs(np.diff(track, axis=0)).mean(axis=0)
    parts = (track.mean(axis=0), track.std(axis=0), track.min(axis=0), track.max(axis=0), steps)
    return np.concatenate(parts).astype(np.float32)
