"""Engines: calibration rounds on Flower and NVFlare, and what a site allows and a server asks.

`robfcp.engines.flower` and `robfcp.engines.nvflare` only carry messages; the rest is here, once.
"""

import os

from robfcp.engines.server import (
    DEFAULTS,
    calibration_round,
    monitor_round,
    register_sizes,
    send_letters,
)
from robfcp.engines.site import SiteRules

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
    "SiteRules",
    "calibration_round",
    "monitor_round",
    "register_sizes",
    "send_letters",
]
