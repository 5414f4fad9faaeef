"""The server's commands: reports, keys and terms in, calibrations, feedback and logs out."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from makers import command_error, command_output, outputs, write_table

import robfcp
from robfcp._sealed import sha256_of
from robfcp.cli.server import parse_defense, parse_guarantee
from robfcp.monitoring import EValueReport

COLUMN_NAMES = ["p0", "p1", "p2", "p3"]


@pytest.fixture(scope="module")
def reported_round(tmp_path_factory):
    """Return a folder of tables and reports of seven clients."""
    folder = tmp_path_factory.mktemp("sites")
    for k in range(7):
        probabilities, labels = outputs(
            k, 300, 4, 0.3
        )  # the third claims to be certain and always correct
        table_path = write_table(
            folder / f"site-{k}.csv",
            np.eye(4)[labels] if k == 2 else probabilities,
            labels,
            COLUMN_NAMES,
        )
        report_path = folder / "reports" / f"{k}.json"
        command_output(
            "report", table_path, "--client", f"site-{k}", "--model", "m1", "-o", report_path
        )
    return folder


@pytest.fixture
def round_folder(reported_round, tmp_path):
    """Return a copy that a test may change."""
    return shutil.copytree(reported_round, tmp_path, dirs_exist_ok=True)


def test_clients_report_the_server_calibrates_and_a_client_predicts(round_folder):
    printed = command_output("calibrate", round_folder / "reports", "-o", round_folder / "c.json")
    assert "excluded  site-2" in printed
    p, y = outputs(99, 500, 4, 0.3)
    arguments = (
        "predict",
        round_folder / "c.json",
        write_table(round_folder / "test.csv", p, y, COLUMN_NAMES),
        "--model",
        "m1",
    )
    figures = json.loads(command_output(*arguments, "-o", round_folder / "sets.npy", "--json"))
    sets = robfcp.Calibration.load(round_folder / "c.json").predict_set(p)
    assert figures["coverage"] == robfcp.metrics.coverage(sets, y)
    assert figures["mean_set_size"] == robfcp.metrics.mean_set_size(sets)
    np.testing.assert_array_equal(np.load(round_folder / "sets.npy"), sets)
    assert "was made for model m1, not m2" in command_error(*arguments[:3], "--model", "m2")
    np.save(round_folder / "p.npy", np.array([[0.5, 0.25, 0.25, 0.0]]))
    assert "coverage" not in json.loads(
        command_output(*arguments[:2], round_folder / "p.npy", "--json")
    )


def test_collected_reports_are_the_valid_ones_and_give_the_same_calibration(round_folder):
    reports, clean = round_folder / "reports", round_folder / "clean.parquet"
    (reports / "x.json").write_text("{broken")
    (reports / "z.json").write_bytes((reports / "0.json").read_bytes())
    assert "7 valid reports of 9 files" in command_output("collect", reports, "-o", clean)
    of_table = json.loads(command_output("calibrate", clean, "--json"))
    of_files = json.loads(command_output("calibrate", reports, reports / "absent.json", "--json"))
    assert sorted(rejection["field"] for rejection in of_files["rejected_reports"]) == [
        "file",
        "report",
    ]
    assert of_table["benign_clients"] == of_files["benign_clients"]
    assert of_table["levels"][0]["threshold"] == of_files["levels"][0]["threshold"]
    assert "quorum" in command_error(
        "collect", reports, "-o", round_folder / "none.parquet", "--round", "r9"
    )
    assert not (round_folder / "none.parquet").exists()


GUARANTEE_OPTIONS = (
    "max_malicious",
    "heterogeneity",
    "max_malicious_samples",
    "label_distribution",
)
LABEL_SHIFT_OPTIONS = {
    "guarantee": "label-shift",
    "max_malicious": 1,
    "heterogeneity": 0.1,
    "label_distribution": "any",
}


@pytest.mark.parametrize(
    ("options", "guarantee", "defense"),
    [
        ({}, None, robfcp.Consensus()),
        ({"max_malicious": 3}, None, robfcp.Consensus(max_malicious=3)),
        ({"n_malicious": 3}, None, robfcp.Consensus(n_malicious=3)),
        (
            {"n_malicious": 3, "max_malicious": 2, "guarantee": "pac"},
            robfcp.PACGuarantee(2),
            robfcp.Consensus(n_malicious=3),
        ),
        (
            {"guarantee": "marginal", "max_malicious_samples": 9},
            robfcp.MarginalGuarantee(max_malicious_samples=9),
            robfcp.Consensus(),
        ),
        (
            {"guarantee": "pac", "max_malicious": 1, "heterogeneity": 0.1},
            robfcp.PACGuarantee(1, 0.1),
            robfcp.Consensus(),
        ),
        (LABEL_SHIFT_OPTIONS, robfcp.LabelShiftGuarantee(1, 0.1, "any"), robfcp.Consensus()),
        ({"defense": "rob-fcp", "max_malicious": 2}, None, robfcp.RobFCP(2)),
        ({"defense": "none", "max_malicious": 2}, None, robfcp.defense.FCP()),
    ],
)
def test_options_are_parsed_to_guarantees_and_defenses(options, guarantee, defense):
    guarantee_options = {name: options.get(name) for name in GUARANTEE_OPTIONS}
    parsed = parse_guarantee(options.get("guarantee"), guarantee_options)
    max_malicious = None if parsed else options.get("max_malicious")
    n_malicious = options.get("n_malicious")
    assert parsed == guarantee
    assert parse_defense(options.get("defense", "consensus"), max_malicious, n_malicious) == defense


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--heterogeneity 0.1", "--heterogeneity: belongs to a guarantee"),
        ("--label-distribution a=lot", "is neither uniform, any nor NAME=FRACTION"),
        ("--guarantee marginal", "give how many clients may be malicious (--max-malicious M), or"),
        ("--guarantee pac", "give how many clients may be malicious"),
        ("--defense none --n-malicious 1", "belongs to --defense consensus"),
        ("--n-malicious 1 --max-malicious 1", "n_malicious, max_malicious: give one of them"),
        ("--dp-delta 1e-6", "dp-delta: belongs to dp-epsilon"),
        ("--coverage 0.9 --alpha 0.1", "--alpha: means --coverage 1 - ALPHA"),
        ("--quorum 9", "the quorum is 9"),
        ("--max-client-share 0.1", "every site holds more than 0.1"),
        ("--exclude nobody", "no client of this round is called nobody"),
    ],
)
def test_contradicting_options_are_refused(reported_round, options, message):
    assert message in command_error("calibrate", reported_round / "reports", *options.split())


def test_excluded_clients_are_rejected_and_listed_with_the_reason(round_folder):
    exclusions = "--exclude", "site-2", "--exclude", "site-4"
    calibration = json.loads(
        command_output("calibrate", round_folder / "reports", *exclusions, "--json")
    )

    assert calibration["n_clients"] == 5
    assert calibration["clients_not_covered"] == ["site-2", "site-4"]
    assert [rejection["client"] for rejection in calibration["rejected_reports"]] == [
        "site-2",
        "site-4",
    ]
    printed = " ".join(command_output("calibrate", round_folder / "reports", *exclusions).split())
    assert "rejected site-2: was excluded by the operator; ask the operator why" in printed

    for client in (2, 4):
        (round_folder / "reports" / f"{client}.json").unlink()
    without_their_reports = json.loads(
        command_output("calibrate", round_folder / "reports", "--json")
    )
    assert calibration["levels"][0]["threshold"] == without_their_reports["levels"][0]["threshold"]
    assert calibration["benign_clients"] == without_their_reports["benign_clients"]


# Keys, signatures and the log


@pytest.fixture
def signed_folder(round_folder):
    pytest.importorskip("cryptography")
    command_output("keygen", "server", "-o", round_folder / "server.key")
    options = "--sign", round_folder / "server.key", "--feedback", round_folder / "feedback"
    command_output(
        "calibrate",
        round_folder / "reports",
        "--max-malicious",
        1,
        "-o",
        round_folder / "c.json",
        *options,
    )
    return round_folder


def forge_threshold(path):
    envelope = msgspec.json.decode(path.read_bytes())
    envelope["body"]["levels"][0]["threshold"] = float(robfcp.Binning.default().upper_edges[3])
    envelope["digest"] = sha256_of(msgspec.json.encode(envelope["body"]))
    path.write_bytes(msgspec.json.encode(envelope))


def test_forgeries_are_refused_under_a_pinned_key(signed_folder):
    key_options = "--server-key", signed_folder / "server.key.pub"
    feedback_path = signed_folder / "feedback" / "site-0.json"
    readers = [
        ("predict", signed_folder / "c.json", signed_folder / "site-0.csv"),
        ("show", signed_folder / "c.json"),
        ("verify", signed_folder / "c.json", *signed_folder.glob("c.*.record.json")),
    ]
    for arguments in (
        *readers,
        ("predict", feedback_path, signed_folder / "site-0.csv"),
        ("verify", feedback_path),
    ):
        command_output(*arguments, *key_options)
    report_options = "--report", signed_folder / "reports/2.json"
    assert "as the 7 reports" in command_output("verify", signed_folder / "c.json", *report_options)
    forge_threshold(signed_folder / "c.json")
    for arguments in readers:
        assert "not signed by the pinned key" in command_error(*arguments, *key_options)
    assert "threshold is stated as" in command_error("verify", signed_folder / "c.json")


def test_calibrate_and_verify_write_a_log_that_verify_checks(signed_folder):
    log_path = signed_folder / "audit.jsonl"
    options = (
        "-o",
        signed_folder / "d.json",
        "--audit",
        log_path,
        "--sign",
        signed_folder / "server.key",
    )
    command_output("calibrate", signed_folder / "reports", *options)
    digest = json.loads(
        command_output("verify", signed_folder / "d.json", "--audit", log_path, "--json")
    )["digest"]
    unsigned = re.sub(
        rb',"key":"[^"]*","signature":"[^"]*"', b"", (signed_folder / "d.json").read_bytes()
    )
    assert digest == sha256_of(unsigned)  # the digest on the page
    events = json.loads(command_output("verify", log_path, "--json"))
    assert [event["event"] for event in events][-2:] == ["calibration written", "file verified"]
    assert [event["digest"] for event in events[-2:]] == [digest, digest]
    assert "the digests match" in command_output("verify", log_path)


def test_signatures_and_sizes_are_checked_when_collecting(round_folder):
    pytest.importorskip("cryptography")
    registry_lines, inbox = [], round_folder / "in"
    for k in range(3):
        registry_lines.append(
            command_output("keygen", f"site-{k}", "-o", round_folder / f"{k}.key")
        )
        sign_options = ("--sign", round_folder / f"{min(k, 1)}.key") if k else ()
        arguments = "--round", "r", *sign_options, "-o", inbox / f"{k}.json"
        command_output("report", round_folder / f"site-{k}.csv", "-c", f"site-{k}", *arguments)
    (round_folder / "registry.toml").write_text("".join(registry_lines))
    (round_folder / "sizes.json").write_text(json.dumps({"site-2": 300, "site-1": 9, "site-3": 9}))
    clean = round_folder / "clean.parquet"
    arguments = "collect", inbox, "-o", clean, "--round", "r", "--json"
    for option, filename, expected_client, missing in (
        ("--registered-sizes", "sizes.json", "site-2", ["site-3"]),
        ("--keys", "registry.toml", "site-1", []),
    ):
        collected = json.loads(command_output(*arguments, option, round_folder / filename))
        assert (collected["clients"], collected["missing_clients"]) == ([expected_client], missing)
        assert len(collected["rejected_reports"]) == 2
    arguments = clean, "--round", "r", "--keys", round_folder / "registry.toml"
    assert "a collected table has no signatures; calibrate it without --keys" in command_error(
        "calibrate", *arguments
    )


def test_no_command_replaces_its_inputs(round_folder):
    reports = round_folder / "reports"
    report_path = next((round_folder / "reports").iterdir())
    content = report_path.read_bytes()
    for arguments in (
        ("calibrate", reports, "-o", report_path),
        ("calibrate", report_path, "--feedback", reports),
        (
            "calibrate",
            report_path,
            "--html",
            round_folder / "reports" / ".." / "reports" / report_path.name,
        ),
    ):
        assert "would replace the inputs; choose another place" in command_error(*arguments)
    assert report_path.read_bytes() == content


def test_a_state_folder_keeps_the_calibration_that_is_monitored(folder):
    local_report = robfcp.Report.from_predictions(
        "site-03", *outputs(0, 200, 4, 0.3), min_cell_count=1
    )
    local_report.save("own.json")
    Path("bad.csv").write_text("a,b\n1,x\n")
    arguments = "monitor", "calibration.json", "bad.csv", "-s", "watch/"
    assert "the classes are 0 to 3, the columns a, b; rename the columns" in command_error(
        *arguments
    )
    assert not Path("watch").exists()
    first = command_output(
        "monitor", "calibration.json", "own.csv", "--reference-report", "own.json", "-s", "watch/"
    )
    assert re.search(r"100 new samples, 0\.\d{4} of them covered", first)
    assert "own 200 samples prove" in " ".join(first.split())
    state = json.loads(command_output("monitor", "test.csv", "--state", "watch", "--json"))
    assert (state["n_samples"], state["log_e_exchangeability"] is not None) == (200, True)
    state = json.loads(command_output("monitor", "test.csv", "--state", "watch", "--json"))
    assert (state["n_new"], state["n_repeated"], state["new_coverage"]) == (0, 100, None)
    assert f"200 samples, {state['coverage']:.4f} covered" in state["line"]
    for arguments in (("monitor", "--state", "watch"), ("show", "watch")):
        assert "no alarm: 200 samples" in command_output(*arguments)
    assert "only a folder keeps a calibration" in command_error("monitor")
    p, y = outputs(3, 400, 4, 0.3)
    write_table("shuffled.csv", p, y[::-1], "abcd")
    for command in ("evaluate", "monitor"):  # above the given minimum, below the target
        arguments = command, "calibration.json", "shuffled.csv", "--min-coverage", "0.2"
        assert "the wanted 0.9000 is missed" in " ".join(command_output(*arguments).split())
        command_output(*arguments, "--strict", code=3)
    assert "watches nothing yet; name the calibration" in command_error(
        "monitor", "test.csv", "-s", "w"
    )
    robfcp.Report.from_predictions("site-03", *outputs(0, 200, 4, 0.3)).save("coarse.json")
    arguments = (
        "monitor",
        "calibration.json",
        "own.csv",
        "-s",
        "m.json",
        "--reference-report",
        "coarse.json",
    )
    assert "coarsened counts show no drift" in command_error(*arguments)


def test_merged_alarms_name_the_clients_that_drift_or_are_silent(tmp_path):
    digest = "ab" * 32
    arguments = ("merge-alarms", tmp_path, "-m", 1, "--history", tmp_path / "../h.json")
    for step in (1, 2):
        for path in tmp_path.glob("*.json"):
            path.unlink()
        for k in range(6 - step):
            log_e_exchangeability = 30.0 if k < 3 else 0.0
            report = EValueReport(
                f"s{k}", digest, 0.9, 9 * step, 0.1, "r", step, log_e_exchangeability
            )
            report.save(tmp_path / f"{k}.json")
        merged = json.loads(
            command_output(*arguments, "--n-clients", 6, "--step", step, "--json", code=3)
        )
        assert merged["drifting"] == ["s0", "s1", "s2"]
        assert merged["silent"] == ([] if step == 1 else ["s4"])
    EValueReport("s4", digest, 0.9, 9, 0.1, "r", 1, 0.0).save(tmp_path / "late.json")
    merged = json.loads(command_output(*arguments, "--step", 2, "--json", code=3))
    assert merged["silent"] == []
    assert [rejection["client"] for rejection in merged["rejected_reports"]] == ["s4"]
    (tmp_path / "late.json").unlink()
    printed = command_output("merge-alarms", tmp_path, "-m", 1, "--n-clients", 6, code=3)
    assert "silent  2 of 6 sites, not heard of; --keys would name them" in printed
