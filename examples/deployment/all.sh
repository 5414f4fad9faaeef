#!/usr/bin/env bash
# Everything on one host: keys, SuperLink, SuperNodes, one run, its result, and stop.
source "$(dirname "$0")/settings.sh"
trap '"$HERE/stop.sh"' EXIT
"$HERE/keys.sh"
"$HERE/superlink.sh"
"$HERE/supernodes.sh"
"$HERE/run.sh" "$@"
"$HERE/show.sh"
