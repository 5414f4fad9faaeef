"""The noise of all clients together: the same questions with noise and without."""

import inspect

import numpy as np
import pytest

from robfcp import Federation, Privacy, RobfcpError
from robfcp.privacy import NoNoise, noise_of
from robfcp.privacy.noises import ClientNoise

MARK = Privacy(epsilon=1)
HIDDEN = Privacy(epsilon=2, neighbours="add-remove")


def public(kind):
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def test_both_answer_the_same_questions():
    assert public(NoNoise) == public(ClientNoise)
    assert type(noise_of(None, 3)) is type(noise_of((), 3)) is type(noise_of([None] * 3, 3))
    assert noise_of([None] * 3, 3).marks == ()
    assert noise_of(MARK, 2).marks == (MARK, MARK)


def test_without_noise_nothing_is_allowed_for_said_or_refused():
    noise = noise_of(None, 2)
    assert noise.laws() == noise.moving_laws() == (None, None)
    assert not noise.moves()
    assert not noise.variances().any()
    assert noise.exact().all()
    assert noise.joined("so") == "so"
    assert noise.notes() == noise.assumptions() == ()
    assert noise.statements() == {}
    assert noise.removed(3, lambda n: n + 1) == 3
    assert noise.exact_only(3) == 3
    noise.refuse("nothing")
    assert noise.read_sizes(np.array([4, 6]), 2, []).tolist() == [2, 3]
    with pytest.raises(RobfcpError, match="sizes are stated though no report is private"):
        noise.read_sizes(np.array([4, 6]), 2, [2, 3])


def test_some_noise_is_counted_said_and_refused():
    noise = noise_of([None, MARK, HIDDEN], 3)
    assert noise.n_private == 2
    assert noise.exact().tolist() == [True, False, False]
    assert noise.laws(10)[1].scale == 20
    assert noise.moves()
    assert noise.variances()[0] == 0
    assert (noise.variances()[1:] > 0).all()
    assert noise.joined("so") == "so; noise of 2 private reports is allowed for"
    assert "2 of 3 reports are private, at least (2, 0)" in noise.notes()[0]
    assert sum(noise.statements().values()) == 2
    assert noise.removed(3, lambda n: n + 1) == 4
    assert noise.exact_only(3) is None
    with pytest.raises(RobfcpError, match="not with noise"):
        noise.refuse("not with noise")
    assert type(noise.of([0])) is NoNoise
    assert noise.of([1]).marks == (MARK,)
    with pytest.raises(RobfcpError, match="need one entry a site"):
        Federation.from_counts([[1, 2]], privacy=[MARK, MARK], sizes=[3])
