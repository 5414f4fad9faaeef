"""Natural partitions: data of real sites, each predicted by a model that never saw it.

What the sites get from every method, which malicious sites are detected, and how the models are
trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import FloatArray, IndexArray
from robfcp.calibration import calibrate
from robfcp.defense import Consensus
from robfcp.errors import RobfcpError
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import DATA_FAULTS
from robfcp.experiments.baselines import baseline_thresholds, shrunken_curve
from robfcp.experiments.datasets import SiteTable
from robfcp.experiments.scenarios import (
    Scenario,
    ScenarioConfig,
    TestMetrics,
    Thresholds,
    make_scenario,
)
from robfcp.experiments.simulation import ReceivedReports, simulate, summarize, thresholds_of
from robfcp.guarantees import local_lambda_range
from robfcp.reports import DEFAULT_MIN_CELL_COUNT, Report
from robfcp.scores import Risk

MIN_SIZE = 50  # samples of a site that takes part
NO_ATTACK = "none"
ATTACKS = (*DATA_FAULTS, "label-poisoning", "coverage", "efficiency", "gaussian", "mimic-low")
DEFENSES_COMPARED = ("rob-fcp", Consensus.name)
MAX_MALICIOUS_FRACTION = 0.1  # of the sites, as client feedback allows for
LOW_COVERAGE = 0.85
TITLES = {
    "pooled": "one threshold for all",
    "dealt": "the same, samples dealt at random",
    "class-conditional": "a threshold for each class",
    "local-clipped": "each site's feedback",
    "local-only": "each site's data alone",
}
METHODS = ("pooled", "class-conditional", "local-clipped", "local-only")
STRATIFY_BY: dict[str, Literal["class"] | None] = {"pooled": None, "class-conditional": "class"}
# The kinds of reports that tables compare, and their minimum cell counts.
REPORT_KINDS = {"default": DEFAULT_MIN_CELL_COUNT, "exact": 1}
MIN_PROBABILITY = 1e-6  # probability of a class that the training sites lack


@dataclass(frozen=True)
class NaturalFederation:
    """Shipped outputs and the column that names the site of each sample."""

    dataset: str
    column: str
    title: str

    def load(self) -> tuple[outputs.Outputs, NDArray[np.str_]]:
        """Return the outputs and the site of each sample, (n,)."""
        shipped = outputs.load(self.dataset, outputs.NATURAL)
        return shipped, shipped.column(self.column)


FEDERATIONS = (
    NaturalFederation("stroke", "site", "stroke trial, hospitals"),
    NaturalFederation("stroke", "country", "stroke trial, countries"),
    NaturalFederation("heart", "site", "heart disease, hospitals"),
    NaturalFederation("sleep", "site", "sleep staging, subjects"),
)


def attack_runs(
    federation: NaturalFederation,
    attacks: Sequence[str] = ATTACKS,
    malicious_fraction: float = 0.2,
    n_runs: int = 5,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each attack and kind of reports: what every defense makes of it.

    A row holds means over the runs: the errors of coverage, the malicious clients that were flagged
    and the false alarms. Defenses are not given the number of malicious clients. The kinds are
    those of `REPORT_KINDS`; errors are those against the exact counts of the benign clients.
    """
    shipped, sites = federation.load()
    for attack, (kind, min_cell_count) in product(attacks, REPORT_KINDS.items()):
        rows = simulate(
            shipped.probabilities,
            shipped.labels,
            attack=attack,
            defenses=("none", *DEFENSES_COMPARED),
            n_runs=n_runs,
            partition=sites,
            min_client_size=MIN_SIZE,
            n_malicious_known=False,
            malicious_fraction=malicious_fraction,
            min_cell_count=min_cell_count,
        )
        means = {record["defense"]: record for record in summarize(rows)}
        n_malicious = rows[0].n_malicious
        line: dict[str, Any] = {
            "federation": federation.title,
            "attack": attack if n_malicious else NO_ATTACK,
            "reports": kind,
            "n_malicious": n_malicious,
            "n_benign": rows[0].n_clients - n_malicious,
            "none_error": means["none"]["error"],
        }
        for defense in DEFENSES_COMPARED:
            mean = means[defense]
            line[f"{defense}_error"] = mean["error"]
            line[f"{defense}_n_detected"] = mean["n_detected"]
            line[f"{defense}_n_false_positives"] = mean["n_flagged"] - mean["n_detected"]
        yield {**line, "n_runs": n_runs}


