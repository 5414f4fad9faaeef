"""Calibrations: invariances, guarantees asked for rightly, files that round-trip and refuse."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from makers import beta_scores, by_class, outputs, reports_of, saved

import robfcp
from robfcp.binning import Binning
from robfcp.calibration._calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees._label_distributions import parse_label_distributions
from robfcp.guarantees._label_shift import class_counts, label_distribution_threshold


def make_reports(n_clients=12, n=60, seed=0, attackers=0, **more):
    """Sites of one distribution; the attackers report zeros."""
    return reports_of(beta_scores(seed, n_clients, n, attackers), **more)


def test_several_levels_are_the_single_ones_in_order(monkeypatch):
    reports, levels = make_reports(attackers=3), [0.95, 0.5, 0.9]
    together = robfcp.calibrate(reports, levels)
    alone = [robfcp.calibrate(reports, level) for level in levels]
    for field in ("threshold", "statement", "certificate", "coverage"):
        assert getattr(together, field) == tuple(getattr(one, field) for one in alone)
    p = np.random.default_rng(0).dirichlet(np.ones(4), 30)
    sets = np.stack([one.predict_set(p) for one in alone], axis=2)
    np.testing.assert_array_equal(together.predict_set(p), sets)
    monkeypatch.setattr("robfcp._probabilities.BLOCK_BYTES", 256)
    blocks = [members for _, members in together.iter_prediction_sets(p)]
    assert len(blocks) > 3
    np.testing.assert_array_equal(np.concatenate(blocks), sets)


def test_a_promise_is_kept_by_the_threshold_and_said_by_the_certificate():
    reports = make_reports()
    for promise in (
        robfcp.MarginalGuarantee(1),
        robfcp.PACGuarantee(1),
        robfcp.PACGuarantee(1, alike=0.2),
    ):
        calibration = robfcp.calibrate(reports, guarantee=promise)
        assert (calibration.n_malicious, calibration.n_malicious_given) == (1, True)
        edge, certificate = promise.threshold(calibration.federation, Fraction(9, 10), 0.95)
        assert calibration.threshold == calibration.federation.threshold_at(edge)
        assert calibration.certificate == certificate
    assert not robfcp.calibrate(
        reports, guarantee=robfcp.MarginalGuarantee(samples=60)
    ).n_malicious_given


def test_the_number_of_liars_is_the_promises_else_the_defences_else_those_left_out():
    reports = make_reports(30, 200, attackers=8)
    told, promise = robfcp.Consensus(at_most=5), robfcp.MarginalGuarantee(3)
    for arguments, liars, stated, out in [
        ({}, 8, False, 8),
        ({"defense": told}, 5, True, 5),
        ({"defense": robfcp.Consensus(exactly=9)}, 9, True, 9),
        ({"defense": told, "guarantee": promise}, 3, True, 5),
        ({"defense": told, "guarantee": robfcp.MarginalGuarantee(0)}, 0, True, 5),
        ({"defense": "none"}, 0, False, 0),
        ({"defense": robfcp.RobFCP(liars=4)}, 4, True, 4),
        ({"defense": robfcp.defense.RobFCPReleased(liars=4)}, 4, True, 4),
    ]:
        found = robfcp.calibrate(reports, **arguments)
        assert (found.n_malicious, found.n_malicious_given, len(found.flagged_clients)) == (
            liars,
            stated,
            out,
        )
        assert (found.certificate.m, found.certificate.estimated) == (liars, not stated)
        assert set(found.reasons) == set(found.flagged_clients)
    for rule in (robfcp.RobFCP(), robfcp.defense.RobFCPReleased()):
        found = robfcp.calibrate(reports, defense=rule)
        assert found.n_malicious == len(found.flagged_clients) > 0
        assert not found.n_malicious_given


def test_a_promise_may_allow_for_more_liars_than_a_defence_can_find():
    sites, refuses = make_reports(5), robfcp.RobFCP(liars=4)
    promised = robfcp.calibrate(sites, guarantee=robfcp.MarginalGuarantee(liars=3))
    assert promised.threshold > robfcp.calibrate(sites).threshold
    beside = robfcp.calibrate(sites, defense=refuses, guarantee=robfcp.MarginalGuarantee(1))
    assert beside.flagged_clients == ()
    assert "nobody is flagged: liars: 4 of 5 sites cannot be told" in beside.notes[0]
    with pytest.raises(RobfcpError, match="4 of 5 sites cannot be told"):
        robfcp.calibrate(sites, defense=refuses)


def test_a_note_is_public_unless_it_names_a_client_whatever_the_clients_are_called():
    """A client called "a" occurs in every text; what counts is whom a note is about."""
    few = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4], score=robfcp.LAC()) for name in "abe"]
    calibration = robfcp.calibrate(few, 0.5)
    (public,) = [note for note in calibration.public_notes if "too few" in note]
    assert public.startswith("fewer than four sites")

    scores = np.random.default_rng(0).random((8, 400))
    copied = [scores[0], *scores[:7]]
    reports = [
        robfcp.Report.from_scores(name, own, score=robfcp.LAC())
        for name, own in zip("abcdefgh", copied, strict=True)
    ]
    calibration = robfcp.calibrate(reports, 0.8)
    assert any("a, b send the same report" in note for note in calibration.notes)
    assert not any("same report" in note for note in calibration.public_notes)


NAMES = ("cat", "dog", "eel")
EVEN = {"cat": 0.5, "dog": 0.25, "eel": 0.25}
SPLIT = by_class([outputs(seed, 200, 3) for seed in range(16)], NAMES)


@pytest.mark.parametrize("mix", [EVEN, "uniform", "any", [EVEN, {"cat": 0.1, "dog": 0.9}]])
def test_a_stated_mix_gets_the_edge_of_the_rule_at_every_level(mix):
    levels, federation = ["0.8", "0.9", "0.6"], Federation.from_reports(SPLIT)
    found = robfcp.calibrate(federation, levels, guarantee=robfcp.LabelShiftGuarantee(2, 0.01, mix))
    counts, mixes = class_counts(federation), parse_label_distributions(mix, NAMES)
    for level, one in zip(levels, found.levels, strict=True):
        walk = label_distribution_threshold(
            counts, mixes, float(1 - Fraction(level)), 2, 1 - 0.95, 0.01
        )
        assert one.threshold == federation.threshold_at(walk.bin_index)
        stated, told = one.certificate, {one.name: one.value for one in one.certificate.assumptions}
        assert (stated.kind, stated.lower, stated.m) == ("mix", float(level), 2)
        assert (told["label_shift"], told["liars"], told["mixture"]) == (0.01, 2, "stated")


def private():
    rng = np.random.default_rng(5)
    told = {"labels": rng.integers(0, 3, 60), "classes": NAMES, "privacy": robfcp.Privacy(4.0)}
    return reports_of(rng.random((5, 60)), binning=Binning.uniform(20), **told)


SHIFT, MIXED = robfcp.LabelShiftGuarantee(2), robfcp.LabelShiftGuarantee(2, mix="uniform")


@pytest.mark.parametrize(
    ("sent", "arguments", "message"),
    [
        (SPLIT, {"defense": "best"}, "defence: 'best' is unknown"),
        (SPLIT, {"defense": robfcp.Consensus}, "use .*, or what has a name and assess"),
        (SPLIT, {"guarantee": "total"}, "promise: 'total' is none; use robfcp.Marginal"),
        (SPLIT, {"coverage": []}, "coverage: the list is empty"),
        (SPLIT, {"risk_level": 0.1}, "risk: the reports hold no losses"),
        (SPLIT, {"by": "class", "guarantee": SHIFT}, "promise: thresholds by class need no Label"),
        (SPLIT, {"by": dict.fromkeys(NAMES, "x"), "guarantee": MIXED}, "need no LabelShift"),
        (
            SPLIT,
            {"guarantee": robfcp.LabelShiftGuarantee(16)},
            "can be guaranteed against 16 of 16",
        ),
        (private(), {"guarantee": SHIFT}, "not proved for private reports"),
        (make_reports(), {"guarantee": MIXED}, "reports by class; make"),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_impossible_requests_are_refused(sent, arguments, message):
    with pytest.raises(RobfcpError, match=message):
        robfcp.calibrate(sent, **arguments)


def test_reports_may_be_objects_json_paths_a_folder_or_a_federation(tmp_path):
    reports = make_reports(attackers=2)
    paths = [Path(name) for name in saved(tmp_path, reports)]
    wanted = robfcp.calibrate(reports)
    texts = [report.to_json() for report in reports]
    told = [text.decode() for text in texts]
    ways = [iter(reports), texts, told, map(json.loads, texts), paths, map(str, paths)]
    for sent in [*ways, tmp_path, str(tmp_path), Federation.from_reports(reports)]:
        found = robfcp.calibrate(sent)
        assert (found.threshold, found.flagged_clients) == (
            wanted.threshold,
            wanted.flagged_clients,
        )
    with pytest.raises(RobfcpError):
        robfcp.calibrate([])


def test_printed_it_says_threshold_who_was_left_out_and_why_what_is_proved_and_every_remark():
    reports = [
        *make_reports(attackers=2),
        robfcp.Report.from_scores("odd", [0.5], Binning.uniform(3)),
    ]
    sizes = {report.client: report.n_samples for report in reports} | {"absent": 5}
    found = robfcp.calibrate(Federation.from_reports(reports, registered_sizes=sizes))
    assert (found.verdicts["absent"], found.certificate.n_outside) == ("missing", 2)
    lines = str(found).split("\n")
    for words in (
        f"threshold {found.threshold:.4g} for coverage 0.9\n10 of 12 sites used\n",
        f" should be; all its scores are equal (the smallest there is); check that the file holds "
        f"real probabilities and labels [{found.reasons['site-00']}]\n",
        "robfcp.diagnose also tells",
        "missing: absent\n",
        "refused: odd: ",
        f"proved: {found.statement}",
        *found.notes,
    ):
        assert words in str(found)
    with pytest.raises(RobfcpError, match="curve: 30 is none of the numbers computed, 0 to 5"):
        found.certificates[30]
    assert repr(found.reasons) == repr(dict(found.reasons))
    assert found._repr_html_().count("<br>") == len(lines) - 1
    assert "flagged: site-00: " in str(
        robfcp.calibrate(reports, guarantee=robfcp.MarginalGuarantee(2))
    )
    light = str(Calibration.from_json(found.to_json()))
    assert "site-" not in light
    assert "2 left out" in light


def test_sets_need_a_score_of_classes():
    residuals = robfcp.calibrate(make_reports(score=robfcp.AbsoluteResidual()))
    with pytest.raises(RobfcpError, match="use predict_interval"):
        residuals.predict_set([[0.5, 0.5]])


def test_every_single_byte_change_of_a_file_is_noticed():
    data = robfcp.calibrate(make_reports(4, 9)).to_json()
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(data), 600):
        mutated = bytearray(data)
        mutated[position] = (mutated[position] + rng.integers(1, 256)) % 256
        with pytest.raises(RobfcpError):
            Calibration.from_json(bytes(mutated))
