"""Calibration: from the reports of one round to thresholds and certificates."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

from robfcp._validation import check_fraction
from robfcp.calibration._calibration import Calibration
from robfcp.calibration._notes import noise_notes, public_notes
from robfcp.calibration._record import Record
from robfcp.calibration._request import DEFAULT_COVERAGE, LevelLike, Request
from robfcp.calibration._thresholds import MaliciousBound, calibrate_level
from robfcp.defense import (
    FCP,
    Assessment,
    Consensus,
    Defense,
    Note,
    prepare_defense,
    recorded_parameters,
    resolve_defense,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, UntrustedReport
from robfcp.guarantees import Guarantee, count_bounds
from robfcp.reports import OTHER_STRATUM, Report, StratumNames

Reports = Federation | Iterable[UntrustedReport | os.PathLike[str]] | str | os.PathLike[str]


def calibrate(
    reports: Reports,
    coverage: LevelLike | Sequence[LevelLike] = DEFAULT_COVERAGE,
    *,
    risk_level: LevelLike | Sequence[LevelLike] | None = None,
    by: str | Mapping[str, str] | None = None,
    defense: str | Defense = Consensus.name,
    guarantee: Guarantee | None = None,
    trusted_report: Report | None = None,
    certificate_confidence: float = 0.95,
) -> Calibration:
    """Calibrate from the reports of one round: thresholds, verdicts and certificates.

    Parameters
    ----------
    reports : Federation, str, PathLike or iterable
        The reports of all clients, as objects or JSON; the paths of their files, or of their
        folder; or a `Federation`, where sizes, keys or a quorum are to be checked.
    coverage : float, str, Fraction or sequence of them, default=0.9
        The target coverage; several for one calibration with several thresholds.
    risk_level : float, str, Fraction or sequence of them, optional
        For reports of losses, in place of coverage: the mean loss that is accepted.
    by : {"class", "group"} or mapping of str to str, optional
        "class" for one threshold for each class, "group" for each group: reports must keep these
        counts. A mapping {class: cluster} for classes or groups that share thresholds, fixed
        beforehand.
    defense : str or Defense, default="consensus"
        Which clients are excluded: "consensus", "rob-fcp" (the paper's text), "rob-fcp-released"
        (its authors' code) or "none"; one with parameters, as `Consensus(at_most=3)`; or one of
        your own.
    guarantee : MarginalGuarantee, PACGuarantee or LabelShiftGuarantee, optional
        What the threshold guarantees whatever some clients do. Without one it is the defense's
        own threshold, which is certified for every number of malicious clients.
    trusted_report : Report, optional
        The server's trusted samples, with the binning of the round and in no report: whatever
        clients do, the threshold stays within what they allow. Not with `LabelShiftGuarantee`, nor
        for losses.
    certificate_confidence : float, default=0.95
        The confidence of certificates, over the calibration data. It is not the coverage.

    Returns
    -------
    Calibration
        Thresholds, verdicts and certificates; it predicts.

    Raises
    ------
    QuorumError
        Where no report is valid.
    RobfcpError
        Where arguments do not fit together or with the reports.

    References
    ----------
    The threshold without a defense is that of Lu, Yu, Karimireddy, Jordan and Raskar (2023),
    "Federated conformal predictors for distributed uncertainty quantification", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> scores = np.random.default_rng(0).random((20, 100))
    >>> scores[3] = 0
    >>> reports = [
    ...     robfcp.Report.from_scores(f"site-{k:02d}", part, score=robfcp.LAC())
    ...     for k, part in enumerate(scores)
    ... ]
    >>> calibration = robfcp.calibrate(reports, 0.8)
    >>> calibration.threshold, calibration.flagged_clients
    (0.81, ('site-03',))
    >>> calibration.predict_set([[0.7, 0.25, 0.05]])
    array([[ True,  True, False]])
    """
    rule = resolve_defense(defense)
    confidence = check_fraction("confidence", certificate_confidence, "give 0.95, say")
    federation = _as_federation(reports)
    request = Request.from_arguments(
        federation, coverage, risk_level, by, guarantee, trusted_report, confidence
    )

    rule = prepare_defense(rule, federation)
    assessment = _assess(rule, federation, must_succeed=guarantee is None)
    record = _record(federation, rule, assessment, request)

    bound = MaliciousBound.from_request(request, assessment)
    counts = count_bounds(federation)  # read once for all levels
    levels = [
        calibrate_level(level, counts, request, assessment, bound) for level in request.levels
    ]

    # A calibration goes to everybody: notes that name clients stay with the record.
    notes = [note.text for note in assessment.notes if not note.clients]
    notes += [note.text for note in noise_notes(federation) if not note.clients]
    notes += public_notes(federation, request)
    return Calibration(
        levels=tuple(levels),
        has_multiple_levels=request.several,
        by=request.by,
        score=federation.score,
        risk=federation.risk,
        classes=_class_names(federation),
        defense=record.defense,
        is_guaranteed=guarantee is not None,
        certificate_confidence=confidence,
        n_malicious=bound.number,
        n_malicious_given=bound.is_given,
        verification=federation.verification,
        summary=record.summary,
        public_notes=tuple(notes),
        record=record,
    )


def _as_federation(reports: Reports) -> Federation:
    """Return the reports as a federation, whatever form they have."""
    if isinstance(reports, Federation):
        return reports
    if isinstance(reports, os.PathLike):
        return Federation.from_files(reports)
    if isinstance(reports, str):
        if _is_json(reports):
            return Federation.from_reports(cast(Any, reports))
        return Federation.from_files(reports)
    if isinstance(reports, (bytes, Mapping)) or not isinstance(reports, Iterable):
        return Federation.from_reports(cast(Any, reports))

    # The first item decides whether they are paths; it is put back in front of the others.
    items = iter(cast(Iterable[Any], reports))
    first = next(items, None)
    if first is None:
        return Federation.from_reports(())
    all_items = chain((first,), items)
    is_path = isinstance(first, os.PathLike) or (isinstance(first, str) and not _is_json(first))
    if is_path:
        return Federation.from_files(all_items)
    return Federation.from_reports(all_items)


def _is_json(text: str) -> bool:
    """Whether a string is a report rather than the path of one."""
    return text.lstrip()[:1] == "{"


def _assess(rule: Defense, federation: Federation, *, must_succeed: bool) -> Assessment:
    """Return the defense's verdict on every client; a guarantee holds without one."""
    sample_counts = federation.as_sample_counts()
    try:
        return rule.assess(sample_counts)
    except RobfcpError as error:
        if must_succeed:
            raise
        note = Note(f"nobody is flagged: {error}")
        return replace(FCP().assess(sample_counts), notes=(note,))


def _record(
    federation: Federation, rule: Defense, assessment: Assessment, request: Request
) -> Record:
    """Return all that an auditor needs to compute the calibration again."""
    name, parameters = recorded_parameters(rule)
    excluded = federation.names_of(~assessment.benign_mask)
    notes = (*assessment.notes, *noise_notes(federation))
    return Record(
        federation=federation,
        maliciousness=assessment.maliciousness,
        reasons={client: assessment.reasons.get(client, "") for client in excluded},
        notes=tuple(note.text for note in notes),
        defense=name,
        parameters=parameters,
        guarantee=request.guarantee,
        clusters=request.clusters,
        trusted_report=request.trusted_report,
    )


def _class_names(federation: Federation) -> StratumNames | None:
    """Return the names of the classes, or their number, where reports keep counts by class."""
    strata = federation.strata
    if strata is None or strata.by != "class":
        return None
    if isinstance(strata.names, tuple):
        return tuple(name for name in strata.names if name != OTHER_STRATUM)
    return strata.names
