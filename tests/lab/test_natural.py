"""Natural federations: models that never saw a site, sites as they are, and what is measured."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from robfcp import LAC, Report, RobfcpError, calibrate
from robfcp.cli import app
from robfcp.defence import DEFAULT
from robfcp.lab import natural, outputs, partitions, simulate
from robfcp.lab.datasets import SiteTable
from robfcp.lab.natural import LeaveOutSettings, leave_out_recipe, leave_sites_out, thinned
from robfcp.lab.worlds import Setting, make_world

NATURAL = [entry for entry in outputs.entries() if entry["split"] == outputs.NATURAL]


@pytest.fixture(scope="module")
def stroke() -> outputs.Outputs:
    return outputs.load("stroke", outputs.NATURAL)


@pytest.mark.parametrize("entry", NATURAL, ids=lambda entry: entry["dataset"])
def test_natural_outputs_state_their_source_and_keep_their_columns(entry: dict) -> None:
    found = outputs.load(entry["dataset"], outputs.NATURAL)
    assert list(found.columns) == entry["columns"]
    assert len(np.unique(found.column("site"))) == entry["sites"]
    assert found.accuracy > entry["commonest_class"]
    for field in ("source", "doi", "licence", "citation", "library", "command", "settings"):
        assert entry[field], field
    words = files("robfcp.lab.outputs").joinpath("ATTRIBUTION.md").read_text()
    assert f"doi:{entry['doi']}" in words
    with pytest.raises(RobfcpError, match="no column 'planet'; the columns are: site"):
        found.column("planet")


def test_columns_survive_storage_and_files_without_them_still_read(tmp_path: Path) -> None:
    names = np.array(["b", "a", "b"])
    outputs.write(tmp_path / "o.npz", np.eye(3), [0, 1, 2], columns={"site": names})
    assert outputs.read(tmp_path / "o.npz").column("site").tolist() == names.tolist()
    outputs.write(tmp_path / "o.npz", np.eye(3), [0, 1, 2])
    assert outputs.read(tmp_path / "o.npz").columns == {}
    np.savez(
        tmp_path / "bad.npz",
        **{"depth": np.zeros((1, 2)), "labels": [0], "column:site": [3], "names:site": ["a"]},
    )
    with pytest.raises(RobfcpError, match="not a file of model outputs"):
        outputs.read(tmp_path / "bad.npz")


def toy(n: int = 120) -> SiteTable:
    """Each site has a label of its own, told by a feature that names the site."""
    number = np.arange(n) % 4
    x = np.column_stack([number, np.random.default_rng(0).normal(size=n)]).astype(np.float32)
    sites = np.array([f"s{k}" for k in number])
    return SiteTable("toy", x, number % 2, ("a", "b"), {"site": sites})


def test_no_site_is_predicted_by_a_model_that_saw_it() -> None:
    """Labels that only the site itself reveals cannot be learnt when it is left out."""
    table = toy()
    alone = SiteTable("toy", table.x, (table.x[:, 0] == 3).astype(np.int64), ("a", "b"),
                      table.columns)  # fmt: skip
    found = leave_sites_out(alone, LeaveOutSettings(folds=4, iterations=5, least=2))
    chosen = found.logits.argmax(axis=1)
    assert (chosen[alone.sites == "s3"] == 0).all()  # class b was never seen in training
    assert found.accuracy == pytest.approx(0.75)
    assert found.library.startswith("scikit-learn")


def test_leaving_out_is_seeded_and_refuses_one_site() -> None:
    settings = LeaveOutSettings(folds=2, iterations=5, least=2, per_site=10, seed=3)
    calls: list[int] = []
    first = leave_sites_out(toy(), settings, lambda: calls.append(1))
    assert np.array_equal(first.logits, leave_sites_out(toy(), settings).logits)
    assert len(calls) == 2
    assert len(first.table) == 40
    with pytest.raises(RobfcpError, match="1 site leaves none"):
        leave_sites_out(toy().take(np.arange(0, 120, 4)), settings)


def test_thinning_keeps_small_sites_whole() -> None:
    table = toy().take(np.r_[0:60:1, 60:120:4])
    kept = thinned(table, 20, np.random.default_rng(0))
    sizes = dict(zip(*np.unique(kept.sites, return_counts=True), strict=True))
    assert sizes == {"s0": 20, "s1": 15, "s2": 15, "s3": 15}
    assert leave_out_recipe("sleep").per_site == 400
    assert leave_out_recipe("heart", seed=4).seed == 4


def test_train_leaves_sites_out_by_one_command(tmp_path: Path) -> None:
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        rng = np.random.default_rng(len(name))
        rows = [",".join(f"{v:.1f}" for v in rng.normal(size=13)) + f",{k % 2}" for k in range(30)]
        (tmp_path / f"processed.{name}.data").write_text("\n".join(rows) + "\n")
    words = ["lab", "train", "heart", "--data-dir", str(tmp_path), "--no-verify"]
    out = tmp_path / "heart.npz"
    result = CliRunner().invoke(app, [*words, "-o", str(out), "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["sites"], record["samples"]) == (4, 120)
    assert outputs.read(out).accuracy == pytest.approx(record["accuracy"])
    assert json.loads(out.with_suffix(".json").read_text())["settings"]["folds"] == 10
    refused = CliRunner().invoke(app, [*words, "-o", str(out), "--rounds", "3"])
    assert "--rounds" in str(refused.exception)


def test_natural_sites_own_their_samples_and_are_halved_anew_by_seed(
    stroke: outputs.Outputs,
) -> None:
    sites = stroke.column("country")
    setting = Setting(share=0.0, sites=sites, min_size=50)
    worlds = [
        make_world(stroke.probabilities, stroke.labels, setting, np.random.default_rng(seed))
        for seed in (0, 0, 1)
    ]
    names, sizes = np.unique(sites, return_counts=True)
    assert worlds[0].federation.ids == tuple(names[sizes >= 50])
    assert np.array_equal(worlds[0].federation.counts, worlds[1].federation.counts)
    assert not np.array_equal(worlds[0].federation.counts, worlds[2].federation.counts)
    scores = LAC()(stroke.probabilities, stroke.labels)
    for world in worlds:
        mine = np.sort(np.concatenate([*world.scores, world.test_scores]))
        assert np.array_equal(mine, np.sort(scores[np.isin(sites, world.federation.ids)]))
        for name, own in zip(world.federation.ids, world.scores, strict=True):
            assert abs(2 * len(own) - (sites == name).sum()) <= 1
            assert np.isin(own, scores[sites == name]).all()


def test_by_site_leaves_small_sites_out_and_refuses_none() -> None:
    parts = partitions.by_site([3, 1, 3, 2, 3, 1], minimum=2)
    assert {name: part.tolist() for name, part in parts.items()} == {"1": [1, 5], "3": [0, 2, 4]}
    with pytest.raises(RobfcpError, match="none of 3 has 9 samples"):
        partitions.by_site([3, 1, 3, 2], minimum=9)


def test_simulate_refuses_sites_that_do_not_fit(stroke: outputs.Outputs) -> None:
    data = stroke.probabilities, stroke.labels
    with pytest.raises(RobfcpError, match="natural sites are as they are"):
        simulate(*data, sites=stroke.column("site"), beta=0.5)
    with pytest.raises(RobfcpError, match="2 names but 19285"):
        simulate(*data, sites=["a", "b"])


def test_gross_lies_are_found_among_real_hospitals(stroke: outputs.Outputs) -> None:
    rows = simulate(
        stroke.probabilities, stroke.labels, sites=stroke.column("site"), min_size=50, share=0.2,
        attack="efficiency", liars="estimate", defences=["none", DEFAULT], seeds=2,
    )  # fmt: skip
    for row in rows:
        assert row.n_clients == 118
        assert row.caught == (24 if row.defence == DEFAULT else 0)


def invoke(*words: object) -> dict | list:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    if result.exit_code:
        raise result.exception or AssertionError(result.output)
    return json.loads(result.stdout)


def test_the_commands_take_natural_sites(tmp_path: Path) -> None:
    words = ("--sites", "natural", "--seeds", 1, "--share", 0.25)
    rows = invoke("lab", "simulate", "heart", *words, "--attack", "subset")["rows"]
    assert {row["n_clients"] for row in rows} == {4}
    more = ("--site-column", "country", "--min-size", 100, "--attack", "old-model")
    assert {
        row["n_clients"] for row in invoke("lab", "simulate", "stroke", *words, *more)["rows"]
    } == {24}
    cells = invoke("lab", "redteam", "heart", *words, "--attack", "stale-file", "--defence", "none")
    assert cells[0]["runs"] == 1
    given = outputs.load("heart", outputs.NATURAL)
    path = tmp_path / "own.npz"
    np.savez(
        path, probabilities=given.probabilities, labels=given.labels, ward=given.column("group")
    )
    found = invoke("lab", "simulate", path, *words, "--site-column", "ward")["rows"]
    assert {row["n_clients"] for row in found} == {2}
    trained = tmp_path / "trained.npz"
    outputs.write(trained, np.log(given.probabilities), given.labels, columns=given.columns)
    assert {row["n_clients"] for row in invoke("lab", "simulate", trained, *words)["rows"]} == {4}
    assert (
        invoke("lab", "simulate", trained, "--clients", 9, "--seeds", 1)["rows"][0]["n_clients"]
        == 9
    )
    for bad, word in (
        (
            ("lab", "simulate", "mnist", *words),
            "mnist has no sites of its own; use one of stroke, heart",
        ),
        (("lab", "simulate", "heart", *words, "--beta", 1), "--beta"),
        (("lab", "simulate", "heart", *words, "--site-column", "x"), "no column 'x'"),
        (("lab", "simulate", "heart", "--sites", "wild"), "neither 'artificial' nor 'natural'"),
        (("lab", "simulate", path, *words), "has no array 'site'"),
    ):
        with pytest.raises(RobfcpError, match=word):
            invoke(*bad)


def alike(rng: np.random.Generator, n: int = 6000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels = rng.integers(0, 3, n)
    return rng.beta(1 + labels, 3), labels, rng.integers(0, 40, n).astype(str)


def test_heterogeneity_is_one_for_sites_that_are_alike() -> None:
    found = [natural.heterogeneity(*alike(np.random.default_rng(seed))) for seed in range(6)]
    assert np.mean([one["pooled"] for one in found]) == pytest.approx(1, abs=0.1)
    assert np.mean([one["given_labels"] for one in found]) == pytest.approx(1, abs=0.1)


def test_label_shift_is_explained_by_the_labels_and_nothing_else_is() -> None:
    rng = np.random.default_rng(0)
    scores, labels, _ = alike(rng)
    by_label = ((labels * 13 + rng.integers(0, 20, len(labels))) % 40).astype(str)
    shifted = natural.heterogeneity(scores, labels, by_label)
    assert shifted["pooled"] > 3
    assert shifted["given_labels"] == pytest.approx(1, abs=0.2)
    assert shifted["explained"] > 0.9
    by_score = np.where(rng.random(len(scores)) < scores, "hard", "easy")
    assert natural.heterogeneity(scores, labels, by_score)["given_labels"] > 20
    with pytest.raises(RobfcpError, match="two are needed"):
        natural.heterogeneity(scores, labels, np.full(len(scores), "one"))


def test_pooled_heterogeneity_of_two_sites_is_pearsons_statistic() -> None:
    from scipy.stats import chi2_contingency

    rng = np.random.default_rng(3)
    scores, sites = rng.random(900), np.where(np.arange(900) < 300, "a", "b")
    found = natural.heterogeneity(scores, np.zeros(900, int), sites)
    cells = np.searchsorted(np.quantile(scores, [0.2, 0.4, 0.6, 0.8]), scores)
    table = [np.bincount(cells[sites == name], minlength=5) for name in "ab"]
    assert found["pooled"] == pytest.approx(chi2_contingency(table).statistic / 4)


def test_the_table_of_natural_federations_is_what_the_outputs_hold() -> None:
    rows = {row["federation"]: row for row in map(natural.described, natural.FEDERATIONS)}
    hospitals = rows["stroke trial, hospitals"]
    assert (hospitals["sites"], hospitals["sites_used"], hospitals["most"]) == (464, 118, 524)
    assert rows["heart disease, hospitals"]["samples_used"] == 920
    assert natural.unlike(natural.FEDERATIONS[0])["given_labels"] > 1


def test_sites_get_what_each_rule_gives_them_and_letters_help_the_worst() -> None:
    rows, rules = natural.by_site(natural.FEDERATIONS[2], seeds=2)
    assert [row["samples"] for row in rows] == [303, 294, 123, 200]
    by_rule = {row["rule"]: row for row in rules}
    assert list(by_rule) == ["pooled", "dealt", "by class", "letter", "own data"]
    for rule in natural.RULES:
        found = by_rule[rule]
        weights = [row["samples"] for row in rows]
        assert found["overall"] == pytest.approx(
            np.average([row[rule] for row in rows], weights=weights)
        )
        assert found["worst"] <= found["tenth"] <= found["best"] <= 1
    assert by_rule["letter"]["worst"] > by_rule["pooled"]["worst"]


def test_coverage_of_a_site_is_the_share_of_its_test_half(stroke: outputs.Outputs) -> None:
    """Against loops, with the halves drawn as site_outcomes draws them."""
    sites = stroke.column("country")
    data = (stroke.probabilities, stroke.labels, sites)
    rules = ("pooled", "by class")
    found = natural.site_outcomes(*data, rules=rules, seeds=1, min_size=700)
    parts = partitions.by_site(sites, 700)
    assert found["pooled"].sites == tuple(parts)
    rng, score = np.random.default_rng([0, 0]), LAC()
    halves = [np.array_split(rng.permutation(part), 2) for part in parts.values()]
    reports = [
        Report.from_scores(
            name, score(stroke.probabilities[own], stroke.labels[own]), score=score,
            labels=stroke.labels[own], classes=4,
        )
        for name, (own, _) in zip(parts, halves, strict=True)
    ]  # fmt: skip
    for rule, by in (("pooled", None), ("by class", "class")):
        calibration = calibrate(reports, by=by, defence="none")
        for k, (_, test) in enumerate(halves):
            sets = calibration.predict_set(stroke.probabilities[test])
            hit = sets[np.arange(len(test)), stroke.labels[test]]
            assert found[rule].coverage[k] == pytest.approx(hit.mean())
            assert found[rule].set_size[k] == pytest.approx(sets.sum(axis=1).mean())


def test_nobody_is_accused_by_ours_among_honest_hospitals() -> None:
    for row in natural.lies(natural.FEDERATIONS[2], ("coverage",), 0.0, 3):
        assert row["attack"] == "nobody lies"
        assert row["found"] == 0
        if row["defence"] == DEFAULT:
            assert row["false_alarms"] == 0


def test_reproduce_natural_leaves_table_and_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(natural, "FEDERATIONS", natural.FEDERATIONS[2:3])
    rows = invoke("lab", "reproduce", "natural", "-o", tmp_path, "--seeds", 2)["natural"]
    assert [row["attack"] for row in rows] == ["nobody lies", *natural.ATTACKS]
    assert (tmp_path / "natural.png").stat().st_size > 5000
    assert (tmp_path / "natural.csv").read_text().startswith("federation,attack,liars")
