"""Defence: whom to trust, for the number of liars that a defence is told or finds out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from typing import Any

from robfcp.defence.base import (
    Assessment,
    Defence,
    NoDefence,
    Note,
    threshold_of,
    without_farthest,
)
from robfcp.defence.consensus import Consensus, estimate_malicious
from robfcp.defence.rob_fcp import RobFCP, RobFCPReleased
from robfcp.errors import RobfcpError

__all__ = [
    "DEFENCES",
    "Assessment",
    "Consensus",
    "Defence",
    "NoDefence",
    "Note",
    "RobFCP",
    "RobFCPReleased",
    "defence_again",
    "estimate_malicious",
    "named_defence",
    "threshold_of",
    "without_farthest",
]

Parameters = Mapping[str, bool | int | float | str | None]
DEFENCES: Mapping[str, type[Any]] = {
    kind.name: kind for kind in (Consensus, RobFCP, RobFCPReleased, NoDefence)
}
NAMES = ", ".join(map(repr, DEFENCES))  # for messages


def named_defence(name: str, liars: int | None = None, *, exactly: bool = False) -> Defence:
    """The defence callers name by a string, told how many may lie if that is stated.

    Consensus then leaves out at most so many, or exactly so many; nobody is left out by "none".
    """
    if name not in DEFENCES:
        raise RobfcpError(f"defence: {name!r} is unknown; use {NAMES}")
    kind, number = DEFENCES[name], "liars"
    if kind is Consensus:
        number = "exactly" if exactly else "at_most"
    rule: Defence = kind() if liars is None or kind is NoDefence else kind(**{number: liars})
    return rule


def defence_again(name: str, parameters: Parameters) -> Defence:
    """The defence a calibration records, refused where it cannot be made again."""
    if name.startswith("custom:"):
        raise RobfcpError(f"defence: {name} was an object and cannot be made again from its record")
    if name not in DEFENCES:
        raise RobfcpError(f"defence: {name!r} is unknown to this version; update robfcp")
    known = {field.name for field in fields(DEFENCES[name])}
    if not set(parameters) <= known:
        unknown = min(set(parameters) - known)
        raise RobfcpError(f"defence: {name} does not take {unknown!r}; update robfcp")
    usual = DEFENCES[name]()
    for parameter, value in parameters.items():
        if not _like(value, getattr(usual, parameter)):
            raise RobfcpError(f"defence: {parameter} of {name} cannot be {value!r}; do not use it")
    rule: Defence = DEFENCES[name](**parameters)
    return rule


def _like(value: object, usual: object) -> bool:
    """Whether a recorded parameter is of the kind the usual one is; numbers are finite."""
    if isinstance(usual, float) and not isinstance(value, bool):
        return isinstance(value, (int, float)) and isfinite(value)
    return value is None or usual is None or type(value) is type(usual)
