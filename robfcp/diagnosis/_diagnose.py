"""The diagnosis: what a site's report looks like, in words a clinician reads.

It reads counts, who is trusted and what is covered; why a defence decided so is all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from robfcp.binning import Binning
from robfcp.certificates import format_loss_upper
from robfcp.defense import Consensus, _duplicates, rebuild_defense
from robfcp.errors import RobfcpError
from robfcp.reports import StratifiedCounts
from robfcp.scores import ClassificationScore, Risk

if TYPE_CHECKING:
    from robfcp.calibration import Calibration

N_RANK_CELLS = 12  # equal parts of the others' scores
N_MASS_CELLS = 10  # of what is left, for a wrong label
MIN_REFERENCE_SCORES = 20  # scores of others that a class needs to be compared with
MIN_CLIENT_SCORES = 10
ALL_EQUAL_FRACTION = 0.95
MIN_SHORTFALL = (
    0.07  # how much less of its own cases than asked a trusted site must cover to be looked at
)
MAX_P_VALUE = 1e-3  # ... and how rarely any site does by chance
CLEAR_LOG_RATIO = 3.0  # the next best explanation is less likely by e^3
CERTAIN_LOG_RATIO = 20.0  # a trusted site is looked at where "alike" is less likely by e^20
MAX_CELLS_DIAGNOSED = (
    10_000  # sites times classes beyond which only the coverage of used sites is looked at
)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


CAUSE_TEXTS: Mapping[str, tuple[str, str]] = {  # of each cause: what it looks like, what to check
    "labels swapped": (
        "the labels {classes} {look} swapped",
        "check how {classes} are coded, in the labels and in the columns",
    ),
    "labels mixed up": (
        "{mixed}",
        "check the label column, the order of the classes and the version of the model",
    ),
    "scores all equal": (
        "all its scores are equal ({where})",
        "check that the file holds real probabilities and labels",
    ),
    "residuals far off": (
        "its residuals are far {size} than elsewhere",
        "check the unit of predictions and targets, the target column and the version of the model",
    ),
    "copy": (
        "its report is the same as that of {other}",
        "ask it and {other} which file they sent",
    ),
    "another model": (
        "its scores look like those of another, less accurate model",
        "check which version of the model was used, and that its input was prepared as elsewhere",
    ),
    "probabilities too extreme": (
        "its probabilities are far more extreme than elsewhere, as with another model or scaling",
        "check the version of the model and that probabilities were not rescaled",
    ),
    "much smaller spread": (
        "its scores spread much less than elsewhere, as with another model, score or scaling",
        "check the version of the model, the score, and that probabilities were not rescaled",
    ),
    "hard cases missing": (
        "its hard cases are missing: large scores are too rare",
        "check that the file holds all calibration cases, not a selection",
    ),
    "other mix of classes": (
        "its mix of classes is another: {here} {classes} where the others have {there}",
        "ask whether other cases are seen there; if so, nothing is wrong: consider thresholds by "
        "class, or one of its own",
    ),
    "other cases": (
        "its scores differ from the others'{where}, as with other cases or another device",
        "compare the cases, the model and the labels with another site's",
    ),
    "not told": (
        "nothing in its report says why",
        "ask how the file was made, and which cases it holds",
    ),
}

SCORE_ONLY_CAUSES = (
    "labels mixed up",
    "scores all equal",
    "probabilities too extreme",
    "much smaller spread",
)
REGRESSION_CAUSE_NAMES = dict.fromkeys(
    SCORE_ONLY_CAUSES, "residuals far off"
)  # where numbers are predicted


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
    risk
        The loss that is controlled in place of coverage, if so; `covered` is then 1 - loss / B.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> honest = np.random.default_rng(0).multinomial(100, [0.05, 0.4, 0.3, 0.15, 0.1], 6)
    >>> reports = [*honest, [100, 0, 0, 0, 0]]
    >>> federation = robfcp.Federation.from_counts(reports, clients=[*"abcdef", "dresden"])
    >>> found = robfcp.diagnose(robfcp.calibrate(federation))
    >>> print(found["dresden"].sentence)
    dresden was left out: all of its own cases are covered where 90% should be; all its scores are \
equal (the smallest there is).
    >>> print(found["dresden"].advice)
    check that the file holds real probabilities and labels
    """

    client: str
    trusted: bool
    cause: str
    finding: str
    advice: str
    covered: float
    wanted: float
    sure: bool = True
    instead: str = ""
    classes: tuple[str, ...] = ()
    other: str = ""
    risk: Risk | None = None

    @property
    def summary(self) -> str:
        """The cause with the names that belong to it, to stand in brackets."""
        if self.other:
            return f"copy of {self.other}"
        if self.cause == "labels swapped":
            return f"labels swapped: {_join_class_names(self.classes)}"
        return "cause unclear" if self.cause == "not told" else self.cause

    def with_defense_reason(self, reason: str) -> str:
        """What is seen, what else it may be, what to check and why the defence left it out.

        Parameters
        ----------
        reason
            The defence's, empty where it has none.
        """
        line = (
            f"{self.observation}{f' (or: {self.instead})' if self.instead else ''}; {self.advice}"
        )
        return f"{line} [{reason}]" if reason else line

    @property
    def observation(self) -> str:
        """What is seen and what it looks like."""
        return "; ".join(part for part in (self.coverage_text, self.finding) if part)

    def redacted(self) -> Diagnosis:
        """The same for the site itself: no other site is named, nor what the others hold."""
        if self.other:
            finding = self.finding.removesuffix(self.other) + "another site"
            return replace(self, finding=finding, advice="check which file was sent", other="")
        if self.cause == "other mix of classes":
            finding = (
                f"its mix of classes is another, most of all in {_join_class_names(self.classes)}"
            )
            return replace(self, finding=finding)
        return self

    @property
    def coverage_text(self) -> str:
        """'only 40% of its own cases are covered where 90% should be', nothing if all is well."""
        if math.isnan(self.covered) or -0.03 < self.covered - self.wanted < 0.05:
            return ""
        if self.risk is not None:
            b = self.risk.bound
            own, most = (format_loss_upper((1 - x) * b, b) for x in (self.covered, self.wanted))
            return f"its own mean {self.risk.name} is {own} where {most} is wanted"
        only = "only " if self.covered < self.wanted else ""
        share = f"{only}{_percent(self.covered)}"
        if not 0.0005 <= self.covered <= 0.9995:
            share = "none" if self.covered < 0.5 else "all"
        return f"{share} of its own cases are covered where {_percent(self.wanted)} should be"

    def __str__(self) -> str:
        return f"{self.sentence} {self.advice[:1].upper()}{self.advice[1:]}."

    @property
    def sentence(self) -> str:
        """Who, what is seen and what it looks like."""
        verdict = "was used, but look" if self.trusted else "was left out"
        return f"{self.client} {verdict}: {self.observation}."


