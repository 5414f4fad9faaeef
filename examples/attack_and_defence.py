"""What lying sites do to coverage and set size, with and without a defence."""

from robfcp.figures import plots
from robfcp.lab import outputs
from robfcp.lab.simulation import simulate

pathology = outputs.load("pathmnist")
rows = [
    row
    for attack in ("coverage", "efficiency", "truncation")
    for row in simulate(
        pathology.probabilities, pathology.labels, attack=attack, share=0.3, n_clients=60, seeds=2
    )
]
plots.save(plots.plot_comparison(rows, level=0.9), "attack_and_defence.png")
