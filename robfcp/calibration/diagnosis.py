"""The diagnosis: what a site's report looks like, in words a clinician reads.

It reads counts and whom the calibration trusts; which defence decided that is all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration.calibration import Calibration
from robfcp.calibration.covered import covered_at_sites
from robfcp.errors import RobfcpError
from robfcp.federation import Counts, Federation, comparable
from robfcp.grid import Grid

SURE = 20.0  # a part of another report by chance: less than e^-20
MOST_CELLS = 5_000_000  # beyond that only whole copies are looked for
FEWEST_CELLS = 5

Whole = NDArray[np.int64]


def copied_from(federation: Federation, clients: NDArray[np.intp]) -> dict[int, tuple[int, bool]]:
    """For each of the clients whose report is another's: whose, and whether it is all of it.

    A report is a part of another where none of its counts exceeds the other's and the chance that
    as many scores, drawn as all sites' are, fall into the other's cells is below e^-20 / K.
    """
    strata = federation.strata
    found: dict[int, tuple[int, bool]] = {}
    if strata is not None:
        rows = {int(k): r for r, k in enumerate(strata.rows)}
        chosen = [rows[k] for k in clients.tolist() if k in rows]
        for row, (other, whole) in _copies(strata.table, chosen).items():
            found[int(strata.rows[row])] = int(strata.rows[other]), whole
        clients = np.array([k for k in clients.tolist() if k not in rows], dtype=np.intp)
    return found | _copies(federation.table, clients.tolist())


def _copies(counts: Counts, chosen: list[int]) -> dict[int, tuple[int, bool]]:
    starts, cells, values = counts.entries()
    first: dict[bytes, list[int]] = {}
    for k in range(len(starts) - 1):
        here = slice(int(starts[k]), int(starts[k + 1]))
        key = cells[here].astype(np.int64).tobytes() + values[here].astype(np.int64).tobytes()
        first.setdefault(key, []).append(k)
    same = {k: group for group in first.values() if len(group) > 1 for k in group}
    share = counts.pooled(None) / max(1, int(counts.pooled(None).sum()))
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    found: dict[int, tuple[int, bool]] = {}
    for k in chosen:
        here = slice(int(starts[k]), int(starts[k + 1]))
        if here.stop - here.start < FEWEST_CELLS:
            continue
        if k in same:
            found[k] = next(other for other in same[k] if other != k), True
        elif len(chosen) * len(cells) <= MOST_CELLS:
            other = _part_of(
                k,
                own=cells[here],
                numbers=values[here],
                owner=owner,
                cells=cells,
                values=values,
                share=share,
            )
            if other is not None:
                found[k] = other, False
    return found


def _part_of(
    k: int,
    own: Whole,
    numbers: Whole,
    owner: Whole,
    cells: Whole,
    values: Whole,
    share: NDArray[np.float64],
) -> int | None:
    """The site whose counts hold all of this one's, too many for chance."""
    place = np.searchsorted(own, cells).clip(max=len(own) - 1)
    inside = (own[place] == cells) & (values >= numbers[place])
    n_rows = int(owner[-1]) + 1
    held = np.bincount(owner[inside], minlength=n_rows)
    held[k] = 0
    for other in np.flatnonzero(held == len(own)):
        reach = share[cells[owner == other]].sum()
        if -int(numbers.sum()) * np.log(max(reach, 1e-12)) > SURE + np.log(n_rows):
            return int(other)
    return None


PLACES = 12  # equal parts of the others' scores
SHARES = 10  # of what is left, for a wrong label
FEWEST = 20  # scores of others that a class needs to be compared with


def places(own: NDArray[Any], others: Whole) -> Array:
    """(C, B) how many of a site's scores of each class fall into each twelfth of the others'.

    Both are (C, H) counts. A score in a bin that holds the others' ranks from u to v is spread
    evenly over [u, v], so that scores drawn as the others' are uniform whatever ties there are. A
    class of which the others have fewer than 20 is left empty.
    """
    found = np.zeros((len(own), PLACES))
    edges = np.arange(PLACES + 1) / PLACES
    for c in np.flatnonzero(own.any(axis=1) & (others.sum(axis=1) >= FEWEST)):
        bins = np.flatnonzero(own[c])
        upper = np.cumsum(others[c]) / others[c].sum()
        high = upper[bins]
        low = high - others[c, bins] / others[c].sum()
        width = np.maximum(high - low, 1e-9)
        low = np.minimum(low, 1 - width)
        reached = np.clip((edges - low[:, None]) / width[:, None], 0, 1)
        found[c] = own[c, bins] @ np.diff(reached, axis=1)
    return found


