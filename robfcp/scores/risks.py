"""Risks: losses in [0, B] that fall as the set of labels grows, in whole parts of the bound.

A label is in the set when 1 - p is at most lambda, so sets grow with lambda. Losses are rounded up
to parts of B / resolution: sums of them are whole numbers and never too small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import array, floats, whole
from robfcp.errors import MAX_NAME, RobfcpError
from robfcp.grid import Grid

RESOLUTION = 27_720  # shares of up to twelve labels are whole parts
MAX_RESOLUTION = 10**6
MAX_BOUND = 1e9

Gains = NDArray[np.int64]


@dataclass(frozen=True)
class Risk:
    """A loss by name, with the bound B that no sample's loss exceeds.

    Parameters
    ----------
    name
        What the loss is called; "fnr", "miss-rate" and "top-weighted" are known by name.
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
    resolution: int = RESOLUTION

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= MAX_NAME:
            raise RobfcpError(f"risk: {self.name!r} is no name; use fnr, say")
        if not self.name.isprintable():
            raise RobfcpError("risk: the name holds unprintable characters; use a plain one")
        bound = floats("risk: bound", self.bound)
        if bound.ndim or not 0 < bound <= MAX_BOUND:
            raise RobfcpError(f"risk: bound is {self.bound!r}; give the largest possible loss")
        parts = whole("risk: resolution", self.resolution, "give 27720, say", 1)
        if parts > MAX_RESOLUTION:
            raise RobfcpError(f"risk: resolution is {parts}; give at most {MAX_RESOLUTION}")
        object.__setattr__(self, "bound", float(bound))
        object.__setattr__(self, "resolution", parts)

    def level(self, risk: object) -> Fraction:
        """1 - risk / B: a mean loss of at most `risk` is a mean gain of at least this.

        Parameters
        ----------
        risk
            The mean loss accepted, between 0 and the bound.

        Examples
        --------
        >>> from robfcp import Risk
        >>> Risk("cost", bound=5).level("0.5")
        Fraction(9, 10)
        """
        try:
            share = Fraction(str(risk)[:40]) / Fraction(str(self.bound))
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share < 1:
            raise RobfcpError(
                f"risk: {risk!r} is not between 0 and the bound {self.bound:g}; give 0.1, say"
            )
        return 1 - share


def known_risk(risk: str | Risk, resolution: int = RESOLUTION) -> Risk:
    """The risk itself, or the one of that name in so many parts."""
    return risk if isinstance(risk, Risk) else Risk(risk, resolution=resolution)


def lambda_grid(lambdas: ArrayLike) -> Grid:
    """The grid whose upper edges are the lambdas; beyond the last one every label is taken."""
    steps = floats("lambdas", lambdas)
    if steps.ndim != 1 or not steps.size or not np.isfinite(steps).all():
        raise RobfcpError("lambdas: need a vector of finite numbers; give np.linspace(0, 1, 101)")
    if (np.diff(steps) <= 0).any():
        raise RobfcpError("lambdas: must rise strictly; sort them and drop repeats")
    return Grid(np.concatenate([[-np.inf], steps, [np.inf]]))


def gains_of_losses(losses: ArrayLike, n_lambdas: int, risk: Risk) -> tuple[Gains, int]:
    """(L + 1,) by how many parts the summed loss falls at each lambda, and the samples' number.

    The last entry is what never falls.
    """
    table = floats("losses", losses)
    if table.ndim != 2 or table.shape[1] != n_lambdas or not len(table):
        raise RobfcpError(
            f"losses: shape {table.shape} is not (samples, {n_lambdas} lambdas); "
            "give a row a sample and a column a lambda"
        )
    if np.isnan(table).any() or table.min() < 0 or table.max() > risk.bound:
        raise RobfcpError(
            f"losses: leave [0, {risk.bound:g}]; state the largest possible loss as the bound"
        )
    if (np.diff(table, axis=1) > 1e-9 * risk.bound).any():
        raise RobfcpError("losses: rise with lambda; larger sets must not cost more")
    gained = np.floor((1 - table / risk.bound) * risk.resolution * (1 + 1e-12)).astype(np.int64)
    gained = np.maximum.accumulate(np.clip(gained, 0, risk.resolution), axis=1)
    ends = np.full((len(table), 1), risk.resolution)
    steps = np.diff(np.concatenate([gained, ends], axis=1), axis=1, prepend=0)
    return steps.sum(axis=0), len(table)


