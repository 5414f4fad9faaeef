"""How far each attack moves coverage under each defence."""

import numpy as np

from robfcp import figures
from robfcp.experiments import outputs, simulate

ATTACKS = ("coverage", "efficiency", "gaussian", "mimic-low", "truncation", "clones")
DEFENCES = ("none", "rob-fcp", "consensus")
pathology = outputs.load("pathmnist")
error = np.zeros((len(ATTACKS), len(DEFENCES)))
for i, attack in enumerate(ATTACKS):
    for row in simulate(
        pathology.probabilities, pathology.labels, attack=attack, share=0.3, n_clients=40, n_runs=1
    ):
        error[i, DEFENCES.index(row.defence)] = row.coverage_error
ax = figures.plot_heatmap(
    error, ATTACKS, DEFENCES, title="Coverage lost or gained, 30% lying", label="|error|"
)
figures.save(ax, "attacks_by_defences.png")
print("-> attacks_by_defences.png")
