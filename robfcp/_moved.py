"""Old import paths of version 0.1, kept for one release; each warns and names the new one.

Delete this file and the two lines in `robfcp/__init__.py` that use it with the next release.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Old module: where its names are now, the public room first.
MODULES: dict[str, tuple[str, ...]] = {
    "assumptions": ("guarantees", "guarantees.assumptions"),
    "attacks": ("lab.attacks",),
    "band": ("defence", "defence.band.band"),
    "certificates": ("guarantees", "guarantees.certificate", "guarantees.coverage"),
    "characterisations": ("defence", "defence.characterisations"),
    "counting": ("defence", "defence.counting"),
    "datasets": ("lab.datasets",),
    "defences": ("defence", "defence.base", "defence.rob_fcp", "defence.named"),
    "distances": ("defence", "defence.distances"),
    "duplicates": ("defence", "defence.copies"),
    "envelope": ("guarantees", "guarantees.envelope"),
    "gpu": ("defence.gpu",),
    "intake": ("federation", "federation.intake"),
    "large": ("defence.large",),
    "large_copies": ("defence.large_copies",),
    "ledger": ("privacy", "privacy.ledger"),
    "likelihood": ("defence.likelihood",),
    "loners": ("defence.band.loners",),
    "modes": ("guarantees", "guarantees.modes"),
    "noise": ("privacy", "privacy.noise"),
    "noisy_binomials": ("privacy", "privacy.noisy_binomials"),
    "outputs": ("lab.outputs",),
    "pac": ("guarantees", "guarantees.pac", "guarantees.alike"),
    "paper": ("lab.paper",),
    "partitions": ("lab.partitions",),
    "plots": ("figures", "lab.figures"),
    "private_counts": ("guarantees", "guarantees.noisy"),
    "private_grids": ("privacy", "privacy.grids"),
    "projection": ("federation", "federation.projection"),
    "pruning": ("guarantees", "guarantees.pruning"),
    "published_bounds": ("lab.published_bounds",),
    "quantiles": ("guarantees", "guarantees.ranks"),
    "redteam": ("lab.redteam",),
    "registry": ("reports", "reports.registry"),
    "server": ("calibration", "calibration.calibrating"),
    "signatures": ("reports", "reports.signing", "federation.files"),
    "simulation": ("lab.simulation",),
    "sketches": ("reports", "reports.sketches"),
    "spacings": ("defence.band.spacings",),
    "training": ("lab.training",),
    "views": ("defence.band.views",),
    "what_if": ("calibration", "calibration.what_if"),
}
PACKAGES = ("attacks", "datasets", "outputs", "paper", "training")

# Modules whose name is now a room's: names the room no longer re-exports.
ROOMS: dict[str, tuple[str, ...]] = {
    "calibration": ("calibration.calibration", "calibration.settings", "calibration.document"),
    "federation": ("federation.federation", "federation.intake", "federation.marks"),
    "guarantees": ("guarantees.marginal", "guarantees.pac", "guarantees.alike"),
    "privacy": ("privacy.budget",),
    "reports": ("reports.report", "reports.checks", "federation.marks"),
    "scores": ("scores.base", "scores.adaptive", "scores.regression"),
}


def install() -> None:
    """Let the old paths be found, from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
    for room, places in ROOMS.items():
        module: Any = sys.modules[f"robfcp.{room}"]
        module.__getattr__ = _search(f"robfcp.{room}", places)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        old, _, inner = rest.partition(".")
        if package != "robfcp" or old not in MODULES or (inner and old not in PACKAGES):
            return None
        places = tuple(f"{place}.{inner}" if inner else place for place in MODULES[old])
        return ModuleSpec(fullname, _Alias(fullname, places), is_package=old in PACKAGES)


class _Alias(Loader):
    def __init__(self, old: str, places: tuple[str, ...]) -> None:
        self._old, self._places = old, places

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        warnings.warn(
            f"{self._old} has moved to robfcp.{self._places[0]}; the old path goes with the next "
            "release",
            DeprecationWarning,
            stacklevel=2,
        )
        module.__doc__ = f"Moved to robfcp.{self._places[0]}."
        module.__dict__["__getattr__"] = _search(self._old, self._places, quiet=True)


def _search(old: str, places: tuple[str, ...], quiet: bool = False) -> Callable[[str], Any]:
    """A module's `__getattr__` that looks for a name where it is now."""

    def find(name: str) -> Any:
        for place in () if name.startswith("__") else places:
            try:
                found = getattr(import_module(f"robfcp.{place}"), name)
            except (AttributeError, ModuleNotFoundError):
                continue
            if not quiet:
                warnings.warn(
                    f"{old}.{name} is now in robfcp.{place}; the old path goes with the next "
                    "release",
                    DeprecationWarning,
                    stacklevel=2,
                )
            return found
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return find
