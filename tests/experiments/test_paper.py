"""The paper's experiments: closed forms hold, numbers equal the library's, runs resume."""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from math import log, sqrt
from pathlib import Path

import numpy as np
import pytest
from makers import command_output
from scipy.stats import norm

import robfcp
from robfcp import LAC, Binning, RobfcpError
from robfcp.defense import Consensus, RobFCP
from robfcp.experiments import outputs, paper
from robfcp.experiments.coarsening import as_default_reports
from robfcp.experiments.paper import paper_tables, result_rows, runner
from robfcp.experiments.paper import theorem_1 as theorems
from robfcp.experiments.paper.paper_tables import COMPARED, DETECTORS, EXPERIMENTS, ExperimentCase
from robfcp.experiments.paper.ranks import rank_n_plus_1, table_bin
from robfcp.experiments.paper.runner import (
    CONSENSUS,
    FCP,
    LEVEL,
    ROB_FCP,
    PaperScenario,
    Run,
    make_trial,
    run_cases,
)
from robfcp.experiments.paper.theorem_1 import TheoremSetting, theorem_1
from robfcp.experiments.paper.theorem_2 import theorem_2
from robfcp.federation import Federation

SMALL = PaperScenario("mnist", "beta0.5", "early", 0.5)
GOOD = PaperScenario("mnist", "iid")


def test_every_published_number_ships_and_every_table_has_all_methods_in_every_setting():
    settings = [
        methods
        for table in paper_tables.read_published_results().values()
        for methods in table.values()
    ]
    figures, published = [figure for methods in settings for figure in methods.values()], []
    assert (len(figures), figures[0]) == (578, (0.805, 1.284))
    for name, (_, make) in EXPERIMENTS.items():
        settings = {}
        for case in make():
            key = (
                case.scenario,
                case.run.attack,
                case.run.malicious_fraction,
                case.run.fraction_given,
                case.variant,
            )
            settings.setdefault(key, set()).add(case.run.method)
            if case.scenario.stage == "final" and case.published:
                published.append(case.published)
        needed = DETECTORS if name == "estimated-number" else COMPARED
        assert all(methods >= set(needed) for methods in settings.values()), name
    assert sorted(published) == sorted(figures)


def test_seeds_of_scenarios_are_frozen():
    """They were the first 8 bytes of SHA-256 of the scenario as text; results hang on them."""
    assert runner.scenario_key(SMALL) == [12, 55, 79, 8, 156, 37, 172, 6]
    scenario = PaperScenario(
        "tinyimagenet", "beta0.5", "final", 0.5, score="aps", has_all_granularities=True
    )
    assert runner.scenario_key(scenario) == [33, 64, 51, 209, 5, 221, 184, 72]


def test_coverage_and_size_are_those_of_the_prediction_sets():
    """Against the sets, with halves and malicious clients drawn as make_trial draws them."""
    trial, rng = make_trial(SMALL, 3), np.random.default_rng([3, *runner.scenario_key(SMALL)])
    shipped = outputs.load(SMALL.dataset, SMALL.split, SMALL.stage)
    label_scores = LAC().score_all_labels(shipped.probabilities, rng)
    halves = [np.array_split(rng.permutation(p), 2) for p in runner.split(SMALL, shipped, rng)]
    malicious = set(rng.permutation(len(halves))[:30])
    test = np.concatenate([half[1] for k, half in enumerate(halves) if k not in malicious])
    for bin_index in (200, 600, 950):
        sets = label_scores[test] <= trial.federation.binning.upper_edges[bin_index]
        is_covered = sets[np.arange(len(test)), shipped.labels[test]]
        expected = is_covered.mean(), sets.sum(1).mean()
        assert trial.measure(bin_index, trial.benign(30)) == pytest.approx(expected, abs=1e-12)
    assert trial.measure(None, trial.benign(30)) == (1.0, 10.0)


