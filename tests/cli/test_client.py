"""The client's commands: reports of every score, private reports, and terms of a round."""

import json

import numpy as np
import pytest
from makers import command_error, command_output, outputs, write_table

import robfcp


def report_arguments(folder, client_index, *options, n_samples=300):
    """Return the arguments of a call that makes the report of a client."""
    write_table(
        folder / f"{client_index}.csv",
        *outputs(client_index, n_samples, 4, 0.3),
        ["p0", "p1", "p2", "p3"],
    )
    return (
        "report",
        folder / f"{client_index}.csv",
        "-c",
        f"s{client_index}",
        "-o",
        folder / f"{client_index}.json",
        *options,
    )


def test_regression_works_from_files(tmp_path):
    predictions = np.random.default_rng(0).normal(size=(200, 2))
    table_path = write_table(tmp_path / "a.csv", predictions, names=["prediction", "target"])
    arguments = (
        "report",
        table_path,
        "-c",
        "a",
        "-o",
        tmp_path / "r.json",
        "--score",
        "absolute-residual",
    )
    assert "noise would drown" in command_error(*arguments, "--dp-epsilon", 1)
    assert "has no classes" in command_error(*arguments, "--stratify-by-class")
    command_output(*arguments)
    command_output("calibrate", tmp_path / "r.json", "-o", tmp_path / "c.json", "-q")
    arguments = "predict", tmp_path / "c.json", table_path, "-o", tmp_path / "i.csv"
    assert 0.88 < json.loads(command_output(*arguments, "--json"))["coverage"] < 0.95
    quantile_table = write_table(
        tmp_path / "two.csv", predictions[:, [0, 0, 1]], names=["q1", "q2", "target"]
    )
    for command in ("predict", "evaluate", "monitor"):
        assert "two.csv: predictions: shape (200, 2)" in command_error(
            command, tmp_path / "c.json", quantile_table
        )
    assert (tmp_path / "i.csv").read_text().startswith("row,lower,upper\n0,")


@pytest.mark.parametrize("score", ["aps", "raps", "lac", "saps", "ordinal-aps"])
def test_every_score_and_binning_can_be_chosen(tmp_path, score):
    binning = "extended" if score in ("raps", "saps") else "uniform:50"
    options = ["--no-randomized"] if score != "lac" else []
    command_output(
        *report_arguments(
            tmp_path, 0, "--score", score, *options, "--round", 3, "--binning", binning
        )
    )
    loaded = robfcp.Report.load(tmp_path / "0.json")
    assert (loaded.round, loaded.score.name) == ("3", score)
    assert loaded.binning == robfcp.privacy.parse_binning(binning)


def test_contradicting_report_options_are_refused(tmp_path):
    arguments = report_arguments(tmp_path, 0)
    for options, message in (
        (["--score", "x"], "unknown score 'x'"),
        (["--no-randomized"], "lac does not take randomized"),
        (["--binning", "x"], "binning: 'x' is unknown"),
        (["--groups", "a,b"], "pass --group COLUMN too"),
        (["--logits", "--normalize"], "sums to 1 already"),
        (["--dp-delta", "1e-6"], "needs --dp-epsilon"),
        (["--ledger", tmp_path / "l.json"], "give --dp-epsilon"),
        (["--dp-epsilon", "1"], "needs --ledger"),
    ):
        assert message in command_error(*arguments, *options)
        assert not (tmp_path / "0.json").exists()


def test_the_output_states_what_small_classes_and_all_labels_reveal(tmp_path):
    probabilities, labels = outputs(0, 300, 4, 0.3)
    rows = np.sort([*np.flatnonzero(labels < 3), np.argmax(labels == 3)])
    write_table(tmp_path / "a.csv", probabilities[rows], labels[rows], ["p0", "p1", "p2", "p3"])
    arguments = "report", tmp_path / "a.csv", "-c", "a", "-o", tmp_path / "r.json"
    assert "no count is that of a single one" in " ".join(
        command_output(*arguments, "--withhold-labels").split()
    )
    printed = " ".join(command_output(*arguments, "--stratify-by-class").split())
    assert (
        "Fewer than 5 samples: class 3. A reader sees how many, and nothing of their scores"
        in printed
    )
    printed = " ".join(command_output(*arguments, "--include-all-labels").split())
    assert "of --include-all-labels at least 5 labels, which may be of one sample" in printed


