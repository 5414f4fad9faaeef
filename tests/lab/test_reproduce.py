"""The paper's experiments: closed forms hold, numbers equal the library's, runs resume."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from robfcp import LAC
from robfcp.calibration.calibrating import _calibrate
from robfcp.cli import app
from robfcp.defence import DEFAULT, Assessment, RobFCP, RobFCPReleased, named_defence
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.lab import outputs, paper
from robfcp.lab.paper import extras, remarks, rows, trials
from robfcp.lab.paper.cases import EXPERIMENTS, Case
from robfcp.lab.paper.compare import AHEAD, PaperCell, beaten, cells, standings
from robfcp.lab.paper.contradictions import contradictions
from robfcp.lab.paper.methods import BY_CLASS, COMPARED, DETECTORS, FCP, OURS, RELEASED, TEXT
from robfcp.lab.paper.published import table
from robfcp.lab.paper.runner import collect, run_cases
from robfcp.lab.paper.runs import Run, by_calibration, edge_of, expected_coverage, run_seed
from robfcp.lab.paper.trials import PaperWorld, make_trial
from robfcp.lab.published_bounds import full_rank

SMALL = PaperWorld("mnist", "beta0.5", "early", 0.5)


def test_all_published_numbers_ship() -> None:
    assert len(paper.published()) == 578
    assert len(table("unknown")) == 240
    assert len(table("shhs-attributes")) == 10
    first = table("main")[0]
    assert (first.dataset, first.attack, first.coverage) == ("mnist", "coverage", 0.805)


def test_every_published_number_has_a_cell_beside_it() -> None:
    figures = [(row.coverage, row.set_size) for row in paper.published()]
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
    rng = np.random.default_rng([seed, *trials.world_key(world)])
    given = outputs.load(world.dataset, world.split, world.stage)  # type: ignore[arg-type]
    every = LAC().all_labels(given.probabilities, rng)
    halves = [np.array_split(rng.permutation(p), 2) for p in trials.split(world, given, rng)]
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
    rules = {"none": None, TEXT: RobFCP(30), RELEASED: RobFCPReleased(30)}
    for defence, rule in rules.items():
        trusted = np.ones(100, bool) if rule is None else rule(federation).trusted
        edge = edge_of(federation, trusted)
        assert edge is not None
        calibration = _calibrate(federation, defence=rule or defence, rank=full_rank)
        assert calibration.threshold == federation.grid.upper[edge]
        verdict = by_calibration(federation, defence, 30)
        assert verdict.edge == edge
        assert np.array_equal(verdict.trusted, trusted)


@pytest.mark.parametrize("told", [0.3, None])
def test_our_defence_is_run_as_calibrate_runs_it(told: float | None) -> None:
    trial = make_trial(SMALL, 2)
    federation = trial.attacked("coverage", 30, np.random.default_rng(0))
    verdict = by_calibration(federation, OURS, None if told is None else 30)
    (outcome,) = run_seed(SMALL, [Run("coverage", 0.3, OURS, told)], 2)
    measured = trial.measure(verdict.edge, trial.benign(30))
    assert (outcome.coverage, outcome.set_size) == measured
    assert (outcome.assumed, outcome.flagged) == (verdict.assumed, int((~verdict.trusted).sum()))


def test_reports_by_class_add_up_to_the_pooled_ones() -> None:
    trial = make_trial(SMALL, 0)
    scores = trial.forged("coverage", 30, np.random.default_rng(0))
    by_class = trial.sketched(scores, by_class=True)
    assert by_class.strata is not None
    assert np.array_equal(by_class.counts, trial.sketched(scores).counts)
    (outcome,) = run_seed(SMALL, [Run("coverage", 0.3, BY_CLASS, 0.3)], 0)
    assert abs(outcome.coverage - outcome.honest_coverage) < 0.05


def test_no_reports_that_reach_the_level_leave_every_label() -> None:
    few = Federation.from_counts([[1, 1], [2, 0], [1, 0]])
    assert by_calibration(few, "none", 0).edge is None


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
                edge = edge_of(attacked, np.ones(n_clients, bool))
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
    parts = trials.split(world, given, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(given.labels)))
    stage = trials.STAGES.index(attribute)
    share = np.array([(given.labels[part] == stage).mean() for part in parts])
    assert len(parts) == trials.clients_of(world) == 13
    assert share[-4:].mean() > 1.5 * share[:4].mean()
    assert given.groups is not None
    assert all(len(np.unique(given.groups[part])) == trials.SUBJECTS for part in parts)
    with pytest.raises(RobfcpError, match="no subjects"):
        trials.split(PaperWorld("mnist", "iid", attribute="wake"), outputs.load("mnist"), None)  # type: ignore[arg-type]


def test_clients_too_small_to_be_used_are_filled_from_the_largest() -> None:
    given = outputs.load("cifar10", "beta0.5")
    world = PaperWorld("cifar10", "beta0.5", "final", 0.1)
    parts = trials.split(world, given, np.random.default_rng(0))
    assert min(len(part) for part in parts) >= trials.LEAST
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(given.labels)))


def test_the_fine_grid_holds_every_view() -> None:
    for bins in (2, 10, 100, 1000, 10000):
        assert trials.fine_grid().merge_ends(Grid.uniform(bins)) is not None


def test_a_stopped_call_goes_on_where_it_was(tmp_path: Path) -> None:
    cases = EXPERIMENTS["misstated"][1]()
    totals: list[int] = []
    first = run_cases(cases[:4], seeds=2, store=tmp_path, workers=1, start=totals.append)
    again = run_cases(cases[:4], seeds=2, store=tmp_path, workers=1, start=totals.append)
    assert totals == [2, 0]
    assert first == again
    more = run_cases(cases[:6], seeds=2, store=tmp_path, workers=1, start=totals.append)
    assert totals[-1] == 2
    assert {key: more[key] for key in first} == first
    run_cases(cases[:4], seeds=3, store=tmp_path, workers=1, start=totals.append)
    assert totals[-1] == 3


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    case = Case(SMALL, Run("coverage", 0.2, "rob-fcp", 0.2), "known")
    one = run_cases([case], seeds=2, workers=1)
    two = run_cases([case], seeds=2, workers=2)
    plain = [[(o.coverage, o.set_size, o.flagged) for o in r[SMALL, case.run]] for r in (one, two)]
    assert plain[0] == plain[1]
    assert collect([case, case]) == {SMALL: [case.run]}


@pytest.mark.slow
def test_the_command_writes_tables_figures_and_the_page(tmp_path: Path) -> None:
    target, page = tmp_path / "out", tmp_path / "docs" / "results.md"
    command = ["reproduce", "misstated", "-o", str(target), "--seeds", "2", "--workers", "1"]
    result = CliRunner().invoke(app, [*command, "--page", str(page)])
    assert result.exit_code == 0, result.output
    assert "misstated" in result.output
    found = list(csv.DictReader((target / "misstated.csv").read_text().splitlines()))
    assert len(found) == 9 * len(COMPARED)
    assert {row["method"] for row in found} == set(COMPARED)
    content = json.loads((target / "misstated.json").read_text())
    assert len(content["rows"]) == len(found)
    assert content["remarks"]
    assert (target / "misstated.png").read_bytes().startswith(b"\x89PNG")
    folder = page.parent / "results"
    assert "| tinyimagenet |" in (folder / "misstated.md").read_text()
    assert (folder / "misstated.png").exists()
    for name in ("models", "contradictions", "rivals", "misstated"):
        assert f"results/{name}.md" in page.read_text()
        assert (folder / f"{name}.md").is_file()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for again in ([], ["--no-resume"]):
        assert CliRunner().invoke(app, [*command, *again, "--page", str(page)]).exit_code == 0
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    listed = CliRunner().invoke(app, ["reproduce", "--json"])
    assert set(json.loads(listed.output)["experiments"]) == set(paper.NAMES)


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
    monkeypatch.setattr(extras, "BOUND_WORLDS", (("pathmnist", "coverage"),))
    monkeypatch.setattr(extras, "BOUND_RATIOS", (0.0, 0.1))
    paper.reproduce(["bounds", "theorem", "runtime"], tmp_path, seeds=2)
    content = json.loads((tmp_path / "bounds.json").read_text())
    for row in content["rows"]:
        assert row["theorem_1_lower"] < 0
        assert row["theorem_1_upper"] > 1
        assert row["dkw_lower"] < 0
        assert row["certificate_lower"] <= row["ours_coverage"] <= row["certificate_upper"]
    assert "2 of 2 cells" in content["remarks"][0]
    seconds = json.loads((tmp_path / "runtime.json").read_text())["rows"]
    assert all(row[DEFAULT] < row["published"] * 10 for row in seconds)
    paper.write_page(tmp_path, tmp_path / "page.md")
    assert "theorem_1_lower" in (tmp_path / "page" / "bounds.md").read_text()
    assert "What is proved" in (tmp_path / "page.md").read_text()


def test_every_timed_repeat_sees_a_federation_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def watched(name: str, liars: int) -> object:
        rule = named_defence(name, liars)

        def call(federation: Federation) -> Assessment:
            seen.append(federation)  # kept, so that no two share an address
            return rule(federation)

        return call

    monkeypatch.setattr(extras, "named_defence", watched)
    monkeypatch.setattr(extras, "DATASETS", {"PathMNIST": "pathmnist"})
    extras.runtime(repeats=3)
    assert len({id(federation) for federation in seen}) == 3 * len(DETECTORS)


def test_theorem_1_says_something_where_there_are_few_clients_bins_and_many_samples() -> None:
    first = extras.theorem()[0]
    assert (first["K"], first["K_m"], first["H"]) == (6, 1, 2)
    assert first["at n_b = 80,000"] == "[0.868, 0.932]"
    for row in extras.theorem():
        n = row["n_b: lower end above 0"]
        bound = extras._theorem_at(row["K"], row["K_m"], row["H"], n)
        less = extras._theorem_at(row["K"], row["K_m"], row["H"], int(n * 0.98))
        assert less[0] <= 0 < bound[0]


def a_row(method: str, coverage: float, **more: object) -> dict[str, object]:
    base = {
        "dataset": "mnist", "model": "final", "split": "iid", "ratio": 0.4, "attack": "coverage",
        "told": 0.4, "variant": "", "number": "known", "honest_coverage": 0.9, "set_size": 1.0,
    }  # fmt: skip
    return {**base, "method": method, "coverage": coverage, **more}


def test_cells_in_which_a_rival_is_ahead_are_listed_by_their_lead() -> None:
    contents = {
        "main": {"rows": [a_row(FCP, 0.8), a_row(RELEASED, 0.9), a_row(OURS, 0.89)]},
        "known": {"rows": [a_row(FCP, 0.8), a_row(OURS, 0.5)]},  # the same setting, counted once
        "mimic": {"rows": [a_row(TEXT, 0.9, ratio=0.1), a_row(OURS, 0.9 - AHEAD / 2, ratio=0.1)]},
        "scores": {
            "rows": [a_row(TEXT, 0.9, variant="aps"), a_row(OURS, 0.95, variant="aps")],
        },
    }
    found = cells(contents)
    assert [cell.experiment for cell in found] == ["main", "mimic", "scores"]
    leads = [(round(lead, 3), rival, cell.setting) for lead, rival, cell in beaten(found)]
    assert leads == [
        (0.05, TEXT, "mnist iid coverage 40% aps"),
        (0.01, RELEASED, "mnist iid coverage 40%"),
    ]
    ours = next(one for one in standings(found) if one.method == OURS)
    assert (ours.worst, ours.off, ours.total) == (pytest.approx(0.05), 1, 3)
    assert isinstance(found[0], PaperCell)


def test_contradictions_stand_beside_what_was_measured() -> None:
    rows = [a_row(FCP, 0.834, split="beta=0.5", model="final")]
    text = contradictions({"main": {"rows": rows}})
    assert "0.805 / 1.284 (main); 0.833 / 1.384" in text
    assert "| 0.834 / 1.00 |" in text
    assert "not run" in text
    assert text.count("\n|") >= 11


def test_remarks_state_what_was_measured_in_the_worst_cells() -> None:
    world = PaperWorld("mnist", "iid")
    cases = [Case(world, Run("coverage", 0.4, m, 0.4), "known", "", p) for m, p in
             ((FCP, (0.7, 1.0)), (TEXT, (0.9, 1.0)), (OURS, None))]  # fmt: skip
    made = rows.make_rows(cases, run_cases(cases, seeds=2, workers=1))
    text = "\n".join(remarks.remarks(made))
    assert "1 of 1 published FCP coverages" in text
    robust = made[1]
    assert f"{robust.first_bin:.0%} of honest scores in the first of 100 bins" in text
    assert f"{robust.caught:.1f} of 40 liars" in text
    assert f"{OURS}, ours is within 0.02" in text


def test_the_share_in_the_first_bin_is_that_of_the_honest_scores() -> None:
    trial = make_trial(SMALL, 0)
    (outcome,) = run_seed(SMALL, [Run("coverage", 0.4, "rob-fcp", 0.4)], 0)
    honest = np.concatenate([trial.scores[k] for k in np.flatnonzero(trial.benign(40))])
    assert outcome.first_bin == pytest.approx((honest <= 0.01).mean())
    assert outcome.last_bin == pytest.approx((honest > 0.99).mean())


def test_a_misstated_number_is_named_as_the_cause() -> None:
    case = Case(PaperWorld("tinyimagenet", "beta0.5", "final", 0.5),
                Run("coverage", 0.25, OURS, 0.05), "misstated", "0.05")  # fmt: skip
    (row,) = rows.make_rows([case], run_cases([case], seeds=2, workers=1))
    (line,) = remarks.remarks([row])
    assert "told fewer liars than there are" in line
