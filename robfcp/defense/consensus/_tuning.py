"""The constants of the default defense."""

from __future__ import annotations

from dataclasses import dataclass

# Deciles, and the tails where outliers show.
QUANTILE_ORDERS = (0.002, 0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.998)


@dataclass(frozen=True)
class Tuning:
    """The constants of the default defense, each with its role, its unit and its source.

    What is *chosen* follows from no theorem. The constants of the first group are those to which
    the defense is most sensitive: the sensitivity table in its documentation says what half and
    twice of each do.

    Attributes
    ----------
    fdr_level : float
        The false discovery rate at which clients count as outliers (Benjamini and Hochberg 1995),
        and, divided by K, the level at which one client may be excluded (Bonferroni). *Chosen*;
        see the sensitivity table.
    log_heterogeneity_sd : float
        Standard deviation of the natural logarithm of how far benign clients differ beyond
        sampling. *Chosen*; see the sensitivity table.
    max_relative_weight : float
        A client counts with at most so many times the median number of samples, so that a claimed
        size buys no influence. *Chosen*; see the sensitivity table.
    prior_strength : float
        Samples of each class that the shares of all classes together stand for, so that a class the
        reference hardly holds still has expected counts. *Chosen*; see the sensitivity table.
    min_mass_ratio : float
        A client with at most this share of the expected lower half of its scores belongs to no
        benign population. *Chosen*; see the sensitivity table.
    crossing_margin : float
        A client whose scores are smaller on average, but larger by this share of its samples
        somewhere (or the other way round), belongs to no benign population. *Chosen*; see the
        sensitivity table.
    plausible_misfit_ratio : float
        A reference set is plausible up to so many times the misfit of the best one. *Chosen*; see
        the sensitivity table.
    upper_clip : float
        Standard deviations above the level that a client's vote counts at most; below the level it
        counts at most its reciprocal. *Chosen*; see the sensitivity table.

    quantile_orders : tuple of float
        The merged bins end at the medians of the clients' quantiles of these orders. *Chosen*.
    common_class_quantile, common_class_share : float
        A class is common if this quantile of the clients hold at least this share of its mean.
        Where malicious clients may be most of its holders, a class explains nothing. *Chosen*: 40%
        malicious clients cannot make a class common.
    max_sampled_clients : int
        Among so many clients, drawn at random from more, the references are sought. *Chosen* for
        speed.
    max_class_cells : int
        Cells of the sampled clients' table by class, beyond which classes are pooled. *Chosen* for
        memory.
    block_cells : int
        Cells of the clients that are judged together: what a processor's cache holds.
    min_clients : int
        Distinct reports below which no client is judged: a malicious client looks like an unusual
        one.

    bin_prior : float
        Samples added to each bin before the shares of all classes together are taken, as of
        Krichevsky and Trofimov (1981).
    root_shift : float
        Added to counts before their square root is taken, whose variance is then nearly constant
        for Poisson counts (Anscombe 1948).
    poisson_deficit_rate : float
        Per sample. 4 (sqrt(X + 3/8) - sqrt(r + 3/8))^2 of a Poisson count X of mean r has a mean
        close to 1 - exp(-1.3 r): 1 for large r, but less where a bin is all but empty. Fitted to
        the exact sums.
    cumulative_variance_pad : float
        Squared samples, added to variances of cumulative counts: one edge of few samples says
        little. *Chosen*, as `root_shift`.
    body_mass : float
        The expected share of scores up to the edge that separates body and tail, at most. *Chosen*.
    tail_ratio_divisor : int
        The limit of `min_mass_ratio` is divided by it for the tail, which holds few samples, and
        for every part of the mass where labels are not reliable. *Chosen*.
    body_ratio_divisor : int
        The limit is divided by it for the body where the reference is in doubt. *Chosen*.
    many_outliers : float
        The share of outliers above which the reference itself is in doubt. *Chosen*.

    bin_freedom_factor : float
        Degrees of freedom of the statistic by bin, per inner edge: the bins are unequal. *Chosen*.
    cumulative_freedom : float
        Degrees of freedom of the cumulative statistic. That of Anderson and Darling (1952) has the
        mean 1 and the variance 2 (pi^2 - 9) / 3, as a chi-square variable over its 3.45 degrees of
        freedom; it is taken at fewer edges.
    n_effective_tests : float
        How many independent tests the two correlated statistics of a view are worth. *Chosen*.
    reference_quantile : float
        Where a reference set's own statistics are read off, as a share of all clients: a set that
        was chosen for being close is closer than those it stands for. *Chosen*: the median of three
        clients in five.
    median_error_factor : float
        The standard error of a median over that of a mean, of normal variables: sqrt(pi / 2).
    center_error_variance : float
        Of the center of n logarithms, in their variance over n: close to pi / 2, as of a median.
    max_overdispersion : float
        The largest overdispersion, per sample, that votes are allowed. *Chosen*.

    reference_em_rounds : int
        Rounds of expectation and maximization by which the scores of a reference's classes are
        estimated where members state class totals alone. *Chosen*: twice as many change next to no
        decision.
    fit_tail_probability : float
        A client fits a reference unless sampling alone gives a larger statistic with less than this
        probability. *Chosen*, as usual for one test.
    max_concentration_steps : int
        How often a starting set moves to the majority nearest to it. *Chosen*: most settle sooner.
    max_refits : int
        How often a reference set is refined: one that has not settled by then keeps changing a few
        clients. *Chosen*.
    max_minority_starts : int
        How many searches start from the outliers of references that describe a minority. *Chosen*.
    population_cost : float
        A second population has to improve the logarithm of the misfit by so many log N over K, for
        K clients and N samples. *Chosen*; its histogram alone costs 1.25 by the criterion of
        Schwarz (1978).
    """

    fdr_level: float = 0.15
    log_heterogeneity_sd: float = 0.7
    max_relative_weight: float = 3
    prior_strength: float = 10.0
    min_mass_ratio: float = 0.37
    crossing_margin: float = 0.05
    plausible_misfit_ratio: float = 1.35
    upper_clip: float = 0.5

    quantile_orders: tuple[float, ...] = QUANTILE_ORDERS
    common_class_quantile: float = 0.25
    common_class_share: float = 0.25
    max_sampled_clients: int = 256
    max_class_cells: int = 2**24
    block_cells: int = 2**16
    min_clients: int = 4

    bin_prior: float = 0.5
    root_shift: float = 3 / 8
    poisson_deficit_rate: float = 1.3
    cumulative_variance_pad: float = 3 / 8
    body_mass: float = 0.92
    tail_ratio_divisor: int = 4
    body_ratio_divisor: int = 64
    many_outliers: float = 0.25

    bin_freedom_factor: float = 0.8
    cumulative_freedom: float = 3.4
    n_effective_tests: float = 1.6
    reference_quantile: float = 0.3
    median_error_factor: float = 1.25
    center_error_variance: float = 1.5
    max_overdispersion: float = 0.3

    reference_em_rounds: int = 8
    fit_tail_probability: float = 0.05
    max_concentration_steps: int = 8
    max_refits: int = 10
    max_minority_starts: int = 2
    population_cost: float = 2


DEFAULT_TUNING = Tuning()
