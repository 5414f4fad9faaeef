"""Exact neighbour means on an accelerator (extra: train): the same numbers as on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.distances import MEMORY, Metric, Space
from robfcp.errors import RobfcpError

if TYPE_CHECKING:
    import torch

_BYTES = 32  # of one distance: itself, its copies and what the selection needs
_SAME = 1e-13  # squared distances below this share of the largest norm are rounding: 0


def gpu_neighbour_means(
    vectors: NDArray[np.float64],
    metric: Metric,
    first: int,
    last: int,
    device: str = "cuda",
    memory: int | None = None,
) -> NDArray[np.float64]:
    """Each client's mean distance to its neighbours of rank first..last, nearest = 1.

    Distances are float64 products; a float32 copy selects, and what it cannot tell apart lies
    within 1e-7 of the same distance. `memory` in bytes bounds a block: by default 40% of what is
    free on the device.
    """
    torch = _torch()
    space = Space.of(vectors, metric)
    n_clients = len(space.points)
    if not 1 <= first <= last < n_clients:
        raise RobfcpError(f"neighbours {first}..{last} do not exist among {n_clients} clients")
    points = torch.from_numpy(space.points).to(device)
    points = points - points.mean(dim=0)
    means = torch.empty(n_clients, dtype=torch.float64, device=device)
    step = max(1, (memory or _free(device)) // (_BYTES * n_clients))
    right = _right(points) if space.base in ("l2", "cosine") else None
    for start in range(0, n_clients, step):
        rows = slice(start, min(start + step, n_clients))
        block = _distances(points, rows, right, space.base)
        own = torch.arange(rows.start, rows.stop, device=device)
        block[own - rows.start, own] = 0.0  # sorts before every neighbour
        coarse = block.to(torch.float32)
        nearer = _sum_of_lowest(block.clone(), coarse, first) if first > 1 else 0.0
        means[rows] = (_sum_of_lowest(block, coarse, last + 1) - nearer) / (last - first + 1)
    return np.asarray(means.cpu().numpy())


def _right(points: torch.Tensor) -> torch.Tensor:
    """(d + 2, K) so that [a, |a|^2, 1] times a column [-2b, 1, |b|^2] is |a - b|^2."""
    torch = _torch()
    norms = (points * points).sum(dim=1, keepdim=True)
    return torch.cat([-2 * points, torch.ones_like(norms), norms], dim=1).T.contiguous()


def _distances(
    points: torch.Tensor, rows: slice, right: torch.Tensor | None, base: str
) -> torch.Tensor:
    """(rows, K) distances from a block of clients to all."""
    torch = _torch()
    if right is None:
        return torch.cdist(points[rows], points, p=1.0 if base == "l1" else float("inf"))
    norms = right[-1, rows, None]
    block = torch.cat([points[rows], norms, torch.ones_like(norms)], dim=1) @ right
    torch.nn.functional.threshold_(block, _SAME * float(right[-1].max()), 0.0)
    return block.sqrt_() if base == "l2" else block.div_(2)


def _sum_of_lowest(block: torch.Tensor, coarse: torch.Tensor, count: int) -> torch.Tensor:
    """(rows,) sums of the `count` smallest distances; the others are set to 0 in the block.

    The distances below the count-th smallest, and that one as often as it is needed.
    """
    limit, where = coarse.kthvalue(count, dim=1, keepdim=True)
    highest = block.gather(1, where)[:, 0]
    outside = coarse >= limit
    block.masked_fill_(outside, 0.0)
    return block.sum(dim=1) + (count - block.shape[1] + outside.sum(dim=1)) * highest


def _free(device: str) -> int:
    torch = _torch()
    if not device.startswith("cuda"):
        return MEMORY
    return int(0.4 * torch.cuda.mem_get_info(device)[0])


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise RobfcpError(
            "device: exact distances on an accelerator need PyTorch; install robfcp[train]"
        ) from None
    return torch
