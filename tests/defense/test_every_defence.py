"""One protocol for every defence: verdicts, numbers and reasons that fit together, on any round."""

from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rob_fcp import random_counts

import robfcp
from robfcp.defense import DEFENSES, get_defense, rebuild_defense
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

EXACT = {"rob-fcp", "rob-fcp-released"}  # leave out as many as they are told


def rules(most):
    """Every defence told a number, and the default told to leave out exactly as many."""
    named = {name: get_defense(name, most) for name in DEFENSES}
    return {**named, "exactly": get_defense("consensus", most, exclude_exactly=True)}


@pytest.mark.effort
@pytest.mark.parametrize("name", rules(0))
@settings(max_examples=cases(8), deadline=None)
@given(seed=st.integers(0, 10**6), private=st.booleans())
def test_every_defence_keeps_the_protocol(name, seed, private):
    rng = np.random.default_rng(seed)
    counts, noise = random_counts(rng, 1, 12), {}
    if private:
        noise = {"privacy": robfcp.Privacy(1.0), "sizes": counts.sum(axis=1)}
        counts = counts + rng.integers(-2, 3, counts.shape)
    federation = Federation.from_counts(counts, **noise)
    most = (federation.n_clients - 1) // 2
    rule = rules(most)[name]
    result, again = rule(federation), rule(federation)
    assert (result.liars, result.stated) == ((None, False) if name == "none" else (most, True))
    assert result.trusted.shape == result.oddness.shape == (federation.n_clients,)
    assert result.trusted.dtype == bool
    assert (~result.trusted).sum() <= most
    assert (~result.trusted).sum() == most or name not in EXACT | {"exactly"}
    assert np.isfinite(result.oddness).all()
    flagged = {federation.clients[k] for k in np.flatnonzero(~result.trusted)}
    assert set(result.reasons) == flagged
    assert all("\n" not in reason for reason in result.reasons.values())
    np.testing.assert_array_equal(result.trusted, again.trusted)


@pytest.mark.parametrize("rule", [*rules(3).values(), *(kind() for kind in DEFENSES.values())])
def test_every_defence_is_made_again_from_its_record(rule):
    assert rebuild_defense(rule.name, asdict(rule)) == rule


@pytest.mark.parametrize("name", sorted(set(rules(0)) - {"none"}))
@pytest.mark.parametrize("liars", [2, 3, 4])
def test_a_majority_of_liars_is_refused_with_the_reason(name, liars):
    federation = Federation.from_counts(np.eye(4, 5, dtype=int))
    with pytest.raises(RobfcpError, match="majority of honest sites"):
        robfcp.calibrate(federation, defense=rules(liars)[name])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(get_defense, "x"), "defence: 'x' is unknown"),
        (partial(robfcp.RobFCP, distance="l3"), "distance: 'l3' is unknown"),
        (partial(robfcp.RobFCP, -1), "liars"),
        (partial(robfcp.Consensus, 1, 2), "state one of the two"),
    ],
)
def test_defences_that_cannot_be_are_refused(make, words):
    with pytest.raises(RobfcpError, match=words):
        make()
