"""Exit 0 if a calibration is whole and fits its record; else say why not, in one line."""

import sys

import robfcp

try:
    calibration = robfcp.Calibration.load(sys.argv[1], record=True)
    reports = calibration.federation.n_clients
except robfcp.RobfcpError as error:
    sys.exit(f"no calibration: {error}")
print(f"a calibration of {reports} reports")
