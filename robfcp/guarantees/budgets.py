"""How many liars a statement may be made against."""

from __future__ import annotations

from robfcp.errors import RobfcpError


def check_budget(m: int, n_clients: int) -> int:
    """The number of liars guarded against, if it leaves at least one benign client."""
    if isinstance(m, bool) or int(m) != m or m < 0:
        raise RobfcpError(f"liars: {m!r} is not a number of sites; give 0 or more")
    if m >= n_clients:
        raise RobfcpError(
            f"liars: nothing can be guaranteed against {m} of {n_clients} sites; "
            "state a smaller bound or wait for more reports"
        )
    return int(m)


def check_delta(delta: float) -> float:
    """A chance of failure strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise RobfcpError(f"delta: {delta} is not between 0 and 1; give 0.05, say")
    return float(delta)


def check_sigma(sigma: float) -> float:
    """A stated bound on how far honest clients differ."""
    if not 0 <= sigma <= 1:
        raise RobfcpError(f"alike: {sigma} is not between 0 and 1; give 0.02, say")
    return float(sigma)
