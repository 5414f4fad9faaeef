"""Labelled outputs for the test range: those that ship with the package, or a file's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from robfcp.cli._arrays import array_names, named_array
from robfcp.cli._data import read_outputs
from robfcp.errors import RobfcpError

if TYPE_CHECKING:
    from robfcp.lab.outputs import Outputs


@dataclass(frozen=True, eq=False)
class Labelled:
    """Class probabilities with the true labels and, where they are natural, each sample's site."""

    predictions: NDArray[Any]
    labels: NDArray[Any]
    sites: NDArray[Any] | None = None


def chosen_outputs(name: str, site_column: str | None = None) -> Labelled:
    """Outputs that ship with the package, by name, or those of a file; with their own sites where
    a column of them is named."""
    from robfcp.lab import outputs

    if name in outputs.names():
        if site_column is None:
            return _labelled(outputs.load(name), None)
        if name not in outputs.natural_names():
            known = ", ".join(outputs.natural_names())
            raise RobfcpError(f"--sites: {name} has no sites of its own; use one of {known}")
        return _labelled(outputs.load(name, outputs.NATURAL), site_column)
    if not Path(name).suffix:
        known = ", ".join(outputs.names())
        raise RobfcpError(f"{name}: no outputs of that name ship; use one of {known}, or a file")
    if "depth" in array_names(Path(name)):
        return _labelled(outputs.read(name), site_column)
    aside = [site_column] if Path(name).suffix.lower() != ".npz" else []
    found = read_outputs(Path(name), needs_targets=True, columns=aside, expects="classes")
    assert found.targets is not None
    if site_column is None:
        return Labelled(found.predictions, found.targets)
    sites = found.columns[site_column] if aside else named_array(Path(name), site_column)
    return Labelled(found.predictions, found.targets, sites)


def _labelled(found: Outputs, site_column: str | None) -> Labelled:
    sites = None if site_column is None else found.column(site_column)
    return Labelled(found.probabilities, found.labels, sites)
