"""The paper's experiments: closed forms hold, numbers equal the library's, runs resume."""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from math import log, sqrt
from pathlib import Path

import numpy as np
import pytest
from makers import said
from scipy.stats import norm

import robfcp
from robfcp import LAC, Binning, RobfcpError
from robfcp.defense import Consensus, RobFCP
from robfcp.experiments import outputs, paper
from robfcp.experiments.coarsening import as_default_reports
from robfcp.experiments.paper import configs, runner, tables, theorems
from robfcp.experiments.paper.configs import COMPARED, DETECTORS, EXPERIMENTS, ExperimentCase
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
from robfcp.experiments.paper.theorems import (
    TheoremSetting,
    rank_n_plus_1,
    table_bin,
    theorem_1,
    theorem_2,
)
from robfcp.federation import Federation

SMALL = PaperScenario("mnist", "beta0.5", "early", 0.5)
GOOD = PaperScenario("mnist", "iid")


def test_every_published_number_ships_and_every_table_has_all_methods_in_every_setting():
    settings = [
        methods for table in configs.read_published_results().values() for methods in table.values()
    ]
    figures, beside = [figure for methods in settings for figure in methods.values()], []
    assert (len(figures), figures[0]) == (578, (0.805, 1.284))
    for name, (_, make) in EXPERIMENTS.items():
        settings = {}
        for case in make():
            key = (case.world, case.run.attack, case.run.ratio, case.run.told, case.variant)
            settings.setdefault(key, set()).add(case.run.method)
            if case.world.stage == "final" and case.published:
                beside.append(case.published)
        needed = DETECTORS if name == "counting" else COMPARED
        assert all(found >= set(needed) for found in settings.values()), name
    assert sorted(beside) == sorted(figures)


def test_coverage_and_size_are_those_of_the_prediction_sets():
    """Against the sets themselves, with the halves and liars drawn as make_trial draws them."""
    trial, rng = make_trial(SMALL, 3), np.random.default_rng([3, *runner.world_key(SMALL)])
    given = outputs.load(SMALL.dataset, SMALL.split, SMALL.stage)
    every = LAC().score_all_labels(given.probabilities, rng)
    halves = [np.array_split(rng.permutation(p), 2) for p in runner.split(SMALL, given, rng)]
    liars = set(rng.permutation(len(halves))[:30])
    test = np.concatenate([half[1] for k, half in enumerate(halves) if k not in liars])
    for edge in (200, 600, 950):
        sets = every[test] <= trial.federation.binning.upper_edges[edge]
        hit = sets[np.arange(len(test)), given.labels[test]]
        expected = hit.mean(), sets.sum(1).mean()
        assert trial.measure(edge, trial.benign(30)) == pytest.approx(expected, abs=1e-12)
    assert trial.measure(None, trial.benign(30)) == (1.0, 10.0)


def test_the_default_is_run_as_calibrate_runs_it_and_by_class_on_reports_that_add_up():
    trial, noise = make_trial(SMALL, 2), [2, *b"coverage", 300, *runner.world_key(SMALL)]
    federation = trial.attacked("coverage", 30, noise)
    by_class = trial.attacked("coverage", 30, noise, by_class=True)
    assert np.array_equal(by_class.counts, federation.counts)
    for fraction_given, n_malicious in ((0.3, 30), (None, None)):
        defense = Consensus(exactly=n_malicious)
        kept = robfcp.calibrate(federation, defense=defense).benign_mask
        edge, found = runner.consensus_threshold(
            n_malicious, federation, Consensus().find_outliers(federation)
        )
        rule = defense.assess(federation).threshold_rule(federation, rank_n_plus_1)
        assert rule.bin_index(LEVEL) == edge is not None
        assert np.array_equal(kept, found.benign_mask)
        methods = [
            Run("coverage", 0.3, method, fraction_given)
            for method in (CONSENSUS, runner.BY_CLASS, ROB_FCP, runner.DEFAULT_REPORTS)
        ]
        outcome, split, text, default = runner.run_seed(SMALL, methods, 2)
        assert (outcome.coverage, outcome.set_size) == trial.measure(edge, trial.benign(30))
        assert (outcome.assumed, outcome.flagged) == (found.n_malicious, int((~kept).sum()))
        assert abs(split.coverage - split.honest_coverage) < 0.05
        reports = as_default_reports(by_class)
        rule = defense.assess(reports).threshold_rule(reports, rank_n_plus_1)
        expected = trial.measure(rule.bin_index(LEVEL), trial.benign(30))
        assert (default.coverage, default.set_size) == expected
        assert default.honest_coverage == outcome.honest_coverage  # of exact counts
        assert abs(default.coverage - default.honest_coverage) < 0.05
        honest = np.concatenate([trial.scores[k] for k in np.flatnonzero(trial.benign(30))])
        ends = (honest <= 0.01).mean(), (honest > 0.99).mean()
        assert (text.first_bin, text.last_bin) == pytest.approx(ends)
        assert text.liar_oddity > text.honest_oddity > 0


