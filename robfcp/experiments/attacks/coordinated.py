"""Attacks that hide among honest clients, work together, or aim at classes and at the format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from robfcp._validation import Rng
from robfcp.errors import RobfcpError
from robfcp.experiments.attacks.base import (
    AttackContext,
    AttackFunction,
    FloatArray,
    IndexArray,
    Pair,
    Stage,
    malicious_indices,
    quantile,
)
from robfcp.experiments.attacks.simple import coverage_attack, truncation
from robfcp.federation import Federation

Copy = Literal["exact", "resampled", "jittered"]
JITTER = 0.1
LEVEL = 0.9


def mimic_attack(scene: AttackContext, copy: Copy = "exact") -> list[FloatArray]:
    """All attackers copy one honest client, chosen at random: v_k = v_b."""
    return _copies(scene, scene.all_data[int(scene.rng.choice(scene.benign_indices))], copy)


def mimic_low(
    scene: AttackContext, copy: Copy = "resampled", level: float = LEVEL
) -> list[FloatArray]:
    """All copy the honest client with the lowest `level` quantile: b = argmin_b q_level(s_b)."""
    return _copies(scene, scene.all_data[scene.benign_by_quantile(level)[0]], copy)


def mimic_high(
    scene: AttackContext, copy: Copy = "resampled", level: float = LEVEL
) -> list[FloatArray]:
    """All copy the honest client with the highest `level` quantile: b = argmax_b q_level(s_b)."""
    return _copies(scene, scene.all_data[scene.benign_by_quantile(level)[-1]], copy)


def collusion_attack(scene: AttackContext, level: float = 0.75) -> list[FloatArray]:
    """Tight collusion: all send the first attacker's truncated scores, so they look most alike."""
    return _copies(scene, truncation(scene, level)[0], "exact")


def _copies(scene: AttackContext, source: FloatArray, copy: Copy) -> list[FloatArray]:
    """Scores after the source: its own, drawn from it, or its own with a tenth redrawn.

    An exact copy of another size takes evenly spaced order statistics.
    """
    if copy not in ("exact", "resampled", "jittered"):
        raise RobfcpError(f"copy: {copy!r} is none of 'exact', 'resampled', 'jittered'")
    forged: list[FloatArray] = []
    for size in map(len, scene.malicious_data):
        if copy == "resampled":
            forged.append(scene.rng.choice(source, size))
            continue
        forged.append(np.sort(source)[_evenly(len(source), size)])
        if copy == "jittered":
            moved = scene.rng.permutation(size)[: max(1, round(JITTER * size))]
            forged[-1][moved] = scene.rng.choice(source, len(moved))
    return forged


def _evenly(n: int, size: int) -> IndexArray:
    """`size` places among n, evenly spaced."""
    return ((np.arange(size) + 0.5) * n / size).astype(np.intp)


def displace_benign(
    scene: AttackContext, share: float = 0.5, upwards: bool = False, level: float = LEVEL
) -> list[FloatArray]:
    """Each resamples a random client of the lowest `share` of honest ones, to have others expelled.

    With `upwards` they side with the highest instead.
    """
    ranked = scene.benign_by_quantile(level)[:: -1 if upwards else 1]
    subgroup = ranked[: max(1, round(share * len(ranked)))]
    drawn = (scene.all_data[int(scene.rng.choice(subgroup))] for _ in scene.malicious_data)
    return [
        scene.rng.choice(one, len(own))
        for one, own in zip(drawn, scene.malicious_data, strict=True)
    ]


def decoy(scene: AttackContext, attack: AttackFunction = coverage_attack) -> list[FloatArray]:
    """The first attacker sends only maximal scores to draw attention; the others do `attack`."""
    return [np.full(len(scene.malicious_data[0]), scene.bounds[1]), *attack(scene)[1:]]


def graded_truncation(
    scene: AttackContext, most: float = 0.6, level: float = 0.75
) -> list[FloatArray]:
    """Graded lies: attacker i of m redraws a share `most` i / m of its scores from below t.

    t is the honest `level` quantile; no two attackers lie equally, so that no gap shows.
    """
    low = scene.benign_scores[scene.benign_scores <= quantile(scene.benign_scores, level)]
    forged = [own.copy() for own in scene.malicious_data]
    for number, own in enumerate(forged, start=1):
        hit = scene.rng.random(len(own)) < most * number / len(forged)
        own[hit] = scene.rng.choice(low, int(hit.sum()))
    return forged


def shift_below_threshold(scene: AttackContext, level: float = 0.85) -> list[FloatArray]:
    """Scores above the honest `level` quantile move just below the threshold they would raise.

    They are redrawn from honest scores between the 60% and the 90% quantile.
    """
    start, near = quantile(scene.benign_scores, level), scene.benign_scores_between(0.6, LEVEL)
    return [
        np.where(own > start, scene.rng.choice(near, len(own)), own) for own in scene.malicious_data
    ]


def two_sided_trimming(
    scene: AttackContext, low: float = 0.3, high: float = 0.85
) -> list[FloatArray]:
    """Neither easy nor hard: scores outside the honest `low` and `high` quantiles are redrawn from
    honest scores between them, beside which diverse clients look easier and harder at once."""
    middle = scene.benign_scores_between(low, high)
    drawn = ((own, scene.rng.choice(middle, len(own))) for own in scene.malicious_data)
    least, most = middle.min(), middle.max()
    return [np.where((own < least) | (own > most), new, own) for own, new in drawn]


