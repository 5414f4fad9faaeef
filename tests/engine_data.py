"""Clients whom both engines' tests calibrate, each compared with the core on the same reports."""

import numpy as np

import robfcp

CLASSES = 5


def client_data(n_clients, n_samples=60, seed=0):
    """Probabilities and labels of clients that are alike."""
    rng = np.random.default_rng(seed)
    data = {}
    for k in range(n_clients):
        p = rng.dirichlet(np.full(CLASSES, 0.4), n_samples)
        labels = (p.cumsum(axis=1) > rng.random((n_samples, 1))).argmax(axis=1)
        data[f"site-{k}"] = (p, labels)
    return data


def core_reports(data, **context):
    """The same clients' reports made by the core alone."""
    score = robfcp.LAC()
    return [
        robfcp.Report.from_scores(
            name, score(p, y), score=score, labels=y, classes=p.shape[1], **context
        )
        for name, (p, y) in data.items()
    ]
