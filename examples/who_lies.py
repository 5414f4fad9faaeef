"""How odd every site is, and the scores of those that were flagged."""

import numpy as np

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import get_attack
from robfcp.experiments.scenarios import build_federation

pathology = outputs.load("pathmnist")
score = robfcp.LAC()
everything = score(pathology.probabilities, pathology.labels)
parts = partitions.partition_iid(len(everything), 40, rng=0)
scores = [everything[rows] for rows in parts]
scores = get_attack("coverage")(scores, [3, 9, 21])
scores = get_attack("gaussian")(scores, [14, 30], rng=0)

calibration = robfcp.calibrate(build_federation(scores, robfcp.Binning.default(), score))
axes = figures.new_axes(2)
figures.plot_maliciousness(calibration, axes[0])
figures.plot_cdf(calibration, axes[1])
figures.save(axes, "who_lies.png")
assert np.isfinite(calibration.threshold)
print("-> who_lies.png")
