"""The letters of a round: every site is told its own verdict, nobody else's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robfcp._util.files import make_folder, read_limited
from robfcp.calibration.calibration import MAX_CALIBRATION_BYTES, Calibration, FilePath
from robfcp.calibration.covered import covered_at_sites
from robfcp.calibration.diagnosis import diagnose
from robfcp.calibration.letter import Letter
from robfcp.calibration.letter_file import KIND, Verdict
from robfcp.calibration.others import from_others
from robfcp.calibration.sealed import digest_of, kind_of
from robfcp.calibration.signed import check_signer
from robfcp.errors import RobfcpError
from robfcp.guarantees import outside_of

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


def letter_to(calibration: Calibration, client: str) -> Letter:
    """The letter of one client that reported or should have.

    Parameters
    ----------
    calibration
        With its evidence.
    client
        The client's name.

    Returns
    -------
    Letter
        Its own verdict and nobody else's.

    Raises
    ------
    RobfcpError
        Where the round knows nobody of that name.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.calibration import letter_to
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> calibration = robfcp.calibrate(reports, confidence_level=0.5, defence="none")
    >>> letter_to(calibration, "b").verdict
    'trusted'
    """
    for letter in letters(calibration, {client}):
        return letter
    raise RobfcpError(f"{client}: neither reported nor was registered; check the name")


def letters(calibration: Calibration, chosen: set[str] | None = None) -> Iterator[Letter]:
    """The letters of all clients that reported or should have, or of the chosen ones.

    Parameters
    ----------
    calibration
        With its evidence.
    chosen
        The clients' names; everybody if None.

    Yields
    ------
    Letter
        Those who reported first, then the faulty and the missing.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.calibration import letters
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> sizes = {"a": 3, "b": 3, "c": 3}
    >>> calibration = robfcp.calibrate(reports, confidence_level=0.5, defence="none", sizes=sizes)
    >>> [(letter.client, letter.verdict) for letter in letters(calibration)]
    [('a', 'trusted'), ('b', 'trusted'), ('c', 'missing')]
    """
    evidence = calibration.evidence
    federation = evidence.federation
    covered = covered_at_sites(calibration)
    others = from_others(calibration, federation, chosen)
    found = {name: one.to_site() for name, one in diagnose(calibration).items()}
    for k, client in enumerate(federation.ids):
        if chosen is None or client in chosen:
            yield Letter(
                client=client,
                verdict="trusted" if evidence.trusted_mask[k] else "flagged",
                calibration=calibration,
                reason=evidence.reasons.get(client, ""),
                maliciousness=float(evidence.maliciousness[k]),
                covered=tuple(covered[k].tolist()),
                diagnosis=found[client].seen if client in found else "",
                advice=found[client].advice if client in found else "",
                others=others.get(client),
            )
    reasons = {fault.client: fault.reason for fault in federation.faulty}
    for client in outside_of(federation):
        if chosen is None or client in chosen:
            verdict: Verdict = "faulty" if client in reasons else "missing"
            yield Letter(client, verdict, calibration, reasons.get(client, ""))


def save_letters(calibration: Calibration, folder: FilePath, key: Any = None) -> list[Path]:
    """Write a letter for every client into the folder; the files.

    Parameters
    ----------
    calibration
        With its evidence.
    folder
        Made where it does not exist.
    key
        The server's private key to sign with, if any.

    Returns
    -------
    list of Path
        One file a client, named after it.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.calibration import save_letters
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> calibration = robfcp.calibrate(reports, confidence_level=0.5, defence="none")
    >>> [path.name for path in save_letters(calibration, "letters")]
    ['a.json', 'b.json']
    """
    place = make_folder(folder)
    written = []
    for letter in letters(calibration):
        path = place / f"{file_name(letter.client)}.json"
        letter.save(path, key)
        written.append(path)
    return written


def file_name(client: str) -> str:
    """A name for a client's file: its own where that is plain, else one that cannot go astray."""
    if _PLAIN.fullmatch(client):
        return client
    kept = re.sub(r"[^A-Za-z0-9_-]+", "_", client)[:60].strip("_")
    return f"{kept or 'site'}-{digest_of(client.encode())[:12]}"


def load_letter(path: FilePath, server_key: str | None = None) -> Letter:
    """A site's letter; with the server's public key, only one that it has signed."""
    data = read_limited(path, MAX_CALIBRATION_BYTES)
    if server_key is not None:
        check_signer(data, server_key, os.fspath(path))
    return Letter.from_json(data, os.fspath(path))


def load_calibration(path: FilePath, server_key: str | None = None) -> Calibration:
    """The calibration in its own file, or the one that a site's letter holds.

    server_key: the server's public key; a file that it has not signed is refused.
    """
    data = read_limited(path, MAX_CALIBRATION_BYTES)
    if kind_of(data) != KIND:
        return Calibration.load(path, server_key)
    return load_letter(path, server_key).calibration
