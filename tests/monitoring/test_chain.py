"""Rounds: the chain holds together, leaves nobody honest out, and says what changed."""

import json
from math import pi

import msgspec
import numpy as np
import pytest
from effort import cases
from makers import beta_scores, refused, reports_of, said, saved

import robfcp
from robfcp.calibration.audit import verify_calibration
from robfcp.errors import RobfcpError
from robfcp.monitoring import AlarmHistory, Chain, EReport, chain_path
from robfcp.monitoring.chain import drifted


def federation(rng, n=200, clients=12, liars=0, shifted=()):
    scores = beta_scores(rng, clients, n)
    for k in range(liars):
        scores[k] = np.full(n, 0.99)
    for k in shifted:
        scores[k] = rng.beta(3, 2, n)
    return robfcp.Federation.from_reports(reports_of(scores, round="1"))


def calibration(found, **options):
    return robfcp.calibrate(found, **{"defence": robfcp.Consensus(at_most=2), **options})


def test_the_error_spent_over_all_rounds_is_delta():
    chain = Chain.begin(calibration(federation(np.random.default_rng(0))))
    third = msgspec.structs.replace(chain, links=chain.links * 2)
    assert third.error == pytest.approx(6 * 0.05 / (pi**2 * 9))
    assert sum(1 / r**2 for r in range(1, 200_000)) == pytest.approx(pi**2 / 6, rel=1e-4)


def test_a_site_that_cannot_be_honest_stays_out_until_readmitted():
    rng = np.random.default_rng(0)
    previous, now, later = calibration(federation(rng)), federation(rng, liars=1), federation(rng)
    chain = Chain.begin(previous)
    admitted = chain.admit(now, 2, alike=0.02)
    assert list(admitted.told["left_out"]) == ["site-00"]
    assert (admitted.liars, admitted.federation.n_clients) == (1, 11)
    second = calibration(admitted.federation, defence=robfcp.Consensus(at_most=1))
    words = "1 site is out, justly but for a chance of 0.05 over all rounds"
    (out,) = (one for one in second.certificate.assumptions if one.name == "chain")
    assert (out.value, words in second.statement) == (words, True)
    assert "adds to the chance to fail; no more sites than stated ever lie" in out.text
    assert "every round brings fresh samples" in out.text
    assert verify_calibration(second) == []
    chain = chain.extended(second, previous, admitted)
    third = chain.admit(later, 2, alike=0.02)
    assert (third.federation.n_clients, third.liars) == (11, 1)
    assert "out since round 2" in third.federation.faulty[0].reason
    back = chain.admit(later, 2, alike=0.02, readmit=["site-00"])
    assert (back.federation.n_clients, back.liars, back.told["out"]) == (12, 2, {})
    chain = chain.extended(calibration(back.federation), second, back)
    assert chain.links[-1].readmitted == ["site-00"]
    assert chain.reputations()["site-00"].out_since is None
    outside = Chain.from_json(msgspec.structs.replace(chain, edges=(10**6,)).to_json())
    for wrong, words in (
        (lambda: chain.admit(later, 2, readmit=["site-05"]), "site-05 is not out"),
        (lambda: chain.extended(second, previous, back), "not the last calibration"),
        (lambda: outside.admit(later, 2, 0.02), "its chain looks outside the grid; begin another"),
    ):
        with pytest.raises(RobfcpError, match=words):
            wrong()
    for liars, alike in ((2, None), (None, 0.02), (0, 0.02)):  # nothing is stated
        admitted = Chain.begin(previous).admit(now, liars, alike)
        assert (admitted.told["out"], admitted.liars) == ({}, liars)


@pytest.mark.slow
def test_honest_sites_are_left_out_as_rarely_as_stated():
    """100 chains of 12 rounds of honest sites, two liars beside them, delta 0.05."""
    wrong = 0
    for seed in range(100):
        rng, out = np.random.default_rng(seed), set()
        chain = Chain.begin(calibration(federation(rng, n=60)))
        for _ in range(12):
            admitted = chain.admit(federation(rng, n=60, liars=2), 2, alike=0.0)
            out |= set(admitted.told["out"]) - {"site-00", "site-01"}
            chain = msgspec.structs.replace(chain, links=(*chain.links, chain.links[-1]))
        wrong += bool(out)
    assert wrong <= 10


