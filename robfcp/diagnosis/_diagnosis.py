"""A diagnosis: what a site's report looks like, in words a clinician reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from robfcp.certificates import format_loss_upper
from robfcp.diagnosis._causes import CAUSES, LABELS_SWAPPED, NOT_TOLD, OTHER_MIX
from robfcp.scores import Risk

# Coverage of a site's own cases that is no farther off than this is not worth a word.
MAX_PLAIN_SHORTFALL = 0.03
MAX_PLAIN_EXCESS = 0.05


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
        if self.cause == LABELS_SWAPPED:
            return f"labels swapped: {join_class_names(self.classes)}"
        return "cause unclear" if self.cause == NOT_TOLD else self.cause

    def with_defense_reason(self, reason: str) -> str:
        """What is seen, what else it may be, what to check and why the defence left it out.

        Parameters
        ----------
        reason
            The defence's, empty where it has none.
        """
        alternative = f" (or: {self.instead})" if self.instead else ""
        line = f"{self.observation}{alternative}; {self.advice}"
        return f"{line} [{reason}]" if reason else line

    @property
    def observation(self) -> str:
        """What is seen and what it looks like."""
        return "; ".join(text for text in (self.coverage_text, self.finding) if text)

    def redacted(self) -> Diagnosis:
        """The same for the site itself: no other site is named, nor what the others hold."""
        if self.other:
            finding = self.finding.removesuffix(self.other) + "another site"
            return replace(self, finding=finding, advice="check which file was sent", other="")
        if self.cause == OTHER_MIX:
            classes = join_class_names(self.classes)
            return replace(self, finding=f"its mix of classes is another, most of all in {classes}")
        return self

    @property
    def coverage_text(self) -> str:
        """'only 40% of its own cases are covered where 90% should be', nothing if all is well."""
        if math.isnan(self.covered):
            return ""
        if -MAX_PLAIN_SHORTFALL < self.covered - self.wanted < MAX_PLAIN_EXCESS:
            return ""
        if self.risk is not None:
            bound = self.risk.bound
            loss = format_loss_upper((1 - self.covered) * bound, bound)
            wanted_loss = format_loss_upper((1 - self.wanted) * bound, bound)
            return f"its own mean {self.risk.name} is {loss} where {wanted_loss} is wanted"
        return (
            f"{self._covered_cases_text} of its own cases are covered "
            f"where {format_share(self.wanted)} should be"
        )

    @property
    def _covered_cases_text(self) -> str:
        """How many of its own cases are covered: 'none', 'only 40%', '95%' or 'all'."""
        if self.covered < 0.0005:
            return "none"
        if self.covered > 0.9995:
            return "all"
        share = format_share(self.covered)
        return f"only {share}" if self.covered < self.wanted else share

    def __str__(self) -> str:
        return f"{self.sentence} {self.advice[:1].upper()}{self.advice[1:]}."

    @property
    def sentence(self) -> str:
        """Who, what is seen and what it looks like."""
        verdict = "was used, but look" if self.trusted else "was left out"
        return f"{self.client} {verdict}: {self.observation}."


def describe(
    diagnosis: Diagnosis,
    cause: str,
    classes: tuple[str, ...] = (),
    other: str = "",
    *,
    where: str = "",
    mixed: str = "",
    here: str = "",
    there: str = "",
) -> Diagnosis:
    """The diagnosis with a cause, in the words of its table.

    Parameters
    ----------
    diagnosis : Diagnosis
        Whom it is about, what is covered and how sure it is.
    cause : str
        A name in CAUSES.
    classes : tuple of str
        The classes that are named.
    other : str
        The site that it copies.
    where, mixed, here, there : str
        What stands for these words in the finding.
    """
    texts = CAUSES[cause]
    words = {
        "classes": join_class_names(classes),
        "look": "look" if diagnosis.sure else "may be",
        "size": "larger" if diagnosis.covered < diagnosis.wanted else "smaller",
        "other": other,
        "where": where,
        "mixed": mixed,
        "here": here,
        "there": there,
    }
    return replace(
        diagnosis,
        cause=cause,
        finding=texts.finding.format(**words),
        advice=texts.advice.format(**words),
        classes=classes,
        other=other,
    )


def format_share(share: float) -> str:
    """Whole per cent, and a digit more where that would read as 100%."""
    digits = 0 if round(100 * share) < 100 or share >= 1 else 1
    return f"{100 * share:.{digits}f}%"


def join_class_names(classes: Sequence[str]) -> str:
    """Classes in a sentence: numbers as they are, words in quotation marks."""
    return " and ".join(name if name.isdigit() else f'"{name}"' for name in classes)