@pytest.mark.parametrize(("world", "ratio"), [(SMALL, 0.1), (SMALL, 0.4), (GOOD, 0.3)])
def test_undefended_fcp_follows_the_closed_form_in_coverage_attack_cells(world, ratio):
    """In [closed form, closed form + a bin's mass], up to standard errors of five seeds."""
    rows, run = [], Run("coverage", ratio, FCP, ratio)
    for seed in range(5):
        trial = make_trial(world, seed)
        number = round(trial.federation.n_clients * ratio)
        benign, attacked = trial.benign(number), trial.attacked("coverage", number, seed)
        edge = table_bin(attacked, LEVEL)
        expected = runner.expected_coverage(attacked.sample_sizes, benign, run)
        coverage, before = (trial.measure(edge - k, benign)[0] for k in (0, 1))
        n_cal, n_test = attacked.sample_sizes[benign].sum(), trial.tested[benign].sum()
        variance = expected * (1 - expected) * (1 / (n_cal + 2) + 1 / n_test)
        rows.append((expected - coverage, before - expected, variance))
    below, above, variance = np.mean(rows, axis=0)
    limit = norm.ppf(1 - 0.01 / (2 * 3))  # Bonferroni, 1% for all cells together
    assert max(below, above, 0) / np.sqrt(variance / 5) < limit


def test_an_attack_is_run_in_the_strength_that_follows_its_name():
    trial = make_trial(SMALL, 0)
    usual = trial.attacked("gaussian", 30, 1)
    assert np.array_equal(trial.attacked("gaussian:0.5", 30, 1).counts, usual.counts)
    mild = trial.attacked("gaussian:0.02", 30, 1)
    benign = trial.benign(30)
    assert np.array_equal(mild.counts[benign], usual.counts[benign])
    assert not np.array_equal(mild.counts, usual.counts)


def test_clients_differ_in_their_share_of_a_stage_or_are_filled_from_the_largest():
    given, rng = outputs.load("sleep"), np.random.default_rng(0)
    for attribute in ("wake", "REM"):
        world = PaperScenario("sleep", "iid", attribute=attribute)
        parts = runner.split(world, given, rng)
        stage = runner.STAGES.index(attribute)
        share = np.array([(given.labels[part] == stage).mean() for part in parts])
        assert len(parts) == runner.n_clients_of(world) == 13
        assert share[-4:].mean() > 1.5 * share[:4].mean()
        assert all(len(np.unique(given.groups[part])) == runner.SUBJECTS for part in parts)
    given = outputs.load("cifar10", "beta0.5")
    parts = runner.split(PaperScenario("cifar10", "beta0.5", "final", 0.1), given, rng)
    assert min(len(part) for part in parts) >= runner.MIN_CLIENT_SAMPLES
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(given.labels)))
    for bins in (2, 10, 100, 1000, 10000):  # of the granularity table
        assert runner.fine_binning().merged_bin_ends(Binning.uniform(bins)) is not None


def test_a_stopped_call_goes_on_where_it_was(tmp_path):
    totals, cases = [], [(case.world, case.run) for case in EXPERIMENTS["misstated"][1]()]
    done = [
        run_cases(cases[:n], seeds=seeds, store=tmp_path, workers=1, start=totals.append)
        for n, seeds in ((4, 2), (4, 2), (6, 2), (4, 3))
    ]
    assert totals == [2, 0, 2, 3]  # seeds of one world, whatever is missing of it
    assert done[0] == done[1] == {key: done[2][key] for key in done[0]}
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace('"caught"', '"found"'))
    run_cases(cases[:4], seeds=3, store=tmp_path, workers=1, start=totals.append)
    assert totals[-1] == 3  # what another version wrote is run again


