"""Seeded discrete noise for simulations; real reports take theirs from OpenDP."""

import numpy as np


def draw(rng, noise, shape):
    """Return noise of a distribution: a difference of geometrics, or by inverting the CDF."""
    if noise.mechanism == "laplace":
        success_probability = -np.expm1(-1 / noise.scale)
        return rng.geometric(success_probability, shape) - rng.geometric(success_probability, shape)
    radius = int(12 * noise.scale) + 10
    cdf = np.cumsum(noise.mass(radius))
    return np.searchsorted(cdf, rng.random(shape)) - radius
