"""The letters of a round: every site is told its own verdict, nobody else's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from robfcp._files import make_folder
from robfcp._sealed import FilePath, SealedFile, sha256_of
from robfcp._validation import Rng
from robfcp.calibration import Calibration, CalibrationDocument
from robfcp.diagnosis import diagnose
from robfcp.errors import RobfcpError, printable
from robfcp.guarantees import (
    MAX_CLIENTS_COMPARED,
    class_counts,
    client_thresholds,
    clients_not_covered,
    local_threshold_range,
)
from robfcp.local._threshold import (
    LocalCalibration,
    LocalRiskThreshold,
    PeerThresholds,
    build_local_calibration,
    calibrate_local_risk,
)
from robfcp.reports import Report

Verdict = Literal["trusted", "flagged", "faulty", "missing"]
_SAFE_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_RESERVED_FILENAME = re.compile(
    r"-[0-9a-f]{16}$|^(con|prn|aux|nul|(com|lpt)\d)(\.|$)", re.IGNORECASE
)


class ClientFeedback(SealedFile, frozen=True, omit_defaults=True, dict=True):
    """One site's verdict with the calibration it can predict with.

    Parameters
    ----------
    client
        The site's name.
    verdict
        "trusted", "flagged", "faulty" or "missing".
    document
        The calibration, exactly as its own file has it.
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
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> letter = robfcp.calibrate(reports, 0.5, defense="none").feedback("a")
    >>> letter.verdict, round(letter.covered[0], 2)
    ('trusted', 0.67)
    >>> letter.save("letter.json")
    >>> print(type(letter).load("letter.json"))
    a was used.
    """

    kind = "letter"
    hint = "pass a file that robfcp calibrate --letters wrote"
    max_bytes = CalibrationDocument.max_bytes

    client: str
    verdict: Verdict
    document: msgspec.Raw = msgspec.field(name="calibration")
    reason: str = ""
    oddness: float | None = None
    covered: tuple[Annotated[float, Meta(ge=0, le=1)], ...] = ()
    diagnosis: str = ""
    advice: str = ""
    others: PeerThresholds | None = None

    @cached_property
    def calibration(self) -> Calibration:
        """What the site predicts with."""
        return Calibration.from_json(bytes(self.document), "the calibration in it")

    def find_contradiction(self) -> str:
        """What does not fit together."""
        try:
            levels = self.calibration.levels
        except RobfcpError as error:
            return str(error)
        if self.others is not None and len(self.others.thresholds) != len(levels):
            return "what it says of the other sites cannot be"
        return ""

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The verdict in plain words: what was done, what is seen and what to check."""
        out = "was flagged" if self.calibration.is_guaranteed else "was left out"
        words = {
            "trusted": "was used, but look" if self.diagnosis else "was used",
            "flagged": out,
            "faulty": f"sent a report that was refused ({self.reason})",
            "missing": "sent no report",
        }
        said = f"{self.client} {words[self.verdict]}"
        if self.diagnosis:
            said += f": {self.diagnosis}. {self.advice[:1].upper()}{self.advice[1:]}"
        return printable(f"{said}.", None)

    def calibrate_locally(
        self, probabilities: ArrayLike, labels: ArrayLike, rng: Rng = None
    ) -> LocalCalibration:
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
        LocalCalibration
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
        ...         f"site-{k}", lac(p[k::9], y[k::9]), score=lac, labels=y[k::9], classes=2
        ...     )
        ...     for k in range(8)
        ... ]
        >>> calibration = robfcp.calibrate(reports, defense=robfcp.Consensus(at_most=1))
        >>> local = calibration.feedback("site-1").calibrate_locally(p[1::9], y[1::9])
        >>> print(local.levels[0].statements[-1])
        it is never above what this site's own data prove with 97.5% confidence
        >>> local.predict_set([[0.99, 0.01]]).tolist()
        [[True, False]]
        >>> local.evaluate(p[8::9], y[8::9]).verdict
        'within'
        """
        given = probabilities, labels, rng
        return build_local_calibration(self.client, self.calibration, lambda _: self.others, *given)

    def calibrate_risk_locally(self, report: Report, *, level: int = 0) -> LocalRiskThreshold:
        """The site's own lambda where reports hold losses: the federation's, held by its own.

        Parameters
        ----------
        report
            The report of the site's own losses, best a fine one, which need not leave it.
        level
            Which of several risks.

        Returns
        -------
        LocalRiskThreshold
            The lambda, what is proved of it, and `predict_multilabel`.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> lambdas = np.linspace(0, 1, 11)
        >>> losses = [(np.linspace(0, top, 40)[:, None] > lambdas) * 1.0 for top in (0.6, 0.7, 0.9)]
        >>> reports = [
        ...     robfcp.Report.from_losses(name, own, lambdas, risk="fnr")
        ...     for name, own in zip("abc", losses)
        ... ]
        >>> letter = robfcp.calibrate(reports, risk_level=0.1, defense="none").feedback("c")
        >>> letter.calibrate_risk_locally(reports[2]).statements[0]
        'whatever anybody does, 0.8 has a mean fnr of at most 14.75% here on average'
        """
        return calibrate_local_risk(self.calibration, report, level)


def iter_feedback(
    calibration: Calibration, chosen: set[str] | None = None
) -> Iterator[ClientFeedback]:
    """The letters of all clients that reported or should have, or of the chosen ones.

    Those who reported come first, then the faulty and the missing.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.local._feedback import iter_feedback
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> sizes = {"a": 3, "b": 3, "c": 3}
    >>> federation = robfcp.Federation.from_reports(reports, registered_sizes=sizes)
    >>> calibration = robfcp.calibrate(federation, 0.5, defense="none")
    >>> [(letter.client, letter.verdict) for letter in iter_feedback(calibration)]
    [('a', 'trusted'), ('b', 'trusted'), ('c', 'missing')]
    """
    record, document = calibration.require_record(), msgspec.Raw(calibration.to_json())
    federation = record.federation
    covered, others = calibration.client_coverage(), peer_thresholds(calibration, chosen)
    found = {name: one.redacted() for name, one in diagnose(calibration).items()}
    for k, client in enumerate(federation.clients):
        if chosen is None or client in chosen:
            yield ClientFeedback(
                client,
                verdict="trusted" if record.benign_mask[k] else "flagged",
                document=document,
                reason=record.reasons.get(client, ""),
                oddness=float(record.maliciousness[k]),
                covered=tuple(covered[k].tolist()),
                diagnosis=found[client].observation if client in found else "",
                advice=found[client].advice if client in found else "",
                others=others.get(client),
            )
    reasons = {fault.client: fault.reason for fault in federation.rejected_reports}
    for client in clients_not_covered(federation):
        if chosen is None or client in chosen:
            verdict: Verdict = "faulty" if client in reasons else "missing"
            yield ClientFeedback(client, verdict, document, reasons.get(client, ""))


def save_feedback(calibration: Calibration, folder: FilePath, key: Any = None) -> list[Path]:
    """Write every client's letter into the folder, named after it; `key` signs them."""
    place, federation = make_folder(folder), calibration.federation
    names = feedback_filenames([*federation.clients, *clients_not_covered(federation)])
    written = []
    for letter in iter_feedback(calibration):
        written.append(place / f"{names[letter.client]}.json")
        letter.save(written[-1], key)
    return written


