"""Files of a calibration's later life, told apart by what they say they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from robfcp.calibration import Calibration, kind_of
from robfcp.errors import RobfcpError
from robfcp.files import read_limited
from robfcp.monitoring import AlarmHistory, Chain, MonitorState, chain_path
from robfcp.page import History

MAX_BYTES = 2**28
KINDS = ("alarms", "monitor", "chain")


def kind_of_file(path: Path) -> str:
    """What kind of file this says it is; empty where it says nothing."""
    return kind_of(read_limited(path, MAX_BYTES))


def read_history(paths: Sequence[Path]) -> History:
    """Records of alarms, states of monitors and chains, in any order; one of each but monitors."""
    alarms: AlarmHistory | None = None
    chain: Chain | None = None
    monitors: list[tuple[str, MonitorState]] = []
    for path in paths:
        data = read_limited(path, MAX_BYTES)
        kind = kind_of(data)
        if (kind == "alarms" and alarms) or (kind == "chain" and chain):
            raise RobfcpError(f"{path}: is the second {kind} file; pass one")
        if kind == "alarms":
            alarms = AlarmHistory.from_json(data, str(path))
        elif kind == "chain":
            chain = Chain.from_json(data, str(path))
        elif kind == "monitor":
            state = MonitorState.from_json(data, str(path))
            monitors.append((state.client or path.stem, state))
        else:
            raise RobfcpError(
                f"{path}: is no history; pass what alarms --history, monitor --state or calibrate "
                "--previous wrote"
            )
    if alarms is not None and monitors:
        raise RobfcpError(
            "history: a server's record and sites' monitors go on different pages; pass one kind"
        )
    return History(alarms, tuple(monitors), chain)


def history_of(calibration: Calibration, path: Path, paths: Sequence[Path]) -> History:
    """The history files stated, and the chain that lies beside the calibration."""
    beside = chain_path(path)
    chosen = [*paths, *([beside] if beside.exists() and beside not in paths else [])]
    found = read_history(chosen)
    watched = {
        *([] if found.alarms is None else [found.alarms.calibration]),
        *(state.calibration for _, state in found.monitors),
    }
    if watched - {calibration.identity}:
        raise RobfcpError(f"{path}: the history is that of another calibration; pass its own")
    if found.chain is not None and found.chain.links[-1].calibration != calibration.identity:
        raise RobfcpError(f"{beside}: is not the chain of {path}; pass the newest calibration")
    return found
