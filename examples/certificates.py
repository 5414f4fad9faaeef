"""What is proved about a threshold, for every number of liars."""

from fractions import Fraction

import robfcp
from robfcp import figures
from robfcp.calibration.what_if import what_if
from robfcp.guarantees import fcp_index
from robfcp.lab import outputs, partitions
from robfcp.lab.worlds import federation_of

score = robfcp.LAC()
pathology = outputs.load("pathmnist")
scores = score(pathology.probabilities, pathology.labels)
parts = partitions.iid(len(scores), 60, rng=0)
federation = federation_of([scores[rows] for rows in parts], robfcp.Grid.default(), score)

outcomes = [
    what_if(federation, level, fcp_index(federation, level), range(0, 16, 3))
    for level in (Fraction(8, 10), Fraction(9, 10))
]
figures.save(figures.plot_certificates(outcomes), "certificates.png")
print("-> certificates.png")
