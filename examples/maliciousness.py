"""The maliciousness of every client, and the scores of those that were flagged."""

import numpy as np

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import get_attack

MIN_CELL_COUNT = 5  # of default reports; the default of `from_scores` is 1

pathology = outputs.load("pathmnist")
score = robfcp.LAC()
scores = score(pathology.probabilities, pathology.labels)
client_rows = partitions.partition_iid(len(scores), 40, rng=0)
client_scores = [scores[rows] for rows in client_rows]
client_scores = get_attack("coverage")(client_scores, [3, 9, 21])
client_scores = get_attack("gaussian")(client_scores, [14, 30], rng=0)

reports = [
    robfcp.Report.from_scores(
        f"client-{k:02d}",
        client_scores[k],
        score=score,
        labels=pathology.labels[rows],
        classes=9,
        min_cell_count=MIN_CELL_COUNT,
    )
    for k, rows in enumerate(client_rows)
]
calibration = robfcp.calibrate(reports)
axes = figures.new_axes(2)
figures.plot_maliciousness(calibration, axes[0])
figures.plot_cdf(calibration, axes[1])
figures.save(axes, "maliciousness.png")
assert np.isfinite(calibration.threshold)
print("-> maliciousness.png")
