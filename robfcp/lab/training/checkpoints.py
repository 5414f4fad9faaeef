"""Checkpoints as safetensors: the global state with the settings and rounds it belongs to."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from robfcp.errors import RobfcpError
from robfcp.files import write_atomically
from robfcp.lab.training.settings import TrainingSettings


def save(path: Path, state: Tensor, settings: TrainingSettings, round_: int) -> None:
    """Write the state after `round_` rounds."""
    from safetensors.torch import save as to_bytes

    metadata = {"settings": json.dumps(asdict(settings)), "round": str(round_)}
    write_atomically(path, to_bytes({"state": state.contiguous().cpu()}, metadata))


def load(path: Path, settings: TrainingSettings) -> tuple[Tensor, int]:
    """The state and the rounds done; refused if the settings (rounds apart) are others."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as content:
            metadata = content.metadata() or {}
            state: Tensor = content.get_tensor("state")
        saved = json.loads(metadata["settings"])
        done = int(metadata["round"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise RobfcpError(
            f"{path}: is damaged or no checkpoint of this program; delete it to start again"
        ) from error
    wanted = asdict(settings)
    different = [key for key in wanted if saved.get(key) != wanted[key]]
    if different:
        key = different[0]
        raise RobfcpError(
            f"{path}: was made with {key}={saved.get(key)}, not {wanted[key]}; delete it to start "
            "again or restore the setting"
        )
    return state, done
