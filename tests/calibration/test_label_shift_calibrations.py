"""LabelShift: thresholds, certificates, files and refusals in words."""

from fractions import Fraction

import numpy as np
import pytest
from effort import cases
from makers import reports_of
from plain_shift import by_class, class_cdfs, draw_sites, label_counts, lie

import robfcp
from robfcp import LabelShift, Pac, calibrate
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.label_shift import class_counts, mix_threshold, read_mixes
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
            assert (found.threshold, found.certificate.note) == (plain.threshold, "")


def test_liars_who_stand_out_are_dropped_named_and_cost_less_than_without():
    rng, counts = tables(2, n=500)
    federation = by_class(lie(rng, counts, 5, "top"), NAMES)
    found = calibrate(federation, promise=LabelShift(5))
    assert found.threshold < calibrate(federation, promise=Pac(5)).threshold
    assert "5 sites that cannot be honest were dropped first (site-11, " in found.certificate.note


def test_a_stated_mix_gets_the_edge_of_the_rule_at_every_level():
    levels, counts = ["0.8", "0.9", "0.6"], class_counts(FEDERATION)
    for mix in (EVEN, "uniform", "any", [EVEN, {"cat": 0.1, "dog": 0.9}]):
        found = calibrate(FEDERATION, levels, promise=LabelShift(2, mix=mix))
        mixes = read_mixes(mix, NAMES)
        for level, one in zip(levels, found.levels, strict=True):
            walk = mix_threshold(counts, mixes, float(1 - Fraction(level)), 2, 1 - 0.95)
            assert one.threshold == FEDERATION.threshold_at(walk.index)
            stated = one.certificate
            assert (stated.kind, stated.lower, stated.m) == ("mix", float(level), 2)


def test_sites_that_differ_within_classes_are_certified_nothing_and_told_so():
    rng, counts = tables(4, n=600)
    federation = by_class(lie(rng, counts, 8, "shifted"), NAMES)
    for mix in (None, EVEN):
        found = calibrate(federation, promise=LabelShift(2, mix=mix))
        assert "more than 2 sites disagree within classes" in found.certificate.note
        assert found.threshold == np.inf
        wide = calibrate(federation, promise=LabelShift(2, alike=0.5, mix=mix))
        assert "disagree" not in wide.certificate.note
    counts[2:, 1] = 0
    found = calibrate(by_class(counts, NAMES), promise=LabelShift(2, mix="any"))
    assert found.threshold == np.inf
    assert "too few sites hold dog for a guarantee against 2 liars" in found.certificate.note


# Certificates and files


@pytest.mark.parametrize("mix", [None, EVEN, "any"])
def test_certificates_state_the_declaration(mix):
    found = calibrate(FEDERATION, promise=LabelShift(1, alike=0.01, mix=mix))
    stated = {one.name: one.value for one in found.certificate.assumptions}
    assert (stated["label_shift"], stated["liars"]) == (0.01, 1)
    assert stated["mixture"] == ("n_k" if mix is None else "stated")
    assert found.certificate.confidence == 0.95


# Refusals


def private():
    rng = np.random.default_rng(5)
    told = {"labels": rng.integers(0, 3, 60), "classes": NAMES, "privacy": Privacy(4.0)}
    return reports_of(rng.random((5, 60)), grid=robfcp.Grid.uniform(20), **told)


@pytest.mark.parametrize(
    ("sent", "promise", "by", "words"),
    [
        (FEDERATION, {}, "class", "promise: thresholds by class need no LabelShift"),
        (FEDERATION, {"mix": EVEN}, dict.fromkeys(NAMES, "pet"), "need no LabelShift"),
        (FEDERATION, {"liars": None}, None, "liars: None is not a whole number"),
        (FEDERATION, {"alike": -0.1}, None, "alike: -0.1 is not"),
        (FEDERATION, {"alike": 1.5}, None, "alike: 1.5 is not"),
        (FEDERATION, {"liars": 16}, None, "nothing can be guaranteed against 16 of 16"),
        (FEDERATION, {"mix": {"fox": 1.0}}, None, "'fox' is none of the classes"),
        (private(), {}, None, "not proved for private reports"),
        (private(), {"mix": "uniform"}, None, "not proved for private reports"),
        (
            Federation.from_counts(np.ones((6, 9), int)),
            {"mix": "any"},
            None,
            "reports by class; make",
        ),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_what_does_not_fit_is_refused_in_words(sent, promise, by, words):
    with pytest.raises(RobfcpError, match=words):
        calibrate(sent, by=by, promise=LabelShift(**{"liars": 2, **promise}))
