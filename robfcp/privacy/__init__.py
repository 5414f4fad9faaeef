"""Privacy: budgets, the noise they need, its exact tails, what a site has spent, coarse grids."""

from robfcp.privacy._budget import Privacy, logistic_binning, parse_binning, recommend_binning
from robfcp.privacy._ledger import PrivacyLedger
from robfcp.privacy._noise import Noise, add_noise, noise_bound

__all__ = [
    "Noise",
    "Privacy",
    "PrivacyLedger",
    "add_noise",
    "logistic_binning",
    "noise_bound",
    "parse_binning",
    "recommend_binning",
]
