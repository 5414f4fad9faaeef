"""The server: registers sizes, trains, calibrates and writes the calibration."""

from flower_app.task import initial_arrays
from robfcp.engines.flower import server_app

app = server_app(lambda context: initial_arrays())
