"""What a round guarantees on every framework; run by the driver that the fixture `driver` is.

`driver.play(folder, data=, faults=, configs=, only=, **config)` runs one round as configured and
returns (calibration, {client: nonces of its requests}, seconds); `driver.monitor(folder, fresh,
configs=, **options)` asks about `watched()` and returns the merged e-values.
"""

import json
from functools import cache, partial
from importlib.util import find_spec

import integration_faults as faults
import numpy as np
import pytest
from integration_faults import CASES, DATA, client_data, core_reports, drifting

import robfcp
from robfcp.local._feedback import ClientFeedback
from robfcp.privacy import Privacy, PrivacyLedger
from robfcp.reports.signing import generate_key

needs_opendp = pytest.mark.skipif(find_spec("opendp") is None, reason="needs opendp")


def client_entries(calibration):
    return calibration.provenance["clients"]


def statuses(calibration):
    return {client: entry["status"] for client, entry in client_entries(calibration).items()}


def reason(calibration, client="site-2"):
    return client_entries(calibration)[client]["reason"]


@cache
def core_calibration(*names):
    """The calibration of these clients without a framework."""
    reports = core_reports({name: DATA[name] for name in names})
    return robfcp.calibrate(reports, defense=robfcp.Consensus(max_malicious=1))


def check_case(driver, folder, fault, status, reason_text, attempts):
    """The faulty client has the status, and the others calibrate as if it did not exist."""
    is_slow = status in ("missing", "late") or "nonce" in reason_text
    deadline = 1.0 if is_slow else 20.0
    calibration, nonces, seconds = driver.play(folder, faults={"site-3": fault}, deadline=deadline)

    entry = client_entries(calibration)["site-3"]
    assert entry["attempts"] == attempts
    assert len(nonces["site-3"]) == attempts
    assert reason_text in entry["reason"]
    assert statuses(calibration) == {**dict.fromkeys(DATA, "ok"), "site-3": status}
    assert seconds < 2 * deadline + 8  # reports, then the clients' evaluation

    reporting = [name for name in DATA if status == "ok" or name != "site-3"]
    core = core_calibration(*reporting)
    assert calibration.threshold == core.threshold
    assert np.array_equal(calibration.federation.counts, core.federation.counts)
    assert calibration.certificate.n_uncovered_clients == (status != "ok")
    rejected = ["site-3"] if status in ("invalid", "refused_by_client") else []
    assert [report.client for report in calibration.rejected_reports] == rejected

    assert "patient" not in calibration.to_json().decode() + str(calibration.provenance)
    assert calibration.provenance["framework"].startswith(driver.name)
    all_nonces = [nonce for client_nonces in nonces.values() for nonce in client_nonces]
    assert len(set(all_nonces)) == len(all_nonces)
    assert min(map(len, all_nonces)) == 32


@pytest.mark.parametrize("case", CASES)
def test_every_client_is_classified_and_the_others_calibrate(case, driver, tmp_path):
    check_case(driver, tmp_path, *CASES[case])


