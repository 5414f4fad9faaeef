"""What a round promises on every engine; run by the driver that the fixture `engine` is.

`engine.play(folder, data=, faults=, configs=, only=, **config)` plays one round as configured and
returns (calibration, {site: nonces it was asked with}, seconds); `engine.monitor(folder, fresh,
configs=, **options)` asks about `watched()` and returns what a merged look holds.
"""

import json
from functools import cache, partial
from importlib.util import find_spec

import integration_faults as does
import numpy as np
import pytest
from integration_faults import CASES, DATA, client_data, core_reports, drifting

import robfcp
from robfcp.local._feedback import ClientFeedback
from robfcp.privacy import Privacy, PrivacyLedger
from robfcp.reports.signing import generate_key

needs_opendp = pytest.mark.skipif(find_spec("opendp") is None, reason="needs opendp")


def clients_of(calibration):
    return calibration.provenance["clients"]


def status(calibration):
    return {client: entry["status"] for client, entry in clients_of(calibration).items()}


def reason(calibration, site="site-2"):
    return clients_of(calibration)[site]["reason"]


@cache
def core_of(*names):
    """What the core alone makes of these sites."""
    reports = core_reports({name: DATA[name] for name in names})
    return robfcp.calibrate(reports, defense=robfcp.Consensus(at_most=1))


def check_case(engine, folder, fault, expected, words, attempts):
    """The site of the fault ends as expected, and the others calibrate as if it were not there."""
    deadline = 1.0 if expected in ("missing", "late") or "nonce" in words else 20.0
    calibration, asked, seconds = engine.play(folder, faults={"site-3": fault}, deadline=deadline)
    entry = clients_of(calibration)["site-3"]
    assert (entry["attempts"], len(asked["site-3"])) == (attempts, attempts)
    assert words in entry["reason"]
    assert status(calibration) == {**dict.fromkeys(DATA, "ok"), "site-3": expected}
    assert seconds < 2 * deadline + 8  # reports, then the sites' own check
    kept = [name for name in DATA if expected == "ok" or name != "site-3"]
    core = core_of(*kept)
    assert calibration.threshold == core.threshold
    assert np.array_equal(calibration.federation.counts, core.federation.counts)
    assert calibration.certificate.n_outside == (expected != "ok")
    refused = ["site-3"] if expected in ("faulty", "rejected") else []
    assert [fault.client for fault in calibration.rejected_reports] == refused
    assert "patient" not in calibration.to_json().decode() + str(calibration.provenance)
    assert calibration.provenance["engine"].startswith(engine.name)
    nonces = [nonce for found in asked.values() for nonce in found]
    assert (len(set(nonces)), min(map(len, nonces))) == (len(nonces), 32)


@pytest.mark.parametrize("case", CASES)
def test_every_site_is_classified_and_the_rest_calibrates(case, engine, tmp_path):
    check_case(engine, tmp_path, *CASES[case])


