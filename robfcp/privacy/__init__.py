"""Differential privacy: budgets, the noise they need and its exact tails, and a client's ledger.

`Privacy` is the budget of one report, `PrivacyLedger` the file of what a client has spent, and
`recommend_binning` proposes bins that suit a budget. May import `binning`, `errors` and the shared
private modules.
"""

from robfcp.privacy._budget import Privacy, logistic_binning, parse_binning, recommend_binning
from robfcp.privacy._ledger import LedgerFile, PrivacyLedger
from robfcp.privacy._noise import Noise, add_noise, noise_bound

__all__ = [
    "LedgerFile",
    "Noise",
    "Privacy",
    "PrivacyLedger",
    "add_noise",
    "logistic_binning",
    "noise_bound",
    "parse_binning",
    "recommend_binning",
]
