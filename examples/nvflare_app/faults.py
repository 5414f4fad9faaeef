"""Attacks and faults of the simulation: two malicious clients, one forger, one faulty client."""

import json

import numpy as np
import nvflare.client as flare

MALICIOUS = ("site-2", "site-5")
FORGER = "site-8"
FAULTY = "site-11"


def client_attack(name):
    """Return how a malicious client changes its scores: all to 0, so that sets miss labels."""
    return np.zeros_like if name in MALICIOUS else None


def tamper(name):
    """Change the messages of the forger and of the faulty client outside of robfcp."""
    if name == FORGER:
        change_report = forge_name
    elif name == FAULTY:
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
    """Return the report under the name of another client."""
    report = json.loads(body)
    report["client"] = "site-1"
    return json.dumps(report).encode()


def cut_in_half(body):
    """Return the first half of the report."""
    return body[: len(body) // 2]
