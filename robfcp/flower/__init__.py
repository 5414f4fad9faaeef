"""The engine: calibration rounds on Flower. A thin adapter, no mathematics in it.

`add_calibration` teaches any ClientApp to answer, `calibration_round` asks after any strategy;
`client_app` and `server_app` are ready ones, and `InProcessNetwork` runs them without Ray.
Flower's own `Grid` is called `network` here, so that `grid` keeps one meaning.
"""

from __future__ import annotations

import robfcp.flower._environment  # noqa: F401  (first: sets what flwr reads on import)
from robfcp.engines import Outcome, Part, Participant
from robfcp.flower.apps import client_app, server_app
from robfcp.flower.client import NodeOutputs, add_calibration, add_monitor
from robfcp.flower.collector import collect, participants
from robfcp.flower.network import InProcessNetwork, Network, run_in_process
from robfcp.flower.server import calibration_round, monitor_round, register_sizes, send_letters
from robfcp.flower.together import calibrate_in_process, replay_in_process

__all__ = [
    "InProcessNetwork",
    "Network",
    "NodeOutputs",
    "Outcome",
    "Part",
    "Participant",
    "add_calibration",
    "add_monitor",
    "calibrate_in_process",
    "calibration_round",
    "client_app",
    "collect",
    "monitor_round",
    "participants",
    "register_sizes",
    "replay_in_process",
    "run_in_process",
    "send_letters",
    "server_app",
]
