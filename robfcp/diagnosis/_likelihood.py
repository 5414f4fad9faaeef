"""How likely each cause makes the counts of a client, given those of its peers.

C is the number of classes or groups (1 if they are pooled), H of bins, B of rank cells. The peers
are the other included clients, pooled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.binning import Binning
from robfcp.diagnosis._causes import (
    CAUSES,
    DIFFERENT_POPULATION,
    LABELS_PERMUTED,
    LABELS_SWAPPED,
    RANK_DISTRIBUTIONS,
    SCORE_CHANGES,
    SHIFTED_CLASS_PRIOR,
    UNEXPLAINED,
    RankDistribution,
)

N_RANK_CELLS = 12  # cells with equally many of the peers' scores
N_MASS_CELLS = 10  # quantiles of the fraction of the probability that a wrong label gets
MIN_REFERENCE_SCORES = 20  # scores of peers that a class needs for a comparison

LABEL_PRIOR_STRENGTH = 40  # of the clients' label distributions around the pooled one, in samples
RARE_LOG_PENALTY = 3.0  # a rarer hypothesis has to be better by e^3
UNCLEAR_LOG_PENALTY = 4.0  # "different population" fits nearly everything
MIN_LOG_SHIFT_OF_CLASS = 2.0  # a class is named if "similar" is less likely by e^2
MIN_WRONG_CELL_PROBABILITY = 0.002  # added to each cell, as the scores are only modeled
MIN_DOUBT = 0.001  # see `_median_doubt`
MAX_DOUBT = 0.5
MIN_CELL_PROBABILITY = 1e-4  # so that no rank is impossible


class FaultHypothesis(NamedTuple):
    """A cause with its log-likelihood; `classes` are those that it names."""

    cause: str
    likelihood: float
    classes: tuple[int, ...] = ()


def rank_distribution_histograms() -> FloatArray:
    """Return the Dirichlet parameters of every distribution of RANK_DISTRIBUTIONS, (L, B)."""
    return np.stack([_beta_histogram(distribution) for distribution in RANK_DISTRIBUTIONS.values()])


def _beta_histogram(distribution: RankDistribution) -> FloatArray:
    """Return the probabilities of the rank cells, (B,), times the strength."""
    from scipy.special import betainc

    edges = np.arange(N_RANK_CELLS + 1) / N_RANK_CELLS
    probabilities = np.diff(betainc(distribution.a, distribution.b, edges))
    probabilities = probabilities + MIN_CELL_PROBABILITY
    probabilities *= (1 - distribution.lowest) / probabilities.sum()
    probabilities[0] += distribution.lowest
    return np.asarray(distribution.strength * probabilities)


def rank_fault_hypotheses(
    counts: IntArray,
    peer_counts: IntArray,
    binning: Binning,
    histograms: FloatArray,
    *,
    by_class: bool,
    min_cell_count: int = 1,
) -> list[FaultHypothesis]:
    """Return all hypotheses about a client's scores, the likeliest first.

    Parameters
    ----------
    counts, peer_counts : ndarray of shape (C, H)
        The scores of the client and of its peers, by class or group and bin.
    binning : Binning
        The bins.
    histograms : ndarray of shape (L, B)
        What `rank_distribution_histograms` returns.
    by_class : bool
        Whether rows are classes, so that they can be confused with each other.
    min_cell_count : int
        The minimum cell count of the client's report.
    """
    ranks = rank_histogram(counts, peer_counts, min_cell_count=min_cell_count)
    classes = np.flatnonzero(ranks.any(axis=1))  # those that can be compared

    # (C,) log-likelihoods of every class's ranks.
    likelihoods = log_dirichlet_multinomial(histograms[:, None], ranks)
    by_distribution = dict(zip(RANK_DISTRIBUTIONS, likelihoods, strict=True))
    wrong_labels = _wrong_label_likelihood(
        ranks, peer_counts, binning, by_distribution, by_class=by_class
    )
    unchanged = _mixture_likelihood(UNEXPLAINED, by_distribution)
    changes = {cause: _mixture_likelihood(cause, by_distribution) for cause in SCORE_CHANGES}
    labels = LabelDistributionLikelihood(counts.sum(axis=1), peer_counts.sum(axis=1))

    hypotheses = [FaultHypothesis(UNEXPLAINED, float(unchanged.sum()) + labels.usual)]
    for cause, change in changes.items():
        # A few classes may be anything at all.
        softened = log_mixture(
            (1 - SHIFTED_CLASS_PRIOR, change), (SHIFTED_CLASS_PRIOR, by_distribution["anything"])
        )
        hypotheses.append(FaultHypothesis(cause, float(softened.sum()) + labels.usual))
    if by_class and len(classes) > 1:
        hypotheses.append(labels.swapped(classes, unchanged, wrong_labels))
    if not by_class or len(classes) != 2:  # a permutation of two classes is a swap
        confused = log_mixture((0.9, wrong_labels), (0.1, by_distribution["anything"]))[classes]
        any_labels = float(np.logaddexp(labels.usual, labels.anything) - np.log(2))
        hypotheses.append(FaultHypothesis(LABELS_PERMUTED, float(confused.sum()) + any_labels))

    # Every class may differ in another way.
    unclear = log_mixture(
        (0.4, by_distribution["similar"]),
        (0.1, wrong_labels),
        (0.1, by_distribution["anything"]),
        *((0.1, change) for change in changes.values()),
    )
    is_shifted: BoolArray = by_distribution["similar"] < unclear - MIN_LOG_SHIFT_OF_CLASS
    shifted_classes = tuple(classes[is_shifted[classes]].tolist())
    log_unclear = float(unclear.sum()) + labels.usual - UNCLEAR_LOG_PENALTY
    hypotheses.append(FaultHypothesis(DIFFERENT_POPULATION, log_unclear, shifted_classes))
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.likelihood)


def _mixture_likelihood(cause: str, by_distribution: dict[str, FloatArray]) -> FloatArray:
    """Return the log-likelihood of every class's ranks under the mixture of a cause, (C,)."""
    mixture = CAUSES[cause].mixture
    return log_mixture(*((weight, by_distribution[name]) for weight, name in mixture))


