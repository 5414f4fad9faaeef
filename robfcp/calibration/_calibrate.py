"""Calibration: from the reports of one round to thresholds and certificates."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

from robfcp._validation import abbreviate, check_fraction
from robfcp.calibration._arguments import (
    coverage_of_alpha,
    explain_wrong_arguments,
    warn_of_low_coverage,
)
from robfcp.calibration._calibration import Calibration
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


@explain_wrong_arguments
def calibrate(
    reports: Reports,
    *,
    coverage: LevelLike | Sequence[LevelLike] = DEFAULT_COVERAGE,
    alpha: LevelLike | Sequence[LevelLike] | None = None,
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
        The target coverage, 1 - alpha; several for one calibration with several thresholds.
    alpha : float, str, Fraction or sequence of them, optional
        The same as `coverage=1 - alpha`, in place of it.
    risk_level : float, str, Fraction or sequence of them, optional
        For reports of losses, in place of coverage: the mean loss that is accepted.
    by : {"class", "group"} or mapping of str to str, optional
        "class" for one threshold for each class, "group" for each group: reports must keep these
        counts. A mapping {class: cluster} for classes or groups that share thresholds, fixed
        beforehand.
    defense : str or Defense, default="consensus"
        Which clients are excluded: "consensus", "rob-fcp" (the paper's text), "rob-fcp-released"
        (its authors' code) or "none"; one with parameters, as `Consensus(max_malicious=3)`; or one
        of your own.
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
    >>> calibration = robfcp.calibrate(reports, coverage=0.8)
    >>> calibration.threshold, calibration.flagged_clients
    (0.81, ('site-03',))
    >>> calibration.predict_set([[0.7, 0.25, 0.05]])
    array([[ True,  True, False]])
    """
    resolved_defense = resolve_defense(defense)
    if alpha is not None:
        coverage = coverage_of_alpha(alpha)
    confidence = check_fraction(
        "certificate_confidence", certificate_confidence, "give for example 0.95"
    )
    federation = _as_federation(reports)
    request = Request.from_arguments(
        federation, coverage, risk_level, by, guarantee, trusted_report, confidence
    )
    if federation.risk is None:
        warn_of_low_coverage(request.levels)

    prepared_defense = prepare_defense(resolved_defense, federation)
    assessment = _assess(prepared_defense, federation, must_succeed=guarantee is None)
    record = _record(federation, prepared_defense, assessment, request)

    bound = MaliciousBound.from_request(request, assessment)
    counts = count_bounds(federation)  # read once for all levels
    levels = []
    for level in request.levels:
        levels.append(calibrate_level(level, counts, request, assessment, bound))

    return Calibration(
        levels=tuple(levels),
        has_multiple_levels=request.has_multiple_levels,
        by=request.by,
        score=federation.score,
        risk=federation.risk,
        classes=_class_names(federation),
        defense=record.defense,
        is_guaranteed=guarantee is not None,
        certificate_confidence=confidence,
        n_malicious=bound.max_malicious,
        max_malicious=bound.max_malicious if bound.is_given else None,
        verification=federation.verification,
        summary=record.summary,
        public_notes=_public_notes(federation, request, assessment),
        record=record,
    )


def _as_federation(reports: Reports) -> Federation:
    """Return the reports as a federation, whatever form they have.

    Raises
    ------
    QuorumError
        Where no report is valid.
    RobfcpError
        Where they are in no form that `calibrate` takes.
    """
    if isinstance(reports, Federation):
        return reports
    if isinstance(reports, os.PathLike):
        return Federation.from_files(reports)
    if isinstance(reports, str):
        if _is_json(reports):
            return Federation.from_reports(cast(Any, reports))
        return Federation.from_files(reports)
    # Not iterables of reports: `from_reports` says what is wrong with them.
    if isinstance(reports, (bytes, Mapping)) or not isinstance(reports, Iterable):
        return Federation.from_reports(cast(Any, reports))

    # The first item decides whether they are paths; it is put back in front of the others.
    items = iter(cast(Iterable[Any], reports))
    first_item = next(items, None)
    if first_item is None:
        return Federation.from_reports(())
    all_items = chain((first_item,), items)
    if _is_path(first_item):
        return Federation.from_files(all_items)
    return Federation.from_reports(all_items)


def _is_path(item: object) -> bool:
    """Return whether an item is the path of a report rather than a report."""
    if isinstance(item, str):
        return not _is_json(item)
    return isinstance(item, os.PathLike)


def _is_json(text: str) -> bool:
    """Return whether a string is a report rather than the path of one."""
    return text.lstrip()[:1] == "{"


def _assess(defense: Defense, federation: Federation, *, must_succeed: bool) -> Assessment:
    """Return the defense's verdict on every client; a guarantee holds without one.

    Parameters
    ----------
    defense : Defense
        The defense, with its random seed.
    federation : Federation
        The reports of one round, as they were sent. The defense gets one count a sample.
    must_succeed : bool
        Whether an error of the defense is raised. Else nobody is excluded and a note tells why.
    """
    sample_counts = federation.as_sample_counts()
    try:
        return defense.assess(sample_counts)
    except RobfcpError as error:
        if must_succeed:
            raise
        note = Note(f"nobody is flagged: {error}")
        return replace(FCP().assess(sample_counts), notes=(note,))


