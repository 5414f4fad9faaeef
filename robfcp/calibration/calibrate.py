"""The server's half in one call: reports in, calibration out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import chain
from typing import Any, cast

import msgspec
import numpy as np

from robfcp.arguments import a_few, exact_level, share
from robfcp.calibration.by_class import level_by_class, strata_of
from robfcp.calibration.calibration import Calibration, Level
from robfcp.calibration.record import Record
from robfcp.defence import (
    DEFENCES,
    Consensus,
    Defence,
    NoDefence,
    Note,
    named_defence,
    threshold_of,
)
from robfcp.errors import MAX_NAME, RobfcpError, plain
from robfcp.federation import Federation, Untrusted
from robfcp.guarantees import LabelShift, Marginal, Pac, Promise, certify, curve, site
from robfcp.report import OTHER, Report

LevelLike = float | str | Fraction
Reports = Federation | Iterable[Untrusted | os.PathLike[str]] | str | os.PathLike[str]


def calibrate(
    reports: Reports,
    coverage: LevelLike | Sequence[LevelLike] = 0.9,
    *,
    risk: LevelLike | Sequence[LevelLike] | None = None,
    by: str | Mapping[str, str] | None = None,
    defence: str | Defence = Consensus.name,
    promise: Promise | None = None,
    anchor: Report | None = None,
    confidence: float = 0.95,
) -> Calibration:
    """One calibration from the reports of one round.

    Parameters
    ----------
    reports
        The reports of all sites, as objects or JSON; paths of their files, or of their folder; or
        a `Federation`, where sizes, keys or a quorum are to be checked.
    coverage
        The coverage wanted, or several for one calibration with several thresholds.
    risk
        For reports of losses: the mean loss accepted, in place of coverage; or several.
    by
        "class" for one threshold a class, "group" for one a group: reports must keep the counts.
        {class: cluster} for classes (or groups) that share thresholds, fixed beforehand.
    defence
        Whom to trust: "consensus", "rob-fcp" (the paper's text), "rob-fcp-released" (its authors'
        code), "none"; or one that was told a number, `Consensus(at_most=3)`; or one of your own.
    promise
        What the threshold is to hold whatever some sites do: `Marginal`, `Pac` or `LabelShift`.
        Without one it is the defence's own, and what is proved of it is said for every number of
        liars.
    anchor
        Trusted samples at the server, on the round's grid and in no report: whoever lies, the
        threshold stays within what they allow. Not with `LabelShift`, nor for losses.
    confidence
        With which certificates hold, over the calibration data.

    Returns
    -------
    Calibration
        Threshold, verdicts and certificate; it predicts.

    Raises
    ------
    QuorumError
        Where no report is valid.
    RobfcpError
        Where options do not fit together or with the reports.

    References
    ----------
    The threshold without a defence is that of Lu, Yu, Karimireddy, Jordan and Raskar (2023),
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
    >>> calibration.threshold, calibration.flagged
    (0.81, ('site-03',))
    >>> calibration.predict_set([[0.7, 0.25, 0.05]])
    array([[ True,  True, False]])
    """
    rule = named_defence(defence) if isinstance(defence, str) else defence
    if isinstance(rule, type) or not callable(rule) or not hasattr(rule, "name"):
        names = ", ".join(map(repr, DEFENCES))
        raise RobfcpError(f"defence: {rule!r} is none; use {names}, or what has a name and a call")
    confidence = share("confidence", confidence, "give 0.95, say")
    federation = _federation(reports)
    clusters = {str(k): str(v) for k, v in by.items()} if isinstance(by, Mapping) else None
    one = None if isinstance(by, Mapping) else by
    chosen = None if by is None else strata_of(federation, one).by
    _check_together(federation, chosen, promise, anchor, confidence)
    levels, several = _asked(federation, coverage, risk)
    if isinstance(rule, Consensus):
        rule = rule.unforeseen(federation)
    compared = federation.comparable()
    try:
        assessment = rule(compared)
    except RobfcpError as error:
        if promise is None:
            raise
        nobody = Note(f"nobody is flagged: {error}")  # a promise stands without the defence
        assessment = replace(NoDefence()(compared), remarks=(nobody,))
    trusted, liars, stated = assessment.trusted, assessment.liars, assessment.stated
    if promise is not None and promise.liars is not None:
        liars, stated = promise.liars, True
    if liars is None:
        liars = int((~trusted).sum())
    if type(rule) is DEFENCES.get(rule.name):
        name, parameters = rule.name, asdict(cast(Any, rule))
    else:  # nobody can make it again
        name, parameters = f"custom:{plain(str(rule.name), MAX_NAME)}", {}
    why: Any = assessment.reasons
    if not hasattr(why, "rows") or not np.array_equal(why.rows, np.flatnonzero(~trusted)):
        why = {client: why.get(client, "") for client in federation.names(~trusted)}
    notes = (*assessment.remarks, *_noise_remarks(federation))
    record = Record(
        federation=federation,
        oddness=assessment.oddness,
        flagged=why,
        remarks=tuple(note.text for note in notes),
        defence=name,
        parameters=parameters,
        promise=promise,
        clusters=clusters,
        anchor=None if anchor is None else msgspec.json.decode(anchor.to_json()),
    )
    seen = federation if promise is None else promise.covers(federation)
    budgets = curve.curve_budgets(seen.n_clients, liars)
    if chosen is None and promise is None:
        own = threshold_of(rule, federation, trusted)

    def found(level: Fraction) -> Level:
        if chosen is not None:
            return level_by_class(record, level, chosen, confidence, liars, stated)
        held = None if anchor is None else site.Anchor.of(anchor.counts, level, 1 - confidence)
        if promise is not None:
            edge, certificate = promise.threshold(federation, level, confidence, held)
        else:
            edge = own.index(level) if held is None else held.clipped(own.index(level))
            curve.empty_from(federation, edge, confidence, budgets)  # together is faster
            certificate = certify(federation, edge, liars, confidence, estimated=not stated)
            certificate = certificate if held is None else held.stated(certificate)
        return Level(
            coverage=level,
            threshold=federation.threshold_at(edge),
            certificate=certificate,
            curve=curve.coverage_curve(seen, edge, budgets, confidence),
            empty_from=curve.empty_from(seen, edge, confidence),
        )

    strata = federation.strata
    classes = None if strata is None or strata.by != "class" else strata.names
    if isinstance(classes, tuple):
        classes = tuple(one for one in classes if one != OTHER)
    return Calibration(
        levels=tuple(map(found, levels)),
        several=several,
        by=chosen,
        score=federation.score,
        risk=federation.risk,
        classes=classes,
        defence=name,
        promised=promise is not None,
        confidence=confidence,
        liars=liars,
        liars_stated=stated,
        checked=federation.checked,
        summary=record.summary,
        public_remarks=(  # a calibration goes to everybody: names stay with the record
            *(note.text for note in notes if not note.clients),
            *_public_remarks(record, confidence),
        ),
    ).with_record(record)


def _federation(reports: Reports) -> Federation:
    """The reports as a federation, whatever form they have."""
    if isinstance(reports, Federation):
        return reports
    first, every = cast(Any, (reports, reports))
    if isinstance(reports, Iterable) and not isinstance(reports, (str, bytes, Mapping)):
        rest = iter(reports)
        first = next(rest, None)
        every = () if first is None else chain((first,), rest)
    text = isinstance(first, str) and first.lstrip()[:1] == "{"  # a report's, not a path
    path = isinstance(first, (str, os.PathLike)) and not text
    return Federation.read(every) if path else Federation.from_reports(every)


def _check_together(
    federation: Federation,
    by: str | None,
    promise: Promise | None,
    anchor: Report | None,
    confidence: float,
) -> None:
    """Refuse what is not proved: the whole of what does not go together."""
    if promise is not None and not isinstance(promise, (Marginal, Pac, LabelShift)):
        raise RobfcpError(f"promise: {promise!r:.60} is none; use robfcp.Marginal(liars=1), say")
    if anchor is not None and not isinstance(anchor, Report):
        raise RobfcpError("anchor: is no report; make one of trusted samples, Report.of(...)")
    shift, losses = isinstance(promise, LabelShift), federation.risk is not None
    samples = isinstance(promise, Marginal) and promise.samples is not None
    wrong = {
        "promise: by class or group state liars, not samples": samples and by is not None,
        "promise: LabelShift is not proved for losses; use Marginal or Pac": shift and losses,
        "promise: thresholds by class need no LabelShift; use Marginal or Pac, or drop by": shift
        and by is not None,
        "promise: LabelShift is not proved for private reports; use Marginal or Pac": shift
        and federation.noisy,
    }
    if anchor is not None:
        scores = anchor.score, federation.score
        wrong |= {
            "anchor: is not proved with LabelShift; use Marginal or Pac": shift,
            "anchor: is for scores, not for losses; leave it out": losses
            or anchor.risk is not None,
            "anchor: holds noise; keep and pass an exact one": anchor.privacy is not None,
            "anchor: is on another grid than the reports; make it with grid=": anchor.grid.digest
            != federation.grid.digest,
            "anchor: has another score than the reports; use that": None not in scores
            and scores[0] != scores[1],
            "anchor: is among the reports; trusted samples are in none": anchor.client
            in federation.ids,
            "anchor: takes as much of the confidence again; state more than 0.5": confidence <= 0.5,
        }
    for words, found in wrong.items():
        if found:
            raise RobfcpError(words)


def _asked(
    federation: Federation,
    coverage: LevelLike | Sequence[LevelLike],
    risk: LevelLike | Sequence[LevelLike] | None,
) -> tuple[list[Fraction], bool]:
    """The levels asked for, and whether as a list; a risk is a level of 1 - risk / B."""
    if federation.risk is None and risk is not None:
        raise RobfcpError("risk: the reports hold no losses; drop it, or use from_losses")
    if federation.risk is not None and risk is None:
        raise RobfcpError("risk: the reports hold losses; state the mean loss you accept")
    if federation.risk is not None and coverage != 0.9:
        raise RobfcpError("coverage: the reports hold losses; state risk= instead")
    asked: Any = coverage if risk is None else risk
    several = isinstance(asked, (Sequence, np.ndarray)) and not isinstance(asked, str)
    several = several and np.ndim(asked) > 0
    wanted: list[Any] = list(asked) if several else [np.asarray(asked, dtype=object)[()]]
    if not wanted:
        field, what = ("coverage", "level") if risk is None else ("risk", "mean loss")
        raise RobfcpError(f"{field}: the list is empty; give at least one {what}")
    read = exact_level if federation.risk is None else federation.risk.level
    return [read(value) for value in wanted], several


def _noise_remarks(federation: Federation) -> tuple[Note, ...]:
    """Who holds how much noise, where not all hold the same."""
    held: dict[str, list[str]] = {}
    if not federation.private:
        return ()
    for client, law in zip(federation.ids, federation.noises, strict=True):
        noise = "none" if law is None else f"{law.mechanism} of scale {law.scale:g}"
        held.setdefault(noise, []).append(client)
    told = "; ".join(f"{noise} in {a_few(sites)}" for noise, sites in sorted(held.items()))
    return (Note(f"noise: {told}", federation.ids),) if len(held) > 1 else ()


def _public_remarks(record: Record, confidence: float) -> list[str]:
    """How private or rounded the reports are, what the promise adds, how many report no classes
    where others do, and that a cluster's promise is not a class's."""
    found, federation, strata = [], record.federation, record.federation.strata
    stated = [privacy for privacy in federation.privacy if privacy is not None]
    if stated:
        weakest = max(stated, key=lambda privacy: (privacy.epsilon, privacy.delta))
        often = "each" if len(set(stated)) == 1 else "at least"
        number = f"{len(stated)} of {federation.n_clients} reports"
        found.append(f"{number} are private, {often} {weakest.statement}.")
    if 2 * (rounded := int(federation.in_fives.sum())) > federation.n_clients:  # not by chance
        found.append(
            f"{rounded} of {federation.n_clients} reports keep at least five samples together: "
            "scores are moved up for it, so that sets are rather too large than too small"
        )
    if record.promise is not None:
        found += record.promise.remarks(federation, confidence)
    if strata is not None and len(strata.rows) < federation.n_clients:
        pooled = federation.n_clients - len(strata.rows)
        found.append(
            f"{pooled} {'site keeps its' if pooled == 1 else 'sites keep their'} {strata.by} back: "
            f"in what is said of all samples, and in nothing by {strata.by}"
        )
    if strata is not None and record.clusters is not None:
        found.append(
            f"thresholds are by cluster: what is proved holds for each cluster of "
            f"{'classes' if strata.by == 'class' else 'groups'}, not for each of them by itself"
        )
    return found
