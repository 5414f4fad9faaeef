"""Mistakes that happen at honest sites, before scoring: wrong coding, wrong model, wrong file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import share
from robfcp.errors import RobfcpError
from robfcp.lab.attacks.base import Indices, Pair, SampleAttack, honest

_TINY = 1e-12  # below any probability a report can tell from 0


@dataclass(frozen=True)
class SwappedLabels(SampleAttack):
    """Two classes are coded the wrong way round: y' = b where y = a, a where y = b.

    classes: which two; each client's two commonest if None.
    """

    classes: tuple[int, int] | None = None
    name: ClassVar[str] = "swapped-labels"

    def forge(
        self, samples: list[Pair], malicious: Indices, rng: np.random.Generator
    ) -> list[Pair]:
        """The client's samples with two labels exchanged."""
        return [self._swapped(*samples[k]) for k in malicious]

    def _swapped(self, probabilities: NDArray[Any], labels: NDArray[np.intp]) -> Pair:
        n_classes = probabilities.shape[1]
        commonest = np.argsort(-np.bincount(labels, minlength=n_classes), kind="stable")
        first, second = self.classes or commonest[:2]
        coding = np.arange(n_classes)
        coding[[first, second]] = second, first
        return probabilities, coding[labels]


@dataclass(frozen=True)
class OldModel(SampleAttack):
    """An earlier, worse model, emulated: p' = softmax(keep log p + noise z), z ~ N(0, 1).

    keep below 1 takes back what was learnt since; the noise is the errors made then.
    """

    keep: float = 0.5
    noise: float = 1.0
    name: ClassVar[str] = "old-model"

    def forge(
        self, samples: list[Pair], malicious: Indices, rng: np.random.Generator
    ) -> list[Pair]:
        """The client's labels with worse probabilities."""
        forged = []
        for k in malicious:
            probabilities, labels = samples[k]
            wander = self.noise * rng.standard_normal(probabilities.shape)
            forged.append((_softmax(self.keep * _logs(probabilities) + wander), labels))
        return forged


@dataclass(frozen=True)
class OtherClassOrder(SampleAttack):
    """Columns in another order: p'_c = p_pi(c), pi one cycle through all classes, drawn for each
    client, so that no column is where it belongs."""

    name: ClassVar[str] = "other-class-order"

    def forge(
        self, samples: list[Pair], malicious: Indices, rng: np.random.Generator
    ) -> list[Pair]:
        """The client's labels with permuted probabilities."""
        forged = []
        for k in malicious:
            probabilities, labels = samples[k]
            cycle = rng.permutation(probabilities.shape[1])
            order = np.empty_like(cycle)
            order[cycle] = np.roll(cycle, -1)
            forged.append((probabilities[:, order], labels))
        return forged


@dataclass(frozen=True)
class Temperature(SampleAttack):
    """Probabilities at another temperature t: p'_c ~ p_c^(1/t); below 1 sharper, above flatter."""

    temperature: float = 0.5
    name: ClassVar[str] = "temperature"

    def __post_init__(self) -> None:
        if not 0 < self.temperature < np.inf:
            raise RobfcpError(
                f"temperature: {self.temperature} is not positive; give 0.5 or 2, say"
            )

    def forge(
        self, samples: list[Pair], malicious: Indices, rng: np.random.Generator
    ) -> list[Pair]:
        """The client's labels with sharpened or flattened probabilities."""
        return [
            (_softmax(_logs(samples[k][0]) / self.temperature), samples[k][1]) for k in malicious
        ]


@dataclass(frozen=True)
class StaleFile(SampleAttack):
    """The wrong file is sent: that of another site, drawn among the honest ones for each client,
    whole, or as an old split of it that holds only a `share`."""

    share: float = 1.0
    name: ClassVar[str] = "stale-file"

    def __post_init__(self) -> None:
        share("share", self.share, "give 0.5, say", one=True)

    def forge(
        self, samples: list[Pair], malicious: Indices, rng: np.random.Generator
    ) -> list[Pair]:
        """Somebody else's samples."""
        sources = rng.choice(honest(malicious, len(samples)), len(malicious))
        forged = []
        for source in sources:
            probabilities, labels = samples[source]
            kept = np.sort(rng.permutation(len(labels))[: _part(self.share, len(labels))])
            forged.append((probabilities[kept], labels[kept]))
        return forged


@dataclass(frozen=True)
class Subset(SampleAttack):
    """Only a share of the samples is sent: the easy ones (greatest p of the label), or any."""

    share: float = 0.5
    which: Literal["easy", "any"] = "easy"
    name: ClassVar[str] = "subset"

    def __post_init__(self) -> None:
        share("share", self.share, "give 0.5, say", one=True)
        if self.which not in ("easy", "any"):
            raise RobfcpError(f"which: {self.which!r} is neither 'easy' nor 'any'")

    def forge(
        self, samples: list[Pair], malicious: Indices, rng: np.random.Generator
    ) -> list[Pair]:
        """A part of the client's samples."""
        forged = []
        for k in malicious:
            probabilities, labels = samples[k]
            order = rng.permutation(len(labels))
            if self.which == "easy":
                order = np.argsort(-probabilities[np.arange(len(labels)), labels], kind="stable")
            kept = np.sort(order[: _part(self.share, len(labels))])
            forged.append((probabilities[kept], labels[kept]))
        return forged


def _part(part: float, size: int) -> int:
    """The share of the size, at least one."""
    return max(1, round(part * size))


def _logs(probabilities: NDArray[Any]) -> NDArray[np.float64]:
    return np.log(np.maximum(np.asarray(probabilities, np.float64), _TINY))


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return softmax