def wrong_places(others: Whole, grid: Grid) -> Array | None:
    """(C, B) shares of the places where scores of wrong labels fall; None on other grids.

    A score s on [0, 1] leaves s of the probability to the other labels; a wrong one gets a share w
    of that, Beta(1, C - 2) as if drawn evenly from all ways to share it, and the score 1 - w s.
    """
    upper = grid.upper
    if len(others) < 2 or not 0 < upper[0] <= upper[-1] <= 1:
        return None
    share = others.sum(axis=0) / max(1, int(others.sum()))
    middle = (np.append(0, upper[:-1]) + upper) / 2
    ranks = (np.arange(SHARES) + 0.5) / SHARES
    parts = np.ones(1) if len(others) == 2 else 1 - ranks ** (1 / (len(others) - 2))
    wrong = np.zeros(grid.n_bins)
    for part in parts:
        place = grid.edge_at(1 - part * middle)
        wrong += np.bincount(place, weights=share, minlength=grid.n_bins) / len(parts)
    found = places(np.broadcast_to(wrong, others.shape), others)
    return found / np.maximum(found.sum(axis=1, keepdims=True), 1e-12)


class SiteTables:
    """Each site's counts beside the trusted others': by class where it keeps them, else pooled."""

    def __init__(self, federation: Federation, trusted: NDArray[np.bool_]) -> None:
        self._federation, self._trusted = federation, trusted
        strata = federation.strata
        self._strata = strata
        self._row = {} if strata is None else {int(k): r for r, k in enumerate(strata.rows)}
        self._pooled = federation.pooled(trusted)[None, :]
        if strata is not None:
            self._by_class = self._shaped(strata.table.pooled(trusted[strata.rows]))

    def of(self, client: int) -> tuple[Whole, Whole, tuple[str, ...]]:
        """The site's (C, H) counts, the trusted others', and the classes' names: () if pooled."""
        row = self._row.get(client)
        if self._strata is None or row is None:
            own, kept = self._federation.table.row(client)[None, :], self._pooled
            names: tuple[str, ...] = ()
        else:
            own, kept = self._shaped(self._strata.table.row(row)), self._by_class
            names = self._strata.labels
        return own, kept - own if self._trusted[client] else kept, names

    def _shaped(self, row: Whole) -> Whole:
        return row.reshape(-1, self._federation.grid.n_bins)


Array = NDArray[np.float64]
Kind = Literal["alike", "swapped", "mixed-up", "worse", "sharper", "flatter", "easy", "unclear"]


@dataclass(frozen=True)
class ScoreLaw:
    """Shares of the places: Beta(a, b), `bottom` of it moved to the lowest place."""

    a: float
    b: float
    strength: float
    bottom: float = 0.0

    def shares(self) -> Array:
        """(B,) expected shares times the strength: the parameters of a Dirichlet distribution."""
        from scipy.special import betainc

        mass = np.diff(betainc(self.a, self.b, np.arange(PLACES + 1) / PLACES)) + 1e-4
        mass *= (1 - self.bottom) / mass.sum()
        mass[0] += self.bottom
        return self.strength * mass


ALIKE, SHIFTED = ScoreLaw(1, 1, 45), ScoreLaw(1, 1, 15)
WRONG, RATHER_WRONG = ScoreLaw(1.1, 0.35, 8), ScoreLaw(1.6, 0.75, 25)
NOISIER, DULLER = ScoreLaw(1.5, 0.65, 20, bottom=0.08), ScoreLaw(2.3, 1.2, 15)
SHARPER, EASY = ScoreLaw(0.3, 0.45, 35), ScoreLaw(1.2, 3.3, 10)
FLATTER, MUCH_FLATTER = ScoreLaw(3.4, 2, 10), ScoreLaw(8, 1.6, 10)
ANYTHING = ScoreLaw(0.8, 0.8, 3)
MIX = 40  # how alike the sites' shares of the classes are
ODD_CLASS = 0.05  # the share of the classes that may be shifted, or anything at all
RARE = 3.0  # a rarer explanation has to be better by e^3
ODDER = 4.0