def _percent(share: float) -> str:
    """Whole per cent, and a digit more where that would read as 100%."""
    digits = 0 if round(100 * share) < 100 or share >= 1 else 1
    return f"{100 * share:.{digits}f}%"


def _join_class_names(classes: Sequence[str]) -> str:
    """Classes in a sentence: numbers as they are, words in quotation marks."""
    return " and ".join(name if name.isdigit() else f'"{name}"' for name in classes)


def rank_histogram(own: NDArray[Any], others: IntArray, *, fives: bool = False) -> FloatArray:
    """(C, B) how many of a site's scores of each class fall into each twelfth of the others'.

    Both are (C, H) counts. A score in a bin that holds the others' ranks from u to v is spread
    evenly over [u, v], so that scores drawn as the others' are uniform whatever ties there are;
    one of a few that stand for what lies around them, in fives, half-way to the next ones. A class
    of which the others have fewer than 20 is left empty.
    """
    found = np.zeros((len(own), N_RANK_CELLS))
    edges = np.arange(N_RANK_CELLS + 1) / N_RANK_CELLS
    enough = own.sum(axis=1) >= 2 * StratifiedCounts.MIN_CELL_COUNT if fives else own.any(axis=1)
    for c in np.flatnonzero(enough & (others.sum(axis=1) >= MIN_REFERENCE_SCORES)):
        bins = np.flatnonzero(own[c])
        upper = np.cumsum(others[c]) / others[c].sum()
        high = upper[bins]
        low = high - others[c, bins] / others[c].sum()
        if fives and len(bins) > 1:
            middle = (low + high) / 2
            cut = (middle[1:] + middle[:-1]) / 2
            few = own[c, bins] < 2 * StratifiedCounts.MIN_CELL_COUNT
            low = np.where(few, np.append(max(0, 2 * middle[0] - cut[0]), cut), low)
            high = np.where(few, np.append(cut, min(1, 2 * middle[-1] - cut[-1])), high)
        width = np.maximum(high - low, 1e-9)
        low = np.minimum(low, 1 - width)
        reached = np.clip((edges - low[:, None]) / width[:, None], 0, 1)
        found[c] = own[c, bins] @ np.diff(reached, axis=1)
    return found


