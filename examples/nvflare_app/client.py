"""A client: trains on its images when asked to, and answers calibration rounds."""

import argparse

import nvflare.client as flare
from faults import client_attack, tamper
from task import KEY, common_model, fit, load_split, predict

from robfcp.integrations.nvflare import run_client

parser = argparse.ArgumentParser()
parser.add_argument("--n-clients", type=int, default=12)
parser.add_argument("--faults", action="store_true")
options, _ = parser.parse_known_args()

flare.init()
name = flare.get_site_name()
samples = load_split(name, options.n_clients)


def train(model):
    """Fit the received model to this client's training images."""
    images, labels = samples["train"]
    weights = fit(model.params[KEY], images, labels, 30)
    return flare.FLModel(params={KEY: weights}, meta={"NUM_STEPS_CURRENT_ROUND": len(labels)})


def predict_split(split, params):
    """Return probabilities and labels of this client's calibration or test images.

    The client sends a default report of them: cells of at least five images, and class totals to
    the nearest five.
    """
    images, labels = samples[split]
    weights = common_model() if params is None else params[KEY]
    return predict(weights, images), labels


attack = None
if options.faults:
    tamper(name)
    attack = client_attack(name)
run_client(predict_split, train, attack=attack)