def _wrong_label_likelihood(
    ranks: FloatArray,
    peer_counts: IntArray,
    binning: Binning,
    by_distribution: dict[str, FloatArray],
    *,
    by_class: bool,
) -> FloatArray:
    """Return the log-likelihood of every class's ranks if its labels are wrong, (C,).

    If scores are fractions of the probability, the scores of wrong labels can be computed. A model
    in doubt spreads the probability, so that a wrong label differs less from a right one.
    """
    histogram = wrong_label_histogram(peer_counts, binning) if by_class else None
    if histogram is None:
        return log_mixture((0.5, by_distribution["wrong"]), (0.5, by_distribution["rather wrong"]))
    strengths = RANK_DISTRIBUTIONS["wrong"].strength * (histogram + MIN_WRONG_CELL_PROBABILITY)
    computed = log_dirichlet_multinomial(strengths, ranks)
    doubt = _median_doubt(peer_counts, binning)
    return log_mixture((1 - doubt, computed), (doubt, by_distribution["rather wrong"]))


def _median_doubt(peer_counts: IntArray, binning: Binning) -> float:
    """Return the weight of a model in doubt: the square of the peers' median score, clipped."""
    cumulative = np.cumsum(peer_counts.sum(axis=0))
    median_bin = int(np.searchsorted(cumulative, cumulative[-1] / 2))
    return float(np.clip(binning.upper_edges[median_bin] ** 2, MIN_DOUBT, MAX_DOUBT))


