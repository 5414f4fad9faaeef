"""What coverage is proved for a threshold: the numbers, what they rest on, and the words."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Literal

import msgspec

from robfcp.errors import RobfcpError

CertificateKind = Literal["any-threshold", "marginal", "pac", "mix"]
TRIVIAL_SETS = "every set is full"
INDEPENDENCE_ASSUMPTION = (
    "independent",
    "samples are independent within a site and between sites (nobody is counted at two)",
)


class Assumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing a certificate rests on: a name, the value it takes here, and the words for it."""

    name: str
    value: int | float | str
    text: str


def max_malicious_assumption(m: int, n_clients: int, *, estimated: bool) -> Assumption:
    """How many lie at most, and when that number was chosen."""
    when = "a number read off the reports" if estimated else "stated before they were seen"
    return Assumption("liars", m, f"at most {m} of the {n_clients} reporting sites lie, {when}")


class CertificatePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coverage lies in [lower, upper] unless more than m clients lie."""

    m: int
    lower: float
    upper: float

    def __post_init__(self) -> None:
        _check_coverage_range(self.lower, self.upper, self.m)

    @property
    def is_vacuous(self) -> bool:
        """Whether nothing is said: every coverage is allowed."""
        return self.lower <= 0 and self.upper >= 1


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Coverage of the honest sites' mixture, proved to lie in [lower, upper].

    Attributes
    ----------
    kind
        Which theorem it is: "any-threshold", "marginal", "pac" or "mix".
    lower, upper
        Coverage is at least and at most this; upper is 1 where nothing is said.
    confidence
        Over the calibration data; None says that the bound holds on average over them.
    m
        How many sites may lie.
    n_clients
        How many sites reported.
    estimated
        Whether m is estimated from the reports; then it is no proof against liars who hide.
    assumptions
        What it rests on, one by one.
    n_outside
        How many missing and faulty sites there are, of whom nothing is said.
    outside
        Whose reports it says nothing of, in words, where there are any.
    floor, trusted
        What is covered on average whoever lies, and by how many trusted samples, where there are
        any.
    full_sets_from
        The number of liars that can make every set full, where known.
    note
        What else must be said.
    samples
        The most samples that liars may hold together, where that was stated.
    risk, bound
        The loss that is bounded in place of coverage, and the most one sample can lose.
    by
        "class", "group" or "cluster" where it is said of every one of them at once.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[91, 9]] * 20)
    >>> found = robfcp.guarantees.certify_threshold(federation, bin_index=0, max_malicious=1)
    >>> print(found.statement)
    with 95% confidence, either more than 1 of the 20 sites lie or coverage is ... 92.82%
    """

    kind: CertificateKind
    lower: float
    upper: float
    confidence: float | None
    m: int
    n_clients: int
    estimated: bool = False
    assumptions: tuple[Assumption, ...] = ()
    n_outside: int = 0
    full_sets_from: int | None = None
    note: str = ""
    samples: int | None = None
    risk: str = ""
    bound: float | None = None
    by: str = ""
    outside: str = ""
    floor: float | None = None
    trusted: int = 0

    def __post_init__(self) -> None:
        _check_coverage_range(self.lower, self.upper, self.m)
        if self.n_clients < 1 or not (self.confidence is None or 0 < self.confidence < 1):
            raise RobfcpError("a certificate's confidence, or its number of sites, cannot be")
        for one in self.assumptions:
            if one.name == "alike" and not (isinstance(one.value, float | int) and one.value >= 0):
                raise RobfcpError(f"sites cannot be alike up to {one.value!r:.60}")

    @property
    def is_vacuous(self) -> bool:
        """Whether nothing is said: every coverage is allowed."""
        return self.lower <= 0 and self.upper >= 1

    @property
    def per_client_lower(self) -> float | None:
        """Where sites are declared alike up to s: coverage at each honest one, lower - 2 s."""
        declared = (float(one.value) for one in self.assumptions if one.name == "alike")
        return next((max(0.0, self.lower - 2 * s) for s in declared), None)

    def for_max_malicious(self, point: CertificatePoint, confidence: float) -> Certificate:
        """What the curve's point says of the same threshold in the same round.

        Parameters
        ----------
        point
            A number of liars and where coverage lies unless more lie.
        confidence
            With which it does.
        """
        text = f"at most {point.m} of the {self.n_clients} reporting sites lie; the number may be "
        found = [Assumption("liars", point.m, f"{text}any")]
        for one in self.assumptions:
            if one.name == "samples":
                found.append(Assumption("samples", *INDEPENDENCE_ASSUMPTION))
            elif one.name not in ("liars", "held", "alike", "label_shift"):
                found.append(one)
        return msgspec.structs.replace(
            self,
            kind="any-threshold",
            lower=point.lower,
            upper=point.upper,
            confidence=confidence,
            m=point.m,
            assumptions=tuple(found),
            full_sets_from=None,
            note="",
            samples=None,
        )

    def of_reported_classes(self) -> Certificate:
        """The same of a cluster where sites merged classes: it speaks of what they show alone."""
        text = "new cases come from the honest sites that show their class, in proportion to that"
        shown = Assumption("mixture", "shown", text)
        return msgspec.structs.replace(
            self,
            assumptions=tuple(shown if one.name == "mixture" else one for one in self.assumptions),
            outside="cases of a class at sites that merged it",
        )

    def __str__(self) -> str:
        return self.statement

    @property
    def statement(self) -> str:
        """The certificate in words; lower ends are rounded down, upper ends up."""
        words = self._any_threshold() if self.kind == "any-threshold" else self._guaranteed()
        if self.n_outside:
            sites = "site" if self.n_outside == 1 else "sites"
            words += f"; outside it: {self.n_outside} missing or faulty {sites}"
        if self.outside:
            words += f"; outside it: {self.outside}"
        if self.floor is not None:
            words += f"; whoever lies, at least {format_lower(self.floor)} on average over "
            words += f"{self.trusted} trusted samples"
        return f"{words}; {self.note}" if self.note else words

    def _any_threshold(self) -> str:
        """True for every m at once, so also for one that was read off the reports."""
        sure = f"with {format_lower(self.confidence or 0)} confidence"
        if self.is_vacuous:
            what = f"mean {self.risk}" if self.risk else "coverage"
            what += f" of every {self.by}" if self.by else ""
            return f"nothing is proved about {what} if {self.m} of {self.n_clients} sites lie"
        many = f"more than {self.m} of the {self.n_clients} sites lie"
        if self.m == 0:
            many = f"at least one of the {self.n_clients} sites lies"
        return f"{sure}, either {many} or {self._range_text}"

    def _guaranteed(self) -> str:
        whom = f"at most {self.m} of {self.n_clients} sites"
        if self.samples is not None:
            whom += f" with at most {self.samples} samples together"
        proved = self._range_text
        if self.per_client_lower is not None and not self.risk:
            proved += f", and at every honest site at least {format_lower(self.per_client_lower)}"
        proved += f", whatever {whom} do"
        if self.confidence is None:
            return f"{proved}, on average over calibration data"
        return f"{proved}, with {format_lower(self.confidence)} confidence"

    @property
    def _range_text(self) -> str:
        """Where coverage lies, or the mean loss."""
        if self.risk:
            bound = self.bound or 1.0
            most = format_loss_upper((1 - self.lower) * bound, bound)
            least = _format_loss((1 - self.upper) * bound, bound, ROUND_FLOOR)
            words = f"between {least} and {most}" if self.upper < 1 else f"at most {most}"
            return f"mean {self.risk} is {words}"
        where = f"coverage of every {self.by}" if self.by else "coverage"
        where += " of the stated label mix" if self.kind == "mix" else ""
        if self.upper < 1:
            return f"{where} is between {format_lower(self.lower)} and {format_upper(self.upper)}"
        return f"{where} is at least {format_lower(self.lower)}"