def detection_table(n_runs: int = 5, n_benign_runs: int = 20) -> list[dict[str, Any]]:
    """Return the rows of all federations, of each first the one without malicious clients."""
    rows: list[dict[str, Any]] = []
    for federation in FEDERATIONS:
        rows.extend(attack_runs(federation, ("coverage",), 0.0, n_benign_runs))
        rows.extend(attack_runs(federation, n_runs=n_runs))
    return rows


def client_outcomes(
    probabilities: ArrayLike,
    labels: ArrayLike,
    sites: ArrayLike,
    *,
    methods: Sequence[str] = METHODS,
    n_runs: int = 20,
    min_size: int = MIN_SIZE,
    min_cell_count: int = DEFAULT_MIN_CELL_COUNT,
) -> dict[str, tuple[FloatArray, ...]]:
    """Measure every method at every site, means over random halvings of the sites' samples.

    Parameters
    ----------
    probabilities : array_like, shape (n, C)
        The class probabilities of a model.
    labels : array_like, shape (n,)
        The true labels.
    sites : array_like, shape (n,)
        The name of the site of each sample.
    methods : sequence of str
        "pooled" is one threshold for all, "class-conditional" one for each class, "local-clipped"
        what `ClientFeedback.calibrate_locally` gives the site while at most the fraction
        `MAX_MALICIOUS_FRACTION` of the sites (at least one) may be malicious, "local-only" the PAC
        threshold of the site alone. "class-conditional" and "local-clipped" are of reports by
        class, "pooled" is of default reports.
    n_runs : int
        The number of halvings into calibration and test samples, the same for all methods.
    min_size : int
        Sites with fewer samples take no part.
    min_cell_count : int
        The minimum cell count of all reports; 1 for exact counts.

    Returns
    -------
    dict
        Of each method the coverage (K,) and the mean set size (K,) at each site, and the coverage
        (C,) of each class.
    """
    config = ScenarioConfig(
        malicious_fraction=0.0,
        partition=sites,
        min_client_size=min_size,
        min_cell_count=min_cell_count,
    )
    metrics: dict[str, list[TestMetrics]] = {method: [] for method in methods}
    for seed in range(n_runs):
        rng = np.random.default_rng([0, seed])
        scenario = make_scenario(probabilities, labels, config, rng)
        for method in methods:
            thresholds = _thresholds_of_method(method, scenario, config)
            metrics[method].append(scenario.measured(thresholds))
    return {method: _mean_outcomes(runs) for method, runs in metrics.items()}


def _thresholds_of_method(method: str, scenario: Scenario, config: ScenarioConfig) -> Thresholds:
    """Return the thresholds that one of `METHODS` gives the clients."""
    reports = ReceivedReports(scenario.federation, config.min_cell_count)
    if method in STRATIFY_BY:
        by = STRATIFY_BY[method]
        calibration = calibrate(reports.of_defense(by), by=by, defense="none")
        return thresholds_of(calibration.levels[0])
    federation = reports.of_baseline(method)
    max_malicious = max(1, round(MAX_MALICIOUS_FRACTION * federation.n_clients))
    return baseline_thresholds(method, federation, config.coverage, scenario.scores, max_malicious)


def _mean_outcomes(runs: Sequence[TestMetrics]) -> tuple[FloatArray, ...]:
    """Return coverage (K,) and set size (K,) of sites and coverage (C,) of classes."""
    coverage = np.mean([metrics.client_means(metrics.is_covered) for metrics in runs], axis=0)
    set_size = np.mean([metrics.client_means(metrics.set_sizes) for metrics in runs], axis=0)
    class_coverage = np.mean([np.nan_to_num(metrics.class_coverage) for metrics in runs], axis=0)
    return coverage, set_size, class_coverage


