"""How far each attack moves coverage under each defense.

The clients send default reports; `min_cell_count=1` in `simulate` is for exact counts.
"""

import numpy as np

from robfcp import figures
from robfcp.experiments import outputs, simulate

ATTACKS = ("coverage", "efficiency", "gaussian", "mimic-low", "truncation", "collusion")
DEFENSES = ("none", "rob-fcp", "consensus")

pathology = outputs.load("pathmnist")
coverage_error = np.zeros((len(ATTACKS), len(DEFENSES)))
for attack_index, attack in enumerate(ATTACKS):
    rows = simulate(
        pathology.probabilities,
        pathology.labels,
        attack=attack,
        malicious_fraction=0.3,
        n_clients=40,
        n_runs=1,
    )
    for row in rows:
        coverage_error[attack_index, DEFENSES.index(row.defense)] = row.coverage_error

ax = figures.plot_heatmap(
    coverage_error,
    ATTACKS,
    DEFENSES,
    title="Coverage error, 30% malicious clients",
    label="|error|",
)
figures.save(ax, "attacks_by_defenses.png")
print("-> attacks_by_defenses.png")