def wrong_label_histogram(others: IntArray, grid: Binning) -> FloatArray | None:
    """(C, B) shares of the places where scores of wrong labels fall; None on other grids.

    A score s on [0, 1] leaves s of the probability to the other labels; a wrong one gets a share w
    of that, Beta(1, C - 2) as if drawn evenly from all ways to share it, and the score 1 - w s.
    """
    upper = grid.upper_edges
    if len(others) < 2 or not 0 < upper[0] <= upper[-1] <= 1:
        return None
    share = others.sum(axis=0) / max(1, int(others.sum()))
    middle = (np.append(0, upper[:-1]) + upper) / 2
    ranks = (np.arange(N_MASS_CELLS) + 0.5) / N_MASS_CELLS
    parts = np.ones(1) if len(others) == 2 else 1 - ranks ** (1 / (len(others) - 2))
    wrong = np.zeros(grid.n_bins)
    for part in parts:
        place = grid.bin_index_of_threshold(1 - part * middle)
        wrong += np.bincount(place, weights=share, minlength=grid.n_bins) / len(parts)
    found = rank_histogram(np.broadcast_to(wrong, others.shape), others)
    return found / np.maximum(found.sum(axis=1, keepdims=True), 1e-12)


SCORE_SHIFT_PRIORS: Mapping[
    str, tuple[float, ...]
] = {  # of scores: a, b, strength, and what is at the bottom
    "alike": (1, 1, 45),
    "shifted": (1, 1, 15),
    "wrong": (1.1, 0.35, 8),
    "rather wrong": (1.6, 0.75, 25),
    "noisier": (1.5, 0.65, 20, 0.08),
    "duller": (2.3, 1.2, 15),
    "sharper": (0.3, 0.45, 35),
    "easy": (1.2, 3.3, 10),
    "flatter": (3.4, 2, 10),
    "much flatter": (8, 1.6, 10),
    "anything": (0.8, 0.8, 3),
}
LABEL_PRIOR_STRENGTH = 40  # how alike the sites' shares of the classes are
SHIFTED_CLASS_PRIOR = 0.05  # the share of the classes that may be shifted, or anything at all
RARE_LOG_PENALTY = 3.0  # a rarer explanation has to be better by e^3
UNCLEAR_LOG_PENALTY = 4.0


class FaultHypothesis(NamedTuple):
    """A cause with its log-likelihood; `classes` are those that it names."""

    cause: str
    likelihood: float
    classes: tuple[int, ...] = ()


