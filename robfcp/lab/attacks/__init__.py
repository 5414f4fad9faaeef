"""Attacks for the test range: small callables `attack(data, malicious, rng)`, all seeded.

Most work on scores (a sequence, one array a client) or on a federation's counts alike; `on` says
where an attack belongs: before scoring ("samples"), on "scores", on "pairs" of scores and labels,
on "counts" or on raw "reports". Counts by class always add up to the pooled ones: attacks on scores
leave the labels as they are, and pooled counts are spread over the client's own mix of labels.
"""

from __future__ import annotations

from robfcp.errors import RobfcpError
from robfcp.lab.attacks.adaptive import Adaptive, Found
from robfcp.lab.attacks.base import Attack, PairAttack, SampleAttack, ScoreAttack
from robfcp.lab.attacks.collusion import Decoy, LabelPoisoning, Malformed, SizeInflation
from robfcp.lab.attacks.everyday import (
    OldModel,
    OtherClassOrder,
    StaleFile,
    Subset,
    SwappedLabels,
    Temperature,
)
from robfcp.lab.attacks.labelled import ClassCapture, PairMimic
from robfcp.lab.attacks.mimicry import Clones, Displacement, Mimic, MimicHigh, MimicLow
from robfcp.lab.attacks.simple import (
    Coverage,
    Efficiency,
    Gaussian,
    GaussianRelative,
    Lift,
    NearCoverage,
    Partial,
    Truncation,
)
from robfcp.lab.attacks.stealth import Ghost, Push, Stairs

__all__ = [
    "ATTACKS",
    "EVERYDAY",
    "Adaptive",
    "Attack",
    "ClassCapture",
    "Clones",
    "Coverage",
    "Decoy",
    "Displacement",
    "Efficiency",
    "Found",
    "Gaussian",
    "GaussianRelative",
    "Ghost",
    "LabelPoisoning",
    "Lift",
    "Malformed",
    "Mimic",
    "MimicHigh",
    "MimicLow",
    "NearCoverage",
    "OldModel",
    "OtherClassOrder",
    "PairAttack",
    "PairMimic",
    "Partial",
    "Push",
    "SampleAttack",
    "ScoreAttack",
    "SizeInflation",
    "Stairs",
    "StaleFile",
    "Subset",
    "SwappedLabels",
    "Temperature",
    "Truncation",
    "named_attack",
]

EVERYDAY = (  # mistakes that happen at honest sites
    "swapped-labels",
    "old-model",
    "other-class-order",
    "temperature",
    "temperature-flat",
    "stale-file",
    "subset",
)

ATTACKS: dict[str, Attack] = {
    "coverage": Coverage(),
    "efficiency": Efficiency(),
    "near-coverage": NearCoverage(),
    "gaussian": Gaussian(),
    "gaussian-relative": GaussianRelative(),
    "mimic": Mimic(),
    "mimic-low": MimicLow(),
    "mimic-low-exact": MimicLow("exact"),
    "mimic-low-jittered": MimicLow("jittered"),
    "mimic-high": MimicHigh(),
    "truncation": Truncation(),
    "lift": Lift(),
    "displacement": Displacement(),
    "clones": Clones(),
    "decoy": Decoy(),
    "size-inflation": SizeInflation(),
    "partial": Partial(),
    "label-poisoning": LabelPoisoning(),
    "malformed": Malformed(),
    "swapped-labels": SwappedLabels(),
    "old-model": OldModel(),
    "other-class-order": OtherClassOrder(),
    "temperature": Temperature(),
    "temperature-flat": Temperature(2.0),
    "stale-file": StaleFile(),
    "subset": Subset(),
    "adaptive": Adaptive(),
    "adaptive-up": Adaptive(direction="up"),
    "class-capture": ClassCapture(),
    "class-capture-low": ClassCapture(scores="bottom"),
    "pair-mimic": PairMimic(),
    "stairs": Stairs(),
    "push": Push(),
    "ghost": Ghost(),
}


def named_attack(name: str) -> Attack:
    """The attack callers name by a string, in its default strength."""
    if name not in ATTACKS:
        raise RobfcpError(f"attack: {name!r} is unknown; use one of {', '.join(ATTACKS)}")
    return ATTACKS[name]
