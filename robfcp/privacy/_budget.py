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
from msgspec.structs import force_setattr
from numpy.typing import ArrayLike

from robfcp.binning import Binning, named_binning
from robfcp.errors import RobfcpError
from robfcp.privacy._noise import LEEWAY, Mechanism, Noise

Adjacency = Literal["substitution", "add-remove"]
MAX_SCALE = 1e5
MIN_EPSILON = 1e-9
MAX_EPSILON = 1e6
_ROUND_UP = Context(prec=7, rounding=ROUND_CEILING)  # so that all platforms state the same scale
_WHOLE = "give a whole number from 1"


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Noise on every count of a report so that it is (epsilon, delta)-differentially private.

    Parameters
    ----------
    epsilon
        The budget; smaller is more private.
    delta
        The chance of exceeding it; Gaussian noise needs one above 0.
    neighbours
        "substitution" protects what a sample is and leaves n_k public; "add-remove" protects that
        it is there at all, so that n_k is not sent either.
    samples_per_patient
        The stated most samples of one person; all of them are then protected together. 1 protects
        single samples.
    rounds
        The number of reports that share (epsilon, delta); each gets its part.
    mechanism
        "laplace", "gaussian", or "auto" for whichever needs less noise.
    scale
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
    neighbours: Adjacency = "substitution"
    samples_per_patient: int = 1
    rounds: int = 1
    mechanism: Mechanism | Literal["auto"] = "auto"
    scale: float = 0.0

    def __post_init__(self) -> None:
        _check(self)
        for field in ("epsilon", "delta", "scale"):
            force_setattr(self, field, float(getattr(self, field)))
        if self.mechanism == "auto":
            laws = [Noise(name, _min_scale(self, name)) for name in get_args(Mechanism)]
            force_setattr(self, "mechanism", min(laws, key=lambda law: law.variance).mechanism)
        needed = _min_scale(self, self.noise_name)
        if not self.scale:
            force_setattr(self, "scale", float(_ROUND_UP.create_decimal(str(float(needed)))))
        elif self.scale < needed * (1 - LEEWAY):
            raise RobfcpError(
                f"privacy: noise of scale {self.scale:g} is too little for epsilon "
                f"{self.epsilon:g} and delta {self.delta:g}; {self.noise_name} needs {needed:.6g}"
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
        """The law of the noise on every count."""
        return Noise(self.noise_name, self.scale)

    def noise_for_counts(self, unit: int) -> Noise:
        """The law of the noise on counts of which one sample has `unit` instead of one.

        Parameters
        ----------
        unit
            The counts of one sample: 1 in a histogram, the resolution of a loss.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Privacy(epsilon=1).noise_for_counts(360).scale
        720.0
        """
        return Noise(self.noise_name, self.scale * unit)

    @property
    def sensitivity(self) -> tuple[float, float]:
        """How far one person moves the counts: L1 2s and L2 s sqrt 2, or s and s if add-remove."""
        s = self.samples_per_patient
        return (2.0 * s, s * sqrt(2)) if self.neighbours == "substitution" else (1.0 * s, 1.0 * s)

    @property
    def protects_sample_size(self) -> bool:
        """Whether n_k is protected too, and known to the server only if registered."""
        return self.neighbours == "add-remove"

    @property
    def pure_epsilon(self) -> float:
        """The epsilon of one report by itself if delta is 0; infinite for Gaussian noise."""
        return self.sensitivity[0] / self.scale if self.noise_name == "laplace" else inf

    @property
    def rho(self) -> float:
        """The zCDP of one report: pure^2 / 2, or L2^2 / (2 scale^2)."""
        if self.noise_name == "laplace":
            return self.pure_epsilon**2 / 2
        return self.sensitivity[1] ** 2 / (2 * self.scale**2)

    @property
    def statement(self) -> str:
        """The budget in words."""
        who = "sample" if self.samples_per_patient == 1 else "patient"
        detail = "" if who == "sample" else f" (at most {self.samples_per_patient} samples each)"
        what = "substituting" if self.neighbours == "substitution" else "adding or removing"
        spread = "" if self.rounds == 1 else f" over {self.rounds} rounds"
        return (
            f"({self.epsilon:g}, {self.delta:g})-differentially private{spread} under {what} one "
            f"{who}{detail}, by discrete {self.noise_name} noise of scale {self.scale:g}"
        )


@dataclass(frozen=True)
class Accountant:
    """What a client's released reports spend together, by zCDP composition."""

    releases: tuple[Privacy, ...] = ()

    def spend(self, privacy: Privacy) -> Accountant:
        """With one more report; all must protect the same unit."""
        for before in self.releases:
            unit = (before.neighbours, before.samples_per_patient)
            if unit != (privacy.neighbours, privacy.samples_per_patient):
                raise RobfcpError(
                    "privacy: budgets for different units cannot be added up; keep neighbours and "
                    "samples_per_patient the same in every round"
                )
        return replace(self, releases=(*self.releases, privacy))

    def epsilon(self, delta: float = 0.0) -> float:
        """The epsilon that all reports together keep to with this delta."""
        pure_epsilon = sum(privacy.pure_epsilon for privacy in self.releases)
        rho = sum(privacy.rho for privacy in self.releases)
        return min(pure_epsilon, zcdp_epsilon(rho, delta))

    def budget_exceeded_by(self, privacy: Privacy) -> Privacy | None:
        """The budget that one more report would exceed: its own, or one stated before."""
        spent = self.spend(privacy)
        for one in dict.fromkeys(spent.releases):
            if spent.epsilon(one.delta) > one.epsilon * (1 + LEEWAY):
                return one
        return None


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The epsilon of a rho-zCDP release: Canonne, Kamath and Steinke 2020, proposition 7.

    min over a > 1 of a rho + (log(1/delta) + a log(1 - 1/a) - log(a - 1)) / (a - 1); any a gives a
    valid bound, so a fine lattice is sound.
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
    """The largest rho whose epsilon at this delta is at most the stated one."""
    low, high = 0.0, max(epsilon, 1e-300)
    while zcdp_epsilon(high, delta) <= epsilon:
        high *= 2
    for _ in range(48):
        middle = (low + high) / 2
        low, high = (middle, high) if zcdp_epsilon(middle, delta) <= epsilon else (low, middle)
    return low


def _check(p: Privacy) -> None:
    def within(value: Any, low: float, high: float, kind: type[Any] = Real) -> bool:
        return isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high

    least = f"give a number from {MIN_EPSILON:g}, such as 1"
    right = {
        "epsilon": (within(p.epsilon, MIN_EPSILON, MAX_EPSILON), least),
        "delta": (within(p.delta, 0, nextafter(1, 0)), "give 0 or a tiny chance such as 1e-6"),
        "neighbours": (p.neighbours in get_args(Adjacency), "use substitution or add-remove"),
        "samples_per_patient": (within(p.samples_per_patient, 1, 2**31, int), _WHOLE),
        "rounds": (within(p.rounds, 1, 2**31, int), _WHOLE),
        "mechanism": (p.mechanism in (*get_args(Mechanism), "auto"), "use laplace or gaussian"),
        "scale": (within(p.scale, 0, nextafter(inf, 0)), "leave it out"),
    }
    for field, (holds, remedy) in right.items():
        if not holds:
            raise RobfcpError(f"privacy: {field} is {getattr(p, field)!r}; {remedy}")
    if p.mechanism == "gaussian" and p.delta == 0:
        raise RobfcpError("privacy: delta is 0, which Gaussian noise cannot give; state 1e-6, say")


def _min_scale(privacy: Privacy, mechanism: Mechanism) -> float:
    """The smallest scale with which `rounds` reports keep to the budget together."""
    l1, l2 = privacy.sensitivity
    rho = zcdp_rho(privacy.epsilon, privacy.delta) / privacy.rounds if privacy.delta else 0.0
    if mechanism == "gaussian":
        return l2 / sqrt(2 * rho) if rho else inf
    return l1 / max(privacy.epsilon / privacy.rounds, sqrt(2 * rho))


_MIN_BINS, _MAX_BINS = 8, 256
_FACTOR = 0.4  # measured: bins that give the smallest sets, over (n sqrt(K) / sd)^(2/3)
_LOGITS = 7.0  # the logistic grid resolves scores from 0.1% to 99.9%
_ABOVE = 0.9  # of the share beyond the level that a grid from a prior still resolves


def parse_binning(text: str) -> Binning:
    """The grid a configuration names: default, extended, open-ended, uniform:N or logistic:N."""
    kind, _, bins = text.partition(":")
    if text in ("default", "extended", "open-ended"):
        return named_binning(text.replace("-", "_"), {})
    if kind in ("uniform", "logistic") and re.fullmatch("[0-9]{1,9}", bins):
        return Binning.uniform(int(bins)) if kind == "uniform" else logistic_binning(int(bins))
    known = "default, extended, open-ended, uniform:100 or logistic:32"
    raise RobfcpError(f"grid: {text!r} is unknown; use {known}")


def logistic_binning(bins: int) -> Binning:
    """`bins` bins on [0, 1], evenly spaced in log p/(1 - p) between 0.1% and 99.9%."""
    if not _MIN_BINS <= bins <= 10_000:
        raise RobfcpError(f"grid: a logistic grid has {_MIN_BINS} to 10000 bins, not {bins}")
    inner = 1 / (1 + np.exp(-np.linspace(-_LOGITS, _LOGITS, bins - 1)))
    return Binning(np.array([0.0, *(float(f"{edge:.8g}") for edge in inner), 1.0]))


def recommend_binning(
    privacy: Privacy | float,
    n_samples: int,
    n_clients: int,
    *,
    prior: ArrayLike | None = None,
    confidence_level: float = 0.9,
) -> Binning:
    """A grid for a private round of about n_samples a client; all clients must use the same one.

    Parameters
    ----------
    privacy
        What the reports will have, or just epsilon (one round, single samples).
    n_samples
        About how many samples a client has.
    n_clients
        About how many clients there are.
    prior
        Scores that need no protection (public data, a simulation). The grid then follows their
        quantiles, half of its bins around those at and above the wanted level. Without a prior it
        is logistic, for scores in [0, 1].
    confidence_level
        The wanted level, for grids from a prior.

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
        raise RobfcpError("grid: n_samples and n_clients are numbers from 1")
    stated = privacy if isinstance(privacy, Privacy) else Privacy(privacy)
    # 0.4 (n sqrt(K) / sd)^(2/3), sd the noise on one count, balances noise against rounding
    ratio = n_samples * np.sqrt(n_clients / max(stated.noise.variance, 1e-12))
    bins = int(np.clip(round(_FACTOR * float(ratio) ** (2 / 3)), _MIN_BINS, _MAX_BINS))
    if prior is None:
        return logistic_binning(bins)
    scores = np.asarray(prior, dtype=np.float64)
    if scores.ndim != 1 or scores.size < bins or not np.isfinite(scores).all():
        raise RobfcpError(f"grid: a prior needs at least {bins} finite scores in a vector")
    if not 0 < confidence_level < 1:
        raise RobfcpError(f"confidence_level: {confidence_level} is not between 0 and 1")
    body = np.arange(1, bins // 2 + 1) / (bins // 2 + 1) * confidence_level
    beyond = np.linspace(0.02, _ABOVE, bins - 1 - len(body))
    levels = np.concatenate([body, confidence_level + (1 - confidence_level) * beyond])
    inner = np.quantile(scores, levels)
    ends = (0.0, 1.0) if scores.min() >= 0 and scores.max() <= 1 else (-np.inf, np.inf)
    return Binning(np.unique(np.concatenate([[ends[0]], inner, [ends[1]]])))
