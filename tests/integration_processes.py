"""Processes of a deployment, known by its place in their environment or on their command line."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def running(place):
    """The numbers of all that were started with this place, descendants included."""
    found, word = [], str(place).encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if word in said and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def left(place, seconds=60):
    """Those that are still there when they have had their time to end; ended then."""
    end = time.monotonic() + seconds
    while (stubborn := running(place)) and time.monotonic() < end:
        time.sleep(0.5)
    for process in stubborn:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return stubborn