def test_the_default_is_run_as_calibrate_runs_it_and_by_class_on_reports_that_add_up():
    trial, noise = make_trial(SMALL, 2), [2, *b"coverage", 300, *runner.scenario_key(SMALL)]
    federation = trial.attacked("coverage", 30, noise)
    by_class = trial.attacked("coverage", 30, noise, by_class=True)
    assert np.array_equal(by_class.counts, federation.counts)
    for fraction_given, n_malicious in ((0.3, 30), (None, None)):
        defense = Consensus(n_malicious=n_malicious)
        benign_mask = robfcp.calibrate(federation, defense=defense).benign_mask
        bin_index, assessment = runner.consensus_threshold(
            n_malicious, federation, Consensus().find_outliers(federation)
        )
        threshold_rule = defense.assess(federation).threshold_rule(federation, rank_n_plus_1)
        assert threshold_rule.bin_index(LEVEL) == bin_index is not None
        assert np.array_equal(benign_mask, assessment.benign_mask)
        methods = [
            Run("coverage", 0.3, method, fraction_given)
            for method in (CONSENSUS, runner.BY_CLASS, ROB_FCP, runner.DEFAULT_REPORTS)
        ]
        outcome, stratified, rob_fcp, default = runner.run_seed(SMALL, methods, 2)
        assert (outcome.coverage, outcome.set_size) == trial.measure(bin_index, trial.benign(30))
        assert (outcome.assumed_n_malicious, outcome.n_flagged) == (
            assessment.n_malicious,
            int((~benign_mask).sum()),
        )
        assert abs(stratified.coverage - stratified.benign_coverage) < 0.05
        reports = as_default_reports(by_class)
        threshold_rule = defense.assess(reports).threshold_rule(reports, rank_n_plus_1)
        expected = trial.measure(threshold_rule.bin_index(LEVEL), trial.benign(30))
        assert (default.coverage, default.set_size) == expected
        assert default.benign_coverage == outcome.benign_coverage  # of exact counts
        assert abs(default.coverage - default.benign_coverage) < 0.05
        benign_scores = np.concatenate([trial.scores[k] for k in np.flatnonzero(trial.benign(30))])
        expected_fractions = (benign_scores <= 0.01).mean(), (benign_scores > 0.99).mean()
        assert (rob_fcp.first_bin, rob_fcp.last_bin) == pytest.approx(expected_fractions)
        assert rob_fcp.malicious_maliciousness > rob_fcp.benign_maliciousness > 0


@pytest.mark.parametrize(("scenario", "fraction"), [(SMALL, 0.1), (SMALL, 0.4), (GOOD, 0.3)])
def test_undefended_fcp_follows_the_closed_form_in_coverage_attack_cells(scenario, fraction):
    """In [closed form, closed form + a bin's mass], up to standard errors of five seeds."""
    rows, run = [], Run("coverage", fraction, FCP, fraction)
    for seed in range(5):
        trial = make_trial(scenario, seed)
        n_malicious = round(trial.federation.n_clients * fraction)
        benign, attacked = trial.benign(n_malicious), trial.attacked("coverage", n_malicious, seed)
        bin_index = table_bin(attacked, LEVEL)
        expected = runner.expected_coverage(attacked.sample_sizes, benign, run)
        coverage, coverage_below = (trial.measure(bin_index - k, benign)[0] for k in (0, 1))
        n_cal, n_test = attacked.sample_sizes[benign].sum(), trial.tested[benign].sum()
        variance = expected * (1 - expected) * (1 / (n_cal + 2) + 1 / n_test)
        rows.append((expected - coverage, coverage_below - expected, variance))
    shortfall, excess, variance = np.mean(rows, axis=0)
    max_deviation = norm.ppf(1 - 0.01 / (2 * 3))  # Bonferroni, 1% for all cells together
    assert max(shortfall, excess, 0) / np.sqrt(variance / 5) < max_deviation


def test_an_attack_is_run_in_the_strength_that_follows_its_name():
    trial = make_trial(SMALL, 0)
    usual = trial.attacked("gaussian", 30, 1)
    assert np.array_equal(trial.attacked("gaussian:0.5", 30, 1).counts, usual.counts)
    mild = trial.attacked("gaussian:0.02", 30, 1)
    benign = trial.benign(30)
    assert np.array_equal(mild.counts[benign], usual.counts[benign])
    assert not np.array_equal(mild.counts, usual.counts)


def test_clients_differ_in_their_fraction_of_a_stage_or_are_filled_from_the_largest():
    shipped, rng = outputs.load("sleep"), np.random.default_rng(0)
    for attribute in ("wake", "REM"):
        scenario = PaperScenario("sleep", "iid", attribute=attribute)
        clients = runner.split(scenario, shipped, rng)
        stage = runner.STAGES.index(attribute)
        stage_fraction = np.array([(shipped.labels[rows] == stage).mean() for rows in clients])
        assert len(clients) == runner.n_clients_of(scenario) == 13
        assert stage_fraction[-4:].mean() > 1.5 * stage_fraction[:4].mean()
        assert all(len(np.unique(shipped.groups[rows])) == runner.SUBJECTS for rows in clients)
    shipped = outputs.load("cifar10", "beta0.5")
    clients = runner.split(PaperScenario("cifar10", "beta0.5", "final", 0.1), shipped, rng)
    assert min(len(rows) for rows in clients) >= runner.MIN_CLIENT_SAMPLES
    assert np.array_equal(np.sort(np.concatenate(clients)), np.arange(len(shipped.labels)))
    for bins in (2, 10, 100, 1000, 10000):  # of the granularity table
        assert runner.fine_binning().merged_bin_ends(Binning.uniform(bins)) is not None


