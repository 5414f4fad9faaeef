"""The defenses by name: made from a name, written into a record, and made again from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from math import isfinite
from typing import Any, cast

from robfcp.defense._base import Defense
from robfcp.defense._fcp import FCP
from robfcp.defense.consensus import DEFAULT_TUNING, Consensus
from robfcp.defense.rob_fcp import RobFCP, RobFCPReleased
from robfcp.errors import MAX_NAME, RobfcpError, printable
from robfcp.federation import Federation

Parameters = Mapping[str, bool | int | float | str | None]

DEFENSES: Mapping[str, type[Any]] = {
    Consensus.name: Consensus,
    RobFCP.name: RobFCP,
    RobFCPReleased.name: RobFCPReleased,
    FCP.name: FCP,
}
QUOTED_NAMES = ", ".join(map(repr, DEFENSES))  # for messages

CUSTOM_PREFIX = "custom:"  # of the recorded name of a defense that cannot be made again


def get_defense(
    name: str, n_malicious: int | None = None, *, exclude_exactly: bool = False
) -> Defense:
    """Return the defense of a name.

    Parameters
    ----------
    name : str
        A key of `DEFENSES`.
    n_malicious : int, optional
        The number of malicious clients, given to every defense but "none", which ignores it.
        Consensus excludes at most so many clients, the others exactly so many. If None each
        defense finds the number itself.
    exclude_exactly : bool
        Whether Consensus excludes exactly so many.
    """
    if name not in DEFENSES:
        raise RobfcpError(f"defense: {name!r} is unknown; use {QUOTED_NAMES}")
    defense_class = DEFENSES[name]
    if n_malicious is None or defense_class is FCP:
        return cast(Defense, defense_class())
    if defense_class is not Consensus:
        return cast(Defense, defense_class(n_malicious=n_malicious))
    if exclude_exactly:
        return Consensus(n_malicious=n_malicious)
    return Consensus(max_malicious=n_malicious)


def resolve_defense(defense: str | Defense) -> Defense:
    """Return a defense that is given by its name or as an object.

    Parameters
    ----------
    defense : str or Defense
        A key of `DEFENSES`, or anything with a name and a method `assess`.
    """
    if isinstance(defense, str):
        return get_defense(defense)
    can_assess = callable(getattr(defense, "assess", None)) and not isinstance(defense, type)
    if not can_assess or not hasattr(defense, "name"):
        raise RobfcpError(
            f"defense: {defense!r} is none; use {QUOTED_NAMES}, or what has a name and assess()"
        )
    return defense


def prepare_defense(defense: Defense, federation: Federation) -> Defense:
    """Return a defense with the random seed that it needs for a round.

    Parameters
    ----------
    defense : Defense
        One that draws clients at random has a method `with_random_seed`.
    federation : Federation
        The reports of the round.
    """
    with_random_seed = getattr(defense, "with_random_seed", None)
    if with_random_seed is None:
        return defense
    prepared: Defense = with_random_seed(federation)
    return prepared


def recorded_parameters(defense: Defense) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters by which a calibration records a defense.

    Parameters
    ----------
    defense : Defense
        The defense that was used. A class that robfcp does not know, or other constants than the
        usual ones, cannot be made again from a file: they are recorded as custom, without
        parameters.

    Returns
    -------
    str
        A key of `DEFENSES`, or the name with `CUSTOM_PREFIX`.
    dict
        The arguments that `rebuild_defense` makes the same defense with.
    """
    custom_name = f"{CUSTOM_PREFIX}{printable(str(defense.name), MAX_NAME)}"
    if type(defense) is not DEFENSES.get(defense.name):
        return custom_name, {}
    parameters = asdict(cast(Any, defense))
    if isinstance(defense, Consensus):
        del parameters["tuning"]
        if defense.tuning != DEFAULT_TUNING:
            return custom_name, {}
    return defense.name, parameters


def rebuild_defense(name: str, parameters: Parameters) -> Defense:
    """Return the defense that a calibration records.

    Parameters
    ----------
    name : str
        The recorded name.
    parameters : mapping of str to bool, int, float, str or None
        The recorded parameters.
    """
    if name.startswith(CUSTOM_PREFIX):
        raise RobfcpError(f"defense: {name} was an object and cannot be made again from its record")
    if name not in DEFENSES:
        raise RobfcpError(f"defense: {name!r} is unknown to this version; update robfcp")

    # `recorded_parameters` records no tuning: only defenses with the default one are recorded.
    recorded_names = {field.name for field in fields(DEFENSES[name])} - {"tuning"}
    unknown = set(parameters) - recorded_names
    if unknown:
        raise RobfcpError(f"defense: {name} does not take {min(unknown)!r}; update robfcp")

    default = DEFENSES[name]()
    for parameter, value in parameters.items():
        if not _has_type_of(value, getattr(default, parameter)):
            raise RobfcpError(f"defense: {parameter} of {name} cannot be {value!r}; do not use it")
    defense: Defense = DEFENSES[name](**parameters)
    return defense


def _has_type_of(value: object, default: object) -> bool:
    """Return whether a recorded parameter has the type of its default; numbers are finite.

    None fits every parameter, and any value fits one whose default is None: constructors check
    these themselves.
    """
    if isinstance(default, float):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and isfinite(cast(float, value))
    if value is None or default is None:
        return True
    return type(value) is type(default)