def rank_histogram(
    counts: IntArray | FloatArray, peer_counts: IntArray, *, min_cell_count: int = 1
) -> FloatArray:
    """Count a client's scores of each class in each twelfth of the peers' scores, (C, B).

    A score in a bin that holds the peers' ranks from u to v is spread evenly over [u, v], so that
    scores drawn as the peers' are uniform whatever ties there are. In a coarsened report a cell of
    fewer scores than twice the minimum is spread down to the cell before. A class of which the
    peers have fewer than 20 stays empty.

    Parameters
    ----------
    counts, peer_counts : ndarray of shape (C, H)
        The scores of the client and of its peers, by class or group and bin.
    min_cell_count : int
        The minimum cell count of the client's report.
    """
    is_coarsened = min_cell_count > 1
    has_scores = counts.any(axis=1)
    if is_coarsened:
        has_scores = counts.sum(axis=1) >= 2 * min_cell_count  # fewer are in a single cell
    has_peers = peer_counts.sum(axis=1) >= MIN_REFERENCE_SCORES

    edges = np.arange(N_RANK_CELLS + 1) / N_RANK_CELLS
    histogram = np.zeros((len(counts), N_RANK_CELLS))
    for c in np.flatnonzero(has_scores & has_peers):
        bins = np.flatnonzero(counts[c])
        class_counts = counts[c, bins]

        # The peers' ranks in each of the client's bins.
        n_peer_scores = peer_counts[c].sum()
        upper = np.cumsum(peer_counts[c]) / n_peer_scores
        high = upper[bins]
        low = high - peer_counts[c, bins] / n_peer_scores
        if is_coarsened and len(bins) > 1:
            is_small = class_counts < 2 * min_cell_count
            low, high = _widen_small_cells(low, high, is_small)

        # The CDF of the uniform distribution on each interval, at the edges of the cells.
        width = np.maximum(high - low, 1e-9)
        low = np.minimum(low, 1 - width)
        cdf = np.clip((edges - low[:, None]) / width[:, None], 0, 1)
        histogram[c] = class_counts @ np.diff(cdf, axis=1)
    return histogram


