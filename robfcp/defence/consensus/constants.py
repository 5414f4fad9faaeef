"""The numbers the rule rests on, in one place, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What was chosen, not derived. `docs/defence.md` shows what half and twice of each do.

    Parameters
    ----------
    level
        The chance of leaving anybody out when nobody lies. A look at five times this level only
        chooses the reference.
    tail
        Standard deviation of the logarithm of how far honest sites differ beyond their labels;
        0.4 to 0.7 among sleepers, hospitals and schools, sampling noise included.
    mixed
        The same where reports do not keep classes, so that label mixes differ too.
    freedom
        Degrees of freedom of these logarithms (Student): real extremes are wider than normal.
    prior
        How many sites the expected location and scale count for: few sites cannot give a scale.
    cap
        Claimed sizes count for at most so many times the median.
    least
        Standard deviations from those kept that everybody left out must have: nobody goes for the
        company alone.
    diverse
        A group may differ within by at most so many times what the others do (twice that if it is
        easier): honest sites who differ in all directions are no group.
    within
        Or by this share of its squared distance from the others.
    cross
        A group is one-sided where its scores are nowhere easier (or nowhere harder) than expected
        by more than this share: another population can be, a forgery need not.
    lacks
        A one-sided group goes only where it has at most this share of what is expected: of the
        body if its scores are harder, of the tail if they are easier (harder ones alone: half way
        to all of it, since to lose one site costs little). Otherwise the reports of two honest
        populations look the same, and without the harder one coverage would fall.
    vouch
        Standard deviations beyond the level that a site may vouch for in the vote; it may object
        with four times as many.
    """

    level: float = 0.05
    tail: float = 0.5
    mixed: float = 0.7
    freedom: float = 10.0
    prior: float = 6.0
    cap: float = 3.0
    least: float = 2.0
    diverse: float = 1.5
    within: float = 0.1
    cross: float = 0.05
    lacks: float = 0.25
    vouch: float = 0.5


USUAL = Constants()
