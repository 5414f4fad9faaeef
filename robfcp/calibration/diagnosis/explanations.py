"""What may have happened at a site, and how well each of it explains where its scores fall.

Every explanation says how a site's scores lie among the others' of the same class (`places`): a law
Beta(a, b) for the class's shares, with a strength that says how much sites differ from it. The laws
were fitted to everyday faults at half of the sites of the natural federations that come with robfcp
and rounded; docs/diagnosis.md says how often they name the fault at the other half.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration.diagnosis.places import PLACES

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
