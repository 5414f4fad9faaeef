#!/usr/bin/env bash
# What came out, and what every node did.
source "$(dirname "$0")/settings.sh"
python - "$STATE/calibration.json" <<'END'
import sys

import robfcp

calibration = robfcp.Calibration.load(sys.argv[1])
print(f"threshold {calibration.threshold:.6g}: {calibration.certificate.statement}")
for client, entry in calibration.provenance["clients"].items():
    words = "flagged" if client in calibration.flagged_clients else entry["status"]
    claims = entry.get("claims")
    if claims:
        words += f", covered {claims['covered'][0]} of {claims['n_samples']} test samples"
    print(f"  {client}: {words} {entry['reason']}")
END
