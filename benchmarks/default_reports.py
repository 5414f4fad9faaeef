"""What default reports cost beside exact counts: coverage, set size, detection, guarantees.

`python benchmarks/default_reports.py` writes docs/defense/{costs,coarse,minima,ablation}.csv and
the tables of docs/security.md and docs/defense.md; `--docs` writes the pages alone. The default
defense was tuned on other data sets and seeds than those below.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from measure import into_page, markdown

import robfcp
from robfcp._typing import BoolArray, FloatArray, IntArray
from robfcp.defense.consensus._basis import CoarseningError
from robfcp.defense.consensus._tuning import Tuning
from robfcp.experiments import outputs
from robfcp.experiments.coarsening import as_default_reports
from robfcp.experiments.scenarios import build_federation
from robfcp.federation import Federation
from robfcp.guarantees import fcp_bin_index, marginal_threshold_bin

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDER = DOCS / "defense"
LEVEL = Fraction(9, 10)
BINNING = robfcp.Binning.default()
LAC = robfcp.LAC()
MALICIOUS_FRACTION = 0.3
MAX_TEST_SAMPLES = 1500
DIRICHLET = 0.5
DATASETS = ("pathmnist iid", "sleep beta0.5", "tinyimagenet beta0.5", "heart", "stroke")
SIZES = tuple((k, n) for k in (8, 20, 50) for n in (60, 100, 300))
SEEDS = range(70, 75)
MIN_CELL_COUNTS = (1, 3, 5, 10)


class Samples(NamedTuple):
    """The outputs of a model: (n, C) probabilities, (n,) labels, and the bin of each score."""

    probabilities: FloatArray
    labels: IntArray
    bins: IntArray


@dataclass(frozen=True, eq=False)
class Draw:
    """Clients drawn from a data set.

    Attributes
    ----------
    samples : Samples
        The data set.
    rows : list of ndarray of shape (n,)
        The calibration samples of every client.
    test_rows : ndarray
        Samples that no client has.
    rng : Generator
        For the attack.
    """

    samples: Samples
    rows: list[IntArray]
    test_rows: IntArray
    rng: np.random.Generator

    @property
    def n_classes(self) -> int:
        """C."""
        return self.samples.probabilities.shape[1]


def load(name: str) -> Samples:
    """Return the outputs that ship for a data set and, if it is named, the split of a model."""
    shipped = outputs.load(*name.split())
    probabilities = np.asarray(shipped.probabilities, dtype=np.float64)
    labels = np.asarray(shipped.labels)
    return Samples(probabilities, labels, BINNING.bin_indices(LAC(probabilities, labels)))


def draw(samples: Samples, n_clients: int, n_samples: int, split: str, seed: int) -> Draw:
    """Draw the clients of a round, with replacement, and test samples that none of them has.

    Parameters
    ----------
    samples : Samples
        The data set.
    n_clients, n_samples : int
        K, and the samples of each client.
    split : {"iid", "dirichlet"}
        Whether all clients have the same classes, or mixtures drawn from Dirichlet(0.5).
    seed : int
        Of the draw.
    """
    rng = np.random.default_rng([seed, n_clients, n_samples])
    shuffled = rng.permutation(len(samples.labels))
    n_test = min(MAX_TEST_SAMPLES, len(shuffled) // 3)
    test_rows, pool = shuffled[:n_test], shuffled[n_test:]
    labels = samples.labels[pool]
    n_classes = samples.probabilities.shape[1]
    class_sizes = np.maximum(np.bincount(labels, minlength=n_classes), 1)

    rows = []
    for _ in range(n_clients):
        weights = np.ones(len(pool))
        if split == "dirichlet":
            weights = (rng.dirichlet(np.full(n_classes, DIRICHLET)) / class_sizes)[labels]
        rows.append(rng.choice(pool, n_samples, p=weights / weights.sum()))
    return Draw(samples, rows, test_rows, rng)


def attacked_pairs(sampled: Draw, attack: str, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return the labels and the bins of the scores that a malicious client reports."""
    n_bins = BINNING.n_bins
    labels = sampled.samples.labels[rows]
    bins = sampled.samples.bins[rows]
    rng = sampled.rng
    true_scores = 1 - sampled.samples.probabilities[rows, labels]
    if attack == "zeros":
        return labels, np.zeros_like(bins)
    if attack == "ones":
        return labels, np.full_like(bins, n_bins - 1)
    if attack == "gaussian":
        noisy = np.clip(true_scores + rng.normal(0, 0.5, len(rows)), 0, 1)
        return labels, BINNING.bin_indices(noisy)
    if attack == "half":  # half of the scores are the smallest
        return labels, np.where(rng.random(len(rows)) < 0.5, 0, bins)
    if attack == "keep-30":  # the other 70% of the scores are the largest
        return labels, np.where(rng.random(len(rows)) < 0.7, n_bins - 1, bins)
    if attack == "shuffled labels":
        shuffled = rng.permutation(labels)
        scores = 1 - sampled.samples.probabilities[rows, shuffled]
        return shuffled, BINNING.bin_indices(scores)
    if attack == "one class claimed":  # the rarest, with the smallest scores
        sizes = np.bincount(sampled.samples.labels, minlength=sampled.n_classes)
        return np.full_like(labels, int(np.argmin(sizes))), np.zeros_like(bins)
    raise ValueError(attack)


