"""Attacks that hide among benign clients, work together, or aim at classes and at the format.

Formulas call a client's scores s, the forged ones s', labels y and y', the ends of the range of
scores low and high.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from robfcp._typing import FloatArray, IndexArray
from robfcp._validation import Rng
from robfcp.experiments.attacks.base import (
    AttackContext,
    AttackFunction,
    Pair,
    Stage,
    malicious_indices,
    quantile,
)
from robfcp.experiments.attacks.mimic import copies_of, evenly_spaced
from robfcp.experiments.attacks.paper_attacks import coverage_attack
from robfcp.experiments.attacks.simple import truncation
from robfcp.federation import Federation

LEVEL = 0.9  # of the quantile by which clients are compared: the usual coverage


def collusion_attack(context: AttackContext, level: float = 0.75) -> list[FloatArray]:
    """Return copies of the first malicious client's truncated scores.

    No clients are closer to each other than these.
    """
    return copies_of(context, truncation(context, level)[0], "exact")


def displace_benign(
    context: AttackContext, fraction: float = 0.5, upwards: bool = False, level: float = LEVEL
) -> list[FloatArray]:
    """Return scores drawn from extreme benign clients, so that a defense expels the others.

    Parameters
    ----------
    context : AttackContext
        What the malicious clients know.
    fraction : float
        The fraction of the benign clients that are imitated, each malicious client imitating one
        of them at random.
    upwards : bool
        Whether they are those with the highest quantiles rather than the lowest.
    level : float
        Of the quantile.
    """
    ranked = context.benign_by_quantile(level)
    if upwards:
        ranked = ranked[::-1]
    imitated = ranked[: max(1, round(fraction * len(ranked)))]

    forged = []
    for scores in context.malicious_data:
        source = int(context.rng.choice(imitated))
        forged.append(context.rng.choice(context.all_data[source], len(scores)))
    return forged


def decoy(context: AttackContext, attack: AttackFunction = coverage_attack) -> list[FloatArray]:
    """Return maximal scores for the first client, which draws attention, and `attack` for others.

    It aims at defenses that look for the client farthest from all others.
    """
    _, high = context.bounds
    decoy_scores = np.full(len(context.malicious_data[0]), high)
    return [decoy_scores, *attack(context)[1:]]


def graded_truncation(
    context: AttackContext, max_removed: float = 0.6, level: float = 0.75
) -> list[FloatArray]:
    """Return scores truncated by degrees, so that no gap between clients shows.

    Malicious client i of m redraws a fraction `max_removed` i / m of its scores from benign scores
    at or below their `level` quantile.
    """
    benign_scores = context.benign_scores
    low_scores = benign_scores[benign_scores <= quantile(benign_scores, level)]
    forged = [scores.copy() for scores in context.malicious_data]
    for i, scores in enumerate(forged, start=1):
        is_redrawn = context.rng.random(len(scores)) < max_removed * i / len(forged)
        scores[is_redrawn] = context.rng.choice(low_scores, int(is_redrawn.sum()))
    return forged


def shift_below_threshold(context: AttackContext, level: float = 0.85) -> list[FloatArray]:
    """Return scores moved just below the threshold that they would raise.

    Scores above the benign `level` quantile are redrawn from benign scores between the 60% and
    the 90% quantile.
    """
    cutoff = quantile(context.benign_scores, level)
    scores_below_threshold = context.benign_scores_between(0.6, LEVEL)
    forged = []
    for scores in context.malicious_data:
        redrawn = context.rng.choice(scores_below_threshold, len(scores))
        forged.append(np.where(scores > cutoff, redrawn, scores))
    return forged


def two_sided_trimming(
    context: AttackContext, low: float = 0.3, high: float = 0.85
) -> list[FloatArray]:
    """Return scores without both tails.

    Scores outside the benign `low` and `high` quantiles are redrawn from benign scores between
    them. Beside these, diverse clients have too many small and too many large scores at once.
    """
    central_scores = context.benign_scores_between(low, high)
    lowest = central_scores.min()
    highest = central_scores.max()
    forged = []
    for scores in context.malicious_data:
        redrawn = context.rng.choice(central_scores, len(scores))
        is_outside = (scores < lowest) | (scores > highest)
        forged.append(np.where(is_outside, redrawn, scores))
    return forged


def benign_means(context: AttackContext, of: int = 4) -> list[Pair]:
    """Return exact means of benign reports for half of the clients, minima for the other half.

    A mean of `of` reports is closer to each of them than chance allows, and neighboring means
    share a report: a defense that merges close reports merges all benign clients into one.
    """
    low, _ = context.bounds
    forged = [(np.full(len(scores), low), labels) for scores, labels in context.malicious_data]
    n_means = len(forged) // 2
    for i, (old_scores, _) in enumerate(context.malicious_data[:n_means]):
        positions = np.arange(of) + i * (of - 1)
        sources = np.take(context.benign_indices, positions, mode="wrap")
        scores = np.concatenate([context.all_data[k][0] for k in sources])
        labels = np.concatenate([context.all_data[k][1] for k in sources])
        order = np.lexsort((labels, scores))
        selected = order[evenly_spaced(len(scores), len(old_scores))]
        forged[i] = scores[selected], labels[selected]
    return forged


def frame_hardest_clients(context: AttackContext, level: float = 0.85) -> list[Pair]:
    """Return near copies of the benign clients with the largest scores, upper tails moved down.

    Beside its near copy, the copied client looks malicious. Malicious client i takes the pairs of
    the i-th of these clients; scores above that client's own `level` quantile are redrawn from
    those below. A larger malicious client repeats pairs.
    """
    hardest_first = context.benign_by_quantile(LEVEL)[::-1]
    n_copied = max(1, min(len(context.malicious), len(hardest_first) // 2))
    forged = []
    for i, (old_scores, _) in enumerate(context.malicious_data):
        source_scores, source_labels = context.all_data[hardest_first[i % n_copied]]
        order = np.resize(context.rng.permutation(len(source_scores)), len(old_scores))
        scores = source_scores[order]
        labels = source_labels[order]

        cutoff = quantile(scores, level)
        low_scores = context.rng.choice(scores[scores <= cutoff], len(scores))
        forged.append((np.where(scores > cutoff, low_scores, scores), labels))
    return forged


def class_capture(context: AttackContext, upwards: bool = True) -> list[Pair]:
    """Return all samples in one class, at one end of the range: y' = c, s' = high (or low).

    c is the class that the fewest benign clients hold. High scores make the class's sets grow, low
    ones make its coverage fall.
    """
    low, high = context.bounds
    score = high if upwards else low
    label = _rarest_class(context)
    forged = []
    for scores, _ in context.malicious_data:
        size = len(scores)
        forged.append((np.full(size, score), np.full(size, label, np.intp)))
    return forged


def class_claim(context: AttackContext, fraction: float = 0.9) -> list[Pair]:
    """Return samples of which a fraction is claimed to be of the rarest class, with small scores.

    The scores of these are redrawn from the lower half of the benign ones.
    """
    benign_scores = context.benign_scores
    low_scores = benign_scores[benign_scores <= quantile(benign_scores, 0.5)]
    label = _rarest_class(context)
    forged = []
    for scores, labels in context.malicious_data:
        is_claimed = context.rng.random(len(scores)) < fraction
        redrawn = context.rng.choice(low_scores, len(scores))
        forged_scores = np.where(is_claimed, redrawn, scores)
        forged_labels = np.where(is_claimed, label, labels)
        forged.append((forged_scores, forged_labels))
    return forged


def _rarest_class(context: AttackContext) -> int:
    """Return the class that the fewest benign clients hold, of those that any do.

    c = argmin_c #{k benign: n_kc > 0}; of equals the class with the fewest benign samples, then
    the first one.
    """
    benign_labels: list[IndexArray] = [context.all_data[k][1] for k in context.benign_indices]
    n_classes = 1 + max(int(labels.max()) for labels in benign_labels)
    class_sizes = np.array([np.bincount(labels, minlength=n_classes) for labels in benign_labels])

    n_holders = (class_sizes > 0).sum(axis=0)
    n_samples = class_sizes.sum(axis=0)
    more_than_any = len(benign_labels) + 1
    sort_key = np.where(n_holders > 0, n_holders, more_than_any)
    return int(np.lexsort((n_samples, sort_key))[0])


@dataclass(frozen=True)
class Malformed:
    """Reports that break the format, each malicious client in another way.

    Works on a federation and gives the raw reports that the server would receive.
    """

    name: ClassVar[str] = "malformed"
    stage: ClassVar[Stage] = "reports"

    def __call__(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> list[bytes]:
        """Return JSON reports, those of the malicious clients broken.

        Parameters
        ----------
        data : Federation
            The reports before the attack.
        malicious : array_like
            The positions of the malicious clients, or a mask of all clients.
        rng : int, Generator or None
            A seed or a generator.
        """
        raw_reports = [report.to_json() for report in data]
        malicious_rows = malicious_indices(malicious, data.n_clients)
        n_defects = N_BROKEN_FILES + len(_WRONG_FIELDS)
        defects = np.arange(len(malicious_rows)) % n_defects
        shuffled_defects = np.random.default_rng(rng).permuted(defects)
        for k, defect in zip(malicious_rows, shuffled_defects, strict=True):
            raw_reports[k] = _break_report(raw_reports[k], defect)
        return raw_reports


N_BROKEN_FILES = 3  # defects of the JSON itself, before those of its fields

_WRONG_FIELDS: tuple[dict[str, object], ...] = (
    {"client": "", "n_samples": 1},
    {"n_samples": 10**9},
    {"n_samples": -5},
    {"counts": [-1, 1e308, "x"]},
    {"binning": {"name": "uniform", "parameters": {"bins": 10**12}}},
    {"strata": {"by": "class", "names": 10**6, "cell_steps": [0], "counts": [1]}},
)


def _break_report(raw: bytes, defect: int) -> bytes:
    """Return a report broken in one of several ways: cut, not JSON, no report, or wrong fields."""
    if defect == 0:
        return raw[: len(raw) // 2]
    if defect == 1:
        return b"\xff\xfe" + raw
    if defect == 2:
        return b"[]"
    fields = {**json.loads(raw), **_WRONG_FIELDS[defect - N_BROKEN_FILES]}
    return json.dumps(fields).encode()
