"""Seeded discrete noise for simulations; what leaves a client comes from OpenDP alone."""

import numpy as np


def draw(rng, noise, shape):
    """Noise of the given law: a difference of geometrics, or by inverting the distribution."""
    if noise.mechanism == "laplace":
        chance = -np.expm1(-1 / noise.scale)
        return rng.geometric(chance, shape) - rng.geometric(chance, shape)
    reach = int(12 * noise.scale) + 10
    steps = np.cumsum(noise.mass(reach))
    return np.searchsorted(steps, rng.random(shape)) - reach
