"""How odd every site is, and the scores of those that were flagged."""

import numpy as np

import robfcp
from robfcp import figures
from robfcp.lab import outputs, partitions
from robfcp.lab.attacks import named_attack
from robfcp.lab.worlds import federation_of

pathology = outputs.load("pathmnist")
score = robfcp.LAC()
everything = score(pathology.probabilities, pathology.labels)
parts = partitions.iid(len(everything), 40, rng=0)
scores = [everything[rows] for rows in parts]
scores = named_attack("coverage")(scores, [3, 9, 21])
scores = named_attack("gaussian")(scores, [14, 30], rng=0)

calibration = robfcp.calibrate(federation_of(scores, robfcp.Grid.default(), score))
axes = figures.new_axes(2)
figures.plot_oddness(calibration, axes[0])
figures.plot_cdf(calibration, axes[1])
figures.save(axes, "who_lies.png")
assert np.isfinite(calibration.threshold)
print("-> who_lies.png")
