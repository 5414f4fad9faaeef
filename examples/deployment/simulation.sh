#!/usr/bin/env bash
# The same app in simulation on Ray: a SuperLink for this run only, NODES virtual nodes.
# Arguments are run config, e.g. attackers=4 max-malicious=4.
source "$(dirname "$0")/settings.sh"
trap '"$HERE/stop.sh"' EXIT
mkdir -p "$STATE"/{logs,pids,flwr}
cat >"$FLWR_HOME/config.toml" <<END
[superlink.simulation]
address = "$ADDRESS"
insecure = true
END
start superlink flower-superlink --insecure --simulation \
    --disable-runtime-dependency-installation --host 127.0.0.1 --port "$PORT"
wait_for "the SuperLink on $ADDRESS" flwr list simulation
fresh=$(mktemp -d "$STATE/run.XXXXXX")
trap '"$HERE/stop.sh"; rm -rf "$fresh"' EXIT
flwr run "$APP" simulation --stream \
    --federation-config "num-supernodes=$NODES client-resources-num-cpus=1" \
    --run-config "output=\"$fresh/calibration.json\" min-clients=$MIN_NODES $*" || true
wait_for "the end of the run" ended simulation
keep "$fresh"
"$HERE/show.sh"
