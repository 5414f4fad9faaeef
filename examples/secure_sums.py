"""A threshold from totals alone: one sample a device, or groups of sites, and a server that adds.

Under secure aggregation the server learns sums and nothing of single senders, so nobody can be
found lying. What is proved stays. A device with one sample adds one count to one bin, which the
protocol or a range proof enforces, so a threshold t with count(t) >= (1 - a) N + a m + 1 covers
1 - a of the honest devices on average whatever m of them send. Sites with many samples are added
up in groups instead: a group is one sender, and m liars spoil at most m groups.
"""

from math import ceil

import numpy as np

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions
from robfcp.experiments.scenarios import build_federation

ALPHA = 0.1
rng, score, grid = np.random.default_rng(0), robfcp.LAC(), robfcp.Binning.default()
tissue = outputs.load("pathmnist")
scores = score(tissue.probabilities, tissue.labels)
own, fresh = np.array_split(scores, 2)


def masked_sum(vectors: np.ndarray) -> np.ndarray:
    """The sum of what all send, each hidden by masks that cancel out, modulo 2^32."""
    masks = rng.integers(0, 2**32, vectors.shape, dtype=np.uint32)
    sent = vectors + masks - np.roll(masks, 1, axis=0)  # all that the server sees
    return sent.sum(axis=0, dtype=np.uint32)


print(f"{len(own)} devices of one sample; the server sees totals only")
devices = np.eye(grid.n_bins, dtype=np.uint32)[grid.bin_indices(own)]
everybody = robfcp.Federation.from_counts(devices.astype(np.int64), grid, score=score)
liars = [0, 50, 100, 200, 300]
covered: dict[str, list[float]] = {"nobody lies": [], "they send zeros": [], "reports seen": []}
for m in liars:
    needed = ceil((1 - ALPHA) * len(own) + ALPHA * m) + 1
    forged = devices.copy()
    forged[:m] = devices[np.argmin(own)]
    for name, reports in (("nobody lies", devices), ("they send zeros", forged)):
        edge = np.searchsorted(masked_sum(reports).cumsum(), needed)
        covered[name].append(float((fresh <= grid.upper_edges[edge]).mean()))
    seen = robfcp.calibrate(
        everybody, guarantee=robfcp.MarginalGuarantee(m), defense="none"
    ).threshold
    covered["reports seen"].append(float((fresh <= seen).mean()))
    assert covered["nobody lies"][-1] >= covered["reports seen"][-1]  # totals prove less, not more
    print(f"  proved for {m}:", ", ".join(f"{k} {v[-1]:.4f}" for k, v in covered.items()))

print("100 sites, added up in groups of g; a group is one sender")
sites = partitions.partition_iid(len(own), 100, rng)
for g in (1, 2, 5, 10):
    groups = [own[np.concatenate(sites[k : k + g])] for k in range(0, 100, g)]
    m = ceil(ALPHA * len(groups) / (1 + ALPHA)) - 1
    promise = robfcp.MarginalGuarantee(m)
    found = robfcp.calibrate(
        build_federation(groups, grid, score), guarantee=promise, defense="none"
    )
    print(f"  g = {g}: proved for {m} liars, {(fresh <= found.threshold).mean():.4f} covered")

(ax,) = figures.new_axes()
for (name, found), marker in zip(covered.items(), figures.MARKERS, strict=False):
    ax.plot(liars, found, marker=marker, label=name)
ax.set(xlabel=f"liars proved for, of {len(own)} devices", ylabel="coverage")
ax.set_title("What totals alone prove at 0.9")
ax.legend()
figures.save(ax, "secure_sums.png")
print("-> secure_sums.png")
