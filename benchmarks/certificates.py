"""Tables of docs/certificates.md: `python benchmarks/certificates.py widths` (or another).

Scores of widths and price are LAC of a simulated ten-class model with 85% accuracy; clients are
homogeneous or have Dirichlet(0.5) class shares. Reports are exact counts, by class where
`LabelShiftGuarantee` needs them; a default report has none by class. Everything is seeded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Literal

import numpy as np
from measure import markdown
from numpy.typing import NDArray

from robfcp import LAC, Binning, Consensus, LabelShiftGuarantee, Report, calibrate
from robfcp.experiments.attacks import ATTACKS, AdaptiveAttack, Attack
from robfcp.experiments.outputs import load as load_outputs
from robfcp.experiments.paper.ranks import table_bin
from robfcp.experiments.paper.theorem_1 import TheoremSetting, theorem_1
from robfcp.experiments.scenarios import (
    Scenario,
    ScenarioConfig,
    apply_attack,
    build_federation,
    make_scenario,
)
from robfcp.federation import Federation
from robfcp.guarantees import (
    PACGuarantee,
    certify_threshold,
    fcp_bin_index,
    marginal_threshold_bin,
)

CLIENTS = 100
CLASSES = 10
LEVEL = Fraction(9, 10)
CONFIDENCE = 0.95
BUDGETS = (5, 9, 20, 40)  # numbers m of malicious clients
SIZES = (50, 500, 5000)  # samples a client
FRESH_SAMPLES = 100  # a client
BINNING = Binning.default()
SCORE = LAC()


def draw_labels(
    rng: np.random.Generator, n: int, mix: str, clients: int = CLIENTS
) -> NDArray[np.intp]:
    """Return (K, n) labels: uniform ("homogeneous"), or of Dirichlet(0.5) label distributions."""
    if mix == "homogeneous":
        return rng.integers(0, CLASSES, (clients, n))
    distributions = rng.dirichlet(np.full(CLASSES, 0.5), clients)
    return np.stack([rng.choice(CLASSES, n, p=distribution) for distribution in distributions])


def draw_outputs(rng: np.random.Generator, labels: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return class probabilities of the simulated model; the last classes are harder."""
    logits = 2.2 * rng.standard_normal((labels.size, CLASSES))
    logits[np.arange(labels.size), labels] += 8 - 0.4 * labels
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class TestScores:
    """Scores of fresh samples: (n,) of the true labels and (n, C) of all labels."""

    true: NDArray[np.float64]
    all_labels: NDArray[np.float64]

    def outcome(self, bin_index: int | None) -> str:
        """Return coverage and mean set size of a threshold."""
        threshold = np.inf if bin_index is None else BINNING.upper_edges[bin_index]
        coverage = (self.true <= threshold).mean()
        set_size = (self.all_labels <= threshold).sum(axis=1).mean()
        return f"{coverage:.3f} / {set_size:.2f}"


def draw(rng: np.random.Generator, n: int, mix: str) -> tuple[Federation, TestScores]:
    """Return a federation of n samples a client, and scores of fresh samples."""
    labels = draw_labels(rng, n + FRESH_SAMPLES, mix)
    counts = np.zeros((CLIENTS, BINNING.n_bins), dtype=np.int64)
    for k, client_labels in enumerate(labels[:, :n]):
        scores = SCORE(draw_outputs(rng, client_labels), client_labels)
        counts[k] = np.bincount(BINNING.bin_indices(scores), minlength=BINNING.n_bins)

    test_labels = labels[:, n:].ravel()
    label_scores = SCORE.score_all_labels(draw_outputs(rng, test_labels))
    true_scores = label_scores[np.arange(test_labels.size), test_labels]
    return Federation.from_counts(counts, BINNING), TestScores(true_scores, label_scores)


def attack_lowest(federation: Federation, n_malicious: int) -> Federation:
    """Return reports of which the first are malicious: nothing but the smallest scores."""
    counts = federation.counts.copy()
    counts[:n_malicious] = 0
    counts[:n_malicious, 0] = federation.sample_sizes[:n_malicious]
    return Federation.from_counts(counts, BINNING)


def widths() -> Iterator[Sequence[str]]:
    """What is proved at 95% about undefended FCP's threshold, beside the paper's bound."""
    yield ["n_k", "m", "no attack", "m malicious", "clients differ", "the paper's"]
    for n in SIZES:
        rng = np.random.default_rng(n)
        homogeneous, _ = draw(rng, n, "homogeneous")
        different, _ = draw(rng, n, "dirichlet")
        for m in BUDGETS:
            cells = []
            for federation in (homogeneous, attack_lowest(homogeneous, m), different):
                bin_index = fcp_bin_index(federation, LEVEL)
                certified = certify_threshold(federation, bin_index, m, CONFIDENCE)
                cells.append(f"{certified.lower:.3f}-{certified.upper:.3f}")
            theorem_setting = TheoremSetting(
                n_benign_clients=CLIENTS - m,
                n_malicious=m,
                n_b=n,
                n_malicious_samples=m * n,
                n_bins=10,
                level=0.9,
                beta=1 - CONFIDENCE,
            )
            lower, upper = theorem_1(theorem_setting)
            cells.append(f"{lower:.3g} to {upper:.3g}")
            yield [str(n), str(m), *cells]


