"""Nothing phones home: set before flwr is imported."""

from __future__ import annotations

import os
from importlib.util import find_spec

from robfcp.errors import RobfcpError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

os.environ.update(QUIET)
if find_spec("flwr") is None:
    raise RobfcpError("flower: flwr is not installed; pip install 'robfcp[flower]'")
