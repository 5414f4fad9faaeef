"""What every defence has: a finding about everybody, and a verdict for a number of liars."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import Exchangeability, FcpThreshold

Exclude = Literal["outstanding", "exactly"]


@dataclass(frozen=True, eq=False)
class Finding:
    """What a defence found about everybody, before anybody said how many may lie.

    Counting, excluding, the page and the file share it. `oddity` and `p_values` are (K,),
    `outstanding` says who stands out, `reasons` why; `notes` say what was approximated.
    """

    oddity: NDArray[np.float64]
    outstanding: NDArray[np.bool_]
    p_values: NDArray[np.float64]
    reasons: Mapping[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Assessment:
    """What a defence decides: a number and a verdict for every client, a reason for each flag.

    `notes` say what was approximated, for the calibration to keep.
    """

    maliciousness: NDArray[np.float64]
    trusted: NDArray[np.bool_]
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Defence(Protocol):
    """Decides whom to trust when at most `n_malicious` clients lie."""

    name: ClassVar[str]

    def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
        """The verdict on every client."""
        ...


@runtime_checkable
class LookingDefence(Protocol):
    """A defence that looks at everybody once, whatever number it is told afterwards."""

    name: ClassVar[str]

    def look(self, federation: Federation) -> Finding:
        """How odd everybody is and who stands out."""
        ...

    def judge(self, federation: Federation, finding: Finding, n_malicious: int) -> Assessment:
        """The verdict from what was found, at most `n_malicious` clients left out."""
        ...

    def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
        """Both in one."""
        ...


@dataclass(frozen=True)
class NoDefence:
    """FCP: everybody is trusted.

    Federated conformal prediction as in Lu et al. (2023), "Federated conformal predictors for
    distributed uncertainty quantification".

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> robfcp.calibrate(reports, confidence_level=0.5, defence=robfcp.NoDefence()).flagged
    ()
    """

    name: ClassVar[str] = "none"

    def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
        """Trust in all clients.

        Parameters
        ----------
        federation
            The reports of one round.
        n_malicious
            Not used.

        Returns
        -------
        Assessment
            Nobody is flagged.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[90, 10], [0, 100]])
        >>> robfcp.NoDefence()(federation, 0).trusted
        array([ True,  True])
        """
        everybody = np.ones(federation.n_clients, dtype=bool)
        return Assessment(np.zeros(federation.n_clients), everybody)


def trust_lowest(
    number: NDArray[np.float64], ids: tuple[str, ...], n_trusted: int
) -> NDArray[np.bool_]:
    """The n_trusted clients with the lowest maliciousness; ties go by client id.

    Compared to twelve decimals: beyond them rounding would decide, not the reports.
    """
    order = np.lexsort((np.array(ids), np.round(number, 12)))
    trusted = np.zeros(len(number), dtype=bool)
    trusted[order[:n_trusted]] = True
    return trusted


def check_minority(federation: Federation, n_malicious: int) -> int:
    """K_b = K - K_m, refused unless liars are fewer than half of those who reported."""
    n_clients = federation.n_clients
    if not n_malicious >= 0 or 2 * n_malicious >= n_clients:
        raise RobfcpError(
            f"malicious: {n_malicious} of {n_clients} sites cannot be told from the honest ones; a "
            f"defence needs a majority of honest sites, that is at most {(n_clients - 1) // 2}"
        )
    return n_clients - n_malicious


def without_farthest(
    federation: Federation,
    n_malicious: int,
    number: NDArray[np.float64],
    origin: str,
    notes: tuple[str, ...] = (),
) -> Assessment:
    """Exactly `n_malicious` left out: those farthest from `origin` by the number."""
    trusted = trust_lowest(number, federation.ids, check_minority(federation, n_malicious))
    reasons = {
        federation.ids[k]: f"among the {n_malicious} sites farthest from {origin}"
        for k in np.flatnonzero(~trusted)
    }
    return Assessment(number, trusted, reasons, notes)


def verdict(
    federation: Federation, finding: Finding, n_malicious: int, exclude: Exclude
) -> Assessment:
    """The oddest that stand out left out, at most `n_malicious`; or exactly so many of all."""
    check_minority(federation, n_malicious)
    number = finding.oddity
    if exclude == "exactly":
        found = without_farthest(federation, n_malicious, number, "the majority", finding.notes)
        return replace(
            found,
            reasons={
                client: finding.reasons.get(client, why) for client, why in found.reasons.items()
            },
        )
    ranked = np.where(finding.outstanding, number, -np.inf)
    n_trusted = federation.n_clients - min(n_malicious, int(finding.outstanding.sum()))
    trusted = trust_lowest(ranked, federation.ids, n_trusted)
    flagged = {federation.ids[k] for k in np.flatnonzero(~trusted)}
    reasons = {client: reason for client, reason in finding.reasons.items() if client in flagged}
    return Assessment(number, trusted, reasons, finding.notes)


class LooksFirst(ABC):
    """A defence that finds out who stands out and leaves out the oddest of them.

    `exclude` says whether only those who stand out may go, or exactly as many as lie.
    """

    exclude: Exclude

    @abstractmethod
    def look(self, federation: Federation) -> Finding:
        """How odd everybody is and who stands out.

        Parameters
        ----------
        federation
            The reports of one round.
        """

    def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
        """At most `n_malicious` sites left out.

        Parameters
        ----------
        federation
            The reports of one round.
        n_malicious
            K_m, fewer than half of the sites.

        Returns
        -------
        Assessment
            Everybody's oddity, verdict and reason.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
        >>> counts[3] = [200] + [0] * 19
        >>> assessment = robfcp.Consensus()(robfcp.Federation.from_counts(counts), 5)
        >>> np.flatnonzero(~assessment.trusted)
        array([3])
        """
        check_minority(federation, n_malicious)
        return self.judge(federation, self.look(federation), n_malicious)

    def judge(self, federation: Federation, finding: Finding, n_malicious: int) -> Assessment:
        """The verdict from what is known of everybody, so that several m share the work.

        Parameters
        ----------
        federation
            The reports of one round.
        finding
            What `look` found in them.
        n_malicious
            K_m, fewer than half of the sites.

        Returns
        -------
        Assessment
            Everybody's oddity, verdict and reason.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
        >>> counts[3] = [200] + [0] * 19
        >>> federation, rule = robfcp.Federation.from_counts(counts), robfcp.Consensus()
        >>> finding = rule.look(federation)
        >>> [int(rule.judge(federation, finding, m).trusted.sum()) for m in (0, 1, 5)]
        [20, 19, 19]
        """
        return verdict(federation, finding, n_malicious, self.exclude)


@runtime_checkable
class VotingDefence(Protocol):
    """A defence with a threshold of its own on those it trusts."""

    name: ClassVar[str]

    def threshold(
        self,
        federation: Federation,
        trusted: NDArray[np.bool_],
        exchangeability: Exchangeability,
    ) -> ThresholdRule:
        """The threshold's bin at any level."""
        ...


class ThresholdRule(Protocol):
    """Gives the bin of a threshold at a level."""

    def index(self, level: Fraction) -> int | None:
        """The bin; None = infinite."""
        ...


def threshold_of(
    rule: Defence | None,
    federation: Federation,
    trusted: NDArray[np.bool_],
    exchangeability: Exchangeability,
) -> ThresholdRule:
    """The defence's own threshold on the trusted; FCP's where it has none."""
    if isinstance(rule, VotingDefence):
        return rule.threshold(federation, trusted, exchangeability)
    return FcpThreshold(federation, trusted, exchangeability)
