"""How many clients lie: by who stands out (ours), or by the paper's likelihood contrast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.band import FALSE_ALARM, outside_band
from robfcp.defence.rob_fcp import Covariance, likelihood_count
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

Method = Literal["groups", "groups-upward", "likelihood"]
METHODS: tuple[Method, ...] = ("groups", "groups-upward", "likelihood")
UPWARD_FALSE_ALARM = 0.2


class MaliciousCount(int):
    """A number of liars that says how it came about.

    Attributes
    ----------
    method
        How it was found.
    false_alarm
        The chance of a number above 0 when nobody lies; None where the method states none.
    flagged
        The clients it counts.
    reasons
        Why each is one of them.
    p_values
        (K,) the chance of a client as odd among the ordinary ones; None for "likelihood".

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> count = robfcp.estimate_malicious(federation, "likelihood")
    >>> count + 0, count.flagged
    (1, ('client-3',))
    """

    method: Method
    false_alarm: float | None
    flagged: tuple[str, ...]
    reasons: Mapping[str, str]
    p_values: NDArray[np.float64] | None

    def __new__(
        cls,
        number: int,
        method: Method = "groups",
        false_alarm: float | None = None,
        flagged: tuple[str, ...] = (),
        reasons: Mapping[str, str] | None = None,
        p_values: NDArray[np.float64] | None = None,
    ) -> MaliciousCount:
        count = super().__new__(cls, number)
        count.method = method
        count.false_alarm = false_alarm
        count.flagged = flagged
        count.reasons = {} if reasons is None else reasons
        count.p_values = p_values
        return count

    def __repr__(self) -> str:
        level = "" if self.false_alarm is None else f", false_alarm={self.false_alarm:g}"
        return f"MaliciousCount({int(self)}, method={self.method!r}{level})"


def estimate_malicious(
    federation: Federation,
    method: Method = "groups",
    false_alarm: float | None = None,
    *,
    covariance: Covariance = "diagonal",
    bins: int = 100,
    iterations: int = 1,
) -> MaliciousCount:
    """The estimated number of liars; an estimate never bounds liars who hide in honest noise.

    Parameters
    ----------
    federation
        The reports of one round.
    method
        "groups": the clients that stand out, able to be 0; false alarms at most 5% unless told.
        "groups-upward": the same at 20%, plus every other client whose own p-value is below 2%, for
        those who would rather exclude one too many.
        "likelihood": the paper's contrast, with its faults (see `likelihood_count`).
    false_alarm
        The chance of a number above 0 when nobody lies; the method's own if None. Not for
        "likelihood", which controls none.
    covariance
        Of "likelihood" only: "diagonal", "ridge", "pseudo-inverse" or "identity".
    bins
        Of "likelihood" only: the uniform bins histograms are made of.
    iterations
        Of "likelihood" only: how often clients are ranked anew with the last answer.

    Returns
    -------
    MaliciousCount
        An int that also holds `flagged`, `reasons`, `p_values`, `method` and `false_alarm`.

    References
    ----------
    "likelihood" is that of Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust
    federated conformal prediction", ICML.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
    >>> counts[3] = [200] + [0] * 19
    >>> count = robfcp.estimate_malicious(robfcp.Federation.from_counts(counts))
    >>> count, count.flagged
    (MaliciousCount(1, method='groups', false_alarm=0.05), ('client-03',))
    """
    if method == "likelihood":
        if false_alarm is not None:
            raise RobfcpError("false_alarm: method='likelihood' controls none; leave it out")
        count, flagged = likelihood_count(federation, covariance, bins, iterations)
        reason = "among the least likely under the trusted clients' mean and covariance"
        return MaliciousCount(count, method, None, flagged, dict.fromkeys(flagged, reason))
    if method not in METHODS:
        raise RobfcpError(f"method: {method!r} is unknown; use one of {', '.join(METHODS)}")
    upward = method == "groups-upward"
    level = (
        false_alarm if false_alarm is not None else UPWARD_FALSE_ALARM if upward else FALSE_ALARM
    )
    finding = outside_band(federation, level)
    reasons = dict(finding.reasons)
    if upward:
        odd = np.argsort(finding.p_values, kind="stable")
        for k in odd[finding.p_values[odd] <= 0.02]:
            if len(reasons) < (federation.n_clients - 1) // 2:
                reasons.setdefault(
                    federation.ids[k], f"p-value {finding.p_values[k]:.2g} by itself"
                )
    flagged = tuple(client for client in federation.ids if client in reasons)
    return MaliciousCount(len(flagged), method, level, flagged, reasons, finding.p_values)
