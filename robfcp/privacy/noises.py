"""The noise of all clients' counts together: none at all, or some of a stated law on each.

Whoever works on counts asks these objects, never whether reports are private: without noise every
answer is that nothing has to be allowed for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.errors import RobfcpError
from robfcp.privacy.budget import Privacy
from robfcp.privacy.noise import Noise

Marks = tuple[Privacy | None, ...]
Laws = tuple[Noise | None, ...]
Whole = NDArray[np.int64]
Rows = Sequence[int] | NDArray[np.integer[Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class NoNoise:
    """Counts as they were counted: nothing to allow for, nothing to say, nothing to refuse."""

    marks: Marks
    n_clients: int

    n_private = 0
    schema = 1  # of the first release's calibration files
    open_bins = 0  # at the top, whose upper edge bounds nothing
    keeps_sizes = True  # of a class, say, which are then sums of the counts

    def of(self, rows: Rows) -> NoNoise:
        """That of some clients."""
        return NoNoise((), len(rows))

    def mark(self, client: int) -> Privacy | None:
        """What one client states."""
        return None

    def laws(self, unit: int = 1) -> Laws:
        """(K,) the law of the noise on each of a client's counts; None where there is none."""
        return (None,) * self.n_clients

    def moving_laws(self, unit: int = 1) -> Laws:
        """The same, without noise that is so small that it never moves a count."""
        return self.laws(unit)

    def moves(self, unit: int = 1) -> bool:
        """Whether anybody's noise can move a count."""
        return False

    def variances(self, unit: int = 1, draws: int = 1) -> NDArray[np.float64]:
        """(K,) variance of the noise on each of a client's counts; 0 where there is none."""
        return np.zeros(self.n_clients)

    def draws(self, n_strata: int) -> int:
        """How many draws of noise one pooled count of so many strata holds."""
        return 1

    def sizes(self, totals: Whole) -> Whole:
        """(K,) numbers of samples that the totals of the counts show."""
        return totals

    def stated_sizes(self, sizes: Whole) -> list[int]:
        """The sizes that cannot be had from the counts, for a file."""
        return []

    def read_sizes(self, totals: Whole, unit: int, stated: Sequence[int]) -> Whole:
        """(K,) the sizes again, from a file's counts and what it states."""
        if stated:
            raise RobfcpError("sizes are stated though no report is private")
        if (totals % unit).any():
            raise RobfcpError("the losses of a site do not fall by whole samples")
        return totals // unit

    def check_listed(self, marks: Sequence[Privacy | None]) -> None:
        """Refuse a file's list of statements that cannot be one."""
        if marks:
            raise RobfcpError("privacy is stated though no report is private")

    def exact(self) -> NDArray[np.bool_]:
        """(K,) whose counts hold no noise."""
        return np.ones(self.n_clients, dtype=bool)

    def check_table(self, counts: NDArray[Any]) -> None:
        """Refuse what no table (K, H) of such counts can be."""
        if counts.ndim != 2 or counts.dtype.kind not in "iu" or (counts.size and counts.min() < 0):
            raise RobfcpError("counts: need a (clients, bins) array of non-negative integers")
        if not counts.any(axis=1).all():
            raise RobfcpError("counts: a site has no samples; leave it out")

    def table_sizes(self, counts: Whole, sizes: ArrayLike | None) -> tuple[Whole, bool]:
        """The n_k of a table (K, H), and whether they are known."""
        return counts.sum(axis=1), True

    def notes(self) -> tuple[str, ...]:
        """How private the reports are, in words: nothing, one budget, or the weakest of several."""
        return ()

    def joined(self, note: str) -> str:
        """A certificate's note, and that noise is paid for."""
        return note

    def statements(self) -> dict[str, int]:
        """Every budget in words, and how many reports have it."""
        return {}

    def assumptions(self) -> tuple[tuple[int, str], ...]:
        """What is taken for granted of the noise: of how many clients, and in words."""
        return ()

    def removed(self, counts: T, remove: Callable[[T], T], unit: int = 1) -> T:
        """The counts as `remove` leaves them, where there is noise to be taken out."""
        return counts

    def exact_only(self, what: T, unit: int = 1) -> T | None:
        """What can be had from exact counts alone; None where there is noise."""
        return what

    def refuse(self, words: str) -> None:
        """Refuse, in these words, what cannot be had from counts with noise."""


