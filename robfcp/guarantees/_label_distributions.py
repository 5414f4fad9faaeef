"""The label mixes that coverage is guaranteed for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray
from robfcp.errors import RobfcpError

LabelDistribution = dict[str, float] | str | list[dict[str, float] | str]


class LabelDistributions(NamedTuple):
    """R stated label mixes, and C more if there is a base.

    These are base + step e_c for each class c, e_c being 1 for that class and 0 for the others.
    They are never spelled out, as C x C numbers would be too many. Methods return the stated mixes
    first.

    Attributes
    ----------
    distributions : ndarray of shape (R, C)
        pi_c, the fraction of each class in each stated mix; rows sum to 1.
    base : ndarray of shape (C,), optional
        What the other C mixes have in common; it sums to 1 - step.
    step : float
        What each of them has more of its class; positive. Not used without a base.
    """

    distributions: FloatArray
    base: FloatArray | None = None
    step: float = 1.0

    @staticmethod
    def around(base: FloatArray, step: float) -> LabelDistributions:
        """Return the C mixes that are the base with `step` more of one class, and no stated mix.

        Parameters
        ----------
        base : ndarray of shape (C,)
            What the mixes have in common; it sums to 1 - step.
        step : float
            What each of them has more of its class.
        """
        return LabelDistributions(np.zeros((0, len(base))), base, step)

    @property
    def has_mass(self) -> BoolArray:
        """(C,) which classes are in any of the mixes."""
        # Each class is in the mix with a step of it.
        if self.base is not None:
            return np.ones(self.distributions.shape[1], dtype=bool)
        return np.any(self.distributions > 0, axis=0)

    def expectations(self, values: FloatArray) -> FloatArray:
        """Return the means of numbers of the classes in every mix.

        The mean in base + step e_c is base . v + step v_c.

        Parameters
        ----------
        values : ndarray of shape (..., C)
            v, one number for each class.

        Returns
        -------
        ndarray of shape (..., R), or (..., R + C) with a base
            In each stated mix; then, for each class c, in the base with a step of c.
        """
        means = values @ self.distributions.T
        if self.base is None:
            return means
        means_around_base = (values @ self.base)[..., None] + self.step * values
        return np.concatenate([means, means_around_base], axis=-1)

    def min_effective_sizes(self, sizes: FloatArray) -> FloatArray:
        """Return the least n_c / pi_c over the classes with pi_c > 0, for each mix.

        Parameters
        ----------
        sizes : ndarray of shape (C,)
            n_c, samples of each class; not negative.

        Returns
        -------
        ndarray of shape (R,), or (R + C,) with a base
            Samples.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(self.distributions > 0, sizes / self.distributions, np.inf)
            effective_sizes = ratios.min(axis=1)
            if self.base is None:
                return effective_sizes
            least_of_base = np.where(self.base > 0, sizes / self.base, np.inf).min()
        # The mix of class c has base_c + step of it, so n_c / base_c in the minimum over the base
        # does no harm: n_c / (base_c + step) is less.
        around_base = np.minimum(least_of_base, sizes / (self.base + self.step))
        return np.concatenate([effective_sizes, around_base])


def parse_label_distributions(
    label_distribution: LabelDistribution, names: tuple[str, ...]
) -> LabelDistributions:
    """Return the label mixes that are named; refuse what is no mix of these classes.

    Parameters
    ----------
    label_distribution : dict, str or list
        {class: share}, "uniform", "any" (every class by itself), or a list of them.
    names : tuple of str
        The C classes, in the order of the columns of counts.
    """
    if label_distribution == "uniform":
        return LabelDistributions(np.full((1, len(names)), 1 / len(names)))
    if label_distribution == "any":
        return LabelDistributions.around(np.zeros(len(names)), 1.0)
    if isinstance(label_distribution, list) and label_distribution:
        # The only base in a list is that of "any", with a step of 1, which is the default below.
        parsed = [
            parse_label_distributions(distribution, names) for distribution in label_distribution
        ]
        base = None
        for distributions in parsed:
            if distributions.base is not None:
                base = distributions.base
                break
        all_distributions = np.concatenate(
            [distributions.distributions for distributions in parsed]
        )
        return LabelDistributions(all_distributions, base)
    if not isinstance(label_distribution, dict):
        raise RobfcpError(
            f"label_distribution: {label_distribution!r:.60} is unknown; use 'uniform', 'any' or "
            "{class: fraction}"
        )

    unknown = sorted(set(label_distribution) - set(names))
    if unknown:
        raise RobfcpError(
            f"label_distribution: {unknown[0]!r:.60} is none of the classes; check the names"
        )
    fractions = np.array([[label_distribution.get(name, 0.0) for name in names]])
    if not (fractions >= 0).all() or not np.isclose(fractions.sum(), 1, atol=1e-6):
        raise RobfcpError("label_distribution: shares are not negative and add up to 1; check them")
    return LabelDistributions(fractions / fractions.sum())
