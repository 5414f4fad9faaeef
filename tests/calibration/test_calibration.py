"""Calibrations: levels, guarantees, defenses and notes, the ways to pass reports, and files."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from makers import beta_scores, outputs, reports_by_class, reports_of, save_reports

import robfcp
from robfcp.binning import Binning
from robfcp.calibration._calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees._label_distributions import parse_label_distributions
from robfcp.guarantees._label_shift_thresholds import class_counts, label_distribution_threshold


def make_reports(n_clients=12, n=60, seed=0, n_attackers=0, **options):
    """Return reports of one distribution; the attackers report zeros."""
    return reports_of(beta_scores(seed, n_clients, n, n_attackers), **options)


def test_a_calibration_of_several_levels_equals_those_of_single_levels(monkeypatch):
    reports, levels = make_reports(n_attackers=3), [0.95, 0.5, 0.9]
    together = robfcp.calibrate(reports, coverage=levels)
    calibrations = [robfcp.calibrate(reports, coverage=level) for level in levels]
    for field in ("threshold", "statement", "certificate", "coverage"):
        assert getattr(together, field) == tuple(
            getattr(calibration, field) for calibration in calibrations
        )
    p = np.random.default_rng(0).dirichlet(np.ones(4), 30)
    sets = np.stack([calibration.predict_set(p) for calibration in calibrations], axis=2)
    np.testing.assert_array_equal(together.predict_set(p), sets)
    monkeypatch.setattr("robfcp._probabilities.BLOCK_BYTES", 256)
    blocks = [members for _, members in together.iter_prediction_sets(p)]
    assert len(blocks) > 3
    np.testing.assert_array_equal(np.concatenate(blocks), sets)


def test_a_guarantee_gives_the_threshold_and_the_certificate():
    reports = make_reports()
    for guarantee in (
        robfcp.MarginalGuarantee(1),
        robfcp.PACGuarantee(1),
        robfcp.PACGuarantee(1, heterogeneity=0.2),
    ):
        calibration = robfcp.calibrate(reports, guarantee=guarantee)
        assert (calibration.n_malicious, calibration.max_malicious) == (1, 1)
        bin_index, certificate = guarantee.threshold(calibration.federation, Fraction(9, 10), 0.95)
        assert calibration.threshold == calibration.federation.threshold_at(bin_index)
        assert calibration.certificate == certificate
    of_samples = robfcp.calibrate(
        reports, guarantee=robfcp.MarginalGuarantee(max_malicious_samples=60)
    )
    assert of_samples.max_malicious is None


def test_n_malicious_is_that_of_the_guarantee_else_of_the_defense_else_estimated():
    reports = make_reports(30, 200, n_attackers=8)
    consensus, marginal = robfcp.Consensus(max_malicious=5), robfcp.MarginalGuarantee(3)
    for arguments, n_malicious, is_given, n_flagged in [
        ({}, 8, False, 8),
        ({"defense": consensus}, 5, True, 5),
        ({"defense": robfcp.Consensus(n_malicious=9)}, 9, True, 9),
        ({"defense": consensus, "guarantee": marginal}, 3, True, 5),
        ({"defense": consensus, "guarantee": robfcp.MarginalGuarantee(0)}, 0, True, 5),
        ({"defense": "none"}, 0, False, 0),
        ({"defense": robfcp.RobFCP(n_malicious=4)}, 4, True, 4),
        ({"defense": robfcp.defense.RobFCPReleased(n_malicious=4)}, 4, True, 4),
    ]:
        calibration = robfcp.calibrate(reports, **arguments)
        max_malicious = n_malicious if is_given else None
        assert calibration.n_malicious == n_malicious
        assert calibration.max_malicious == max_malicious
        assert len(calibration.flagged_clients) == n_flagged
        assert calibration.certificate.max_malicious == n_malicious
        assert calibration.certificate.max_malicious_estimated == (not is_given)
        assert set(calibration.reasons) == set(calibration.flagged_clients)
    for defense in (robfcp.RobFCP(), robfcp.defense.RobFCPReleased()):
        calibration = robfcp.calibrate(reports, defense=defense)
        assert calibration.n_malicious == len(calibration.flagged_clients) > 0
        assert calibration.max_malicious is None


def test_a_guarantee_may_allow_for_more_malicious_clients_than_a_defense():
    reports, impossible_defense = make_reports(5), robfcp.RobFCP(n_malicious=4)
    guaranteed = robfcp.calibrate(reports, guarantee=robfcp.MarginalGuarantee(max_malicious=3))
    assert guaranteed.threshold > robfcp.calibrate(reports).threshold
    calibration = robfcp.calibrate(
        reports, defense=impossible_defense, guarantee=robfcp.MarginalGuarantee(1)
    )
    assert calibration.flagged_clients == ()
    assert "nobody is flagged: n_malicious: 4 of 5 clients are no minority" in calibration.notes[0]
    with pytest.raises(RobfcpError, match="4 of 5 clients are no minority"):
        robfcp.calibrate(reports, defense=impossible_defense)


def test_a_note_is_public_unless_it_is_about_a_client_whatever_their_names():
    """A client called "a" is in every text; what counts is which clients a note is about."""
    reports = [
        robfcp.Report.from_scores(name, [0.1, 0.2, 0.4], score=robfcp.LAC()) for name in "abe"
    ]
    calibration = robfcp.calibrate(reports, coverage=0.5)
    (public,) = [note for note in calibration.public_notes if "too few" in note]
    assert public.startswith("fewer than four sites")

    scores = np.random.default_rng(0).random((8, 400))
    copied = [scores[0], *scores[:7]]
    reports = [
        robfcp.Report.from_scores(name, client_scores, score=robfcp.LAC())
        for name, client_scores in zip("abcdefgh", copied, strict=True)
    ]
    calibration = robfcp.calibrate(reports, coverage=0.8)
    assert any("a, b send the same report" in note for note in calibration.notes)
    assert not any("same report" in note for note in calibration.public_notes)


NAMES = ("cat", "dog", "eel")
LABEL_DISTRIBUTION = {"cat": 0.5, "dog": 0.25, "eel": 0.25}
REPORTS_BY_CLASS = reports_by_class([outputs(seed, 200, 3) for seed in range(16)], NAMES)


@pytest.mark.parametrize(
    "distribution",
    [LABEL_DISTRIBUTION, "uniform", "any", [LABEL_DISTRIBUTION, {"cat": 0.1, "dog": 0.9}]],
)
def test_a_given_label_distribution_has_its_threshold_at_every_level(distribution):
    coverages, federation = ["0.8", "0.9", "0.6"], Federation.from_reports(REPORTS_BY_CLASS)
    calibration = robfcp.calibrate(
        federation, coverage=coverages, guarantee=robfcp.LabelShiftGuarantee(2, 0.01, distribution)
    )
    counts = class_counts(federation)
    distributions = parse_label_distributions(distribution, NAMES)
    for coverage, level in zip(coverages, calibration.levels, strict=True):
        expected = label_distribution_threshold(
            counts, distributions, float(1 - Fraction(coverage)), 2, 1 - 0.95, 0.01
        )
        assert level.threshold == federation.threshold_at(expected.bin_index)
        certificate = level.certificate
        assumptions = {item.name: item.value for item in certificate.assumptions}
        assert certificate.kind == "label-distribution"
        assert certificate.lower == float(coverage)
        assert certificate.max_malicious == 2
        assert assumptions["label_shift"] == 0.01
        assert assumptions["max_malicious"] == 2
        assert assumptions["test_distribution"] == "given"


def private_reports():
    rng = np.random.default_rng(5)
    options = {"labels": rng.integers(0, 3, 60), "classes": NAMES, "privacy": robfcp.Privacy(4.0)}
    return reports_of(rng.random((5, 60)), binning=Binning.uniform(20), **options)


LABEL_SHIFT = robfcp.LabelShiftGuarantee(2)
UNIFORM_LABELS = robfcp.LabelShiftGuarantee(2, label_distribution="uniform")


@pytest.mark.parametrize(
    ("reports", "options", "message"),
    [
        (REPORTS_BY_CLASS, {"defense": "best"}, "defense: 'best' is unknown"),
        (REPORTS_BY_CLASS, {"defense": robfcp.Consensus}, "use .*, or what has a name and assess"),
        (
            REPORTS_BY_CLASS,
            {"guarantee": "total"},
            "guarantee: 'total' is not a guarantee; use for example robfcp.MarginalGuarantee",
        ),
        (REPORTS_BY_CLASS, {"coverage": []}, "coverage: the list is empty"),
        (REPORTS_BY_CLASS, {"risk_level": 0.1}, "risk_level: the reports hold no losses"),
        (
            REPORTS_BY_CLASS,
            {"by": "class", "guarantee": LABEL_SHIFT},
            "guarantee: thresholds by class need no Label",
        ),
        (
            REPORTS_BY_CLASS,
            {"by": dict.fromkeys(NAMES, "x"), "guarantee": UNIFORM_LABELS},
            "need no LabelShift",
        ),
        (
            REPORTS_BY_CLASS,
            {"guarantee": robfcp.LabelShiftGuarantee(16)},
            "can be guaranteed against 16 of 16",
        ),
        (private_reports(), {"guarantee": LABEL_SHIFT}, "not proved for private reports"),
        (make_reports(), {"guarantee": UNIFORM_LABELS}, "reports by class; recreate"),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_impossible_requests_are_refused(reports, options, message):
    with pytest.raises(RobfcpError, match=message):
        robfcp.calibrate(reports, **options)


def test_reports_may_be_objects_json_paths_a_folder_or_a_federation(tmp_path):
    reports = make_reports(n_attackers=2)
    paths = [Path(name) for name in save_reports(tmp_path, reports)]
    expected = robfcp.calibrate(reports)
    encoded = [report.to_json() for report in reports]
    documents = [document.decode() for document in encoded]
    inputs = [iter(reports), encoded, documents, map(json.loads, encoded), paths, map(str, paths)]
    for input_ in [*inputs, tmp_path, str(tmp_path), Federation.from_reports(reports)]:
        calibration = robfcp.calibrate(input_)
        assert calibration.threshold == expected.threshold
        assert calibration.flagged_clients == expected.flagged_clients
    with pytest.raises(RobfcpError):
        robfcp.calibrate([])


def test_the_text_states_threshold_excluded_clients_certificate_and_notes():
    reports = [
        *make_reports(n_attackers=2),
        robfcp.Report.from_scores("coarse", [0.5], Binning.uniform(3)),
    ]
    sizes = {report.client: report.n_samples for report in reports} | {"absent": 5}
    calibration = robfcp.calibrate(Federation.from_reports(reports, registered_sizes=sizes))
    assert calibration.verdicts["absent"].status == "missing"
    assert calibration.certificate.n_uncovered_clients == 2
    lines = str(calibration).split("\n")
    for expected in (
        f"threshold {calibration.threshold:.4g} for coverage 0.9\n10 of 12 sites used\n",
        f" should be; all its scores are equal (the smallest there is); check that the file holds "
        f"real probabilities and labels [{calibration.reasons['site-00']}]\n",
        "robfcp.diagnose also tells",
        "missing: absent\n",
        "refused: coarse: ",
        f"proved: {calibration.statement}",
        *calibration.notes,
    ):
        assert expected in str(calibration)
    with pytest.raises(
        RobfcpError, match="max_malicious: 30 is not one of the numbers computed, 0 to 5"
    ):
        calibration.certificates[30]
    assert repr(calibration.reasons) == repr(dict(calibration.reasons))
    assert calibration._repr_html_().count("<br>") == len(lines) - 1
    assert "flagged: site-00: " in str(
        robfcp.calibrate(reports, guarantee=robfcp.MarginalGuarantee(2))
    )
    without_record = str(Calibration.from_json(calibration.to_json()))
    assert "site-" not in without_record
    assert "2 left out" in without_record


def test_sets_need_a_score_of_classes():
    residuals = robfcp.calibrate(make_reports(score=robfcp.AbsoluteResidual()))
    with pytest.raises(RobfcpError, match="use predict_interval"):
        residuals.predict_set([[0.5, 0.5]])


def test_every_changed_byte_of_a_file_is_detected():
    data = robfcp.calibrate(make_reports(4, 9)).to_json()
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(data), 600):
        mutated = bytearray(data)
        mutated[position] = (mutated[position] + rng.integers(1, 256)) % 256
        with pytest.raises(RobfcpError):
            Calibration.from_json(bytes(mutated))
