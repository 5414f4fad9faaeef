"""An independent Rob-FCP and FCP in plain Python: loops, fractions, no numpy."""

from fractions import Fraction
from math import ceil, sqrt


def distance(a, b, metric):
    if metric in ("kolmogorov", "wasserstein"):
        a = [sum(a[: i + 1]) for i in range(len(a))]
        b = [sum(b[: i + 1]) for i in range(len(b))]
    gaps = [abs(x - y) for x, y in zip(a, b, strict=True)]
    if metric in ("l1", "wasserstein"):
        return float(sum(gaps))
    if metric in ("linf", "kolmogorov"):
        return float(max(gaps))
    if metric == "l2":
        return sqrt(sum(g * g for g in gaps))
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    norms = sum(x * x for x in a) * sum(y * y for y in b)
    return max(0.0, 1 - float(dot) / sqrt(norms))


def maliciousness(counts, n_benign, metric="l2"):
    vectors = [[Fraction(c, sum(row)) for c in row] for row in counts]
    result = []
    for k, v in enumerate(vectors):
        distances = sorted(distance(v, w, metric) for j, w in enumerate(vectors) if j != k)
        nearest = distances[: n_benign - 1]
        result.append(sum(nearest) / len(nearest) if nearest else 0.0)
    return result


def benign_clients(counts, ids, n_benign, metric="l2"):
    maliciousness_scores = maliciousness(counts, n_benign, metric)
    order = sorted(range(len(counts)), key=lambda k: (round(maliciousness_scores[k], 12), ids[k]))
    return sorted(order[:n_benign])


def threshold(counts, uppers, level, exchangeability="partial"):
    """Return the r-th smallest pooled score, each score being at the upper edge of its bin."""
    pooled = sorted(u for row in counts for c, u in zip(row, uppers, strict=True) for _ in range(c))
    rank = ceil(level * len(pooled)) + 1
    if exchangeability == "published":
        rank = ceil(level * (len(pooled) + len(counts)))
    elif exchangeability == "full" or len(counts) == 1:
        rank = ceil(level * (len(pooled) + 1))
    return pooled[rank - 1] if rank <= len(pooled) else float("inf")
