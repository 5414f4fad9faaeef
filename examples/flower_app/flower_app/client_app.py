"""A node: trains on its own images and answers calibration rounds."""

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict

from flower_app.task import attacked_scores, fit, load_split, predict
from robfcp.integrations.flower import make_client_app


def load_samples(split, context):
    """Return this node's images and labels of a split."""
    config = context.node_config
    splits = load_split(int(config["partition-id"]), int(config["num-partitions"]))
    return splits[split]


def is_malicious(context):
    """Return whether this node attacks: by the run's config, or by the node's (`attack=true`)."""
    partition = int(context.node_config["partition-id"])
    return partition < context.run_config["attackers"] or bool(context.node_config.get("attack"))


def train(message: Message, context: Context) -> Message:
    """Fit the received model to this node's training images."""
    images, labels = load_samples("train", context)
    config = context.run_config
    arrays = message.content["arrays"]
    arrays = fit(arrays, images, labels, config["learning-rate"], config["local-epochs"])
    if is_malicious(context) and config["poison-training"]:
        arrays = type(arrays)([-5 * array for array in arrays.to_numpy_ndarrays()])
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def predict_split(split, arrays, context):
    """Return probabilities and labels of this node's calibration or test images.

    The node sends a default report of them: cells of at least five images, and class totals to the
    nearest five.
    """
    images, labels = load_samples(split, context)
    return predict(arrays, images), labels


def attack(scores, context):
    """Return the scores that this node reports; benign nodes change nothing."""
    if not is_malicious(context):
        return scores
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    return attacked_scores(str(context.run_config["attack"]), scores, rng)


app = make_client_app(predict_split, train, attack=attack)
