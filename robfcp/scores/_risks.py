"""Risks: losses in [0, B] that fall as the set of labels grows, in whole parts of the bound.

A label is in the set when 1 - p is at most lambda, so sets grow with lambda. Losses are rounded up
to parts of B / resolution: sums of them are whole numbers and never too small.
"""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import as_array, as_float_array, check_integer
from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, RobfcpError

MAX_RESOLUTION = 10**6
MAX_BOUND = 1e9

LossDrops = NDArray[np.int64]


class Risk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A loss by name, with the bound B that no sample's loss exceeds.

    Parameters
    ----------
    name
        What the loss is called. "fnr" and "miss-rate" (of pixels) are the share of a sample's true
        labels that its set misses, "top-weighted" that of their weights.
    bound
        B: every loss lies in [0, B].
    resolution
        Parts of B in which losses are counted.

    References
    ----------
    Angelopoulos, Bates, Fisch, Lei and Schuster (2024), "Conformal risk control", ICLR.

    Examples
    --------
    >>> from robfcp import Risk
    >>> Risk("fnr").bound
    1.0
    """

    name: str
    bound: float = 1.0
    resolution: int = 27_720  # shares of up to twelve labels are whole parts

    multilabel: ClassVar[tuple[str, ...]] = ("fnr", "miss-rate")

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and 0 < len(self.name) <= MAX_NAME
        if not named or not self.name.isprintable():
            raise RobfcpError(f"risk: {self.name!r} is no name; use fnr, say")
        bound = as_float_array("risk: bound", self.bound)
        if bound.ndim or not 0 < bound <= MAX_BOUND:
            raise RobfcpError(f"risk: bound is {self.bound!r}; give the largest possible loss")
        parts = check_integer("risk: resolution", self.resolution, "give 27720, say", 1)
        if parts > MAX_RESOLUTION:
            raise RobfcpError(f"risk: resolution is {parts}; give at most {MAX_RESOLUTION}")
        force_setattr(self, "bound", float(bound))
        force_setattr(self, "resolution", parts)

    def coverage_level(self, risk: object) -> Fraction:
        """1 - risk / B: a mean loss of at most `risk` is a mean gain of at least this.

        Parameters
        ----------
        risk
            The mean loss accepted, between 0 and the bound.

        Examples
        --------
        >>> from robfcp import Risk
        >>> Risk("cost", bound=5).coverage_level("0.5")
        Fraction(9, 10)
        """
        try:
            share = Fraction(str(risk)[:40]) / Fraction(str(self.bound))
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share < 1:
            raise RobfcpError(f"risk: {risk!r} is not in (0, {self.bound:g}); give 0.1, say")
        return 1 - share

    def count_loss_drops(
        self, losses: ArrayLike, lambdas: ArrayLike
    ) -> tuple[Binning, LossDrops, int]:
        """The grid of the lambdas, by how many parts the summed loss falls at each, and n.

        Parameters
        ----------
        losses
            (n, L) loss of every sample at every lambda, falling along each row.
        lambdas
            (L,) rising; beyond the last one every label is taken, and no loss is left.
        """
        steps = as_float_array("lambdas", lambdas)
        if steps.ndim != 1 or not steps.size or not np.isfinite(steps).all():
            raise RobfcpError("lambdas: need finite numbers; give np.linspace(0, 1, 101)")
        if (np.diff(steps) <= 0).any():
            raise RobfcpError("lambdas: must rise strictly; sort them and drop repeats")
        table = as_float_array("losses", losses)
        if table.ndim != 2 or table.shape[1] != steps.size or not len(table):
            raise RobfcpError(
                f"losses: shape {table.shape} is not (samples, {steps.size} lambdas); "
                "give a row a sample and a column a lambda"
            )
        if np.isnan(table).any() or table.min() < 0 or table.max() > self.bound:
            raise RobfcpError(
                f"losses: leave [0, {self.bound:g}]; state the largest possible loss as the bound"
            )
        if (np.diff(table, axis=1) > 1e-9 * self.bound).any():
            raise RobfcpError("losses: rise with lambda; larger sets must not cost more")
        gained = np.floor((1 - table / self.bound) * self.resolution * (1 + 1e-12)).astype(np.int64)
        gained = np.maximum.accumulate(np.clip(gained, 0, self.resolution), axis=1)
        parts = np.diff(gained, axis=1, prepend=0, append=self.resolution).sum(axis=0)
        return Binning(np.concatenate([[-np.inf], steps, [np.inf]])), parts, len(table)

    def count_multilabel_loss_drops(
        self, probabilities: ArrayLike, labels: ArrayLike, grid: Binning, weights: ArrayLike = ()
    ) -> tuple[LossDrops, int]:
        """(H,) by how many parts the summed share of missed labels falls at each upper edge, and n.

        The j-th true label from below, in the order of 1 - p, takes a sample's gain from the share
        of the weights before it to the share with it; both are rounded down to parts.

        Parameters
        ----------
        probabilities
            (n, C) one a label, each in [0, 1].
        labels
            As many true labels, 0 or 1.
        grid
            Its upper edges are the lambdas.
        weights
            (C,) what a label counts; all alike if empty.
        """
        p = _multilabel(probabilities)
        truth = as_array("labels", labels)
        truth = truth.reshape(len(truth), -1) if truth.ndim > 2 else truth
        real = truth.shape == p.shape and truth.dtype.kind in "biuf"
        if not real or not np.isin(truth, (0, 1)).all():
            raise RobfcpError(
                f"labels: need 0 or 1 for each of the {p.shape[0]} x {p.shape[1]} probabilities"
            )
        weight = _weights(weights, p.shape[1])
        sample, label = np.nonzero(truth)
        bins = grid.bin_indices(1 - p[sample, label])
        order = np.lexsort((bins, sample))
        sample, bins = sample[order], bins[order]
        weight = weight[label[order]]
        total = np.bincount(sample, weights=weight, minlength=len(p))
        running = np.cumsum(weight)
        before = np.concatenate([[0.0], running])[np.searchsorted(sample, np.arange(len(p)))]
        share = (running - before[sample]) / total[sample]
        parts = np.floor(share * self.resolution * (1 + 1e-9) + 1e-9).astype(np.int64)
        parts = np.minimum(parts, self.resolution)
        edge = np.diff(sample, prepend=-1, append=len(p)) > 0  # where a sample begins
        parts[edge[1:]] = self.resolution
        steps = np.where(edge[:-1], parts, np.diff(parts, prepend=0))
        gains = np.zeros(grid.n_bins, dtype=np.int64)
        np.add.at(gains, bins, steps)
        gains[0] += self.resolution * int((total == 0).sum())  # without true labels none is missed
        return gains, len(p)

    def multilabel_sets(self, probabilities: ArrayLike, lambdas: ArrayLike) -> NDArray[np.bool_]:
        """(n, C, L) whether each label is taken: 1 - p at most lambda.

        Parameters
        ----------
        probabilities
            (n, C) one a label, each in [0, 1].
        lambdas
            (L,) numbers.
        """
        return (1 - _multilabel(probabilities))[:, :, None] <= np.asarray(lambdas)

    def multilabel_losses(
        self, sets: ArrayLike, labels: ArrayLike, weights: ArrayLike = ()
    ) -> NDArray[np.float64]:
        """(n,) the share of each sample's true labels that its set misses.

        Parameters
        ----------
        sets
            (n, C) membership, as `Calibration.predict_multilabel` gives it.
        labels, weights
            As `count_multilabel_loss_drops` takes them.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Risk("fnr").multilabel_losses([[True, False]], [[1, 1]])
        array([0.5])
        """
        members, truth = np.asarray(sets, dtype=bool), np.asarray(labels).astype(bool)
        weight = _weights(weights, truth.shape[1])
        total = truth @ weight
        missed = (truth & ~members) @ weight
        return np.asarray(np.where(total > 0, missed / np.maximum(total, 1e-300), 0.0))


def _weights(weights: ArrayLike, n_classes: int) -> NDArray[np.float64]:
    given = as_float_array("risk: weights", weights)
    if not given.size:
        return np.ones(n_classes)
    if given.shape != (n_classes,) or (given <= 0).any():
        raise RobfcpError(f"risk: weights: need {n_classes} positive numbers, one a class")
    return given


def _multilabel(probabilities: ArrayLike) -> NDArray[np.float64]:
    """(n, C) probabilities in [0, 1], one a label."""
    p = as_float_array("probabilities", probabilities)
    p = p.reshape(len(p), -1) if p.ndim > 2 else p
    if p.ndim != 2 or not p.size:
        raise RobfcpError(f"probabilities: shape {p.shape} is not (samples, labels); reshape them")
    if not (p.min() >= 0 and p.max() <= 1):
        raise RobfcpError("probabilities: leave [0, 1] or hold NaN; apply a sigmoid to each label")
    return p
