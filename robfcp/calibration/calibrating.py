"""The server's half in one call: reports in, calibration out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np

from robfcp.calibration.calibration import Calibration
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.levels import Level
from robfcp.calibration.settings import Guarantee, Settings
from robfcp.defence import (
    Assessment,
    Defence,
    Exclude,
    Finding,
    LookingDefence,
    Method,
    Metric,
    estimate_malicious,
    named_defence,
    recorded_defence,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation, Untrusted, privacy_notes
from robfcp.guarantees import (
    Exchangeability,
    FcpThreshold,
    certify,
    exact_level,
    guaranteed,
    tolerance,
)

LevelLike = float | str | Fraction


def calibrate(
    reports: Federation | Iterable[Untrusted],
    *,
    confidence_level: LevelLike | Sequence[LevelLike] = 0.9,
    defence: str | Defence = "band",
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
) -> Calibration:
    """One calibration from the reports of one round.

    Parameters
    ----------
    reports
        The reports of all clients, as objects or JSON, or a `Federation` of them.
    confidence_level
        One level, or several for one calibration with several thresholds.
    defence
        Whom to trust: "band", "rob-fcp", "none", or a defence of your own.
    malicious
        The operator's bound on the number of liars, or "estimate". A guarantee needs a stated
        number (or `size_budget`): an estimate proves nothing.
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
        "partial" (within clients, rank from N + K) or "full" (altogether, N + 1).
    certificate_confidence
        With which certificates hold, over the calibration data.
    sizes
        Who may report and with how many samples, registered beforehand.
    quorum
        The least number (or share) of valid reports.
    max_share
        Refuses a client that holds more than this share of all samples.
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
    (0.8165780606, ('site-03',))
    >>> calibration.predict_set([[0.7, 0.25, 0.05]])
    array([[ True,  True, False]])
    """
    levels, several = _levels(confidence_level)
    rule = named_defence(defence, distance, exclude) if isinstance(defence, str) else defence
    if isinstance(rule, type) or not callable(rule) or not hasattr(rule, "name"):
        raise RobfcpError(f"defence: {rule!r} is not a defence; use 'band', 'rob-fcp' or 'none'")
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
    )
    _check_guarantee(settings)
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
    finding = rule.look(federation) if isinstance(rule, LookingDefence) else None
    n_malicious = _number(federation, rule, finding, settings.malicious)
    assessment = _assess(federation, rule, finding, n_malicious, settings.guarantee)
    evidence = Evidence(
        federation=federation,
        maliciousness=assessment.maliciousness,
        trusted_mask=assessment.trusted,
        reasons=assessment.reasons,
        finding=finding,
    )
    outcomes = _outcomes(evidence, levels, n_malicious, settings)
    return Calibration(
        levels=outcomes,
        settings=settings,
        score=federation.score,
        n_malicious=n_malicious,
        checked=federation.checked,
        summary=Summary.of(evidence),
        source=evidence,
        notes=(*assessment.notes, *privacy_notes(federation.privacy)),
        several=several,
    )


def _levels(asked: LevelLike | Sequence[LevelLike]) -> tuple[list[Fraction], bool]:
    if isinstance(asked, np.ndarray) and asked.ndim == 0:
        asked = asked[()]
    if isinstance(asked, str) or not isinstance(asked, (Sequence, np.ndarray)):
        return [exact_level(asked)], False
    levels = [exact_level(level) for level in asked]
    if not levels:
        raise RobfcpError("confidence_level: the list is empty; give at least one level")
    return levels, True


def _check_guarantee(settings: Settings) -> None:
    if settings.size_budget is not None and settings.guarantee != "marginal":
        raise RobfcpError("size_budget: only guarantee='marginal' takes one; set it or drop it")
    bounded = settings.malicious != "estimate" or settings.size_budget is not None
    if settings.guarantee is not None and not bounded:
        raise RobfcpError(
            "malicious: a guarantee needs a number stated beforehand, not an estimate; "
            "pass malicious=m, the most clients you think could lie"
        )


def _capped(federation: Federation, max_share: float) -> Federation:
    """Without the clients that claim more than the allowed share of all samples."""
    shares = federation.sizes / federation.n_samples
    over = shares > max_share
    if not over.any():
        return federation
    if over.all():
        raise RobfcpError(
            f"max_share: every client holds more than {max_share:g} of all samples; raise it"
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


def _outcomes(
    evidence: Evidence, levels: list[Fraction], n_malicious: int, settings: Settings
) -> tuple[Level, ...]:
    """Threshold, tolerance and certificate at every confidence level."""
    federation = evidence.federation
    plain = FcpThreshold(federation, evidence.trusted_mask, settings.exchangeability)
    found = []
    for level in levels:
        if settings.guarantee is None:
            index = plain.index(level)
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
                settings.guarantee,
                level,
                None if settings.malicious == "estimate" else n_malicious,
                confidence=settings.certificate_confidence,
                sigma=settings.heterogeneity,
                size_budget=settings.size_budget,
            )
        threshold = federation.threshold_at(index)
        found.append(Level(level, threshold, tolerance(federation, index, level), certificate))
    return tuple(found)
