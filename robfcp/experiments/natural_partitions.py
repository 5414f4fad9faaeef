"""Natural federations: models that never saw a site, what sites get, who is found when lying."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.calibration._calibrate import calibrate
from robfcp.defense import Consensus
from robfcp.errors import RobfcpError
from robfcp.experiments import outputs, partitions
from robfcp.experiments.attacks import DATA_FAULTS
from robfcp.experiments.baselines import baseline_thresholds, shrunken_curve
from robfcp.experiments.datasets import SiteTable
from robfcp.experiments.scenarios import ScenarioConfig, TestMetrics, make_scenario
from robfcp.experiments.simulation import simulate, summarize, thresholds_of
from robfcp.guarantees import local_lambda_range
from robfcp.reports import Report
from robfcp.scores import Risk

MIN_SIZE = 50
ATTACKS = (*DATA_FAULTS, "label-poisoning", "coverage", "efficiency", "gaussian", "mimic-low")
DEFENSES_COMPARED = ("rob-fcp", Consensus.name)
MAX_MALICIOUS_FRACTION = 0.1  # the share of the sites that letters allow to lie
LOW_COVERAGE = 0.85
TITLES = {
    "pooled": "one threshold for all",
    "dealt": "the same, samples dealt at random",
    "by class": "a threshold for each class",
    "letter": "each site's own letter",
    "own data": "each site's own data alone",
}
METHODS = ("pooled", "by class", "letter", "own data")
STRATIFY_BY: dict[str, Literal["class"] | None] = {"pooled": None, "by class": "class"}
MIN_PROBABILITY = 1e-6  # probability of a class that the training sites lack


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


def attack_runs(
    federation: NaturalFederation,
    attacks: Sequence[str] = ATTACKS,
    share: float = 0.2,
    seeds: int = 5,
) -> Iterator[dict[str, Any]]:
    """A row an attack, the number of liars estimated, all defences beside each other: error of
    coverage, liars found and honest sites flagged, means over the seeds."""
    given, sites = federation.load()
    told: dict[str, Any] = {"sites": sites, "min_size": MIN_SIZE, "liars": "estimate"}
    told |= {"share": share, "n_runs": seeds, "defenses": ("none", *DEFENSES_COMPARED)}
    for attack in attacks:
        rows = simulate(given.probabilities, given.labels, attack=attack, **told)
        liars, mean = rows[0].n_malicious, {one["defence"]: one for one in summarize(rows)}
        line: dict[str, Any] = {
            "federation": federation.title,
            "attack": attack if liars else "nobody lies",
            "liars": liars,
            "honest": rows[0].n_clients - liars,
            "none_error": mean["none"]["error"],
        }
        for defence in DEFENSES_COMPARED:
            one = mean[defence]
            line |= {f"{defence}_error": one["error"], f"{defence}_found": one["caught"]}
            line[f"{defence}_false_alarms"] = one["flagged"] - one["caught"]
        yield {**line, "seeds": seeds}


def detection_table(seeds: int = 5, quiet_seeds: int = 20) -> list[dict[str, Any]]:
    """The rows of all federations, in each first that nobody lies."""
    return [
        row
        for one in FEDERATIONS
        for row in (
            *attack_runs(one, ("coverage",), 0.0, quiet_seeds),
            *attack_runs(one, seeds=seeds),
        )
    ]


def client_outcomes(
    probabilities: ArrayLike,
    labels: ArrayLike,
    sites: ArrayLike,
    *,
    rules: Sequence[str] = METHODS,
    seeds: int = 20,
    min_size: int = MIN_SIZE,
) -> dict[str, tuple[NDArray[np.float64], ...]]:
    """Each rule's coverage (K,) and set size (K,) at every site, and coverage (C,) of each class:
    means over halvings of every site into calibration and test samples, the same for all rules.

    `pooled` is one threshold for all, `by class` one a class, `letter` what
    `ClientFeedback.calibrate_locally` gives the site while at most the share ALLOWED of the sites
    (one at least) may lie, `own data` its own PAC threshold.
    """
    setting = ScenarioConfig(share=0.0, sites=sites, min_size=min_size)
    found: dict[str, list[TestMetrics]] = {rule: [] for rule in rules}
    for seed in range(seeds):
        world = make_scenario(probabilities, labels, setting, np.random.default_rng([0, seed]))
        federation = world.federation
        for rule in rules:
            if rule in STRATIFY_BY:
                calibration = calibrate(federation, by=STRATIFY_BY[rule], defense="none")
                limits = thresholds_of(calibration.levels[0])
            else:
                liars = max(1, round(MAX_MALICIOUS_FRACTION * federation.n_clients))
                limits = baseline_thresholds(
                    rule, federation, setting.coverage, world.scores, liars
                )
            found[rule].append(world.measured(limits))
    return {
        rule: (
            np.mean([one.by_site(one.hits) for one in own], axis=0),
            np.mean([one.by_site(one.sizes) for one in own], axis=0),
            np.mean([np.nan_to_num(one.by_class) for one in own], axis=0),
        )
        for rule, own in found.items()
    }


def client_table(
    federation: NaturalFederation, seeds: int = 20
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row a site with its samples, accuracy, and coverage and set size under every rule; and a
    row a rule with how these are spread (`dealt`: samples dealt out to the sites at random)."""
    given, sites = federation.load()
    data = given.probabilities, given.labels
    found = client_outcomes(*data, sites, seeds=seeds)
    dealt = np.random.default_rng(0).permutation(sites)
    found["dealt"] = client_outcomes(*data, dealt, rules=("pooled",), seeds=seeds)["pooled"]
    right = given.probabilities.argmax(axis=1) == given.labels
    rows: list[dict[str, Any]] = []
    for k, (name, part) in enumerate(partitions.partition_by_site(sites, MIN_SIZE).items()):
        row = {"federation": federation.title, "site": name, "samples": len(part)}
        row["accuracy"] = float(right[part].mean())
        for rule, (covered, sizes, _) in found.items():
            row |= {rule: float(covered[k]), f"{rule}, set size": float(sizes[k])}
        rows.append(row)
    weights, rules = [row["samples"] for row in rows], []
    for rule, (values, sizes, classes) in ((rule, found[rule]) for rule in TITLES):
        rules.append(
            {
                "federation": federation.title,
                "rule": rule,
                "overall": float(np.average(values, weights=weights)),
                "mean": float(values.mean()),
                "worst_site": rows[int(values.argmin())]["site"],
                "worst": float(values.min()),
                "tenth": float(np.quantile(values, 0.1)),
                "best": float(values.max()),
                "low": float((values < LOW_COVERAGE).mean()),
                "worst_class": float(classes.min()),
                "set_size": float(np.average(sizes, weights=weights)),
            }
        )
    return rows, rules