@dataclass(frozen=True)
class Explanation:
    """One of them with its log-likelihood; `classes` are those that it names."""

    kind: Kind
    likelihood: float
    classes: tuple[int, ...] = ()


def explanations(
    placed: Array,
    sizes: Array,
    expected: Array,
    wrong_shares: Array | None,
    doubt: float,
    *,
    labels: bool,
) -> list[Explanation]:
    """All of them, the likeliest first.

    Parameters
    ----------
    placed
        (C, B) as `places` gives them.
    sizes
        (C,) the site's samples of each class.
    expected
        (C,) the others' shares of the classes.
    wrong_shares
        (C, B) where scores of wrong labels would fall, if that is known.
    doubt
        How far the model is from sure: then wrong labels do not stand out.
    labels
        Whether the rows are classes, so that they can be confused with each other.
    """
    law = {one: _likelihood(one, placed) for one in _LAWS}
    wrong = _either((0.5, law[WRONG]), (0.5, law[RATHER_WRONG]))
    if wrong_shares is not None:
        told = _dirichlet(WRONG.strength * (wrong_shares + 0.002), placed)
        wrong = _either((1 - doubt, told), (doubt, law[RATHER_WRONG]))
    worse = _either((0.6, law[NOISIER]), (0.4, law[DULLER]))
    rest = _alike(law[ALIKE], law[SHIFTED])
    mixes = Mixes(sizes, expected)
    found = [Explanation("alike", float(rest.sum()) + mixes.usual)]
    models: dict[Kind, Array] = {
        "worse": worse,
        "sharper": law[SHARPER],
        "flatter": _either((0.7, law[FLATTER]), (0.3, law[MUCH_FLATTER])),
        "easy": law[EASY],
    }
    for kind, one in models.items():
        softened = _either((1 - ODD_CLASS, one), (ODD_CLASS, law[ANYTHING]))
        found.append(Explanation(kind, float(softened.sum()) + mixes.usual))
    held = np.flatnonzero(placed.any(axis=1))
    if labels and len(held) > 1:
        found.append(_swapped(held, rest, wrong, mixes))
    if not labels or len(held) != 2:
        confused = _either((0.9, wrong), (0.1, law[ANYTHING]))[held]
        mix = float(np.logaddexp(mixes.usual, mixes.anything) - np.log(2))
        found.append(Explanation("mixed-up", float(confused.sum()) + mix))
    every = [(0.4, law[ALIKE]), (0.1, wrong), (0.1, law[ANYTHING])]
    every += [(0.1, one) for one in models.values()]
    odd = held[(law[ALIKE] < _either(*every) - 2)[held]]
    unclear = float(_either(*every).sum()) + mixes.usual - ODDER
    found.append(Explanation("unclear", unclear, tuple(odd.tolist())))
    return sorted(found, key=lambda one: -one.likelihood)


def law_likelihoods(placed: Array) -> tuple[Array, Array]:
    """(K,) of sites without classes: that of the likeliest law, and that of being alike."""
    law = {one: _likelihood(one, placed) for one in _LAWS}
    return np.max(list(law.values()), axis=0), _alike(law[ALIKE], law[SHIFTED])


def _alike(alike: Array, shifted: Array) -> Array:
    """As the others, but for a few classes."""
    return _either((1 - ODD_CLASS, alike), (ODD_CLASS, shifted))


def _swapped(held: NDArray[np.intp], rest: Array, wrong: Array, mixes: Mixes) -> Explanation:
    """Two classes are each other's: both look wrong and the rest does not."""
    first, second = np.triu_indices(len(held), 1)
    first, second = held[first], held[second]
    gain = wrong - rest
    pairs = rest.sum() + gain[first] + gain[second] + mixes.exchanged(first, second)
    best = int(np.argmax(pairs))
    average = float(np.logaddexp.reduce(pairs) - np.log(len(pairs)))
    return Explanation("swapped", average, (int(first[best]), int(second[best])))


