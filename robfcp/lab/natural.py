"""Natural federations measured: sizes, accuracy, heterogeneity, who is found when lying."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.defence import DEFAULT
from robfcp.errors import RobfcpError
from robfcp.lab import outputs, partitions
from robfcp.lab.attacks import EVERYDAY
from robfcp.lab.simulation import simulate
from robfcp.scores import LAC

MIN_SIZE = 50
BINS = 5
SHARE = 0.2
ATTACKS = (*EVERYDAY, "label-poisoning", "coverage", "efficiency", "gaussian", "mimic-low")
COMPARED = ("rob-fcp", DEFAULT)
DEFENCES = ("none", *COMPARED)


@dataclass(frozen=True)
class NaturalFederation:
    """Shipped outputs and the column that says where each sample comes from."""

    dataset: str
    column: str
    title: str

    def load(self) -> tuple[outputs.Outputs, NDArray[np.str_]]:
        """The outputs and (n,) the site of each sample."""
        found = outputs.load(self.dataset, outputs.NATURAL)
        return found, found.column(self.column)


FEDERATIONS = (
    NaturalFederation("stroke", "site", "stroke trial, hospitals"),
    NaturalFederation("stroke", "country", "stroke trial, countries"),
    NaturalFederation("heart", "site", "heart disease, hospitals"),
    NaturalFederation("sleep", "site", "sleep staging, subjects"),
)


@dataclass(frozen=True)
class Heterogeneity:
    """How unlike the sites' scores are: mean X^2/df against the others, 1 where all are alike.

    `pooled` compares each site's histogram with that of all others; `given_labels` with the one its
    own label counts lead to, so that what remains is beyond label shift.
    """

    pooled: float
    given_labels: float
    sites: int

    @property
    def explained(self) -> float:
        """Share of the excess over 1 that the label mix explains; NaN where there is none."""
        excess = self.pooled - 1
        return 1 - (self.given_labels - 1) / excess if excess > 0 else float("nan")


def heterogeneity(
    scores: ArrayLike, labels: ArrayLike, sites: ArrayLike, *, min_size: int = MIN_SIZE
) -> Heterogeneity:
    """X^2_k / df of every site against the others, averaged over the sites, in five bins of equal
    mass.

    With O_k the site's counts, X^2_k = D' V^+ D, D = O_k - sum_c n_kc q_c, q_c the shares of the
    others' scores of class c, V = sum_c n_kc (1 + n_kc / N_c) (diag p_c - p_c p_c'), p_c those of
    everybody, N_c the others' number, df = rank V. Pooled: one class.
    """
    score, label = np.asarray(scores, np.float64), np.asarray(labels)
    edges = np.unique(np.quantile(score, np.arange(1, BINS) / BINS))
    cell = np.searchsorted(edges, score, side="left")
    parts = partitions.by_site(sites, min_size)
    if len(parts) < 2:
        raise RobfcpError(f"sites: {len(parts)} has {min_size} samples; two are needed")
    member = np.concatenate(list(parts.values()))
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()])
    shape = (len(parts), int(label.max()) + 1, len(edges) + 1)
    counts = np.zeros(shape, np.int64)
    np.add.at(counts, (owner, label[member], cell[member]), 1)
    return Heterogeneity(
        pooled=_mean_ratio(counts.sum(axis=1, keepdims=True)),
        given_labels=_mean_ratio(counts),
        sites=len(parts),
    )


def _mean_ratio(counts: NDArray[np.int64]) -> float:
    """Mean over the sites of X^2_k / df_k from counts (sites, classes, bins)."""
    total = counts.sum(axis=0)
    shares = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    spread = np.eye(counts.shape[2]) * shares[:, None, :] - shares[:, :, None] * shares[:, None, :]
    ratios = []
    for own in counts:
        others = total - own
        size, rest = own.sum(axis=1), np.maximum(others.sum(axis=1), 1)
        gap = own.sum(axis=0) - (size / rest) @ others
        variance = np.einsum("c,cab->ab", size * (1 + size / rest), spread)
        value, axes = np.linalg.eigh(variance)
        real = value > 1e-9 * value.max()
        ratios.append(float(((axes.T @ gap)[real] ** 2 / value[real]).mean()))
    return float(np.mean(ratios))


def described(federation: NaturalFederation, min_size: int = MIN_SIZE) -> dict[str, Any]:
    """Sites, sizes and accuracy of one federation."""
    given, sites = federation.load()
    every = np.unique(sites, return_counts=True)[1]
    parts = partitions.by_site(sites, min_size)
    right = given.probabilities.argmax(axis=1) == given.labels
    by_site = [float(right[part].mean()) for part in parts.values()]
    return {
        "federation": federation.title,
        "samples": len(given.labels),
        "classes": given.probabilities.shape[1],
        "sites": len(every),
        "least": int(every.min()),
        "median": float(np.median(every)),
        "most": int(every.max()),
        "sites_used": len(parts),
        "samples_used": sum(len(part) for part in parts.values()),
        "accuracy": given.accuracy,
        "commonest_class": float(np.bincount(given.labels).max() / len(given.labels)),
        "worst_accuracy": min(by_site),
        "best_accuracy": max(by_site),
    }


def unlike(federation: NaturalFederation, min_size: int = MIN_SIZE) -> dict[str, Any]:
    """Heterogeneity of one federation's LAC scores, and how much of it the label mix explains."""
    given, sites = federation.load()
    scores = LAC()(given.probabilities, given.labels)
    found = heterogeneity(scores, given.labels, sites, min_size=min_size)
    return {
        "federation": federation.title,
        "sites": found.sites,
        "pooled": found.pooled,
        "given_labels": found.given_labels,
        "explained": found.explained,
    }


