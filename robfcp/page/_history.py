"""What the page shows since a calibration: alarms by client, and what to do.

A server shows its inspections of the clients' e-value reports, a client the states of its own
monitors. Both come to the same data, which history.js and history-page.js read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from robfcp.monitoring import AlarmHistory, MonitorState
from robfcp.page._inspections import inspections_data
from robfcp.page._monitors import monitors_data


@dataclass(frozen=True)
class PageHistory:
    """What is known since a calibration: the server's inspections, or clients' own monitors.

    Parameters
    ----------
    alarms : AlarmHistory, optional
        The server's history of alarms.
    monitors : tuple[tuple[str, MonitorState], ...]
        The states of clients' own monitors, each under a name to show.
    registered_clients : tuple of str
        The names of all clients that are monitored, if they are known.
    """

    alarms: AlarmHistory | None = None
    monitors: tuple[tuple[str, MonitorState], ...] = ()
    registered_clients: tuple[str, ...] = ()


def history_data(history: PageHistory | None) -> dict[str, Any] | None:
    """Return everything the page shows of a history, as JSON values; None where there is nothing.

    Parameters
    ----------
    history : PageHistory or None
        What is known; the server's history comes first.
    """
    if history is None:
        return None
    if history.alarms is not None:
        return inspections_data(history.alarms, history.registered_clients)
    if history.monitors:
        return monitors_data(history.monitors)
    return None
