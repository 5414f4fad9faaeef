"""The letters of a round: every site is told its own verdict, nobody else's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from robfcp.arguments import Rng
from robfcp.calibration.at_site import Localised, localised
from robfcp.calibration.calibration import MAX_CALIBRATION_BYTES, Calibration, FilePath
from robfcp.calibration.covered import covered_at_sites
from robfcp.calibration.diagnosis import diagnose
from robfcp.calibration.document import check_signer, sign_sealed
from robfcp.calibration.others import FromOthers, from_others
from robfcp.calibration.sealed import decode_body, digest_of, kind_of, seal, unseal
from robfcp.errors import RobfcpError, plain
from robfcp.files import make_folder, read_limited, write_atomically
from robfcp.guarantees import outside_of, own_interval

KIND = "letter"
SCHEMA = 1
REMEDY = "pass a file that robfcp calibrate --letters wrote"
Verdict = Literal["trusted", "flagged", "faulty", "missing"]


class OthersBody(msgspec.Struct, forbid_unknown_fields=True):
    """What the other sites' reports say of this one; None is an infinite threshold."""

    thresholds: list[float | None]
    label_counts: list[int]
    m: int
    label_shift: float
    stated: bool


class LetterBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Everything the digest covers; the calibration exactly as its own file has it."""

    client: str
    verdict: Verdict
    calibration: msgspec.Raw
    reason: str = ""
    oddness: float | None = None
    covered: list[float] = []
    diagnosis: str = ""
    advice: str = ""
    others: OthersBody | None = None


def others_body(others: FromOthers) -> OthersBody:
    """What is written of it."""
    return OthersBody(
        [limit if np.isfinite(limit) else None for limit in others.thresholds],
        list(others.label_counts),
        others.m,
        others.label_shift,
        others.stated,
    )


def others_of(body: OthersBody, n_levels: int, source: str) -> FromOthers:
    """What was written, refused where it cannot be."""
    limits = tuple(np.inf if limit is None else limit for limit in body.thresholds)
    odd = body.m < 0 or not 0 <= body.label_shift <= 1 or min(body.label_counts, default=0) < 0
    if odd or len(limits) != n_levels:
        raise RobfcpError(f"{source}: what it says of the other sites cannot be; {REMEDY}")
    return FromOthers(limits, tuple(body.label_counts), body.m, body.label_shift, body.stated)


@dataclass(frozen=True, eq=False)
class Letter:
    """One site's verdict with the calibration it can predict with.

    Parameters
    ----------
    client
        The site's name.
    verdict
        "trusted", "flagged", "faulty" or "missing".
    calibration
        What the site predicts with.
    reason
        Why it is not trusted.
    oddness
        The number the defence ranks it by; None where it sent no valid report.
    covered
        The share of the site's own reported scores at or below the threshold, one a level; empty
        where it sent no valid report.
    diagnosis
        What its report looks like, in plain words; empty where nothing looks wrong.
    advice
        What to check then.
    others
        The thresholds that the other sites' reports prove for this site's own label mix; None
        where it sent no valid report by class, or in federations of more than 300 sites.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.calibration import letter_to
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> calibration = robfcp.calibrate(reports, 0.5, defence="none")
    >>> letter = letter_to(calibration, "a")
    >>> letter.verdict, round(letter.covered[0], 2)
    ('trusted', 0.67)
    """

    client: str
    verdict: Verdict
    calibration: Calibration
    reason: str = ""
    oddness: float | None = None
    covered: tuple[float, ...] = ()
    diagnosis: str = ""
    advice: str = ""
    others: FromOthers | None = None

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The verdict in plain words: what was done, what is seen and what to check."""
        out = "was left out" if self.calibration.settings.promise is None else "was flagged"
        words = {
            "trusted": "was used, but look" if self.diagnosis else "was used",
            "flagged": out,
            "faulty": f"sent a report that was refused ({self.reason})",
            "missing": "sent no report",
        }
        if not self.diagnosis:
            return f"{self.client} {words[self.verdict]}."
        todo = f"{self.advice[:1].upper()}{self.advice[1:]}"
        return f"{self.client} {words[self.verdict]}: {self.diagnosis}. {todo}."

    def at_site(self, probabilities: ArrayLike, labels: ArrayLike, rng: Rng = None) -> Localised:
        """The site's own thresholds: the federation's for its label mix, clipped by its own data.

        Parameters
        ----------
        probabilities
            (n, C) the shared model's class probabilities for the calibration samples that the site
            reported.
        labels
            (n,) their true classes, as column numbers.
        rng
            A seed or generator, for randomised scores.

        Returns
        -------
        Localised
            Thresholds, what each proves, and `predict_set`.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([0.3, 0.3], 4000)
        >>> y = (rng.random(4000) < p[:, 1]).astype(int)
        >>> lac = robfcp.LAC()
        >>> reports = [
        ...     robfcp.Report.from_scores(
        ...         f"site-{k}", lac(p[k::8], y[k::8]), score=lac, labels=y[k::8], classes=2
        ...     )
        ...     for k in range(8)
        ... ]
        >>> calibration = robfcp.calibrate(reports, defence=robfcp.Consensus(at_most=1))
        >>> local = calibration.letter("site-1").at_site(p[1::8], y[1::8])
        >>> local.levels[0].federation <= 1
        True
        >>> print(local.levels[0].statements[-1])
        it is never above the threshold that this site's own data prove with 97.5% confidence
        """
        return localised(self.client, self.calibration, self.others, probabilities, labels, rng)

    def to_json(self) -> bytes:
        """The letter as one JSON object, sealed by a digest.

        Returns
        -------
        bytes
            What `from_json` reads.

        Examples
        --------
        >>> import robfcp
        >>> from robfcp.calibration import Letter, letter_to
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> Letter.from_json(letter_to(calibration, "client-0").to_json()).verdict
        'trusted'
        """
        body = LetterBody(
            client=self.client,
            verdict=self.verdict,
            calibration=msgspec.Raw(self.calibration.to_json()),
            reason=self.reason,
            oddness=self.oddness,
            covered=list(self.covered),
            diagnosis=self.diagnosis,
            advice=self.advice,
            others=None if self.others is None else others_body(self.others),
        )
        return seal(KIND, SCHEMA, body)

    @staticmethod
    def from_json(data: bytes | str, source: str = "letter") -> Letter:
        """A letter from JSON, refused when it was damaged or is of a newer schema.

        Parameters
        ----------
        data
            What `to_json` gave.
        source
            How errors name it.

        Returns
        -------
        Letter
            Checked.

        Examples
        --------
        >>> import robfcp
        >>> from robfcp.calibration import Letter, letter_to
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> letter = Letter.from_json(letter_to(calibration, "client-0").to_json())
        >>> letter.calibration == calibration
        True
        """
        _, raw = unseal(data, KIND, SCHEMA, source, REMEDY)
        body = decode_body(raw, LetterBody, KIND, source, REMEDY)
        calibration = Calibration.from_json(bytes(body.calibration), source)
        n_levels = len(calibration.levels)
        return Letter(
            client=body.client,
            verdict=body.verdict,
            calibration=calibration,
            reason=body.reason,
            oddness=body.oddness,
            covered=tuple(body.covered),
            diagnosis=plain(body.diagnosis),
            advice=plain(body.advice),
            others=None if body.others is None else others_of(body.others, n_levels, source),
        )

    def save(self, path: FilePath, key: Any = None) -> None:
        """Write the JSON whole or not at all.

        Parameters
        ----------
        path
            The file; an old one is replaced.
        key
            The server's private key to sign with, if any.

        Examples
        --------
        >>> import robfcp
        >>> from robfcp.calibration import letter_to
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> letter_to(calibration, "client-0").save("letter.json")
        """
        data = self.to_json()
        write_atomically(path, data if key is None else sign_sealed(data, key))

    @staticmethod
    def load(path: FilePath) -> Letter:
        """Read a saved letter.

        Parameters
        ----------
        path
            A file that `save` or `save_letters` wrote.

        Returns
        -------
        Letter
            Checked.

        Examples
        --------
        >>> import robfcp
        >>> from robfcp.calibration import Letter, letter_to
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
        >>> calibration = robfcp.calibrate(federation, defence="none")
        >>> letter_to(calibration, "client-0").save("letter.json")
        >>> Letter.load("letter.json").client
        'client-0'
        """
        return Letter.from_json(read_limited(path), os.fspath(path))


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
    >>> calibration = robfcp.calibrate(reports, 0.5, defence="none")
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
    >>> federation = robfcp.Federation.from_reports(reports, sizes=sizes)
    >>> calibration = robfcp.calibrate(federation, 0.5, defence="none")
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
                oddness=float(evidence.oddness[k]),
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
    >>> calibration = robfcp.calibrate(reports, 0.5, defence="none")
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


class AtSite(NamedTuple):
    """A site's threshold at the first level, and the share of its reported samples it covers."""

    threshold: float
    covered: float


def own_thresholds(calibration: Calibration, chosen: set[str]) -> dict[str, AtSite]:
    """What the chosen sites' letters come to; empty where letters hold no thresholds.

    The site clips by its scores, here their bins' upper edges stand for them: its own threshold is
    the same up to one bin.
    """
    federation = calibration.federation
    alpha = float(1 - calibration.levels[0].coverage)
    place = {client: k for k, client in enumerate(federation.ids)}
    found = {}
    for client, others in from_others(calibration, federation, chosen).items():
        counts = federation.table.rows(np.array([place[client]])).dense()[0]
        scores = np.repeat(federation.grid.upper, counts)
        own = own_interval(scores, alpha)
        limit = max(own.low, min(others.thresholds[0], own.high))
        found[client] = AtSite(limit, float((scores <= limit).mean()))
    return found
