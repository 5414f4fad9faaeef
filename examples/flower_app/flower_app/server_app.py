"""The server: registers sizes, trains, calibrates and writes the calibration."""

from flower_app.task import initial_arrays
from robfcp.integrations.flower import make_server_app

app = make_server_app(lambda context: initial_arrays())
