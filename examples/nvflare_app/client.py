"""A site: trains on its own images when asked to, and answers calibration rounds."""

import argparse

import nvflare.client as flare
from rogues import attack, tamper
from task import KEY, common_model, fit, load_split, predict

from robfcp.integrations.nvflare import run_client

parser = argparse.ArgumentParser()
parser.add_argument("--sites", type=int, default=12)
parser.add_argument("--rogues", action="store_true")
options, _ = parser.parse_known_args()

flare.init()
site = flare.get_site_name()
samples = load_split(site, options.sites)


def train(model):
    """Fit the received model to this site's training images."""
    images, labels = samples["train"]
    weights = fit(model.params[KEY], images, labels, 30)
    return flare.FLModel(params={KEY: weights}, meta={"NUM_STEPS_CURRENT_ROUND": len(labels)})


def outputs(split, params):
    """Return probabilities and labels of this site's calibration or test images.

    The site sends a default report of them: cells of at least five images, and class totals to the
    nearest five.
    """
    images, labels = samples[split]
    weights = common_model() if params is None else params[KEY]
    return predict(weights, images), labels


site_attack = None
if options.rogues:
    tamper(site)
    site_attack = attack(site)
run_client(outputs, train, attack=site_attack)
