"""How many cases a test takes: few in `make test`, many times as many in `make test-slow`.

A test that takes `cases(n)` of them bears the mark `effort`, by which `make test-slow` finds it.
"""

import os

import pytest

EFFORT = int(os.environ.get("EFFORT", "1"))


def cases(number):
    """So many, times the effort asked for."""
    return EFFORT * number


def thorough(values, *quick):
    """The parameters of a test; all but the quick ones are for `make test-slow`."""
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in values]
