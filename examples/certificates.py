"""What is proved about a threshold, for every number of liars."""

from fractions import Fraction

import numpy as np

import robfcp
from robfcp.calibration.what_if import plain_index, what_if
from robfcp.figures import plots
from robfcp.lab import outputs
from robfcp.lab.simulation import federation_of

score = robfcp.LAC()
pathology = outputs.load("pathmnist")
scores = score(pathology.probabilities, pathology.labels)
parts = robfcp.partitions.iid(len(scores), 60, rng=0)
federation = federation_of([scores[rows] for rows in parts], robfcp.Grid.default(), score)

everybody = np.ones(federation.n_clients, dtype=bool)
outcomes = [
    what_if(federation, level, plain_index(federation, level, everybody), range(0, 16, 3))
    for level in (Fraction(8, 10), Fraction(9, 10))
]
plots.save(plots.plot_certificates(outcomes), "certificates.png")
