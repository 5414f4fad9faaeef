"""The client feedback of a round: every client receives its verdict, and no other client's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from robfcp._files import make_folder
from robfcp._sealed import FilePath, SealedFile, sha256_of
from robfcp._typing import FloatArray
from robfcp._validation import Rng
from robfcp.calibration import Calibration, CalibrationDocument, VerdictStatus
from robfcp.diagnosis import diagnose
from robfcp.errors import RobfcpError, printable
from robfcp.federation import Federation
from robfcp.guarantees import (
    MAX_CLIENTS_COMPARED,
    class_counts,
    client_thresholds,
    local_threshold_range,
    missing_or_rejected_clients,
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

_SAFE_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_RESERVED_FILENAME = re.compile(
    r"-[0-9a-f]{16}$|^(con|prn|aux|nul|(com|lpt)\d)(\.|$)", re.IGNORECASE
)
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")
MAX_READABLE_CHARACTERS = 60  # of a client's name, before its digest


class ClientFeedback(SealedFile, frozen=True, omit_defaults=True, dict=True):
    """The verdict of one client, with the calibration that it can predict with.

    Parameters
    ----------
    client : str
        The client.
    verdict : {"benign", "flagged", "rejected", "missing"}
        What the round decided about it.
    document : bytes
        The calibration, exactly as in its file.
    reason : str
        Why the client was excluded or its report rejected.
    maliciousness : float, optional
        The maliciousness score; None without a valid report.
    coverage : tuple of float
        The fraction of the client's reported scores at or below the threshold, for each level: an
        estimate where the report is coarsened. Empty without a valid report.
    diagnosis : str
        What the report looks like, in plain words; empty if it is not suspicious.
    recommendation : str
        What to check then.
    peer_thresholds : PeerThresholds, optional
        The thresholds that the peers' reports certify for this client's label distribution; None
        without a valid report by class, also where it states class totals alone, and in
        federations of more than 300 clients.

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> feedback = robfcp.calibrate(reports, coverage=0.5, defense="none").feedback("a")
    >>> feedback.verdict, round(feedback.coverage[0], 2)
    ('benign', 0.67)
    >>> feedback.save("feedback.json")
    >>> print(type(feedback).load("feedback.json"))
    a was used.
    """

    kind = "client-feedback"
    hint = "pass a file that robfcp calibrate --feedback wrote"
    max_bytes = CalibrationDocument.max_bytes

    client: str
    verdict: VerdictStatus
    calibration_json: msgspec.Raw = msgspec.field(name="calibration")
    reason: str = ""
    maliciousness: float | None = None
    coverage: tuple[Annotated[float, Meta(ge=0, le=1)], ...] = ()
    diagnosis: str = ""
    recommendation: str = ""
    peer_thresholds: PeerThresholds | None = None

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration that the client predicts with."""
        return Calibration.from_json(bytes(self.calibration_json), "the calibration in it")

    def find_contradiction(self) -> str:
        """Return the first contradiction between the fields, or "" if they are consistent."""
        try:
            levels = self.calibration.levels
        except RobfcpError as error:
            return str(error)
        if self.peer_thresholds is not None and len(self.peer_thresholds.thresholds) != len(levels):
            return "what it says of the other sites cannot be"
        return ""

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The verdict, the diagnosis and the advice in plain words."""
        text = f"{self.client} {self._verdict_text}"
        if self.diagnosis:
            text += (
                f": {self.diagnosis}. {self.recommendation[:1].upper()}{self.recommendation[1:]}"
            )
        return printable(f"{text}.", None)

    @property
    def _verdict_text(self) -> str:
        """The verdict as a clause."""
        if self.verdict == "missing":
            return "sent no report"
        if self.verdict == "rejected":
            return f"sent a report that was refused ({self.reason})"
        if self.verdict == "benign":
            return "was used, but look" if self.diagnosis else "was used"

        # Under a guarantee all clients are included, the flagged ones too.
        if self.calibration.is_guaranteed:
            return "was flagged"
        return "was left out"

    def calibrate_locally(
        self, probabilities: ArrayLike, labels: ArrayLike, rng: Rng = None
    ) -> LocalCalibration:
        """Return thresholds for this client, from its peers' reports and its samples.

        Each is the peers' threshold for the client's label distribution, clipped to what its
        samples certify.

        Parameters
        ----------
        probabilities : array_like, shape (n, C)
            The class probabilities of the shared model for the calibration samples that the
            client reported.
        labels : array_like, shape (n,)
            Their true classes, as column indices.
        rng : int or Generator, optional
            A seed or generator, for randomized scores.

        Returns
        -------
        LocalCalibration
            The thresholds, what is certified of each, and `predict_set`.

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
        >>> calibration = robfcp.calibrate(reports, defense=robfcp.Consensus(max_malicious=1))
        >>> local = calibration.feedback("site-1").calibrate_locally(p[1::9], y[1::9])
        >>> print(local.levels[0].statements[-1])
        it is never above what this site's own data prove with 97.5% confidence
        >>> local.predict_set([[0.99, 0.01]]).tolist()
        [[True, False]]
        >>> local.evaluate(p[8::9], y[8::9]).result
        'ok'
        """
        samples = score_samples(self.calibration, probabilities, labels, rng)
        return build_local_calibration(self.client, self.calibration, samples, self.peer_thresholds)

    def calibrate_risk_locally(self, report: Report, *, level: int = 0) -> LocalRiskThreshold:
        """Return the lambda for this client if reports hold losses, clipped by its losses.

        Parameters
        ----------
        report : Report
            The report of the client's losses, best with exact counts; it need not be sent.
        level : int
            The index of the risk level.

        Returns
        -------
        LocalRiskThreshold
            The lambda, what is certified of it, and `predict_multilabel`.

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
        >>> feedback = robfcp.calibrate(reports, risk_level=0.1, defense="none").feedback("c")
        >>> feedback.calibrate_risk_locally(reports[2]).statements[0]
        'whatever anybody does, 0.8 has a mean fnr of at most 14.75% here on average'
        """
        return calibrate_local_risk(self.calibration, report, level)


def iter_feedback(
    calibration: Calibration, selected: set[str] | None = None
) -> Iterator[ClientFeedback]:
    """Yield the feedback of all clients that reported or should have, or of the selected ones.

    Clients with a valid report come first, then those rejected or missing.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.local._feedback import iter_feedback
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> sizes = {"a": 3, "b": 3, "c": 3}
    >>> federation = robfcp.Federation.from_reports(reports, registered_sizes=sizes)
    >>> calibration = robfcp.calibrate(federation, coverage=0.5, defense="none")
    >>> [(feedback.client, feedback.verdict) for feedback in iter_feedback(calibration)]
    [('a', 'benign'), ('b', 'benign'), ('c', 'missing')]
    """
    record = calibration.require_record()
    federation = record.federation
    document = msgspec.Raw(calibration.to_json())
    covered = calibration.client_coverage()
    peers = peer_thresholds(calibration, selected)
    diagnoses = diagnose(calibration)

    for k, client in enumerate(federation.clients):
        if selected is not None and client not in selected:
            continue
        observation = ""
        advice = ""
        if client in diagnoses:
            diagnosis = diagnoses[client].redacted()  # nothing about peers
            observation = diagnosis.observation
            advice = diagnosis.recommendation
        yield ClientFeedback(
            client=client,
            verdict="benign" if record.benign_mask[k] else "flagged",
            calibration_json=document,
            reason=record.reasons.get(client, ""),
            maliciousness=float(record.maliciousness[k]),
            coverage=tuple(covered[k].tolist()),
            diagnosis=observation,
            recommendation=advice,
            peer_thresholds=peers.get(client),
        )

    reasons = {rejected.client: rejected.reason for rejected in federation.rejected_reports}
    for client in missing_or_rejected_clients(federation):
        if selected is None or client in selected:
            yield ClientFeedback(
                client=client,
                verdict="rejected" if client in reasons else "missing",
                calibration_json=document,
                reason=reasons.get(client, ""),
            )


def save_feedback(calibration: Calibration, folder: FilePath, key: Any = None) -> list[Path]:
    """Write the feedback of every client into the folder, named after it; `key` signs it."""
    folder_path = make_folder(folder)
    federation = calibration.federation
    names = feedback_filenames([*federation.clients, *missing_or_rejected_clients(federation)])
    paths = []
    for feedback in iter_feedback(calibration):
        path = folder_path / f"{names[feedback.client]}.json"
        feedback.save(path, key)
        paths.append(path)
    return paths


def feedback_filenames(clients: Sequence[str]) -> dict[str, str]:
    """Return a file name for each client, different on every file system and safe in a folder.

    It is the client's name if that is safe, differs from all others in more than case, and does
    not look like a name with a digest; else its safe characters with a digest.
    """
    casefolded_counts = Counter(client.casefold() for client in clients)
    names = {}
    for client in clients:
        is_safe = _SAFE_FILENAME.fullmatch(client) and not _RESERVED_FILENAME.search(client)
        if is_safe and casefolded_counts[client.casefold()] == 1:
            names[client] = client
        else:
            safe_name = _UNSAFE_CHARACTERS.sub("_", client)
            readable = safe_name[:MAX_READABLE_CHARACTERS].strip("_")
            digest = sha256_of(client.encode())[:16]
            names[client] = f"{readable or 'site'}-{digest}"
    return names


def peer_thresholds(
    calibration: Calibration, selected: set[str] | None = None
) -> dict[str, PeerThresholds]:
    """Return the peers' thresholds of all clients or the selected ones.

    Empty without counts by class: rounded class totals certify nothing of the scores of a class.
    """
    federation = calibration.federation
    strata = federation.noise_free_strata
    if strata is None or strata.by != "class" or federation.risk is not None:
        return {}
    if not 2 <= len(strata.rows) <= MAX_CLIENTS_COMPARED:
        return {}
    counts = class_counts(federation)
    rows = [k for k, client in enumerate(counts.clients) if selected is None or client in selected]
    max_malicious = calibration.n_malicious
    # A client's own counts are left out, and of its peers at least one must be benign.
    if not rows or max_malicious >= len(counts.clients) - 1:
        return {}

    # (L, R) the bin of each client's threshold at each level; -1, the infinite one, if nothing is
    # certified.
    heterogeneity = calibration.require_record().heterogeneity_within_classes
    bins_by_level = [
        client_thresholds(counts, float(1 - level.coverage), max_malicious, heterogeneity, rows)
        for level in calibration.levels
    ]
    thresholds_of_bins = [*federation.binning.upper_edges.tolist(), np.inf]

    peers = {}
    for k in rows:
        thresholds = tuple(thresholds_of_bins[bin_of_client[k]] for bin_of_client in bins_by_level)
        peers[counts.clients[k]] = PeerThresholds(
            stored_thresholds=thresholds,
            label_counts=tuple(counts.class_sizes[k].tolist()),
            max_malicious=max_malicious,
            heterogeneity=heterogeneity,
            max_malicious_given=calibration.max_malicious is not None,
        )
    return peers


def local_thresholds(
    calibration: Calibration, selected: set[str]
) -> dict[str, tuple[float, float]]:
    """Return the local threshold of the selected clients at the first level, and its coverage.

    The coverage is the fraction of the client's reported samples. The dictionary is empty if
    feedback holds no peers' thresholds. A client clips by its scores, here the upper edges of
    their bins replace them: its threshold is the same up to one bin. Of a coarsened report the
    midpoints of the counts stand for the scores: an estimate.
    """
    federation = calibration.federation
    alpha = float(1 - calibration.levels[0].coverage)
    row_of_client = {client: row for row, client in enumerate(federation.clients)}
    thresholds = {}
    for client, peers in peer_thresholds(calibration, selected).items():
        row = federation.select_rows(np.array([row_of_client[client]]))
        scores = _reported_scores(row)
        local = local_threshold_range(scores, alpha)
        threshold = max(local.lower, min(peers.thresholds[0], local.upper))
        thresholds[client] = (threshold, float((scores <= threshold).mean()))
    return thresholds


def _reported_scores(client: Federation) -> FloatArray:
    """Return (n,) the scores of a client, each as the upper edge of its bin, rising.

    Of a coarsened report score j is in the first bin up to which the midpoints count j scores.
    """
    cumulative = client.cumulative_midpoints()[0]
    orders = np.arange(1, int(cumulative[-1]) + 1)
    return np.asarray(client.binning.upper_edges[np.searchsorted(cumulative, orders)])
