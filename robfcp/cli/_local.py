"""A site's own threshold from files: its letter and its labelled outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from robfcp.calibration import (
    MAX_CALIBRATION_BYTES,
    Calibration,
    Letter,
    Localised,
    at_stranger,
    kind_of,
)
from robfcp.cli._common import seed_of
from robfcp.cli._data import expects, read_outputs
from robfcp.cli._outputs import FileOutputs, FileReading
from robfcp.files import read_limited


def read_for(
    calibration: Calibration,
    data: Path,
    reading: FileReading,
    *,
    needs_targets: bool,
    columns: Sequence[str | None] = (),
) -> FileOutputs:
    """Outputs for a calibration, in its order of classes."""
    return read_outputs(
        data,
        needs_targets=needs_targets,
        columns=columns,
        expects=expects(calibration.score, calibration.risk),
        reading=replace(reading, classes=calibration.classes),
    )


def localised_from(
    path: Path, data: Path, reading: FileReading, key: str | None = None, seed: int = 0
) -> Localised:
    """From the site's letter, or for a stranger from the evidence beside a calibration."""
    rng = seed_of(seed, "localise")
    if kind_of(read_limited(path, MAX_CALIBRATION_BYTES)) == "letter":
        letter = Letter.load(path, key)
        found = read_for(letter.calibration, data, reading, needs_targets=True)
        assert found.targets is not None
        return letter.at_site(found.predictions, found.targets, rng)
    calibration = Calibration.load(path, key)
    found = read_for(calibration, data, reading, needs_targets=True)
    assert found.targets is not None
    return at_stranger(calibration, found.predictions, found.targets, rng)
