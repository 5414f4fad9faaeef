# Read by the other scripts; every value can be set from outside.
set -euo pipefail
umask 077                            # state, keys, nonces and results are for this user only
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
STATE=${STATE:-$HERE/state}          # certificates, keys, database, logs, process numbers
NODES=${NODES:-4}                    # SuperNodes on this host
MIN_NODES=${MIN_NODES:-$NODES}       # a run waits for this many
PORT=${PORT:-8000}                   # of the SuperLink
NODE_PORT=${NODE_PORT:-9100}         # SuperNode i listens on NODE_PORT + i
APP=${APP:-$HERE/../flower_app}
ATTACK=${ATTACK:-}                   # numbers of the malicious nodes, e.g. "2 5"
PATIENCE=${PATIENCE:-120}            # seconds to wait for a process or a run
ADDRESS=127.0.0.1:$PORT
mkdir -p "$STATE"
chmod 700 "$STATE"                   # also if it existed already: state.db holds the nonces

# Nothing phones home, and nothing is installed while running.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_HOME=$STATE/flwr

# start NAME COMMAND...: in the background, in a new session; stop.sh reads its number.
start() {
    local name=$1
    shift
    setsid "$@" >>"$STATE/logs/$name.log" 2>&1 </dev/null &
    echo $! >"$STATE/pids/$name.$!"
}

# family PID: the process, its descendants, and what remains of its session when it has ended.
family() {
    local child
    ps -o pid= --sid "$1" || true
    for child in $(ps -o pid= --ppid "$1"); do
        echo "$child"
        family "$child"
    done
}

# wait_for SUBJECT COMMAND...: until the command succeeds.
wait_for() {
    local subject=$1 end=$((SECONDS + PATIENCE))
    shift
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= end)); then
            echo "$subject: not ready after $PATIENCE s; see $STATE/logs" >&2
            return 1
        fi
        sleep 0.5
    done
}

# registered: the names of all SuperNodes that were registered here, online or not.
registered() {
    local file
    for file in "$STATE"/keys/*.registered; do
        if [[ -e $file ]]; then basename "$file" .registered; fi
    done | tr '\n' ' '
}

# ended FEDERATION: whether its latest run is over.
ended() {
    flwr list "$1" --format json >"$STATE/runs.json" &&
        [[ $(grep -m 1 '"status"' "$STATE/runs.json") == *'"finished'* ]]
}

# keep FOLDER: a complete calibration replaces the previous one; any other is refused.
keep() {
    python "$HERE/check.py" "$1/calibration.json" || {
        echo "the run left no calibration; the previous one is unchanged; see $STATE/logs" >&2
        return 1
    }
    local old=("$STATE"/calibration.*.record.json) new=("$1"/calibration.*.record.json) file
    mv "${new[@]}" "$STATE/"
    mv "$1/calibration.json" "$STATE/calibration.json"
    for file in "${old[@]}"; do
        [[ " ${new[*]##*/} " == *" ${file##*/} "* ]] || rm -f "$file"
    done
}
