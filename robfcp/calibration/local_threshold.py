"""One confidence level at one site: its three thresholds and what each of them proves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robfcp.certificate import at_least


@dataclass(frozen=True)
class LocalThreshold:
    """One confidence level at one site: three thresholds, what each proves, and the one to use.

    Parameters
    ----------
    confidence_level
        1 - alpha.
    federation
        From the other sites' reports, for whatever mix the next patient makes.
    own
        The site's own PAC threshold, from its data alone.
    threshold
        max(low, min(federation, own)): never above the own one, never below the floor's.
    unclipped
        max(low, federation), which keeps the marginal promise under declared label shift.
    floor
        What `threshold` covers on average whatever anybody does, a/(n+1).
    n
        The site's samples.
    set_sizes
        Mean set size of federation, own and clipped on the site's samples.
    m
        How many of the others may lie; None where nothing is proved from their reports.
    label_shift
        How much honest sites may differ within a class.
    """

    confidence_level: float
    federation: float
    own: float
    threshold: float
    unclipped: float
    floor: float
    n: int
    set_sizes: tuple[float, float, float]
    m: int | None
    label_shift: float

    @property
    def statements(self) -> tuple[str, ...]:
        """What is proved, one sentence each.

        Examples
        --------
        >>> from robfcp.calibration import LocalThreshold
        >>> sizes = (1.5, 2.0, 1.5)
        >>> local = LocalThreshold(0.9, 0.6, 0.7, 0.6, 0.6, 0.82, 50, sizes, None, 0.0)
        >>> local.statements[0]
        'whatever anybody does, 0.6 covers at least 82% on average'
        """
        wanted = at_least(self.confidence_level)
        found = []
        if self.m is not None and np.isfinite(self.federation):
            found = [
                f"while at most {self.m} other sites lie and honest sites agree within classes "
                f"up to {self.label_shift:g}, {self.unclipped:.4g} (not clipped from above) covers "
                f"at least {wanted} of this site's patients on average",
                f"where the federation's threshold covers {wanted} here, so does the clipped one, "
                "with 97.5% confidence",
            ]
        return (
            *found,
            f"whatever anybody does, {self.threshold:.4g} covers at least {at_least(self.floor)} "
            "on average",
            "it is never above the threshold that this site's own data prove with 97.5% confidence",
        )

    @property
    def rows(self) -> tuple[tuple[str, float, float, str], ...]:
        """Name, threshold, mean set size and what is proved, for a table.

        Examples
        --------
        >>> from robfcp.calibration import LocalThreshold
        >>> sizes = (1.5, 2.0, 1.5)
        >>> local = LocalThreshold(0.9, 0.6, 0.7, 0.6, 0.6, 0.82, 50, sizes, None, 0.0)
        >>> [row[0] for row in local.rows]
        ['federation', 'own data', 'clipped']
        """
        wanted = at_least(self.confidence_level)
        proved = self.m is not None and np.isfinite(self.federation)
        others = f">= {wanted} on average while at most {self.m} others lie, under label shift"
        return (
            ("federation", self.federation, self.set_sizes[0], others if proved else "nothing"),
            (
                "own data",
                self.own,
                self.set_sizes[1],
                f">= {wanted} with 97.5% confidence, whoever lies"
                if np.isfinite(self.own)
                else "nothing: too few samples",
            ),
            (
                "clipped",
                self.threshold,
                self.set_sizes[2],
                f">= {at_least(self.floor)} on average, whoever lies",
            ),
        )
