"""The threshold each number of liars would need, and where one guaranteed against five stands."""

from fractions import Fraction

import numpy as np

import robfcp
from robfcp import figures
from robfcp.lab import outputs
from robfcp.lab.worlds import federation_of

score = robfcp.LAC()
pathology = outputs.load("pathmnist")
scores = score(pathology.probabilities, pathology.labels)
parts = robfcp.partitions.dirichlet(pathology.labels, 50, 0.5, rng=0)
federation = federation_of([scores[rows] for rows in parts], robfcp.Grid.default(), score)

calibration = robfcp.calibrate(federation, malicious=5, guarantee="marginal")
index = int(np.searchsorted(federation.grid.upper, calibration.threshold))
figures.save(figures.plot_tolerance_curve(federation, Fraction(9, 10), index), "tolerance.png")
print("-> tolerance.png")
