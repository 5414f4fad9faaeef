#!/usr/bin/env bash
# Start (or start again) the SuperLink: TLS, node authentication, state in SQLite.
source "$(dirname "$0")/settings.sh"
start superlink flower-superlink \
    --ssl-ca-certfile "$STATE/certificates/ca.crt" \
    --ssl-certfile "$STATE/certificates/server.pem" \
    --ssl-keyfile "$STATE/certificates/server.key" \
    --enable-supernode-auth --disable-runtime-dependency-installation \
    --database "$STATE/state.db" --host 127.0.0.1 --port "$PORT"
wait_for "the SuperLink on $ADDRESS" flwr list deployment
echo "SuperLink on $ADDRESS"
