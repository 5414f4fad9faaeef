"""The threshold follows any data within its bound although sites lie."""

import numpy as np
import pytest

from robfcp.errors import RobfcpError
from robfcp.monitoring import Follower


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


def test_what_cannot_be_followed_is_refused_and_what_is_proved_is_said():
    good = {"threshold": 0.5, "n_sites": 5, "liars": 1, "most": 1.0}
    wrong = {"cannot tolerate 5 among 5": {"liars": 5}, "coverage": {"coverage": 1.5}}
    wrong |= {"rate above 0": {"rate": 0.0}, "need finite numbers": {"threshold": np.inf}}
    for words, change in wrong.items():
        with pytest.raises(RobfcpError, match=words):
            Follower(**good | change)
    with pytest.raises(RobfcpError, match="6 sites sent shares but 5 take part"):
        Follower(**good).after(dict.fromkeys("abcdef", 0.1))
    statement = Follower(**good, rate=0.02, rounds=4000).statement
    assert statement.startswith("over 4000 rounds the honest sites covered at least 89.3")
