"""What lying sites do to coverage and set size, with and without a defence."""

from robfcp import figures
from robfcp.experiments import outputs, simulate
from robfcp.experiments.simulation import plot_comparison

pathology = outputs.load("pathmnist")
rows = [
    row
    for attack in ("coverage", "efficiency", "truncation")
    for row in simulate(
        pathology.probabilities, pathology.labels, attack=attack, share=0.3, n_clients=60, n_runs=2
    )
]
figures.save(plot_comparison(rows, level=0.9), "attack_and_defence.png")
print("-> attack_and_defence.png")
