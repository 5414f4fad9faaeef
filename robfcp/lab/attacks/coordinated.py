"""Attacks that hide among honest clients, work together, or aim at classes and at the format."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from robfcp.arguments import Rng
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.lab.attacks.base import (
    Array,
    Indices,
    Pair,
    PairAttack,
    Scene,
    ScoreAttack,
    Stage,
    attackers,
    quantile,
)
from robfcp.lab.attacks.simple import Coverage, Truncation

Copy = Literal["exact", "resampled", "jittered"]
JITTER = 0.1
LEVEL = 0.9


@dataclass(frozen=True)
class Mimic(ScoreAttack):
    """All attackers copy one honest client, chosen at random: v_k = v_b."""

    copy: Copy = "exact"
    name: ClassVar[str] = "mimic"

    def source(self, scene: Scene) -> Array:
        """The scores that are copied."""
        return scene.everybody[int(scene.rng.choice(scene.honest))]

    def forge(self, scene: Scene) -> list[Array]:
        source = self.source(scene)
        return [copied(source, len(own), self.copy, scene.rng) for own in scene.own]


@dataclass(frozen=True)
class MimicLow(Mimic):
    """All copy the honest client with the lowest `level` quantile: b = argmin_b q_level(s_b)."""

    copy: Copy = "resampled"
    level: float = LEVEL
    name = "mimic-low"
    place: ClassVar[int] = 0

    def source(self, scene: Scene) -> Array:
        return scene.everybody[scene.by_quantile(self.level)[self.place]]


@dataclass(frozen=True)
class MimicHigh(MimicLow):
    """All copy the honest client with the highest `level` quantile: b = argmax_b q_level(s_b)."""

    name = "mimic-high"
    place = -1


@dataclass(frozen=True)
class Clones(Mimic):
    """Tight collusion: all send the first attacker's truncated scores, so they look most alike."""

    level: float = 0.75
    name = "clones"

    def source(self, scene: Scene) -> Array:
        return Truncation(self.level).forge(scene)[0]


def copied(source: Array, size: int, copy: Copy, rng: np.random.Generator) -> Array:
    """`size` scores after the source: its own, drawn from it, or its own with a tenth redrawn.

    An exact copy of another size takes evenly spaced order statistics.
    """
    if copy == "resampled":
        return rng.choice(source, size)
    if copy not in ("exact", "jittered"):
        raise RobfcpError(f"copy: {copy!r} is none of 'exact', 'resampled', 'jittered'")
    positions = ((np.arange(size) + 0.5) * len(source) / size).astype(np.intp)
    same: Array = np.sort(source)[positions]
    if copy == "jittered":
        moved = rng.permutation(size)[: max(1, round(JITTER * size))]
        same[moved] = rng.choice(source, len(moved))
    return same


@dataclass(frozen=True)
class Displacement(ScoreAttack):
    """Each resamples a random client of the lowest `share` of honest ones, to have others expelled.

    With `upwards` they side with the highest instead.
    """

    share: float = 0.5
    level: float = LEVEL
    upwards: bool = False
    name = "displacement"

    def forge(self, scene: Scene) -> list[Array]:
        ranked = scene.by_quantile(self.level)[:: -1 if self.upwards else 1]
        subgroup = ranked[: max(1, round(self.share * len(ranked)))]
        drawn = (scene.everybody[int(scene.rng.choice(subgroup))] for _ in scene.own)
        return [scene.rng.choice(one, len(own)) for one, own in zip(drawn, scene.own, strict=True)]


@dataclass(frozen=True)
class Decoy(ScoreAttack):
    """The first attacker sends only maximal scores to draw attention; the others do `attack`."""

    attack: ScoreAttack = field(default_factory=Coverage)
    name = "decoy"

    def forge(self, scene: Scene) -> list[Array]:
        forged = self.attack.forge(scene)
        return [np.full(len(scene.own[0]), scene.bounds[1]), *forged[1:]]


@dataclass(frozen=True)
class Stairs(ScoreAttack):
    """Graded lies: attacker i of m redraws a share `most` i / m of its scores from below t.

    t is the honest `level` quantile; no two attackers lie equally, so that no gap shows.
    """

    most: float = 0.6
    level: float = 0.75
    name = "stairs"

    def forge(self, scene: Scene) -> list[Array]:
        low = scene.pool[scene.pool <= quantile(scene.pool, self.level)]
        forged = [own.copy() for own in scene.own]
        for number, own in enumerate(forged, start=1):
            hit = scene.rng.random(len(own)) < self.most * number / len(forged)
            own[hit] = scene.rng.choice(low, int(hit.sum()))
        return forged


@dataclass(frozen=True)
class Push(ScoreAttack):
    """Scores above the honest `level` quantile move just below the threshold they would raise.

    They are redrawn from honest scores between the 60% and the 90% quantile.
    """

    level: float = 0.85
    name = "push"

    def forge(self, scene: Scene) -> list[Array]:
        pool = scene.pool
        start, low, high = (quantile(pool, level) for level in (self.level, 0.6, LEVEL))
        near = pool[(pool >= low) & (pool <= high)]
        return [np.where(own > start, scene.rng.choice(near, len(own)), own) for own in scene.own]