class Mixes:
    """Log-likelihoods of a site's numbers of samples by class."""

    def __init__(self, sizes: Array, expected: Array) -> None:
        from scipy.special import gammaln

        floor = expected + 0.5 / max(1, len(expected)) * 0.01
        strengths = MIX * floor / floor.sum()
        self._terms: Array = gammaln(strengths[None, :] + sizes[:, None]) - gammaln(strengths)
        self._first = float(gammaln(MIX) - gammaln(MIX + sizes.sum()))
        self._as_others = self._first + float(np.trace(self._terms))
        self.anything = _dirichlet(np.ones(len(sizes)), sizes)
        self.usual = float(np.logaddexp(self._as_others, self.anything - RARE))

    def exchanged(self, first: NDArray[np.intp], second: NDArray[np.intp]) -> Array:
        """(P,) for pairs of classes: as the others' mix, with the two exchanged, or any."""
        own = np.diag(self._terms)
        swapped = self._as_others - own[first] - own[second]
        swapped = swapped + self._terms[first, second] + self._terms[second, first]
        either = np.logaddexp(self._as_others, swapped) - np.log(2)
        both: Array = np.logaddexp(either, self.anything - RARE)
        return both

    @property
    def unlike(self) -> bool:
        """Whether the site's mix is better explained by anything than by the others'."""
        return bool(self.anything - RARE > self._as_others)


def _likelihood(law: ScoreLaw, placed: Array) -> Array:
    """(C,) log-likelihoods of the rows: Dirichlet-multinomial, 0 for an empty row."""
    return _dirichlet(_parameters(law), placed)


@cache
def _parameters(law: ScoreLaw) -> Array:
    return law.shares()


def _dirichlet(strengths: Array, counts: Array) -> Array:
    """log of Gamma(s) / Gamma(s + n) prod_b Gamma(s_b + x_b) / Gamma(s_b)."""
    from scipy.special import gammaln

    total = strengths.sum(axis=-1)
    terms = (gammaln(strengths + counts) - gammaln(strengths)).sum(axis=-1)
    result: Array = gammaln(total) - gammaln(total + counts.sum(axis=-1)) + terms
    return result


def _either(*weighted: tuple[float, Array]) -> Array:
    """The log-likelihood of a mixture."""
    mixed: Array = np.logaddexp.reduce([np.log(w) + one for w, one in weighted], axis=0)
    return mixed


_LAWS = (
    *(ALIKE, SHIFTED, ANYTHING, EASY, SHARPER),
    *(WRONG, RATHER_WRONG, NOISIER, DULLER, FLATTER, MUCH_FLATTER),
)


EDGES = np.arange(PLACES + 1) / PLACES
_ENTRIES = 2**16  # handled at a time


def ordinary(
    federation: Federation, trusted: NDArray[np.bool_], *, certain: float, equal: float
) -> NDArray[np.bool_]:
    """(K,) whether no explanation is better than "alike" by nearly `certain`, and no bin is full.

    All sites at once and from above, so that whoever is left can be looked at by itself: no mixture
    of laws is likelier than the likeliest of them. Nobody is ordinary where reports are by class or
    the others have few scores. Counts must be exact.
    """
    found = np.zeros(federation.n_clients, dtype=bool)
    starts, bins, values = federation.entries()
    rising = np.diff(bins.astype(np.int64)) > 0
    rising[starts[1:-1] - 1] = True
    if federation.strata is not None or not rising.all():
        return found
    pooled = federation.pooled(trusted)
    for rows in _blocks(starts):
        here = slice(starts[rows.start], starts[rows.stop])
        first = starts[rows] - starts[rows.start]
        counts = values[here].astype(np.int64)
        own = np.add.reduceat(counts, first)
        placed, others = _placed(counts, bins[here], first, own, pooled, trusted[rows])
        best, alike = law_likelihoods(placed)
        full = np.maximum.reduceat(counts, first) >= equal * own
        found[rows] = (best - alike < certain - 1) & ~full & (others >= FEWEST)
    return found


