"""Rounds: the chain holds together, leaves nobody honest out, and says what changed."""

import json
from math import pi

import msgspec
import numpy as np
import pytest
from effort import cases
from makers import beta_scores, refused, reports_of, said, saved

import robfcp
from robfcp.errors import RobfcpError
from robfcp.guarantees.alike import ClientIntervals, client_intervals
from robfcp.monitoring import AlarmHistory, Chain, EReport, chain_path
from robfcp.monitoring.chain import drifted, repeated, spent


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
    total = sum(spent(r, 0.05) for r in range(1, 200_000))
    assert 0.0499 < total < 0.05
    assert spent(3, 0.05) == 6 * 0.05 / (pi**2 * 9)


def test_intervals_at_fixed_edges_are_clopper_and_pearsons():
    found = federation(np.random.default_rng(0), liars=1)
    edges = np.array([3, 200, 500, 998])
    known = ClientIntervals(found, 0.01, edges)
    below = np.stack([found.below(int(e)) for e in edges], axis=1)
    low, high = client_intervals(below, found.sizes, 0.01 / (12 * 4))
    np.testing.assert_allclose(known.low, low.T)
    np.testing.assert_allclose(known.high, high.T)


def test_a_site_that_cannot_be_honest_stays_out_until_readmitted():
    rng = np.random.default_rng(0)
    previous = calibration(federation(rng))
    chain = Chain.begin(previous)
    now = federation(rng, liars=1)
    admitted = chain.admit(now, 2, alike=0.02)
    assert list(admitted.left_out) == ["site-00"]
    assert (admitted.liars, admitted.federation.n_clients) == (1, 11)
    second = calibration(admitted.federation, defence=robfcp.Consensus(at_most=1))
    chain = chain.extended(second, previous, admitted)
    honest_now = federation(rng)
    third = chain.admit(honest_now, 2, alike=0.02)
    assert third.federation.n_clients == 11
    assert third.liars == 1
    assert "out since round 2" in third.federation.faulty[0].reason
    back = chain.admit(honest_now, 2, alike=0.02, readmit=["site-00"])
    assert (back.federation.n_clients, back.liars, back.out) == (12, 2, {})
    chain = chain.extended(calibration(back.federation), second, back)
    assert chain.links[-1].readmitted == ["site-00"]
    assert chain.reputations()["site-00"].out_since is None
    with pytest.raises(RobfcpError, match="site-05 is not out"):
        chain.admit(honest_now, 2, readmit=["site-05"])
    for liars, alike in ((2, None), (None, 0.02), (0, 0.02)):  # nothing is stated
        admitted = Chain.begin(previous).admit(now, liars, alike)
        assert (admitted.out, admitted.liars) == ({}, liars)


@pytest.mark.slow
def test_honest_sites_are_left_out_as_rarely_as_stated():
    """100 chains of 12 rounds of honest sites, two liars beside them, delta 0.05."""
    wrong = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        previous = calibration(federation(rng, n=60))
        chain = Chain.begin(previous)
        out = set()
        for _ in range(12):
            admitted = chain.admit(federation(rng, n=60, liars=2), 2, alike=0.0)
            out |= set(admitted.out) - {"site-00", "site-01"}
            links = chain.links
            chain = Chain(chain.delta, chain.grid, chain.edges, (*links, links[-1]))
        wrong += bool(out)
    assert wrong <= 10


@pytest.mark.effort
def test_drift_of_a_site_is_named_and_chance_is_not():
    rng = np.random.default_rng(0)
    old = federation(rng, n=500)
    assert drifted(old, federation(rng, n=500), 0.05) == {}
    assert set(drifted(old, federation(rng, n=500, shifted=[3, 7]), 0.05)) == {"site-03", "site-07"}
    named = sum(
        bool(drifted(federation(rng, n=30), federation(rng, n=90), 0.05)) for _ in range(cases(40))
    )
    assert named <= 0.05 * cases(40)
    grid, n = robfcp.Grid.uniform(4), 1000
    slack = 2 * np.sqrt(np.log(4 * 3 / 0.05) / (2 * n))  # of three sites and both reports
    for beyond in (-1, 1):
        moved = int(slack * n) + beyond
        old, new = (
            robfcp.Federation.from_counts(
                [[300, 0, 0, 700], [300 - x, x, 0, 700], [9, 1, 1, 9]], grid
            )
            for x in (0, moved)
        )
        wanted = {"client-1": moved / n} if beyond > 0 else {}  # Kolmogorov's distance
        assert drifted(old, new, 0.05) == pytest.approx(wanted)


def test_reports_sent_again_are_named_and_small_ones_are_not():
    rng = np.random.default_rng(0)
    old, new, few = federation(rng), federation(rng), federation(rng, n=10)
    mixed = robfcp.Federation.from_reports([*list(new)[:5], *list(old)[5:]])
    assert repeated(old, mixed) == [f"site-{k:02d}" for k in range(5, 12)]
    other = robfcp.Federation.from_counts([[3, 4]])
    strangers = robfcp.Federation.from_counts([[9, 9]], ids=["else"])
    for before, now in ((old, new), (few, few), (old, other), (other, strangers)):
        assert repeated(before, now) == []


