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
    shares = [[Fraction(c, sum(row)) for c in row] for row in counts]
    result = []
    for k, v in enumerate(shares):
        others = sorted(distance(v, w, metric) for j, w in enumerate(shares) if j != k)
        nearest = others[: n_benign - 1]
        result.append(sum(nearest) / len(nearest) if nearest else 0.0)
    return result


def trusted(counts, ids, n_benign, metric="l2"):
    number = maliciousness(counts, n_benign, metric)
    order = sorted(range(len(counts)), key=lambda k: (round(number[k], 12), ids[k]))
    return sorted(order[:n_benign])


def threshold(counts, uppers, level, exchangeability="partial"):
    """The r-th smallest of the pooled scores, each put at its bin's upper edge."""
    pooled = sorted(u for row in counts for c, u in zip(row, uppers, strict=True) for _ in range(c))
    rank = ceil(level * len(pooled)) + 1
    if exchangeability == "published":
        rank = ceil(level * (len(pooled) + len(counts)))
    elif exchangeability == "full" or len(counts) == 1:
        rank = ceil(level * (len(pooled) + 1))
    return pooled[rank - 1] if rank <= len(pooled) else float("inf")
