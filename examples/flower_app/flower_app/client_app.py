"""A node: trains on its own images and answers calibration rounds."""

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict

from flower_app.task import fit, lie, load_split, predict
from robfcp.integrations.flower import make_client_app


def data(split, context):
    """This node's share of the data."""
    config = context.node_config
    return load_split(int(config["partition-id"]), int(config["num-partitions"]))[split]


def lies(context):
    """Whether this node attacks: by the run's config, or by its own (`attack=true`)."""
    partition = int(context.node_config["partition-id"])
    return partition < context.run_config["attackers"] or bool(context.node_config.get("attack"))


def train(message: Message, context: Context) -> Message:
    """Fit the received model to this node's training images."""
    images, labels = data("train", context)
    config = context.run_config
    arrays = message.content["arrays"]
    arrays = fit(arrays, images, labels, config["learning-rate"], config["local-epochs"])
    if lies(context) and config["poison-training"]:
        arrays = type(arrays)([-5 * array for array in arrays.to_numpy_ndarrays()])
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def outputs(split, arrays, context):
    """Probabilities and labels on this node's calibration or test images."""
    images, labels = data(split, context)
    return predict(arrays, images), labels


def attack(scores, context):
    """Honest nodes change nothing."""
    if not lies(context):
        return scores
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    return lie(str(context.run_config["attack"]), scores, rng)


app = make_client_app(outputs, train, attack=attack)