@dataclass(frozen=True)
class MultilabelRisk:
    """The share of a sample's true labels that its set misses, each label with its weight.

    With equal weights the false-negative rate of multi-label predictions, and for masks of
    pixels their miss rate. A sample without true labels has loss 0.

    Parameters
    ----------
    name
        "fnr", "miss-rate" or "top-weighted".
    weights
        One a class, for "top-weighted"; equal ones if empty.

    Examples
    --------
    >>> import numpy as np
    >>> from robfcp.scores import MultilabelRisk
    >>> grid = __import__("robfcp").Grid.uniform(4)
    >>> risk = MultilabelRisk()
    >>> risk.gains(np.array([[0.9, 0.3]]), np.array([[1, 1]]), grid, risk.risk())[0]
    array([13860,     0, 13860,     0])
    """

    name: str = "fnr"
    weights: tuple[float, ...] = field(default=())

    def risk(self, resolution: int = RESOLUTION) -> Risk:
        """The risk as reports name it; its bound is 1."""
        return Risk(self.name, 1.0, resolution)

    def gains(
        self, probabilities: ArrayLike, labels: ArrayLike, grid: Grid, risk: Risk
    ) -> tuple[Gains, int]:
        """(H,) by how many parts the summed loss falls at each upper edge, and the samples' number.

        The j-th true label from below, in the order of 1 - p, takes a sample's gain from the share
        of the weights before it to the share with it; both are rounded down to parts.
        """
        p, truth = check_multilabel(probabilities, labels)
        weights = self._weights(p.shape[1])
        sample, label = np.nonzero(truth)
        bins = grid.index(1 - p[sample, label])
        order = np.lexsort((bins, sample))
        sample, bins = sample[order], bins[order]
        weight = weights[label[order]]
        total = np.bincount(sample, weights=weight, minlength=len(p))
        running = np.cumsum(weight)
        before = np.concatenate([[0.0], running])[np.searchsorted(sample, np.arange(len(p)))]
        share = (running - before[sample]) / total[sample]
        parts = np.floor(share * risk.resolution * (1 + 1e-9) + 1e-9).astype(np.int64)
        parts = np.minimum(parts, risk.resolution)
        first = np.concatenate([[True], sample[1:] != sample[:-1]]) if len(sample) else sample
        last = np.concatenate([sample[1:] != sample[:-1], [True]]) if len(sample) else sample
        parts[last.astype(bool)] = risk.resolution
        steps = np.where(first, parts, np.diff(parts, prepend=0))
        found = np.zeros(grid.n_bins, dtype=np.int64)
        np.add.at(found, bins, steps)
        found[0] += risk.resolution * int((total == 0).sum())
        return found, len(p)

    def losses(self, sets: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
        """(n,) each sample's loss for a given set of labels."""
        members, truth = np.asarray(sets, dtype=bool), np.asarray(labels).astype(bool)
        weights = self._weights(truth.shape[1])
        total = truth @ weights
        missed = (truth & ~members) @ weights
        result: NDArray[np.float64] = np.where(total > 0, missed / np.maximum(total, 1e-300), 0.0)
        return result

    def _weights(self, n_classes: int) -> NDArray[np.float64]:
        if not self.weights:
            return np.ones(n_classes)
        weights = floats("risk: weights", self.weights)
        if weights.shape != (n_classes,) or (weights <= 0).any():
            raise RobfcpError(f"risk: weights: need {n_classes} positive numbers, one a class")
        return weights


RISKS = {name: MultilabelRisk(name) for name in ("fnr", "miss-rate")}


def check_multilabel(
    probabilities: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(n, C) probabilities in [0, 1], one a label, and as many true labels, 0 or 1."""
    p = floats("probabilities", probabilities)
    p = p.reshape(len(p), -1) if p.ndim > 2 else p
    if p.ndim != 2 or not p.size:
        raise RobfcpError(f"probabilities: shape {p.shape} is not (samples, labels); reshape them")
    if not (p.min() >= 0 and p.max() <= 1):
        raise RobfcpError("probabilities: leave [0, 1] or hold NaN; apply a sigmoid to each label")
    truth = array("labels", labels)
    truth = truth.reshape(len(truth), -1) if truth.ndim > 2 else truth
    if truth.shape != p.shape or truth.dtype.kind not in "biuf" or not np.isin(truth, (0, 1)).all():
        raise RobfcpError(
            f"labels: need 0 or 1 for each of the {p.shape[0]} x {p.shape[1]} probabilities"
        )
    return p, truth.astype(bool)
