"""The maliciousness of every client, and the scores of those that were flagged."""

import numpy as np

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import get_attack
from robfcp.experiments.scenarios import build_federation

pathology = outputs.load("pathmnist")
score = robfcp.LAC()
scores = score(pathology.probabilities, pathology.labels)
client_rows = partitions.partition_iid(len(scores), 40, rng=0)
client_scores = [scores[rows] for rows in client_rows]
client_scores = get_attack("coverage")(client_scores, [3, 9, 21])
client_scores = get_attack("gaussian")(client_scores, [14, 30], rng=0)

calibration = robfcp.calibrate(build_federation(client_scores, robfcp.Binning.default(), score))
axes = figures.new_axes(2)
figures.plot_maliciousness(calibration, axes[0])
figures.plot_cdf(calibration, axes[1])
figures.save(axes, "who_lies.png")
assert np.isfinite(calibration.threshold)
print("-> who_lies.png")
