"""A site's own threshold: letters, clipping, strangers, and coverage that does not follow liars."""

import json

import numpy as np
import pytest
from makers import LAC, by_class, refused, said, table
from msgspec.structs import replace

import robfcp
from robfcp import Consensus
from robfcp.errors import RobfcpError
from robfcp.local._feedback import ClientFeedback, local_thresholds
from robfcp.local._threshold import calibrate_unseen_client
from robfcp.page._strata import strata_data

NAMES = ("flu", "cold", "none")
TWO = Consensus(at_most=2)


def site(rng, n=300, mix=None, pull=1.5):
    """Probabilities and labels of one site; pull is how well the model knows the class."""
    y = rng.choice(3, n, p=rng.dirichlet([1, 1, 1]) if mix is None else mix)
    z = rng.normal(size=(n, 3))
    z[np.arange(n), y] += pull
    p = np.exp(z)
    return p / p.sum(axis=1, keepdims=True), y


def drawn(seed, number=11, **options):
    rng = np.random.default_rng(seed)
    return [site(rng, **options) for _ in range(number)]


SITES = drawn(5)
REPORTS = by_class(SITES, NAMES)


@pytest.fixture(scope="module")
def calibration():
    return robfcp.calibrate(REPORTS, defense=TWO)


def test_a_letter_keeps_what_the_others_prove_and_at_site_clips_it(calibration, tmp_path):
    letter = calibration.feedback("site-03")
    letter.save(tmp_path / "letter.json")
    again = ClientFeedback.load(tmp_path / "letter.json")
    assert again.others == letter.others
    assert letter.others.label_counts == tuple(np.bincount(SITES[3][1], minlength=3))
    local = again.calibrate_locally(*SITES[3])
    one = local.levels[0]
    low = np.sort(LAC(*SITES[3]))[round(one.floor * (one.n + 1)) - 1]
    assert local.threshold == one.threshold == max(low, min(one.federation, one.own))
    assert one.unclipped == max(low, one.federation)
    assert local.notes == ()
    fresh = SITES[4][0]
    for clip, limit in ((True, one.threshold), (False, one.unclipped)):
        sets = local.predict_set(fresh, clip=clip)
        np.testing.assert_array_equal(sets, LAC.score_all_labels(fresh) <= limit)
    assert one.set_sizes[2] == pytest.approx(local.predict_set(SITES[3][0]).sum(axis=1).mean())
    assert any("at most 2 other sites lie" in text for text in one.statements)
    lowest = replace(
        letter, others=replace(letter.others, stored_thresholds=(0.0,))
    ).calibrate_locally(*SITES[3])
    assert lowest.threshold == low  # whatever the others say


def test_the_server_knows_each_sites_own_threshold_up_to_one_bin(calibration):
    chosen = {"site-00", "site-03", "site-07"}
    found = local_thresholds(calibration, chosen)
    assert set(found) == chosen
    edges = calibration.federation.binning.edges
    for client, known in found.items():
        own = SITES[int(client[-2:])]
        local = calibration.feedback(client).calibrate_locally(*own)
        bins = np.searchsorted(edges, [local.threshold, known[0]], side="left")
        assert bins[0] == bins[1]
        assert local.threshold <= known[0]
        assert known[1] == np.mean(LAC(*own) <= known[0])
    shown = {one["name"]: one["own"] for one in strata_data(calibration)["sites"]}
    assert shown["site-03"] == [found["site-03"][0], round(found["site-03"][1], 5)]


def unlike():
    """No label shift at all: sites differ within classes."""
    rng = np.random.default_rng(12)
    return [site(rng, pull=-2.0 if k % 2 else 3.0) for k in range(11)]


@pytest.mark.parametrize(
    ("sites", "split", "own", "rule", "words"),
    [
        (SITES, True, 4, TWO, "not the labels this site reported"),
        (SITES, True, 3, Consensus(), "estimated, not stated"),
        (SITES, False, 3, TWO, "no threshold from other sites"),
        (unlike(), True, 3, Consensus(at_most=1), "more than 1 of them disagree within classes"),
    ],
    ids=["labels", "estimated", "pooled", "unlike"],
)
def test_a_site_is_told_why_the_others_prove_nothing_for_it(sites, split, own, rule, words):
    found = robfcp.calibrate(by_class(sites, NAMES, stratify_by_class=split), defense=rule)
    local = found.feedback("site-03").calibrate_locally(*sites[own])
    assert words in local.notes[-1]
    assert not any("other sites lie" in text for text in local.levels[0].statements)
    if np.isinf(local.levels[0].federation):
        assert local.threshold == local.levels[0].own
    if not split:
        assert local_thresholds(found, {"site-03"}) == {}


