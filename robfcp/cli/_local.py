"""A site's own threshold from files: its letter and its labelled outputs."""

from __future__ import annotations

from pathlib import Path

from robfcp._util.files import read_limited
from robfcp.calibration import (
    MAX_CALIBRATION_BYTES,
    Calibration,
    Localised,
    at_stranger,
    kind_of,
    load_letter,
)
from robfcp.cli._data import FileOutputs
from robfcp.cli._sets import in_order


def localised_from(
    path: Path, own: FileOutputs, key: str | None = None, seed: int = 0
) -> Localised:
    """From the site's letter, or for a stranger from the evidence beside a calibration."""
    if kind_of(read_limited(path, MAX_CALIBRATION_BYTES)) == "letter":
        letter = load_letter(path, key)
        found = in_order(letter.calibration, own)
        assert found.targets is not None
        return letter.at_site(found.predictions, found.targets, seed)
    calibration = Calibration.load(path, key)
    found = in_order(calibration, own)
    assert found.targets is not None
    return at_stranger(calibration, found.predictions, found.targets, seed)
