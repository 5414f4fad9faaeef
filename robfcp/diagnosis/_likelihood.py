"""How likely each cause makes a site's counts, beside those of the other sites.

C is the number of classes or groups (1 where they are pooled), H of bins, B of rank cells. "Peers"
are the other sites in use, pooled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.binning import Binning
from robfcp.diagnosis._causes import (
    CAUSES,
    LABELS_MIXED_UP,
    LABELS_SWAPPED,
    LAWS,
    NOT_TOLD,
    OTHER_CASES,
    SCORE_CHANGES,
    SHIFTED_CLASS_PRIOR,
    RankLaw,
)
from robfcp.reports import StratifiedCounts

N_RANK_CELLS = 12  # equal parts of the peers' scores
N_MASS_CELLS = 10  # of what is left, for a wrong label
MIN_REFERENCE_SCORES = 20  # scores of peers that a class needs to be compared with
MIN_SAMPLES_OF_COARSE_CLASS = 2 * StratifiedCounts.MIN_CELL_COUNT  # fewer lie in a single cell

LABEL_PRIOR_STRENGTH = 40  # how alike the sites' shares of the classes are
RARE_LOG_PENALTY = 3.0  # a rarer explanation has to be better by e^3
UNCLEAR_LOG_PENALTY = 4.0  # "other cases" fits nearly everything
MIN_LOG_SHIFT_OF_CLASS = 2.0  # a class is named where "alike" is less likely by e^2
MIN_DOUBT = 0.001  # see `_median_doubt`
MAX_DOUBT = 0.5


class FaultHypothesis(NamedTuple):
    """A cause with its log-likelihood; `classes` are those that it names."""

    cause: str
    likelihood: float
    classes: tuple[int, ...] = ()


def law_histograms() -> FloatArray:
    """(L, B) the parameters of the Dirichlet distribution of each law, in the order of LAWS."""
    return np.stack([_beta_histogram(law) for law in LAWS.values()])


def _beta_histogram(law: RankLaw) -> FloatArray:
    """(B,) the shares of the rank cells under a law, times its strength."""
    from scipy.special import betainc

    edges = np.arange(N_RANK_CELLS + 1) / N_RANK_CELLS
    shares = np.diff(betainc(law.a, law.b, edges)) + 1e-4
    shares *= (1 - law.lowest) / shares.sum()
    shares[0] += law.lowest
    return np.asarray(law.strength * shares)


def rank_fault_hypotheses(
    counts: IntArray,
    peer_counts: IntArray,
    binning: Binning,
    histograms: FloatArray,
    *,
    by_class: bool,
    is_coarsened: bool = False,
) -> list[FaultHypothesis]:
    """All explanations of a site's scores beside the peers', the likeliest first.

    Parameters
    ----------
    counts, peer_counts : ndarray of shape (C, H)
        The scores of the site and of its peers, by class or group and bin.
    binning : Binning
        The bins.
    histograms : ndarray of shape (L, B)
        What `law_histograms` returns.
    by_class : bool
        Whether rows are classes, so that they can be confused with each other.
    is_coarsened : bool
        Whether the site's scores stand for what lies around them.
    """
    ranks = rank_histogram(counts, peer_counts, is_coarsened=is_coarsened)
    classes = np.flatnonzero(ranks.any(axis=1))  # those that can be compared

    # (C,) log-likelihoods of every class's ranks.
    likelihoods = log_dirichlet_multinomial(histograms[:, None], ranks)
    by_law = dict(zip(LAWS, likelihoods, strict=True))
    wrong = _wrong_label_likelihood(ranks, peer_counts, binning, by_law, by_class=by_class)
    unchanged = _of_laws(NOT_TOLD, by_law)
    changes = {cause: _of_laws(cause, by_law) for cause in SCORE_CHANGES}
    labels = LabelDistributionLikelihood(counts.sum(axis=1), peer_counts.sum(axis=1))

    hypotheses = [FaultHypothesis(NOT_TOLD, float(unchanged.sum()) + labels.usual)]
    for cause, change in changes.items():
        # A few classes may be anything at all.
        softened = log_mixture(
            (1 - SHIFTED_CLASS_PRIOR, change), (SHIFTED_CLASS_PRIOR, by_law["anything"])
        )
        hypotheses.append(FaultHypothesis(cause, float(softened.sum()) + labels.usual))
    if by_class and len(classes) > 1:
        hypotheses.append(labels.swapped(classes, unchanged, wrong))
    if not by_class or len(classes) != 2:  # two classes are mixed up where they are swapped
        confused = log_mixture((0.9, wrong), (0.1, by_law["anything"]))[classes]
        any_labels = float(np.logaddexp(labels.usual, labels.anything) - np.log(2))
        hypotheses.append(FaultHypothesis(LABELS_MIXED_UP, float(confused.sum()) + any_labels))

    # Every class may differ in another way.
    unclear = log_mixture(
        (0.4, by_law["alike"]),
        (0.1, wrong),
        (0.1, by_law["anything"]),
        *((0.1, change) for change in changes.values()),
    )
    is_shifted: BoolArray = by_law["alike"] < unclear - MIN_LOG_SHIFT_OF_CLASS
    shifted = classes[is_shifted[classes]]
    log_unclear = float(unclear.sum()) + labels.usual - UNCLEAR_LOG_PENALTY
    hypotheses.append(FaultHypothesis(OTHER_CASES, log_unclear, tuple(shifted.tolist())))
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.likelihood)


def _of_laws(cause: str, by_law: dict[str, FloatArray]) -> FloatArray:
    """(C,) the log-likelihood of every class's ranks under the mixture of laws of a cause."""
    return log_mixture(*((weight, by_law[law]) for weight, law in CAUSES[cause].laws))


