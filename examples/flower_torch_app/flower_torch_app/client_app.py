"""A node: an ordinary Flower client; the last lines let it take part in calibration."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_torch_app.task import fit, load_split, make_model, predict
from robfcp.integrations.flower import add_calibration

app = ClientApp()


def load_samples(split, context):
    """Return this node's images and labels of a split."""
    config = context.node_config
    splits = load_split(int(config["partition-id"]), int(config["num-partitions"]))
    return splits[split]


def load_model(arrays):
    """Return the network with the received weights."""
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    """Fit the received model to this node's training images."""
    model = load_model(message.content["arrays"])
    images, labels = load_samples("train", context)
    config = context.run_config
    fit(model, images, labels, config["learning-rate"], config["local-epochs"])
    metrics = MetricRecord({"num-examples": len(labels)})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def predict_split(split, arrays, context):
    """Return probabilities and labels of this node's calibration or test images.

    The node sends a default report of them: cells of at least five images, and class totals to the
    nearest five.
    """
    images, labels = load_samples(split, context)
    return predict(load_model(arrays), images), labels.numpy()


add_calibration(app, predict_split)