def _placed(
    counts: NDArray[np.int64],
    bins: NDArray[np.integer],
    first: NDArray[np.int64],
    own: NDArray[np.int64],
    pooled: NDArray[np.int64],
    trusted: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(R, B) what `places` finds for each site, and (R,) the scores it is compared with."""
    lengths = np.diff(first, append=len(counts))
    row = np.repeat(np.arange(len(first)), lengths)
    running = np.cumsum(counts)
    running -= np.repeat((running - counts)[first], lengths)
    among = trusted[row]  # a trusted site's own scores are none of the others'
    others = pooled.sum() - own * trusted
    total = np.maximum(others, 1)[row]
    high = (np.cumsum(pooled)[bins] - running * among) / total
    low = high - (pooled[bins] - counts * among) / total
    width = np.maximum(high - low, 1e-9)
    low = np.minimum(low, 1 - width)
    reached = np.clip((EDGES - low[:, None]) / width[:, None], 0, 1)
    return np.add.reduceat(counts[:, None] * np.diff(reached, axis=1), first, axis=0), others


def _blocks(starts: NDArray[np.int64]) -> Iterator[slice]:
    """Slices of rows with a bounded number of entries."""
    first = 0
    while first < len(starts) - 1:
        last = int(np.searchsorted(starts, starts[first] + _ENTRIES, side="right")) - 1
        last = max(last, first + 1)
        yield slice(first, last)
        first = last


Cause = Literal[
    "labels swapped",
    "labels mixed up",
    "scores all equal",
    "copy",
    "part of another report",
    "another model",
    "probabilities too extreme",
    "much smaller spread",
    "hard cases missing",
    "other mix of classes",
    "other cases",
    "not told",
]


@dataclass(frozen=True)
class Diagnosis:
    """What a site's report looks like, for people.

    Parameters
    ----------
    client
        The site.
    trusted
        Whether it was used; then it is listed because it deserves a look.
    cause
        What it looks like, in two or three words; "not told" where the report does not say.
    finding
        The same as a clause.
    advice
        What to check.
    covered
        The share of its own reported cases that the calibration covers; NaN where noise hides it.
    wanted
        The share that was asked for.
    sure
        Whether nothing else explains the report nearly as well.
    instead
        The next best cause where it is not.
    classes
        The classes that are named.
    other
        The site that it copies, if it does.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> honest = np.random.default_rng(0).multinomial(100, [0.05, 0.4, 0.3, 0.15, 0.1], 6)
    >>> reports = [*honest, [100, 0, 0, 0, 0]]
    >>> federation = robfcp.Federation.from_counts(reports, ids=[*"abcdef", "dresden"])
    >>> found = robfcp.diagnose(robfcp.calibrate(federation))
    >>> print(found["dresden"].sentence)
    dresden was left out: all of its own cases are covered where 90% should be; all its scores are \
equal (the smallest there is).
    >>> print(found["dresden"].advice)
    check that the file holds real probabilities and labels
    """

    client: str
    trusted: bool
    cause: Cause
    finding: str
    advice: str
    covered: float
    wanted: float
    sure: bool = True
    instead: str = ""
    classes: tuple[str, ...] = ()
    other: str = ""

    @property
    def short(self) -> str:
        """The cause with the names that belong to it, to stand in brackets."""
        if self.other:
            return (
                f"{self.cause} of {self.other}" if self.cause == "copy" else f"part of {self.other}"
            )
        if self.cause == "labels swapped":
            return f"labels swapped: {' and '.join(map(quoted, self.classes))}"
        return "cause unclear" if self.cause == "not told" else self.cause

    @property
    def seen(self) -> str:
        """What is seen and what it looks like."""
        return "; ".join(part for part in (self.fact, self.finding) if part)

    def to_site(self) -> Diagnosis:
        """The same for the site itself: no other site is named, nor what the others hold."""
        if self.other:
            whole = self.cause == "copy"
            finding, _ = copied("another site", whole)
            return replace(self, finding=finding, advice="check which file was sent", other="")
        if self.cause == "other mix of classes":
            most = " and ".join(map(quoted, self.classes))
            return replace(self, finding=f"its mix of classes is another, most of all in {most}")
        return self

    @property
    def fact(self) -> str:
        """What coverage its own cases have, where that is not what was asked for."""
        return coverage_words(self.covered, self.wanted)

    def __str__(self) -> str:
        return f"{self.sentence} {self.advice[:1].upper()}{self.advice[1:]}."

    @property
    def sentence(self) -> str:
        """Who, what is seen and what it looks like."""
        verdict = "was used, but look" if self.trusted else "was left out"
        return f"{self.client} {verdict}: {self.seen}."


def coverage_words(covered: float, wanted: float) -> str:
    """'only 40% of its own cases are covered where 90% should be', or nothing if all is well."""
    if math.isnan(covered) or -0.03 < covered - wanted < 0.05:
        return ""
    if covered > 0.9995:
        return f"all of its own cases are covered where {_percent(wanted)} should be"
    if covered < 0.0005:
        return f"none of its own cases are covered where {_percent(wanted)} should be"
    only = "only " if covered < wanted else ""
    return (
        f"{only}{_percent(covered)} of its own cases are covered where {_percent(wanted)} should be"
    )


def _percent(share: float) -> str:
    """Whole per cent, and a digit more where that would read as 100%."""
    digits = 0 if round(100 * share) < 100 or share >= 1 else 1
    return f"{100 * share:.{digits}f}%"


def quoted(name: str) -> str:
    """A class's name in a sentence: numbers as they are, words in quotation marks."""
    return name if name.isdigit() else f'"{name}"'


def swapped(names: Sequence[str], sure: bool) -> tuple[str, str]:
    """Two classes exchanged."""
    first, second = map(quoted, names)
    seem = "look" if sure else "may be"
    return (
        f"the labels {first} and {second} {seem} swapped",
        f"check how {first} and {second} are coded, in the labels and in the columns",
    )


def mixed_up(classes: bool) -> tuple[str, str]:
    """Labels that fit the probabilities nowhere."""
    if not classes:
        return (
            "its scores are far too large, as with wrong labels or another model",
            "check the labels, the order of the classes and the version of the model",
        )
    return (
        "its labels do not fit its probabilities in most classes",
        "check the label column, the order of the classes and the version of the model",
    )


MODEL_WORDS: dict[str, tuple[Cause, str, str]] = {
    "worse": (
        "another model",
        "its scores look like those of another, less accurate model",
        "check which version of the model was used, and that its input was prepared as elsewhere",
    ),
    "sharper": (
        "probabilities too extreme",
        "its probabilities are far more extreme than elsewhere, as with another model or scaling",
        "check the version of the model and that probabilities were not rescaled",
    ),
    "flatter": (
        "much smaller spread",
        "its scores spread much less than elsewhere, as with another model, score or scaling",
        "check the version of the model, the score, and that probabilities were not rescaled",
    ),
    "easy": (
        "hard cases missing",
        "its hard cases are missing: large scores are too rare",
        "check that the file holds all calibration cases, not a selection",
    ),
}


def other_mix(name: str, own: float, usual: float) -> tuple[str, str]:
    """Another population that differs in its classes."""
    return (
        f"its mix of classes is another: {_percent(own)} {quoted(name)} where the others have "
        f"{_percent(usual)}",
        "ask whether other cases are seen there; if so, nothing is wrong: consider thresholds by "
        "class, or one of its own",
    )


def other_cases(names: Sequence[str]) -> tuple[str, str]:
    """Scores that differ in some classes, in no way that has a name here."""
    where = f" in {' and '.join(map(quoted, names))}" if 0 < len(names) <= 3 else ""
    return (
        f"its scores differ from the others'{where}, as with other cases or another device",
        "compare the cases, the model and the labels with another site's",
    )


def copied(other: str, whole: bool) -> tuple[str, str]:
    """Another site's report."""
    if whole:
        return (
            f"its report is the same as that of {other}",
            f"ask it and {other} which file they sent",
        )
    return (
        f"its report is contained in that of {other}",
        f"ask it and {other} whether they sent the same cases",
    )


def constant(where: str) -> tuple[str, str]:
    """Every score the same."""
    return (
        f"all its scores are equal ({where})",
        "check that the file holds real probabilities and labels",
    )


NOT_TOLD = (
    "nothing in its report says why",
    "look at the technical reason, and ask how the file was made",
)
NOISE = (
    "its counts hold privacy noise, which hides the cause",
    "ask for the model, the labels and the file to be checked",
)


FAR = 0.07  # how much less of its own cases than asked a trusted site must cover to be looked at
CHANCE = 1e-3  # ... and how rarely any site does by chance
CLEAR = 3.0  # the next best explanation is less likely by e^3
CERTAIN = 20.0  # a trusted site is looked at where "alike" is less likely by e^20
FEW_SCORES = 10
EQUAL = 0.95
HARMLESS = ("alike", "unclear")
MANY = 20_000  # sites times classes beyond which only the coverage of used sites is looked at


def diagnose(
    calibration: Calibration, clients: Sequence[str] | None = None
) -> Mapping[str, Diagnosis]:
    """What is the matter with each site that was left out, and with trusted ones that look odd.

    It reads the reports and whom the calibration trusts, never why the defence decided so.

    Parameters
    ----------
    calibration
        With its evidence.
    clients
        Whom to diagnose, whether they look odd or not.

    Returns
    -------
    Mapping
        A diagnosis for every flagged site, in the order of the federation; then one for every
        trusted site whose own coverage is far too low or whose report clearly shows a fault. Beyond
        20,000 sites times classes only the coverage of trusted sites is looked at.

    Examples
    --------
    >>> import robfcp
    >>> counts = [[60, 20, 10, 10]] * 5 + [[10, 10, 30, 50]]
    >>> calibration = robfcp.calibrate(
    ...     robfcp.Federation.from_counts(counts), 0.8, defence="none"
    ... )
    >>> robfcp.diagnose(calibration)["client-5"].fact
    'only 50% of its own cases are covered where 80% should be'
    """
    federation = calibration.federation
    place = {name: k for k, name in enumerate(federation.ids)}
    if clients is not None:
        unknown = [name for name in clients if name not in place]
        if unknown:
            raise RobfcpError(f"clients: {unknown[0]!r:.60} sent no valid report in this round")
        asked = np.array([place[name] for name in clients], dtype=np.intp)
        clinic = _Clinic(calibration, asked)
        return {name: clinic.diagnosis(place[name]) for name in clients}
    out = np.flatnonzero(~calibration.trusted_mask)
    clinic = _Clinic(calibration, np.arange(federation.n_clients))
    found = [clinic.diagnosis(int(k)) for k in out]
    looks = [clinic.look(k) for k in clinic.worth_a_look()]
    return {one.client: one for one in [*found, *looks] if one is not None}


class _Clinic:
    """One federation's sites, diagnosed one by one."""

    def __init__(self, calibration: Calibration, asked: NDArray[np.intp]) -> None:
        federation = comparable(calibration.federation)
        self._federation, self._trusted = federation, calibration.trusted_mask
        self._noisy = np.array([law is not None for law in calibration.federation.noises])
        self._covered = covered_at_sites(calibration)[:, 0]
        self._wanted = float(calibration.levels[0].coverage)
        self._tables = SiteTables(federation, self._trusted)
        self._copies = copied_from(federation, asked[~self._noisy[asked]])
        self._low = _far_below(self._covered, federation.sizes, self._wanted)

    def worth_a_look(self) -> list[int]:
        """The trusted sites of which something might be said; the others look like everybody."""
        worth = self._trusted.copy()
        if not self._noisy.any():
            plain = ordinary(self._federation, self._trusted, certain=CERTAIN, equal=EQUAL)
            plain[list(self._copies)] = False
            worth &= self._low | ~plain
        return list(map(int, np.flatnonzero(worth)))

    def look(self, k: int) -> Diagnosis | None:
        """A trusted site's diagnosis, where its coverage or its report calls for one."""
        strata = self._federation.strata
        many = self._federation.n_clients * (1 if strata is None else strata.n_strata) > MANY
        if self._noisy[k] or (many and not self._low[k]):
            return None
        ranked = [] if k in self._copies else self._ranked(k)
        found = self.diagnosis(k, ranked)
        telling = found.cause in ("copy", "part of another report", "scores all equal")
        return found if telling or self._low[k] or _certain(ranked) else None

    def diagnosis(self, k: int, ranked: Sequence[Explanation] | None = None) -> Diagnosis:
        """What site k's report looks like."""
        plain = Diagnosis(
            self._federation.ids[k],
            bool(self._trusted[k]),
            "not told",
            *NOT_TOLD,
            covered=float(self._covered[k]),
            wanted=self._wanted,
        )
        if self._noisy[k]:
            finding, advice = NOISE
            return replace(plain, finding=finding, advice=advice)
        own, others, names = self._tables.of(k)
        where = _constant(own, others)
        if where:
            finding, advice = constant(where)
            return replace(plain, cause="scores all equal", finding=finding, advice=advice)
        if k in self._copies:
            source, whole = self._copies[k]
            other = self._federation.ids[source]
            finding, advice = copied(other, whole)
            cause: Cause = "copy" if whole else "part of another report"
            return replace(plain, cause=cause, finding=finding, advice=advice, other=other)
        ranked = self._ranked(k) if ranked is None else ranked
        return self._explained(plain, ranked, own, others, names) if ranked else plain

    def _explained(
        self,
        plain: Diagnosis,
        ranked: Sequence[Explanation],
        own: Whole,
        others: Whole,
        names: tuple[str, ...],
    ) -> Diagnosis:
        """The likeliest explanation of the scores in"""
        best, second = ranked[:2]
        sure = best.likelihood - second.likelihood > CLEAR
        found = _in_words(plain, best, sure, names)
        if found.cause == "not told":
            return _mix(found, own, others, names)
        if sure:
            return found
        next_best = _in_words(plain, second, False, names)
        if next_best.cause in ("not told", found.cause):
            return found
        return replace(found, instead=next_best.short)

    def _ranked(self, k: int) -> list[Explanation]:
        """The explanations of site k's scores, the likeliest first; [] where they are too few."""
        own, others, names = self._tables.of(k)
        if others.sum() < FEWEST or own.sum() < FEW_SCORES:
            return []
        strata, grid = self._federation.strata, self._federation.grid
        labels = bool(names) and strata is not None and strata.by == "class"
        return explanations(
            places(own, others),
            own.sum(axis=1).astype(np.float64),
            others.sum(axis=1) / max(1, int(others.sum())),
            wrong_places(others, grid) if labels else None,
            _doubt(others, grid.upper),
            labels=labels,
        )


def _mix(plain: Diagnosis, own: Whole, others: Whole, names: tuple[str, ...]) -> Diagnosis:
    """Scores as elsewhere within the classes, but other classes."""
    if not names:
        return plain
    here, there = own.sum(axis=1), others.sum(axis=1)
    mine, usual = here / here.sum(), there / max(1, int(there.sum()))
    if not Mixes(here.astype(np.float64), usual).unlike:
        return plain
    most = int(np.argmax(np.abs(mine - usual)))
    finding, advice = other_mix(names[most], float(mine[most]), float(usual[most]))
    return replace(
        plain,
        cause="other mix of classes",
        finding=finding,
        advice=advice,
        classes=(names[most],),
    )


def _certain(ranked: Sequence[Explanation]) -> bool:
    """Whether a report shows a fault far better than it looks like the others'."""
    if not ranked or ranked[0].kind in HARMLESS:
        return False
    alike = next(one.likelihood for one in ranked if one.kind == "alike")
    return ranked[0].likelihood - alike > CERTAIN


def _in_words(plain: Diagnosis, best: Explanation, sure: bool, names: tuple[str, ...]) -> Diagnosis:
    """One explanation as a diagnosis."""
    named = tuple(names[c] for c in best.classes) if names else ()
    if best.kind == "swapped":
        finding, advice = swapped(named, sure)
        return replace(
            plain, cause="labels swapped", finding=finding, advice=advice, sure=sure, classes=named
        )
    if best.kind == "mixed-up":
        finding, advice = mixed_up(bool(names))
        return replace(plain, cause="labels mixed up", finding=finding, advice=advice, sure=sure)
    if best.kind in MODEL_WORDS:
        cause, finding, advice = MODEL_WORDS[best.kind]
        return replace(plain, cause=cause, finding=finding, advice=advice, sure=sure)
    if best.kind == "unclear":
        finding, advice = other_cases(named)
        return replace(
            plain, cause="other cases", finding=finding, advice=advice, sure=sure, classes=named
        )
    return plain


def _constant(own: Whole, others: Whole) -> str:
    """Where nearly all scores lie, if they lie in one bin and the others' do not."""
    here, there = own.sum(axis=0), others.sum(axis=0)
    top = int(np.argmax(here))
    total = int(here.sum())
    usual = there[top] / max(1, int(there.sum()))
    if total < FEW_SCORES or here[top] < EQUAL * total or usual > 0.5:
        return ""
    if top == 0:
        return "the smallest there is"
    return "the largest there is" if top == len(here) - 1 else "all in one bin"


def _far_below(
    covered: NDArray[np.float64], sizes: NDArray[np.int64], wanted: float
) -> NDArray[np.bool_]:
    """(K,) whether fewer cases are covered than chance allows even the worst of K sites."""
    from scipy.special import bdtr

    hits = np.rint(covered * sizes)
    rare = bdtr(hits, sizes, wanted) < CHANCE / max(1, len(sizes))
    far: NDArray[np.bool_] = rare & (covered < wanted - FAR)
    return far


def _doubt(counts: Whole, upper: NDArray[np.float64]) -> float:
    """The square of the middle score, kept within [0.001, 0.5]."""
    below = np.cumsum(counts.sum(axis=0))
    middle = upper[int(np.searchsorted(below, below[-1] / 2))]
    return float(np.clip(middle**2, 0.001, 0.5))
