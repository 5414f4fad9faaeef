"""The server's half in one call: reports in, calibration out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal, cast

import numpy as np

from robfcp.calibration.by_class import class_names, stratum_levels, worst_of
from robfcp.calibration.calibration import Calibration
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.levels import Level
from robfcp.calibration.settings import Guarantee, Settings, WrittenMix, plain_clusters, plain_mix
from robfcp.defence import (
    DEFAULT,
    NAMES,
    Assessment,
    Defence,
    Exclude,
    Finding,
    LookingDefence,
    Metric,
    RobFCP,
    RobFCPReleased,
    estimate_malicious,
    named_defence,
    recorded_defence,
    threshold_of,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation, Untrusted, comparable
from robfcp.guarantees import (
    MOST_COMPARED,
    Exchangeability,
    certify,
    coverage_curve,
    curve_budgets,
    empty_from,
    exact_level,
    foresee,
    guaranteed,
    least_shift,
    mixes_differ,
    shifted_mix,
    shifted_pac,
    tolerance,
)
from robfcp.report import By


def outcomes_of(
    evidence: Evidence,
    levels: list[Fraction],
    n_malicious: int,
    settings: Settings,
    rule: Defence,
) -> tuple[Level, ...]:
    """Threshold, tolerance and certificate at every confidence level."""
    federation = evidence.federation
    if settings.by is not None:
        return tuple(_by_stratum(evidence, level, n_malicious, settings) for level in levels)
    if settings.clusters is not None:
        raise RobfcpError("clusters: only by='class' and by='group' have strata to cluster")
    trusted, rank = evidence.trusted_mask, settings.exchangeability
    own = None
    if settings.guarantee is None and settings.mix is None and settings.label_shift is None:
        own = threshold_of(rule, federation, trusted, rank)
    budgets = curve_budgets(federation.n_clients, n_malicious)
    found = []
    for level in levels:
        if settings.mix is not None:
            index, certificate = shifted_mix(
                federation,
                level,
                cast(Any, settings.mix),
                n_malicious,
                settings.certificate_confidence,
                settings.label_shift or 0.0,
            )
        elif settings.label_shift is not None:
            index, certificate = shifted_pac(
                federation,
                level,
                n_malicious,
                settings.certificate_confidence,
                settings.label_shift,
            )
        elif own is not None:
            index = own.index(level)
            if settings.heterogeneity is None:
                foresee(federation, index, (n_malicious, *budgets))
            certificate = certify(
                federation,
                index,
                n_malicious,
                settings.certificate_confidence,
                sigma=settings.heterogeneity,
                estimated=settings.malicious == "estimate",
            )
        else:
            index, certificate = guaranteed(
                federation,
                cast(Any, settings.guarantee),
                level,
                None if settings.malicious == "estimate" else n_malicious,
                confidence=settings.certificate_confidence,
                sigma=settings.heterogeneity,
                size_budget=settings.size_budget,
                exchangeability=settings.exchangeability,
            )
        threshold = federation.threshold_at(index)
        sure = {"confidence": settings.certificate_confidence, "sigma": settings.heterogeneity}
        found.append(
            Level(
                level,
                threshold,
                tolerance(federation, index, level),
                certificate,
                coverage_curve(federation, index, budgets, **sure),  # type: ignore[arg-type]
                empty_from(federation, index, **sure),  # type: ignore[arg-type]
            )
        )
    return tuple(found)


def _by_stratum(
    evidence: Evidence,
    level: Fraction,
    n_malicious: int,
    settings: Settings,
) -> Level:
    """The thresholds of all classes or groups at one level."""
    found = stratum_levels(evidence.federation, evidence.trusted_mask, level, n_malicious, settings)
    survived = [one.tolerance for one in found]
    return Level(
        level,
        max(one.threshold for one in found),
        None if None in survived else min(number for number in survived if number is not None),
        worst_of(found, settings, evidence.federation),
        strata=found,
    )


UNLIKE = 1e-3  # chance of label mixes this different if all sites drew from one


def nameless(notes: Sequence[str], federation: Federation) -> tuple[str, ...]:
    """Those that name no site: a calibration goes to everybody, names stay with the evidence."""
    return tuple(note for note in notes if not any(name in note for name in federation.ids))


def strata_notes(federation: Federation, settings: Settings) -> tuple[str, ...]:
    """How many report no classes where others do, and that a cluster's promise is not a class's."""
    found = []
    strata = federation.strata
    if strata is not None and len(strata.rows) < federation.n_clients:
        pooled = federation.n_clients - len(strata.rows)
        found.append(
            f"{pooled} {'site keeps its' if pooled == 1 else 'sites keep their'} {strata.by} back: "
            f"in what is said of all samples, and in nothing by {strata.by}"
        )
    if settings.clusters is not None:
        found.append(
            f"thresholds are by cluster: what is proved holds for each cluster of "
            f"{'classes' if settings.by == 'class' else 'groups'}, not for each of them by itself"
        )
    return tuple(found)


def mix_notes(federation: Federation, settings: Settings) -> tuple[str, ...]:
    """A warning where sites are declared alike but their label mixes are not."""
    strata = federation.exact_strata
    if settings.guarantee != "pac-homogeneous" or strata is None:
        return ()
    if mixes_differ(strata.sizes) > UNLIKE:
        return ()
    return (
        "pac-homogeneous declares the sites alike, but their label mixes differ beyond chance: it "
        "may cover less than promised; use guarantee='pac' with label_shift=",
    )


def shift_notes(federation: Federation, settings: Settings, m: int) -> tuple[str, ...]:
    """Beside a declared label shift the least one at which the reports would drop nobody."""
    strata = federation.exact_strata
    if settings.label_shift is None or strata is None or not m < len(strata.rows) <= MOST_COMPARED:
        return ()
    least = least_shift(federation, m, settings.certificate_confidence)
    return (
        f"label shift is declared as {settings.label_shift:g}; the least at which no site would be "
        f"dropped is {least:.3f} (a diagnostic, liars included: it proves nothing)",
    )


LevelLike = float | str | Fraction


def calibrate(
    reports: Federation | Iterable[Untrusted],
    *,
    confidence_level: LevelLike | Sequence[LevelLike] = 0.9,
    defence: str | Defence = DEFAULT,
    malicious: int | Literal["estimate"] = "estimate",
    exclude: Exclude = "outstanding",
    guarantee: Guarantee | None = None,
    heterogeneity: float | None = None,
    distance: Metric = "l2",
    exchangeability: Exchangeability = "partial",
    certificate_confidence: float = 0.95,
    sizes: Mapping[str, int] | None = None,
    quorum: int | float | None = None,
    max_share: float | None = None,
    size_budget: int | None = None,
    risk: LevelLike | Sequence[LevelLike] | None = None,
    by: By | None = None,
    clusters: Mapping[str, str] | Sequence[str] | None = None,
    joint: bool = True,
    label_shift: float | None = None,
    mix: WrittenMix | None = None,
) -> Calibration:
    """One calibration from the reports of one round.

    Parameters
    ----------
    reports
        The reports of all clients, as objects or JSON, or a `Federation` of them.
    confidence_level
        One level, or several for one calibration with several thresholds.
    defence
        Whom to trust: "consensus", "rob-fcp" (the paper's text), "rob-fcp-released" (its
        authors' code), "none", or a defence of your own.
    malicious
        The operator's bound on the number of liars, or "estimate". A guaranteed threshold
        needs a stated number (or `size_budget`).
    exclude
        "outstanding" leaves out at most that many clients, and only those that stand out;
        "exactly" leaves out that many whatever they look like.
    guarantee
        None takes the defence's own threshold; "marginal" one that covers whatever any m clients
        do, "pac" one that does so with `certificate_confidence`, "pac-homogeneous" the same for
        clients declared alike up to `heterogeneity`.
    heterogeneity
        A stated bound on how far (in Kolmogorov distance) an honest client's score distribution is
        from a common one; prunes clients that cannot be honest.
    distance
        What "rob-fcp" compares clients by.
    exchangeability
        What clients share: "partial" (nothing: exchangeable within clients, rank ceil(level N)
        + 1), "full" (one distribution, rank from N + 1) or "published" (rank from N + K).
    certificate_confidence
        With which certificates hold, over the calibration data.
    sizes
        Who may report and with how many samples, registered beforehand.
    quorum
        The least number (or share) of valid reports.
    max_share
        Refuses a client that holds more than this share of all samples.
    risk
        For reports of losses: the mean loss accepted, in place of confidence_level.
    by
        "class" for one threshold a class, "group" for one a group: reports must keep the counts.
    clusters
        Classes (or groups) that share a threshold, by name; fixed before the reports are seen.
    label_shift
        Declares that honest sites agree within classes, up to this (Kolmogorov) distance. With
        guarantee="pac" sites that cannot be honest are pruned by class first.
    mix
        One threshold for a stated label mix {class: share}, "uniform", "any" (whatever the mix) or
        a list of mixes at once; needs `label_shift` and a stated number of liars.
    joint
        Whether certificates of all classes hold at once with the stated confidence, or each.
    size_budget
        With guarantee="marginal": a bound on the samples that liars hold together.

    Returns
    -------
    Calibration
        Threshold, verdicts and certificate; it predicts.

    Raises
    ------
    QuorumError
        Where too few reports are valid.
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
    >>> calibration = robfcp.calibrate(reports, confidence_level=0.8, malicious=2)
    >>> calibration.threshold, calibration.flagged
    (0.81, ('site-03',))
    >>> calibration.predict_set([[0.7, 0.25, 0.05]])
    array([[ True,  True, False]])
    """
    rule = named_defence(defence, distance, exclude) if isinstance(defence, str) else defence
    if isinstance(rule, type) or not callable(rule) or not hasattr(rule, "name"):
        raise RobfcpError(f"defence: {rule!r} is not a defence; use {NAMES}")
    name, parameters = recorded_defence(rule)
    settings = Settings(
        defence=name,
        parameters=parameters,
        malicious=malicious,
        exchangeability=exchangeability,
        guarantee=guarantee,
        heterogeneity=heterogeneity,
        certificate_confidence=certificate_confidence,
        max_share=max_share,
        size_budget=size_budget,
        by=by,
        joint=joint,
        label_shift=label_shift,
        mix=plain_mix(mix),
        clusters=plain_clusters(clusters),
    )
    settings.check_guarantee()
    if isinstance(reports, Federation) and not (sizes is None and quorum is None):
        raise RobfcpError(
            "reports: a federation was checked when it was made; "
            "pass sizes and quorum to Federation.from_reports"
        )
    federation = (
        reports
        if isinstance(reports, Federation)
        else Federation.from_reports(reports, sizes=sizes, quorum=quorum)
    )
    if settings.max_share is not None:
        federation = _capped(federation, settings.max_share)
    levels, several = _asked(federation, confidence_level, risk)
    seen = comparable(federation)
    finding = rule.look(seen) if isinstance(rule, LookingDefence) else None
    n_malicious = _number(seen, rule, finding, settings.malicious)
    assessment = _assess(seen, rule, finding, n_malicious, settings.guarantee)
    evidence = Evidence(
        federation=federation,
        maliciousness=assessment.maliciousness,
        trusted_mask=assessment.trusted,
        reasons=assessment.reasons,
        finding=finding,
    )
    outcomes = outcomes_of(evidence, levels, n_malicious, settings, rule)
    return Calibration(
        levels=outcomes,
        settings=settings,
        score=federation.score,
        risk=federation.risk,
        classes=class_names(federation),
        n_malicious=n_malicious,
        checked=federation.checked,
        summary=Summary.of(evidence),
        source=evidence,
        notes=(
            *nameless(assessment.notes, federation),
            *_privacy_notes(federation),
            *mix_notes(federation, settings),
            *shift_notes(federation, settings, n_malicious),
            *strata_notes(federation, settings),
        ),
        several=several,
    )


def _privacy_notes(federation: Federation) -> tuple[str, ...]:
    """How private the reports are, in words: nothing, one budget, or the weakest of several."""
    stated = [privacy for privacy in federation.privacy if privacy is not None]
    if not stated:
        return ()
    weakest = max(stated, key=lambda privacy: (privacy.epsilon, privacy.delta))
    often = "each" if len(set(stated)) == 1 else "at least"
    number = f"{len(stated)} of {federation.n_clients} reports"
    return (f"{number} are private, {often} {weakest.statement}.",)


def _asked(
    federation: Federation,
    confidence_level: LevelLike | Sequence[LevelLike],
    risk: LevelLike | Sequence[LevelLike] | None,
) -> tuple[list[Fraction], bool]:
    """The levels asked for; a risk is a level of 1 - risk / B."""
    if federation.risk is None:
        if risk is not None:
            raise RobfcpError("risk: the reports hold no losses; drop it, or use from_losses")
        return _levels(confidence_level)
    if risk is None:
        raise RobfcpError("risk: the reports hold losses; state the mean loss you accept")
    if confidence_level != 0.9:
        raise RobfcpError("confidence_level: the reports hold losses; state risk= instead")
    several = isinstance(risk, (Sequence, np.ndarray)) and not isinstance(risk, str)
    wanted = list(risk) if several else [risk]  # type: ignore[arg-type]
    if not wanted:
        raise RobfcpError("risk: the list is empty; give at least one mean loss")
    return [federation.risk.level(value) for value in wanted], several


def _levels(asked: LevelLike | Sequence[LevelLike]) -> tuple[list[Fraction], bool]:
    if isinstance(asked, np.ndarray) and asked.ndim == 0:
        asked = asked[()]
    if isinstance(asked, str) or not isinstance(asked, (Sequence, np.ndarray)):
        return [exact_level(asked)], False
    levels = [exact_level(level) for level in asked]
    if not levels:
        raise RobfcpError("confidence_level: the list is empty; give at least one level")
    return levels, True


def _capped(federation: Federation, max_share: float) -> Federation:
    """Without the clients that claim more than the allowed share of all samples."""
    shares = federation.sizes / federation.n_samples
    over = shares > max_share
    if not over.any():
        return federation
    if over.all():
        raise RobfcpError(
            f"max_share: every site holds more than {max_share:g} of all samples; raise it"
        )
    faults = tuple(
        Fault(
            federation.ids[k],
            "n_samples",
            f"{federation.ids[k]}: claims {shares[k]:.1%} of all samples but the cap is "
            f"{max_share:.1%}; check its size or raise max_share",
        )
        for k in np.flatnonzero(over)
    )
    return replace(federation.subset(~over), faulty=federation.faulty + faults)


def _number(
    federation: Federation, rule: Defence, finding: Finding | None, malicious: int | str
) -> int:
    """The operator's bound, or the estimate that goes with the defence."""
    if malicious != "estimate":
        return int(malicious)
    if finding is not None:
        return int(finding.outstanding.sum())
    if isinstance(rule, RobFCP | RobFCPReleased):
        return rule.estimate(federation)
    return estimate_malicious(federation)


def _assess(
    federation: Federation,
    rule: Defence,
    finding: Finding | None,
    n_malicious: int,
    guarantee: Guarantee | None,
) -> Assessment:
    """The defence's verdict; beside a guarantee, which stands without it, as far as it can tell."""
    if guarantee is not None:
        n_malicious = min(n_malicious, (federation.n_clients - 1) // 2)
    if finding is not None and isinstance(rule, LookingDefence):
        return rule.judge(federation, finding, n_malicious)
    return rule(federation, n_malicious)
