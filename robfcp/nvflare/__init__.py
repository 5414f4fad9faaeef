"""The engine: calibration rounds on NVIDIA FLARE. A thin adapter, no mathematics in it.

`calibrate_client` makes a Client API script answer, `CalibrationController` asks, and
`CalibrationRecipe` builds the job; `CalibrationExecutor` answers where sites take no code. May
import `engines` and the rooms before it.
"""

from importlib.util import find_spec

from robfcp.errors import RobfcpError

if find_spec("nvflare") is None:
    raise RobfcpError("nvflare: nvflare is not installed; pip install 'robfcp[nvflare]'")

from robfcp.nvflare.client import CalibrationExecutor, calibrate_client
from robfcp.nvflare.recipe import CalibrationRecipe, add_calibration
from robfcp.nvflare.server import CalibrationController, MonitorController

__all__ = [
    "CalibrationController",
    "CalibrationExecutor",
    "CalibrationRecipe",
    "MonitorController",
    "add_calibration",
    "calibrate_client",
]
