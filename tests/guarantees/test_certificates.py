"""Certificates: numbers, assumptions as data, and the words."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from scipy.special import rel_entr

from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation
from robfcp.guarantees import (
    Certificate,
    bounds_of,
    certify,
    coverage_interval,
    guaranteed,
    marginal_threshold,
    prune,
)
from robfcp.guarantees.certificate import guarantee_certificate
from robfcp.guarantees.coverage import kl_lower
from robfcp.guarantees.engine import envelope

LEVEL = Fraction(9, 10)


def federation(n: int = 500, n_clients: int = 100, bins: int = 100) -> Federation:
    rng = np.random.default_rng(0)
    return Federation.from_counts(rng.multinomial(n, np.full(bins, 1 / bins), n_clients))


def test_kl_lower_end_is_the_root_of_the_divergence_and_errs_downwards():
    for share in (0.02, 0.5, 0.9, 0.999, 1.0):
        for radius in (1e-5, 1e-3, 0.1):
            p = float(kl_lower(np.array(share), radius))
            divergence = rel_entr(share, p) + rel_entr(1 - share, 1 - p)
            assert divergence == pytest.approx(radius, rel=1e-6)
            assert divergence >= radius * (1 - 1e-9)
    assert kl_lower(np.array(0.0), 0.1) == 0


def test_the_band_is_never_wider_than_hoeffdings_and_contains_the_envelope():
    here = federation(bins=20)
    lower, upper = coverage_interval(bounds_of(here), np.arange(20), 9, 0.05, 20)
    low, high = envelope(here.cumulative(), here.sizes, 9)
    e = np.sqrt(np.log(2 * 20 / 0.05) / (2 * 91 * 500))
    assert (lower >= low - e - 1e-12).all()
    assert (upper <= high + e + 1e-12).all()
    assert (lower <= low).all()
    assert (upper >= high).all()


def test_certificate_of_a_threshold_is_the_band_at_its_edge():
    here = federation()
    certificate = certify(here, 90, 9, 0.95)
    (lower,), (upper,) = coverage_interval(bounds_of(here), np.array([90]), 9, 1 - 0.95, 100)
    assert (certificate.lower, certificate.upper) == (lower, upper)
    lowest, highest = coverage_interval(bounds_of(here), np.arange(100), 9, 1 - 0.95, 100)
    assert (lowest[90], highest[90]) == (lower, upper)
    assert certificate.confidence == 0.95
    assert not certificate.vacuous
    assert "between" in certificate.statement
    assert "either more than 9 of the 100 sites lie or coverage" in certificate.statement


def test_a_number_read_off_the_reports_proves_as_much_and_is_called_one():
    stated, read = (certify(federation(), 90, 9, estimated=e) for e in (False, True))
    assert stated.statement == read.statement
    assert "read off the reports" in read.assumptions[0].text
    assert "stated before" in stated.assumptions[0].text


def test_an_infinite_threshold_covers_everything_and_says_that_sets_are_full():
    certificate = certify(federation(), None, 9)
    assert certificate.lower == certificate.upper == 1
    assert "every set is full" in certificate.statement


def test_pruning_first_narrows_the_certificate_of_an_attacked_round():
    counts = federation().counts.copy()
    counts[:20] = 0
    counts[:20, 0] = 500
    attacked = Federation.from_counts(counts)
    plain = certify(attacked, 90, 20)
    pruned = certify(attacked, 90, 20, sigma=0.01)
    assert pruned.width < plain.width / 3
    assert "20 sites that cannot be honest were dropped" in pruned.statement
    assert any(a.name == "heterogeneity" and a.value == 0.01 for a in pruned.assumptions)


def test_a_refuted_heterogeneity_is_reported_and_nobody_dropped():
    counts = np.zeros((20, 4), dtype=int)
    counts[:10, 0] = counts[10:, 3] = 500
    certificate = certify(Federation.from_counts(counts), 2, 3, sigma=0.01)
    assert "contradict" in certificate.statement


def test_assumptions_are_frozen_data_apart_from_the_numbers():
    certificate = certify(federation(), 90, 9)
    assert [a.name for a in certificate.assumptions] == [
        "liars",
        "corruption",
        "samples",
        "mixture",
        "identity",
        "sizes",
    ]
    assert {a.name: a.value for a in certificate.assumptions}["sizes"] == "claimed"
    with pytest.raises(FrozenInstanceError):
        certificate.assumptions[0].value = 3  # type: ignore[misc]


def test_missing_and_faulty_clients_are_outside_and_lower_no_budget():
    here = federation()
    fewer = Federation(
        here.ids,
        here.counts,
        here.sizes,
        here.grid,
        faulty=(Fault("site-b", "counts", "negative"),),
        missing=("site-a",),
        registered=True,
    )
    certificate = certify(fewer, 90, 9)
    assert certificate.outside == ("site-a", "site-b")
    assert certificate.m == 9
    assert "2 missing or faulty sites" in certificate.statement
    assert {a.name: a.value for a in certificate.assumptions}["sizes"] == "registered"


def test_a_marginal_guarantee_beyond_the_impossibility_says_who_can_force_full_sets():
    certificate = guarantee_certificate(federation(), "marginal", LEVEL, 20)
    assert certificate.lower == 0.9
    assert certificate.confidence is None
    assert certificate.full_sets_from == 8
    assert "guaranteed against 20 of 100" in certificate.statement
    assert "8 or more liars can make every set full" in certificate.statement
    assert "on average over calibration data" in certificate.statement
    assert "full" not in guarantee_certificate(federation(), "marginal", LEVEL, 5).statement


def test_pruning_before_a_marginal_guarantee_costs_its_chance():
    counts = federation().counts.copy()
    counts[:15] = 0
    counts[:15, 0] = 500
    attacked = Federation.from_counts(counts)
    index, certificate = guaranteed(attacked, "marginal", LEVEL, 20, sigma=0.02)
    kept, remaining, _ = prune(attacked, 20, 0.02, 0.01)
    assert remaining == 5
    raised = Fraction(91, 100)  # so that 0.9 is left when the chance is taken off
    assert index == marginal_threshold(attacked.subset(kept), raised, remaining)
    assert index != marginal_threshold(attacked.subset(kept), LEVEL, remaining)
    assert certificate.lower == 0.9
    assert certificate.full_sets_from is None


def test_pac_guarantees_carry_their_confidence_and_the_size_budget_its_assumption():
    pac = guarantee_certificate(federation(), "pac", LEVEL, 5, confidence=0.99)
    assert "with 99% confidence" in pac.statement
    alike = guarantee_certificate(federation(), "pac-homogeneous", LEVEL, 40)
    assert {a.name: a.value for a in alike.assumptions}["heterogeneity"] == 0
    budget = guarantee_certificate(federation(), "marginal", LEVEL, None, size_budget=700)
    assert {a.name: a.value for a in budget.assumptions}["size_budget"] == 700
    with pytest.raises(RobfcpError, match="state how many"):
        guarantee_certificate(federation(), "marginal", LEVEL, None)


def test_a_certificate_that_says_nothing_is_called_vacuous():
    tiny = Federation.from_counts(np.array([[2, 0], [0, 2], [1, 1]]))
    certificate = certify(tiny, 0, 2)
    assert certificate.vacuous
    assert "nothing is proved" in certificate.statement


def test_a_certificate_survives_json():
    certificate = guarantee_certificate(federation(), "marginal", LEVEL, 20)
    assert msgspec.json.decode(msgspec.json.encode(certificate), type=Certificate) == certificate


@pytest.mark.parametrize("kind", ["marginal", "pac"])
def test_the_number_of_liars_said_to_force_full_sets_does_and_one_less_does_not(kind):
    here = federation(n=50)
    certificate = guarantee_certificate(here, kind, LEVEL, 20)
    forcing = certificate.full_sets_from
    assert forcing is not None
    for liars, full in [(forcing, True), (forcing - 1, False)]:
        counts = np.zeros_like(here.counts)
        counts[:, 0] = 50
        counts[:liars] = 0
        counts[:liars, -1] = 50
        index, outcome = guaranteed(Federation.from_counts(counts), kind, LEVEL, 20)
        assert (index == 99) == full
        assert ("every set is full" in outcome.statement) == full


def test_clients_declared_alike_fall_to_the_number_of_liars_said():
    here = federation(n=50)
    forcing = guarantee_certificate(here, "pac-homogeneous", LEVEL, 45).full_sets_from
    assert forcing is not None
    for liars, full in [(forcing, True), (forcing - 1, False)]:
        counts = np.zeros_like(here.counts)
        counts[:, 0] = 50
        counts[:liars] = 0
        counts[:liars, -1] = 50
        index, _ = guaranteed(Federation.from_counts(counts), "pac-homogeneous", LEVEL, 45)
        assert (index == 99) == full


def test_clients_too_few_to_be_told_apart_say_so_in_the_certificate():
    certificate = guarantee_certificate(federation(n=50), "pac-homogeneous", LEVEL, 49)
    assert certificate.full_sets_from is not None
    assert certificate.full_sets_from > 49 or "state fewer liars" in certificate.statement
    spread = guarantee_certificate(federation(), "pac-homogeneous", LEVEL, 5, sigma=0.1)
    assert spread.full_sets_from == 0


def test_a_size_budget_is_said_in_words():
    words = guarantee_certificate(federation(), "marginal", LEVEL, None, size_budget=700).statement
    assert "with at most 700 samples together" in words
