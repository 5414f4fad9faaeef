"""Attacks and faults of the simulation: two malicious sites, one forger, one broken site."""

import json

import numpy as np
import nvflare.client as flare

MALICIOUS = ("site-2", "site-5")
FORGER = "site-8"
BROKEN = "site-11"


def attack(site):
    """Return how a malicious site changes its scores: all to 0, so that sets miss labels."""
    return np.zeros_like if site in MALICIOUS else None


def tamper(site):
    """Change the messages of the forger and of the broken site without the library's help."""
    if site == FORGER:
        change_report = forge_name
    elif site == BROKEN:
        change_report = cut_in_half
    else:
        return
    original_send = flare.send

    def send(model):
        record = model.metrics or {}
        body = record.get("body", b"")
        if b'"counts"' in body:
            record["body"] = change_report(body)
        original_send(model)

    flare.send = send


def forge_name(body):
    """Return the report under the name of another site."""
    report = json.loads(body)
    report["client"] = "site-1"
    return json.dumps(report).encode()


def cut_in_half(body):
    """Return the first half of the report."""
    return body[: len(body) // 2]
