#!/usr/bin/env bash
# Train and calibrate; arguments are run config, e.g. malicious=1 'strategy="multikrum"'.
source "$(dirname "$0")/settings.sh"
config="output=\"$STATE/calibration.json\" min-nodes=$MIN_NODES $*"
rm -f "$STATE/calibration.json"
flwr run "$APP" deployment --run-config "$config" --stream
flwr list deployment --format json >"$STATE/runs.json"
[[ -e $STATE/calibration.json ]]  # the stream's exit status says nothing about the run
