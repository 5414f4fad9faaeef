"""What coverage is proved for a threshold: the numbers, what they rest on, and the words."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Literal

import msgspec

from robfcp.errors import RobfcpError

CertificateKind = Literal["any-threshold", "marginal", "pac", "label-distribution"]
TRIVIAL_SETS = "every set is full"
# By how much rounding may move an end, a fraction, out of [0, 1] or past the other end.
_ROUNDING = 1e-9

# Names of assumptions that `guarantees` writes and the methods of `Certificate` match. They stand
# in saved certificates, so their values must not change. calibration/_thresholds.py matches
# "max_malicious" too.
MAX_MALICIOUS = "max_malicious"
MAX_MALICIOUS_SAMPLES = "max_malicious_samples"
SAMPLING = "sampling"
TEST_DISTRIBUTION = "test_distribution"
HETEROGENEITY = "heterogeneity"
HETEROGENEITY_WITHIN_CLASSES = "label_shift"
# What only the guarantee's own threshold rests on, not a threshold that is merely given.
_ONLY_OF_GUARANTEES = (MAX_MALICIOUS_SAMPLES, HETEROGENEITY, HETEROGENEITY_WITHIN_CLASSES)

# Value and text of the SAMPLING assumption that suffices for the interval of any threshold.
INDEPENDENCE_ASSUMPTION = (
    "independent",
    "samples are independent within a site and between sites (nobody is counted at two)",
)


class Assumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that a certificate rests on.

    Attributes
    ----------
    name : str
        What kind of thing it is; code matches the names that are constants of this module.
    value : int, float or str
        The value it takes here; under HETEROGENEITY a number, the declared sigma.
    text : str
        The words for it.
    """

    name: str
    value: int | float | str
    text: str


def max_malicious_assumption(
    max_malicious: int, n_clients: int, *, max_malicious_estimated: bool
) -> Assumption:
    """Return the assumption that at most m clients are malicious, and when m was chosen.

    Parameters
    ----------
    max_malicious : int
        The most clients that may be malicious.
    n_clients : int
        How many clients reported.
    max_malicious_estimated : bool
        Whether m was read off the reports.
    """
    when = "stated before they were seen"
    if max_malicious_estimated:
        when = "a number read off the reports"
    text = f"at most {max_malicious} of the {n_clients} reporting sites lie, {when}"
    return Assumption(MAX_MALICIOUS, max_malicious, text)


class CertificatePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coverage lies in [lower, upper], fractions, unless more than m clients are malicious."""

    max_malicious: int
    lower: float
    upper: float

    def __post_init__(self) -> None:
        _check_coverage_range(self.lower, self.upper, self.max_malicious)

    @property
    def is_vacuous(self) -> bool:
        """Whether nothing is said: every coverage is allowed."""
        return self.lower <= 0 and self.upper >= 1


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Coverage of the benign clients' mixture, proved to lie in [lower, upper].

    Attributes
    ----------
    kind : {"any-threshold", "marginal", "pac", "label-distribution"}
        Which theorem it is.
    lower, upper : float
        Coverage, a fraction, is at least and at most this; upper is 1 where there is no upper
        bound. Under a loss: 1 less the mean loss, divided by `loss_bound`.
    confidence : float or None
        The confidence over the calibration data; None where the bound holds on average over them.
    max_malicious : int
        The largest number of malicious clients.
    n_clients : int
        The number of clients that it speaks of, without `n_uncovered_clients`.
    max_malicious_estimated : bool
        Whether m is estimated from the reports; then it is no proof against malicious clients who
        hide.
    assumptions : tuple of Assumption
        What it rests on.
    n_uncovered_clients : int
        How many missing and rejected clients there are, which it does not speak of.
    exclusions : str
        Whose reports it does not speak of, in words; empty if there are none.
    trusted_lower, n_trusted_samples : float or None, int
        What is covered on average whoever is malicious, and by how many trusted samples, where
        there are any.
    breakdown_point : int or None
        The number of malicious clients that can make every set full, where it is known.
    note : str
        What else must be said.
    max_malicious_samples : int or None
        The largest number of samples that malicious clients hold together, where it was stated.
    risk, loss_bound : str, float or None
        The loss that is bounded in place of coverage, and the most that one sample can lose.
    by : str
        "class", "group" or "cluster" where it holds for every one of them at once.

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
    max_malicious: int
    n_clients: int
    max_malicious_estimated: bool = False
    assumptions: tuple[Assumption, ...] = ()
    n_uncovered_clients: int = 0
    breakdown_point: int | None = None
    note: str = ""
    max_malicious_samples: int | None = None
    risk: str = ""
    loss_bound: float | None = None
    by: str = ""
    exclusions: str = ""
    trusted_lower: float | None = None
    n_trusted_samples: int = 0

    def __post_init__(self) -> None:
        _check_coverage_range(self.lower, self.upper, self.max_malicious)
        is_possible = self.confidence is None or 0 < self.confidence < 1
        if self.n_clients < 1 or not is_possible:
            raise RobfcpError("a certificate's confidence, or its number of sites, cannot be")
        for heterogeneity in self._declared_heterogeneities():
            if not isinstance(heterogeneity, float | int) or not heterogeneity >= 0:
                raise RobfcpError(f"sites cannot be alike up to {heterogeneity!r:.60}")

    @property
    def is_vacuous(self) -> bool:
        """Whether nothing is said: every coverage is allowed."""
        return self.lower <= 0 and self.upper >= 1

    def _declared_heterogeneities(self) -> list[int | float | str]:
        """Return how alike benign clients are declared to be: one value, or none.

        Numbers in certificates that the package made; those that were read from a file may be
        anything until `__post_init__` has checked them.
        """
        return [item.value for item in self.assumptions if item.name == HETEROGENEITY]

    @property
    def per_client_lower(self) -> float | None:
        """Coverage at each benign client is at least this, where clients are declared alike.

        Alike up to s means within s of one common distribution. Then the coverage of the mixture
        is within s of that distribution's, and so is each client's: at least lower - 2 s (theorem
        G, section 8 of docs/theory.md).
        """
        declared = self._declared_heterogeneities()
        if not declared:
            return None
        return max(0.0, self.lower - 2 * float(declared[0]))

    def for_max_malicious(self, point: CertificatePoint, confidence: float) -> Certificate:
        """Return what a point of the curve says of the same threshold in the same round.

        It holds however the threshold was chosen. So what only this certificate's guarantee rests
        on is left out, and so are its notes, which speak of the guarantee.

        Parameters
        ----------
        point : CertificatePoint
            A number m of malicious clients, and the interval of coverage unless there are more.
        confidence : float
            With which it does.
        """
        text = (
            f"at most {point.max_malicious} of the {self.n_clients} reporting clients are "
            "malicious; the number may be any"
        )
        assumptions = [Assumption(MAX_MALICIOUS, point.max_malicious, text)]
        for assumption in self.assumptions:
            if assumption.name == SAMPLING:
                assumptions.append(Assumption(SAMPLING, *INDEPENDENCE_ASSUMPTION))
            elif assumption.name not in (MAX_MALICIOUS, *_ONLY_OF_GUARANTEES):
                assumptions.append(assumption)
        return msgspec.structs.replace(
            self,
            kind="any-threshold",
            lower=point.lower,
            upper=point.upper,
            confidence=confidence,
            max_malicious=point.max_malicious,
            assumptions=tuple(assumptions),
            breakdown_point=None,
            note="",
            max_malicious_samples=None,
        )

    def of_reported_classes(self) -> Certificate:
        """Return the same for a cluster some clients merged: it speaks of the others alone."""
        text = "new cases come from the honest sites that show their class, in proportion to that"
        assumptions = []
        for assumption in self.assumptions:
            if assumption.name == TEST_DISTRIBUTION:
                assumptions.append(Assumption(TEST_DISTRIBUTION, "shown", text))
            else:
                assumptions.append(assumption)
        return msgspec.structs.replace(
            self,
            assumptions=tuple(assumptions),
            exclusions="cases of a class at sites that merged it",
        )

    def __str__(self) -> str:
        return self.statement

    @property
    def statement(self) -> str:
        """The certificate in words; lower ends are rounded down, upper ends up."""
        if self.kind == "any-threshold":
            sentences = [self._any_threshold_statement()]
        else:
            sentences = [self._guarantee_statement()]

        if self.n_uncovered_clients:
            clients = "site" if self.n_uncovered_clients == 1 else "sites"
            sentences.append(f"outside it: {self.n_uncovered_clients} missing or faulty {clients}")
        if self.exclusions:
            sentences.append(f"outside it: {self.exclusions}")
        if self.trusted_lower is not None:
            covered = format_lower(self.trusted_lower)
            sentences.append(
                f"whatever malicious clients report, at least {covered} on average over "
                f"{self.n_trusted_samples} trusted samples"
            )
        if self.note:
            sentences.append(self.note)
        return "; ".join(sentences)

    def _any_threshold_statement(self) -> str:
        """Say what holds of a threshold, however it was chosen.

        It holds for every m at once, so also for one that was read off the reports.
        """
        if self.is_vacuous:
            bounded = f"mean {self.risk}" if self.risk else "coverage"
            if self.by:
                bounded += f" of every {self.by}"
            return (
                f"the certificate is vacuous: nothing is certified about {bounded} if "
                f"{self.max_malicious} of {self.n_clients} clients are malicious"
            )

        confidence = format_lower(self.confidence or 0)
        if self.max_malicious == 0:
            exception = f"at least one of the {self.n_clients} sites lies"
        else:
            exception = f"more than {self.max_malicious} of the {self.n_clients} sites lie"
        return f"with {confidence} confidence, either {exception} or {self._range_statement()}"

    def _guarantee_statement(self) -> str:
        """Say what a guarantee's own threshold promises, whatever m clients do."""
        statement = self._range_statement()
        per_client_lower = self.per_client_lower
        if per_client_lower is not None and not self.risk:
            statement += f", and at every honest site at least {format_lower(per_client_lower)}"

        malicious = f"at most {self.max_malicious} of {self.n_clients} sites"
        if self.max_malicious_samples is not None:
            malicious += f" with at most {self.max_malicious_samples} samples together"
        statement += f", whatever {malicious} do"

        if self.confidence is None:
            return f"{statement}, on average over calibration data"
        return f"{statement}, with {format_lower(self.confidence)} confidence"

    def _range_statement(self) -> str:
        """Say where coverage lies, or the mean loss."""
        return self._loss_range_statement() if self.risk else self._coverage_range_statement()

    def _loss_range_statement(self) -> str:
        """Say where the mean loss lies: 1 - coverage, times the largest loss of a sample.

        The lower end of coverage is the upper end of the loss.
        """
        bound = self.loss_bound or 1.0
        largest = format_loss_upper((1 - self.lower) * bound, bound)
        if self.upper < 1:
            smallest = _format_loss((1 - self.upper) * bound, bound, ROUND_FLOOR)
            return f"mean {self.risk} is between {smallest} and {largest}"
        return f"mean {self.risk} is at most {largest}"

    def _coverage_range_statement(self) -> str:
        """Say where coverage lies."""
        coverage = "coverage"
        if self.by:
            coverage += f" of every {self.by}"
        if self.kind == "label-distribution":
            coverage += " of the stated label mix"

        lowest = format_lower(self.lower)
        if self.upper < 1:
            return f"{coverage} is between {lowest} and {format_upper(self.upper)}"
        return f"{coverage} is at least {lowest}"


