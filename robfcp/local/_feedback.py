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
    score_samples,
)
from robfcp.reports import Report

Verdict = Literal["trusted", "flagged", "faulty", "missing"]
_SAFE_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_RESERVED_FILENAME = re.compile(
    r"-[0-9a-f]{16}$|^(con|prn|aux|nul|(com|lpt)\d)(\.|$)", re.IGNORECASE
)
_UNSAFE_LETTERS = re.compile(r"[^A-Za-z0-9_-]+")
MAX_READABLE_LETTERS = 60  # of a name, before the digest of all of it


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
        text = f"{self.client} {self._verdict_text}"
        if self.diagnosis:
            text += f": {self.diagnosis}. {self.advice[:1].upper()}{self.advice[1:]}"
        return printable(f"{text}.", None)

    @property
    def _verdict_text(self) -> str:
        """What was done with the site's report."""
        if self.verdict == "trusted":
            return "was used, but look" if self.diagnosis else "was used"
        if self.verdict == "flagged":
            # Under a guarantee everybody is used, the flagged ones too.
            return "was flagged" if self.calibration.is_guaranteed else "was left out"
        if self.verdict == "faulty":
            return f"sent a report that was refused ({self.reason})"
        return "sent no report"

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
        samples = score_samples(self.calibration, probabilities, labels, rng)
        return build_local_calibration(self.client, self.calibration, samples, self.others)

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
    record = calibration.require_record()
    federation = record.federation
    document = msgspec.Raw(calibration.to_json())
    covered = calibration.client_coverage()
    peers = peer_thresholds(calibration, chosen)
    diagnoses = diagnose(calibration)

    for k, client in enumerate(federation.clients):
        if chosen is not None and client not in chosen:
            continue
        observation = ""
        advice = ""
        if client in diagnoses:
            diagnosis = diagnoses[client].redacted()  # nothing of the other sites
            observation = diagnosis.observation
            advice = diagnosis.advice
        yield ClientFeedback(
            client=client,
            verdict="trusted" if record.benign_mask[k] else "flagged",
            document=document,
            reason=record.reasons.get(client, ""),
            oddness=float(record.maliciousness[k]),
            covered=tuple(covered[k].tolist()),
            diagnosis=observation,
            advice=advice,
            others=peers.get(client),
        )

    reasons = {rejected.client: rejected.reason for rejected in federation.rejected_reports}
    for client in clients_not_covered(federation):
        if chosen is None or client in chosen:
            yield ClientFeedback(
                client=client,
                verdict="faulty" if client in reasons else "missing",
                document=document,
                reason=reasons.get(client, ""),
            )


def save_feedback(calibration: Calibration, folder: FilePath, key: Any = None) -> list[Path]:
    """Write every client's letter into the folder, named after it; `key` signs them."""
    folder_path = make_folder(folder)
    federation = calibration.federation
    names = feedback_filenames([*federation.clients, *clients_not_covered(federation)])
    written = []
    for feedback in iter_feedback(calibration):
        path = folder_path / f"{names[feedback.client]}.json"
        feedback.save(path, key)
        written.append(path)
    return written


def feedback_filenames(clients: Sequence[str]) -> dict[str, str]:
    """A name for each client's file, all different on every disk, and none that can go astray.

    Its own where that is plain, no other's but for capitals, and not made like those with a digest.
    """
    n_alike = Counter(client.casefold() for client in clients)
    names = {}
    for client in clients:
        is_safe = _SAFE_FILENAME.fullmatch(client) and not _RESERVED_FILENAME.search(client)
        if is_safe and n_alike[client.casefold()] == 1:
            names[client] = client
        else:
            readable = _UNSAFE_LETTERS.sub("_", client)[:MAX_READABLE_LETTERS].strip("_")
            digest = sha256_of(client.encode())[:16]
            names[client] = f"{readable or 'site'}-{digest}"
    return names


def peer_thresholds(
    calibration: Calibration, chosen: set[str] | None = None
) -> dict[str, PeerThresholds]:
    """What the others' reports say of each site (or the chosen ones); empty without classes."""
    federation = calibration.federation
    strata = federation.noise_free_strata
    if strata is None or strata.by != "class" or federation.risk is not None:
        return {}
    if not 2 <= len(strata.rows) <= MAX_CLIENTS_COMPARED:
        return {}
    counts = class_counts(federation)
    rows = [k for k, name in enumerate(counts.clients) if chosen is None or name in chosen]
    max_malicious = calibration.n_malicious
    if not rows or max_malicious > len(counts.clients) - 1:
        return {}

    # (L, R) the bin of each site's threshold at each level; -1 where nothing is proved.
    heterogeneity = calibration.require_record().heterogeneity_within_classes
    bins = [
        client_thresholds(counts, float(1 - level.coverage), max_malicious, heterogeneity, rows)
        for level in calibration.levels
    ]
    thresholds_of_bins = [*federation.binning.upper_edges.tolist(), np.inf]

    peers = {}
    for k in rows:
        peers[counts.clients[k]] = PeerThresholds(
            stored_thresholds=tuple(thresholds_of_bins[bin_of_client[k]] for bin_of_client in bins),
            label_counts=tuple(counts.class_sizes[k].tolist()),
            liars=max_malicious,
            alike=heterogeneity,
            stated=calibration.n_malicious_given,
        )
    return peers


def local_thresholds(calibration: Calibration, chosen: set[str]) -> dict[str, tuple[float, float]]:
    """What the chosen sites' letters come to: the threshold at the first level, and the share of
    the site's reported samples that it covers; empty where letters hold no thresholds.

    The site clips by its scores, here their bins' upper edges stand for them: its own threshold is
    the same up to one bin.
    """
    federation = calibration.federation
    alpha = float(1 - calibration.levels[0].coverage)
    row_of_client = {client: row for row, client in enumerate(federation.clients)}
    thresholds = {}
    for client, peers in peer_thresholds(calibration, chosen).items():
        counts = federation.table.row(row_of_client[client])
        scores = np.repeat(federation.binning.upper_edges, counts)
        local = local_threshold_range(scores, alpha)
        threshold = max(local.low, min(peers.thresholds[0], local.high))
        thresholds[client] = (threshold, float((scores <= threshold).mean()))
    return thresholds
