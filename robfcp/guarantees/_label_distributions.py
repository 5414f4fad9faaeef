"""The label mixes that coverage is guaranteed for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray
from robfcp.errors import RobfcpError

LabelDistribution = dict[str, float] | str | list[dict[str, float] | str]


class LabelDistributions(NamedTuple):
    """R stated label mixes, and C more if there is a base.

    These are the base with `step` more of each class alone. They are never spelled out, as C x C
    numbers would be too many.

    Attributes
    ----------
    distributions : ndarray of shape (R, C)
        pi_c, the share of each class in each stated mix.
    base : ndarray of shape (C,), optional
        What the other C mixes have in common.
    step : float
        What each of them has more of its class.
    """

    distributions: FloatArray
    base: FloatArray | None = None
    step: float = 1.0

    @staticmethod
    def around(base: FloatArray, step: float) -> LabelDistributions:
        """Return the base with so much more of each class alone."""
        return LabelDistributions(np.zeros((0, len(base))), base, step)

    @property
    def has_mass(self) -> BoolArray:
        """(C,) which classes are in any of the mixes."""
        if self.base is not None:
            return np.ones(self.distributions.shape[1], dtype=bool)
        return np.any(self.distributions > 0, axis=0)

    def expectations(self, values: FloatArray) -> FloatArray:
        """Return (..., R + C) the means of (..., C) numbers of the classes, in every mix."""
        means = values @ self.distributions.T
        if self.base is None:
            return means
        means_around_base = (values @ self.base)[..., None] + self.step * values
        return np.concatenate([means, means_around_base], axis=-1)

    def min_effective_sizes(self, sizes: FloatArray) -> FloatArray:
        """Return (R + C,) the least n_c / pi_c over the classes, for each mix.

        Parameters
        ----------
        sizes : ndarray of shape (C,)
            n_c.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(self.distributions > 0, sizes / self.distributions, np.inf)
            effective_sizes = ratios.min(axis=1)
            if self.base is None:
                return effective_sizes
            least_of_base = np.where(self.base > 0, sizes / self.base, np.inf).min()
        around_base = np.minimum(least_of_base, sizes / (self.base + self.step))
        return np.concatenate([effective_sizes, around_base])


def parse_label_distributions(mix: LabelDistribution, names: tuple[str, ...]) -> LabelDistributions:
    """Return the label mixes that are named.

    Parameters
    ----------
    mix : dict, str or list
        {class: share}, "uniform", "any" (every class by itself), or a list of them.
    names : tuple of str
        The classes.
    """
    if mix == "uniform":
        return LabelDistributions(np.full((1, len(names)), 1 / len(names)))
    if mix == "any":
        return LabelDistributions.around(np.zeros(len(names)), 1.0)
    if isinstance(mix, list) and mix:
        parsed = [parse_label_distributions(distribution, names) for distribution in mix]
        base = None
        for distributions in parsed:
            if distributions.base is not None:
                base = distributions.base
                break
        all_distributions = np.concatenate(
            [distributions.distributions for distributions in parsed]
        )
        return LabelDistributions(all_distributions, base)
    if not isinstance(mix, dict):
        raise RobfcpError(f"mix: {mix!r:.60} is unknown; use 'uniform', 'any' or {{class: share}}")

    unknown = sorted(set(mix) - set(names))
    if unknown:
        raise RobfcpError(f"mix: {unknown[0]!r:.60} is none of the classes; check the names")
    fractions = np.array([[mix.get(name, 0.0) for name in names]])
    if not (fractions >= 0).all() or not np.isclose(fractions.sum(), 1, atol=1e-6):
        raise RobfcpError("mix: shares are not negative and add up to 1; check them")
    return LabelDistributions(fractions / fractions.sum())
