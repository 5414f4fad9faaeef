"""Risks: losses in [0, B] that fall as the set of labels grows, in whole parts of the bound.

A label is in the set when 1 - p is at most lambda, so sets grow with lambda. Losses are rounded up
to parts of B / resolution: sums of them are whole numbers and never too small.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import BoolArray, FloatArray, IntArray
from robfcp._validation import as_array, as_float_array, check_integer, set_fields
from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, RobfcpError

MAX_RESOLUTION = 10**6
MAX_BOUND = 1e9
_RISE_TOLERANCE = 1e-9  # of the bound: losses may rise so far with lambda, by rounding
_GAIN_ROUNDING = 1e-12  # relative: gains that are whole parts but for rounding are rounded up
_FRACTION_ROUNDING = 1e-9  # the same of fractions of weights, whose sums round more


class Risk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A loss by name, with the bound B that no sample's loss exceeds.

    Parameters
    ----------
    name : str
        What the loss is called. "fnr" and "miss-rate" (of pixels) are the share of a sample's true
        labels that its set misses, "top-weighted" that of their weights.
    upper_bound : float
        B: every loss lies in [0, B].
    resolution : int
        Parts of B in which losses are counted.

    References
    ----------
    Angelopoulos, Bates, Fisch, Lei and Schuster (2024), "Conformal risk control", ICLR.

    Examples
    --------
    >>> from robfcp import Risk
    >>> Risk("fnr").upper_bound
    1.0
    """

    name: str
    upper_bound: float = 1.0
    resolution: int = 27_720  # shares of up to twelve labels are whole parts

    multilabel: ClassVar[tuple[str, ...]] = ("fnr", "miss-rate")

    def __post_init__(self) -> None:
        is_text = isinstance(self.name, str) and 0 < len(self.name) <= MAX_NAME
        if not is_text or not self.name.isprintable():
            raise RobfcpError(f"risk: {self.name!r} is no name; use fnr, say")
        upper_bound = as_float_array("risk: upper_bound", self.upper_bound)
        if upper_bound.ndim or not 0 < upper_bound <= MAX_BOUND:
            raise RobfcpError(
                f"risk: upper_bound is {self.upper_bound!r}; give the largest possible loss"
            )
        resolution = check_integer("risk: resolution", self.resolution, "give 27720, say", 1)
        if resolution > MAX_RESOLUTION:
            raise RobfcpError(f"risk: resolution is {resolution}; give at most {MAX_RESOLUTION}")
        set_fields(self, upper_bound=float(upper_bound), resolution=resolution)

    def coverage_level(self, risk: object) -> Fraction:
        """Return 1 - risk / B: a mean loss of at most `risk` is a mean gain of at least this.

        Parameters
        ----------
        risk : object
            The mean loss accepted, between 0 and the bound.

        Examples
        --------
        >>> from robfcp import Risk
        >>> Risk("cost", upper_bound=5).coverage_level("0.5")
        Fraction(9, 10)
        """
        try:
            relative_risk = Fraction(str(risk)[:40]) / Fraction(str(self.upper_bound))
        except (ValueError, ZeroDivisionError):
            relative_risk = Fraction(0)
        if not 0 < relative_risk < 1:
            raise RobfcpError(
                f"risk_level: {risk!r} is not in (0, {self.upper_bound:g}); give for example 0.1"
            )
        return 1 - relative_risk

    def count_loss_drops(
        self, losses: ArrayLike, lambdas: ArrayLike
    ) -> tuple[Binning, IntArray, int]:
        """Return the binning of the lambdas, by how many parts the summed loss drops at each, n.

        Parameters
        ----------
        losses : array_like, shape (n, L)
            Loss of every sample at every lambda, falling along each row.
        lambdas : array_like, shape (L,)
            Rising; beyond the last one every label is taken, and no loss is left.
        """
        steps = as_float_array("lambdas", lambdas)
        if steps.ndim != 1 or not steps.size or not np.isfinite(steps).all():
            raise RobfcpError("lambdas: need finite numbers; give np.linspace(0, 1, 101)")
        if (np.diff(steps) <= 0).any():
            raise RobfcpError("lambdas: must rise strictly; sort them and drop repeats")
        table = self._check_losses(losses, steps.size)

        # The gain 1 - loss / B in parts, rounded down. The loss drops where the gain rises.
        exact_parts = (1 - table / self.upper_bound) * self.resolution
        gained = np.floor(exact_parts * (1 + _GAIN_ROUNDING)).astype(np.int64)
        gained = np.maximum.accumulate(np.clip(gained, 0, self.resolution), axis=1)
        drops = np.diff(gained, axis=1, prepend=0, append=self.resolution).sum(axis=0)
        binning = Binning(np.concatenate([[-np.inf], steps, [np.inf]]))
        return binning, drops, len(table)

    def _check_losses(self, losses: ArrayLike, n_lambdas: int) -> FloatArray:
        """Return (n, L) losses; refuse any outside [0, B] and those that rise with lambda."""
        table = as_float_array("losses", losses)
        if table.ndim != 2 or table.shape[1] != n_lambdas or not len(table):
            raise RobfcpError(
                f"losses: shape {table.shape} is not (samples, {n_lambdas} lambdas); "
                "give a row a sample and a column a lambda"
            )
        if np.isnan(table).any() or table.min() < 0 or table.max() > self.upper_bound:
            raise RobfcpError(
                f"losses: leave [0, {self.upper_bound:g}]; give the largest possible loss as "
                "upper_bound"
            )
        if (np.diff(table, axis=1) > _RISE_TOLERANCE * self.upper_bound).any():
            raise RobfcpError("losses: rise with lambda; larger sets must not cost more")
        return table

    def count_multilabel_loss_drops(
        self, probabilities: ArrayLike, labels: ArrayLike, binning: Binning, weights: ArrayLike = ()
    ) -> tuple[IntArray, int]:
        """Return (H,) by how many parts the summed fraction of missed labels drops, and n.

        It drops at the upper edges of the bins. The j-th true label from below, in the order of
        1 - p, takes a sample's gain from the fraction of the weights before it to the fraction with
        it; both are rounded down to parts.

        Parameters
        ----------
        probabilities : array_like, shape (n, C)
            One a label, each in [0, 1].
        labels : array_like
            As many true labels, 0 or 1.
        binning : Binning
            Its upper edges are the lambdas.
        weights : array_like, shape (C,)
            What a label counts; all alike if empty.
        """
        p = _check_multilabel_probabilities(probabilities)
        n_samples, n_classes = p.shape
        truth = _check_multilabel_truth(labels, p.shape)
        label_weights = _check_weights(weights, n_classes)

        # One entry for each true label, ordered by sample and within a sample by bin.
        samples, columns = np.nonzero(truth)
        bins = binning.bin_indices(1 - p[samples, columns])
        order = np.lexsort((bins, samples))
        samples = samples[order]
        bins = bins[order]
        entry_weights = label_weights[columns[order]]

        # The fraction of its sample's weights up to and with each entry.
        total_weights = np.bincount(samples, weights=entry_weights, minlength=n_samples)
        running = np.cumsum(entry_weights)
        first_entries = np.searchsorted(samples, np.arange(n_samples))
        running_before_sample = np.concatenate([[0.0], running])[first_entries]
        fractions = (running - running_before_sample[samples]) / total_weights[samples]

        # In whole parts; the last entry of a sample has them all.
        exact_parts = fractions * self.resolution
        gained = np.floor(exact_parts * (1 + _FRACTION_ROUNDING) + _FRACTION_ROUNDING)
        gained = np.minimum(gained.astype(np.int64), self.resolution)
        begins_sample = np.diff(samples, prepend=-1, append=n_samples) > 0  # and one at the end
        gained[begins_sample[1:]] = self.resolution

        drops_of_entries = np.where(begins_sample[:-1], gained, np.diff(gained, prepend=0))
        drops = np.zeros(binning.n_bins, dtype=np.int64)
        np.add.at(drops, bins, drops_of_entries)
        n_without_labels = int((total_weights == 0).sum())
        drops[0] += self.resolution * n_without_labels  # they miss nothing
        return drops, n_samples

    def multilabel_sets(self, probabilities: ArrayLike, lambdas: ArrayLike) -> BoolArray:
        """Return (n, C, L) whether each label is taken: 1 - p at most lambda.

        Parameters
        ----------
        probabilities : array_like, shape (n, C)
            One a label, each in [0, 1].
        lambdas : array_like, shape (L,)
            Numbers.
        """
        scores = 1 - _check_multilabel_probabilities(probabilities)
        return scores[:, :, None] <= np.asarray(lambdas)

    def multilabel_losses(
        self, sets: ArrayLike, labels: ArrayLike, weights: ArrayLike = ()
    ) -> FloatArray:
        """Return (n,) the fraction of each sample's true labels that its set misses.

        Parameters
        ----------
        sets : array_like, shape (n, C)
            Membership, as `Calibration.predict_multilabel` gives it.
        labels, weights : array_like
            As `count_multilabel_loss_drops` takes them.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Risk("fnr").multilabel_losses([[True, False]], [[1, 1]])
        array([0.5])
        """
        membership = np.asarray(sets, dtype=bool)
        truth = np.asarray(labels).astype(bool)
        label_weights = _check_weights(weights, truth.shape[1])
        total = truth @ label_weights
        missed = (truth & ~membership) @ label_weights
        losses = missed / np.maximum(total, 1e-300)
        return np.asarray(np.where(total > 0, losses, 0.0))


