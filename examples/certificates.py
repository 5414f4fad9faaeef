"""What is proved about a threshold, for every number of liars."""

import robfcp
from robfcp import figures
from robfcp.lab import outputs, partitions
from robfcp.lab.worlds import federation_of

score = robfcp.LAC()
pathology = outputs.load("pathmnist")
scores = score(pathology.probabilities, pathology.labels)
parts = partitions.iid(len(scores), 60, rng=0)
federation = federation_of([scores[rows] for rows in parts], robfcp.Grid.default(), score)

calibration = robfcp.calibrate(federation, [0.8, 0.9])
figures.save(figures.plot_curve(calibration), "certificates.png")
print("-> certificates.png")
