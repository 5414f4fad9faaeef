"""Privacy noise: its laws, its draws and the exact tail of its sums.

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
from numpy.typing import NDArray

from robfcp.errors import RobfcpError

if TYPE_CHECKING:
    from robfcp.privacy._budget import Privacy

Mechanism = Literal["laplace", "gaussian"]
Array = NDArray[np.float64]
Terms = tuple[tuple["Noise", int], ...]  # how many independent draws of which law

_NEGLIGIBLE = 1e-17
_EXACT = 2**21  # values a sum may take for its tail to be exact: beyond, a bound takes its place
LEEWAY = 1e-9  # relative; what rounding may add to a budget
_ROUNDING = 1e-13  # more than the sums below lose; taken off the allowed chance


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
        """Whether a draw is 0 but for a chance too small for a float: a huge epsilon's noise."""
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

    def mass(self, reach: int) -> Array:
        """(2 reach + 1,) probabilities of -reach..reach."""
        x = np.abs(np.arange(-reach, reach + 1))
        if self.mechanism == "laplace":
            return np.asarray(np.tanh(0.5 / self.scale) * np.exp(-x / self.scale))
        wide = np.arange(-_support_radius(self.scale), _support_radius(self.scale) + 1)
        weights, every = (np.exp(-0.5 * (one / self.scale) ** 2) for one in (x, wide))
        return np.asarray(weights / every.sum())

    def characteristic(self, angles: Array) -> Array:
        """E exp(i angle X) on [0, pi], real because the noise is symmetric."""
        if self.mechanism == "laplace":
            spread = 4 * self._ratio / (1 - self._ratio) ** 2
            return np.asarray(1 / (1 + spread * np.sin(angles / 2) ** 2))
        if self.scale < 1:
            reach = _support_radius(self.scale)
            waves = np.cos(np.outer(angles, np.arange(-reach, reach + 1)))
            return np.asarray(waves @ self.mass(reach))
        shifts = 2 * np.pi * np.arange(-2, 3)[:, None]
        waves = np.exp(-0.5 * (self.scale * (angles - shifts)) ** 2).sum(axis=0)
        return np.asarray(waves / np.exp(-0.5 * (self.scale * shifts) ** 2).sum())


def _support_radius(scale: float) -> int:
    """Where a Gaussian of this scale has nothing left."""
    return int(40 * scale) + 10


def upper_tail(terms: Terms, value: int) -> float:
    """P(sum >= value) for value >= 1, exact up to 1e-13.

    (1 - P(|X| < a))/2, P(|X| < a) the inverse transform of the product of the characteristic
    functions against the Dirichlet kernel sin((a - 1/2) w)/sin(w/2), on a lattice of angles so
    fine that what it folds back lies beyond every value the sum can take.
    """
    if value > _sum_support_radius(terms):
        return 0.0
    step, angles, product = _characteristic_function(terms)
    kernel = product @ (np.sin((value - 0.5) * angles) / np.sin(angles / 2))
    return 0.5 * (1 - step / np.pi * (value - 0.5 + float(kernel)))


@lru_cache(maxsize=4096)
def noise_bound(terms: Terms, chance: float) -> int:
    """The least b >= 0 with P(sum > b) <= chance; the same bound holds for P(-sum > b).

    Also a bound for the sum of any part of the terms: adding symmetric noise to symmetric noise
    that fades away from 0 never makes its tail lighter.
    """
    terms = tuple((noise, number) for noise, number in terms if number)
    if not terms:
        return 0
    noise, number = terms[0]
    if len(terms) == number == 1 and noise.mechanism == "laplace":
        # of one Laplace draw P(X > b) = a^(b + 1)/(1 + a)
        return max(0, ceil(-noise.scale * log(chance * (1 + noise._ratio))) - 1)
    most, allowed = _sum_support_radius(terms), chance - _ROUNDING
    if most > _EXACT:
        return _chernoff(terms, chance)
    return bisect_left(range(most), True, key=lambda b: upper_tail(terms, b + 1) <= allowed)