ATTACKS = (
    "zeros",
    "ones",
    "gaussian",
    "half",
    "keep-30",
    "shuffled labels",
    "one class claimed",
)


def n_malicious_of(attack: str, n_clients: int) -> int:
    """Return how many clients attack: 30%; one where labels are shuffled."""
    if attack == "none":
        return 0
    if attack == "shuffled labels":
        return 1
    return int(MALICIOUS_FRACTION * n_clients)


def exact_round(sampled: Draw, attack: str) -> Federation:
    """Return the exact reports by class of all clients, the malicious ones first."""
    n_malicious = n_malicious_of(attack, len(sampled.rows))
    labels, scores = [], []
    for k, rows in enumerate(sampled.rows):
        client_labels = sampled.samples.labels[rows]
        client_bins = sampled.samples.bins[rows]
        if k < n_malicious:
            client_labels, client_bins = attacked_pairs(sampled, attack, rows)
        labels.append(client_labels)
        scores.append(BINNING.upper_edges[client_bins])
    return build_federation(scores, BINNING, LAC, labels=labels, n_classes=sampled.n_classes)


class Outcome(NamedTuple):
    """What a threshold does to test samples."""

    coverage: float
    set_size: float


def outcome(sampled: Draw, bin_index: int | None) -> Outcome:
    """Return what a bin's threshold does to the test samples; None is an infinite threshold."""
    if bin_index is None:
        return Outcome(1.0, float(sampled.n_classes))
    samples = sampled.samples
    covered = samples.bins[sampled.test_rows] <= bin_index
    scores = 1 - samples.probabilities[sampled.test_rows]
    sizes = (scores <= BINNING.upper_edges[bin_index]).sum(axis=1)
    return Outcome(float(covered.mean()), float(sizes.mean()))


def defended(federation: Federation, tuning: Tuning | None = None) -> tuple[BoolArray, int | None]:
    """Return which clients the default defense keeps, and the bin of its threshold."""
    defense = robfcp.Consensus() if tuning is None else robfcp.Consensus(tuning=tuning)
    assessment = defense.assess(federation)
    return assessment.benign_mask, assessment.threshold_rule(federation).bin_index(LEVEL)


def measure(
    sampled: Draw, attack: str, federations: Mapping[str, Federation], tuning: Tuning | None = None
) -> dict[str, dict[str, float]]:
    """Return what the default defense makes of the same round in several forms.

    Parameters
    ----------
    drawn : Draw
        The clients.
    attack : str
        What the first of them do.
    federations : mapping of str to Federation
        The round by the kind of its reports.
    tuning : Tuning, optional
        The constants of the defense.

    Returns
    -------
    dict of str to dict of str to float
        For each kind: detected, the fraction of malicious clients excluded; excluded, that of the
        benign ones; error, the distance of coverage from that of the benign clients' exact counts;
        sets, the mean size of sets over theirs; infinite, 1 where the threshold is.
    """
    n_malicious = n_malicious_of(attack, len(sampled.rows))
    benign = np.arange(len(sampled.rows)) >= n_malicious
    ideal = outcome(sampled, fcp_bin_index(exact_round(sampled, "none"), LEVEL, benign))
    results = {}
    for kind, federation in federations.items():
        kept_mask, bin_index = defended(federation, tuning)
        result = outcome(sampled, bin_index)
        results[kind] = {
            "detected": float((~kept_mask[~benign]).mean()) if n_malicious else float("nan"),
            "excluded": float((~kept_mask[benign]).mean()),
            "error": abs(result.coverage - ideal.coverage),
            "coverage": result.coverage,
            "sets": result.set_size / ideal.set_size,
            "infinite": float(bin_index is None),
        }
    return results


