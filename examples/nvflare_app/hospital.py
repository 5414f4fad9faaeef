"""The code of a site, which the job never carries: it is in `local/custom` of the site's kit."""

import time
from pathlib import Path

import numpy as np
from task import common_model, load_split, predict

KIT = Path(__file__).parents[2]
N_SITES = 6


def outputs(split, params):
    """Return probabilities and labels of this site's calibration or test images.

    The site sends a default report of them, sites 1 and 3 a private one.
    """
    images, labels = load_split(KIT.name, N_SITES)[split]
    return predict(common_model(), images), labels


def malicious_outputs(split, params):
    """Return outputs as if the model were sure of every label."""
    _, labels = outputs(split, params)
    return np.eye(10)[labels], labels


def hanging_outputs(split, params):
    """Never return; leave a file that shows the request."""
    (KIT / "asked").touch()
    time.sleep(10**6)