def feedback_filenames(clients: Sequence[str]) -> dict[str, str]:
    """A name for each client's file, all different on every disk, and none that can go astray.

    Its own where that is plain, no other's but for capitals, and not made like those with a digest.
    """
    often = Counter(client.casefold() for client in clients)
    return {
        client: client
        if _SAFE_FILENAME.fullmatch(client)
        and not _RESERVED_FILENAME.search(client)
        and often[client.casefold()] == 1
        else f"{re.sub(r'[^A-Za-z0-9_-]+', '_', client)[:60].strip('_') or 'site'}-"
        f"{sha256_of(client.encode())[:16]}"
        for client in clients
    }


def peer_thresholds(
    calibration: Calibration, chosen: set[str] | None = None
) -> dict[str, PeerThresholds]:
    """What the others' reports say of each site (or the chosen ones); empty without classes."""
    federation = calibration.federation
    strata = federation.noise_free_strata
    if strata is None or strata.by != "class":
        return {}
    if federation.risk is not None or not 2 <= len(strata.rows) <= MAX_CLIENTS_COMPARED:
        return {}
    counts = class_counts(federation)
    wanted = [k for k, name in enumerate(counts.clients) if chosen is None or name in chosen]
    liars, alike = (
        calibration.n_malicious,
        calibration.require_record().heterogeneity_within_classes,
    )
    if not wanted or liars > len(counts.clients) - 1:
        return {}
    upper = [*federation.binning.upper_edges.tolist(), np.inf]  # edge -1: nothing is proved
    edges = [
        client_thresholds(counts, float(1 - level.coverage), liars, alike, wanted)
        for level in calibration.levels
    ]
    told = liars, alike, calibration.n_malicious_given
    return {
        counts.clients[k]: PeerThresholds(
            tuple(upper[found[k]] for found in edges), tuple(counts.class_sizes[k].tolist()), *told
        )
        for k in wanted
    }


def local_thresholds(calibration: Calibration, chosen: set[str]) -> dict[str, tuple[float, float]]:
    """What the chosen sites' letters come to: the threshold at the first level, and the share of
    the site's reported samples that it covers; empty where letters hold no thresholds.

    The site clips by its scores, here their bins' upper edges stand for them: its own threshold is
    the same up to one bin.
    """
    federation = calibration.federation
    alpha = float(1 - calibration.levels[0].coverage)
    place = {client: k for k, client in enumerate(federation.clients)}
    found = {}
    for client, others in peer_thresholds(calibration, chosen).items():
        scores = np.repeat(federation.binning.upper_edges, federation.table.row(place[client]))
        own = local_threshold_range(scores, alpha)
        limit = max(own.low, min(others.thresholds[0], own.high))
        found[client] = limit, float((scores <= limit).mean())
    return found
