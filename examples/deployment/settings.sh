# Read by the other scripts; every value can be set from outside.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
STATE=${STATE:-$HERE/state}          # certificates, keys, database, logs, process numbers
NODES=${NODES:-4}                    # SuperNodes on this host
MIN_NODES=${MIN_NODES:-$NODES}       # a run waits for so many
PORT=${PORT:-8000}                   # of the SuperLink
NODE_PORT=${NODE_PORT:-9100}         # SuperNode i listens on NODE_PORT + i
APP=${APP:-$HERE/../flower_app}
ATTACK=${ATTACK:-}                   # numbers of the nodes that lie, e.g. "2 5"
PATIENCE=${PATIENCE:-120}            # seconds to wait for a process or a run
ADDRESS=127.0.0.1:$PORT

# Nothing phones home, and nothing is installed while running.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_HOME=$STATE/flwr

# start NAME COMMAND...: in the background, in a session of its own, its number kept for stop.sh.
start() {
    local name=$1
    shift
    setsid "$@" >>"$STATE/logs/$name.log" 2>&1 </dev/null &
    echo $! >"$STATE/pids/$name.$!"
}

# family PID: the process, its descendants, and what is left of its session when it has died.
family() {
    local child
    ps -o pid= --sid "$1" || true
    for child in $(ps -o pid= --ppid "$1"); do
        echo "$child"
        family "$child"
    done
}

# wait_for WHAT COMMAND...: until the command succeeds.
wait_for() {
    local what=$1 end=$((SECONDS + PATIENCE))
    shift
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= end)); then
            echo "$what: not there after $PATIENCE s; see $STATE/logs" >&2
            return 1
        fi
        sleep 0.5
    done
}
