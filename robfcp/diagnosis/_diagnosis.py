"""A diagnosis: what the report of a client looks like, in words that a clinician reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from robfcp.certificates import format_loss_upper
from robfcp.diagnosis._causes import (
    CAUSES,
    DIFFERENT_LABEL_DISTRIBUTION,
    LABELS_SWAPPED,
    UNEXPLAINED,
)
from robfcp.scores import Risk

# Coverage of a client's cases that is no farther off than this is not mentioned.
MAX_PLAIN_SHORTFALL = 0.03
MAX_PLAIN_EXCESS = 0.05


@dataclass(frozen=True)
class Diagnosis:
    """The probable cause of an unusual report.

    Parameters
    ----------
    client : str
        The client.
    is_benign : bool
        Whether it was included; then it is listed because it is suspicious.
    cause : str
        The cause, in two or three words; "unexplained" if the report does not show one.
    description : str
        The cause as a clause.
    recommendation : str
        What to check.
    coverage : float
        The fraction of its reported cases that the calibration covers; NaN if noise hides it.
    target_coverage : float
        The target coverage.
    is_clear : bool
        Whether no other cause explains the report nearly as well.
    alternative : str
        The next best cause if one does.
    classes : tuple of str
        The classes that are named.
    duplicate_of : str
        The client whose report it duplicates, if it does.
    risk : Risk, optional
        The loss that is controlled instead of coverage; `coverage` is then 1 - loss / B.

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
    >>> print(found["dresden"].recommendation)
    check that the file holds real probabilities and labels
    """

    client: str
    is_benign: bool
    cause: str
    description: str
    recommendation: str
    coverage: float
    target_coverage: float
    is_clear: bool = True
    alternative: str = ""
    classes: tuple[str, ...] = ()
    duplicate_of: str = ""
    risk: Risk | None = None

    @property
    def summary(self) -> str:
        """The cause with the names that belong to it, for brackets and tables."""
        if self.duplicate_of:
            return f"copy of {self.duplicate_of}"
        if self.cause == LABELS_SWAPPED:
            return f"labels swapped: {join_class_names(self.classes)}"
        if self.cause == UNEXPLAINED:
            return "cause unclear"
        return self.cause

    def with_defense_reason(self, reason: str) -> str:
        """Return the observation, its alternative, the advice and why the defense excluded it.

        Parameters
        ----------
        reason : str
            The reason of the defense, empty if it has none.
        """
        alternative = f" (or: {self.alternative})" if self.alternative else ""
        line = f"{self.observation}{alternative}; {self.recommendation}"
        return f"{line} [{reason}]" if reason else line

    @property
    def observation(self) -> str:
        """The coverage, if it is far off, and the finding."""
        return "; ".join(text for text in (self.coverage_text, self.description) if text)

    def redacted(self) -> Diagnosis:
        """Return the diagnosis for the client: it names no peer and tells nothing of their data."""
        if self.duplicate_of:
            description = self.description.removesuffix(self.duplicate_of) + "another site"
            recommendation = "check which file was sent"
            return replace(
                self, description=description, recommendation=recommendation, duplicate_of=""
            )
        if self.cause == DIFFERENT_LABEL_DISTRIBUTION:
            classes = join_class_names(self.classes)
            description = f"its mix of classes is another, most of all in {classes}"
            return replace(self, description=description)
        return self

    @property
    def coverage_text(self) -> str:
        """'only 40% of its own cases are covered where 90% should be', empty if it is close."""
        if math.isnan(self.coverage):
            return ""
        if -MAX_PLAIN_SHORTFALL < self.coverage - self.target_coverage < MAX_PLAIN_EXCESS:
            return ""
        if self.risk is not None:
            bound = self.risk.upper_bound
            loss = format_loss_upper((1 - self.coverage) * bound, bound)
            target_loss = format_loss_upper((1 - self.target_coverage) * bound, bound)
            return f"its own mean {self.risk.name} is {loss} where {target_loss} is wanted"
        return (
            f"{self._covered_cases_text} of its own cases are covered "
            f"where {format_fraction(self.target_coverage)} should be"
        )

    @property
    def _covered_cases_text(self) -> str:
        """The coverage of its cases: 'none', 'only 40%', '95%' or 'all'."""
        if self.coverage < 0.0005:
            return "none"
        if self.coverage > 0.9995:
            return "all"
        percent = format_fraction(self.coverage)
        return f"only {percent}" if self.coverage < self.target_coverage else percent

    def __str__(self) -> str:
        return f"{self.sentence} {self.recommendation[:1].upper()}{self.recommendation[1:]}."

    @property
    def sentence(self) -> str:
        """The client, its verdict and the observation."""
        verdict = "was used, but look" if self.is_benign else "was left out"
        return f"{self.client} {verdict}: {self.observation}."


def describe(
    diagnosis: Diagnosis,
    cause: str,
    classes: tuple[str, ...] = (),
    duplicate_of: str = "",
    *,
    location: str = "",
    mismatch: str = "",
    fraction: str = "",
    peer_fraction: str = "",
    hides_classes: bool = False,
) -> Diagnosis:
    """Return the diagnosis with a cause, in the words of the table of causes.

    Parameters
    ----------
    diagnosis : Diagnosis
        The client, its coverage and whether the cause is sure.
    cause : str
        A name in CAUSES.
    classes : tuple of str
        The classes that are named.
    duplicate_of : str
        The client whose report it duplicates.
    location, mismatch, fraction, peer_fraction : str
        The texts that replace these words in braces.
    hides_classes : bool
        Whether only class totals are reported, which do not tell wrong labels from another model.
    """
    texts = CAUSES[cause]
    replacements = {
        "classes": join_class_names(classes),
        "look": "look" if diagnosis.is_clear else "may be",
        "size": "larger" if diagnosis.coverage < diagnosis.target_coverage else "smaller",
        "other": duplicate_of,
        "location": location,
        "mismatch": mismatch,
        "fraction": fraction,
        "peer_fraction": peer_fraction,
        "or_labels": ", or some of its labels are wrong" if hides_classes else "",
        "and_labels": "; check the label column too" if hides_classes else "",
    }
    return replace(
        diagnosis,
        cause=cause,
        description=texts.description.format(**replacements),
        recommendation=texts.recommendation.format(**replacements),
        classes=classes,
        duplicate_of=duplicate_of,
    )


def format_fraction(fraction: float) -> str:
    """Return whole per cent, with a decimal where that would read as 100%."""
    percent = 100 * fraction
    reads_as_all = fraction < 1 and round(percent) >= 100
    return f"{percent:.1f}%" if reads_as_all else f"{percent:.0f}%"


def join_class_names(classes: Sequence[str]) -> str:
    """Return classes for a sentence: numbers as they are, words in quotation marks."""
    quoted = [name if name.isdigit() else f'"{name}"' for name in classes]
    return " and ".join(quoted)
