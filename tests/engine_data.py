"""Clients whom all engines' tests calibrate, each compared with the core on the same reports."""

from dataclasses import asdict

import numpy as np

import robfcp

CLASSES = 5
QUICK = {"liars": 1, "deadline": 20.0, "poll": 0.02, "sizes": "none"}  # of a configuration


def client_data(n_clients, n_samples=60, seed=0):
    """Probabilities and labels of clients that are alike."""
    rng = np.random.default_rng(seed)
    data = {}
    for k in range(n_clients):
        p = rng.dirichlet(np.full(CLASSES, 0.4), n_samples)
        labels = (p.cumsum(axis=1) > rng.random((n_samples, 1))).argmax(axis=1)
        data[f"site-{k}"] = (p, labels)
    return data


DATA = client_data(8)


def core_reports(data, **context):
    """The same clients' reports made by the core alone."""
    score = robfcp.LAC()
    return [
        robfcp.Report.from_scores(
            name, score(p, y), score=score, labels=y, classes=p.shape[1], **context
        )
        for name, (p, y) in data.items()
    ]


def told(found):
    """What a site's own code gives: the value, or the exception it raises."""
    if isinstance(found, Exception):
        raise found
    return found


def drifting(rate, n=400, seed=0):
    """Fresh samples of which this share is missed at the threshold of `watched`."""
    y = (np.random.default_rng(seed).random(n) < rate).astype(int)
    return np.tile([0.9, 0.1], (n, 1)), y, np.arange(n)


def watched():
    """A calibration to be watched."""
    federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
    return robfcp.calibrate(federation, defence="none")


def looked(merged):
    """A merged look, as the file of a workflow has it."""
    faulty = {fault.client for fault in merged.faulty}
    return {**asdict(merged), "alarm": merged.alarm, "line": merged.line, "faulty": faulty}