def _check_coverage_range(lower: float, upper: float, m: int) -> None:
    """Refuse what no coverage can be; the last digits may be rounding."""
    if not -1e-9 <= lower <= upper + 1e-9 <= 1 + 2e-9 or m < 0:
        raise RobfcpError(f"coverage cannot lie in [{lower}, {upper}] with {m} liars")


def format_lower(share: float) -> str:
    """The share as a percentage that is not larger: 0.899951 is 89.99%."""
    return _format_loss(share, 1, ROUND_FLOOR)


def format_upper(share: float) -> str:
    """The share as a percentage that is not smaller: 0.899951 is 90%."""
    return _format_loss(share, 1, ROUND_CEILING)


def format_loss_upper(loss: float, bound: float) -> str:
    """A mean loss that is not smaller: a percentage where the bound is 1, else a number."""
    return _format_loss(loss, bound, ROUND_CEILING)


def _format_loss(loss: float, bound: float, rounding: str) -> str:
    """Two decimals of a percentage where the bound is 1, else four significant digits."""
    exact = Decimal(repr(float(loss)))
    if bound == 1:
        return f"{(100 * exact).quantize(Decimal('0.01'), rounding=rounding).normalize():f}%"
    places = Decimal(1).scaleb(exact.adjusted() - 3) if exact else Decimal(1)
    return f"{exact.quantize(places, rounding=rounding).normalize():f}"
