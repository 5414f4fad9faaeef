"""A threshold from totals only: devices with one sample, or groups of clients, and a server.

Under secure aggregation the server learns sums and nothing about single senders, so no sender can
be detected as malicious, but coverage can still be certified. A device with one sample adds one
count to one bin, which the protocol or a range proof enforces. So a threshold t with
count(t) >= (1 - a) N + a m + 1 has marginal coverage of at least 1 - a on benign devices, for any
reports of m malicious devices. Clients with many samples are added up in groups instead: a group is
one sender, and m malicious clients corrupt at most m groups.

Counts are exact here, not those of default reports: the sum hides single senders already, and cells
of five samples would hide the only sample of a device.
"""

from math import ceil

import numpy as np

import robfcp
from robfcp import figures
from robfcp.experiments import outputs, partitions
from robfcp.experiments.scenarios import build_federation

ALPHA = 0.1
N_MALICIOUS = (0, 50, 100, 200, 300)
N_CLIENTS = 100

rng = np.random.default_rng(0)
score = robfcp.LAC()
binning = robfcp.Binning.default()
pathology = outputs.load("pathmnist")
scores = score(pathology.probabilities, pathology.labels)
calibration_scores, fresh_scores = np.array_split(scores, 2)
n_devices = len(calibration_scores)


def masked_sum(vectors: np.ndarray) -> np.ndarray:
    """Return the sum of all vectors, each hidden by masks that cancel out, modulo 2^32."""
    masks = rng.integers(0, 2**32, vectors.shape, dtype=np.uint32)
    masked_vectors = vectors + masks - np.roll(masks, 1, axis=0)  # all that the server sees
    return masked_vectors.sum(axis=0, dtype=np.uint32)


def threshold_from_totals(vectors: np.ndarray, n_malicious: int) -> float:
    """Return the smallest bin edge with count(t) >= (1 - a) N + a m + 1."""
    needed_count = ceil((1 - ALPHA) * n_devices + ALPHA * n_malicious) + 1
    cumulative = masked_sum(vectors).cumsum()
    return binning.upper_edges[np.searchsorted(cumulative, needed_count)]


def fresh_coverage(threshold: float) -> float:
    """Return the coverage of fresh samples."""
    return float((fresh_scores <= threshold).mean())


print(f"{n_devices} devices of one sample; the server sees totals only")
one_hot = np.eye(binning.n_bins, dtype=np.uint32)[binning.bin_indices(calibration_scores)]
federation = robfcp.Federation.from_counts(one_hot.astype(np.int64), binning, score=score)
coverage: dict[str, list[float]] = {"all benign": [], "zeros sent": [], "with reports": []}
for n_malicious in N_MALICIOUS:
    attacked = one_hot.copy()
    attacked[:n_malicious] = one_hot[np.argmin(calibration_scores)]
    from_totals = fresh_coverage(threshold_from_totals(one_hot, n_malicious))
    from_attacked_totals = fresh_coverage(threshold_from_totals(attacked, n_malicious))
    calibration = robfcp.calibrate(
        federation, guarantee=robfcp.MarginalGuarantee(n_malicious), defense="none"
    )
    from_reports = fresh_coverage(calibration.levels[0].threshold)
    assert from_totals >= from_reports  # totals certify less, not more

    coverage["all benign"].append(from_totals)
    coverage["zeros sent"].append(from_attacked_totals)
    coverage["with reports"].append(from_reports)
    values = ", ".join(f"{name} {series[-1]:.4f}" for name, series in coverage.items())
    print(f"  certified for {n_malicious}: {values}")

print("100 clients, added up in groups of g; a group is one sender")
client_rows = partitions.partition_iid(n_devices, N_CLIENTS, rng)
for group_size in (1, 2, 5, 10):
    group_scores = []
    for start in range(0, N_CLIENTS, group_size):
        rows = np.concatenate(client_rows[start : start + group_size])
        group_scores.append(calibration_scores[rows])
    max_malicious = ceil(ALPHA * len(group_scores) / (1 + ALPHA)) - 1
    calibration = robfcp.calibrate(
        build_federation(group_scores, binning, score),
        guarantee=robfcp.MarginalGuarantee(max_malicious),
        defense="none",
    )
    group_coverage = fresh_coverage(calibration.levels[0].threshold)
    certified = f"certified for {max_malicious} malicious groups"
    print(f"  g = {group_size}: {certified}, coverage {group_coverage:.4f}")

(ax,) = figures.new_axes()
for (name, series), marker in zip(coverage.items(), figures.MARKERS, strict=False):
    ax.plot(N_MALICIOUS, series, marker=marker, label=name)
ax.set(xlabel=f"malicious devices certified for, of {n_devices}", ylabel="coverage")
ax.set_title("Coverage certified from totals, at 0.9")
ax.legend()
figures.save(ax, "secure_sums.png")
print("-> secure_sums.png")
