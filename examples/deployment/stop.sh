#!/usr/bin/env bash
# End every process these scripts started, with its descendants, and nothing else. The state stays.
source "$(dirname "$0")/settings.sh"
shopt -s nullglob
processes=()
for file in "$STATE"/pids/*; do processes+=($(family "$(<"$file")")); done
alive() { ((${#processes[@]})) && kill -0 "${processes[@]}" 2>/dev/null; }
if ((${#processes[@]})); then kill -TERM "${processes[@]}" 2>/dev/null || true; fi
for ((tries = 0; tries < 40; tries++)); do
    alive || break
    sleep 0.5
done
if alive; then kill -KILL "${processes[@]}" 2>/dev/null || true; fi
rm -f "$STATE"/pids/*
echo "stopped"
