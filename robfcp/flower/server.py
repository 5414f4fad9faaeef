"""The server's half: rounds that can be called after any Flower strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord

from robfcp import engines
from robfcp.calibration import Calibration, Merged
from robfcp.engines import Outcome
from robfcp.flower.collector import engine_of
from robfcp.flower.network import Network
from robfcp.grid import Grid
from robfcp.scores import Score


def register_sizes(
    network: Network,
    arrays: ArrayRecord | None = None,
    *,
    deadline: float = 60.0,
    poll: float = 1.0,
) -> dict[str, int]:
    """How many calibration samples each node says it has, to be fixed before calibration."""
    return engines.register_sizes(engine_of(network, arrays, deadline=deadline, poll=poll))


def calibration_round(
    network: Network,
    arrays: ArrayRecord | None = None,
    *,
    score: Score | None = None,
    grid: Grid | None = None,
    sizes: Mapping[str, int] | None = None,
    quorum: int | float | None = None,
    deadline: float = 60.0,
    poll: float = 1.0,
    check: bool = True,
    keys: Mapping[str, str] | None = None,
    round: str | None = None,
    run_id: int | str | None = None,
    invited: Iterable[str] = (),
    **options: Any,
) -> Calibration:
    """Collect the nodes' reports, calibrate, and tell the nodes the threshold.

    arrays: the trained model the nodes score with, e.g. `result.arrays`; None for their own.
    sizes: who may report and with how many samples, fixed before; see `register_sizes`.
    deadline: seconds for the reports and again for the nodes' own check of the threshold.
    check: send the threshold and note the coverage and set size each node claims to see.
    keys: the public keys by which the reports must be signed, beside Flower's own authentication.
    invited: the names of all registered nodes, so that those offline now are listed as missing;
        Flower tells an app only of the nodes that are online.
    options: those of `robfcp.calibrate` (confidence_level, defence, malicious, guarantee, ...).
    The calibration's `provenance` holds the run and what every client did.
    """
    return engines.calibration_round(
        engine_of(network, arrays, deadline=deadline, poll=poll),
        score=score,
        grid=grid,
        sizes=sizes,
        quorum=quorum,
        check=check,
        keys=keys,
        round=round,
        run_id=run_id,
        invited=invited,
        **options,
    )


def send_letters(
    network: Network,
    calibration: Calibration,
    *,
    key: Any = None,
    deadline: float = 60.0,
    poll: float = 1.0,
) -> list[Outcome[str]]:
    """Send every node its letter, which it keeps in `letter-folder` of its node config.

    key: the server's private key to sign the letters with, if any.
    """
    return engines.send_letters(engine_of(network, deadline=deadline, poll=poll), calibration, key)


def monitor_round(
    network: Network,
    calibration: Calibration,
    malicious: int,
    arrays: ArrayRecord | None = None,
    *,
    deadline: float = 60.0,
    poll: float = 1.0,
    **options: Any,
) -> Merged:
    """Ask all nodes for their wealth and merge it, when at most `malicious` of them lie.

    options: round (a name), step (the number of the date, fixed beforehand), level, floor, delta
        and independent, as the monitor has them; history, a file that keeps every date.
    A node that does not answer, or not as asked, counts as no evidence.
    """
    return engines.monitor_round(
        engine_of(network, arrays, deadline=deadline, poll=poll), calibration, malicious, **options
    )