def rank_fault_hypotheses(
    own: IntArray, others: IntArray, grid: Binning, *, by_class: bool, fives: bool = False
) -> list[FaultHypothesis]:
    """All explanations of a site's scores beside the others', the likeliest first.

    Both are (C, H) counts; by_class: rows are classes, so that they can be confused with each
    other. The more doubt the model has, the less wrong labels stand out.
    """
    placed = rank_histogram(own, others, fives=fives)
    wrong_shares = wrong_label_histogram(others, grid) if by_class else None
    below = np.cumsum(others.sum(axis=0))
    middle = grid.upper_edges[int(np.searchsorted(below, below[-1] / 2))]
    doubt = float(np.clip(middle**2, 0.001, 0.5))
    every = np.stack([_beta_histogram(*numbers) for numbers in SCORE_SHIFT_PRIORS.values()])
    law = dict(zip(SCORE_SHIFT_PRIORS, _dirichlet(every[:, None], placed), strict=True))
    wrong = _log_mixture((0.5, law["wrong"]), (0.5, law["rather wrong"]))
    if wrong_shares is not None:
        told = _dirichlet(SCORE_SHIFT_PRIORS["wrong"][2] * (wrong_shares + 0.002), placed)
        wrong = _log_mixture((1 - doubt, told), (doubt, law["rather wrong"]))
    rest = _log_mixture(
        (1 - SHIFTED_CLASS_PRIOR, law["alike"]), (SHIFTED_CLASS_PRIOR, law["shifted"])
    )
    mixes = LabelDistributionLikelihood(own.sum(axis=1), others.sum(axis=1))
    found = [FaultHypothesis("not told", float(rest.sum()) + mixes.usual)]
    models = {
        "another model": _log_mixture((0.6, law["noisier"]), (0.4, law["duller"])),
        "probabilities too extreme": law["sharper"],
        "much smaller spread": _log_mixture((0.7, law["flatter"]), (0.3, law["much flatter"])),
        "hard cases missing": law["easy"],
    }
    for cause, one in models.items():
        softened = _log_mixture(
            (1 - SHIFTED_CLASS_PRIOR, one), (SHIFTED_CLASS_PRIOR, law["anything"])
        )
        found.append(FaultHypothesis(cause, float(softened.sum()) + mixes.usual))
    held = np.flatnonzero(placed.any(axis=1))
    if by_class and len(held) > 1:
        found.append(mixes.swapped(held, rest, wrong))
    if not by_class or len(held) != 2:
        confused = _log_mixture((0.9, wrong), (0.1, law["anything"]))[held]
        mix = float(np.logaddexp(mixes.usual, mixes.anything) - np.log(2))
        found.append(FaultHypothesis("labels mixed up", float(confused.sum()) + mix))
    any_of = [(0.4, law["alike"]), (0.1, wrong), (0.1, law["anything"])]
    anyhow = _log_mixture(*any_of, *((0.1, one) for one in models.values()))
    odd = held[(law["alike"] < anyhow - 2)[held]]
    unclear = float(anyhow.sum()) + mixes.usual - UNCLEAR_LOG_PENALTY
    found.append(FaultHypothesis("other cases", unclear, tuple(odd.tolist())))
    return sorted(found, key=lambda one: -one.likelihood)


class LabelDistributionLikelihood:
    """Log-likelihoods of a site's numbers of samples by class, beside the others'."""

    def __init__(self, sizes: IntArray, others: IntArray) -> None:
        from scipy.special import gammaln

        floor = others / max(1, int(others.sum())) + 0.5 / max(1, len(others)) * 0.01
        strengths = LABEL_PRIOR_STRENGTH * floor / floor.sum()
        self._terms: FloatArray = gammaln(strengths[None, :] + sizes[:, None]) - gammaln(strengths)
        first = float(gammaln(LABEL_PRIOR_STRENGTH) - gammaln(LABEL_PRIOR_STRENGTH + sizes.sum()))
        self.as_others = first + float(np.trace(self._terms))
        self.anything = _dirichlet(np.ones(len(sizes)), sizes.astype(np.float64))
        self.usual = float(np.logaddexp(self.as_others, self.anything - RARE_LOG_PENALTY))

    def swapped(
        self, held: NDArray[np.intp], rest: FloatArray, wrong: FloatArray
    ) -> FaultHypothesis:
        """Two classes are each other's: both look wrong and the rest does not.

        The mix is as the others', with the two exchanged or not, or any.
        """
        first, second = held[np.array(np.triu_indices(len(held), 1))]
        own, gain = np.diag(self._terms), wrong - rest
        exchanged = self.as_others - own[first] - own[second]
        exchanged = exchanged + self._terms[first, second] + self._terms[second, first]
        either = np.logaddexp(self.as_others, exchanged) - np.log(2)
        mix = np.logaddexp(either, self.anything - RARE_LOG_PENALTY)
        pairs = rest.sum() + gain[first] + gain[second] + mix
        best = int(np.argmax(pairs))
        average = float(np.logaddexp.reduce(pairs) - np.log(len(pairs)))
        return FaultHypothesis("labels swapped", average, (int(first[best]), int(second[best])))


def _dirichlet(strengths: FloatArray, counts: FloatArray) -> FloatArray:
    """log of Gamma(s) / Gamma(s + n) prod_b Gamma(s_b + x_b) / Gamma(s_b)."""
    from scipy.special import gammaln

    total = strengths.sum(axis=-1)
    terms = (gammaln(strengths + counts) - gammaln(strengths)).sum(axis=-1)
    result: FloatArray = gammaln(total) - gammaln(total + counts.sum(axis=-1)) + terms
    return result


