"""What has arrived and is not refused so far, in columns: a million reports, a few arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import ReportError
from robfcp.federation.faults import Fault
from robfcp.federation.marks import Check, Header, Objection, Votes

Whole = NDArray[np.int64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Refusal(NamedTuple):
    """A fault with where it came from: a file or a place in the list."""

    source: str
    fault: Fault


@dataclass(frozen=True)
class Arrivals:
    """(n,) reports without their counts.

    Parameters
    ----------
    clients
        Who sent them.
    sizes
        n_k, as they say.
    headers
        What reports share, each kind once.
    kinds
        Which of the headers each has.
    rows
        Where the counts of each stand.
    numbers
        As which of the reports each is known, from 0; repeats have none.
    distinct
        Whether no client occurs twice.
    """

    clients: list[str]
    sizes: Whole
    headers: list[Header]
    kinds: NDArray[np.int32]
    rows: Indices
    numbers: Indices
    distinct: bool

    def __len__(self) -> int:
        return len(self.clients)

    def votes(self, mask: Mask | None = None) -> Votes:
        """How many reports have each header, in the order of the first that has it."""
        kinds = self.kinds if mask is None else self.kinds[mask]
        if len(self.headers) == 1 and len(kinds):
            return {self.headers[0]: len(kinds)}
        used, first, number = np.unique(kinds, return_index=True, return_counts=True)
        order = np.argsort(first)
        return {self.headers[used[k]]: int(number[k]) for k in order}

    def alone(self) -> Mask:
        """(n,) whose client sent no other report."""
        if self.distinct:
            return np.ones(len(self), dtype=bool)
        times = Counter(self.clients)
        return np.fromiter((times[c] == 1 for c in self.clients), dtype=bool, count=len(self))

    def where(self, mask: Mask) -> Arrivals:
        """The chosen ones alone."""
        if mask.all():
            return self
        return self.taken(np.flatnonzero(mask))

    def taken(self, order: Indices) -> Arrivals:
        """The chosen ones in the given order."""
        return replace(
            self,
            clients=[self.clients[k] for k in order.tolist()],
            sizes=self.sizes[order],
            kinds=self.kinds[order],
            rows=self.rows[order],
            numbers=self.numbers[order],
        )

    def keep(self, refused: list[Refusal], check: Check) -> Arrivals:
        """Those whose header has no objection; the others join the refused."""
        objections = [check(header) for header in self.headers]
        wrong = np.array([one is not None for one in objections], dtype=bool)
        if not wrong.any():
            return self
        places = np.flatnonzero(wrong[self.kinds]).tolist()
        return self.without(refused, ((k, objections[self.kinds[k]]) for k in places))

    def without(
        self, refused: list[Refusal], objections: Iterable[tuple[int, Objection | None]]
    ) -> Arrivals:
        """The others; each one with an objection joins the refused, in words."""
        kept = np.ones(len(self), dtype=bool)
        for k, objection in objections:
            if objection is not None:
                client = self.clients[k]
                error = ReportError(client, *objection)
                fault = Fault(client, error.field, str(error))
                refused.append(Refusal(f"report #{int(self.numbers[k]) + 1}", fault))
                kept[k] = False
        return self.where(kept)
