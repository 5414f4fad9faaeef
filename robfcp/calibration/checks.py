"""Whether the parts of a calibration file fit together: its digest is a seal, not a signature."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import MAX_SAMPLES, check_client
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.levels import Level
from robfcp.errors import RobfcpError
from robfcp.guarantees import exact_level

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def check_names(names: Iterable[str], kind: str) -> None:
    """Refuse what cannot be a client's name, and names that come twice."""
    seen = list(names)
    for name in seen:
        check_client(name)
    _need(len(set(seen)) == len(seen), f"a site is {kind} twice")


def checked_columns(starts: Any, bins: Any, counts: Any, n_clients: int, n_bins: int) -> Columns:
    """The columns of the counts, refused before anything is allocated for them."""
    try:
        columns = tuple(np.array(column, dtype=np.int64) for column in (starts, bins, counts))
    except OverflowError:
        raise RobfcpError("a number exceeds 64 bits") from None
    start, bin_, count = columns
    _need(start.size == n_clients + 1 and bin_.size == count.size, "columns differ in length")
    _need(start[0] == 0 and start[-1] == bin_.size, "starts do not span the counts")
    _need(start.min() >= 0 and start.max() <= bin_.size, "starts leave the counts")
    _need(bool((np.diff(start) >= 0).all()), "starts do not rise")
    within = bin_.min(initial=0) >= 0 and bin_.max(initial=0) < n_bins
    _need(within, f"a bin is outside 0..{n_bins - 1}")
    steps = np.diff(bin_) > 0
    steps[start[(start > 0) & (start < bin_.size)] - 1] = True
    _need(bool(steps.all()), "a site's bins do not rise")
    _need(bool((np.abs(count) <= MAX_SAMPLES).all()), f"a count exceeds {MAX_SAMPLES}")
    return start, bin_, count


def check_counts(columns: Columns, exact: NDArray[np.bool_]) -> None:
    """Refuse what no report without noise can hold: a negative count, no samples at all."""
    starts, _, counts = columns
    _need(bool(np.diff(starts)[exact].all()), "a site has no samples")
    positive = (counts > 0) | np.repeat(~exact, np.diff(starts))
    _need(bool(positive.all()), "a count is not positive")


def check_evidence(evidence: Evidence) -> None:
    """Refuse verdicts that cannot belong to the reports beside them."""
    federation, n_clients = evidence.federation, evidence.federation.n_clients
    _need(len(federation.sizes) == n_clients, "sizes differ from the sites in number")
    sizes = federation.sizes
    _need(sizes.min(initial=1) > 0 and sizes.max(initial=1) <= MAX_SAMPLES, "a size is impossible")
    _need(evidence.oddness.shape == (n_clients,), "oddness is not one a site")
    _need(set(evidence.reasons) == set(evidence.flagged), "a flagged site did not report")
    _need(bool(evidence.trusted_mask.any()), "nobody is trusted")


def check_levels(levels: Sequence[Level], several: bool, liars: int, n_clients: int) -> None:
    """Refuse outcomes that no calibration of so many clients can have."""
    _need(0 <= liars < n_clients, "liars is not a number of sites")
    _need(bool(levels), "there is no level")
    _need(several or len(levels) == 1, "several levels, one threshold")
    for level in levels:
        exact_level(level.coverage)
        certificate = level.certificate
        shares = -1e-9 <= certificate.lower <= certificate.upper + 1e-9 <= 1 + 2e-9
        fits = certificate.n_clients == n_clients or bool(level.strata)
        _need(shares and fits, "a certificate does not fit")


def check_together(levels: Sequence[Level], summary: Summary, evidence: Evidence) -> None:
    """Refuse a calibration whose evidence is another round's."""
    _need(Summary.of(evidence) == summary, "the evidence sums up to something else")
    upper = evidence.federation.grid.upper
    for level in levels:
        on_grid = np.isinf(level.threshold) or level.threshold in upper
        _need(bool(on_grid), "a threshold is not an edge of the grid")


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise RobfcpError(problem)