def _widen_small_cells(
    low: FloatArray, high: FloatArray, is_small: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return the intervals of ranks, those of small cells from the cell before.

    Coarsening moves scores up, though none past the next cell: they lie anywhere between the cell
    before their own and their own. The lowest cell is taken to be as wide as the next.
    """
    first_low = max(0, 2 * high[0] - high[1])
    previous_high = np.append(first_low, high[:-1])
    return np.where(is_small, previous_high, low), high


def wrong_label_histogram(peer_counts: IntArray, binning: Binning) -> FloatArray | None:
    """Return the probabilities of the rank cells for wrong labels, (C, B); None off [0, 1].

    A score s on [0, 1] leaves s of the probability to the other labels. A wrong label gets a
    fraction w of that, Beta(1, C - 2) as if all divisions of it were equally likely, and the score
    1 - w s.
    """
    n_classes = len(peer_counts)
    upper = binning.upper_edges
    if n_classes < 2 or not 0 < upper[0] <= upper[-1] <= 1:
        return None
    scores = (np.append(0, upper[:-1]) + upper) / 2
    score_probabilities = peer_counts.sum(axis=0) / max(1, int(peer_counts.sum()))

    # Quantiles of Beta(1, C - 2); of two classes the other class gets all of it.
    fractions = np.ones(1)
    if n_classes > 2:
        levels = (np.arange(N_MASS_CELLS) + 0.5) / N_MASS_CELLS
        fractions = 1 - levels ** (1 / (n_classes - 2))

    wrong_scores = np.zeros(binning.n_bins)
    for fraction in fractions:
        bins = binning.bin_index_of_threshold(1 - fraction * scores)
        counts = np.bincount(bins, weights=score_probabilities, minlength=binning.n_bins)
        wrong_scores += counts / len(fractions)
    histogram = rank_histogram(np.broadcast_to(wrong_scores, peer_counts.shape), peer_counts)
    return histogram / np.maximum(histogram.sum(axis=1, keepdims=True), 1e-12)


class LabelDistributionLikelihood:
    """Log-likelihoods of a client's numbers of samples by class, given the peers'.

    Attributes
    ----------
    as_peers : float
        If they are distributed as the peers', up to a Dirichlet distribution around those.
    anything : float
        If any distribution is as likely as any other.
    usual : float
        If they are as the peers', or rarely anything.
    """

    def __init__(self, sizes: IntArray | FloatArray, peer_sizes: IntArray | FloatArray) -> None:
        from scipy.special import gammaln

        # A small fraction is added to each class, so that none is impossible.
        added_fraction = 0.5 / max(1, len(peer_sizes)) * 0.01
        fractions = peer_sizes / max(1, int(peer_sizes.sum())) + added_fraction
        strengths = LABEL_PRIOR_STRENGTH * fractions / fractions.sum()

        # (C, C) the term of the samples of class i, were they of class j.
        self._terms: FloatArray = gammaln(strengths[None, :] + sizes[:, None]) - gammaln(strengths)
        total = float(gammaln(LABEL_PRIOR_STRENGTH) - gammaln(LABEL_PRIOR_STRENGTH + sizes.sum()))
        self.as_peers = total + float(np.trace(self._terms))
        self.anything = log_dirichlet_multinomial(np.ones(len(sizes)), sizes.astype(np.float64))
        self.usual = float(np.logaddexp(self.as_peers, self.anything - RARE_LOG_PENALTY))

    @property
    def is_unusual(self) -> bool:
        """Whether any distribution explains the numbers better than the peers' does."""
        return bool(self.anything - RARE_LOG_PENALTY > self.as_peers)

    def swapped(
        self, classes: IndexArray, unchanged: FloatArray, wrong_labels: FloatArray
    ) -> FaultHypothesis:
        """Return the hypothesis that two classes are swapped: their labels are wrong, no others.

        The label distribution is as the peers', with the two exchanged or not, or any. All pairs
        are equally likely beforehand; the likeliest one is named.

        Parameters
        ----------
        classes : ndarray of shape (n,)
            The classes that can be compared.
        unchanged, wrong_labels : ndarray of shape (C,)
            Log-likelihoods of every class's ranks if its labels are right, and if they are wrong.
        """
        pairs = np.array(np.triu_indices(len(classes), 1))
        first, second = classes[pairs]

        unswapped_terms = np.diag(self._terms)
        exchanged = self.as_peers - unswapped_terms[first] - unswapped_terms[second]
        exchanged = exchanged + self._terms[first, second] + self._terms[second, first]
        as_peers = np.logaddexp(self.as_peers, exchanged) - np.log(2)
        labels = np.logaddexp(as_peers, self.anything - RARE_LOG_PENALTY)

        gain = wrong_labels - unchanged
        likelihoods = unchanged.sum() + gain[first] + gain[second] + labels
        best = int(np.argmax(likelihoods))
        mean = float(np.logaddexp.reduce(likelihoods) - np.log(len(likelihoods)))
        return FaultHypothesis(LABELS_SWAPPED, mean, (int(first[best]), int(second[best])))


def log_dirichlet_multinomial(strengths: FloatArray, counts: FloatArray) -> FloatArray:
    """Return log Gamma(s) / Gamma(s + n) prod_b Gamma(s_b + x_b) / Gamma(s_b), over the last axis.

    s_b are the parameters of a Dirichlet distribution and s is their sum, x_b are counts and n is
    their sum: the likelihood of samples in their order.
    """
    from scipy.special import gammaln

    total = strengths.sum(axis=-1)
    terms = (gammaln(strengths + counts) - gammaln(strengths)).sum(axis=-1)
    result: FloatArray = gammaln(total) - gammaln(total + counts.sum(axis=-1)) + terms
    return result


def log_mixture(*weighted: tuple[float, FloatArray]) -> FloatArray:
    """Return the log-likelihood of a mixture, from weights and log-likelihoods."""
    terms = [np.log(weight) + log_likelihood for weight, log_likelihood in weighted]
    mixed: FloatArray = np.logaddexp.reduce(terms, axis=0)
    return mixed
