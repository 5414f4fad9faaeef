"""The paper's experiments: closed forms hold, numbers equal the library's, runs resume."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

import robfcp
from robfcp import LAC
from robfcp.cli import app
from robfcp.defence import DEFAULT, Assessment, RobFCP, RobFCPReleased, named_defence, threshold_of
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.lab import outputs, paper
from robfcp.lab.paper import runs, tables
from robfcp.lab.paper.cases import COMPARED, DETECTORS, EXPERIMENTS, Case, published
from robfcp.lab.paper.runs import (
    BY_CLASS,
    FCP,
    LEVEL,
    OURS,
    RELEASED,
    TEXT,
    PaperWorld,
    Run,
    expected_coverage,
    look,
    make_trial,
    ours,
    run_cases,
    run_seed,
)
from robfcp.lab.paper.tables import AHEAD, beaten, cells, make_rows, remarks, standings
from robfcp.lab.published import full_rank, table_edge

SMALL = PaperWorld("mnist", "beta0.5", "early", 0.5)


def test_every_published_number_ships_and_has_a_cell_beside_it() -> None:
    figures = [row.figure for row in published()]
    assert len(figures) == 578
    assert (published()[0].dataset, published()[0].attack, figures[0]) == (
        *("mnist", "coverage"),
        (0.805, 1.284),
    )
    cases = [case for _, make in EXPERIMENTS.values() for case in make()]
    found = [case.published for case in cases if case.world.stage == "final" and case.published]
    assert sorted(found) == sorted(figures)


def test_every_table_has_all_methods_in_every_setting() -> None:
    for name, (_, make) in EXPERIMENTS.items():
        settings: dict[object, set[str]] = {}
        for case in make():
            key = (case.world, case.run.attack, case.run.ratio, case.run.told, case.variant)
            settings.setdefault(key, set()).add(case.run.method)
        needed = DETECTORS if name == "counting" else COMPARED
        assert all(found >= set(needed) for found in settings.values()), name


def brute_force(
    world: PaperWorld, seed: int, threshold: float, n_malicious: int
) -> tuple[float, float]:
    rng = np.random.default_rng([seed, *runs.world_key(world)])
    given = outputs.load(world.dataset, world.split, world.stage)  # type: ignore[arg-type]
    every = LAC().all_labels(given.probabilities, rng)
    halves = [np.array_split(rng.permutation(p), 2) for p in runs.split(world, given, rng)]
    liars = rng.permutation(len(halves))[:n_malicious]
    test = np.concatenate([half[1] for k, half in enumerate(halves) if k not in set(liars)])
    sets = every[test] <= threshold
    return float(sets[np.arange(len(test)), given.labels[test]].mean()), float(sets.sum(1).mean())


def test_coverage_and_size_are_those_of_the_prediction_sets() -> None:
    trial = make_trial(SMALL, 3)
    for edge in (200, 600, 950):
        threshold = float(trial.federation.grid.upper[edge])
        measured = trial.measure(edge, trial.benign(30))
        assert measured == pytest.approx(brute_force(SMALL, 3, threshold, 30), abs=1e-12)
    assert trial.measure(None, trial.benign(30)) == (1.0, 10.0)


@pytest.mark.parametrize("attack", ["coverage", "gaussian", "mimic"])
def test_thresholds_are_those_of_calibrate(attack: str) -> None:
    trial = make_trial(SMALL, 1)
    federation = trial.attacked(attack, 30, np.random.default_rng(0))
    for rule in (None, RobFCP(30), RobFCPReleased(30)):
        trusted = None if rule is None else rule(federation).trusted
        edge = table_edge(federation, LEVEL, trusted)
        assert edge is not None
        kept = robfcp.calibrate(federation, defence=rule or "none").trusted_mask
        assert threshold_of(rule, federation, kept, full_rank).index(LEVEL) == edge


@pytest.mark.parametrize("told", [0.3, None])
def test_our_defence_is_run_as_calibrate_runs_it(told: float | None) -> None:
    trial = make_trial(SMALL, 2)
    noise = [2, *b"coverage", 300, *runs.world_key(SMALL)]
    federation = trial.attacked("coverage", 30, np.random.default_rng(noise))
    number = None if told is None else 30
    rule = named_defence(OURS, number)
    kept = robfcp.calibrate(federation, defence=rule).trusted_mask
    verdict = ours(federation, number, look(federation))
    assert verdict.edge is not None
    assert threshold_of(rule, federation, kept, full_rank).index(LEVEL) == verdict.edge
    assert np.array_equal(kept, verdict.trusted)
    (outcome,) = run_seed(SMALL, [Run("coverage", 0.3, OURS, told)], 2)
    assert (outcome.coverage, outcome.set_size) == trial.measure(verdict.edge, trial.benign(30))
    assert (outcome.assumed, outcome.flagged) == (verdict.assumed, int((~verdict.trusted).sum()))


def test_reports_by_class_add_up_to_the_pooled_ones() -> None:
    trial = make_trial(SMALL, 0)
    scores = trial.forged("coverage", 30, np.random.default_rng(0))
    by_class = trial.sketched(scores, by_class=True)
    assert by_class.strata is not None
    assert np.array_equal(by_class.counts, trial.sketched(scores).counts)
    (outcome,) = run_seed(SMALL, [Run("coverage", 0.3, BY_CLASS, 0.3)], 0)
    assert abs(outcome.coverage - outcome.honest_coverage) < 0.05


def closed_form_z_scores(
    worlds_and_ratios: list[tuple[PaperWorld, float]], seeds: int
) -> list[float]:
    """How many standard errors undefended FCP is outside [closed form, closed form + bin mass]."""
    scores = []
    by_world: dict[PaperWorld, list[float]] = {}
    for world, ratio in worlds_and_ratios:
        by_world.setdefault(world, []).append(ratio)
    for world, ratios in by_world.items():
        found: dict[float, list[tuple[float, float, float, float]]] = {r: [] for r in ratios}
        for seed in range(seeds):
            trial = make_trial(world, seed)
            for ratio in ratios:
                n_clients = trial.federation.n_clients
                n_malicious = round(n_clients * ratio)
                benign = trial.benign(n_malicious)
                attacked = trial.attacked("coverage", n_malicious, np.random.default_rng(seed))
                edge = table_edge(attacked, LEVEL)
                assert edge is not None
                expected = expected_coverage(
                    attacked.sizes, benign, Run("coverage", ratio, "fcp", ratio)
                )
                assert expected is not None
                coverage = trial.measure(edge, benign)[0]
                mass = coverage - trial.measure(edge - 1, benign)[0]
                n_cal, n_test = int(attacked.sizes[benign].sum()), int(trial.tested[benign].sum())
                variance = expected * (1 - expected) * (1 / (n_cal + 2) + 1 / n_test)
                found[ratio].append((coverage, expected, mass, variance))
        for ratio in ratios:
            coverage, expected, mass, variance = np.mean(found[ratio], axis=0)
            error = float(np.sqrt(variance / seeds))
            scores.append(max(expected - coverage, coverage - expected - mass, 0.0) / error)
    return scores


def coverage_cells() -> list[tuple[PaperWorld, float]]:
    cells = {
        (case.world, case.run.ratio): None
        for _, make in EXPERIMENTS.values()
        for case in make()
        if case.run.attack == "coverage" and case.world.score == "lac" and not case.world.fine
    }
    return list(cells)


def test_undefended_fcp_follows_the_closed_form_in_a_few_cells() -> None:
    cells = [(SMALL, 0.1), (SMALL, 0.4), (PaperWorld("mnist", "iid"), 0.3)]
    limit = float(norm.ppf(1 - 0.01 / (2 * len(cells))))
    assert max(closed_form_z_scores(cells, 5)) < limit


@pytest.mark.slow
def test_undefended_fcp_follows_the_closed_form_in_every_coverage_attack_cell() -> None:
    cells = coverage_cells()
    assert len(cells) > 80
    limit = float(norm.ppf(1 - 0.01 / (2 * len(cells))))  # Bonferroni, 1% for all cells together
    assert max(closed_form_z_scores(cells, 10)) < limit


def test_the_closed_form_is_the_one_known_for_equal_clients() -> None:
    sizes = np.full(100, 1000)
    for ratio in (0.1, 0.2, 0.3, 0.4):
        benign = np.arange(100) >= 100 * ratio
        lower = expected_coverage(sizes, benign, Run("coverage", ratio, "fcp", ratio))
        upper = expected_coverage(sizes, benign, Run("efficiency", ratio, "fcp", ratio))
        assert lower == pytest.approx((0.9 - ratio) / (1 - ratio), abs=1e-4)
        assert upper == 1.0
    benign = np.arange(100) >= 5
    upper = expected_coverage(sizes, benign, Run("efficiency", 0.05, "fcp", 0.05))
    assert upper == pytest.approx(0.9 / 0.95, abs=1e-4)
    assert expected_coverage(sizes, benign, Run("gaussian", 0.05, "fcp", 0.05)) is None


def test_published_rob_fcp_fails_on_a_good_model_where_ours_does_not() -> None:
    runs = [Run("coverage", 0.4, method, 0.4) for method in (FCP, TEXT, OURS)]
    outcomes = [run_seed(PaperWorld("mnist", "iid"), runs, seed) for seed in range(3)]
    error = np.mean([[one.coverage - one.honest_coverage for one in row] for row in outcomes], 0)
    assert error[1] < -0.15
    assert abs(error[2]) < 0.01


@pytest.mark.parametrize("attribute", ["wake", "REM"])
def test_attribute_clients_differ_in_their_share_of_the_stage(attribute: str) -> None:
    given = outputs.load("sleep")
    world = PaperWorld("sleep", "iid", attribute=attribute)
    parts = runs.split(world, given, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(given.labels)))
    stage = runs.STAGES.index(attribute)
    share = np.array([(given.labels[part] == stage).mean() for part in parts])
    assert len(parts) == runs.clients_of(world) == 13
    assert share[-4:].mean() > 1.5 * share[:4].mean()
    assert given.groups is not None
    assert all(len(np.unique(given.groups[part])) == runs.SUBJECTS for part in parts)
    with pytest.raises(RobfcpError, match="no subjects"):
        runs.split(PaperWorld("mnist", "iid", attribute="wake"), outputs.load("mnist"), None)  # type: ignore[arg-type]


def test_clients_too_small_to_be_used_are_filled_from_the_largest() -> None:
    given = outputs.load("cifar10", "beta0.5")
    world = PaperWorld("cifar10", "beta0.5", "final", 0.1)
    parts = runs.split(world, given, np.random.default_rng(0))
    assert min(len(part) for part in parts) >= runs.LEAST
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(given.labels)))


def test_the_fine_grid_holds_every_view() -> None:
    for bins in (2, 10, 100, 1000, 10000):
        assert runs.fine_grid().merge_ends(Grid.uniform(bins)) is not None


def test_a_stopped_call_goes_on_where_it_was(tmp_path: Path) -> None:
    cases = [(case.world, case.run) for case in EXPERIMENTS["misstated"][1]()]
    totals: list[int] = []
    done = [
        run_cases(cases[:n], seeds=seeds, store=tmp_path, workers=1, start=totals.append)
        for n, seeds in ((4, 2), (4, 2), (6, 2), (4, 3))
    ]
    assert totals == [2, 0, 2, 3]  # seeds of one world, whatever is missing of it
    assert done[0] == done[1] == {key: done[2][key] for key in done[0]}


@pytest.mark.slow
def test_two_processes_find_what_one_finds_and_a_case_runs_once(tmp_path: Path) -> None:
    cases = [(SMALL, Run("coverage", 0.2, TEXT, 0.2))] * 2
    assert run_cases(cases, seeds=2, workers=1) == run_cases(cases, seeds=2, workers=2)


@pytest.mark.slow
def test_the_command_writes_tables_figures_and_the_page(tmp_path: Path) -> None:
    target, page = tmp_path / "out", tmp_path / "docs" / "results.md"
    command = ["lab", "reproduce", "misstated", "-o", str(target), "--seeds", "2", "--workers", "1"]
    result = CliRunner().invoke(app, [*command, "--page", str(page)])
    assert result.exit_code == 0, result.output
    assert "misstated" in result.output
    found = list(csv.DictReader((target / "misstated.csv").read_text().splitlines()))
    assert len(found) == 9 * len(COMPARED)
    assert {row["method"] for row in found} == set(COMPARED)
    assert (target / "misstated.png").read_bytes().startswith(b"\x89PNG")
    folder = page.parent / "results"
    assert "| 0.45 | 0." in page.read_text()
    page.write_text(page.read_text() + paper.pages.HAND + "by hand\n")
    for name in ("rivals.csv", "misstated.csv", "misstated.png"):
        assert f"results/{name}" in page.read_text()
        assert (folder / name).is_file()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for again in ([], ["--no-resume"]):
        assert CliRunner().invoke(app, [*command, *again, "--page", str(page)]).exit_code == 0
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        assert page.read_text().endswith("by hand\n")
    listed = CliRunner().invoke(app, ["lab", "reproduce", "--json"])
    assert set(json.loads(listed.output)["experiments"]) == set(paper.titles())


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RobfcpError, match="no such experiment"):
        paper.reproduce(["table-9"], tmp_path)
    with pytest.raises(RobfcpError, match="at least 2"):
        paper.reproduce(["main"], tmp_path, seeds=1)
    with pytest.raises(RobfcpError, match="holds no results"):
        paper.write_page(tmp_path, tmp_path / "page.md")


@pytest.mark.slow
def test_bounds_and_runtime_say_what_they_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BOUND_WORLDS", (("pathmnist", "coverage"),))
    monkeypatch.setattr(tables, "BOUND_RATIOS", (0.0, 0.1))
    found = paper.reproduce(["bounds", "theorem", "runtime"], tmp_path, seeds=2)
    for row in found["bounds"]:
        assert row["theorem_1_lower"] < 0
        assert row["theorem_1_upper"] > 1
        assert row["dkw_lower"] < 0
        assert row["certificate_lower"] <= row["ours_coverage"] <= row["certificate_upper"]
    assert all(row[DEFAULT] < row["published"] * 10 for row in found["runtime"])
    paper.write_page(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "theorem_1_lower" in text
    assert "## Bounds against measured coverage" in text


def test_every_timed_repeat_sees_a_federation_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def watched(name: str, liars: int) -> object:
        rule = named_defence(name, liars)

        def call(federation: Federation) -> Assessment:
            seen.append(federation)  # kept, so that no two share an address
            return rule(federation)

        return call

    monkeypatch.setattr(tables, "named_defence", watched)
    monkeypatch.setattr(tables, "DATASETS", {"PathMNIST": "pathmnist"})
    tables.runtime(repeats=3)
    assert len({id(federation) for federation in seen}) == 3 * len(DETECTORS)


def test_theorem_1_says_something_where_there_are_few_clients_bins_and_many_samples() -> None:
    first = tables.theorem()[0]
    assert (first["K"], first["K_m"], first["H"]) == (6, 1, 2)
    assert first["at n_b = 80,000"] == "[0.868, 0.932]"
    for row in tables.theorem():
        n = row["n_b: lower end above 0"]
        bound = tables.theorem_at(row["K"], row["K_m"], row["H"], n)
        less = tables.theorem_at(row["K"], row["K_m"], row["H"], int(n * 0.98))
        assert less[0] <= 0 < bound[0]


def a_row(method: str, coverage: float, **more: object) -> dict[str, object]:
    base = {
        "dataset": "mnist", "model": "final", "split": "iid", "ratio": 0.4, "attack": "coverage",
        "told": 0.4, "variant": "", "number": "known", "honest_coverage": 0.9, "set_size": 1.0,
    }  # fmt: skip
    return {**base, "method": method, "coverage": coverage, **more}


def test_cells_in_which_a_rival_is_ahead_are_listed_by_their_lead() -> None:
    contents = {
        "main": [a_row(FCP, 0.8), a_row(RELEASED, 0.9), a_row(OURS, 0.89)],
        "known": [a_row(FCP, 0.8), a_row(OURS, 0.5)],  # the same setting, counted once
        "mimic": [a_row(TEXT, 0.9, ratio=0.1), a_row(OURS, 0.9 - AHEAD / 2, ratio=0.1)],
        "scores": [a_row(TEXT, 0.9, variant="aps"), a_row(OURS, 0.95, variant="aps")],
    }
    found = cells(contents)
    assert [cell.experiment for cell in found] == ["main", "mimic", "scores"]
    leads = [(round(lead, 3), rival, cell.setting) for lead, rival, cell in beaten(found)]
    assert leads == [
        (0.05, TEXT, "mnist iid coverage 40% aps"),
        (0.01, RELEASED, "mnist iid coverage 40%"),
    ]
    own = next(one for one in standings(found) if one["method"] == OURS)
    assert (own["worst"], own["off"], own["total"]) == (pytest.approx(0.05), 1, 3)


def test_remarks_say_how_often_each_method_is_off_and_where_most() -> None:
    world = PaperWorld("mnist", "iid")
    cases = [Case(world, Run("coverage", 0.4, method, 0.4), "known") for method in (TEXT, OURS)]
    pairs = [(case.world, case.run) for case in cases]
    made = make_rows(cases, run_cases(pairs, seeds=2, workers=1))
    off, within = remarks(made)
    assert f"in 1 of 1 cells (most: mnist iid coverage 40%, {made[0]['coverage']:.3f}" in off
    assert within == f"{OURS}, ours is within 0.02 of the honest clients in every cell."


def test_the_share_in_the_first_bin_is_that_of_the_honest_scores() -> None:
    trial = make_trial(SMALL, 0)
    (outcome,) = run_seed(SMALL, [Run("coverage", 0.4, "rob-fcp", 0.4)], 0)
    honest = np.concatenate([trial.scores[k] for k in np.flatnonzero(trial.benign(40))])
    assert outcome.first_bin == pytest.approx((honest <= 0.01).mean())
    assert outcome.last_bin == pytest.approx((honest > 0.99).mean())
