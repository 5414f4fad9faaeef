"""Privacy: budgets, the noise they need, its exact tails, what a site has spent, coarse grids."""

from robfcp.privacy.budget import (
    Accountant,
    Neighbours,
    Privacy,
    add_noise,
    grid_from_text,
    logistic_grid,
    recommend_bins,
    recommend_grid,
    stated_privacy,
    zcdp_epsilon,
    zcdp_rho,
)
from robfcp.privacy.ledger import Ledger, Release
from robfcp.privacy.noise import Mechanism, Noise, Terms, noise_bound, pooled_mass

__all__ = [
    "Accountant",
    "Ledger",
    "Mechanism",
    "Neighbours",
    "Noise",
    "Privacy",
    "Release",
    "Terms",
    "add_noise",
    "grid_from_text",
    "logistic_grid",
    "noise_bound",
    "pooled_mass",
    "recommend_bins",
    "recommend_grid",
    "stated_privacy",
    "zcdp_epsilon",
    "zcdp_rho",
]
