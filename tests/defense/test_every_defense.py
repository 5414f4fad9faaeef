"""One protocol for every defense: verdicts, numbers and reasons that fit together, on any round."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rob_fcp import random_counts

import robfcp
from robfcp.defense import DEFENSES, get_defense, rebuild_defense, recorded_parameters
from robfcp.defense.consensus import Tuning
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

EXACT = {"rob-fcp", "rob-fcp-released", "exact"}  # exclude as many as they are given


def defenses(n_malicious):
    """Every defense given a number, and the default made to exclude exactly so many."""
    by_name = {name: get_defense(name, n_malicious) for name in DEFENSES}
    return {**by_name, "exact": get_defense("consensus", n_malicious, exclude_exactly=True)}


@pytest.mark.effort
@pytest.mark.parametrize("name", defenses(0))
@settings(max_examples=cases(8), deadline=None)
@given(seed=st.integers(0, 10**6), private=st.booleans())
def test_every_defense_keeps_the_protocol(name, seed, private):
    rng = np.random.default_rng(seed)
    counts, noise = random_counts(rng, 1, 12), {}
    if private:
        noise = {"privacy": robfcp.Privacy(1.0), "sample_sizes": counts.sum(axis=1)}
        counts = counts + rng.integers(-2, 3, counts.shape)
    federation = Federation.from_counts(counts, **noise)
    n_malicious = (federation.n_clients - 1) // 2
    defense = defenses(n_malicious)[name]
    result, repeated = defense.assess(federation), defense.assess(federation)
    assumed = (result.n_malicious, result.n_malicious_given)
    assert assumed == ((None, False) if name == "none" else (n_malicious, True))
    assert result.benign_mask.shape == result.maliciousness.shape == (federation.n_clients,)
    assert result.benign_mask.dtype == bool
    assert (~result.benign_mask).sum() <= n_malicious
    assert (~result.benign_mask).sum() == n_malicious or name not in EXACT
    assert np.isfinite(result.maliciousness).all()
    excluded = {federation.clients[k] for k in np.flatnonzero(~result.benign_mask)}
    assert set(result.reasons) == excluded
    assert all("\n" not in reason for reason in result.reasons.values())
    np.testing.assert_array_equal(result.benign_mask, repeated.benign_mask)


@pytest.mark.parametrize(
    "defense", [*defenses(3).values(), *(kind() for kind in DEFENSES.values())]
)
def test_every_defense_is_rebuilt_from_its_record(defense):
    assert rebuild_defense(*recorded_parameters(defense)) == defense


def test_a_defense_of_other_constants_is_recorded_as_custom():
    defense = robfcp.Consensus(tuning=replace(Tuning(), fdr_level=0.1))
    assert recorded_parameters(defense) == ("custom:consensus", {})
    with pytest.raises(RobfcpError, match="cannot be made again from its record"):
        rebuild_defense("custom:consensus", {})


@pytest.mark.parametrize("name", sorted(set(defenses(0)) - {"none"}))
@pytest.mark.parametrize("n_malicious", [2, 3, 4])
def test_a_malicious_majority_is_refused_with_the_reason(name, n_malicious):
    federation = Federation.from_counts(np.eye(4, 5, dtype=int))
    with pytest.raises(RobfcpError, match="majority of benign clients"):
        robfcp.calibrate(federation, defense=defenses(n_malicious)[name])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(get_defense, "x"), "defense: 'x' is unknown"),
        (partial(robfcp.RobFCP, metric="l3"), "metric: 'l3' is unknown"),
        (partial(robfcp.RobFCP, -1), "n_malicious"),
        (partial(robfcp.Consensus, 1, 2), "give one of them"),
    ],
)
def test_impossible_defenses_are_refused(make, message):
    with pytest.raises(RobfcpError, match=message):
        make()