def benign_means(scene: AttackContext, of: int = 4) -> list[Pair]:
    """Half of the attackers each send the exact mean of `of` honest reports, the others s' = low.

    A mean is closer to its parts than chance allows, and neighbouring hubs share a part: who joins
    close reports into one makes one of all honest clients.
    """
    forged = [(np.full(len(own), scene.bounds[0]), labels) for own, labels in scene.malicious_data]
    for number, (own, _) in enumerate(scene.malicious_data[: len(forged) // 2]):
        parts = np.arange(of) + number * (of - 1)
        chosen = [scene.all_data[k] for k in np.take(scene.benign_indices, parts, mode="wrap")]
        scores, labels = (np.concatenate(part) for part in zip(*chosen, strict=True))
        order = np.lexsort((labels, scores))[_evenly(len(scores), len(own))]
        forged[number] = scores[order], labels[order]
    return forged


def frame_hardest_clients(scene: AttackContext, level: float = 0.85) -> list[Pair]:
    """Near copies of the hardest honest clients, tails moved down: the copied look like liars.

    Attacker i takes the pairs of the i-th hardest client; scores above that client's own `level`
    quantile are redrawn from those below. Larger attackers repeat pairs.
    """
    hardest = scene.benign_by_quantile(LEVEL)[::-1]
    hardest = hardest[: max(1, min(len(scene.malicious), len(hardest) // 2))]
    forged = []
    for number, (own, _) in enumerate(scene.malicious_data):
        scores, labels = scene.all_data[hardest[number % len(hardest)]]
        order = np.resize(scene.rng.permutation(len(scores)), len(own))
        scores, labels = scores[order], labels[order]
        limit = quantile(scores, level)
        low = scene.rng.choice(scores[scores <= limit], len(scores))
        forged.append((np.where(scores > limit, low, scores), labels))
    return forged


def pair_mimic(scene: AttackContext, level: float = LEVEL) -> list[Pair]:
    """All draw (score, label) pairs from the easiest honest client: (s', y') ~ b with replacement.

    b is the one with the lowest `level` quantile; all scores are honest, and only the mix of labels
    is moved.
    """
    source, labels = scene.all_data[scene.benign_by_quantile(level)[0]]
    drawn = [scene.rng.integers(0, len(source), len(own)) for own, _ in scene.malicious_data]
    return [(source[chosen], labels[chosen]) for chosen in drawn]


def class_capture(scene: AttackContext, upwards: bool = True) -> list[Pair]:
    """All samples go into one class c, at one end of the range: y' = c, s' = high (or low).

    c is the one that the fewest honest clients hold, of those that any do: c = argmin_c #{k honest:
    n_kc > 0}, of equals the one with the fewest honest samples. High scores make the class's sets
    blow up, low ones its coverage fall.
    """
    score, label = scene.bounds[upwards], _rarest_class(scene)
    sizes = [len(own) for own, _ in scene.malicious_data]
    return [(np.full(size, score), np.full(size, label, np.intp)) for size in sizes]


def class_claim(scene: AttackContext, share: float = 0.9) -> list[Pair]:
    """A share of the samples is said to be of the rarest class (of `class_capture`), all easy:
    their scores are redrawn from the easier half of the honest ones."""
    easy = scene.benign_scores[scene.benign_scores <= quantile(scene.benign_scores, 0.5)]
    label, forged = _rarest_class(scene), []
    for own, labels in scene.malicious_data:
        claimed = scene.rng.random(len(own)) < share
        scores = np.where(claimed, scene.rng.choice(easy, len(own)), own)
        forged.append((scores, np.where(claimed, label, labels)))
    return forged


def _rarest_class(scene: AttackContext) -> int:
    """argmin over the classes that occur of (#honest holders, #honest samples), the first one."""
    kept: list[IndexArray] = [scene.all_data[k][1] for k in scene.benign_indices]
    n_classes = 1 + max(int(labels.max()) for labels in kept)
    sizes = np.array([np.bincount(labels, minlength=n_classes) for labels in kept])
    holders, samples = (sizes > 0).sum(axis=0), sizes.sum(axis=0)
    return int(np.lexsort((samples, np.where(holders > 0, holders, len(kept) + 1)))[0])


@dataclass(frozen=True)
class Malformed:
    """Reports that break the format, a different fault for each attacker.

    Works on a federation and gives the raw reports the server would receive.
    """

    name: ClassVar[str] = "malformed"
    stage: ClassVar[Stage] = "reports"

    def __call__(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> list[bytes]:
        """JSON reports, those of malicious clients broken."""
        raw = [report.to_json() for report in data]
        bad = malicious_indices(malicious, data.n_clients)
        faults = np.random.default_rng(rng).permuted(np.arange(len(bad)) % (3 + len(_EDITS)))
        for k, fault in zip(bad, faults, strict=True):
            cut = (raw[k][: len(raw[k]) // 2], b"\xff\xfe" + raw[k], b"[]")
            edits = [json.dumps({**json.loads(raw[k]), **edit}).encode() for edit in _EDITS]
            raw[k] = (*cut, *edits)[fault]
        return raw


_EDITS: tuple[dict[str, object], ...] = (
    {"client": "", "n_samples": 1},
    {"n_samples": 10**9},
    {"n_samples": -5},
    {"counts": [-1, 1e308, "x"]},
    {"grid": {"name": "uniform", "parameters": {"bins": 10**12}}},
    {"strata": {"by": "class", "names": 10**6, "steps": [0], "counts": [1]}},
)