def _log_mixture(*weighted: tuple[float, FloatArray]) -> FloatArray:
    """The log-likelihood of a mixture."""
    mixed: FloatArray = np.logaddexp.reduce([np.log(w) + one for w, one in weighted], axis=0)
    return mixed


@cache
def _beta_histogram(a: float, b: float, strength: float, bottom: float = 0.0) -> FloatArray:
    """(B,) Beta(a, b)'s shares of the places, `bottom` of them moved to the lowest, times strength.

    They are the parameters of a Dirichlet distribution.
    """
    from scipy.special import betainc

    mass = np.diff(betainc(a, b, np.arange(N_RANK_CELLS + 1) / N_RANK_CELLS)) + 1e-4
    mass *= (1 - bottom) / mass.sum()
    mass[0] += bottom
    return np.asarray(strength * mass)


def _describe(
    plain: Diagnosis, cause: str, classes: tuple[str, ...] = (), other: str = "", **words: str
) -> Diagnosis:
    """The diagnosis of one cause, in its words."""
    look = "look" if plain.sure else "may be"
    size = "larger" if plain.covered < plain.wanted else "smaller"
    words |= {"classes": _join_class_names(classes), "other": other, "look": look, "size": size}
    finding, advice = (text.format(**words) for text in CAUSE_TEXTS[cause])
    found = replace(plain, cause=cause, finding=finding, advice=advice)
    return replace(found, classes=classes, other=other)


def diagnose(
    calibration: Calibration, clients: Sequence[str] | None = None
) -> Mapping[str, Diagnosis]:
    """What is the matter with each site that was left out, and with trusted ones that look odd.

    Parameters
    ----------
    calibration
        With its record.
    clients
        Whom to diagnose, whether they look odd or not.

    Returns
    -------
    Mapping
        A diagnosis for every flagged site, in the order of the federation; then one for every
        trusted site whose own coverage is far too low, whose report clearly shows a fault, or whom
        a remark of the default defence names. Beyond 10,000 sites times classes only the coverage
        of trusted sites is looked at.

    Examples
    --------
    >>> import robfcp
    >>> counts = [[60, 20, 10, 10]] * 5 + [[10, 10, 30, 50]]
    >>> calibration = robfcp.calibrate(
    ...     robfcp.Federation.from_counts(counts), 0.8, defense="none"
    ... )
    >>> robfcp.diagnose(calibration)["client-5"].coverage_text
    'only 50% of its own cases are covered where 80% should be'
    """
    from scipy.special import bdtr

    sent, trusted = calibration.federation, calibration.benign_mask
    federation, wanted = sent.as_sample_counts(), float(calibration.levels[0].coverage)
    covered, ids, strata = calibration.client_coverage()[:, 0], sent.clients, federation.strata
    place = {name: k for k, name in enumerate(ids)}
    unknown = [name for name in clients or () if name not in place]
    if unknown:
        raise RobfcpError(f"clients: {unknown[0]!r:.60} sent no valid report in this round")
    called = {} if isinstance(sent.score, ClassificationScore | None) else REGRESSION_CAUSE_NAMES
    same = {
        one: group
        for group in _duplicates.find_duplicate_reports(federation)
        for one in group.clients
    }
    row = {} if strata is None else {int(k): r for r, k in enumerate(strata.rows)}
    fives = federation.is_coarsened & (
        2 * federation.is_coarsened.sum() > len(ids)
    )  # not by chance
    pooled = federation.pooled_counts(trusted)[None, :]
    if strata is not None:
        by_class = strata.table.pooled_counts(trusted[strata.rows]).reshape(-1, strata.n_bins)
    # fewer cases are covered than chance allows even the worst of K sites
    rare = bdtr(
        np.rint(covered * sent.sample_sizes), sent.sample_sizes, wanted
    ) < MAX_P_VALUE / max(1, len(ids))
    low: NDArray[np.bool_] = rare & (covered < wanted - MIN_SHORTFALL)
    many = len(ids) * (1 if strata is None else strata.n_strata) > MAX_CELLS_DIAGNOSED
    if calibration.require_record().defense == Consensus.name and not many:
        rule = cast(
            Consensus, rebuild_defense(Consensus.name, calibration.require_record().parameters)
        )
        low = low | (
            rule.find_outliers(federation).is_mentioned & (rule.exactly is None)
        )  # as the remarks do

    def examined(k: int) -> tuple[Diagnosis, bool]:
        """What site k's report looks like, and whether a trusted site should hear of it."""
        seen = "", "", "", float(covered[k]), wanted
        plain = _describe(Diagnosis(ids[k], bool(trusted[k]), *seen, risk=sent.risk), "not told")
        if sent.privacy and sent.privacy[k] is not None:
            hidden = "its counts hold privacy noise, which hides the cause"
            return replace(plain, finding=hidden), False
        names: tuple[str, ...] = ()  # of the classes; none where it pooled them
        own, others = federation.table.row(k)[None, :], pooled
        if strata is not None and k in row:
            own, others = strata.table.row(row[k]).reshape(-1, strata.n_bins), by_class
            names = strata.labels
        others = others - own if trusted[k] else others
        shown = own[own.sum(axis=1) >= 2 * StratifiedCounts.MIN_CELL_COUNT] if fives[k] else own
        if where := _all_scores_equal(shown, others):
            cause = "scores all equal"
            return _describe(plain, called.get(cause, cause), where=where), True
        if ids[k] in same:
            source = next(client for client in same[ids[k]].clients if client != ids[k])
            return _describe(plain, "copy", other=source), True
        if others.sum() < MIN_REFERENCE_SCORES or own.sum() < MIN_CLIENT_SCORES:
            return plain, bool(low[k])
        classes = bool(names) and strata is not None and strata.by == "class"
        ranked = rank_fault_hypotheses(
            own, others, federation.binning, by_class=classes, fives=bool(fives[k])
        )
        best, second = ranked[:2]
        usual = next(one.likelihood for one in ranked if one.cause == "not told")
        certain = best.cause != "other cases" and best.likelihood - usual > CERTAIN_LOG_RATIO
        judged = replace(plain, sure=best.likelihood - second.likelihood > CLEAR_LOG_RATIO)

        def in_words(one: FaultHypothesis) -> Diagnosis:
            classes = tuple(names[c] for c in one.classes) if names else ()
            where = f" in {_join_class_names(classes)}" if 0 < len(classes) <= 3 else ""
            far = "large" if plain.covered < plain.wanted else "small"
            mixed = f"its scores are far too {far}, as with wrong labels or another model"
            if names:
                mixed = "its labels do not fit its probabilities in most classes"
            cause = called.get(one.cause, one.cause)
            return _describe(judged, cause, classes, where=where, mixed=mixed)

        found = (
            in_words(best)
            if best.cause != "not told"
            else _diagnose_label_distribution(plain, own, others, names)
        )
        if not judged.sure and not {best.cause, second.cause} & {"not told"}:
            short = in_words(second).summary
            found = replace(found, instead=short if short != found.summary else "")
        return found, bool(low[k] or certain)

    if clients is not None:
        return {name: examined(place[name])[0] for name in clients}
    looked_at = [*np.flatnonzero(~trusted), *np.flatnonzero(trusted & (low | (not many)))]
    every = map(examined, map(int, looked_at))
    return {one.client: one for one, telling in every if telling or not one.trusted}


