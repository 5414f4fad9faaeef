"""The laws of privacy noise and the exact tail of their sums: numpy only, nothing is drawn here."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Mechanism = Literal["laplace", "gaussian"]
Array = NDArray[np.float64]
Terms = tuple[tuple["Noise", int], ...]  # how many independent draws of which law

_NEGLIGIBLE = 1e-17
_EXACT = 2**21  # values a sum may take for its tail to be exact: beyond, a bound takes its place
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
    def never_moves(self) -> bool:
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
        wide = np.arange(-_wide(self.scale), _wide(self.scale) + 1)
        weights, every = (np.exp(-0.5 * (one / self.scale) ** 2) for one in (x, wide))
        return np.asarray(weights / every.sum())

    def characteristic(self, angles: Array) -> Array:
        """E exp(i angle X) on [0, pi], real because the noise is symmetric."""
        if self.mechanism == "laplace":
            spread = 4 * self._ratio / (1 - self._ratio) ** 2
            return np.asarray(1 / (1 + spread * np.sin(angles / 2) ** 2))
        if self.scale < 1:
            reach = _wide(self.scale)
            waves = np.cos(np.outer(angles, np.arange(-reach, reach + 1)))
            return np.asarray(waves @ self.mass(reach))
        shifts = 2 * np.pi * np.arange(-2, 3)[:, None]
        waves = np.exp(-0.5 * (self.scale * (angles - shifts)) ** 2).sum(axis=0)
        return np.asarray(waves / np.exp(-0.5 * (self.scale * shifts) ** 2).sum())


def _wide(scale: float) -> int:
    """Where a Gaussian of this scale has nothing left."""
    return int(40 * scale) + 10


def upper_tail(terms: Terms, value: int) -> float:
    """P(sum >= value) for value >= 1, exact up to 1e-13.

    (1 - P(|X| < a))/2, P(|X| < a) the inverse transform of the product of the characteristic
    functions against the Dirichlet kernel sin((a - 1/2) w)/sin(w/2), on a lattice of angles so
    fine that what it folds back lies beyond every value the sum can take.
    """
    if value > _reach(terms):
        return 0.0
    step, angles, product = _transform(terms)
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
    most, allowed = _reach(terms), chance - _ROUNDING
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


def _reach(terms: Terms) -> int:
    """A value that the sum exceeds with chance below 1e-16: far more than nine deviations."""
    deviation = float(np.sqrt(sum(number * noise.variance for noise, number in terms)))
    return int(9 * deviation + 38 * max(noise.scale for noise, _ in terms)) + 10


@lru_cache(maxsize=8)
def _transform(terms: Terms) -> tuple[float, Array, Array]:
    """The step, the angles and the characteristic function of the sum, as far as it matters."""

    def product(angles: Array) -> Array:
        logs = [n * np.log(np.maximum(one.characteristic(angles), 1e-300)) for one, n in terms]
        return np.asarray(np.exp(sum(logs)))

    period = 2 * _reach(terms) + 1
    step = 2 * np.pi / period
    every = range((period - 1) // 2)
    last = bisect_left(every, True, key=lambda k: product(step * np.array([k]))[0] < _NEGLIGIBLE)
    angles: Array = step * np.arange(1, last + 1, dtype=np.float64)
    return step, angles, product(angles)
