"""Exit 0 if a calibration is valid and fits its record; else print the reason, in one line."""

import sys

import robfcp

try:
    calibration = robfcp.Calibration.load(sys.argv[1], record=True)
    n_clients = calibration.federation.n_clients
except robfcp.RobfcpError as error:
    sys.exit(f"no calibration: {error}")
print(f"a calibration of {n_clients} reports")
