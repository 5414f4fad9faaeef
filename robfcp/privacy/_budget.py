"""What privacy a client's counts are given: budget, noise, what several rounds spend together."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from functools import lru_cache
from math import inf, log, nextafter, sqrt
from numbers import Real
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from robfcp._typing import FloatArray
from robfcp._validation import set_fields
from robfcp.binning import Binning, named_binning
from robfcp.errors import RobfcpError
from robfcp.privacy._noise import LEEWAY, Mechanism, Noise

Adjacency = Literal["substitution", "add-remove"]
MAX_SCALE = 1e5
MIN_EPSILON = 1e-9
MAX_EPSILON = 1e6
MAX_COUNT = 2**31  # of samples per patient and of rounds
_ROUND_UP = Context(prec=7, rounding=ROUND_CEILING)  # so that all platforms state the same scale


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Noise on every count of a report so that it is (epsilon, delta)-differentially private.

    Parameters
    ----------
    epsilon : float
        The budget; smaller is more private.
    delta : float
        The chance of exceeding it; Gaussian noise needs one above 0.
    neighbors : Adjacency
        "substitution" protects what a sample is and leaves n_k public; "add-remove" protects that
        it is there at all, so that n_k is not sent either.
    max_samples_per_patient : int
        The stated most samples of one person; all of them are then protected together. 1 protects
        single samples.
    n_rounds : int
        The number of reports that share (epsilon, delta); each gets its part.
    mechanism : Mechanism or Literal['auto']
        "laplace", "gaussian", or "auto" for whichever needs less noise.
    scale : float
        Of the noise; found from the budget, or larger if stated.

    References
    ----------
    Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy", NeurIPS.

    Examples
    --------
    >>> import robfcp
    >>> privacy = robfcp.Privacy(epsilon=1.0)
    >>> privacy.mechanism, privacy.scale
    ('laplace', 2.0)
    >>> privacy.sensitivity
    (2.0, 1.4142135623730951)
    """

    epsilon: float
    delta: float = 0.0
    neighbors: Adjacency = "substitution"
    max_samples_per_patient: int = 1
    n_rounds: int = 1
    mechanism: Mechanism | Literal["auto"] = "auto"
    scale: float = 0.0

    def __post_init__(self) -> None:
        _check_fields(self)
        set_fields(
            self, epsilon=float(self.epsilon), delta=float(self.delta), scale=float(self.scale)
        )
        if self.mechanism == "auto":
            set_fields(self, mechanism=_mechanism_of_least_noise(self))

        min_scale = _min_scale(self, self.noise_name)
        if not self.scale:
            rounded_up = _ROUND_UP.create_decimal(str(float(min_scale)))
            set_fields(self, scale=float(rounded_up))
        elif self.scale < min_scale * (1 - LEEWAY):
            raise RobfcpError(
                f"privacy: noise of scale {self.scale:g} is too little for epsilon "
                f"{self.epsilon:g} and delta {self.delta:g}; {self.noise_name} needs "
                f"{min_scale:.6g}"
            )
        if not self.scale <= MAX_SCALE:
            raise RobfcpError(
                f"privacy: epsilon {self.epsilon:g} needs noise of scale {self.scale:.3g}, "
                f"beyond {MAX_SCALE:g}; raise epsilon"
            )

    @property
    def noise_name(self) -> Mechanism:
        """The mechanism in use."""
        return "gaussian" if self.mechanism == "gaussian" else "laplace"

    @property
    def noise(self) -> Noise:
        """The distribution of the noise on every count."""
        return Noise(self.noise_name, self.scale)

    def noise_for_counts(self, counts_per_sample: int) -> Noise:
        """Return the distribution of the noise where one sample has `counts_per_sample` counts.

        Parameters
        ----------
        counts_per_sample : int
            The counts of one sample: 1 in a histogram, the resolution of a loss.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Privacy(epsilon=1).noise_for_counts(360).scale
        720.0
        """
        return Noise(self.noise_name, self.scale * counts_per_sample)

    @property
    def sensitivity(self) -> tuple[float, float]:
        """How far one person moves the counts: L1 2s and L2 s sqrt 2, or s and s if add-remove."""
        s = self.max_samples_per_patient
        if self.neighbors == "substitution":
            return 2.0 * s, s * sqrt(2)
        return 1.0 * s, 1.0 * s

    @property
    def protects_sample_size(self) -> bool:
        """Whether n_k is protected too, and known to the server only if registered."""
        return self.neighbors == "add-remove"

    @property
    def pure_epsilon(self) -> float:
        """The epsilon of one report by itself if delta is 0; infinite for Gaussian noise."""
        if self.noise_name == "gaussian":
            return inf
        l1_sensitivity, _ = self.sensitivity
        return l1_sensitivity / self.scale

    @property
    def rho(self) -> float:
        """The zCDP of one report: pure^2 / 2, or L2^2 / (2 scale^2)."""
        if self.noise_name == "laplace":
            return self.pure_epsilon**2 / 2
        _, l2_sensitivity = self.sensitivity
        return l2_sensitivity**2 / (2 * self.scale**2)

    @property
    def statement(self) -> str:
        """The budget in words."""
        protected = "sample"
        if self.max_samples_per_patient > 1:
            protected = f"patient (at most {self.max_samples_per_patient} samples each)"
        change = "substituting" if self.neighbors == "substitution" else "adding or removing"
        rounds = "" if self.n_rounds == 1 else f" over {self.n_rounds} rounds"
        return (
            f"({self.epsilon:g}, {self.delta:g})-differentially private{rounds} under {change} one "
            f"{protected}, by discrete {self.noise_name} noise of scale {self.scale:g}"
        )