def _wrong_label_likelihood(
    ranks: FloatArray,
    peer_counts: IntArray,
    binning: Binning,
    by_law: dict[str, FloatArray],
    *,
    by_class: bool,
) -> FloatArray:
    """(C,) the log-likelihood of every class's ranks where its labels are wrong.

    Where scores are shares of the probability it is known where those of wrong labels fall. A model
    in doubt spreads the probability, so that a wrong label stands out less.
    """
    shares = wrong_label_histogram(peer_counts, binning) if by_class else None
    if shares is None:
        return log_mixture((0.5, by_law["wrong"]), (0.5, by_law["rather wrong"]))
    known = log_dirichlet_multinomial(LAWS["wrong"].strength * (shares + 0.002), ranks)
    doubt = _median_doubt(peer_counts, binning)
    return log_mixture((1 - doubt, known), (doubt, by_law["rather wrong"]))


def _median_doubt(peer_counts: IntArray, binning: Binning) -> float:
    """The weight of the law that the model is in doubt: the square of the peers' median score."""
    cumulative = np.cumsum(peer_counts.sum(axis=0))
    median_bin = int(np.searchsorted(cumulative, cumulative[-1] / 2))
    return float(np.clip(binning.upper_edges[median_bin] ** 2, MIN_DOUBT, MAX_DOUBT))


def rank_histogram(
    counts: NDArray[np.int64] | FloatArray, peer_counts: IntArray, *, is_coarsened: bool = False
) -> FloatArray:
    """(C, B) how many of a site's scores of each class fall into each twelfth of the peers'.

    A score in a bin that holds the peers' ranks from u to v is spread evenly over [u, v], so that
    scores drawn as the peers' are uniform whatever ties there are. In a coarsened report cells of
    five to nine scores stand for what lies around them, half-way to the next ones. A class of
    which the peers have fewer than 20 is left empty.

    Parameters
    ----------
    counts, peer_counts : ndarray of shape (C, H)
        The scores of the site and of its peers, by class or group and bin.
    is_coarsened : bool
        Whether the site's report is coarsened.
    """
    has_scores = counts.any(axis=1)
    if is_coarsened:
        has_scores = counts.sum(axis=1) >= MIN_SAMPLES_OF_COARSE_CLASS
    has_peers = peer_counts.sum(axis=1) >= MIN_REFERENCE_SCORES

    edges = np.arange(N_RANK_CELLS + 1) / N_RANK_CELLS
    histogram = np.zeros((len(counts), N_RANK_CELLS))
    for c in np.flatnonzero(has_scores & has_peers):
        bins = np.flatnonzero(counts[c])
        class_counts = counts[c, bins]

        # The peers' ranks in each of the site's bins.
        n_peers = peer_counts[c].sum()
        upper = np.cumsum(peer_counts[c]) / n_peers
        high = upper[bins]
        low = high - peer_counts[c, bins] / n_peers
        if is_coarsened and len(bins) > 1:
            is_small = class_counts < MIN_SAMPLES_OF_COARSE_CLASS
            low, high = _widened(low, high, is_small)

        # The share of each interval that lies in each cell.
        width = np.maximum(high - low, 1e-9)
        low = np.minimum(low, 1 - width)
        reached = np.clip((edges - low[:, None]) / width[:, None], 0, 1)
        histogram[c] = class_counts @ np.diff(reached, axis=1)
    return histogram