@dataclass(frozen=True)
class Squeeze(ScoreAttack):
    """Neither easy nor hard: scores outside the honest `low` and `high` quantiles are redrawn from
    honest scores between them, beside which diverse clients look easier and harder at once."""

    low: float = 0.3
    high: float = 0.85
    name = "squeeze"

    def forge(self, scene: Scene) -> list[Array]:
        low, high = quantile(scene.pool, self.low), quantile(scene.pool, self.high)
        middle = scene.pool[(scene.pool >= low) & (scene.pool <= high)]
        drawn = ((own, scene.rng.choice(middle, len(own))) for own in scene.own)
        return [np.where((own < low) | (own > high), new, own) for own, new in drawn]


@dataclass(frozen=True)
class Hub(PairAttack):
    """Half of the attackers each send the exact mean of `of` honest reports, the others s' = low.

    A mean is closer to its parts than chance allows, and neighbouring hubs share a part: who joins
    close reports into one makes one of all honest clients.
    """

    of: int = 4
    name = "hub"

    def forge(self, scene: Scene) -> list[Pair]:
        forged = [(np.full(len(own), scene.bounds[0]), labels) for own, labels in scene.own]
        for number, (own, _) in enumerate(scene.own[: len(forged) // 2]):
            parts = np.arange(self.of) + number * (self.of - 1)
            chosen = [scene.everybody[k] for k in np.take(scene.honest, parts, mode="wrap")]
            scores, labels = (np.concatenate(part) for part in zip(*chosen, strict=True))
            places = (np.arange(len(own)) + 0.5) * len(scores) / len(own)
            order = np.lexsort((labels, scores))[places.astype(np.intp)]
            forged[number] = scores[order], labels[order]
        return forged


@dataclass(frozen=True)
class Ghost(PairAttack):
    """Near copies of the hardest honest clients, tails moved down: the copied look like liars.

    Attacker i takes the pairs of the i-th hardest client; scores above that client's own `level`
    quantile are redrawn from those below. Larger attackers repeat pairs.
    """

    level: float = 0.85
    name = "ghost"

    def forge(self, scene: Scene) -> list[Pair]:
        hardest = scene.by_quantile(LEVEL)[::-1]
        hardest = hardest[: max(1, min(len(scene.malicious), len(hardest) // 2))]
        forged = []
        for number, (own, _) in enumerate(scene.own):
            scores, labels = scene.everybody[hardest[number % len(hardest)]]
            order = np.resize(scene.rng.permutation(len(scores)), len(own))
            scores, labels = scores[order], labels[order]
            limit = quantile(scores, self.level)
            low = scene.rng.choice(scores[scores <= limit], len(scores))
            forged.append((np.where(scores > limit, low, scores), labels))
        return forged


@dataclass(frozen=True)
class PairMimic(PairAttack):
    """All draw (score, label) pairs from the easiest honest client: (s', y') ~ b with replacement.

    b is the one with the lowest `level` quantile; all scores are honest, and only the mix of labels
    is moved.
    """

    level: float = LEVEL
    name = "pair-mimic"

    def forge(self, scene: Scene) -> list[Pair]:
        source, labels = scene.everybody[scene.by_quantile(self.level)[0]]
        drawn = [scene.rng.integers(0, len(source), len(own)) for own, _ in scene.own]
        return [(source[chosen], labels[chosen]) for chosen in drawn]


@dataclass(frozen=True)
class ClassCapture(PairAttack):
    """All samples go into one class c, at one end of the range: y' = c, s' = high (or low).

    c is the one that the fewest honest clients hold, of those that any do: c = argmin_c #{k honest:
    n_kc > 0}, of equals the one with the fewest honest samples. High scores make the class's sets
    blow up, low ones its coverage fall.
    """

    upwards: bool = True
    name = "class-capture"

    def forge(self, scene: Scene) -> list[Pair]:
        score, label = scene.bounds[self.upwards], _rarest_class(scene)
        sizes = [len(own) for own, _ in scene.own]
        return [(np.full(size, score), np.full(size, label, np.intp)) for size in sizes]


@dataclass(frozen=True)
class ClassClaim(PairAttack):
    """A share of the samples is said to be of the rarest class (of `ClassCapture`), all easy: their
    scores are redrawn from the easier half of the honest ones."""

    share: float = 0.9
    name = "class-claim"

    def forge(self, scene: Scene) -> list[Pair]:
        easy = scene.pool[scene.pool <= quantile(scene.pool, 0.5)]
        label, forged = _rarest_class(scene), []
        for own, labels in scene.own:
            claimed = scene.rng.random(len(own)) < self.share
            scores = np.where(claimed, scene.rng.choice(easy, len(own)), own)
            forged.append((scores, np.where(claimed, label, labels)))
        return forged


def _rarest_class(scene: Scene) -> int:
    """argmin over the classes that occur of (#honest holders, #honest samples), the first one."""
    kept: list[Indices] = [scene.everybody[k][1] for k in scene.honest]
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
    on: ClassVar[Stage] = "reports"

    def __call__(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> list[bytes]:
        """JSON reports, those of malicious clients broken."""
        raw = [report.to_json() for report in data]
        bad = attackers(malicious, data.n_clients)
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
