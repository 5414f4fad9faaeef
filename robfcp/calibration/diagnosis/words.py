"""The diagnosis in words: what is seen, what it looks like, what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

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
    >>> found = robfcp.diagnose(robfcp.calibrate(federation, malicious=1))
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
