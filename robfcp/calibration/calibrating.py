"""The server's half in one call: reports in, calibration out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np

from robfcp.calibration.calibration import Calibration
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.notes import mix_notes, nameless, shift_notes, strata_notes
from robfcp.calibration.outcomes import outcomes_of
from robfcp.calibration.settings import Guarantee, Settings, WrittenMix, plain_clusters, plain_mix
from robfcp.calibration.strata import class_names
from robfcp.defence import (
    DEFAULT,
    NAMES,
    Assessment,
    Defence,
    Exclude,
    Finding,
    LookingDefence,
    Method,
    Metric,
    RobFCPReleased,
    estimate_malicious,
    named_defence,
    recorded_defence,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation, Untrusted, comparable
from robfcp.guarantees import (
    Exchangeability,
    exact_level,
)
from robfcp.reports import By

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
        Whom to trust: "consensus", "band" (the default of the first release), "rob-fcp" (the
        paper's text), "rob-fcp-released" (its authors' code), "none", or a defence of your own.
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
            *federation.noise.notes(),
            *mix_notes(federation, settings),
            *shift_notes(federation, settings, n_malicious),
            *strata_notes(federation, settings),
        ),
        several=several,
    )


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
    if isinstance(rule, RobFCPReleased):
        return rule.estimate(federation)
    method: Method = "likelihood" if rule.name == "rob-fcp" else "groups"
    return int(estimate_malicious(federation, method=method))


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
