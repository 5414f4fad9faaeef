"""Privacy noise: its distributions, its draws and the exact tail of its sums.

Draws come from OpenDP (extra: privacy), whose samplers are exact; everything else works without it,
so that a server needs nothing installed to read private reports.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from robfcp._typing import FloatArray, IntArray
from robfcp.errors import RobfcpError

if TYPE_CHECKING:
    from robfcp.privacy._budget import Privacy

Mechanism = Literal["laplace", "gaussian"]
Terms = tuple[tuple["Noise", int], ...]  # distributions, and how many independent draws of each

LEEWAY = 1e-9  # relative; what rounding may add to a budget
_NEGLIGIBLE = 1e-17  # of a characteristic function: smaller values do not change a sum
_MAX_EXACT_VALUES = 2**21  # that a sum may take for its tail to be exact: beyond, it is bounded
_ROUNDING = 1e-13  # more than the sums below lose; taken off the allowed probability


@dataclass(frozen=True, order=True)
class Noise:
    """Integer noise: P(x) proportional to exp(-|x|/scale) or to exp(-x^2 / (2 scale^2))."""

    mechanism: Mechanism
    scale: float

    @property
    def _ratio(self) -> float:
        """exp(-1/scale): what a step away from 0 takes off a Laplace probability."""
        return float(np.exp(-1 / self.scale))

    @property
    def is_negligible(self) -> bool:
        """Whether draws differ from 0 with a probability too small for a float: huge epsilons."""
        power = 1.0 if self.mechanism == "laplace" else 0.5 / self.scale
        return bool(np.exp(-power / self.scale) == 0)

    @property
    def variance(self) -> float:
        """2a/(1-a)^2 with a = exp(-1/scale) for Laplace; scale^2 for all but tiny Gaussians."""
        if self.mechanism == "laplace":
            return float(2 * self._ratio / (1 - self._ratio) ** 2)
        if self.scale > 4:
            return self.scale**2
        return float(self.mass(60) @ np.arange(-60, 61) ** 2)

    def mass(self, reach: int) -> FloatArray:
        """Return (2 reach + 1,) the probabilities of -reach..reach."""
        distances = np.abs(np.arange(-reach, reach + 1))
        if self.mechanism == "laplace":
            return np.asarray(np.tanh(0.5 / self.scale) * np.exp(-distances / self.scale))
        radius = _support_radius(self.scale)
        support = np.arange(-radius, radius + 1)
        weights = np.exp(-0.5 * (distances / self.scale) ** 2)
        all_weights = np.exp(-0.5 * (support / self.scale) ** 2)
        return np.asarray(weights / all_weights.sum())

    def characteristic(self, angles: FloatArray) -> FloatArray:
        """Return E exp(i angle X) on [0, pi], real because the noise is symmetric."""
        if self.mechanism == "laplace":
            twice_variance = 4 * self._ratio / (1 - self._ratio) ** 2
            return np.asarray(1 / (1 + twice_variance * np.sin(angles / 2) ** 2))
        if self.scale < 1:
            radius = _support_radius(self.scale)
            cosines = np.cos(np.outer(angles, np.arange(-radius, radius + 1)))
            return np.asarray(cosines @ self.mass(radius))

        # Poisson's summation formula: a sum of few shifted Gaussians in place of many cosines.
        shifts = 2 * np.pi * np.arange(-2, 3)[:, None]
        sums = np.exp(-0.5 * (self.scale * (angles - shifts)) ** 2).sum(axis=0)
        sum_at_zero = np.exp(-0.5 * (self.scale * shifts) ** 2).sum()
        return np.asarray(sums / sum_at_zero)


def _support_radius(scale: float) -> int:
    """Return where a Gaussian of this scale has nothing left."""
    return int(40 * scale) + 10


def upper_tail(terms: Terms, value: int) -> float:
    """Return P(sum >= value) for value >= 1, exact up to 1e-13.

    (1 - P(|X| < a))/2, P(|X| < a) the inverse transform of the product of the characteristic
    functions against the Dirichlet kernel sin((a - 1/2) w)/sin(w/2), on a lattice of angles so
    fine that what it folds back lies beyond every value the sum can take.
    """
    if value > _sum_support_radius(terms):
        return 0.0
    step, angles, characteristic = _characteristic_function(terms)
    kernel = np.sin((value - 0.5) * angles) / np.sin(angles / 2)
    integral = step / np.pi * (value - 0.5 + float(characteristic @ kernel))
    return 0.5 * (1 - integral)


@lru_cache(maxsize=4096)
def noise_bound(terms: Terms, tail_probability: float) -> int:
    """Return the least b >= 0 with P(sum > b) <= chance; the same bound holds for P(-sum > b).

    Also a bound for the sum of any part of the terms: adding symmetric noise to symmetric noise
    that fades away from 0 never makes its tail lighter.
    """
    terms = tuple((noise, n_draws) for noise, n_draws in terms if n_draws)
    if not terms:
        return 0
    noise, n_draws = terms[0]
    if len(terms) == 1 and n_draws == 1 and noise.mechanism == "laplace":
        # of one Laplace draw P(X > b) = a^(b + 1)/(1 + a)
        return max(0, ceil(-noise.scale * log(tail_probability * (1 + noise._ratio))) - 1)

    radius = _sum_support_radius(terms)
    if radius > _MAX_EXACT_VALUES:
        return _chernoff_bound(terms, tail_probability)
    allowed = tail_probability - _ROUNDING
    return bisect_left(range(radius), True, key=lambda b: upper_tail(terms, b + 1) <= allowed)


def _chernoff_bound(terms: Terms, tail_probability: float) -> int:
    """Return min over t of (log E exp(t sum) + log(1/chance)) / t, rounded up: a bound for any t.

    log E exp(tX) is log (1 - a)^2 / ((1 - a e^t)(1 - a e^-t)) for Laplace, at most t^2 scale^2 / 2
    for the discrete Gaussian.
    """
    t = np.geomspace(1e-9, 1 - 1e-9, 999) / max(noise.scale for noise, _ in terms)
    exponent: FloatArray = np.full(len(t), -log(tail_probability))
    for noise, n_draws in terms:
        if noise.mechanism == "laplace":
            numerator = 2 * np.log(-np.expm1(-1 / noise.scale))
            denominator = -np.expm1(t - 1 / noise.scale) * -np.expm1(-t - 1 / noise.scale)
            exponent += n_draws * (numerator - np.log(denominator))
        else:
            exponent += n_draws * (t * noise.scale) ** 2 / 2
    return ceil(float((exponent / t).min()) * (1 + 1e-9))


def _sum_support_radius(terms: Terms) -> int:
    """Return a value that the sum exceeds with probability below 1e-16.

    It is far more than nine deviations away.
    """
    variance = sum(n_draws * noise.variance for noise, n_draws in terms)
    deviation = float(np.sqrt(variance))
    largest_scale = max(noise.scale for noise, _ in terms)
    return int(9 * deviation + 38 * largest_scale) + 10


@lru_cache(maxsize=8)
def _characteristic_function(terms: Terms) -> tuple[float, FloatArray, FloatArray]:
    """Return the step, the angles and the characteristic function of the sum, as far as it matters.

    On multiples of the step up to pi, until the function is negligible.
    """
    period = 2 * _sum_support_radius(terms) + 1
    step = 2 * np.pi / period

    def is_negligible(multiple: int) -> bool:
        angle = step * np.array([multiple])
        return bool(_product_of_characteristics(terms, angle)[0] < _NEGLIGIBLE)

    multiples = range((period - 1) // 2)
    n_angles = bisect_left(multiples, True, key=is_negligible)
    angles: FloatArray = step * np.arange(1, n_angles + 1, dtype=np.float64)
    return step, angles, _product_of_characteristics(terms, angles)


def _product_of_characteristics(terms: Terms, angles: FloatArray) -> FloatArray:
    """Return the characteristic function of a sum of independent draws."""
    logs = [
        n_draws * np.log(np.maximum(noise.characteristic(angles), 1e-300))
        for noise, n_draws in terms
    ]
    return np.asarray(np.exp(sum(logs)))


def add_noise(counts: IntArray, privacy: Privacy | None, counts_per_sample: int = 1) -> IntArray:
    """Return the counts with fresh noise from OpenDP, whose own bound on the budget is checked.

    Parameters
    ----------
    counts : ndarray of int
        The counts.
    privacy : Privacy or None
        The budget; None adds nothing.
    counts_per_sample : int, default=1
        How many counts one sample has: 1 in a histogram, the resolution of a loss.
    """
    if privacy is None:
        return counts
    dp = opendp_parts()
    l1_sensitivity, l2_sensitivity = privacy.sensitivity
    scale = privacy.noise_for_counts(counts_per_sample).scale
    domain = dp.domains.vector_domain(dp.domains.atom_domain(T=dp.typing.i64))
    if privacy.noise_name == "laplace":
        distance = dp.metrics.l1_distance(T=dp.typing.i64)
        measurement = dp.measurements.make_laplace(domain, distance, scale=scale)
        spent = measurement.map(int(counts_per_sample * l1_sensitivity))
        allowed = privacy.pure_epsilon
    else:
        distance = dp.metrics.l2_distance(T=float)
        measurement = dp.measurements.make_gaussian(domain, distance, scale=scale)
        spent = measurement.map(counts_per_sample * l2_sensitivity)
        allowed = privacy.rho
    if spent > allowed * (1 + LEEWAY):
        raise RobfcpError(f"privacy: OpenDP accounts {spent} for one report; raise epsilon")
    return np.array(measurement(counts.tolist()), dtype=np.int64)


def opendp_parts() -> Any:
    """Return OpenDP with the modules that noise needs.

    Its prelude would load scikit-learn and polars too.
    """
    try:
        import opendp
        from opendp import domains, measurements, metrics, mod, typing  # noqa: F401
    except ImportError:
        missing = "privacy: noise comes from OpenDP; pip install 'robfcp[privacy]'"
        raise RobfcpError(missing) from None
    opendp.mod.enable_features("contrib")
    return opendp
