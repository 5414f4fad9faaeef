"""The exact tail of a binomial count with privacy noise: what a client's count may convince of."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from robfcp.privacy.noise import Noise

_NEGLIGIBLE = 1e-17

OwnNoise = tuple[Noise, int, int]  # law, draws, half counts a unit


@lru_cache(maxsize=65536)
def least_noisy_count(
    size: int, probability: float, gamma: float, noise: OwnNoise | None
) -> tuple[int, float]:
    """The least number of half counts h with P(2 Bin + step noise >= h) <= gamma, and that chance.

    Bin(size, probability) successes; noise is (law, draws, step), step half counts a unit.
    """
    if noise is None or not noise[1]:
        return _least_count(size, probability, gamma)
    law, draws, step = noise
    tail = NoisyBinomial(size, probability, law, draws, 2 // step)
    low, high = tail.first, tail.last + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if tail.upper(middle) <= gamma else (middle + 1, high)
    return step * low, tail.upper(low)


def _least_count(size: int, probability: float, gamma: float) -> tuple[int, float]:
    """The same without noise, still in half counts."""
    from scipy.special import betainc

    def tail(count: int) -> float:
        if count > size:
            return 0.0
        return float(betainc(count, size - count + 1, probability)) if count > 0 else 1.0

    low, high = 0, size + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if tail(middle) <= gamma else (middle + 1, high)
    return 2 * low, tail(low)


class NoisyBinomial:
    """`every` Bin(size, p) + noise, on the whole numbers first..last that it does not leave."""

    def __init__(self, size: int, probability: float, law: Noise, draws: int, every: int) -> None:
        spread = size * probability * (1 - probability)
        reach = ceil(10 * every * sqrt(spread) + 9 * sqrt(draws * law.variance) + 38 * law.scale)
        self._centre = round(every * size * probability)
        self._reach = reach + 20
        self.first, self.last = self._centre - self._reach, self._centre + self._reach
        self._period = 2 * self._reach + 1
        self._slack = 1e-12 + 1e-15 * size  # more than rounding takes off a tail

        def modulus(angles: NDArray[np.float64]) -> NDArray[np.float64]:
            swing = np.sin(every * angles / 2) ** 2
            logs = size / 2 * np.log(np.maximum(1 - 4 * spread / size * swing, 1e-300))
            logs += draws * np.log(np.maximum(law.characteristic(angles), 1e-300))
            return np.asarray(np.exp(logs))

        # beyond the angle at which the part that only falls is negligible nothing is left
        step = 2 * np.pi / self._period
        low, high = 0, self._reach
        while low < high:
            middle = (low + high) // 2
            angle = np.array([middle * step])
            part = modulus(angle) if every == 1 else law.characteristic(angle) ** draws
            low, high = (low, middle) if part[0] < _NEGLIGIBLE else (middle + 1, high)
        self._angles = step * np.arange(1, low + 1, dtype=np.float64)
        turn = every * self._angles
        phase = size * np.arctan2(
            probability * np.sin(turn), 1 - probability + probability * np.cos(turn)
        )
        shift = phase - self._centre * self._angles
        self._transform = modulus(self._angles) * np.exp(1j * shift) / np.sin(self._angles / 2)

    def upper(self, value: int) -> float:
        """P(X >= value), never too small: the inverse transform summed from value to last."""
        if value > self.last:
            return 0.0
        if value <= self.first:
            return 1.0
        number = self.last - value + 1
        middle = (value - self._centre + self._reach) / 2
        waves = np.exp(-1j * self._angles * middle) * np.sin(self._angles * number / 2)
        total = float((self._transform @ waves).real)
        return (number + 2 * total) / self._period + self._slack
