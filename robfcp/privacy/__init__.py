"""Privacy: budgets, the noise they need, its exact tails, what a site has spent, coarse grids."""

from robfcp.privacy.budget import Privacy, grid_from_text, logistic_grid, recommend_grid
from robfcp.privacy.ledger import Ledger
from robfcp.privacy.noise import Noise, add_noise, noise_bound

__all__ = [
    "Ledger",
    "Noise",
    "Privacy",
    "add_noise",
    "grid_from_text",
    "logistic_grid",
    "noise_bound",
    "recommend_grid",
]