def _record(
    federation: Federation, defense: Defense, assessment: Assessment, request: Request
) -> Record:
    """Return all that an auditor needs to compute the calibration again.

    Parameters
    ----------
    federation : Federation
        The reports of one round, as they were sent.
    defense : Defense
        The defense, with its random seed.
    assessment : Assessment
        Its verdict. Every excluded client gets a reason in the record, which may be empty.
    request : Request
        What was asked for.
    """
    name, parameters = recorded_parameters(defense)
    excluded = federation.names_of(~assessment.benign_mask)
    notes = (*assessment.notes, *_noise_notes(federation))
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
    """Return the names of the classes, or their number, where reports keep counts by class.

    Class totals name them as well.

    Without the "(other)" that clients merge rare classes into: it is no column of predictions.
    """
    strata = federation.strata
    if strata is None or strata.by != "class":
        return None if federation.class_totals is None else federation.class_totals.names
    if isinstance(strata.names, tuple):
        return tuple(name for name in strata.names if name != OTHER_STRATUM)
    return strata.names


def _noise_notes(federation: Federation) -> tuple[Note, ...]:
    """Return which clients add how much privacy noise, where not all add the same.

    The note names all clients, so that it stays with the record.
    """
    if not federation.has_private_reports:
        return ()
    clients_by_noise: dict[str, list[str]] = {}
    for client, model in zip(federation.clients, federation.noise_models, strict=True):
        noise = "none"
        if model is not None:
            noise = f"{model.mechanism} of scale {model.scale:g}"
        clients_by_noise.setdefault(noise, []).append(client)
    if len(clients_by_noise) == 1:
        return ()

    phrases = []
    for noise, clients in sorted(clients_by_noise.items()):
        phrases.append(f"{noise} in {abbreviate(clients)}")
    return (Note(f"noise: {'; '.join(phrases)}", federation.clients),)


def _public_notes(
    federation: Federation, request: Request, assessment: Assessment
) -> tuple[str, ...]:
    """Return the notes that stand in the calibration: they name no client.

    A calibration goes to everybody. Notes that name clients stay with the record.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    request : Request
        What was asked for.
    assessment : Assessment
        The verdict of the defense.
    """
    defense_notes = [note.text for note in assessment.notes if not note.clients]
    report_notes = [
        _privacy_note(federation),
        _coarsening_note(federation),
        *_guarantee_notes(federation, request),
        _pooled_clients_note(federation),
        _clusters_note(federation, request),
    ]
    return (*defense_notes, *filter(None, report_notes))


def _privacy_note(federation: Federation) -> str:
    """Return how private the reports are: the weakest budget of all; empty where none is."""
    budgets = [privacy for privacy in federation.privacy if privacy is not None]
    if not budgets:
        return ""
    weakest = max(budgets, key=lambda privacy: (privacy.epsilon, privacy.delta))
    quantifier = "at least"
    if len(set(budgets)) == 1:
        quantifier = "each"
    n_private = f"{len(budgets)} of {federation.n_clients} reports"
    return f"{n_private} are private, {quantifier} {weakest.statement}."


def _coarsening_note(federation: Federation) -> str:
    """Return that reports are coarsened, and to which cells; empty where none is."""
    n_coarsened = int(federation.is_coarsened.sum())
    if n_coarsened == 0:
        return ""
    return (
        f"{n_coarsened} of {federation.n_clients} reports are coarsened to cells of at least "
        f"{int(federation.min_cell_counts.max())} samples: thresholds are estimated from the "
        "midpoints of their counts, and what is proved rests on the least that these can be"
    )


def _guarantee_notes(federation: Federation, request: Request) -> tuple[str, ...]:
    """Return what the guarantee has to say of these reports."""
    if request.guarantee is None:
        return ()
    return request.guarantee.notes(federation, request.certificate_confidence)


def _pooled_clients_note(federation: Federation) -> str:
    """Return how many clients report no classes where others do; empty where none does."""
    strata = federation.strata
    if strata is None or len(strata.rows) == federation.n_clients:
        return ""
    n_pooled = federation.n_clients - len(strata.rows)
    totals = federation.class_totals
    if strata.by == "class" and totals is not None and len(totals.rows) == n_pooled:
        clients = "1 site states" if n_pooled == 1 else f"{n_pooled} sites state"
        return (
            f"{clients} class totals alone: in what is said of all samples, and in nothing by class"
        )
    clients = f"{n_pooled} sites keep their"
    if n_pooled == 1:
        clients = "1 site keeps its"
    return (
        f"{clients} {strata.by} back: in what is said of all samples, and in nothing by {strata.by}"
    )


def _clusters_note(federation: Federation, request: Request) -> str:
    """Return that a cluster's certificate is not that of each of its classes; empty without any."""
    if federation.strata is None or request.clusters is None:
        return ""
    strata = "groups"
    if federation.strata.by == "class":
        strata = "classes"
    return (
        f"thresholds are by cluster: what is proved holds for each cluster of {strata}, not for "
        "each of them by itself"
    )
