"""Wrong calls of `calibrate` are refused with what to type instead; alpha is 1 - coverage."""

import inspect
from fractions import Fraction

import numpy as np
import pytest
from makers import beta_scores, reports_of

import robfcp
from robfcp.errors import RobfcpError, RobfcpWarning

REPORTS = reports_of(beta_scores(0, 8, 60))


def calibrate(**options):
    return robfcp.calibrate(REPORTS, defense="none", **options)


def test_a_second_positional_argument_is_refused_since_it_could_be_coverage_or_alpha():
    message = r"write calibrate\(reports, coverage=0\.9\), or alpha=0\.1 for the same"
    for level in (0.1, 0.9):
        with pytest.raises(TypeError, match=message):
            robfcp.calibrate(REPORTS, level)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("confidence", "coverage=0.9 for the target coverage, or certificate_confidence=0.95"),
        ("confidence_level", "coverage=0.9 for the target coverage, or certificate_confidence"),
        ("level", "write coverage"),
        ("risk", "write risk_level"),
        ("max_malicious", "defense=Consensus(max_malicious=3)"),
        ("n_malicious", "defense=Consensus(n_malicious=3)"),
    ],
)
def test_names_of_other_libraries_are_refused_with_the_name_here(name, suggestion):
    with pytest.raises(TypeError) as error:
        calibrate(**{name: 0.9})
    assert str(error.value).startswith(f"calibrate() has no argument {name!r}; ")
    assert suggestion in str(error.value)


def test_other_unknown_arguments_are_refused_as_by_any_function():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        calibrate(nonsense=1)


def test_the_signature_is_that_of_the_function():
    parameters = inspect.signature(robfcp.calibrate).parameters
    keyword_only = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    assert ["reports", *keyword_only] == list(parameters)
    assert {"coverage", "alpha", "defense", "guarantee"} <= set(keyword_only)


@pytest.mark.parametrize(
    ("alpha", "coverage"),
    [
        (0.1, Fraction(9, 10)),
        ("0.1", Fraction(9, 10)),
        (Fraction(1, 3), Fraction(2, 3)),
        (np.float64(0.3), Fraction(7, 10)),
    ],
)
def test_alpha_is_exactly_one_minus_coverage(alpha, coverage):
    calibration = calibrate(alpha=alpha)
    assert calibration.levels[0].coverage == coverage
    assert calibration.threshold == calibrate(coverage=coverage).threshold


@pytest.mark.parametrize("sequence", [list, tuple, np.array])
def test_several_alphas_are_several_levels(sequence):
    calibration = calibrate(alpha=sequence([0.2, 0.1]))
    assert [level.coverage for level in calibration.levels] == [Fraction(4, 5), Fraction(9, 10)]


def test_alpha_beside_coverage_is_refused():
    with pytest.raises(RobfcpError, match="alpha: means coverage=1 - alpha; give one of them"):
        calibrate(alpha=0.1, coverage=0.9)


@pytest.mark.parametrize("alpha", ["high", object(), "1/0"])
def test_an_alpha_that_is_not_a_number_is_refused(alpha):
    with pytest.raises(RobfcpError, match=r"alpha: .* is not a number; give for example 0\.1"):
        calibrate(alpha=alpha)


@pytest.mark.parametrize("alpha", [0, 1, 1.5, -0.1])
def test_an_alpha_that_is_not_between_0_and_1_is_refused(alpha):
    with pytest.raises(RobfcpError, match=r"alpha: .* is not between 0 and 1"):
        calibrate(alpha=alpha)


@pytest.mark.parametrize("options", [{"coverage": 0.1}, {"alpha": 0.9}, {"coverage": [0.9, 0.1]}])
def test_a_coverage_below_a_half_warns_that_alpha_may_be_meant(options):
    message = r"coverage: 0\.1 is below 0\.5, .* did you mean alpha=0\.1, which is coverage=0\.9\?"
    with pytest.warns(RobfcpWarning, match=message) as warnings:
        calibrate(**options)
    assert len(warnings) == 1
    assert warnings[0].filename == __file__


def test_a_coverage_of_a_half_does_not_warn():
    assert calibrate(coverage=0.5).levels[0].coverage == Fraction(1, 2)  # a warning is an error


def test_an_alpha_is_the_decimal_that_it_prints_as():
    for alpha in (0.3, 1 - 0.7, np.float32(0.3), "0.3", "3/10", Fraction(3, 10)):
        assert calibrate(alpha=alpha).levels[0].coverage == Fraction(7, 10)
    levels = calibrate(alpha=np.array([0.1, 0.2], dtype=np.float32)).levels
    assert [level.coverage for level in levels] == [Fraction(9, 10), Fraction(8, 10)]
