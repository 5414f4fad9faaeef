"""The threshold follows any drift within its bound although sites lie; plain recalibration and one
liar too few do not."""

import numpy as np
import pytest

from robfcp.errors import RobfcpError
from robfcp.monitoring import Follower

SITES, ROUNDS, RATE = 20, 4000, 0.02


def missed_by_honest(allowed, liars, rounds=ROUNDS):
    """What honest sites miss on average, and the follower: scores drift up and down, liars say 0.

    allowed: for how many liars the rule allows; 0 is plain adaptive conformal inference.
    """
    rng, honest = np.random.default_rng(0), SITES - liars
    follower, total = Follower(0.9, SITES, allowed, most=1.0, rate=RATE), 0.0
    for t in range(rounds):
        scores = rng.random((honest, 10)) ** (1 + 3 * np.sin(t / 300) ** 2)
        shares = (scores > follower.threshold).mean(axis=1)
        total += shares.mean()
        told = np.append(shares, np.zeros(liars))
        follower = follower.after({f"s{k}": x for k, x in enumerate(told)})
    return total / rounds, follower


@pytest.mark.parametrize("liars", [1, 3])
def test_the_bound_holds_though_liars_say_that_nothing_is_missed(liars):
    found, follower = missed_by_honest(liars, liars)
    assert found <= follower.bound < 0.102
    assert follower.statement.startswith("over 4000 rounds the honest sites covered at least 89.8")
    for too_few in {0, liars - 1}:  # plain, and one too few
        found, follower = missed_by_honest(too_few, liars)
        assert found > follower.bound + 0.002


def test_the_bound_holds_for_any_shares_and_any_lies_by_the_inequality_of_its_proof():
    """Misses that no model makes: all or nothing, at the adversary's choice, below the top only."""
    rng = np.random.default_rng(1)
    for trial in range(30):
        liars = int(rng.integers(0, 4))
        follower = Follower(
            rng.random(), 8, liars, most=1.0, coverage=0.8, rate=rng.uniform(0.01, 1)
        )
        total = 0.0
        for t in range(1, 200):
            shares = rng.random(8 - liars) * (rng.random() < 0.7) * (follower.threshold < 1)
            lies = rng.choice([0.0, 1.0, np.nan, 7.0], liars)
            sent = dict(enumerate(np.append(shares, lies)))
            if trial % 2 and liars:
                del sent[7]  # a silent liar
            total += shares.mean()
            follower = follower.after(sent)
            assert total / t <= follower.bound + 1e-12
            assert follower.threshold <= 1 + follower.rate


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"liars": 5}, "cannot tolerate 5 among 5"),
        ({"coverage": 1.5}, "coverage"),
        ({"rate": 0.0}, "rate above 0"),
        ({"threshold": np.inf}, "need finite numbers"),
    ],
)
def test_what_cannot_be_followed_is_refused(change, words):
    with pytest.raises(RobfcpError, match=words):
        Follower(**{"threshold": 0.5, "n_sites": 5, "liars": 1, "most": 1.0, **change})
    with pytest.raises(RobfcpError, match="6 sites sent shares but 5 take part"):
        Follower(0.5, 5, 1, 1.0).after(dict.fromkeys("abcdef", 0.1))