def test_a_stopped_call_goes_on_where_it_was(tmp_path):
    totals, cases = [], [(case.scenario, case.run) for case in EXPERIMENTS["misspecified"][1]()]
    done = [
        run_cases(cases[:n], seeds=seeds, store=tmp_path, workers=1, start=totals.append)
        for n, seeds in ((4, 2), (4, 2), (6, 2), (4, 3))
    ]
    assert totals == [2, 0, 2, 3]  # seeds of one world, whatever is missing of it
    assert done[0] == done[1] == {key: done[2][key] for key in done[0]}
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace('"n_detected"', '"n_found"'))
    run_cases(cases[:4], seeds=3, store=tmp_path, workers=1, start=totals.append)
    assert totals[-1] == 3  # what another version wrote is run again


@pytest.mark.slow
def test_the_command_writes_tables_figures_and_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(result_rows, "BOUND_SCENARIOS", (("pathmnist", "coverage"),))
    monkeypatch.setattr(result_rows, "BOUND_FRACTIONS", (0.0, 0.1))
    target, page = tmp_path / "out", tmp_path / "docs" / "results.md"
    options = ("--n-runs", 2, "-o", target, "--page", page)
    arguments = ("experiments", "reproduce", "misspecified", "bounds", "runtime", *options)
    result = json.loads(command_output(*arguments, "--workers", 2, "--json"))
    assert [row["method"] for row in result["misspecified"]] == [*COMPARED] * 9
    for row in result["bounds"]:
        assert max(row["theorem_1_lower"], row["dkw_lower"]) < 0
        assert row["theorem_1_upper"] > 1
        assert row["certificate_lower"] <= row["consensus_coverage"] <= row["certificate_upper"]
    page.write_text(page.read_text() + paper.results_page.MANUAL_SECTION + "by hand\n")
    assert {path.suffix for path in page.with_suffix("").iterdir()} == {".csv", ".png"}
    first_csv = (page.parent / "results" / "misspecified.csv").read_bytes()
    command_output(*arguments, "--no-resume", "--workers", 1)  # what one process finds, two find
    assert (page.parent / "results" / "misspecified.csv").read_bytes() == first_csv
    assert page.read_text().endswith("by hand\n")


def test_wrong_requests_are_refused(tmp_path):
    sleep = PaperScenario("mnist", "iid", attribute="wake")
    for call, arguments, message in (
        (paper.reproduce, (["table-9"], tmp_path), "no such experiment"),
        (partial(paper.reproduce, n_runs=1), (["main"], tmp_path), "at least 2"),
        (paper.write_page, (tmp_path, tmp_path / "page.md"), "holds no results"),
        (runner.split, (sleep, outputs.load("mnist"), np.random.default_rng(0)), "no subjects"),
        (TheoremSetting, (50, 50, 10, 10, 10), "fewer malicious"),
        (theorem_2, (100, 20, 20, 1.0, 1.0), "initial guess"),
    ):
        with pytest.raises(RobfcpError, match=message):
            call(*arguments)


def test_the_page_in_the_docs_is_what_its_tables_give(tmp_path):
    docs, page = Path(__file__).parents[2] / "docs", tmp_path / "results.md"
    page.write_bytes((docs / "results.md").read_bytes())
    paper.write_page(docs / "results", page)
    for name in ("results.md", "results/losses-to-baselines.csv"):
        texts = ((folder / name).read_text() for folder in (tmp_path, docs))
        expected, written = (text.split("\n## Over all cells\n")[-1] for text in texts)
        assert expected == written  # above may stand a note by hand


def test_published_rob_fcp_fails_on_a_good_model_where_the_default_does_not():
    cases = [
        ExperimentCase(GOOD, Run("coverage", 0.4, method, 0.4), "known")
        for method in (ROB_FCP, CONSENSUS)
    ]
    pairs = [(case.scenario, case.run) for case in cases]
    rob_fcp, consensus = result_rows.make_rows(cases, run_cases(pairs, seeds=2, workers=1))
    assert rob_fcp["coverage"] < rob_fcp["benign_coverage"] - 0.15
    assert consensus["coverage"] == pytest.approx(consensus["benign_coverage"], abs=0.02)


# The paper's bounds as published, and two executable counter-examples to its theorems

THEOREM_SETTING = TheoremSetting(60, 40, 500, 20_000, 10, 0.9, 0.1, 0.3, 0.01)