LAMBDAS = np.linspace(0, 1, 201)
COSTS = np.array([1.0, 1.0, 0.5, 0.5])  # of missing dead, dependent, not recovered, recovered
SAMPLES_PER_PATIENT = 4  # samples of one sleeper that make a patient with several labels
RISK_RULES = ("pooled", "crc-shrinkage", "own crc", "own data", Consensus.name, "letter")
RISK_WORLDS = {  # federation, least and most samples of a site
    "stroke": (FEDERATIONS[0], 50, 10**9),
    "small hospitals": (FEDERATIONS[0], 10, 49),
    "several labels": (FEDERATIONS[3], 50, 10**9),
}


def client_losses(world: str) -> tuple[NDArray[Any], NDArray[Any], list[NDArray[np.intp]]]:
    """(n, L) losses and set sizes at every lambda, and the rows of each site.

    A stroke patient's loss is the cost of a missed outcome. Of the sleepers TOGETHER epochs are one
    patient, whose labels are all stages among them, each with the chance that it is; the loss is
    the share of the labels missed.
    """
    federation, least, most = RISK_WORLDS[world]
    given, sites = federation.load()
    together = SAMPLES_PER_PATIENT if world == "several labels" else 1
    parts = [
        part for part in partitions.partition_by_site(sites, least).values() if len(part) <= most
    ]
    sizes = [len(part) // together for part in parts]
    owned = [part[: n * together] for part, n in zip(parts, sizes, strict=True)]
    groups = np.concatenate(owned).reshape(-1, together)
    p = 1 - np.prod(1 - np.asarray(given.probabilities, np.float64)[groups], axis=1)
    truth = np.eye(p.shape[1], dtype=bool)[given.labels[groups]].any(axis=1)
    share = truth * (COSTS if together == 1 else 1) / truth.sum(axis=1, keepdims=True)
    missed = (1 - p)[:, :, None] > LAMBDAS
    rows = np.split(np.arange(len(p)), np.cumsum(sizes)[:-1])
    return (missed * share[:, :, None]).sum(axis=1), (~missed).sum(axis=1), rows


def client_risks(
    world: str, part: float = 0.0, risk: float = 0.1, seeds: int = 5
) -> list[dict[str, Any]]:
    """A row a rule of RISK_RULES: mean loss over the honest sites' test halves, the worst site's,
    the share of sites above `risk`, and set size, while `part` of the sites report no loss at all.

    Means over random halvings are taken at each site first. "own crc" is conformal risk control on
    the site's half alone, "own data" what that half proves with 97.5% confidence, "letter" the
    federation's lambda, by the default defence, held between what the site's own losses allow.
    """
    loss, size, owners = client_losses(world)
    sites, kind = np.arange(len(owners)), Risk("loss")
    lie = np.isin(sites, np.random.default_rng(0).permutation(sites)[: round(part * len(sites))])
    kept: dict[str, list[NDArray[np.float64]]] = {rule: [] for rule in RISK_RULES}
    for seed in range(seeds):
        rng = np.random.default_rng([0, seed])
        halves = [np.array_split(rng.permutation(rows), 2) for rows in owners]
        n = np.array([len(own) for own, _ in halves])
        told = [loss[own] * (not lie[k]) for k, (own, _) in enumerate(halves)]
        reports = [
            Report.from_losses(f"{k:03d}", one, LAMBDAS, risk=kind) for k, one in enumerate(told)
        ]
        level, upper = kind.coverage_level(risk), reports[0].grid.upper_edges
        own = [
            local_lambda_range(x.counts, x.n_samples, kind.resolution, level, upper)
            for x in reports
        ]
        low, high = (np.array([getattr(one, end) for one in own]) for end in ("low", "high"))
        pooled, ours = (
            calibrate(reports, risk_level=risk, defense=name).levels[0].threshold
            for name in ("none", Consensus.name)
        )
        curves = np.array([one.mean(axis=0) for one in told])
        by_rule = (
            pooled,
            shrunken_curve(curves, n, risk, LAMBDAS)[:, 0],
            shrunken_curve(curves, n, risk, LAMBDAS, prior=0)[:, 0],
            high,
            ours,
            np.maximum(low, np.minimum(ours, high)),
        )
        full = np.array([[0.0], [size.max()]])  # beyond the last lambda
        tests = [[loss[test].mean(axis=0), size[test].mean(axis=0)] for _, test in halves]
        table = np.array([np.hstack([one, full]) for one in tests])  # (K, 2, L + 1)
        for rule, limit in zip(RISK_RULES, by_rule, strict=True):
            place = np.searchsorted(LAMBDAS, np.broadcast_to(limit, len(sites)) - 1e-12)
            kept[rule].append(table[sites, :, place][~lie])
    rows = []
    for rule in RISK_RULES:
        mean, sets = np.mean(kept[rule], axis=0).T
        numbers = {"loss": mean.mean(), "worst_site": mean.max(), "above": (mean > risk).mean()}
        numbers["set_size"] = sets.mean()
        rounded = {name: round(float(value), 3) for name, value in numbers.items()}
        rows.append({"federation": world, "liars": int(lie.sum()), "rule": rule, **rounded})
    return rows


def risk_table() -> list[dict[str, Any]]:
    """The rows of all worlds, while nobody lies and while a fifth of the sites do."""
    return [row for one in RISK_WORLDS for part in (0.0, 0.2) for row in client_risks(one, part)]


@dataclass(frozen=True)
class LeaveOutSettings:
    """Gradient-boosted trees; `folds` groups of whole sites, each predicted by a model of the
    others; at most `per_site` samples a site, drawn at random."""

    folds: int = 10
    iterations: int = 100
    learning_rate: float = 0.06
    leaves: int = 15
    least: int = 40
    per_site: int | None = None
    seed: int = 0


LEAVE_OUT = {  # what each shipped model was trained with
    "stroke": LeaveOutSettings(),
    "heart": LeaveOutSettings(iterations=60, learning_rate=0.1, leaves=6, least=20),
    "sleep": LeaveOutSettings(iterations=120, per_site=400),
}


def leave_one_site_out(
    data: SiteTable,
    settings: LeaveOutSettings,
    advance: Callable[[], None] = lambda: None,
) -> tuple[SiteTable, NDArray[np.float64], str]:
    """Logits log p from `folds` models, no site in both the training and the predicted part.

    With as many folds as sites this is leave-one-site-out.
    """
    try:
        import sklearn
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.model_selection import GroupKFold
    except ImportError as error:
        raise RobfcpError("leave-sites-out: install the extra sklearn") from error
    rng = np.random.default_rng(settings.seed)
    table = data
    if settings.per_site is not None:  # at most so many of every site, in the order of the table
        order, (_, which) = rng.permutation(len(data)), np.unique(data.sites, return_inverse=True)
        ranked, sizes = order[np.argsort(which[order], kind="stable")], np.bincount(which)
        place = np.arange(len(data)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        table = data.take(np.sort(ranked[place < settings.per_site]))
    n_sites = len(np.unique(table.sites))
    if n_sites < 2:
        raise RobfcpError(f"{data.name}: {n_sites} site leaves none to learn from; give two")
    x = table.x.reshape(len(table), -1)
    probabilities = np.full((len(table), len(table.classes)), MIN_PROBABILITY)
    folds = GroupKFold(min(settings.folds, n_sites))
    for learnt, predicted in folds.split(x, table.y, table.sites):
        seen = np.unique(table.y[learnt])
        if len(seen) == 1:
            probabilities[predicted, seen[0]] = 1.0
            advance()
            continue
        model = HistGradientBoostingClassifier(
            max_iter=settings.iterations,
            learning_rate=settings.learning_rate,
            max_leaf_nodes=settings.leaves,
            min_samples_leaf=settings.least,
            early_stopping=False,
            random_state=settings.seed,
        ).fit(x[learnt], table.y[learnt])
        probabilities[np.ix_(predicted, seen)] = model.predict_proba(x[predicted])
        advance()
    logits = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return table, logits, f"scikit-learn {sklearn.__version__}"
