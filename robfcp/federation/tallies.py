"""Questions to the counts of K clients on one grid, whatever table they stand in."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.federation.counts import Counts, Entries
from robfcp.federation.strata import Stratified
from robfcp.grid import Grid
from robfcp.privacy import Noise, NoNoise, Privacy, noise_of
from robfcp.scores import Risk


class Tallies:
    """K clients' counts on one grid: sums up to edges, over clients, over bins, and their noise."""

    ids: tuple[str, ...]
    table: Counts
    sizes: NDArray[np.int64]
    grid: Grid
    privacy: tuple[Privacy | None, ...]
    risk: Risk | None
    strata: Stratified | None

    @property
    def counts(self) -> NDArray[np.int64]:
        """(K, H) counts; for a large sparse federation prefer the methods."""
        return self.table.dense()

    @property
    def unit(self) -> int:
        """How many counts one sample has: 1, or the parts of a loss."""
        return 1 if self.risk is None else self.risk.resolution

    @property
    def masses(self) -> NDArray[np.int64]:
        """(K,) what each client's counts add up to without noise: n_k, or its parts."""
        return self.unit * self.sizes

    @cached_property
    def memo(self) -> dict[str, Any]:
        """What was found out about these counts, by whoever may ask for it again."""
        return {}

    @cached_property
    def noise(self) -> NoNoise:
        """What is to be known of the noise of the counts, which may be none."""
        return noise_of(self.privacy, self.n_clients)

    @property
    def private(self) -> bool:
        """Whether any client's counts hold noise."""
        return bool(self.n_private)

    @property
    def n_private(self) -> int:
        """The number of clients whose counts hold noise."""
        return self.noise.n_private

    @property
    def noises(self) -> tuple[Noise | None, ...]:
        """(K,) the law of the noise on each of a client's counts; None where there is none."""
        return self.noise.laws(self.unit)

    @property
    def noise_draws(self) -> int:
        """How many draws of noise one pooled count holds: one for each class reported."""
        return 1 if self.strata is None else self.noise.draws(self.strata.n_strata)

    @property
    def variances(self) -> NDArray[np.float64]:
        """(K,) variance of the noise on each of a client's counts; 0 where there is none."""
        return self.noise.variances(self.unit, self.noise_draws)

    @property
    def exact_strata(self) -> Stratified | None:
        """The counts by class or group where they are exact; None also where noise is in them."""
        return self.noise.exact_only(self.strata)

    @property
    def exact_digest(self) -> str | None:
        """The grid's digest where counts on it are exact: what rounds are compared by."""
        return self.noise.exact_only(self.grid.digest, self.unit)

    @property
    def n_clients(self) -> int:
        """K, the number of valid reports."""
        return len(self.ids)

    @property
    def n_samples(self) -> int:
        """N, the calibration samples of all valid reports."""
        return int(self.sizes.sum())

    def threshold_at(self, index: int | None) -> float:
        """The threshold at the upper edge of bin `index`; infinite where there is none.

        Also infinite in the last bin where reports are private: their scores beyond the grid, and
        those that are not numbers, count there.

        Parameters
        ----------
        index
            A bin's number from 0, or None.

        Returns
        -------
        float
            An upper edge of the grid, or infinity.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2], [4, 0]]).threshold_at(0)
        0.5
        """
        if index is None or index >= self.grid.n_bins - self.noise.open_bins:
            return float(np.inf)
        return float(self.grid.upper[index])

    def below(self, index: int) -> NDArray[np.int64]:
        """(K,) counts at or below the upper edge of bin `index`.

        Parameters
        ----------
        index
            A bin's number from 0.

        Returns
        -------
        (K,) array of int
            One number a client.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).below(1)
        array([3, 4])
        """
        return self.table.below(index)

    def cumulative(self, edges: NDArray[np.intp] | None = None) -> NDArray[np.int64]:
        """(K, H) counts at or below every upper edge, or (K, E) at the chosen, rising ones.

        Parameters
        ----------
        edges
            Rising bin numbers; all bins if None.

        Returns
        -------
        (K, H) or (K, E) array of int
            One row a client.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).cumulative()
        array([[1, 3, 6],
               [4, 4, 4]])
        """
        if edges is None:
            return np.cumsum(self.table.dense(), axis=1)
        ends = np.unique(np.append(edges, self.grid.n_bins - 1)).astype(np.intp)
        return np.cumsum(self.merged(ends), axis=1)[:, : len(edges)]

    def pooled(self, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """(H,) counts of the chosen clients together.

        Parameters
        ----------
        mask
            (K,) who counts; everybody if None.

        Returns
        -------
        (H,) array of int
            One number a bin.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).pooled()
        array([5, 2, 3])
        """
        return self.table.pooled(mask)

    def weighted(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(H,) sums over the clients of weight times counts.

        Parameters
        ----------
        weights
            (K,) one number a client.

        Returns
        -------
        (H,) array
            One number a bin.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).weighted(np.array([1.0, 0.5]))
        array([3., 2., 3.])
        """
        return self.table.weighted(weights)

    def merged(self, ends: NDArray[np.intp]) -> NDArray[np.int64]:
        """(K, B) counts of merged bins; `ends` holds the last bin of each, the last one H - 1.

        Parameters
        ----------
        ends
            Rising bin numbers, as `Grid.merge_ends` gives them.

        Returns
        -------
        (K, B) array of int
            One row a client.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Federation.from_counts([[1, 2, 3], [4, 0, 0]]).merged([0, 2])
        array([[1, 5],
               [4, 0]])
        """
        return self.table.merged(np.asarray(ends))

    def entries(self) -> Entries:
        """(starts, bins, values): row k holds values[starts[k]:starts[k + 1]] in those bins.

        Returns
        -------
        tuple of arrays
            (K + 1,) starts; the bins in use and their counts, row after row.

        Examples
        --------
        >>> import robfcp
        >>> starts, bins, values = robfcp.Federation.from_counts([[1, 0, 3], [4, 0, 0]]).entries()
        >>> starts.tolist(), bins.tolist(), values.tolist()
        ([0, 2, 3], [0, 2, 0], [1, 3, 4])
        """
        return self.table.entries()
