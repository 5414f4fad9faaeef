#!/usr/bin/env bash
# Print the calibration and the outcome of every node.
source "$(dirname "$0")/settings.sh"
python - "$STATE/calibration.json" <<'END'
import sys

import robfcp

calibration = robfcp.Calibration.load(sys.argv[1], record=True)
print(f"threshold {calibration.threshold:.6g}: {calibration.certificate.statement}")
for client, entry in calibration.provenance["clients"].items():
    outcome = "flagged" if client in calibration.flagged_clients else entry["status"]
    claims = entry.get("claims")
    if claims:
        outcome += f", covered {claims['n_covered'][0]} of {claims['n_samples']} test samples"
    print(f"  {client}: {outcome} {entry['reason']}")
END
