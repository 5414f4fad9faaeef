#!/usr/bin/env bash
# Train and calibrate; arguments are run config, e.g. max-malicious=1 'strategy="multikrum"'.
# Ends with 0 only if this run's calibration is complete and has replaced the previous one.
source "$(dirname "$0")/settings.sh"
fresh=$(mktemp -d "$STATE/run.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
config="output=\"$fresh/calibration.json\" min-clients=$MIN_NODES expected-clients=\"$(registered)\" $*"
flwr run "$APP" deployment --run-config "$config" --stream || true  # its status is not that of the run
wait_for "the end of the run" ended deployment
keep "$fresh"
