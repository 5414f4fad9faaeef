"""Seeded discrete noise for simulations; what leaves a client comes from OpenDP alone."""

from __future__ import annotations

import numpy as np

from robfcp.privacy import Noise


def draw(rng: np.random.Generator, noise: Noise, shape: tuple[int, ...]) -> np.ndarray:
    """Noise of the given law: a difference of geometrics, or by inverting the distribution."""
    if noise.mechanism == "laplace":
        chance = -np.expm1(-1 / noise.scale)
        return rng.geometric(chance, shape) - rng.geometric(chance, shape)
    reach = int(12 * noise.scale) + 10
    steps = np.cumsum(noise.mass(reach))
    return np.searchsorted(steps, rng.random(shape)) - reach
