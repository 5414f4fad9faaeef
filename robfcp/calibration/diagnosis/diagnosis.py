"""Every site that was left out, and every trusted one that deserves a look, with a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration.calibration import Calibration
from robfcp.calibration.covered import covered_at_sites
from robfcp.calibration.diagnosis import words
from robfcp.calibration.diagnosis.copies import copied_from
from robfcp.calibration.diagnosis.explanations import Explanation, Mixes, explanations
from robfcp.calibration.diagnosis.ordinary import ordinary
from robfcp.calibration.diagnosis.places import FEWEST, SiteTables, Whole, places, wrong_places
from robfcp.calibration.diagnosis.words import Diagnosis
from robfcp.errors import RobfcpError
from robfcp.federation import comparable

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
    ...     robfcp.Federation.from_counts(counts), confidence_level=0.8, defence="none"
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
        self._noisy = ~calibration.federation.noise.exact()
        self._covered = covered_at_sites(calibration)[:, 0]
        self._wanted = float(calibration.levels[0].confidence_level)
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
            *words.NOT_TOLD,
            covered=float(self._covered[k]),
            wanted=self._wanted,
        )
        if self._noisy[k]:
            finding, advice = words.NOISE
            return replace(plain, finding=finding, advice=advice)
        own, others, names = self._tables.of(k)
        where = _constant(own, others)
        if where:
            finding, advice = words.constant(where)
            return replace(plain, cause="scores all equal", finding=finding, advice=advice)
        if k in self._copies:
            source, whole = self._copies[k]
            other = self._federation.ids[source]
            finding, advice = words.copied(other, whole)
            cause: words.Cause = "copy" if whole else "part of another report"
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
        """The likeliest explanation of the scores in words."""
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
    finding, advice = words.other_mix(names[most], float(mine[most]), float(usual[most]))
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
        finding, advice = words.swapped(named, sure)
        return replace(
            plain, cause="labels swapped", finding=finding, advice=advice, sure=sure, classes=named
        )
    if best.kind == "mixed-up":
        finding, advice = words.mixed_up(bool(names))
        return replace(plain, cause="labels mixed up", finding=finding, advice=advice, sure=sure)
    if best.kind in words.MODEL_WORDS:
        cause, finding, advice = words.MODEL_WORDS[best.kind]
        return replace(plain, cause=cause, finding=finding, advice=advice, sure=sure)
    if best.kind == "unclear":
        finding, advice = words.other_cases(named)
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
