"""LabelShift: thresholds, certificates, files and refusals in words."""

from fractions import Fraction

import numpy as np
import pytest
from effort import cases
from makers import reports_of
from plain_shift import by_class, class_cdfs, draw_sites, label_counts, lie

import robfcp
from robfcp import LabelShift, Pac
from robfcp.calibration import calibrate
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.label_shift import class_counts, least_shift, mix_threshold, read_mixes
from robfcp.privacy import Privacy

NAMES = ("cat", "dog", "eel")
EVEN = {"cat": 0.5, "dog": 0.25, "eel": 0.25}


def tables(seed, n_sites=16, n=300, bins=80):
    """A generator and the counts of honest sites whose label mixes differ."""
    rng = np.random.default_rng(seed)
    return rng, draw_sites(rng, label_counts(rng, n_sites, 3, n), class_cdfs(3, bins))


def honest(seed=0, **more):
    """A federation of honest sites."""
    return by_class(tables(seed, **more)[1], NAMES)


FEDERATION = honest()


# Thresholds


@pytest.mark.effort
def test_where_nobody_is_dropped_the_threshold_is_that_of_plain_pac():
    for seed in range(cases(1)):
        federation = honest([1, seed])
        for m in (0, 2, 5):
            found = calibrate(federation, promise=LabelShift(m))
            plain = calibrate(federation, promise=Pac(m), confidence=0.96)
            assert found.threshold == plain.threshold
            usual = calibrate(federation, promise=Pac(m)).threshold
            assert usual <= found.threshold <= usual + 1.01 / 80
            assert found.certificate.note == ""


def test_liars_who_stand_out_are_dropped_named_and_cost_less_than_without():
    rng, counts = tables(2, n=500)
    federation = by_class(lie(rng, counts, 5, "top"), NAMES)
    found = calibrate(federation, promise=LabelShift(5))
    assert found.threshold < calibrate(federation, promise=Pac(5)).threshold
    assert "5 sites that cannot be honest were dropped first (site-11, " in found.certificate.note


def test_a_stated_mix_gets_the_edge_of_the_rule_at_every_level():
    levels = ["0.8", "0.9", "0.6"]
    for mix in (EVEN, "uniform", "any", [EVEN, {"cat": 0.1, "dog": 0.9}]):
        found = calibrate(FEDERATION, levels, promise=LabelShift(2, mix=mix))
        counts = class_counts(FEDERATION)
        mixes = read_mixes(mix, NAMES)
        for level, one in zip(levels, found.levels, strict=True):
            alpha = float(1 - Fraction(level))
            walk = mix_threshold(counts, mixes, alpha, 2, 1 - 0.95)
            assert one.threshold == FEDERATION.threshold_at(walk.index)
            assert one.certificate.kind == "mix"
            assert one.certificate.lower == float(Fraction(level))
            assert one.certificate.m == 2


def test_a_class_that_too_few_hold_leaves_sets_full_and_is_named():
    _, counts = tables(3)
    counts[2:, 1] = 0
    found = calibrate(by_class(counts, NAMES), promise=LabelShift(2, mix="any"))
    assert found.threshold == np.inf
    assert "too few sites hold dog for a guarantee against 2 liars" in found.certificate.note


def test_sites_that_differ_within_classes_are_certified_nothing_and_told_so():
    rng, counts = tables(4, n=600)
    federation = by_class(lie(rng, counts, 8, "shifted"), NAMES)
    for mix in (None, EVEN):
        found = calibrate(federation, promise=LabelShift(2, mix=mix))
        assert "more than 2 sites disagree within classes" in found.certificate.note
        assert found.threshold == np.inf
        sigma = least_shift(federation, 2)
        assert sigma > 0
        wide = calibrate(federation, promise=LabelShift(2, alike=sigma, mix=mix))
        assert "disagree" not in wide.certificate.note
    assert least_shift(FEDERATION, 2) == 0


def test_beside_the_declaration_stands_the_least_shift_that_drops_nobody():
    rng, counts = tables(8, n=500)
    for federation in (FEDERATION, by_class(lie(rng, counts, 2, "top"), NAMES)):
        least = least_shift(federation, 2)
        for mix in (None, EVEN):
            found = calibrate(federation, promise=LabelShift(2, alike=0.01, mix=mix))
            words = f"up to 0.01; the least at which no site would be dropped is {least:.3f}"
            assert words in found.remarks[-1]
    assert least > 0
    assert calibrate(FEDERATION, promise=Pac(2)).remarks == ()


# Certificates and files


@pytest.mark.parametrize("mix", [None, EVEN, "any"])
def test_certificates_state_the_declaration(mix):
    found = calibrate(FEDERATION, promise=LabelShift(1, alike=0.01, mix=mix))
    stated = {one.name: one for one in found.certificate.assumptions}
    assert stated["label_shift"].value == 0.01
    assert "within 0.01 of a common one (label shift, declared)" in stated["label_shift"].text
    assert stated["liars"].value == 1
    assert stated["mixture"].value == ("n_k" if mix is None else "stated")
    assert found.certificate.confidence == 0.95


# Refusals


@pytest.mark.parametrize("mix", [None, "uniform"])
def test_private_and_pooled_reports_are_refused(mix):
    rng, grid = np.random.default_rng(5), robfcp.Grid.uniform(20)
    told = {"labels": rng.integers(0, 3, 60), "classes": NAMES, "privacy": Privacy(4.0)}
    private = reports_of(rng.random((5, 60)), grid=grid, **told)
    with pytest.raises(RobfcpError, match="not proved for private reports"):
        calibrate(private, promise=LabelShift(1, mix=mix))
    pooled = Federation.from_counts(np.random.default_rng(6).integers(1, 9, (6, 10)))
    with pytest.raises(RobfcpError, match="needs reports by class; make them with labels"):
        calibrate(pooled, promise=LabelShift(1, mix=mix))


@pytest.mark.parametrize(
    ("promise", "by", "words"),
    [
        ({}, "class", "promise: thresholds by class need no LabelShift"),
        ({"mix": EVEN}, dict.fromkeys(NAMES, "pet"), "need no LabelShift"),
        ({"liars": None}, None, "liars: None is not a whole number"),
        ({"alike": -0.1}, None, "alike: -0.1 is not"),
        ({"alike": 1.5}, None, "alike: 1.5 is not"),
        ({"liars": 16}, None, "nothing can be guaranteed against 16 of 16"),
        ({"mix": {"fox": 1.0}}, None, "'fox' is none of the classes"),
        ({"mix": "balanced"}, None, "'balanced' is unknown"),
        ({"mix": {"cat": 0.5}}, None, "add up to 1"),
        ({"mix": {"cat": "half"}}, None, "mix: shares are numbers"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(promise, by, words):
    with pytest.raises(RobfcpError, match=words):
        calibrate(FEDERATION, by=by, promise=LabelShift(**{"liars": 2, **promise}))