@pytest.mark.slow
def test_the_command_writes_tables_figures_and_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BOUND_WORLDS", (("pathmnist", "coverage"),))
    monkeypatch.setattr(tables, "BOUND_RATIOS", (0.0, 0.1))
    target, page = tmp_path / "out", tmp_path / "docs" / "results.md"
    where = ("--seeds", 2, "-o", target, "--page", page)
    words = ("lab", "reproduce", "misstated", "bounds", "runtime", *where)
    found = json.loads(said(*words, "--workers", 2, "--json"))
    assert [row["method"] for row in found["misstated"]] == [*COMPARED] * 9
    for row in found["bounds"]:
        assert max(row["theorem_1_lower"], row["dkw_lower"]) < 0
        assert row["theorem_1_upper"] > 1
        assert row["certificate_lower"] <= row["ours_coverage"] <= row["certificate_upper"]
    page.write_text(page.read_text() + paper.results_page.MANUAL_SECTION + "by hand\n")
    assert {path.suffix for path in page.with_suffix("").iterdir()} == {".csv", ".png"}
    before = (page.parent / "results" / "misstated.csv").read_bytes()
    said(*words, "--no-resume", "--workers", 1)  # what one process finds, two find
    assert (page.parent / "results" / "misstated.csv").read_bytes() == before
    assert page.read_text().endswith("by hand\n")


def test_wrong_requests_are_refused(tmp_path):
    sleep = PaperScenario("mnist", "iid", attribute="wake")
    for call, given, word in (
        (paper.reproduce, (["table-9"], tmp_path), "no such experiment"),
        (partial(paper.reproduce, seeds=1), (["main"], tmp_path), "at least 2"),
        (paper.write_page, (tmp_path, tmp_path / "page.md"), "holds no results"),
        (runner.split, (sleep, outputs.load("mnist"), np.random.default_rng(0)), "no subjects"),
        (TheoremSetting, (50, 50, 10, 10, 10), "fewer malicious"),
        (theorem_2, (100, 20, 20, 1.0, 1.0), "initial guess"),
    ):
        with pytest.raises(RobfcpError, match=word):
            call(*given)


def test_the_page_in_the_docs_is_what_its_tables_give(tmp_path):
    docs, page = Path(__file__).parents[2] / "docs", tmp_path / "results.md"
    page.write_bytes((docs / "results.md").read_bytes())
    paper.write_page(docs / "results", page)
    for name in ("results.md", "results/rivals.csv"):
        texts = ((folder / name).read_text() for folder in (tmp_path, docs))
        found, shown = (text.split("\n## Over all cells\n")[-1] for text in texts)
        assert found == shown  # above may stand a note by hand


def test_published_rob_fcp_fails_on_a_good_model_where_the_default_does_not():
    cases = [
        ExperimentCase(GOOD, Run("coverage", 0.4, method, 0.4), "known")
        for method in (ROB_FCP, CONSENSUS)
    ]
    pairs = [(case.world, case.run) for case in cases]
    text, own = tables.make_rows(cases, run_cases(pairs, seeds=2, workers=1))
    assert text["coverage"] < text["honest_coverage"] - 0.15
    assert own["coverage"] == pytest.approx(own["honest_coverage"], abs=0.02)


# The paper's bounds as published, and two executable counter-examples to its theorems

SETTING = TheoremSetting(60, 40, 500, 20_000, 10, 0.9, 0.1, 0.3, 0.01)


