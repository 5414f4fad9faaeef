"""Sites' own code, as an installed module would hold it: `nvflare_sites:site_3`."""

import time

import numpy as np
from engine_data import client_data

DATA = client_data(8)


def broken(part, params):
    raise ValueError("patient 4711")


def hangs(part, params):
    time.sleep(10**4)


def with_params(part, params):
    """Probabilities that the received model makes."""
    return np.tile(params["numpy_key"], (60, 1)), np.zeros(60, dtype=int)


def __getattr__(name):
    kind, _, number = name.partition("_")
    if kind == "site":
        return lambda part, params: DATA[f"site-{number}"]
    if kind == "fresh":
        rng = np.random.default_rng(int(number))
        y = (rng.random(400) < 0.3).astype(int)
        return lambda params: (np.tile([0.9, 0.1], (400, 1)), y, np.arange(400))
    raise AttributeError(name)
