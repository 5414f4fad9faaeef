"""Sites that do not keep to it, for the simulation: two lie, one forges a name, one is broken."""

import json

import numpy as np
import nvflare.client as flare

LIARS, FORGER, BROKEN = ("site-2", "site-5"), "site-8", "site-11"


def attack(site):
    """Liars say that everything is easy, so that sets miss the truth."""
    return np.zeros_like if site in LIARS else None


def tamper(site):
    """Change what this site sends, behind the library's back."""
    if site not in (FORGER, BROKEN):
        return
    honest = flare.send

    def send(model):
        record = model.metrics or {}
        if b'"counts"' in record.get("body", b""):
            if site == FORGER:
                record["body"] = json.dumps(
                    {**json.loads(record["body"]), "client": "site-1"}
                ).encode()
            else:
                record["body"] = record["body"][: len(record["body"]) // 2]
        honest(model)

    flare.send = send