def price() -> Iterator[Sequence[str]]:
    """Coverage and mean set size of each guaranteed threshold without attack."""
    guarantee_names = ["undefended FCP", "marginal", "pac", "pac, homogeneous"]
    yield ["clients", "n_k", "m", *guarantee_names]
    for mix, heterogeneity in (("homogeneous", 0.01), ("dirichlet", 0.3)):
        for n in SIZES:
            federation, test = draw(np.random.default_rng([n, 1]), n, mix)
            for m in BUDGETS:
                pac_bin, _ = PACGuarantee(m, None).threshold(federation, LEVEL, CONFIDENCE)
                pac_homogeneous = PACGuarantee(m, heterogeneity)
                pac_homogeneous_bin, _ = pac_homogeneous.threshold(federation, LEVEL, CONFIDENCE)
                bins = [
                    fcp_bin_index(federation, LEVEL),
                    marginal_threshold_bin(federation, LEVEL, m),
                    pac_bin,
                    pac_homogeneous_bin,
                ]
                yield [mix, str(n), str(m), *(test.outcome(bin_index) for bin_index in bins)]


def classes() -> Iterator[Sequence[str]]:
    """By class, 20 homogeneous clients, at most one malicious, none is: mean coverage, least and
    greatest of the ten classes, over 1000 runs. Scores are uniform: a threshold is its coverage."""
    method_names = [
        "one pool, rank of N + 1",
        "rank corrected",
        "and one client removed (the guarantee)",
    ]
    n_runs = 1000
    yield ["labels", "n per client", *method_names]
    for mix, n in product(("homogeneous", "dirichlet"), SIZES[:2]):
        rng = np.random.default_rng([n, 2])
        coverage_sums = np.zeros((len(method_names), CLASSES))
        for _ in range(n_runs):
            labels = draw_labels(rng, n, mix, 20)
            scores = rng.random(labels.shape)
            federation = build_federation(
                list(scores), BINNING, SCORE, labels=list(labels), n_classes=CLASSES
            )
            for c in range(CLASSES):
                coverage_sums[:, c] += _class_thresholds(federation.select_stratum(c))
        coverages = coverage_sums / n_runs
        yield [mix, str(n), *(f"{row.min():.4f} to {row.max():.4f}" for row in coverages)]


def _class_thresholds(stratum: Federation) -> list[float]:
    """Return the thresholds of one class by the rules of the table of classes."""
    bins = [
        table_bin(stratum, LEVEL),
        fcp_bin_index(stratum, LEVEL),
        marginal_threshold_bin(stratum, LEVEL, 1),
    ]
    return [1 if bin_index is None else BINNING.upper_edges[bin_index] for bin_index in bins]


def shift() -> Iterator[Sequence[str]]:
    """Coverage at 0.9 (lowest run) of 20 runs on CIFAR-10 and PathMNIST: of the benign clients'
    pool, and of the uniform label distribution for T; "trivial": sets hold all labels."""
    yield ["K, n, Dirichlet, m", "attack", "PC", "PAC without classes", "T"]
    attacks = ("none", "efficiency", "truncation", "pair-mimic", "class-capture")
    federations = ((20, 250, 0.3, 8), (100, 50, 0.3, 20))
    for (n_clients, n, beta, m), attack in product(federations, attacks):
        guarantees = (
            LabelShiftGuarantee(m),
            PACGuarantee(m),
            LabelShiftGuarantee(m, label_distribution="uniform"),
        )
        config = ScenarioConfig(n_clients=n_clients, beta=beta, malicious_fraction=m / n_clients)
        runs = []
        for dataset, seed in product(("cifar10", "pathmnist"), range(10)):
            rng = np.random.default_rng([seed, 3])
            data = load_outputs(dataset)
            rows = rng.permutation(len(data.labels))[: 2 * n_clients * n]
            scenario = make_scenario(data.probabilities[rows], data.labels[rows], config, rng)
            federation = scenario.federation
            if attack != "none":
                federation = apply_attack(ATTACKS[attack], scenario, rng)
            runs.append(
                [_covered_fraction(scenario, federation, guarantee) for guarantee in guarantees]
            )
        cells = [_runs_text(coverages) for coverages in np.array(runs).T]
        yield [f"{n_clients}, {n}, {beta}, {m}", attack, *cells]