@dataclass(frozen=True)
class Accountant:
    """What a client's released reports spend together, by zCDP composition."""

    releases: tuple[Privacy, ...] = ()

    def spend(self, privacy: Privacy) -> Accountant:
        """Return the accountant with one more report; all must protect the same."""
        protected = (privacy.neighbors, privacy.max_samples_per_patient)
        for release in self.releases:
            if (release.neighbors, release.max_samples_per_patient) != protected:
                raise RobfcpError(
                    "privacy: budgets for different units cannot be added up; keep neighbors and "
                    "max_samples_per_patient the same in every round"
                )
        return replace(self, releases=(*self.releases, privacy))

    def epsilon(self, delta: float = 0.0) -> float:
        """Return the epsilon that all reports together keep to with this delta."""
        pure_epsilon = sum(privacy.pure_epsilon for privacy in self.releases)
        rho = sum(privacy.rho for privacy in self.releases)
        return min(pure_epsilon, zcdp_epsilon(rho, delta))

    def budget_exceeded_by(self, privacy: Privacy) -> Privacy | None:
        """Return the budget that one more report would exceed: its own, or an earlier one."""
        spent = self.spend(privacy)
        for budget in dict.fromkeys(spent.releases):
            if spent.epsilon(budget.delta) > budget.epsilon * (1 + LEEWAY):
                return budget
        return None


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the epsilon of a rho-zCDP release: Canonne, Kamath and Steinke 2020, proposition 7.

    min over a > 1 of a rho + (log(1/delta) + a log(1 - 1/a) - log(a - 1)) / (a - 1); any a, the
    order, gives a valid bound, so a fine lattice is sound.
    """
    if rho == 0:
        return 0.0
    if delta <= 0:
        return inf
    order = 1 + np.geomspace(1e-3, 1e9, 401) / (1 + rho)
    for _ in range(2):
        tail = -log(delta) + order * np.log1p(-1 / order) - np.log(order - 1)
        bound = order * rho + tail / (order - 1)
        best = int(np.argmin(bound))
        first, last = order[max(0, best - 1)], order[min(best + 1, order.size - 1)]
        order = np.linspace(first, last, 401)
    return max(0.0, float(bound.min()))


@lru_cache(maxsize=1024)
def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho whose epsilon at this delta is at most the given one, by bisection."""
    low = 0.0
    high = max(epsilon, 1e-300)
    while zcdp_epsilon(high, delta) <= epsilon:
        high *= 2
    for _ in range(48):
        midpoint = (low + high) / 2
        if zcdp_epsilon(midpoint, delta) <= epsilon:
            low = midpoint
        else:
            high = midpoint
    return low