LEVELS = [0.8, 0.9, 0.95]
PAC_CONFIG = {
    "max-malicious": 1,
    "guarantee": "pac",
    "heterogeneity": 0.05,
    "certificate-confidence": 0.9,
}
OPTIONS = {  # in a configuration, and as `calibrate` takes them
    "the default": ({"max-malicious": 2}, {"defense": robfcp.Consensus(max_malicious=2)}),
    "the paper's": (
        {"defense": "rob-fcp", "max-malicious": 3},
        {"defense": robfcp.RobFCP(3)},
    ),
    "a PAC guarantee": (
        PAC_CONFIG,
        {"guarantee": robfcp.PACGuarantee(1, 0.05), "certificate_confidence": 0.9},
    ),
    "three levels": (
        {"defense": "none", "coverage": LEVELS},
        {"defense": "none", "coverage": LEVELS},
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_round_equals_the_core_to_the_bit(case, driver, tmp_path):
    config, options = OPTIONS[case]
    calibration, _, _ = driver.play(tmp_path, registered_sizes="request", evaluate=False, **config)
    core = robfcp.calibrate(core_reports(DATA), **options)
    for attribute in ("threshold", "benign_clients", "defense", "is_guaranteed"):
        assert getattr(calibration, attribute) == getattr(core, attribute)
    assert [level.certificate_points for level in calibration.levels] == [
        level.certificate_points for level in core.levels
    ]
    assert calibration.federation.sizes_registered


def test_sizes_are_binding_and_clients_that_never_came_are_missing(driver, tmp_path):
    registry = tmp_path / "sizes.json"
    registry.write_text(json.dumps({**dict.fromkeys(DATA, 60), "site-2": 59, "site-9": 60}))
    calibration, _, _ = driver.play(
        tmp_path, registered_sizes=str(registry), expected_clients="site-1 site-8"
    )
    assert "60 but 59 samples were registered" in reason(calibration)
    assert reason(calibration, "site-9") == "registered but not connected"
    assert set(calibration.missing_clients) == {"site-8", "site-9"}
    assert calibration.certificate.n_uncovered_clients == 3


def test_a_client_without_a_registered_size_does_not_count(driver, tmp_path):
    invalid_sizes = {
        "site-1": faults.silent,
        "site-2": faults.raw(b"0"),
        "site-3": faults.raw(b'"60"'),
    }
    calibration, _, _ = driver.play(
        tmp_path, faults=invalid_sizes, only="size", registered_sizes="request", deadline=1
    )
    assert calibration.federation.clients == ("site-0", *(f"site-{k}" for k in range(4, 8)))
    assert calibration.federation.sizes_registered


def test_impossible_claims_about_coverage_are_dropped(driver, tmp_path):
    invalid_claims = [
        b'{"n_samples":5,"n_covered":[6],"total_set_size":[1]}',
        b'{"n_samples":5}',
        b"[]",
    ]
    client_faults = {f"site-{k}": faults.raw(claims) for k, claims in enumerate(invalid_claims)}
    calibration, _, _ = driver.play(tmp_path, faults=client_faults, only="evaluate")

    claims = [client_entries(calibration)[f"site-{k}"]["claims"] for k in (0, 1, 2, 5)]
    sets = calibration.predict_set(DATA["site-5"][0])
    n_covered = int(robfcp.metrics.is_covered(sets, DATA["site-5"][1]).sum())
    benign_claims = {"n_samples": 60, "n_covered": [n_covered], "total_set_size": [sets.sum()]}
    assert claims == [None, None, None, benign_claims]


def test_a_missed_quorum_counts_silent_clients_and_leaves_no_calibration(driver, tmp_path):
    client_faults = {
        "site-1": faults.silent,
        "site-2": faults.forged,
        "site-3": faults.raw(bytes(2**20)),
    }
    with pytest.raises(robfcp.QuorumError, match="only 5"):
        driver.play(tmp_path, faults=client_faults, quorum=6, deadline=1.0)
    assert not list(tmp_path.rglob("calibration.json"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        *(({"deadline": deadline}, "not a valid time") for deadline in (0, np.inf, np.nan)),
        ({"max-malicious": "some"}, "neither a number nor 'unknown'"),
        ({"score": "nothing"}, "nothing"),
        ({"guarantee": "pac", "max-malicious": "unknown"}, "max_malicious: "),
    ],
)
def test_an_invalid_configuration_is_refused(config, message, driver, tmp_path):
    with pytest.raises(robfcp.RobfcpError, match=message):
        driver.play(tmp_path, **config)


def test_all_clients_are_polled_once_more_at_the_deadline(driver, tmp_path):
    """All replies arrive between two polls, just before the deadline."""
    client_faults = dict.fromkeys(DATA, faults.slow(1.1))
    calibration, _, _ = driver.play(
        tmp_path, faults=client_faults, deadline=1.5, poll=1.0, evaluate=False
    )
    assert set(statuses(calibration).values()) == {"ok"}


def test_exceptions_at_a_client_become_codes(driver, tmp_path):
    nan_data = np.full((60, 5), np.nan), np.zeros(60, dtype=int)
    broken_data = {"site-2": ValueError("patient 4711"), "site-3": nan_data, "site-4": None}
    calibration, _, _ = driver.play(tmp_path, data={**DATA, **broken_data})
    assert reason(calibration) == reason(calibration, "site-4") == "scoring failed at the client"
    assert reason(calibration, "site-3") == "robfcp refused the client's data"
    assert "4711" not in str(calibration.provenance)


@needs_opendp
def test_a_client_sets_its_privacy_and_no_server_can_ask_for_more(driver, tmp_path):
    configs = {
        f"site-{k}": {"dp-epsilon": 0.5, "privacy-ledger": str(tmp_path / f"{k}.json")}
        for k in range(6)
    }
    PrivacyLedger(configs["site-2"]["privacy-ledger"]).charge(Privacy(0.5), "before")
    calibration, _, _ = driver.play(tmp_path, configs=configs, binning="uniform:16")
    assert "privacy budget" in reason(calibration)
    assert calibration.federation.privacy == (*[Privacy(0.5)] * 5, None, None)
    assert client_entries(calibration)["site-1"]["claims"] is None  # test data are protected
    assert client_entries(calibration)["site-6"]["claims"]["n_samples"] == 60


def test_a_client_sets_how_small_the_cells_of_its_reports_are(driver, tmp_path):
    stratified = {"stratify-by-class": True}
    configs = {
        "site-1": {"stratify-by-class": False},
        "site-2": stratified | {"min-class-count": 15},
        "site-3": {"min-cell-count": 1},
        "site-4": stratified,
        "site-5": stratified,
    }
    calibration, _, _ = driver.play(
        tmp_path,
        data=client_data(6, n_samples=40),
        configs=configs,
        binning="uniform:16",
        max_malicious=0,
    )
    federation = calibration.federation
    assert any(note.startswith("2 ") and "class" in note for note in calibration.notes)
    assert federation.class_totals.rows.tolist() == [0]
    assert federation.is_coarsened.tolist() == [True, True, True, False, True, True]
    strata = federation.strata
    merged_sizes = strata.stratum_sizes[:, list(strata.labels).index("(other)")]
    assert [federation.clients[k] for k in strata.rows[merged_sizes > 0]] == ["site-2"]


def test_signed_reports_and_feedback(driver, tmp_path):
    keys = {name: generate_key(tmp_path / f"{name}.key") for name in DATA}
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps({name: {"key": key} for name, key in keys.items()}))
    configs = {
        name: {
            "signing-key": str(tmp_path / f"{name}.key"),
            "feedback-dir": str(tmp_path / name),
        }
        for name in DATA
    }
    configs["site-1"]["signing-key"] = configs["site-3"]["signing-key"]
    configs["site-2"] = {}
    play = partial(driver.play, configs=configs)

    calibration, _, _ = play(tmp_path / "keyed", keys=str(registry), send_feedback=True)
    assert "not by its registered key" in reason(calibration, "site-1")
    assert "not signed" in reason(calibration)
    assert "registered keys" in calibration.federation.verification.signatures
    feedback = ClientFeedback.load(*(tmp_path / "site-3").glob("feedback-*"))
    assert feedback.client == "site-3"
    assert feedback.calibration == calibration
    assert not list((tmp_path / "site-2").glob("feedback-*"))

    # Without registered keys a signature must still be by the key that it names.
    wrong_key = {"site-5": faults.altered(key=keys["site-3"])}
    without_keys, _, _ = play(tmp_path / "unkeyed", faults=wrong_key)
    assert set(without_keys.benign_clients) == set(DATA) - {"site-5"}


def test_the_monitor_alarms_if_most_clients_drift_and_the_others_count_as_no_alarm(
    driver, tmp_path
):
    fresh = {name: drifting(0.3, seed=k) for k, name in enumerate(DATA)}
    fresh["site-3"] = OSError("the disk is gone")
    del fresh["site-2"]  # does not monitor
    configs = {name: {"monitor-dir": str(tmp_path / f"{name}.monitor")} for name in DATA}
    configs["site-1"] = {}  # no folder for its state
    configs["site-0"] |= {"dp-epsilon": 1.0, "privacy-ledger": str(tmp_path / "l.json")}
    merged = driver.monitor(
        tmp_path, fresh, configs=configs, max_malicious=2, round="r", min_coverage=0.9
    )
    assert merged["line"].startswith("alarm: 8 ")
    assert "at most 2" in merged["line"]
    assert merged["rejected_reports"] == {f"site-{k}" for k in range(4)}
    assert set(merged["alarming_clients"]) == {f"site-{k}" for k in range(4, 8)}


def test_clients_resume_their_monitors_and_every_inspection_is_recorded(driver, tmp_path):
    history_path = tmp_path / "alarms.json"
    options = {
        "configs": {name: {"monitor-dir": str(tmp_path / name)} for name in DATA},
        "max_malicious": 1,
        "round": "r",
        "min_coverage": 0.9,
        "history": str(history_path),
    }
    log_e_values = []
    for step, n_samples in enumerate((400, 800, 800), start=1):
        fresh = {name: drifting(0.15, n_samples, seed=k) for k, name in enumerate(DATA)}
        merged = driver.monitor(tmp_path, fresh, step=step, **options)
        log_e_values.append(merged["log_mean_e_value"])
    assert log_e_values[0] != log_e_values[1] == log_e_values[2]  # all 800 were counted already

    history = robfcp.monitoring.AlarmHistory.load(history_path)
    assert [inspection.step for inspection in history.inspections] == [1, 2, 3]
    assert history.n_clients == 8
    without_reports = driver.monitor(tmp_path, {}, step=4, **options)
    assert without_reports["log_mean_e_value"] in (None, -np.inf)
    assert robfcp.monitoring.AlarmHistory.load(history_path) == history
