"""The server's half in one call: reports in, calibration out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robfcp._private_reports import privacy_notes
from robfcp.calibration import Calibration, Guarantee, Level, Settings
from robfcp.certificates import certify
from robfcp.counting import Method, estimate_malicious
from robfcp.defences import Assessment, Defence, Exclude, named_defence
from robfcp.distances import Metric
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation, Untrusted
from robfcp.guarantees import tolerance
from robfcp.modes import guaranteed
from robfcp.private_thresholds import private_index
from robfcp.quantiles import Exchangeability, conformal_rank, exact_level, threshold_index

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

    malicious: the operator's bound on the number of liars, or "estimate". A guarantee needs a
        stated number (or `size_budget`, a bound on their samples): an estimate proves nothing.
    exclude: "outstanding" leaves out at most that many clients, and only those that stand out;
        "exactly" leaves out that many whatever they look like.
    guarantee: None takes the defence's own threshold; "marginal" one that covers whatever any m
        clients do, "pac" one that does so with `certificate_confidence`, "pac-homogeneous" the
        same for clients declared alike up to `heterogeneity`.
    heterogeneity: a stated bound on how far (in Kolmogorov distance) an honest client's score
        distribution is from a common one; prunes clients that cannot be honest.
    exchangeability: "partial" (within clients, rank from N + K) or "full" (altogether, N + 1).
    sizes: who may report and with how many samples, registered beforehand.
    quorum: the least number (or share) of valid reports.
    max_share: refuses a client that holds more than this share of all samples.
    confidence_level: one level, or several for one calibration with several thresholds.
    """
    levels, several = _levels(confidence_level)
    rule = named_defence(defence, distance, exclude) if isinstance(defence, str) else defence
    if isinstance(rule, type) or not callable(rule) or not hasattr(rule, "name"):
        raise RobfcpError(f"defence: {rule!r} is not a defence; use 'band', 'rob-fcp' or 'none'")
    settings = Settings(
        rule.name,
        malicious,
        "exactly" if rule.name == "rob-fcp" else exclude,
        distance,
        exchangeability,
        guarantee,
        heterogeneity,
        certificate_confidence,
        max_share,
        size_budget,
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
    n_malicious = _number(federation, rule, settings.malicious)
    assessment = _assess(federation, rule, n_malicious, settings.guarantee)
    return Calibration(
        tuple(_level(federation, level, n_malicious, assessment, settings) for level in levels),
        federation,
        assessment.maliciousness,
        assessment.trusted,
        n_malicious,
        settings,
        assessment.reasons,
        (*assessment.notes, *privacy_notes(federation.privacy)),
        several,
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


def _number(federation: Federation, rule: Defence, malicious: int | str) -> int:
    """The operator's bound, or the estimate that goes with the defence."""
    if malicious == "estimate":
        method: Method = "likelihood" if rule.name == "rob-fcp" else "groups"
        return int(estimate_malicious(federation, method=method))
    return int(malicious)


def _assess(
    federation: Federation, rule: Defence, n_malicious: int, guarantee: Guarantee | None
) -> Assessment:
    """The defence's verdict; beside a guarantee, which stands without it, as far as it can tell."""
    if guarantee is not None:
        n_malicious = min(n_malicious, (federation.n_clients - 1) // 2)
    return rule(federation, n_malicious)


def _level(
    federation: Federation,
    level: Fraction,
    n_malicious: int,
    assessment: Assessment,
    settings: Settings,
) -> Level:
    """Threshold, tolerance and certificate at one confidence level."""
    if settings.guarantee is None:
        index = _plain_index(federation, level, assessment.trusted, settings.exchangeability)
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
    threshold = np.inf if index is None else float(federation.grid.upper[index])
    return Level(level, threshold, tolerance(federation, index, level), certificate)


def _plain_index(
    federation: Federation,
    level: Fraction,
    trusted: NDArray[np.bool_],
    exchangeability: Exchangeability,
) -> int | None:
    """FCP's threshold on the trusted clients."""
    if federation.private:
        return private_index(federation.subset(trusted), level, exchangeability)
    n_samples = int(federation.sizes[trusted].sum())
    rank = conformal_rank(level, n_samples, int(trusted.sum()), exchangeability)
    return threshold_index(federation.pooled(trusted), rank)