def test_the_bounds_are_the_published_formulas():
    r, tau = 10 * norm.isf(0.1 / (2 * 10 * 60)) / (2 * sqrt(500)), 40 / 60
    assert theorems.normal_radius(THEOREM_SETTING) == pytest.approx(r)
    penalty = r * (1 + (20_000 / 500) * 2 / (1 - tau)) + 20_000 * 0.3 / (500 * (1 - tau))
    lower, upper = theorem_1(THEOREM_SETTING)
    assert lower == pytest.approx(0.9 - penalty - (0.01 * 500 + 1) / 560)
    assert upper == pytest.approx(0.9 + penalty + (0.01 * 500 + 1.01 * 60) / 560)
    dkw = 10 * sqrt(log(2 * 60 / 0.1) / 1000)
    assert theorems.dkw_radius(THEOREM_SETTING) == pytest.approx(dkw)
    difference = theorem_1(THEOREM_SETTING, theorems.dkw_radius)[0] - lower
    assert difference == pytest.approx((r - dkw) * (1 + 40 * 2 / (1 - tau)), rel=1e-9)
    homogeneous = replace(THEOREM_SETTING, sigma=0.0, sketch_error=0.0)
    code = theorems.released_code_bound(homogeneous)
    assert code[0] == pytest.approx(0.9 - r * (1 + 2 * tau / (1 - tau)) - 1 / 560)
    bound = theorem_2(100, 20, 50, trace=1e-6, distance=0.5, largest=3.0, smallest=2.0)
    first = (150 - 20 - 2) ** 2 / 30**2 * 1e-6 / 0.25
    assert bound == pytest.approx(1 - first - 2 * 180 * 1e-6 * 9 / (4 * 0.25))


def test_theorem_1_is_vacuous_at_every_realistic_size():
    for m, bins, n in product((10, 20, 30, 40), (10, 100), (50, 500, 5000, 25_000)):
        lower, upper = theorem_1(TheoremSetting(100 - m, m, n, m * n, bins))
        assert lower <= 0 < 1 <= upper
    small, large = (theorem_1(TheoremSetting(90, 10, n, 10 * n, 10)) for n in (240_000, 260_000))
    assert small[0] < 0 < large[0]


def test_theorem_1_is_false_when_attackers_expel_a_benign_minority():
    """40 benign from P0, 20 benign from P1, 40 tiny attackers copying P0, H = 10."""
    n, tiny, bins = 1_000_000, 10, 10
    low, high = np.zeros(bins), np.zeros(bins)
    low[:5], high[5:] = [0.2, 0.2, 0.2, 0.3005, 0.0995], 0.2
    rng = np.random.default_rng(0)
    benign = np.vstack([rng.multinomial(n, low, 40), rng.multinomial(n, high, 20)])
    malicious = np.tile((low * tiny).round().astype(int), (40, 1))
    federation = Federation.from_counts(np.vstack([benign, malicious]))

    theorem_setting = TheoremSetting(
        60, 40, n, 40 * tiny, bins, sigma=float(np.abs(low - high).sum())
    )
    bounds = theorem_1(theorem_setting)
    assert bounds[0] == pytest.approx(0.879, abs=5e-4)

    benign_mask = RobFCP(40, n_bins=bins).assess(federation).benign_mask
    index = table_bin(federation, LEVEL, benign_mask)
    coverage = (40 * low[: index + 1].sum() + 20 * high[: index + 1].sum()) / 60
    assert not benign_mask[40:60].any()
    assert coverage == pytest.approx(0.6, abs=0.001)


def test_theorem_2_is_false_under_a_decoy():
    """One far client: the estimator, given even the true covariance, sees only that one."""
    n_clients, n_malicious, bins, spread, guess = 20, 5, 10, 0.001, 10
    mean, far = np.full(bins, 1 / bins), np.eye(bins)
    centers = np.tile(mean, (n_clients, 1))
    centers[-n_malicious:] += 0.2 * (far[1] - mean)
    vectors = np.random.default_rng(1).normal(centers, spread)
    vectors[-1] = far[0]
    distance = float(np.linalg.norm(vectors[-n_malicious:] - mean, axis=1).min())
    assert theorem_2(n_clients, n_malicious, guess, bins * spread**2, distance) > 0.95
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    order = np.argsort(np.sort(distances, axis=1)[:, 1:guess].mean(axis=1), kind="stable")

    def criterion(z):
        center = vectors[order[:z]].mean(axis=0)
        log_density = -((vectors[order] - center) ** 2).sum(axis=1) / (2 * spread**2)
        return log_density[:z].mean() - log_density[z:].mean()

    assert set(order[-n_malicious:]) == set(range(n_clients - n_malicious, n_clients))
    assert max(range(guess, n_clients), key=criterion) == n_clients - 1  # all but the decoy