@dataclass(frozen=True)
class ClientNoise(NoNoise):
    """Counts of which some hold noise: `marks` says of every client what it states."""

    schema = 2
    open_bins = 1  # it holds what lies beyond the grid and what is no number: see `clamped`
    keeps_sizes = False

    @property
    def n_private(self) -> int:  # type: ignore[override]
        """The number of clients whose counts hold noise."""
        return sum(mark is not None for mark in self.marks)

    def of(self, rows: Rows) -> NoNoise:
        """That of some clients, who may have none."""
        chosen = [self.marks[k] for k in rows]
        return noise_of(chosen, len(chosen))

    def mark(self, client: int) -> Privacy | None:
        """What it states."""
        return self.marks[client]

    def laws(self, unit: int = 1) -> Laws:
        """(K,) the laws that the clients state."""
        return tuple(None if mark is None else mark.noise_on(unit) for mark in self.marks)

    def moving_laws(self, unit: int = 1) -> Laws:
        """The same, without the noise of huge budgets."""
        laws = self.laws(unit)
        return tuple(None if law is None or law.never_moves else law for law in laws)

    def moves(self, unit: int = 1) -> bool:
        """Whether anybody's noise can: not with huge budgets alone."""
        return any(law is not None for law in self.moving_laws(unit))

    def variances(self, unit: int = 1, draws: int = 1) -> NDArray[np.float64]:
        """(K,) variances by the stated laws."""
        own = np.array([0.0 if law is None else law.variance for law in self.laws(unit)])
        return own * draws

    def draws(self, n_strata: int) -> int:
        """One for each stratum reported."""
        return n_strata

    def sizes(self, totals: Whole) -> Whole:
        """The noisy totals, at least 1."""
        return np.maximum(totals, 1)

    def stated_sizes(self, sizes: Whole) -> list[int]:
        """All of them: noisy counts do not add up to them."""
        return sizes.tolist()

    def read_sizes(self, totals: Whole, unit: int, stated: Sequence[int]) -> Whole:
        """As they are stated."""
        return np.array(stated, dtype=np.int64)

    def check_listed(self, marks: Sequence[Privacy | None]) -> None:
        """One a client."""
        if len(marks) != self.n_clients:
            raise RobfcpError("privacy is not stated for every site")

    def exact(self) -> NDArray[np.bool_]:
        """(K,) who states no noise."""
        return np.array([mark is None for mark in self.marks], dtype=bool)

    def check_table(self, counts: NDArray[Any]) -> None:
        """Any whole numbers may come of noise."""
        if counts.ndim != 2 or counts.dtype.kind not in "iu":
            raise RobfcpError("counts: need a (clients, bins) array of integers")
        if len(self.marks) != len(counts):
            raise RobfcpError("privacy: need one entry a site")

    def table_sizes(self, counts: Whole, sizes: ArrayLike | None) -> tuple[Whole, bool]:
        """As given beside the counts; their totals where somebody hides its own."""
        if sizes is not None:
            return np.asarray(sizes).astype(np.int64), True
        if not any(mark is not None and mark.hides_size for mark in self.marks):
            raise RobfcpError("sizes: private counts need the true sizes beside them")
        return self.sizes(counts.sum(axis=1)), False

    def notes(self) -> tuple[str, ...]:
        """One budget, or the weakest of several."""
        stated = [mark for mark in self.marks if mark is not None]
        weakest = max(stated, key=lambda mark: (mark.epsilon, mark.delta))
        often = "each" if len(set(stated)) == 1 else "at least"
        number = f"{len(stated)} of {self.n_clients} reports"
        return (f"{number} are private, {often} {weakest.statement}.",)

    def joined(self, note: str) -> str:
        """The note and how many reports' noise is allowed for."""
        words = f"noise of {self.n_private} private reports is allowed for"
        return f"{note}; {words}" if note else words

    def statements(self) -> dict[str, int]:
        """Every budget in words, and how many reports have it."""
        return dict(Counter(mark.statement for mark in self.marks if mark is not None))

    def assumptions(self) -> tuple[tuple[int, str], ...]:
        """That the honest ones added what they state."""
        text = "honest sites with private reports added the noise that these state"
        return ((self.n_private, text),)

    def removed(self, counts: T, remove: Callable[[T], T], unit: int = 1) -> T:
        """With its noise taken out, where it moves anything."""
        return remove(counts) if self.moves(unit) else counts

    def exact_only(self, what: T, unit: int = 1) -> T | None:
        """Nothing, unless the noise moves nothing."""
        return None if self.moves(unit) else what

    def refuse(self, words: str) -> None:
        """Refuse in these words, unless the noise moves nothing."""
        if self.moves():
            raise RobfcpError(words)


def noise_of(marks: Privacy | Sequence[Privacy | None] | None, n_clients: int) -> NoNoise:
    """The noise of so many clients: what each states, one for all, or nothing.

    The one place that asks whether anybody's counts hold noise.
    """
    if marks is None:
        return NoNoise((), n_clients)
    stated = (marks,) * n_clients if isinstance(marks, Privacy) else tuple(marks)
    found = any(mark is not None for mark in stated)
    return ClientNoise(stated, n_clients) if found else NoNoise((), n_clients)