def _widened(
    low: FloatArray, high: FloatArray, is_small: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """The intervals of ranks; those of small cells reach half-way to the next ones' middles."""
    middle = (low + high) / 2
    cut = (middle[1:] + middle[:-1]) / 2
    first = max(0, 2 * middle[0] - cut[0])
    last = min(1, 2 * middle[-1] - cut[-1])
    wide_low = np.where(is_small, np.append(first, cut), low)
    wide_high = np.where(is_small, np.append(cut, last), high)
    return wide_low, wide_high


def wrong_label_histogram(peer_counts: IntArray, binning: Binning) -> FloatArray | None:
    """(C, B) shares of the rank cells where scores of wrong labels fall; None on other binnings.

    A score s on [0, 1] leaves s of the probability to the other labels; a wrong one gets a share w
    of that, Beta(1, C - 2) as if drawn evenly from all ways to share it, and the score 1 - w s.
    """
    n_classes = len(peer_counts)
    upper = binning.upper_edges
    if n_classes < 2 or not 0 < upper[0] <= upper[-1] <= 1:
        return None
    scores = (np.append(0, upper[:-1]) + upper) / 2
    score_shares = peer_counts.sum(axis=0) / max(1, int(peer_counts.sum()))

    # Quantiles of Beta(1, C - 2); of two classes the other one gets all of it.
    w = np.ones(1)
    if n_classes > 2:
        ranks = (np.arange(N_MASS_CELLS) + 0.5) / N_MASS_CELLS
        w = 1 - ranks ** (1 / (n_classes - 2))

    wrong = np.zeros(binning.n_bins)
    for share in w:
        bins = binning.bin_index_of_threshold(1 - share * scores)
        wrong += np.bincount(bins, weights=score_shares, minlength=binning.n_bins) / len(w)
    histogram = rank_histogram(np.broadcast_to(wrong, peer_counts.shape), peer_counts)
    return histogram / np.maximum(histogram.sum(axis=1, keepdims=True), 1e-12)


class LabelDistributionLikelihood:
    """Log-likelihoods of a site's numbers of samples by class, beside the peers'.

    Attributes
    ----------
    as_peers
        If they are distributed as the peers', up to a Dirichlet distribution around those.
    anything
        If any distribution is as likely as any other.
    usual
        If they are as the peers', or rarely anything.
    """

    def __init__(self, sizes: IntArray, peer_sizes: IntArray) -> None:
        from scipy.special import gammaln

        # A hundredth of half a sample for each class, so that none is impossible.
        shares = peer_sizes / max(1, int(peer_sizes.sum())) + 0.5 / max(1, len(peer_sizes)) * 0.01
        strengths = LABEL_PRIOR_STRENGTH * shares / shares.sum()

        # (C, C) the term of the samples of class i, were they of class j.
        self._terms: FloatArray = gammaln(strengths[None, :] + sizes[:, None]) - gammaln(strengths)
        total = float(gammaln(LABEL_PRIOR_STRENGTH) - gammaln(LABEL_PRIOR_STRENGTH + sizes.sum()))
        self.as_peers = total + float(np.trace(self._terms))
        self.anything = log_dirichlet_multinomial(np.ones(len(sizes)), sizes.astype(np.float64))
        self.usual = float(np.logaddexp(self.as_peers, self.anything - RARE_LOG_PENALTY))

    def swapped(
        self, classes: IndexArray, unchanged: FloatArray, wrong: FloatArray
    ) -> FaultHypothesis:
        """Two classes are each other's: both look wrong and the rest does not.

        The label distribution is as the peers', with the two exchanged or not, or any. All pairs
        are as likely beforehand; the likeliest one is named.

        Parameters
        ----------
        classes : ndarray of shape (n,)
            The classes that can be compared.
        unchanged, wrong : ndarray of shape (C,)
            Log-likelihoods of every class's ranks if its labels are right, and if they are wrong.
        """
        pairs = np.array(np.triu_indices(len(classes), 1))
        first, second = classes[pairs]

        kept = np.diag(self._terms)
        exchanged = self.as_peers - kept[first] - kept[second]
        exchanged = exchanged + self._terms[first, second] + self._terms[second, first]
        as_peers = np.logaddexp(self.as_peers, exchanged) - np.log(2)
        labels = np.logaddexp(as_peers, self.anything - RARE_LOG_PENALTY)

        gain = wrong - unchanged
        likelihoods = unchanged.sum() + gain[first] + gain[second] + labels
        best = int(np.argmax(likelihoods))
        mean = float(np.logaddexp.reduce(likelihoods) - np.log(len(likelihoods)))
        return FaultHypothesis(LABELS_SWAPPED, mean, (int(first[best]), int(second[best])))


def log_dirichlet_multinomial(strengths: FloatArray, counts: FloatArray) -> FloatArray:
    """log of Gamma(s) / Gamma(s + n) prod_b Gamma(s_b + x_b) / Gamma(s_b), over the last axis.

    s_b are the parameters of a Dirichlet distribution and s is their sum, x_b are counts and n is
    their sum: the likelihood of samples in their order.
    """
    from scipy.special import gammaln

    total = strengths.sum(axis=-1)
    terms = (gammaln(strengths + counts) - gammaln(strengths)).sum(axis=-1)
    result: FloatArray = gammaln(total) - gammaln(total + counts.sum(axis=-1)) + terms
    return result


def log_mixture(*weighted: tuple[float, FloatArray]) -> FloatArray:
    """The log-likelihood of a mixture, from weights and log-likelihoods."""
    terms = [np.log(weight) + log_likelihood for weight, log_likelihood in weighted]
    mixed: FloatArray = np.logaddexp.reduce(terms, axis=0)
    return mixed