def test_the_bounds_are_the_published_formulas():
    r, tau = 10 * norm.isf(0.1 / (2 * 10 * 60)) / (2 * sqrt(500)), 40 / 60
    assert theorems.normal_radius(SETTING) == pytest.approx(r)
    penalty = r * (1 + (20_000 / 500) * 2 / (1 - tau)) + 20_000 * 0.3 / (500 * (1 - tau))
    lower, upper = theorem_1(SETTING)
    assert lower == pytest.approx(0.9 - penalty - (0.01 * 500 + 1) / 560)
    assert upper == pytest.approx(0.9 + penalty + (0.01 * 500 + 1.01 * 60) / 560)
    dkw = 10 * sqrt(log(2 * 60 / 0.1) / 1000)
    assert theorems.dkw_radius(SETTING) == pytest.approx(dkw)
    difference = theorem_1(SETTING, theorems.dkw_radius)[0] - lower
    assert difference == pytest.approx((r - dkw) * (1 + 40 * 2 / (1 - tau)), rel=1e-9)
    alike = replace(SETTING, sigma=0.0, sketch_error=0.0)
    code = theorems.released_code_bound(alike)
    assert code[0] == pytest.approx(0.9 - r * (1 + 2 * tau / (1 - tau)) - 1 / 560)
    found = theorem_2(100, 20, 50, trace=1e-6, distance=0.5, largest=3.0, smallest=2.0)
    first = (150 - 20 - 2) ** 2 / 30**2 * 1e-6 / 0.25
    assert found == pytest.approx(1 - first - 2 * 180 * 1e-6 * 9 / (4 * 0.25))


def test_theorem_1_is_vacuous_at_every_realistic_size():
    for m, bins, n in product((10, 20, 30, 40), (10, 100), (50, 500, 5000, 25_000)):
        lower, upper = theorem_1(TheoremSetting(100 - m, m, n, m * n, bins))
        assert lower <= 0 < 1 <= upper
    few, many = (theorem_1(TheoremSetting(90, 10, n, 10 * n, 10)) for n in (240_000, 260_000))
    assert few[0] < 0 < many[0]


def test_theorem_1_is_false_when_attackers_expel_a_benign_minority():
    """40 benign from P0, 20 benign from P1, 40 tiny attackers copying P0, H = 10."""
    n, tiny, bins = 1_000_000, 10, 10
    low, high = np.zeros(bins), np.zeros(bins)
    low[:5], high[5:] = [0.2, 0.2, 0.2, 0.3005, 0.0995], 0.2
    rng = np.random.default_rng(0)
    benign = np.vstack([rng.multinomial(n, low, 40), rng.multinomial(n, high, 20)])
    malicious = np.tile((low * tiny).round().astype(int), (40, 1))
    federation = Federation.from_counts(np.vstack([benign, malicious]))

    setting = TheoremSetting(60, 40, n, 40 * tiny, bins, sigma=float(np.abs(low - high).sum()))
    promised = theorem_1(setting)
    assert promised[0] == pytest.approx(0.879, abs=5e-4)

    benign_mask = RobFCP(40, bins=bins).assess(federation).benign_mask
    index = table_bin(federation, LEVEL, benign_mask)
    coverage = (40 * low[: index + 1].sum() + 20 * high[: index + 1].sum()) / 60
    assert not benign_mask[40:60].any()
    assert coverage == pytest.approx(0.6, abs=0.001)


def test_theorem_2_is_false_under_a_decoy():
    """One far client: the estimator, given even the true covariance, sees only that one."""
    n_clients, n_malicious, bins, spread, guess = 20, 5, 10, 0.001, 10
    mean, far = np.full(bins, 1 / bins), np.eye(bins)
    centres = np.tile(mean, (n_clients, 1))
    centres[-n_malicious:] += 0.2 * (far[1] - mean)
    vectors = np.random.default_rng(1).normal(centres, spread)
    vectors[-1] = far[0]
    distance = float(np.linalg.norm(vectors[-n_malicious:] - mean, axis=1).min())
    assert theorem_2(n_clients, n_malicious, guess, bins * spread**2, distance) > 0.95
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    order = np.argsort(np.sort(distances, axis=1)[:, 1:guess].mean(axis=1), kind="stable")

    def criterion(z):
        centre = vectors[order[:z]].mean(axis=0)
        log_density = -((vectors[order] - centre) ** 2).sum(axis=1) / (2 * spread**2)
        return log_density[:z].mean() - log_density[z:].mean()

    assert set(order[-n_malicious:]) == set(range(n_clients - n_malicious, n_clients))
    assert max(range(guess, n_clients), key=criterion) == n_clients - 1  # all but the decoy
