#!/usr/bin/env bash
# Train and calibrate; arguments are run config, e.g. liars=1 'strategy="multikrum"'.
# Ends with 0 only if this run's calibration is there, whole, and has taken the last one's place.
source "$(dirname "$0")/settings.sh"
fresh=$(mktemp -d "$STATE/run.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
config="output=\"$fresh/calibration.json\" min-nodes=$MIN_NODES invited=\"$(registered)\" $*"
flwr run "$APP" deployment --run-config "$config" --stream || true  # says nothing about the run
wait_for "the end of the run" ended deployment
keep "$fresh"