def rounds(
    datasets: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    seeds: Sequence[int],
    splits: Sequence[str] = ("iid", "dirichlet"),
) -> Iterator[tuple[str, int, int, str, Draw]]:
    """Yield data set, K, n, split and the clients of every round."""
    for name in datasets:
        samples = load(name)
        for n_clients, n_samples in sizes:
            for split in splits:
                for seed in seeds:
                    sampled = draw(samples, n_clients, n_samples, split, seed)
                    yield name, n_clients, n_samples, split, sampled


def costs(datasets: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return, for every K and n, what default reports cost without attack."""
    cells: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for name, n_clients, n_samples, _, sampled in rounds(datasets, SIZES, seeds, ("iid",)):
        exact = exact_round(sampled, "none")
        default = as_default_reports(exact)
        thresholds = [fcp_bin_index(result, LEVEL) for result in (exact, default)]
        guaranteed = [marginal_threshold_bin(result, LEVEL, 3) for result in (exact, default)]
        first, second = (outcome(sampled, index) for index in thresholds)
        marginal, default_marginal = (outcome(sampled, index) for index in guaranteed)
        cells[n_clients, n_samples].append(
            {
                "dataset": name,
                "exact": first.coverage,
                "default": second.coverage,
                "sets": second.set_size / first.set_size,
                "marginal": marginal.coverage,
                "default_marginal": default_marginal.coverage,
                "marginal_sets": default_marginal.set_size / marginal.set_size,
            }
        )
    table = []
    for (n_clients, n_samples), results in cells.items():
        by_dataset = defaultdict(list)
        for result in results:
            by_dataset[result["dataset"]].append(result)
        errors = [
            np.mean([abs(result["default"] - result["exact"]) for result in dataset_results])
            for dataset_results in by_dataset.values()
        ]
        shifts = [
            np.mean([result["default"] - result["exact"] for result in dataset_results])
            for dataset_results in by_dataset.values()
        ]
        sets = [
            np.mean([result["sets"] for result in dataset_results])
            for dataset_results in by_dataset.values()
        ]
        table.append(
            {
                "n_clients": n_clients,
                "n_samples": n_samples,
                "coverage_exact": _mean(results, "exact"),
                "coverage_default": _mean(results, "default"),
                "error": round(float(np.mean(errors)), 4),
                "worst_error": round(float(np.max(errors)), 4),
                "worst_shift": round(float(np.max(np.abs(shifts))), 4),
                "sets": round(float(np.mean(sets)), 3),
                "worst_sets": round(float(np.max(np.abs(np.array(sets) - 1)) + 1), 3),
                "marginal_exact": _mean(results, "marginal"),
                "marginal_default": _mean(results, "default_marginal"),
                "marginal_sets": _mean(results, "marginal_sets", 3),
            }
        )
    return table


def _mean(results: Sequence[Mapping[str, Any]], name: str, digits: int = 4) -> float:
    """Return the mean of an entry of some results, rounded."""
    return round(float(np.mean([result[name] for result in results])), digits)


def attacks_table(
    datasets: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    seeds: Sequence[int],
    make: Mapping[str, Callable[[Federation], Federation]],
    tuning: Tuning | None = None,
) -> list[dict[str, Any]]:
    """Return, for every split, n and attack, what the defense makes of each kind of reports."""
    cells: dict[tuple[str, int, str, str], list[dict[str, float]]] = defaultdict(list)
    for _, _, n_samples, split, sampled in rounds(datasets, sizes, seeds):
        for attack in ("none", *ATTACKS):
            exact = exact_round(sampled, attack)
            federations = {kind: make_reports(exact) for kind, make_reports in make.items()}
            for kind, results in measure(sampled, attack, federations, tuning).items():
                cells[split, n_samples, attack, kind].append(results)
    table = []
    for (split, n_samples, attack, kind), results in cells.items():
        row: dict[str, Any] = {"split": split, "n_samples": n_samples}
        row |= {"attack": attack, "reports": kind}
        for name in ("detected", "excluded", "error", "sets", "infinite"):
            row[name] = _mean(results, name)
        row["n_rounds"] = len(results)
        table.append(row)
    return table


@contextmanager
def without_variance() -> Iterator[None]:
    """Leave out the variance of what coarsening leaves open."""
    between = CoarseningError.between

    def without(*arguments: Any) -> CoarseningError:
        error = between(*arguments)
        return replace(error, edge_variance=np.zeros_like(error.edge_variance))

    with mock.patch.object(CoarseningError, "between", without):
        yield


@contextmanager
def without_counts_as_sent() -> Iterator[None]:
    """Read the lower half of clients with larger scores from midpoints."""
    between = CoarseningError.between

    def without(
        counts_as_sent: FloatArray, counts: FloatArray, scale: FloatArray, *remaining: Any
    ) -> CoarseningError:
        error = between(counts_as_sent, counts, scale, *remaining)
        pooled = counts.sum(axis=1)
        sizes = np.maximum(pooled.sum(axis=1, keepdims=True), 1)
        return replace(error, cdf_as_sent=np.cumsum(pooled, axis=1) / sizes)

    with mock.patch.object(CoarseningError, "between", without):
        yield


def without_classes(federation: Federation) -> Federation:
    """Return default reports without class totals."""
    return replace(as_default_reports(federation), class_totals=None)


def ablation(
    datasets: Sequence[str], sizes: Sequence[tuple[int, int]], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the table of attacks with each part of the comparison left out."""
    default = {"default": as_default_reports}
    table = attacks_table(
        datasets, sizes, seeds, {"exact": lambda federation: federation, **default}
    )
    with without_variance():
        rows = attacks_table(datasets, sizes, seeds, {"no variance": as_default_reports})
    table += rows
    with without_counts_as_sent():
        table += attacks_table(datasets, sizes, seeds, {"no reported counts": as_default_reports})
    with without_variance(), without_counts_as_sent():
        table += attacks_table(datasets, sizes, seeds, {"neither": as_default_reports})
    without_em = Tuning(reference_em_rounds=0)
    table += attacks_table(
        datasets, sizes, seeds, {"no estimated classes": as_default_reports}, without_em
    )
    table += attacks_table(datasets, sizes, seeds, {"no class totals": without_classes})
    return table


def minima(datasets: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return what every minimum cell count costs with 20 clients of n samples."""
    table = []
    for n_samples in (60, 100, 300):
        make = {
            str(min_cell_count): (
                lambda federation, min_cell_count=min_cell_count: as_default_reports(
                    federation, min_cell_count
                )
            )
            for min_cell_count in MIN_CELL_COUNTS
        }
        rows = attacks_table(datasets, [(20, n_samples)], seeds, make)
        guaranteed = defaultdict(list)
        for _, _, _, _, sampled in rounds(datasets, [(20, n_samples)], seeds, ("iid",)):
            exact = exact_round(sampled, "none")
            sizes = {}
            for min_cell_count in MIN_CELL_COUNTS:
                coarse = as_default_reports(exact, min_cell_count)
                sizes[min_cell_count] = outcome(
                    sampled, marginal_threshold_bin(coarse, LEVEL, 3)
                ).set_size
            for min_cell_count, size in sizes.items():
                guaranteed[min_cell_count].append(size / sizes[1])
        for min_cell_count in MIN_CELL_COUNTS:
            rows_of_count = [row for row in rows if row["reports"] == str(min_cell_count)]
            row_of_attack = {(row["split"], row["attack"]): row for row in rows_of_count}
            table.append(
                {
                    "min_cell_count": min_cell_count,
                    "n_samples": n_samples,
                    "error": round(
                        float(
                            np.mean([r["error"] for r in rows_of_count if r["attack"] != "keep-30"])
                        ),
                        4,
                    ),
                    "gaussian_iid": row_of_attack["iid", "gaussian"]["detected"],
                    "gaussian_dirichlet": row_of_attack["dirichlet", "gaussian"]["detected"],
                    "excluded": round(float(np.max([row["excluded"] for row in rows_of_count])), 4),
                    "marginal_sets": round(float(np.mean(guaranteed[min_cell_count])), 3),
                }
            )
    return table


def write(name: str, table: Sequence[Mapping[str, Any]]) -> None:
    """Write a table, and print it."""
    path = FOLDER / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    print(path.name)
    for row in table:
        print("  ", *(f"{key}={value}" for key, value in row.items()))


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a table that was written before."""
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def percent(values: Sequence[str]) -> str:
    """Return the mean of fractions in percent."""
    return f"{100 * np.mean([float(value) for value in values]):.0f}%"


def cost_rows() -> Iterator[list[str]]:
    """Yield the rows of the table of costs."""
    for row in read("costs"):
        yield [
            f"{row['n_clients']}, {row['n_samples']}",
            f"{100 * float(row['coverage_exact']):.1f}%",
            f"{100 * float(row['coverage_default']):.1f}%",
            f"{row['error']} ({row['worst_error']})",
            f"{row['sets']} ({row['worst_sets']})",
            f"{100 * float(row['marginal_exact']):.1f}%",
            f"{100 * float(row['marginal_default']):.1f}%",
            row["marginal_sets"],
        ]


def attack_rows(name: str, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of a table of attacks: detected, error, for each kind of reports.

    Parameters
    ----------
    name : str
        Of the table.
    columns : sequence of str
        The kinds of reports.
    """
    cells: dict[tuple[str, str], dict[str, list[dict[str, str]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in read(name):
        cells[row["split"], row["attack"]][row["reports"]].append(row)
    for (split, attack), of_kind in cells.items():
        line = [split, attack]
        for kind in columns:
            rows = of_kind[kind]
            error = f"{np.mean([float(row['error']) for row in rows]):.3f}"
            detected = "" if attack == "none" else f"{percent([row['detected'] for row in rows])}, "
            line.append(detected + error)
        yield line


def small_client_rows() -> Iterator[list[str]]:
    """Yield by n what is detected of the attacks that default reports hide best."""
    cells: dict[tuple[str, str], dict[tuple[str, str], dict[str, str]]] = defaultdict(dict)
    for row in read("coarse"):
        if row["attack"] in ("gaussian", "one class claimed"):
            cells[row["attack"], row["n_samples"]][row["split"], row["reports"]] = row
    for (attack, samples), rows in cells.items():
        line = [attack, samples]
        for split in ("iid", "dirichlet"):
            exact, default = rows[split, "exact"], rows[split, "default"]
            line.append(
                f"{percent([exact['detected']])} / {percent([default['detected']])}, "
                f"{float(default['error']):.3f}"
            )
        yield line


def minima_rows() -> Iterator[list[str]]:
    """Yield for every minimum cell count what it costs at each n."""
    rows = read("minima")
    for min_cell_count in MIN_CELL_COUNTS:
        rows_of_count = [row for row in rows if row["min_cell_count"] == str(min_cell_count)]
        yield [
            str(min_cell_count),
            " ".join(f"{float(row['error']):.3f}" for row in rows_of_count),
            " ".join(percent([row["gaussian_iid"]]) for row in rows_of_count),
            " ".join(percent([row["gaussian_dirichlet"]]) for row in rows_of_count),
            " ".join(f"{float(row['marginal_sets']):.2f}" for row in rows_of_count),
        ]


def write_docs() -> None:
    """Write the tables on the pages."""
    security = DOCS / "security.md"
    head = ["K, n", "coverage, exact", "default", "distance (worst data set)"]
    head += [
        "sets, default / exact (worst)",
        "`MarginalGuarantee(max_malicious=3)`, exact",
        "default",
    ]
    into_page(security, "costs", markdown([*head, "its sets, default / exact"], cost_rows()))
    report_kinds = ("exact", "default")
    head = ["split", "attack", "exact: detected, distance", "default: detected, distance"]
    into_page(security, "attacks", markdown(head, attack_rows("coarse", report_kinds)))
    head = ["attack", "n", "iid: detected exact / default, distance", "Dirichlet(.5)"]
    into_page(security, "small clients", markdown(head, small_client_rows()))
    head = [
        "minimum cell count",
        "distance",
        "Gaussian detected, iid",
        "Gaussian detected, Dirichlet(.5)",
    ]
    head += ["sets of `MarginalGuarantee(max_malicious=3)`"]
    into_page(security, "minimum cell counts", markdown(head, minima_rows()))
    report_kinds = ("exact", "default", "no variance", "no reported counts", "neither")
    report_kinds += ("no estimated classes", "no class totals")
    head = ["split", "attack", *report_kinds]
    into_page(
        DOCS / "defense.md", "ablation", markdown(head, attack_rows("ablation", report_kinds))
    )


def main() -> None:
    """Write the tables that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=["costs", "coarse", "minima", "ablation"])
    parser.add_argument("--n-runs", type=int, default=len(SEEDS))
    parser.add_argument("--docs", action="store_true", help="only write the pages again")
    arguments = parser.parse_args()
    if arguments.docs:
        write_docs()
        return
    seeds = SEEDS[: arguments.n_runs]
    report_kinds = {"exact": lambda federation: federation, "default": as_default_reports}
    tables: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "costs": lambda: costs(DATASETS, seeds),
        "coarse": lambda: attacks_table(DATASETS, SIZES, seeds, report_kinds),
        "minima": lambda: minima(DATASETS, seeds),
        "ablation": lambda: ablation(DATASETS, [(20, 60), (20, 100), (20, 300)], seeds[:2]),
    }
    for name in arguments.tables:
        write(name, tables[name]())
    write_docs()


if __name__ == "__main__":
    main()
