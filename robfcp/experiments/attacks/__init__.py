"""Attacks for the experiments: small callables `attack(data, malicious, rng)`, all seeded.

`stage` says what an attack works on: "samples" before scoring, "scores", "pairs" of scores and
labels, "counts" or raw "reports". Most take scores, one array a client, or a federation's counts.
Counts by class always add up to the pooled ones: attacks on scores leave the labels as they are,
and pooled counts are spread over the classes in the client's own proportions.
"""

from __future__ import annotations

from robfcp.errors import RobfcpError
from robfcp.experiments.attacks import coordinated, mimic, paper_attacks, simple
from robfcp.experiments.attacks.adaptive import AdaptiveAttack
from robfcp.experiments.attacks.base import Attack, PairAttack, SampleAttack, ScoreAttack

__all__ = ["ATTACKS", "AdaptiveAttack", "Attack", "PairAttack", "SampleAttack", "ScoreAttack"]

# Mistakes that happen to benign clients.
DATA_FAULTS: dict[str, Attack] = {
    "label-swap": SampleAttack(simple.label_swap),
    "degraded-model": SampleAttack(simple.degraded_model),
    "class-permutation": SampleAttack(simple.class_permutation),
    "temperature-scaling": SampleAttack(simple.temperature_scaling),
    "temperature-scaling-flat": SampleAttack(simple.temperature_scaling, 2.0),
    "wrong-file": SampleAttack(simple.wrong_file),
    "selection-bias": SampleAttack(simple.selection_bias),
}

ATTACKS: dict[str, Attack] = {
    "coverage": ScoreAttack(paper_attacks.coverage_attack),
    "efficiency": ScoreAttack(paper_attacks.efficiency_attack),
    "near-coverage": ScoreAttack(simple.near_coverage),
    "gaussian": ScoreAttack(paper_attacks.gaussian_attack),
    "gaussian-relative": ScoreAttack(simple.gaussian_relative),
    "mimic": ScoreAttack(mimic.mimic_attack),
    "mimic-low": ScoreAttack(mimic.mimic_low),
    "mimic-low-exact": ScoreAttack(mimic.mimic_low, "exact"),
    "mimic-low-jittered": ScoreAttack(mimic.mimic_low, "jittered"),
    "mimic-high": ScoreAttack(mimic.mimic_high),
    "truncation": ScoreAttack(simple.truncation),
    "lower-truncation": ScoreAttack(simple.lower_truncation),
    "displace-benign": ScoreAttack(coordinated.displace_benign),
    "collusion": ScoreAttack(coordinated.collusion_attack),
    "decoy": ScoreAttack(coordinated.decoy),
    "size-inflation": ScoreAttack(simple.size_inflation),
    "partial-manipulation": ScoreAttack(simple.partial_manipulation),
    "keep-30": ScoreAttack(simple.partial_manipulation, 0.7, paper_attacks.efficiency_attack),
    "label-poisoning": SampleAttack(simple.label_poisoning),
    "malformed": coordinated.Malformed(),
    **DATA_FAULTS,
    "adaptive": AdaptiveAttack(),
    "adaptive-up": AdaptiveAttack(direction="up"),
    "class-capture": PairAttack(coordinated.class_capture),
    "class-capture-low": PairAttack(coordinated.class_capture, False),
    "pair-mimic": PairAttack(mimic.pair_mimic),
    "graded-truncation": ScoreAttack(coordinated.graded_truncation),
    "shift-below-threshold": ScoreAttack(coordinated.shift_below_threshold),
    "frame-hardest": PairAttack(coordinated.frame_hardest_clients),
    "two-sided-trimming": ScoreAttack(coordinated.two_sided_trimming),
    "benign-means": PairAttack(coordinated.benign_means),
    "class-claim": PairAttack(coordinated.class_claim),
}


def get_attack(name: str) -> Attack:
    """Return the attack of a name, in its usual strength.

    Parameters
    ----------
    name : str
        A key of `ATTACKS`.
    """
    if name not in ATTACKS:
        raise RobfcpError(f"attack: {name!r} is unknown; use one of {', '.join(ATTACKS)}")
    return ATTACKS[name]