def _covered_fraction(
    scenario: Scenario, federation: Federation, guarantee: PACGuarantee | LabelShiftGuarantee
) -> float:
    """Return coverage on the benign clients' test samples; NaN where sets hold every label.

    It is that of the uniform label distribution where the guarantee is for that.
    """
    threshold = calibrate(federation, coverage=0.9, defense="none", guarantee=guarantee).threshold
    if not np.isfinite(threshold) or threshold >= 1:
        return np.nan
    is_covered = scenario.measured(threshold).is_covered
    labels = scenario.test_labels
    if getattr(guarantee, "label_distribution", None) is None:
        return float(is_covered.mean())
    class_coverages = [is_covered[labels == c].mean() for c in np.unique(labels)]
    return float(np.mean(class_coverages))


def _runs_text(coverages: NDArray[np.float64]) -> str:
    """Return mean and lowest coverage of some runs, and how many have trivial sets."""
    trivial_fraction = np.isnan(coverages).mean()
    if trivial_fraction == 1:
        return "trivial"
    text = f"{np.nanmean(coverages):.3f} ({np.nanmin(coverages):.3f})"
    if trivial_fraction > 0:
        text += f", {trivial_fraction:.0%} trivial"
    return text


def consensus_fcp_bin(federation: Federation) -> int | None:
    """Return the bin of FCP's threshold on the clients that the default defense keeps."""
    return fcp_bin_index(federation, LEVEL, Consensus().assess(federation).benign_mask)


def trusted_data() -> Iterator[Sequence[str]]:
    """Coverage at 0.9 of fresh samples under every attack, mean of 10 runs on CIFAR-10, 20 clients
    of 200 samples, default defense, with trusted samples; by class so many per class, and the class
    that is covered least."""
    numbers_trusted = (0, 29, 100)
    pooled_heads = [f"{n} trusted" for n in numbers_trusted]
    class_heads = [f"{n} per class" for n in numbers_trusted]
    yield ["malicious", "attack", *pooled_heads, *class_heads]
    for fraction, (name, attack) in product((0.4, 0.6, 0.9), ATTACKS.items()):
        if isinstance(attack, AdaptiveAttack):  # it knows the defense
            attack = replace(attack, defense_rule=consensus_fcp_bin, trials=10)
        runs = [_trusted_coverages(attack, fraction, seed, numbers_trusted) for seed in range(10)]
        worst_classes = np.mean(runs, axis=0).min(axis=1)
        yield [f"{fraction:.0%}", name, *(f"{coverage:.3f}" for coverage in worst_classes)]


def _trusted_coverages(
    attack: Attack, fraction: float, seed: int, numbers_trusted: Sequence[int]
) -> list[list[float]]:
    """Return the coverage of each class for each number of trusted samples, pooled and by class.

    Pooled, it is that of all classes together, ten times.
    """
    n_calibrating = 8000
    rng = np.random.default_rng([seed, 4])
    data = load_outputs("cifar10")
    order = rng.permutation(len(data.labels))
    rows = order[:n_calibrating]
    trusted_rows = order[n_calibrating:]
    config = ScenarioConfig(n_clients=20, malicious_fraction=fraction)
    scenario = make_scenario(data.probabilities[rows], data.labels[rows], config, rng)
    federation = apply_attack(attack, scenario, rng)

    labels = data.labels[trusted_rows]
    scores = SCORE(data.probabilities[trusted_rows], labels)
    by_number = []
    for by, n in product((None, "class"), numbers_trusted):
        by_number.append(_coverage_with_trusted(federation, scores, labels, n, by))
    return by_number


def _coverage_with_trusted(
    federation: Federation,
    scores: NDArray[np.float64],
    labels: NDArray[np.intp],
    n: int,
    by: Literal["class"] | None,
) -> list[float]:
    """Return the coverage of each class, or of all, on samples that are not the n trusted ones."""
    groups = [np.arange(len(labels))] * CLASSES
    if by == "class":
        groups = [np.flatnonzero(labels == c) for c in range(CLASSES)]
    trusted_report = None
    if n:
        trusted_rows = np.unique(np.concatenate([group[:n] for group in groups]))
        trusted_report = Report.from_scores(
            "server",
            scores[trusted_rows],
            federation.binning,
            score=SCORE,
            labels=labels[trusted_rows],
            classes=CLASSES,
        )
    calibration = calibrate(federation, coverage=0.9, by=by, trusted_report=trusted_report)
    thresholds = np.broadcast_to(calibration.threshold, CLASSES)
    is_covered = scores <= thresholds[labels]
    return [float(is_covered[group[n:]].mean()) for group in groups]


TABLES = {
    "widths": widths,
    "price": price,
    "classes": classes,
    "shift": shift,
    "trusted-data": trusted_data,
}


def main() -> None:
    """Print the table asked for in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=list(TABLES))
    build = TABLES[parser.parse_args().table]
    header, *rows = build()
    print(f"{build.__doc__}\n\n{markdown(header, rows)}")


if __name__ == "__main__":
    main()
