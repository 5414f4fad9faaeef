"""The number of cases of a test: small in `make test`, a multiple of that in `make test-slow`.

A test of `cases(n)` cases has the mark `effort`, by which `make test-slow` selects it.
"""

import os

import pytest

EFFORT = int(os.environ.get("EFFORT", "1"))


def cases(n_cases):
    """Return a number of cases, times the effort."""
    return EFFORT * n_cases


def thorough(values, *quick):
    """Return the parameters of a test; all but the quick ones are for `make test-slow`."""
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
