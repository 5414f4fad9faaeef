"""One site's letter: the calibration, its own verdict, and what the others prove for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import msgspec
from numpy.typing import ArrayLike

from robfcp._util.files import read_limited, write_atomically
from robfcp.calibration.calibration import Calibration, FilePath
from robfcp.calibration.letter_file import (
    KIND,
    REMEDY,
    SCHEMA,
    LetterBody,
    Verdict,
    others_body,
    others_of,
)
from robfcp.calibration.local import Localised, localised
from robfcp.calibration.others import FromOthers
from robfcp.calibration.sealed import decode_body, seal, unseal
from robfcp.calibration.signed import sign_sealed
from robfcp.errors import plain
from robfcp.scores import Rng


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
    maliciousness
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
    >>> calibration = robfcp.calibrate(reports, confidence_level=0.5, defence="none")
    >>> letter = letter_to(calibration, "a")
    >>> letter.verdict, round(letter.covered[0], 2)
    ('trusted', 0.67)
    """

    client: str
    verdict: Verdict
    calibration: Calibration
    reason: str = ""
    maliciousness: float | None = None
    covered: tuple[float, ...] = ()
    diagnosis: str = ""
    advice: str = ""
    others: FromOthers | None = None

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The verdict in plain words: what was done, what is seen and what to check."""
        out = "was left out" if self.calibration.settings.guarantee is None else "was flagged"
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
        >>> calibration = robfcp.calibrate(reports, malicious=1)
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
            maliciousness=self.maliciousness,
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
            maliciousness=body.maliciousness,
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