def _diagnose_label_distribution(
    plain: Diagnosis, own: IntArray, others: IntArray, names: tuple[str, ...]
) -> Diagnosis:
    """Scores as elsewhere within the classes, but other classes."""
    sizes, all_sizes = own.sum(axis=1), others.sum(axis=1)
    mine, usual = sizes / sizes.sum(), all_sizes / max(1, int(all_sizes.sum()))
    mixes = LabelDistributionLikelihood(sizes, all_sizes)
    if not names or mixes.anything - RARE_LOG_PENALTY <= mixes.as_others:
        return plain
    most = int(np.argmax(np.abs(mine - usual)))
    here, there = _percent(float(mine[most])), _percent(float(usual[most]))
    return _describe(plain, "other mix of classes", (names[most],), here=here, there=there)


def _all_scores_equal(own: IntArray, others: IntArray) -> str:
    """Where nearly all scores lie, if they lie in one bin and the others' do not."""
    here, there = own.sum(axis=0), others.sum(axis=0)
    top, total = int(np.argmax(here)), int(here.sum())
    usual = there[top] / max(1, int(there.sum()))
    if total < MIN_CLIENT_SCORES or here[top] < ALL_EQUAL_FRACTION * total or usual > 0.5:
        return ""
    if top == 0:
        return "the smallest there is"
    return "the largest there is" if top == len(here) - 1 else "all in one bin"