def test_too_few_samples_prove_nothing_by_themselves():
    few = drawn(1, 4, n=20)
    found = robfcp.calibrate(by_class(few, NAMES), [0.9, 0.8], defense=Consensus(at_most=1))
    local = found.feedback("site-00").calibrate_locally(*few[0])
    assert np.isinf(local.levels[0].own)
    assert local.levels[0].statements[-1].endswith("prove nothing: too few samples")
    assert local.predict_set(few[1][0]).shape == (20, 3, 2)


def test_a_stranger_gets_the_threshold_that_it_would_have_had(calibration):
    own = site(np.random.default_rng(9))
    local = calibrate_unseen_client(calibration, *own)
    assert np.isfinite(local.levels[0].federation)
    everybody = robfcp.calibrate(by_class([*SITES, own], NAMES), defense=TWO)
    assert everybody.feedback("site-11").others.thresholds == (local.levels[0].federation,)


def test_a_letter_holds_a_sites_own_risk_whatever_the_others_report(tmp_path):
    rng = np.random.default_rng(0)
    p = rng.random((60, 4))
    y = rng.random((60, 4)) < np.sqrt(p)
    own = robfcp.Report.from_multilabel("own", p, y | (p == p.max(axis=1, keepdims=True)))
    lies = [robfcp.Report.from_multilabel(f"{k}", np.ones((60, 4)), y | True) for k in range(9)]
    calibration = robfcp.calibrate([own, *lies], risk_level=0.1, defense="none")
    calibration.feedback("own").save(tmp_path / "letter.json")
    local = ClientFeedback.load(tmp_path / "letter.json").calibrate_risk_locally(own)
    kept = np.cumsum(own.counts) / own.risk.resolution  # samples less their summed loss
    held = 0.1 + (0.09 / 60) ** 0.5
    low = own.grid.upper_edges[np.argmax(60 - kept + 1 <= 61 * held)]
    assert local.federation < low == local.threshold < local.own
    assert local.most == pytest.approx(held)
    assert np.array_equal(local.predict_multilabel(p), 1 - p <= local.threshold)
    assert "has a mean fnr of at most 13.88% here on average" in local.statements[0]
    few = robfcp.Report.from_multilabel("own", p[:3], y[:3] | True)
    assert (
        "prove nothing: too few"
        in calibration.feedback("own").calibrate_risk_locally(few).statements[-1]
    )
    other = robfcp.Report.from_multilabel("own", p, y | True, risk="miss-rate")
    private = robfcp.Report.from_multilabel("own", p, y | True, privacy=robfcp.Privacy(1.0))
    for letter, report, word in (
        (calibration.feedback("own"), other, "is of the loss fnr; report that"),
        (calibration.feedback("own"), private, "the report holds noise"),
        (robfcp.calibrate(REPORTS).feedback("site-03"), own, "of no losses; use calibrate_locally"),
    ):
        with pytest.raises(RobfcpError, match=word):
            letter.calibrate_risk_locally(report)


def test_declaring_sites_alike_warns_where_label_mixes_differ():
    alike = drawn(2, mix=[0.3, 0.3, 0.4])
    for sites, warns in ((SITES, True), (alike, False)):
        found = robfcp.calibrate(
            by_class(sites, NAMES), guarantee=robfcp.PACGuarantee(2, alike=0.1)
        )
        assert any("label mixes differ" in one for one in found.notes) is warns