def _check_weights(weights: ArrayLike, n_classes: int) -> FloatArray:
    """Return (C,) what a label counts, ones if nothing is given; refuse what is not positive."""
    values = as_float_array("risk: weights", weights)
    if not values.size:
        return np.ones(n_classes)
    if values.shape != (n_classes,) or (values <= 0).any():
        raise RobfcpError(f"risk: weights: need {n_classes} positive numbers, one a class")
    return values


def _check_multilabel_probabilities(probabilities: ArrayLike) -> FloatArray:
    """Return (n, C) probabilities in [0, 1], one a label; refuse anything else."""
    p = as_float_array("probabilities", probabilities)
    if p.ndim > 2:
        p = p.reshape(len(p), -1)
    if p.ndim != 2 or not p.size:
        raise RobfcpError(f"probabilities: shape {p.shape} is not (samples, labels); reshape them")
    if not (p.min() >= 0 and p.max() <= 1):
        raise RobfcpError("probabilities: leave [0, 1] or hold NaN; apply a sigmoid to each label")
    return p


def _check_multilabel_truth(labels: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return (n, C) true labels, each 0 or 1; refuse anything else."""
    truth = as_array("labels", labels)
    if truth.ndim > 2:
        truth = truth.reshape(len(truth), -1)
    is_table_of_numbers = truth.shape == shape and truth.dtype.kind in "biuf"
    if not is_table_of_numbers or not np.isin(truth, (0, 1)).all():
        raise RobfcpError(
            f"labels: need 0 or 1 for each of the {shape[0]} x {shape[1]} probabilities"
        )
    return truth
