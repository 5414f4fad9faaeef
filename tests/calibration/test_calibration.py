"""Calibrations: invariances, guarantees asked for rightly, files that round-trip and refuse."""

import json
from fractions import Fraction

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

import robfcp
from robfcp.calibration.calibration import Calibration
from robfcp.errors import QuorumError, ReportError, RobfcpError
from robfcp.federation.federation import Federation
from robfcp.grid import Grid

LAC = robfcp.LAC()


def make_reports(n_clients=12, n=60, seed=0, score=LAC, attackers=0):
    rng = np.random.default_rng(seed)
    scores = rng.beta(0.5, 2, (n_clients, n))
    scores[:attackers] = 0
    return [
        robfcp.Report.from_scores(f"site-{k:02d}", s, score=score) for k, s in enumerate(scores)
    ]


federations = st.integers(0, 10**6).map(
    lambda seed: make_reports(
        n_clients=2 + seed % 9, n=1 + seed % 37, seed=seed, attackers=seed % 3
    )
)


@pytest.mark.effort
@settings(max_examples=cases(4), deadline=None)
@given(reports=federations, seed=st.integers(0, 100))
def test_the_order_of_the_reports_does_not_matter(reports, seed):
    shuffled = [reports[k] for k in np.random.default_rng(seed).permutation(len(reports))]
    for defence in ("none", "rob-fcp", "consensus"):
        arguments = {"defence": defence, "malicious": (len(reports) - 1) // 2}
        assert robfcp.calibrate(reports, **arguments) == robfcp.calibrate(shuffled, **arguments)


@pytest.mark.effort
@settings(max_examples=cases(4), deadline=None)
@given(reports=federations, levels=st.lists(st.integers(1, 199), min_size=2, max_size=5))
def test_thresholds_grow_with_the_confidence_level(reports, levels):
    levels = [Fraction(level, 200) for level in sorted(levels)]
    for arguments in ({}, {"guarantee": "marginal", "malicious": 1}, {"defence": "none"}):
        calibration = robfcp.calibrate(reports, confidence_level=levels, **arguments)
        assert list(calibration.threshold) == sorted(calibration.threshold)


@settings(max_examples=15, deadline=None)
@given(reports=federations)
def test_merging_two_clients_leaves_fcp_unchanged_when_all_are_exchangeable(reports):
    merged = robfcp.Report(
        client="both", counts=reports[0].counts + reports[1].counts, grid=reports[0].grid, score=LAC
    )
    arguments = {"defence": "none", "malicious": 0, "exchangeability": "full"}
    one = robfcp.calibrate(reports, **arguments)
    other = robfcp.calibrate([merged, *reports[2:]], **arguments)
    assert one.threshold == other.threshold


@pytest.mark.effort
@settings(max_examples=cases(5), deadline=None)
@given(reports=federations)
def test_save_and_load_is_the_identity(reports):
    for arguments in (
        {},
        {"confidence_level": [0.5, 0.9, 0.995]},
        {"guarantee": "pac", "malicious": 1, "heterogeneity": 0.1},
    ):
        calibration = robfcp.calibrate(reports, **arguments)
        again = Calibration.from_json(calibration.to_json(), evidence=calibration.evidence)
        assert again == calibration
        assert again.to_json() == calibration.to_json()
        assert again.threshold == calibration.threshold
        assert again.certificate == calibration.certificate
        assert again.trusted == calibration.trusted
        assert again.settings == calibration.settings
        np.testing.assert_array_equal(again.maliciousness, calibration.maliciousness)
        np.testing.assert_array_equal(again.federation.counts, calibration.federation.counts)


def test_several_levels_are_the_single_ones_in_order():
    reports = make_reports(attackers=3)
    levels = [0.95, 0.5, 0.9]
    together = robfcp.calibrate(reports, confidence_level=levels)
    alone = [robfcp.calibrate(reports, confidence_level=level) for level in levels]
    assert together.threshold == tuple(one.threshold for one in alone)
    assert together.tolerance == tuple(one.tolerance for one in alone)
    assert together.certificate == tuple(one.certificate for one in alone)
    assert together.confidence_level == (0.95, 0.5, 0.9)
    p = np.random.default_rng(0).dirichlet(np.ones(4), 30)
    sets = together.predict_set(p)
    assert sets.shape == (30, 4, 3)
    for number, one in enumerate(alone):
        np.testing.assert_array_equal(sets[:, :, number], one.predict_set(p))


def test_liars_are_flagged_with_a_reason_and_honest_sites_are_not():
    calibration = robfcp.calibrate(make_reports(30, 200, attackers=8))
    assert calibration.flagged == tuple(f"site-{k:02d}" for k in range(8))
    assert calibration.n_malicious == 8
    assert set(calibration.reasons) == set(calibration.flagged)
    assert calibration.certificate.estimated
    quiet = robfcp.calibrate(make_reports(30, 200))
    assert quiet.flagged == ()
    assert quiet.n_malicious == 0


def test_a_guarantee_needs_a_stated_number():
    reports = make_reports()
    for guarantee in ("marginal", "pac", "pac-homogeneous"):
        with pytest.raises(RobfcpError, match="a number stated beforehand, not an estimate"):
            robfcp.calibrate(reports, guarantee=guarantee)
        calibration = robfcp.calibrate(reports, guarantee=guarantee, malicious=1)
        assert calibration.certificate.kind == guarantee
        assert calibration.certificate.lower == pytest.approx(0.9)
        assert not calibration.certificate.estimated
    by_size = robfcp.calibrate(reports, guarantee="marginal", size_budget=60)
    assert by_size.threshold >= robfcp.calibrate(reports, malicious=0, defence="none").threshold


def test_a_guarantee_may_allow_for_more_liars_than_a_defence_can_find():
    calibration = robfcp.calibrate(make_reports(5), guarantee="marginal", malicious=3)
    assert calibration.threshold == np.inf or calibration.tolerance >= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"malicious": "many"}, "malicious"),
        ({"malicious": True}, "malicious"),
        ({"malicious": 1.5}, "malicious"),
        ({"guarantee": "total", "malicious": 1}, "guarantee"),
        ({"size_budget": 5}, "size_budget"),
        ({"confidence_level": []}, "confidence_level"),
        ({"confidence_level": 1.2}, "confidence_level"),
        ({"exchangeability": "no"}, "exchangeability"),
        ({"max_share": 2}, "max_share"),
        ({"max_share": 0.01}, "max_share"),
        ({"distance": "l7", "defence": "rob-fcp"}, "distance"),
        ({"certificate_confidence": 1.0}, "certificate_confidence"),
    ],
)
def test_impossible_requests_are_refused(arguments, message):
    with pytest.raises(RobfcpError, match=message):
        robfcp.calibrate(make_reports(), **arguments)


