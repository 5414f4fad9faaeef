"""What became of the sites, one line each, for the commands that tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from robfcp.calibration import (
    MAX_CALIBRATION_BYTES,
    Calibration,
    Letter,
    kind_of,
)
from robfcp.cli._common import Printer
from robfcp.diagnosis import Diagnosis
from robfcp.files import read_limited

SHOWN = 12


def show_sites(calibration: Calibration, found: Mapping[str, Diagnosis], printer: Printer) -> None:
    """Who was left out, who deserves a look, whose report was refused and who sent none."""
    out = "left out" if calibration.settings.promise is None else "flagged"
    _list(printer, out, [_diagnosed(found[c], calibration) for c in calibration.flagged])
    looks = [one for one in found.values() if one.trusted]
    _list(printer, "look at", [_diagnosed(one, calibration) for one in looks])
    _list(printer, "faulty", [fault.reason for fault in calibration.faulty])
    _list(printer, "missing", list(calibration.missing))


def letter_note(path: Path, printer: Printer) -> None:
    """What a site's letter says of it, where it is more than that it was used."""
    if kind_of(read_limited(path, MAX_CALIBRATION_BYTES)) == "letter":
        letter = Letter.load(path)
        if letter.verdict != "trusted" or letter.diagnosis:
            printer.line(letter.sentence)


def _diagnosed(one: Diagnosis, calibration: Calibration) -> str:
    """What is seen, what it looks like, what to do, and the defence's own reason."""
    perhaps = f" (or: {one.instead})" if one.instead else ""
    reason = calibration.reasons.get(one.client, "")
    why = f" [{reason}]" if reason else ""
    return f"{one.client}: {one.seen}{perhaps}; {one.advice}{why}"


def _list(printer: Printer, word: str, lines: Sequence[str]) -> None:
    for line in lines[:SHOWN]:
        printer.line(f"{word}  {line}")
    if len(lines) > SHOWN:
        printer.line(f"{word}  ... and {len(lines) - SHOWN} more")
