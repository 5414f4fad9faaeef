"""Scores by name and parameters, as reports state them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from robfcp.errors import RobfcpError
from robfcp.scores.base import Score
from robfcp.scores.classification import APS, LAC, RAPS, SAPS, OrdinalAPS
from robfcp.scores.regression import CQR, AbsoluteResidual

SCORES: Mapping[str, type[Any]] = {
    kind.name: kind for kind in (LAC, APS, RAPS, SAPS, OrdinalAPS, AbsoluteResidual, CQR)
}


def score_parameters(score: Score) -> dict[str, Any]:
    """A score's parameters, as they stand in a report."""
    return asdict(score)  # type: ignore[call-overload]


def chosen_score(score: str | Score | None, default: str) -> Score:
    """The score itself, or the one of that name with its own parameters."""
    return named_score(score or default, {}) if score is None or isinstance(score, str) else score


def named_score(name: str, parameters: Mapping[str, Any]) -> Score:
    """The score a report names, its parameters checked against the types of the defaults."""
    if name not in SCORES:
        raise RobfcpError(f"score: unknown score {name!r}; known are {', '.join(SCORES)}")
    defaults = {field.name: field.default for field in fields(SCORES[name])}
    for key, value in parameters.items():
        kind = type(defaults.get(key))
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise RobfcpError(f"score: {name} does not take {key}={value!r}; fix its parameters")
    score: Score = SCORES[name](**parameters)
    return score
