"""Processes of a deployment, found by a path in their environment or on their command line."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def running_processes(path):
    """The process ids of all that were started with this path, descendants included."""
    process_ids = []
    text = str(path).encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            content = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if text in content and int(entry.name) != os.getpid():
                process_ids.append(int(entry.name))
    return process_ids


def kill_remaining_processes(path, seconds=60):
    """Kill the processes that have not ended by themselves in this time; return their ids."""
    deadline = time.monotonic() + seconds
    process_ids = running_processes(path)
    while process_ids and time.monotonic() < deadline:
        time.sleep(0.5)
        process_ids = running_processes(path)
    for process_id in process_ids:
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    return process_ids