def client_table(
    federation: NaturalFederation, n_runs: int = 20, kind: str = "default"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a row for each site and a row for each method, with reports of one of `REPORT_KINDS`.

    A site's row holds its samples, its accuracy, and coverage and set size under every method; a
    method's row how these are spread over the sites. `dealt` is `pooled` after samples were dealt
    to the sites at random.
    """
    shipped, sites = federation.load()
    probabilities = shipped.probabilities
    labels = shipped.labels
    min_cell_count = REPORT_KINDS[kind]
    outcomes = client_outcomes(
        probabilities, labels, sites, n_runs=n_runs, min_cell_count=min_cell_count
    )
    dealt_sites = np.random.default_rng(0).permutation(sites)
    dealt_outcomes = client_outcomes(
        probabilities,
        labels,
        dealt_sites,
        methods=("pooled",),
        n_runs=n_runs,
        min_cell_count=min_cell_count,
    )
    outcomes["dealt"] = dealt_outcomes["pooled"]

    is_correct = probabilities.argmax(axis=1) == labels
    site_rows: list[dict[str, Any]] = []
    for k, (site, samples) in enumerate(partitions.partition_by_site(sites, MIN_SIZE).items()):
        row: dict[str, Any] = {
            "federation": federation.title,
            "reports": kind,
            "site": site,
            "samples": len(samples),
            "accuracy": float(is_correct[samples].mean()),
        }
        for method, (coverage, set_size, _) in outcomes.items():
            row[method] = float(coverage[k])
            row[f"{method}, set size"] = float(set_size[k])
        site_rows.append(row)

    method_rows = [
        _method_row(federation, kind, method, site_rows, *outcomes[method]) for method in TITLES
    ]
    return site_rows, method_rows


def _method_row(
    federation: NaturalFederation,
    kind: str,
    method: str,
    site_rows: Sequence[dict[str, Any]],
    coverage: FloatArray,
    set_size: FloatArray,
    class_coverage: FloatArray,
) -> dict[str, Any]:
    """Return how a method's coverage is spread over the sites and classes."""
    weights = [row["samples"] for row in site_rows]
    return {
        "federation": federation.title,
        "reports": kind,
        "method": method,
        "overall": float(np.average(coverage, weights=weights)),
        "mean": float(coverage.mean()),
        "worst_client": site_rows[int(coverage.argmin())]["site"],
        "worst": float(coverage.min()),
        "tenth": float(np.quantile(coverage, 0.1)),
        "best": float(coverage.max()),
        "low": float((coverage < LOW_COVERAGE).mean()),
        "worst_class": float(class_coverage.min()),
        "set_size": float(np.average(set_size, weights=weights)),
    }


LAMBDAS = np.linspace(0, 1, 201)
COSTS = np.array([1.0, 1.0, 0.5, 0.5])  # of missing dead, dependent, not recovered, recovered
SAMPLES_PER_PATIENT = 4  # samples of one sleeper that make a patient with several labels
RISK_METHODS = (
    "pooled",
    "crc-shrinkage",
    "local-crc",
    "local-only",
    Consensus.name,
    "local-clipped",
)
RISK_SCENARIOS = {  # federation, smallest and largest number of samples of a site
    "stroke": (FEDERATIONS[0], 50, 10**9),
    "small hospitals": (FEDERATIONS[0], 10, 49),
    "several labels": (FEDERATIONS[3], 50, 10**9),
}


def client_losses(scenario: str) -> tuple[NDArray[Any], NDArray[Any], list[IndexArray]]:
    """Return losses (n, L) and set sizes (n, L) at every lambda, and the rows of each site.

    The loss of a stroke patient is the cost of a missed outcome. Of the sleepers every
    `SAMPLES_PER_PATIENT` epochs are one patient, whose labels are all their stages; a stage has
    the probability that at least one epoch is of it, and the loss is the fraction of the labels
    missed.
    """
    federation, min_size, max_size = RISK_SCENARIOS[scenario]
    shipped, sites = federation.load()
    has_several_labels = scenario == "several labels"
    samples_per_patient = SAMPLES_PER_PATIENT if has_several_labels else 1

    # The samples of each patient, (n, samples_per_patient), and the patients of each site.
    patients_of_sites = []
    for samples in partitions.partition_by_site(sites, min_size).values():
        if len(samples) > max_size:
            continue
        n_patients = len(samples) // samples_per_patient
        used_samples = samples[: n_patients * samples_per_patient]
        patients_of_sites.append(used_samples.reshape(-1, samples_per_patient))
    patients = np.concatenate(patients_of_sites)
    sizes = [len(site_patients) for site_patients in patients_of_sites]
    site_rows = np.split(np.arange(len(patients)), np.cumsum(sizes)[:-1])

    sample_probabilities = np.asarray(shipped.probabilities, np.float64)[patients]
    probabilities = 1 - np.prod(1 - sample_probabilities, axis=1)
    n_classes = probabilities.shape[1]
    is_label = np.eye(n_classes, dtype=bool)[shipped.labels[patients]].any(axis=1)
    costs = 1 if has_several_labels else COSTS
    label_losses = is_label * costs / is_label.sum(axis=1, keepdims=True)

    is_missed = (1 - probabilities)[:, :, None] > LAMBDAS
    losses = (is_missed * label_losses[:, :, None]).sum(axis=1)
    set_sizes = (~is_missed).sum(axis=1)
    return losses, set_sizes, site_rows


def client_risks(
    scenario: str, malicious_fraction: float = 0.0, risk: float = 0.1, n_runs: int = 5
) -> list[dict[str, Any]]:
    """Return a row for each of `RISK_METHODS`: mean losses on the benign sites' test halves.

    A row holds the mean loss over the sites, the worst site's, the fraction of sites above `risk`
    and the mean set size, while `malicious_fraction` of the sites report no loss at all. Means
    over random halvings are taken at each site first.
    """
    losses, set_sizes, site_rows = client_losses(scenario)
    site_index = np.arange(len(site_rows))
    n_malicious = round(malicious_fraction * len(site_rows))
    malicious_sites = np.random.default_rng(0).permutation(site_index)[:n_malicious]
    is_malicious = np.isin(site_index, malicious_sites)
    largest_set = set_sizes.max()

    # Of every run (benign sites, 2): loss and set size at the lambda of the site.
    outcomes: dict[str, list[FloatArray]] = {method: [] for method in RISK_METHODS}
    for seed in range(n_runs):
        rng = np.random.default_rng([0, seed])
        halves = [np.array_split(rng.permutation(rows), 2) for rows in site_rows]
        reported_losses = []
        test_curves = []
        for k, (calibration_rows, test_rows) in enumerate(halves):
            reported_losses.append(losses[calibration_rows] * (not is_malicious[k]))
            # Beyond the last lambda there is no loss and every label is in the set.
            loss_curve = np.append(losses[test_rows].mean(axis=0), 0.0)
            size_curve = np.append(set_sizes[test_rows].mean(axis=0), largest_set)
            test_curves.append([loss_curve, size_curve])
        curves = np.array(test_curves)  # (K, 2, L + 1)

        for method, site_lambda in _lambdas_of_methods(reported_losses, risk).items():
            lambdas = np.broadcast_to(site_lambda, len(site_rows))
            lambda_index = np.searchsorted(LAMBDAS, lambdas - 1e-12)
            site_outcomes = curves[site_index, :, lambda_index]
            outcomes[method].append(site_outcomes[~is_malicious])

    rows = []
    for method in RISK_METHODS:
        mean_losses, mean_sizes = np.mean(outcomes[method], axis=0).T
        measures = {
            "loss": mean_losses.mean(),
            "worst_client": mean_losses.max(),
            "above": (mean_losses > risk).mean(),
            "set_size": mean_sizes.mean(),
        }
        rounded = {name: round(float(value), 3) for name, value in measures.items()}
        rows.append(
            {"federation": scenario, "n_malicious": n_malicious, "method": method, **rounded}
        )
    return rows


def _lambdas_of_methods(
    reported_losses: Sequence[FloatArray], risk: float
) -> dict[str, float | FloatArray]:
    """Return the lambda of every method of `RISK_METHODS`, one for all sites or (K,).

    "local-crc" is conformal risk control on the site's half alone, "local-only" the lambda that is
    certified by that half with 97.5% confidence, "local-clipped" the lambda of the default defense,
    clipped to what the site's losses allow.
    """
    score = Risk("loss")
    reports = [
        Report.from_losses(f"{k:03d}", losses, LAMBDAS, risk=score)
        for k, losses in enumerate(reported_losses)
    ]
    undefended = calibrate(reports, risk_level=risk, defense="none").levels[0].threshold
    defended = calibrate(reports, risk_level=risk, defense=Consensus.name).levels[0].threshold

    level = score.coverage_level(risk)
    upper_edges = reports[0].binning.upper_edges
    ranges = [
        local_lambda_range(report.counts, report.n_samples, score.resolution, level, upper_edges)
        for report in reports
    ]
    low = np.array([lambda_range.lower for lambda_range in ranges])
    high = np.array([lambda_range.upper for lambda_range in ranges])

    sizes = np.array([len(losses) for losses in reported_losses])
    curves = np.array([losses.mean(axis=0) for losses in reported_losses])
    return {
        "pooled": undefended,
        "crc-shrinkage": shrunken_curve(curves, sizes, risk, LAMBDAS)[:, 0],
        "local-crc": shrunken_curve(curves, sizes, risk, LAMBDAS, prior=0)[:, 0],
        "local-only": high,
        Consensus.name: defended,
        "local-clipped": np.maximum(low, np.minimum(defended, high)),
    }


def risk_table() -> list[dict[str, Any]]:
    """Return the rows of all scenarios without malicious sites and with a fifth of them."""
    rows = []
    for scenario in RISK_SCENARIOS:
        for malicious_fraction in (0.0, 0.2):
            rows.extend(client_risks(scenario, malicious_fraction))
    return rows


@dataclass(frozen=True)
class LeaveOutSettings:
    """How gradient-boosted trees are trained on some sites to predict the others.

    Parameters
    ----------
    folds : int
        The number of groups of whole sites, each predicted by a model of the others.
    iterations, learning_rate, leaves, min_samples
        The number of trees, their rate, and of a tree the leaves and the fewest samples of a leaf.
    per_site : int, optional
        At most so many samples of a site, drawn at random.
    seed : int
        The seed of all randomness.
    """

    folds: int = 10
    iterations: int = 100
    learning_rate: float = 0.06
    leaves: int = 15
    min_samples: int = 40
    per_site: int | None = None
    seed: int = 0


LEAVE_OUT = {  # what each shipped model was trained with
    "stroke": LeaveOutSettings(),
    "heart": LeaveOutSettings(iterations=60, learning_rate=0.1, leaves=6, min_samples=20),
    "sleep": LeaveOutSettings(iterations=120, per_site=400),
}


def leave_one_site_out(
    data: SiteTable,
    settings: LeaveOutSettings,
    advance: Callable[[], None] = lambda: None,
) -> tuple[SiteTable, FloatArray, str]:
    """Predict every site by a model that was trained on other sites.

    With as many folds as sites this is leave-one-site-out.

    Parameters
    ----------
    data : SiteTable
        Samples, labels and sites.
    settings : LeaveOutSettings
        The models and the folds.
    advance : callable
        Called after every fold, for a progress bar.

    Returns
    -------
    table : SiteTable
        The samples that were predicted.
    logits : ndarray of float, shape (n, C)
        The logarithms of their class probabilities.
    library : str
        The name and version of what trained the models.
    """
    try:
        import sklearn
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.model_selection import GroupKFold
    except ImportError as error:
        raise RobfcpError("leave-sites-out: install the extra sklearn") from error

    table = data
    if settings.per_site is not None:
        table = _limit_site_sizes(data, settings.per_site, settings.seed)
    n_sites = len(np.unique(table.sites))
    if n_sites < 2:
        raise RobfcpError(f"{data.name}: {n_sites} site leaves none to learn from; give two")

    features = table.x.reshape(len(table), -1)
    probabilities = np.full((len(table), len(table.classes)), MIN_PROBABILITY)
    folds = GroupKFold(min(settings.folds, n_sites))
    for training_rows, predicted_rows in folds.split(features, table.y, table.sites):
        training_classes = np.unique(table.y[training_rows])
        if len(training_classes) == 1:
            probabilities[predicted_rows, training_classes[0]] = 1.0
            advance()
            continue
        model = HistGradientBoostingClassifier(
            max_iter=settings.iterations,
            learning_rate=settings.learning_rate,
            max_leaf_nodes=settings.leaves,
            min_samples_leaf=settings.min_samples,
            early_stopping=False,
            random_state=settings.seed,
        )
        model.fit(features[training_rows], table.y[training_rows])
        cells = np.ix_(predicted_rows, training_classes)
        probabilities[cells] = model.predict_proba(features[predicted_rows])
        advance()
    logits = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return table, logits, f"scikit-learn {sklearn.__version__}"


def _limit_site_sizes(data: SiteTable, max_size: int, seed: int) -> SiteTable:
    """Draw at most `max_size` samples of every site; they stay in the order of the table."""
    order = np.random.default_rng(seed).permutation(len(data))
    site_index = np.unique(data.sites, return_inverse=True)[1]

    # Site by site, the samples of each in random order.
    by_site = order[np.argsort(site_index[order], kind="stable")]
    sizes = np.bincount(site_index)
    starts = np.cumsum(sizes) - sizes
    index_in_site = np.arange(len(data)) - np.repeat(starts, sizes)
    return data.take(np.sort(by_site[index_in_site < max_size]))