def _check_coverage_range(lower: float, upper: float, m: int) -> None:
    """Refuse fractions that no coverage can lie between; the last digits may be rounding."""
    is_range = -_ROUNDING <= lower <= upper + _ROUNDING <= 1 + 2 * _ROUNDING
    if not is_range or m < 0:
        raise RobfcpError(f"coverage cannot lie in [{lower}, {upper}] with {m} liars")


def format_lower(fraction: float) -> str:
    """Return the fraction as a percentage that is not larger: 0.899951 is 89.99%."""
    return _format_loss(fraction, 1, ROUND_FLOOR)


def format_upper(fraction: float) -> str:
    """Return the fraction as a percentage that is not smaller: 0.899951 is 90%."""
    return _format_loss(fraction, 1, ROUND_CEILING)


def format_loss_upper(loss: float, bound: float) -> str:
    """Return a mean loss that is not smaller: a percentage where the bound is 1, else a number.

    Parameters
    ----------
    loss : float
        The mean loss, in [0, bound].
    bound : float
        The most that one sample can lose.
    """
    return _format_loss(loss, bound, ROUND_CEILING)


def _format_loss(loss: float, bound: float, rounding: str) -> str:
    """Return two decimals of a percentage where the bound is 1, else four significant digits.

    Parameters
    ----------
    loss : float
        A mean loss in [0, bound]; or coverage, a fraction, with a bound of 1.
    bound : float
        The most that one sample can lose.
    rounding : str
        ROUND_FLOOR or ROUND_CEILING of `decimal`: to the side on which the statement stays true.
    """
    exact = Decimal(repr(float(loss)))  # the digits that are printed, not the binary number
    if bound == 1:
        percentage = (100 * exact).quantize(Decimal("0.01"), rounding=rounding)
        return f"{percentage.normalize():f}%"

    last_digit = Decimal(1)
    if exact:
        last_digit = Decimal(1).scaleb(exact.adjusted() - 3)  # the fourth significant one
    rounded = exact.quantize(last_digit, rounding=rounding)
    return f"{rounded.normalize():f}"