def test_the_command_gives_a_stranger_its_own_sets(calibration, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibration.save("c.json")
    words = ("predict", "c.json", "--local", table("own.csv", *SITES[3], NAMES))
    (one,) = json.loads(said(*words, "--json"))["levels"]
    said(*words, table("new.csv", fresh := SITES[5][0], names=NAMES), "-o", "sets.npy")
    np.testing.assert_array_equal(
        np.load("sets.npy"), LAC.score_all_labels(fresh) <= one["threshold"]
    )
    assert "'4' is none of the calibration's levels" in refused(*words, "--level", 4)


def test_sites_without_classes_or_with_merged_ones_are_outside_what_label_shift_proves():
    p, y = SITES[2]
    few = np.concatenate([np.flatnonzero(y == 0)[:2], np.flatnonzero(y != 0)])
    shift, merged = robfcp.LabelShiftGuarantee(1, mix="uniform"), list(REPORTS)
    merged[2] = robfcp.Report.from_predictions(
        "site-02", p[few], y[few], classes=NAMES, min_class_count=5, min_cell_count=1
    )
    found = robfcp.calibrate(merged, guarantee=robfcp.LabelShiftGuarantee(1))
    assert found.certificate.outside == "1 site without counts of all classes (site-02)"
    assert ClientFeedback.from_json(found.feedback("site-02").to_json()).others is None
    without = robfcp.calibrate([*merged[:2], *merged[3:]], guarantee=shift)
    assert robfcp.calibrate(merged, guarantee=shift).threshold == without.threshold


def rounded(sites, **options):
    """Default reports, or reports with coarsened counts by class."""
    return by_class(sites, NAMES, min_cell_count=5, **options)


def test_class_totals_alone_give_no_threshold_from_other_sites():
    found = robfcp.calibrate(rounded(SITES), defense=TWO)
    assert found.federation.class_totals is not None
    letter = found.feedback("site-03")
    assert letter.others is None
    local = letter.calibrate_locally(*SITES[3])
    assert "they reported no counts by class" in local.notes[-1]
    assert "stratify_by_class=True" in local.notes[-1]
    assert local.threshold == local.levels[0].own
    assert local_thresholds(found, {"site-03"}) == {}
    with pytest.raises(RobfcpError, match="needs reports by class"):
        calibrate_unseen_client(found, *SITES[3])


def test_what_others_prove_by_coarsened_counts_is_never_more_than_by_exact_ones(calibration):
    """What bounds on the counts prove of a threshold, the counts themselves prove too."""
    coarse = robfcp.calibrate(rounded(SITES, stratify_by_class=True), defense=TWO)
    for client in calibration.federation.clients:
        exact_threshold = calibration.feedback(client).others.thresholds[0]
        peers = coarse.feedback(client).others
        assert peers.thresholds[0] >= exact_threshold
        assert peers.label_counts == calibration.feedback(client).others.label_counts


def test_thresholds_that_the_server_expects_of_coarsened_reports_are_close():
    """Estimates from midpoints, beside what each site comes to with its own scores."""
    sites = drawn(8, n=600, mix=(0.4, 0.3, 0.3))
    reports = rounded(sites, stratify_by_class=True)
    found = robfcp.calibrate(reports, defense=Consensus(at_most=1))
    known = local_thresholds(found, set(found.federation.clients))
    errors = []
    for client, (threshold, covered) in known.items():
        own = sites[int(client[-2:])]
        local = found.feedback(client).calibrate_locally(*own)
        assert threshold == pytest.approx(local.threshold, abs=0.03)
        errors.append(covered - np.mean(LAC(*own) <= threshold))
    assert len(errors) == len(sites)
    assert np.abs(errors).max() < 5 * 3 / 600
    assert abs(np.mean(errors)) < 0.004


def test_the_share_covered_that_a_letter_states_is_right_on_average():
    errors = []
    for seed in range(4):
        sites = drawn(seed, n=100)
        found = robfcp.calibrate(rounded(sites), defense="none")
        for client, own in zip(found.federation.clients, sites, strict=True):
            stated = found.feedback(client).covered[0]
            errors.append(stated - np.mean(LAC(*own) <= found.threshold))
    assert np.abs(errors).max() <= 5 / 100
    assert abs(np.mean(errors)) < 0.01  # a sample; of the counts as sent two and a half


@pytest.mark.parametrize("min_cell_count", [1, 5])
def test_feedback_is_made_where_one_of_two_clients_with_classes_is_malicious(min_cell_count):
    """Nothing can be guaranteed of the scores of a class, and the others get their feedback."""
    reports = []
    for k in range(6):
        rng = np.random.default_rng(50 + k)
        p = rng.dirichlet(np.ones(3), 200)
        labels = (p.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
        if k == 5:
            labels = p.argmin(axis=1)
        reports.append(
            robfcp.Report.from_predictions(
                f"s{k}", p, labels, stratify_by_class=k > 3, min_cell_count=min_cell_count
            )
        )
    calibration = robfcp.calibrate(reports, 0.9)
    assert calibration.flagged_clients == ("s5",)
    for client in calibration.federation.clients:
        assert calibration.feedback(client).others is None
