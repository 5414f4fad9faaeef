"""Old import paths of version 0.1, kept for one release; each warns and names the new one.

Delete this file and the lines that use it (in `robfcp/__init__.py` and six rooms) with the next
release.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # only their form is needed, and importing them costs as much as the rest of robfcp
    Loader = MetaPathFinder = object

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
    "duplicates": ("defence", "defence.copies.exact", "defence.copies.links"),
    "envelope": ("guarantees", "guarantees.envelope"),
    "gpu": ("defence.gpu",),
    "intake": ("federation", "federation.intake"),
    "large": ("defence.large",),
    "large_copies": ("defence.copies.large",),
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
    "plots": ("figures", "figures.style", "lab.figures"),
    "private_counts": ("guarantees", "guarantees.noisy"),
    "private_grids": ("privacy", "privacy.grids"),
    "projection": ("federation", "federation.projection"),
    "pruning": ("guarantees", "guarantees.pruning"),
    "published_bounds": ("lab.published_bounds",),
    "quantiles": ("guarantees", "guarantees.levels"),
    "redteam": ("lab.redteam",),
    "registry": ("reports", "reports.registry"),
    "server": ("calibration", "calibration.calibrating"),
    "signatures": ("reports", "reports.signing", "federation.senders"),
    "simulation": ("lab.simulation", "lab.worlds"),
    "sketches": ("reports", "reports.sketches"),
    "spacings": ("defence.band.spacings",),
    "training": ("lab.training",),
    "views": ("defence.band.views",),
    "what_if": ("calibration", "calibration.what_if"),
}
# Names that changed on the way.
RENAMED = {
    "band.Standing": "Finding",
    "band.stand_out": "outside_band",
    "modes.Outcome": "Guaranteed",
    "paper.runs.Outcome": "RunOutcome",
    "paper.runs.World": "PaperWorld",
    "paper.trials.World": "PaperWorld",
    "private_counts.PrivateCounts": "NoisyCounts",
    "spacings.NOISE": "SAMPLING",
    "spacings.Split": "Gap",
    "training.Settings": "TrainingSettings",
    "training.settings.Settings": "TrainingSettings",
    "views.NOISE_LEVEL": "USUAL_ODDITY",
    "views.band_distance": "fair_distance",
    "views.noise_sizes": "capped_sizes",
    "what_if.WhatIf": "Budgets",
}
PACKAGES = ("attacks", "datasets", "outputs", "paper", "training")

# Modules whose name is now a room's: names the room no longer re-exports.
ROOMS: dict[str, tuple[str, ...]] = {
    "calibration": (
        "calibration.calibration",
        "calibration.predicting",
        "calibration.stating",
        "calibration.settings",
        "calibration.document",
    ),
    "federation": ("federation.federation", "federation.intake", "federation.marks"),
    "guarantees": ("guarantees.marginal", "guarantees.pac", "guarantees.alike"),
    "privacy": ("privacy.budget",),
    "reports": ("reports.report", "reports.checks", "reports.disclosure", "federation.marks"),
    "scores": ("scores.base", "scores.adaptive", "scores.regression"),
}


def install() -> None:
    """Let the old paths be found, from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def old_names(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a room that bears the name of an old module."""
    return _search(module, ROOMS[module.partition(".")[2]])


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        old, _, inner = rest.partition(".")
        if root != "robfcp" or old not in MODULES or (inner and old not in PACKAGES):
            return None
        places = tuple(f"{place}.{inner}" if inner else place for place in MODULES[old])
        if inner and find_spec(f"robfcp.{places[0]}") is None:
            return None
        package = old in PACKAGES and not inner
        return ModuleSpec(fullname, _Alias(fullname, places), is_package=package)


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
        now = RENAMED.get(f"{old.partition('.')[2]}.{name}", name)
        for place in () if name.startswith("__") else places:
            try:
                found = getattr(import_module(f"robfcp.{place}"), now)
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