def _chernoff(terms: Terms, chance: float) -> int:
    """min over t of (log E exp(t sum) + log(1/chance)) / t, rounded up: a bound for any t.

    log E exp(tX) is log (1 - a)^2 / ((1 - a e^t)(1 - a e^-t)) for Laplace, at most t^2 scale^2 / 2
    for the discrete Gaussian.
    """
    t = np.geomspace(1e-9, 1 - 1e-9, 999) / max(noise.scale for noise, _ in terms)
    exponent: Array = np.full(len(t), -log(chance))
    for noise, number in terms:
        if noise.mechanism == "laplace":
            inside = -np.expm1(t - 1 / noise.scale) * -np.expm1(-t - 1 / noise.scale)
            exponent += number * (2 * np.log(-np.expm1(-1 / noise.scale)) - np.log(inside))
        else:
            exponent += number * (t * noise.scale) ** 2 / 2
    return ceil(float((exponent / t).min()) * (1 + 1e-9))


def _sum_support_radius(terms: Terms) -> int:
    """A value that the sum exceeds with chance below 1e-16: far more than nine deviations."""
    deviation = float(np.sqrt(sum(number * noise.variance for noise, number in terms)))
    return int(9 * deviation + 38 * max(noise.scale for noise, _ in terms)) + 10


@lru_cache(maxsize=8)
def _characteristic_function(terms: Terms) -> tuple[float, Array, Array]:
    """The step, the angles and the characteristic function of the sum, as far as it matters."""

    def product(angles: Array) -> Array:
        logs = [n * np.log(np.maximum(one.characteristic(angles), 1e-300)) for one, n in terms]
        return np.asarray(np.exp(sum(logs)))

    period = 2 * _sum_support_radius(terms) + 1
    step = 2 * np.pi / period
    every = range((period - 1) // 2)
    last = bisect_left(every, True, key=lambda k: product(step * np.array([k]))[0] < _NEGLIGIBLE)
    angles: Array = step * np.arange(1, last + 1, dtype=np.float64)
    return step, angles, product(angles)


def add_noise(
    counts: NDArray[np.int64], privacy: Privacy | None, unit: int = 1
) -> NDArray[np.int64]:
    """The counts with fresh noise from OpenDP, whose own bound on the budget is checked first.

    `unit` is how many counts one sample has: 1 in a histogram, the resolution of a loss.
    """
    if privacy is None:
        return counts
    dp = opendp_parts()
    l1, l2 = (unit * distance for distance in privacy.sensitivity)
    scale = privacy.noise_for_counts(unit).scale
    domain = dp.domains.vector_domain(dp.domains.atom_domain(T=dp.typing.i64))
    if privacy.noise_name == "laplace":
        distance = dp.metrics.l1_distance(T=dp.typing.i64)
        measurement = dp.measurements.make_laplace(domain, distance, scale=scale)
        spent, allowed = measurement.map(int(l1)), privacy.pure_epsilon
    else:
        distance = dp.metrics.l2_distance(T=float)
        measurement = dp.measurements.make_gaussian(domain, distance, scale=scale)
        spent, allowed = measurement.map(l2), privacy.rho
    if spent > allowed * (1 + LEEWAY):
        raise RobfcpError(f"privacy: OpenDP accounts {spent} for one report; raise epsilon")
    return np.array(measurement(counts.tolist()), dtype=np.int64)


def opendp_parts() -> Any:
    """The parts of OpenDP that noise needs; its prelude would load scikit-learn and polars too."""
    try:
        import opendp
        from opendp import domains, measurements, metrics, mod, typing  # noqa: F401
    except ImportError:
        missing = "privacy: noise comes from OpenDP; pip install 'robfcp[privacy]'"
        raise RobfcpError(missing) from None
    opendp.mod.enable_features("contrib")
    return opendp
