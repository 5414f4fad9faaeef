"""Rounds of default reports, and of clients that report in different ways."""

from fractions import Fraction

import numpy as np
import pytest
from effort import cases

import robfcp
from robfcp.experiments import outputs
from robfcp.federation import Federation
from robfcp.guarantees import fcp_bin_index

BINNING = robfcp.Binning.default()
LAC = robfcp.LAC()
LEVEL = Fraction(9, 10)
N_CLIENTS = 20

REPORT_KINDS = {
    "exact by class": {"min_cell_count": 1},
    "default": {"min_cell_count": 5},
    "by class": {"min_cell_count": 5, "stratify_by_class": True},
    "no labels": {"min_cell_count": 5, "stratify_by_class": False},
}


def clients(seed, n_samples, n_malicious):
    """Scores and labels; the malicious clients come first and report zeros."""
    rng = np.random.default_rng(seed)
    name = ("pathmnist", "sleep", "stroke")[seed % 3]
    shipped = outputs.load(name)
    n_classes = shipped.probabilities.shape[1]
    samples = []
    for k in range(N_CLIENTS):
        mix = rng.dirichlet(np.full(n_classes, 3.0))
        weights = (mix / np.bincount(shipped.labels, minlength=n_classes))[shipped.labels]
        rows = rng.choice(len(shipped.labels), n_samples, p=weights / weights.sum())
        scores = LAC(shipped.probabilities[rows], shipped.labels[rows])
        samples.append((np.zeros(n_samples) if k < n_malicious else scores, shipped.labels[rows]))
    return samples, n_classes


def round_of(samples, n_classes, kind_of_client):
    """The federation of clients that report in these ways."""
    return Federation.from_reports(
        robfcp.Report.from_scores(
            f"s{k:02d}",
            scores,
            BINNING,
            score=LAC,
            labels=labels,
            classes=n_classes,
            **REPORT_KINDS[kind],
        )
        for k, ((scores, labels), kind) in enumerate(zip(samples, kind_of_client, strict=True))
    )


@pytest.mark.effort
@pytest.mark.filterwarnings("ignore:.*are rough")
@pytest.mark.parametrize("rarer", REPORT_KINDS)
@pytest.mark.parametrize("commoner", ["exact by class", "default"])
def test_no_benign_client_is_excluded_for_the_rarer_kind_of_report(commoner, rarer):
    n_excluded = 0
    for seed in range(cases(9)):
        samples, n_classes = clients(seed, (60, 100, 300)[seed % 3], 0)
        kind_of_client = [rarer] * 4 + [commoner] * (N_CLIENTS - 4)
        federation = round_of(samples, n_classes, kind_of_client)
        n_excluded += (~robfcp.Consensus().assess(federation).benign_mask).sum()
    assert n_excluded <= 0.005 * cases(9) * N_CLIENTS


@pytest.mark.effort
@pytest.mark.parametrize("benign_kind", ["exact by class", "default"])
def test_malicious_clients_gain_nothing_by_another_kind_of_report(benign_kind):
    """Whether they send coarsened counts among exact ones or exact ones among coarsened ones."""
    changes = []
    for seed in range(cases(9)):
        samples, n_classes = clients(seed, (60, 100, 300)[seed % 3], 6)
        exact = round_of(samples, n_classes, ["exact by class"] * N_CLIENTS)
        benign = np.arange(N_CLIENTS) >= 6
        cdf = np.cumsum(exact.pooled_counts(benign)) / exact.sample_sizes[benign].sum()
        coverages = []
        for malicious_kind in ("exact by class", "default"):
            federation = round_of(
                samples, n_classes, [malicious_kind] * 6 + [benign_kind] * (N_CLIENTS - 6)
            )
            assessment = robfcp.Consensus().assess(federation)
            assert not assessment.benign_mask[:6].any()
            coverages.append(cdf[assessment.threshold_rule(federation).bin_index(LEVEL)])
        changes.append(coverages[1] - coverages[0])
    assert abs(np.mean(changes)) < 0.002


@pytest.mark.effort
@pytest.mark.parametrize("n_samples", [60, 100, 300])
def test_default_reports_cover_and_size_sets_as_exact_counts_do(n_samples):
    """Without a guarantee and malicious clients: coverage within .01, sets within 3% on average."""
    differences, ratios = [], []
    for seed in range(cases(12)):
        samples, n_classes = clients(seed, n_samples, 0)
        shipped = outputs.load(("pathmnist", "sleep", "stroke")[seed % 3])
        exact, default = (
            round_of(samples, n_classes, [kind] * N_CLIENTS)
            for kind in ("exact by class", "default")
        )
        cdf = np.cumsum(exact.pooled_counts()) / exact.n_samples
        bins = [fcp_bin_index(federation, LEVEL) for federation in (exact, default)]
        differences.append(cdf[bins[1]] - cdf[bins[0]])
        scores = LAC.score_all_labels(shipped.probabilities, 0)
        sizes = [(scores <= BINNING.upper_edges[index]).sum(axis=1).mean() for index in bins]
        ratios.append(sizes[1] / sizes[0])
    assert np.abs(differences).mean() < 0.01
    assert abs(np.mean(ratios) - 1) < 0.03
