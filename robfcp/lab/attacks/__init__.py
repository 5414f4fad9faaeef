"""Attacks for the test range: small callables `attack(data, malicious, rng)`, all seeded.

Most work on scores (a sequence, one array a client) or on a federation's counts alike; `on` says
where an attack belongs: before scoring ("samples"), on "scores", on "pairs" of scores and labels,
on "counts" or on raw "reports". Counts by class always add up to the pooled ones: attacks on scores
leave the labels as they are, and pooled counts are spread over the client's own mix of labels.
"""

from __future__ import annotations

from robfcp.errors import RobfcpError
from robfcp.lab.attacks import coordinated, simple
from robfcp.lab.attacks.adaptive import Adaptive
from robfcp.lab.attacks.base import Attack, PairAttack, SampleAttack, Scene, ScoreAttack

__all__ = [
    "ATTACKS",
    "EVERYDAY",
    "Adaptive",
    "Attack",
    "PairAttack",
    "SampleAttack",
    "Scene",
    "ScoreAttack",
    "coordinated",
    "named_attack",
    "simple",
]

EVERYDAY: dict[str, Attack] = {  # mistakes that happen at honest sites
    "swapped-labels": simple.SwappedLabels(),
    "old-model": simple.OldModel(),
    "other-class-order": simple.OtherClassOrder(),
    "temperature": simple.Temperature(),
    "temperature-flat": simple.Temperature(2.0),
    "stale-file": simple.StaleFile(),
    "subset": simple.Subset(),
}

ATTACKS: dict[str, Attack] = {
    "coverage": simple.Coverage(),
    "efficiency": simple.Efficiency(),
    "near-coverage": simple.NearCoverage(),
    "gaussian": simple.Gaussian(),
    "gaussian-relative": simple.GaussianRelative(),
    "mimic": coordinated.Mimic(),
    "mimic-low": coordinated.MimicLow(),
    "mimic-low-exact": coordinated.MimicLow("exact"),
    "mimic-low-jittered": coordinated.MimicLow("jittered"),
    "mimic-high": coordinated.MimicHigh(),
    "truncation": simple.Truncation(),
    "lift": simple.Lift(),
    "displacement": coordinated.Displacement(),
    "clones": coordinated.Clones(),
    "decoy": coordinated.Decoy(),
    "size-inflation": simple.SizeInflation(),
    "partial": simple.Partial(),
    "keep-30": simple.Partial(0.7, simple.Efficiency()),
    "label-poisoning": simple.LabelPoisoning(),
    "malformed": coordinated.Malformed(),
    **EVERYDAY,
    "adaptive": Adaptive(),
    "adaptive-up": Adaptive(direction="up"),
    "class-capture": coordinated.ClassCapture(),
    "class-capture-low": coordinated.ClassCapture(upwards=False),
    "pair-mimic": coordinated.PairMimic(),
    "stairs": coordinated.Stairs(),
    "push": coordinated.Push(),
    "ghost": coordinated.Ghost(),
    "squeeze": coordinated.Squeeze(),
    "hub": coordinated.Hub(),
    "class-claim": coordinated.ClassClaim(),
}


def named_attack(name: str) -> Attack:
    """The attack callers name by a string, in its default strength."""
    if name not in ATTACKS:
        raise RobfcpError(f"attack: {name!r} is unknown; use one of {', '.join(ATTACKS)}")
    return ATTACKS[name]