LEVELS = [0.8, 0.9, 0.95]
ALIKE = {"liars": 1, "promise": "pac", "alike": 0.05, "confidence": 0.9}
OPTIONS = {  # as a configuration says it, and as `calibrate` is told
    "the default": ({"liars": 2}, {"defense": robfcp.Consensus(at_most=2)}),
    "the paper's": ({"defence": "rob-fcp", "liars": 3}, {"defense": robfcp.RobFCP(3)}),
    "sites alike": (
        ALIKE,
        {"guarantee": robfcp.PACGuarantee(1, 0.05), "certificate_confidence": 0.9},
    ),
    "three levels": (
        {"defence": "none", "coverage": LEVELS},
        {"defense": "none", "coverage": LEVELS},
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_integrations_end_where_the_core_ends_to_the_bit(case, engine, tmp_path):
    configured, told = OPTIONS[case]
    found, _, _ = engine.play(tmp_path, sizes="ask", check=False, **configured)
    core = robfcp.calibrate(core_reports(DATA), **told)
    for part in ("threshold", "benign_clients", "defense", "is_guaranteed"):
        assert getattr(found, part) == getattr(core, part)
    assert [level.certificate_points for level in found.levels] == [
        level.certificate_points for level in core.levels
    ]
    assert found.federation.sizes_registered


def test_sizes_are_binding_and_who_never_came_is_missing(engine, tmp_path):
    registry = tmp_path / "sizes.json"
    registry.write_text(json.dumps({**dict.fromkeys(DATA, 60), "site-2": 59, "site-9": 60}))
    calibration, _, _ = engine.play(tmp_path, sizes=str(registry), invited="site-1 site-8")
    assert "60 but 59 samples were registered" in reason(calibration)
    assert reason(calibration, "site-9") == "registered but not connected"
    assert set(calibration.missing_clients) == {"site-8", "site-9"}
    assert calibration.certificate.n_outside == 3


def test_who_states_no_size_beforehand_does_not_count(engine, tmp_path):
    lies = {"site-1": does.silent, "site-2": does.raw(b"0"), "site-3": does.raw(b'"60"')}
    found, _, _ = engine.play(tmp_path, faults=lies, only="size", sizes="ask", deadline=1)
    assert found.federation.clients == ("site-0", *(f"site-{k}" for k in range(4, 8)))
    assert found.federation.sizes_registered


def test_lying_claims_about_coverage_are_left_out(engine, tmp_path):
    lies = [b'{"n_samples":5,"covered":[6],"total_size":[1]}', b'{"n_samples":5}', b"[]"]
    faults = {f"site-{k}": does.raw(lie) for k, lie in enumerate(lies)}
    calibration, _, _ = engine.play(tmp_path, faults=faults, only="check")
    claims = [clients_of(calibration)[f"site-{k}"]["claims"] for k in (0, 1, 2, 5)]
    sets = calibration.predict_set(DATA["site-5"][0])
    covered = int(robfcp.metrics.is_covered(sets, DATA["site-5"][1]).sum())
    honest = {"n_samples": 60, "covered": [covered], "total_size": [sets.sum()]}
    assert claims == [None, None, None, honest]


def test_a_missed_quorum_counts_the_silent_and_leaves_no_calibration(engine, tmp_path):
    faults = {"site-1": does.silent, "site-2": does.forged, "site-3": does.raw(bytes(2**20))}
    with pytest.raises(robfcp.QuorumError, match="only 5"):
        engine.play(tmp_path, faults=faults, quorum=6, deadline=1.0)
    assert not list(tmp_path.rglob("calibration.json"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        *(({"deadline": deadline}, "no time to wait") for deadline in (0, np.inf, np.nan)),
        ({"liars": "some"}, "neither a number nor 'unknown'"),
        ({"score": "nothing"}, "nothing"),
        ({"promise": "pac", "liars": "unknown"}, "liars: state how many sites may lie"),
    ],
)
def test_what_a_configuration_cannot_mean_is_refused(config, words, engine, tmp_path):
    with pytest.raises(robfcp.RobfcpError, match=words):
        engine.play(tmp_path, **config)


def test_everybody_is_heard_once_more_at_the_deadline(engine, tmp_path):
    """All replies arrive while nobody looks, just before the deadline."""
    faults = dict.fromkeys(DATA, does.slow(1.1))
    calibration, _, _ = engine.play(tmp_path, faults=faults, deadline=1.5, poll=1.0, check=False)
    assert set(status(calibration).values()) == {"ok"}


def test_exceptions_at_a_site_become_codes(engine, tmp_path):
    nan = np.full((60, 5), np.nan), np.zeros(60, dtype=int)
    broken = {"site-2": ValueError("patient 4711"), "site-3": nan, "site-4": None}
    calibration, _, _ = engine.play(tmp_path, data={**DATA, **broken})
    assert reason(calibration) == reason(calibration, "site-4") == "scoring failed at the client"
    assert reason(calibration, "site-3") == "robfcp refused the client's data"
    assert "4711" not in str(calibration.provenance)


@needs_opendp
def test_a_site_sets_its_own_privacy_and_no_server_can_ask_for_more(engine, tmp_path):
    own = {
        f"site-{k}": {"epsilon": 0.5, "privacy-ledger": str(tmp_path / f"{k}.json")}
        for k in range(6)
    }
    PrivacyLedger(own["site-2"]["privacy-ledger"]).charge(Privacy(0.5), "before")
    calibration, _, _ = engine.play(tmp_path, configs=own, grid="uniform:16")
    assert "privacy budget" in reason(calibration)
    assert calibration.federation.privacy == (*[Privacy(0.5)] * 5, None, None)
    assert clients_of(calibration)["site-1"]["claims"] is None  # test data are its own
    assert clients_of(calibration)["site-6"]["claims"]["n_samples"] == 60


def test_a_site_says_how_small_the_cells_are_that_it_shows(engine, tmp_path):
    kept = {"pooled": False}
    rules = {"pooled": True}, kept | {"least": 15}, {"min-cell-count": 1}, kept, kept
    configs = {f"site-{k}": rule for k, rule in enumerate(rules, 1)}
    data = client_data(6, n_samples=40)
    found, _, _ = engine.play(tmp_path, data=data, configs=configs, grid="uniform:16", liars=0)
    assert any("2 sites keep their class back" in note for note in found.notes)
    assert found.federation.class_totals.rows.tolist() == [0]
    assert found.federation.is_coarsened.tolist() == [True, True, True, False, True, True]
    strata = found.federation.strata
    merged = strata.stratum_sizes[:, list(strata.labels).index("(other)")]
    assert [found.federation.clients[k] for k in strata.rows[merged > 0]] == ["site-2"]


def test_signed_reports_and_letters(engine, tmp_path):
    keys = {name: generate_key(tmp_path / f"{name}.key") for name in DATA}
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps({name: {"key": key} for name, key in keys.items()}))
    own = {
        name: {"signing-key": str(tmp_path / f"{name}.key"), "letter-folder": str(tmp_path / name)}
        for name in DATA
    }
    own["site-1"]["signing-key"] = own["site-3"]["signing-key"]
    own["site-2"] = {}
    play = partial(engine.play, configs=own)
    calibration, _, _ = play(tmp_path / "keyed", keys=str(registry), letters=True)
    assert "not by its registered key" in reason(calibration, "site-1")
    assert "not signed" in reason(calibration)
    assert "registered keys" in calibration.federation.verification.signatures
    letter = ClientFeedback.load(*(tmp_path / "site-3").glob("letter-*"))
    assert (letter.client, letter.calibration) == ("site-3", calibration)
    assert not list((tmp_path / "site-2").glob("letter-*"))
    unkeyed, _, _ = play(tmp_path / "unkeyed", faults={"site-5": does.altered(key=keys["site-3"])})
    assert set(unkeyed.benign_clients) == set(DATA) - {"site-5"}  # not by the key it names itself


def test_the_monitor_rings_where_most_sites_drift_and_the_rest_is_no_alarm(engine, tmp_path):
    fresh = {name: drifting(0.3, seed=k) for k, name in enumerate(DATA)}
    fresh["site-3"] = OSError("the disk is gone")
    del fresh["site-2"]  # does not watch
    own = {name: {"monitor-folder": str(tmp_path / f"{name}.monitor")} for name in DATA}
    own["site-1"] = {}  # no place for its state
    own["site-0"] |= {"epsilon": 1.0, "privacy-ledger": str(tmp_path / "l.json")}
    found = engine.monitor(tmp_path, fresh, configs=own, liars=2, round="r", min_coverage=0.9)
    assert found["line"].startswith("alarm: 8 sites of which at most 2 lie")
    assert found["faulty"] == {f"site-{k}" for k in range(4)}
    assert set(found["alarmed"]) == {f"site-{k}" for k in range(4, 8)}


def test_nodes_go_on_from_their_state_and_every_date_is_kept(engine, tmp_path):
    record = tmp_path / "alarms.json"
    own = {name: {"monitor-folder": str(tmp_path / name)} for name in DATA}
    options = {
        "configs": own,
        "liars": 1,
        "round": "r",
        "min_coverage": 0.9,
        "history": str(record),
    }
    strength = []
    for step, n in enumerate((400, 800, 800), start=1):
        fresh = {name: drifting(0.15, n, seed=k) for k, name in enumerate(DATA)}
        strength.append(engine.monitor(tmp_path, fresh, step=step, **options)["log_mean"])
    assert strength[0] != strength[1] == strength[2]  # all 800 were counted before
    history = robfcp.monitoring.AlarmHistory.load(record)
    assert ([look.step for look in history.looks], history.n_sites) == ([1, 2, 3], 8)
    nobody = engine.monitor(tmp_path, {}, step=4, **options)
    assert nobody["log_mean"] in (None, -np.inf)
    assert robfcp.monitoring.AlarmHistory.load(record) == history
