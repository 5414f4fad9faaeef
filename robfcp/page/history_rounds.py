"""What the page shows of the rounds: the chain, and the sites it says something of."""

from __future__ import annotations

from typing import Any

from robfcp._util.names import a_few
from robfcp.calibration import Chain, Link
from robfcp.page.history_evidence import MOST_POINTS, MOST_SITES


def rounds_data(chain: Chain) -> dict[str, Any]:
    """The chain, the newest round first, and the sites it says something of."""
    found = chain.reputations()
    spoken = {
        name: one
        for name, one in found.items()
        if one.flagged or one.drifted or one.alarmed or one.out_since is not None
    }
    order = sorted(spoken, key=lambda name: (-_weight(spoken[name]), name))[:MOST_SITES]
    return {
        "links": [_link(link) for link in reversed(chain.links[-MOST_POINTS:])],
        "words": (
            f"Every round holds the digest of the one before. Over all rounds at most "
            f"{chain.delta:g} is spent on leaving sites out and as much on naming drift. "
            f"{len(found) - len(spoken)} of {len(found)} sites were never flagged, left out or "
            "named. Being flagged proves nothing; being left out does, under the stated sigma."
        ),
        "reputations": [
            {
                "name": name,
                "reported": spoken[name].reported,
                "flagged": spoken[name].flagged,
                "drifted": spoken[name].drifted,
                "alarmed": spoken[name].alarmed,
                "out": spoken[name].out_since,
            }
            for name in order
        ],
    }


def _weight(one: Any) -> int:
    return int(one.flagged + one.drifted + one.alarmed + 1000 * (one.out_since is not None))


def _link(link: Link) -> dict[str, Any]:
    rang = [f"{name} at step {step}" for name, step in link.rang.items()]
    alarms = "–" if link.alarms is None else ", ".join(rang) or "none"
    return {
        "name": f"{link.number}" + (f" ({link.round})" if link.round else ""),
        "thresholds": link.thresholds,
        "lowers": link.lowers,
        "sites": len(link.clients),
        "flagged": a_few(link.flagged, 3) or "–",
        "out": a_few(list(link.left_out), 3) or "–",
        "drifted": a_few(list(link.drifted), 3) or "–",
        "alarms": alarms,
        "digest": link.calibration,
    }
