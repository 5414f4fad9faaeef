#!/usr/bin/env bash
# Register every SuperNode's public key under its client's name, then start the SuperNodes.
source "$(dirname "$0")/settings.sh"
for ((i = 1; i <= NODES; i++)); do
    if [[ ! -e $STATE/keys/site-$i.registered ]]; then
        flwr supernode register "$STATE/keys/site-$i.pub" deployment --name "site-$i" >/dev/null
        touch "$STATE/keys/site-$i.registered"
    fi
    config="partition-id=$((i - 1)) num-partitions=$NODES"
    if [[ " $ATTACK " == *" $i "* ]]; then config+=" attack=true"; fi
    start "site-$i" flower-supernode --superlink "$ADDRESS" \
        --root-certificates "$STATE/certificates/ca.crt" \
        --auth-supernode-private-key "$STATE/keys/site-$i" \
        --port $((NODE_PORT + i)) --node-config "$config"
done
online() { (($(flwr supernode list deployment --format json | grep -c '"status": *"online"') >= NODES)); }
wait_for "$NODES SuperNodes" online
echo "$NODES SuperNodes online"