def test_the_chain_file_holds_together(tmp_path):
    rng = np.random.default_rng(0)
    first = calibration(federation(rng))
    chain = Chain.begin(first)
    for _ in range(3):
        admitted = chain.admit(federation(rng, shifted=[4]), 2)
        second = calibration(admitted.federation)
        chain, first = chain.extended(second, first, admitted), second
    assert Chain.from_json(chain.to_json()) == chain
    outside = Chain.from_json(msgspec.structs.replace(chain, edges=(10**6,)).to_json())
    with pytest.raises(RobfcpError, match="its chain looks outside the grid; begin another"):
        outside.admit(federation(rng), 2, 0.02)
    first.save(tmp_path / "c.json")
    chain.save(chain_path(tmp_path / "c.json"))
    assert Chain.of(tmp_path / "c.json")[1] == chain
    with pytest.raises(RobfcpError, match="not the last calibration"):
        chain.extended(second, calibration(federation(rng)), admitted)
    calibration(federation(rng)).save(tmp_path / "c.json")
    with pytest.raises(RobfcpError, match="is not the chain of"):
        Chain.of(tmp_path / "c.json")


def test_the_command_keeps_the_chain_and_says_what_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rounds = [{}, {"liars": 1, "shifted": [5]}, {}, {}]
    files = [
        saved(tmp_path / f"r{number}", federation(rng, n=500, **options))
        for number, options in enumerate(rounds)
    ]

    def go(k, *more):
        alike = ["--alike", "0.02"] if more else []
        return said("calibrate", *files[k], "--liars", 2, *alike, "-o", f"c{k}.json", *more)

    go(0)
    second = go(1, "--previous", "c0.json")
    assert "no chain lies beside c0.json" in second
    assert "left out for good: site-00, site-05" in second
    assert "drifted since" not in second  # those that are out are compared with nobody
    assert chain_path("c1.json").exists()
    third = go(2, "--previous", "c1.json")
    assert "out since round 2" in third
    assert "no chain lies" not in third
    back = json.loads(go(3, "--previous", "c2.json", "--readmit", "site-00", "--json"))["chain"]
    assert (back["number"], back["out"]) == (4, {"site-05": 2})
    known = {"reported": 1, "flagged": 0, "drifted": 0, "alarmed": 0, "out_since": 2}
    assert back["reputations"]["site-05"] == known
    assert "pass --previous" in refused("calibrate", *files[0], "--readmit", "site-00")


def test_a_calibration_never_stands_without_its_chain(tmp_path, monkeypatch):
    """Stopped between the two files, the next round is refused, not begun anew."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    files = [saved(tmp_path / str(number), federation(rng, clients=6)) for number in range(3)]
    said("calibrate", *files[0], "-o", "c0.json")
    second = ["calibrate", *files[1], "-o", "c1.json", "--previous", "c0.json"]
    said(*second)

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(robfcp.Calibration, "save", stopped)
        refused("calibrate", *files[2], *second[7:])
    third = ["calibrate", *files[2], "-o", "c2.json", "--previous", "c1.json"]
    assert "is not the chain of" in refused(*third)
    said(*second)
    said(*third)


def test_a_round_after_an_alarm_records_it_and_asks_for_fresh_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    first, fresh = (saved(tmp_path / folder, federation(rng, clients=8)) for folder in "ab")
    fresh = [*fresh[:7], first[7]]
    said("calibrate", *first, "--liars", "1", "-o", "c1.json")
    alarms = AlarmHistory(robfcp.Calibration.load("c1.json").identity, None, 8, 1, 0.05)
    names = [f"site-{k:02d}" for k in range(8)]
    sent = [EReport(name, alarms.calibration, 0.9, 4000, 12.0, step=3) for name in names]
    _, alarms = alarms.looked(sent, 3)
    alarms.save("alarms.json")
    words = ["calibrate", *fresh, "--liars", "1", "-o", "c2.json", "--alarms", "alarms.json"]
    assert "pass it as --previous" in refused(*words)
    told = said(*words, "--previous", "c1.json", "--html", "p.html")
    assert "rang at step 3" in told
    assert "sent the report of the round before again: site-07" in told
    assert "ask site-07 for a new report" in " ".join(told.split())
    chain = Chain.from_json(chain_path("c2.json").read_bytes())
    link = chain.links[-1]
    assert (link.alarms, link.rang) == (alarms.digest, {"coverage": 3})
    assert (link.alarmed, link.repeated) == (names, ["site-07"])
    assert chain.reputations()["site-00"].alarmed == 1
    assert "watches another calibration" in refused(*words, "--previous", "c2.json")
    found = json.loads(said(*words, "--previous", "c1.json", "--json"))
    assert found["chain"]["rang"] == {"coverage": 3}