@pytest.mark.effort
def test_drift_of_a_site_is_named_and_chance_is_not():
    rng = np.random.default_rng(0)
    old, shifted = federation(rng, n=500), federation(rng, n=500, shifted=[3, 7])
    assert set(drifted(old, shifted, 0.05)) == {"site-03", "site-07"}
    pairs = ((federation(rng, n=30), federation(rng, n=90)) for _ in range(cases(40)))
    assert sum(bool(drifted(*pair, 0.05)) for pair in pairs) <= 0.05 * cases(40)
    grid, slack = robfcp.Grid.uniform(4), 2 * np.sqrt(np.log(4 * 3 / 0.05) / 2000)  # n = 1000
    for moved, named in ((int(1000 * slack) - 1, []), (int(1000 * slack) + 1, ["client-1"])):
        rows = ([[300, 0, 0, 700], [300 - x, x, 0, 700], [9, 1, 1, 9]] for x in (0, moved))
        old, new = (robfcp.Federation.from_counts(counts, grid) for counts in rows)
        far = pytest.approx(moved / 1000)  # Kolmogorov's distance
        assert drifted(old, new, 0.05) == dict.fromkeys(named, far)


def test_the_command_keeps_the_chain_and_says_what_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, rounds = np.random.default_rng(0), [{}, {"liars": 1, "shifted": [5]}, {}]
    sent = [federation(rng, n=500, **options) for options in rounds]
    files = [saved(tmp_path / f"r{number}", one) for number, one in enumerate(sent)]
    words = ["--liars", 2, "--alike", "0.02", "-o"]
    said("calibrate", *files[0], "-o", "c0.json")
    second = said("calibrate", *files[1], *words, "c1.json", "--previous", "c0.json")
    assert "no chain lies beside c0.json" in second
    assert "left out for good: site-00, site-05" in second
    assert "drifted since" not in second  # those that are out are compared with nobody
    third = ["calibrate", *files[2], *words, "c2.json", "--previous", "c1.json"]
    assert "out since round 2" in said(*third)
    back = json.loads(said(*third, "--readmit", "site-00", "--json"))["chain"]
    assert (back["number"], back["out"]) == (3, {"site-05": 2})
    known = {"reported": 1, "flagged": 0, "drifted": 0, "alarmed": 0, "out_since": 2}
    assert back["reputations"]["site-05"] == known
    assert "as --previous" in refused("calibrate", *files[0], "--readmit", "site-00")


def test_a_round_after_an_alarm_records_it_and_asks_for_fresh_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, names = np.random.default_rng(0), [f"site-{k:02d}" for k in range(8)]
    first, fresh = (saved(tmp_path / folder, federation(rng, clients=8)) for folder in "ab")
    said("calibrate", *first, "--liars", "1", "-o", "c1.json")
    alarms = AlarmHistory(robfcp.Calibration.load("c1.json").identity, None, 8, 1, 0.05)
    sent = [EReport(name, alarms.calibration, 0.9, 4000, 12.0, step=3) for name in names]
    _, alarms = alarms.looked(sent, 3)
    alarms.save("alarms.json")
    words = ["calibrate", *fresh[:7], first[7], "-o", "c2.json", "--alarms", "alarms.json"]
    assert "as --previous" in refused(*words)
    told = " ".join(said(*words, "--previous", "c1.json", "--html", "p.html").split())
    assert "rang at step 3" in told
    assert "sent the report of the round before again: site-07" in told
    chain = Chain.from_json(chain_path("c2.json").read_bytes())
    link = chain.links[-1]
    assert (link.alarms, link.rang) == (alarms.digest, {"coverage": 3})
    assert (link.alarmed, link.repeated) == (names, ["site-07"])
    assert chain.reputations()["site-00"].alarmed == 1
    assert "watches another calibration" in refused(*words, "--previous", "c2.json")
