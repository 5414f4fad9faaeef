"""Integrations: calibration rounds on Flower and NVIDIA FLARE.

`run_calibration_round` and `run_monitoring_round` are the server's side, `ClientPolicy` says what a
client allows. `robfcp.integrations.flower` and `robfcp.integrations.nvflare` only carry messages.
May import all packages but `experiments` and `cli`.
"""

import os

from robfcp.integrations._configuration import DEFAULTS
from robfcp.integrations._round import (
    register_sample_sizes,
    run_calibration_round,
    run_monitoring_round,
    send_feedback,
)
from robfcp.integrations.client import ClientPolicy

# Nothing phones home: set before Flower is imported.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
os.environ.update(QUIET)

__all__ = [
    "DEFAULTS",
    "ClientPolicy",
    "register_sample_sizes",
    "run_calibration_round",
    "run_monitoring_round",
    "send_feedback",
]