def _check_fields(privacy: Privacy) -> None:
    """Refuse a budget with a field of the wrong type or out of its range."""

    def require(field: str, is_valid: bool, remedy: str) -> None:
        if not is_valid:
            raise RobfcpError(f"privacy: {field} is {getattr(privacy, field)!r}; {remedy}")

    is_epsilon = _is_in_range(privacy.epsilon, MIN_EPSILON, MAX_EPSILON)
    require("epsilon", is_epsilon, f"give a number from {MIN_EPSILON:g}, such as 1")
    is_probability = _is_in_range(privacy.delta, 0, nextafter(1, 0))
    require("delta", is_probability, "give 0 or a tiny chance such as 1e-6")
    is_adjacency = privacy.neighbors in get_args(Adjacency)
    require("neighbors", is_adjacency, "use substitution or add-remove")
    for field in ("max_samples_per_patient", "n_rounds"):
        is_count = _is_in_range(getattr(privacy, field), 1, MAX_COUNT, int)
        require(field, is_count, "give a whole number from 1")
    is_mechanism = privacy.mechanism in (*get_args(Mechanism), "auto")
    require("mechanism", is_mechanism, "use laplace or gaussian")
    is_scale = _is_in_range(privacy.scale, 0, nextafter(inf, 0))
    require("scale", is_scale, "leave it out")

    if privacy.mechanism == "gaussian" and privacy.delta == 0:
        raise RobfcpError("privacy: delta is 0, which Gaussian noise cannot give; state 1e-6, say")


def _is_in_range(value: Any, low: float, high: float, kind: type[Any] = Real) -> bool:
    """Return whether a value is a number of a kind from low to high."""
    return isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high


def _mechanism_of_least_noise(privacy: Privacy) -> Mechanism:
    """Return the mechanism whose noise keeps to the budget with the smallest variance."""
    noises = [Noise(mechanism, _min_scale(privacy, mechanism)) for mechanism in get_args(Mechanism)]
    return min(noises, key=lambda noise: noise.variance).mechanism


def _min_scale(privacy: Privacy, mechanism: Mechanism) -> float:
    """Return the smallest scale with which `rounds` reports keep to the budget together."""
    l1_sensitivity, l2_sensitivity = privacy.sensitivity
    rho = 0.0
    if privacy.delta:
        rho = zcdp_rho(privacy.epsilon, privacy.delta) / privacy.n_rounds
    if mechanism == "gaussian":
        return l2_sensitivity / sqrt(2 * rho) if rho else inf
    return l1_sensitivity / max(privacy.epsilon / privacy.n_rounds, sqrt(2 * rho))


_MIN_BINS = 8
_MAX_BINS = 256
_MAX_LOGISTIC_BINS = 10_000
_FACTOR = 0.4  # measured: bins that give the smallest sets, over (n sqrt(K) / sd)^(2/3)
_MAX_LOGIT = 7.0  # the logistic binning resolves scores from 0.1% to 99.9%
_RESOLVED_TAIL = 0.9  # of the fraction above the level, which a binning from a prior resolves


def parse_binning(text: str) -> Binning:
    """Return the binning that a configuration names.

    Parameters
    ----------
    text : str
        default, extended, open-ended, uniform:N or logistic:N.
    """
    if text in ("default", "extended", "open-ended"):
        return named_binning(text.replace("-", "_"), {})
    kind, _, n_bins = text.partition(":")
    if re.fullmatch("[0-9]{1,9}", n_bins):
        if kind == "uniform":
            return Binning.uniform(int(n_bins))
        if kind == "logistic":
            return logistic_binning(int(n_bins))
    names = "default, extended, open-ended, uniform:100 or logistic:32"
    raise RobfcpError(f"binning: {text!r} is unknown; use {names}")