def lies(
    federation: NaturalFederation,
    attacks: Sequence[str] = ATTACKS,
    defences: Sequence[str] = DEFENCES,
    *,
    share: float = SHARE,
    seeds: int = 5,
    min_size: int = MIN_SIZE,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """A row an attack and defence, the number of liars estimated: error of coverage, liars found
    and honest sites flagged, means over the seeds."""
    given, sites = federation.load()
    for attack in attacks:
        rows = simulate(
            given.probabilities,
            given.labels,
            attack=attack,
            share=share,
            defences=defences,
            sites=sites,
            min_size=min_size,
            malicious="estimate",
            seeds=seeds,
            progress=advance,
        )
        for defence in defences:
            group = [row for row in rows if row.defence == defence]
            liars, honest = group[0].n_malicious, group[0].n_clients - group[0].n_malicious
            yield {
                "federation": federation.title,
                "attack": attack if liars else "nobody lies",
                "defence": defence,
                "liars": liars,
                "honest": honest,
                "error": float(np.mean([row.error for row in group])),
                "set_size": float(np.mean([row.set_size for row in group])),
                "honest_set_size": float(np.mean([row.honest_set_size for row in group])),
                "found": float(np.mean([row.caught for row in group])),
                "false_alarms": float(np.mean([row.flagged - row.caught for row in group])),
                "runs_with_alarm": float(np.mean([row.flagged > row.caught for row in group])),
                "seeds": seeds,
            }


def nobody(
    federation: NaturalFederation, defences: Sequence[str] = DEFENCES, *, seeds: int = 20
) -> list[dict[str, Any]]:
    """The same with no liar at all."""
    return list(lies(federation, ("coverage",), defences, share=0.0, seeds=seeds))


def found_table(
    seeds: int = 5, quiet_seeds: int = 20, advance: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """One row a federation and fault, all defences beside each other; first that nobody lies."""
    table = []
    for federation in FEDERATIONS:
        rows = [*nobody(federation, seeds=quiet_seeds), *lies(federation, seeds=seeds)]
        advance()
        for attack in dict.fromkeys(row["attack"] for row in rows):
            group = {row["defence"]: row for row in rows if row["attack"] == attack}
            first = group["none"]
            line: dict[str, Any] = {
                "federation": federation.title,
                "attack": attack,
                "liars": first["liars"],
                "honest": first["honest"],
                "none_error": first["error"],
            }
            for defence in COMPARED:
                for key in ("error", "found", "false_alarms"):
                    line[f"{defence}_{key}"] = group[defence][key]
            table.append({**line, "seeds": first["seeds"]})
    return table