# Private reports


def test_privacy_options_are_those_of_privacy(tmp_path):
    pytest.importorskip("opendp")
    ledger = "--ledger", tmp_path / "ledger.json", "--json"
    options = "--dp-epsilon", 1, "--dp-delta", 1e-6, "--neighbors", "add-remove", *ledger
    printed = json.loads(
        command_output(*report_arguments(tmp_path, 0, *options, "--max-samples-per-patient", 2))
    )
    assert printed["privacy"]["max_samples_per_patient"] == 2
    loaded = robfcp.Report.load(tmp_path / "0.json")
    privacy = robfcp.Privacy(1, 1e-6, "add-remove", max_samples_per_patient=2)
    assert (loaded.privacy, loaded.binning.n_bins) == (privacy, 32)


def test_a_ledger_refuses_reports_beyond_the_budget_and_of_other_data(tmp_path):
    pytest.importorskip("opendp")
    arguments = report_arguments(
        tmp_path, 0, "--dp-epsilon", 1, "--ledger", tmp_path / "ledger.json"
    )
    assert "(1, 0)-differentially private" in " ".join(command_output(*arguments).split())
    content = (tmp_path / "0.json").read_bytes()
    assert "have spent epsilon 1 of 1" in command_error(*arguments)
    assert "is the ledger of '0.csv', not of 'b'" in command_error(*arguments, "--dataset", "b")
    assert (tmp_path / "0.json").read_bytes() == content


# Terms


@pytest.fixture
def terms_folder(tmp_path):
    pytest.importorskip("cryptography")
    command_output("keygen", "server", "-o", tmp_path / "server.key")
    (tmp_path / "round.toml").write_text(
        'round = "r1"\nmodel = "m1"\nscore = "lac"\nbinning = "uniform:50"\n'
    )
    command_output("terms", tmp_path / "round.toml", "--sign", tmp_path / "server.key")
    return tmp_path


def test_clients_and_server_follow_the_terms(terms_folder):
    terms = "--terms", terms_folder / "round.toml"
    pinned_terms = *terms, "--server-key", terms_folder / "server.key.pub"
    for k in range(3):
        command_output(*report_arguments(terms_folder, k, *pinned_terms, n_samples=60))
    loaded = robfcp.Report.load(terms_folder / "0.json")
    assert (loaded.round, loaded.model, loaded.binning) == ("r1", "m1", robfcp.Binning.uniform(50))
    command_output(
        *report_arguments(
            terms_folder,
            3,
            "--round",
            "r1",
            "--model",
            "m2",
            "--binning",
            "uniform:50",
            n_samples=60,
        )
    )
    paths = [terms_folder / f"{k}.json" for k in range(4)]
    command_output("calibrate", *paths, *terms, "--max-malicious", 0, "-o", terms_folder / "c.json")
    calibration = robfcp.Calibration.load(terms_folder / "c.json", record=True)
    assert calibration.benign_clients == ("s0", "s1", "s2")
    assert calibration.verification.model == calibration.verification.binning == "given"
    assert "is not what was agreed (r1)" in command_error(
        "calibrate", *paths, *terms, "--round", "r2"
    )
    arguments = report_arguments(terms_folder, 0, *terms)
    assert "is not what was agreed (lac)" in command_error(*arguments, "--score", "aps")
    (terms_folder / "round.toml").write_text('round = "r1"\nbinning = "uniform:3"\n')
    command_output(*arguments)
    assert "not signed by the pinned key" in command_error(*arguments, *pinned_terms[2:])
    (terms_folder / "round.toml.sig").unlink()
    assert "no such file" in command_error(*arguments, *pinned_terms[2:])


def test_terms_include_the_privacy(terms_folder):
    pytest.importorskip("opendp")
    (terms_folder / "round.toml").write_text(
        'round = "r1"\nbinning = "uniform:16"\ndp-epsilon = 2.0\n'
    )
    command_output(
        *report_arguments(
            terms_folder, 0, "--terms", terms_folder / "round.toml", "--ledger", terms_folder / "l"
        )
    )
    assert robfcp.Report.load(terms_folder / "0.json").privacy == robfcp.Privacy(2.0)
