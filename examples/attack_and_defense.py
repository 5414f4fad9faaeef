"""Coverage and set size under attack, with and without a defense, on default reports."""

from robfcp import figures
from robfcp.experiments import outputs, simulate
from robfcp.experiments.simulation import ResultRow, plot_comparison

ATTACKS = ("coverage", "efficiency", "truncation")

pathology = outputs.load("pathmnist")
rows: list[ResultRow] = []
for attack in ATTACKS:
    rows += simulate(
        pathology.probabilities,
        pathology.labels,
        attack=attack,
        malicious_fraction=0.3,
        n_clients=60,
        n_runs=2,
    )
figures.save(plot_comparison(rows, level=0.9), "attack_and_defense.png")
print("-> attack_and_defense.png")