def test_a_client_that_claims_too_much_is_faulty():
    reports = make_reports()
    big = robfcp.Report.from_scores("big", np.zeros(5000), score=LAC)
    calibration = robfcp.calibrate([*reports, big], max_share=0.3)
    assert [fault.client for fault in calibration.faulty] == ["big"]
    assert "claims 87.4% of all samples but the cap is 30.0%" in calibration.faulty[0].reason
    assert calibration.federation.n_clients == 12


def test_sizes_and_quorum_reach_the_federation():
    reports = make_reports()
    sizes = {report.client: report.n_samples for report in reports} | {"absent": 5}
    calibration = robfcp.calibrate(reports, sizes=sizes, quorum=10)
    assert calibration.missing == ("absent",)
    assert "absent" in calibration.certificate.outside
    with pytest.raises(QuorumError):
        robfcp.calibrate(reports, sizes=sizes, quorum=13)


def test_infinite_thresholds_take_every_label():
    calibration = robfcp.calibrate(make_reports(3, 2), defence="none")
    assert calibration.threshold == np.inf
    assert calibration.predict_set(np.array([[0.5, 0.5]])).all()
    assert Calibration.from_json(calibration.to_json()).threshold == np.inf


def test_a_threshold_in_the_open_last_bin_is_infinite():
    grid = Grid.open_ended([1.0, 2.0])
    report = robfcp.Report.from_scores("a", np.full(50, 7.0), grid, score=robfcp.AbsoluteResidual())
    assert robfcp.calibrate([report]).threshold == np.inf