def logistic_binning(bins: int) -> Binning:
    """Return `bins` bins on [0, 1], evenly spaced in log p/(1 - p) between 0.1% and 99.9%."""
    if not _MIN_BINS <= bins <= _MAX_LOGISTIC_BINS:
        raise RobfcpError(f"binning: a logistic binning has {_MIN_BINS} to 10000 bins, not {bins}")
    logits = np.linspace(-_MAX_LOGIT, _MAX_LOGIT, bins - 1)
    inner_edges = [float(f"{edge:.8g}") for edge in 1 / (1 + np.exp(-logits))]
    return Binning(np.array([0.0, *inner_edges, 1.0]))


def recommend_binning(
    privacy: Privacy | float,
    n_samples: int,
    n_clients: int,
    *,
    prior: ArrayLike | None = None,
    confidence_level: float = 0.9,
) -> Binning:
    """Return a binning for a private round; all clients must use the same one.

    Parameters
    ----------
    privacy : Privacy or float
        What the reports will have, or just epsilon (one round, single samples).
    n_samples : int
        About how many samples a client has.
    n_clients : int
        About how many clients there are.
    prior : array_like, optional
        Scores that need no protection (public data, a simulation). The binning then follows their
        quantiles, half of its bins around those at and above the wanted level. Without a prior it
        is logistic, for scores in [0, 1].
    confidence_level : float
        The wanted level, for binnings from a prior.

    Returns
    -------
    Binning
        Of 8 to 256 bins.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.recommend_binning(1.0, n_samples=100, n_clients=20).n_bins
    12
    >>> robfcp.recommend_binning(1.0, n_samples=10_000, n_clients=20).n_bins
    254
    """
    if n_samples < 1 or n_clients < 1:
        raise RobfcpError(
            "n_samples, n_clients: are not integers from 1; give for example 500 and 20"
        )
    budget = privacy if isinstance(privacy, Privacy) else Privacy(privacy)
    n_bins = _recommended_n_bins(budget, n_samples, n_clients)
    if prior is None:
        return logistic_binning(n_bins)

    scores = np.asarray(prior, dtype=np.float64)
    if scores.ndim != 1 or scores.size < n_bins or not np.isfinite(scores).all():
        raise RobfcpError(f"prior: needs at least {n_bins} finite scores in a vector; pass more")
    if not 0 < confidence_level < 1:
        raise RobfcpError(f"confidence_level: {confidence_level} is not between 0 and 1")
    return _binning_of_prior(scores, n_bins, confidence_level)


def _recommended_n_bins(privacy: Privacy, n_samples: int, n_clients: int) -> int:
    """Return 0.4 (n sqrt(K) / sd)^(2/3) bins, with sd the deviation of the noise on one count.

    So many balance noise against rounding.
    """
    variance = max(privacy.noise.variance, 1e-12)
    signal_to_noise = n_samples * np.sqrt(n_clients / variance)
    n_bins = round(_FACTOR * float(signal_to_noise) ** (2 / 3))
    return int(np.clip(n_bins, _MIN_BINS, _MAX_BINS))


def _binning_of_prior(scores: FloatArray, n_bins: int, level: float) -> Binning:
    """Return bins between quantiles of scores, half of them around those at and above a level."""
    n_below = n_bins // 2
    cumulative = np.arange(1, n_below + 1) / (n_below + 1) * level
    tail = np.linspace(0.02, _RESOLVED_TAIL, n_bins - 1 - n_below)
    above = level + (1 - level) * tail
    inner_edges = np.quantile(scores, np.concatenate([cumulative, above]))

    low, high = -np.inf, np.inf
    if scores.min() >= 0 and scores.max() <= 1:
        low, high = 0.0, 1.0
    return Binning(np.unique(np.concatenate([[low], inner_edges, [high]])))
