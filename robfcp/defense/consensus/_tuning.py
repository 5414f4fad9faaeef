"""The constants of the default defense."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """The constants of the default defense, each with its role.

    What is marked *chosen* follows from no theorem: the documentation of the defense has a table of
    what half and twice of each do.

    Attributes
    ----------
    fdr_level : float
        The false discovery rate at which clients count as outliers (Benjamini and Hochberg 1995),
        and, divided by K, the level at which one client may be excluded (Bonferroni). *Chosen*.
    log_heterogeneity_sd : float
        Standard deviation of the logarithm of how far benign clients differ beyond sampling.
        *Chosen*.
    max_relative_weight : float
        A client counts with at most so many times the median number of samples, so that a claimed
        size buys no influence. *Chosen*.
    prior_strength : float
        Samples of each class that the shares of all classes together stand for, so that a class the
        reference hardly holds still has expected counts. *Chosen*.
    min_mass_ratio : float
        A client with at most this share of the expected lower half of its scores belongs to no
        benign population. *Chosen*.
    crossing_margin : float
        A client whose scores are smaller on average, but larger by this share somewhere (or the
        other way round), belongs to no benign population. *Chosen*.
    plausible_misfit_ratio : float
        A reference set is plausible up to so many times the misfit of the best one. *Chosen*.
    upper_clip : float
        Standard deviations above the level that a client's vote counts at most; below the level it
        counts at most its reciprocal. *Chosen*.

    body_mass : float
        The expected share of scores up to the edge that separates body and tail, at most.
    tail_ratio_divisor : int
        The limit of `min_mass_ratio` is divided by it for the tail, which holds few samples, and
        for every part of the mass where labels are not reliable. See `max_strict_ratio`.
    body_ratio_divisor : int
        The limit is divided by it for the body where the reference is in doubt. See
        `max_body_ratio_in_doubt`.
    many_outliers : float
        The share of outliers above which the reference itself is in doubt.
    n_effective_tests : float
        How many independent tests the two correlated statistics of a view are worth.
    bin_freedom_factor : float
        Degrees of freedom of the statistic by bin, per inner edge: the bins are unequal.
    cumulative_freedom : float
        Degrees of freedom of the cumulative statistic, as of Anderson and Darling's.
    reference_quantile : float
        Where a reference set's own statistics are read off, as a share of all clients: a set that
        was chosen for being close is closer than those it stands for.
    max_overdispersion : float
        The largest overdispersion that votes are allowed.
    common_class_quantile, common_class_share : float
        A class is common if this quantile of the clients hold at least this share of its mean.
        Where malicious clients may be most of its holders, a class explains nothing.
    max_sampled_clients : int
        Among so many clients, drawn at random from more, the references are sought.
    max_class_cells : int
        Cells of the sampled clients' table by class; beyond it classes are pooled.
    block_cells : int
        Cells of the clients that are judged together: what a processor's cache holds.
    """

    fdr_level: float = 0.15
    log_heterogeneity_sd: float = 0.7
    max_relative_weight: float = 3
    prior_strength: float = 10.0
    min_mass_ratio: float = 0.37
    crossing_margin: float = 0.05
    plausible_misfit_ratio: float = 1.35
    upper_clip: float = 0.5

    body_mass: float = 0.92
    tail_ratio_divisor: int = 4
    body_ratio_divisor: int = 64
    many_outliers: float = 0.25
    n_effective_tests: float = 1.6
    bin_freedom_factor: float = 0.8
    cumulative_freedom: float = 3.4
    reference_quantile: float = 0.3
    max_overdispersion: float = 0.3
    common_class_quantile: float = 0.25
    common_class_share: float = 0.25
    max_sampled_clients: int = 256
    max_class_cells: int = 2**24
    block_cells: int = 2**16

    @property
    def max_strict_ratio(self) -> float:
        """The largest observed over expected mass at which nearly all of a part is missing."""
        return self.min_mass_ratio / self.tail_ratio_divisor

    @property
    def max_body_ratio_in_doubt(self) -> float:
        """The largest observed over expected body at which hardly anything of it is left."""
        return self.min_mass_ratio / self.body_ratio_divisor