def test_prediction_needs_a_score_of_the_right_kind():
    nameless = robfcp.calibrate(make_reports(score=None))
    p = np.array([[0.5, 0.5]])
    with pytest.raises(RobfcpError, match="pass score="):
        nameless.predict_set(p)
    assert nameless.predict_set(p, score=LAC).shape == (1, 2)
    with pytest.raises(RobfcpError, match="use predict_set"):
        robfcp.calibrate(make_reports()).predict_interval([1.0])
    residuals = robfcp.calibrate(make_reports(score=robfcp.AbsoluteResidual()))
    with pytest.raises(RobfcpError, match="use predict_interval"):
        residuals.predict_set(p)
    ends = residuals.predict_interval([1.0, 2.0])
    np.testing.assert_allclose(ends.mean(axis=1), [1, 2])
    several = robfcp.calibrate(
        make_reports(score=robfcp.AbsoluteResidual()), confidence_level=[0.5, 0.9]
    )
    assert several.predict_interval([1.0]).shape == (1, 2, 2)


def test_sets_can_be_had_in_blocks(monkeypatch):
    monkeypatch.setattr("robfcp.scores.inputs.BLOCK_BYTES", 256)
    p = np.random.default_rng(0).dirichlet(np.ones(4), 100)
    calibration = robfcp.calibrate(make_reports())
    blocks = list(calibration.iterate_sets(p))
    assert len(blocks) > 5
    np.testing.assert_array_equal(
        np.concatenate([members for _, members in blocks]), calibration.predict_set(p)
    )


def test_altered_newer_and_foreign_files_are_refused(tmp_path):
    calibration = robfcp.calibrate(make_reports())
    path = tmp_path / "calibration.json"
    calibration.save(path)
    assert Calibration.load(path) == calibration
    text = path.read_text()
    for altered, message in [
        (text.replace('"n_malicious":0', '"n_malicious":1'), "altered or damaged"),
        (text.replace('"schema":3,"digest"', '"schema":4,"digest"', 1), "schema 4 is unknown"),
        (text[:-10], "not a calibration"),
        ("{}", "not a calibration"),
        (make_reports()[0].to_json().decode(), "not a calibration"),
    ]:
        path.write_text(altered)
        with pytest.raises(RobfcpError, match=message):
            Calibration.load(path)


def test_every_single_byte_change_of_a_file_is_noticed():
    data = robfcp.calibrate(make_reports(4, 9)).to_json()
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(data), 600):
        mutated = bytearray(data)
        mutated[position] = (mutated[position] + rng.integers(1, 256)) % 256
        with pytest.raises(RobfcpError):
            Calibration.from_json(bytes(mutated))


@pytest.mark.effort
def test_hostile_reports_never_stop_a_round_or_slip_in():
    """Mutated reports beside honest ones: listed as faulty or valid, never a crash."""
    rng = np.random.default_rng(3)
    honest = make_reports()
    message = json.loads(honest[0].to_json())
    values = [None, -1, 0, 1.5, 2**70, "x", [], {}, [1], True, 1e300, "9" * 300]
    for _ in range(cases(40)):
        hostile = []
        for number in range(12):
            changed = json.loads(json.dumps(message)) | {"client": f"mallory-{number}"}
            for _ in range(rng.integers(1, 3)):
                target = changed
                for _ in range(rng.integers(0, 2)):
                    inner = [v for v in target.values() if isinstance(v, dict) and v]
                    target = inner[rng.integers(len(inner))] if inner else target
                key = list(target)[rng.integers(len(target))]
                if rng.random() < 0.2:
                    del target[key]
                else:
                    target[key] = values[rng.integers(len(values))]
            hostile.append(json.dumps(changed))
        calibration = robfcp.calibrate([*honest, *hostile], defence="none", malicious=0)
        names = set(calibration.federation.ids)
        assert {report.client for report in honest} <= names
        for text in hostile:
            try:
                report = robfcp.Report.from_json(text)
            except ReportError:
                continue
            assert report.grid == Grid.default() or report.client not in names
        assert all("\n" not in fault.reason for fault in calibration.faulty)


def test_calibrations_are_frozen():
    calibration = robfcp.calibrate(make_reports())
    with pytest.raises(AttributeError):
        calibration.n_malicious = 3
    assert calibration != 3
    assert isinstance(calibration.federation, Federation)
    assert calibration.version == robfcp.__version__
