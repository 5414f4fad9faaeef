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
from robfcp.lab.attacks.base import Attack, PairAttack, SampleAttack, ScoreAttack

__all__ = ["ATTACKS", "Adaptive", "Attack", "PairAttack", "SampleAttack", "ScoreAttack"]

EVERYDAY: dict[str, Attack] = {  # mistakes that happen at honest sites
    "swapped-labels": SampleAttack(simple.swapped_labels),
    "old-model": SampleAttack(simple.old_model),
    "other-class-order": SampleAttack(simple.other_class_order),
    "temperature": SampleAttack(simple.temperature),
    "temperature-flat": SampleAttack(simple.temperature, 2.0),
    "stale-file": SampleAttack(simple.stale_file),
    "subset": SampleAttack(simple.subset),
}

ATTACKS: dict[str, Attack] = {
    "coverage": ScoreAttack(simple.coverage),
    "efficiency": ScoreAttack(simple.efficiency),
    "near-coverage": ScoreAttack(simple.near_coverage),
    "gaussian": ScoreAttack(simple.gaussian),
    "gaussian-relative": ScoreAttack(simple.gaussian_relative),
    "mimic": ScoreAttack(coordinated.mimic),
    "mimic-low": ScoreAttack(coordinated.mimic_low),
    "mimic-low-exact": ScoreAttack(coordinated.mimic_low, "exact"),
    "mimic-low-jittered": ScoreAttack(coordinated.mimic_low, "jittered"),
    "mimic-high": ScoreAttack(coordinated.mimic_high),
    "truncation": ScoreAttack(simple.truncation),
    "lift": ScoreAttack(simple.lift),
    "displacement": ScoreAttack(coordinated.displacement),
    "clones": ScoreAttack(coordinated.clones),
    "decoy": ScoreAttack(coordinated.decoy),
    "size-inflation": ScoreAttack(simple.size_inflation),
    "partial": ScoreAttack(simple.partial),
    "keep-30": ScoreAttack(simple.partial, 0.7, simple.efficiency),
    "label-poisoning": SampleAttack(simple.label_poisoning),
    "malformed": coordinated.Malformed(),
    **EVERYDAY,
    "adaptive": Adaptive(),
    "adaptive-up": Adaptive(direction="up"),
    "class-capture": PairAttack(coordinated.class_capture),
    "class-capture-low": PairAttack(coordinated.class_capture, False),
    "pair-mimic": PairAttack(coordinated.pair_mimic),
    "stairs": ScoreAttack(coordinated.stairs),
    "push": ScoreAttack(coordinated.push),
    "ghost": PairAttack(coordinated.ghost),
    "squeeze": ScoreAttack(coordinated.squeeze),
    "hub": PairAttack(coordinated.hub),
    "class-claim": PairAttack(coordinated.class_claim),
}


def named_attack(name: str) -> Attack:
    """The attack callers name by a string, in its default strength."""
    if name not in ATTACKS:
        raise RobfcpError(f"attack: {name!r} is unknown; use one of {', '.join(ATTACKS)}")
    return ATTACKS[name]
