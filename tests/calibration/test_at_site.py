"""A site's own threshold: letters, clipping, strangers, and coverage that does not follow liars."""

import csv
import json

import numpy as np
import pytest
from makers import LAC, by_class, refused, said, saved, table
from msgspec.structs import replace

import robfcp
from robfcp import Consensus
from robfcp.calibration import Letter, verify_calibration
from robfcp.calibration.at_site import at_stranger
from robfcp.calibration.by_class import covered_at_sites, site_coverage
from robfcp.calibration.letters import own_thresholds
from robfcp.errors import RobfcpError
from robfcp.guarantees.label_shift import class_counts, mix_threshold
from robfcp.guarantees.site import own_mixes, site_thresholds
from robfcp.page.data import strata_data

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
    return robfcp.calibrate(REPORTS, defence=TWO)


def test_a_letter_keeps_what_the_others_prove_and_at_site_clips_it(calibration, tmp_path):
    letter = calibration.letter("site-03")
    letter.save(tmp_path / "letter.json")
    again = Letter.load(tmp_path / "letter.json")
    assert again.others == letter.others
    assert letter.others.label_counts == tuple(np.bincount(SITES[3][1], minlength=3))
    local = again.at_site(*SITES[3])
    one = local.levels[0]
    ordered = np.sort(LAC(*SITES[3]))
    low = ordered[round(one.floor * (one.n + 1)) - 1]
    assert one.threshold == max(low, min(one.federation, one.own))
    assert one.unclipped == max(low, one.federation)
    assert low <= one.threshold <= one.own
    assert local.threshold == one.threshold
    assert local.remarks == ()
    fresh = SITES[4][0]
    for clip, limit in ((True, one.threshold), (False, one.unclipped)):
        sets = local.predict_set(fresh, clip=clip)
        np.testing.assert_array_equal(sets, LAC.all_labels(fresh) <= limit)
    assert one.set_sizes[2] == pytest.approx(local.predict_set(SITES[3][0]).sum(axis=1).mean())
    assert any("at most 2 other sites lie" in text for text in one.statements)
    lowest = replace(letter, others=replace(letter.others, thresholds=(0.0,))).at_site(*SITES[3])
    assert lowest.threshold == low  # whatever the others say


def test_the_server_knows_each_sites_own_threshold_up_to_one_bin(calibration):
    chosen = {"site-00", "site-03", "site-07"}
    found = own_thresholds(calibration, chosen)
    assert set(found) == chosen
    edges = calibration.federation.grid.edges
    for client, known in found.items():
        own = SITES[int(client[-2:])]
        local = calibration.letter(client).at_site(*own)
        bins = np.searchsorted(edges, [local.threshold, known.threshold], side="left")
        assert bins[0] == bins[1]
        assert local.threshold <= known.threshold
        assert known.covered == np.mean(LAC(*own) <= known.threshold)


def test_the_command_and_the_page_show_each_site_under_its_own_threshold(calibration, tmp_path):
    calibration.save(tmp_path / "c.json")
    shown = json.loads(said("show", tmp_path / "c.json", "-m", "2", "--json"))["sites"]
    known = own_thresholds(calibration, set(calibration.federation.ids))
    for one in shown[:10]:
        assert one["own"] == known[one["client"]]._asdict()
    assert shown[10]["own"] is None
    assert "own threshold" in said("show", tmp_path / "c.json", "-m", "2")
    for one in strata_data(calibration)["sites"]:
        wanted = known[one["name"]]
        assert one["own"][:2] == [wanted.threshold, round(wanted.covered, 5)]
    covered = site_coverage(calibration.federation, [calibration.threshold, np.inf])
    for k, one in enumerate(SITES):
        assert covered[k, 0] == pytest.approx((LAC(*one) <= calibration.threshold).mean())
    assert (covered[:, 1] == 1).all()


def test_a_sites_own_report_does_not_move_what_the_others_prove(calibration):
    lying = list(REPORTS)
    lying[3] = by_class([(np.eye(3)[SITES[3][1]], SITES[3][1])] * 4, NAMES)[3]  # zeros only
    told = robfcp.calibrate(lying, defence=TWO).letter("site-03").others
    assert told == calibration.letter("site-03").others


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
    found = robfcp.calibrate(by_class(sites, NAMES, by_class=split), defence=rule)
    local = found.letter("site-03").at_site(*sites[own])
    assert words in local.remarks[-1]
    assert not any("other sites lie" in text for text in local.levels[0].statements)
    if np.isinf(local.levels[0].federation):
        assert local.threshold == local.levels[0].own
    if not split:
        assert found.letter("site-03").others is None
        assert own_thresholds(found, {"site-03"}) == {}


def test_too_few_samples_prove_nothing_by_themselves():
    few = drawn(1, 4, n=20)
    found = robfcp.calibrate(by_class(few, NAMES), [0.9, 0.8], defence=Consensus(at_most=1))
    local = found.letter("site-00").at_site(*few[0])
    assert np.isinf(local.levels[0].own)
    assert local.levels[0].statements[-1].endswith("prove nothing: too few samples")
    assert local.predict_set(few[1][0]).shape == (20, 3, 2)
    assert len(local.threshold) == 2


def test_a_stranger_gets_the_threshold_that_it_would_have_had(calibration):
    own = site(np.random.default_rng(9))
    local = at_stranger(calibration, *own)
    assert np.isfinite(local.levels[0].federation)
    assert local.remarks == ()
    everybody = robfcp.calibrate(by_class([*SITES, own], NAMES), defence=TWO)
    assert everybody.letter("site-11").others.thresholds == (local.levels[0].federation,)


def test_what_does_not_fit_a_site_is_refused(calibration):
    grid = robfcp.Grid.open_ended([0.0, 0.5, 1.0])
    residual = {"score": robfcp.AbsoluteResidual(), "grid": grid}
    numbers = [robfcp.Report.from_scores(name, [0.1, 0.4], **residual) for name in "ab"]
    with pytest.raises(RobfcpError, match="has no classes"):
        robfcp.calibrate(numbers, 0.5).letter("a").at_site([1.0, 2.0], [0, 1])
    letter, four, labels = (
        calibration.letter("site-03"),
        np.full((300, 4), 0.25),
        np.arange(300) % 4,
    )
    for call in (
        lambda: letter.at_site(four, labels),
        lambda: letter.at_site(*SITES[3]).predict_set(four),
        lambda: at_stranger(calibration, four, labels),
    ):
        with pytest.raises(RobfcpError, match="4 columns, but the calibration is for 3 classes"):
            call()


def test_declaring_sites_alike_warns_where_label_mixes_differ():
    alike = drawn(2, mix=[0.3, 0.3, 0.4])
    for sites, warns in ((SITES, True), (alike, False)):
        found = robfcp.calibrate(by_class(sites, NAMES), promise=robfcp.Pac(2, alike=0.1))
        assert any("label mixes differ" in one for one in found.remarks) is warns


def test_the_commands_from_reports_to_a_sites_own_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = saved(tmp_path / "in", REPORTS)
    own = [table(tmp_path / f"{k}.csv", *SITES[k], NAMES) for k in (0, 3)]
    promise = ("--liars", 2, "--promise", "label-shift", "--alike", 0)
    said("calibrate", *files, *promise, "--letters", "letters", "-o", "c.json")
    words = ("predict", "--letter", "letters/site-03.json", "--local", own[1])
    assert "clipped" in said(*words)
    data = json.loads(said(*words, "--json"))["levels"][0]
    assert data["liars"] == 2
    fresh = SITES[5][0]
    said(*words, table("new.csv", fresh, names=NAMES), "-o", "sets.csv")
    with open("sets.csv") as lines:
        sizes = [int(row["size"]) for row in csv.DictReader(lines)]
    wanted = (LAC.all_labels(fresh) <= data["threshold"]).sum(axis=1)
    np.testing.assert_array_equal(sizes, wanted)
    stranger = ("predict", "c.json", "--local", own[0])
    assert json.loads(said(*stranger, "--json"))["client"] == "this site"
    certified = json.loads(said("show", "c.json", "-m", "0,2", "--json"))
    shares = [one["coverage"][0] for one in certified["sites"]]
    assert shares == sorted(shares)
    assert certified["classes"]["least_shift"] == 0
    assert "Label shift" in said("show", "c.json", "-m", "2")
    mixed = ("--liars", 0, "--promise", "label-shift", "--mix", "uniform", "--mix", "flu=1")
    said("calibrate", *files[:3], *mixed, "-o", "d.json")
    for line, why in (
        (("calibrate", *files, "--mix", "flu=a lot"), "is neither uniform, any nor NAME=SHARE"),
        ((*stranger, "-o", "x.csv"), "name the outputs to predict from"),
        ((*stranger, "--level", 4), "--level: '4' is none of the calibration's levels"),
    ):
        assert why in refused(*line)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [None, "low", "high"])
def test_a_site_is_covered_on_average_while_others_lie(lie):
    """400 rounds of 12 sites with 2 liars: mean coverage at a fresh site keeps 0.9 unclipped."""
    rng = np.random.default_rng(17)
    covered, floors = [], []
    for _ in range(400):
        sites = [site(rng, n=120) for _ in range(12)]
        sent = list(sites)
        for k in (5, 9) if lie else ():
            sure, y = 0.999 if lie == "low" else 0.001, sites[k][1]
            sent[k] = np.where(np.eye(3)[y] > 0, sure, (1 - sure) / 2), y
        reports = by_class(sent, NAMES)
        stated = robfcp.calibrate(reports, defence="none", promise=robfcp.Marginal(2))
        local = stated.letter("site-00").at_site(*sites[0]).levels[0]
        mix = np.bincount(sites[0][1], minlength=3) / 120
        p, y = site(rng, n=400, mix=mix)
        covered.append((LAC(p, y) <= local.unclipped).mean())
        floors.append((LAC(p, y) <= local.threshold).mean() - local.floor)
    assert np.mean(covered) >= 0.9 - 3 * np.std(covered) / 20
    assert np.mean(floors) >= -3 * np.std(floors) / 20
    assert np.mean(covered) < 0.97  # and it says something


def test_sites_without_classes_or_with_merged_ones_are_outside_what_label_shift_proves():
    pooled = [robfcp.Report.from_scores(f"p{k}", np.full(300, 0.95), score=LAC) for k in range(8)]
    found = robfcp.calibrate([*REPORTS, *pooled], promise=robfcp.LabelShift(0)).certificate
    assert (found.n_clients, found.n_outside) == (len(SITES), 0)
    assert "outside it: 8 sites without counts of all classes (p0, p1, " in found.statement
    assert not any("of the 19" in one.text for one in found.assumptions)
    p, y = SITES[2]
    few = np.concatenate([np.flatnonzero(y == 0)[:2], np.flatnonzero(y != 0)])
    merged = list(REPORTS)
    merged[2] = robfcp.Report.of("site-02", p[few], y[few], classes=NAMES, least=5)
    shift = robfcp.LabelShift(1, mix="uniform")
    found = robfcp.calibrate(merged, promise=robfcp.LabelShift(1))
    assert found.certificate.outside == "1 site without counts of all classes (site-02)"
    assert found.letter("site-02").others is None
    without = robfcp.calibrate([*merged[:2], *merged[3:]], promise=shift)
    assert robfcp.calibrate(merged, promise=shift).threshold == without.threshold


def test_two_shifts_are_paid_for_one_site():
    """From the others to the common distribution, and from that to this site."""
    counts, others = (
        class_counts(robfcp.Federation.from_reports(sent)) for sent in (REPORTS, REPORTS[1:])
    )
    found = site_thresholds(counts, 0.2, 0, 0.03)
    paid = 0.2 * 0.95 - 0.03  # the rule for mixes pays the other 0.03
    walk = mix_threshold(others, own_mixes(counts.sizes[0]), paid, 0, 0.01, 0.03)
    assert found[0] == walk.index


@pytest.mark.parametrize(
    "asked",
    [
        {"by": "class"},
        {"by": "class", "promise": robfcp.Marginal(2), "coverage": [0.9, 0.8]},
        {"by": {"flu": "ill", "cold": "ill", "none": "well"}},
        {"promise": robfcp.LabelShift(2, mix=["uniform", {"flu": 1.0}])},
        {"promise": robfcp.LabelShift(2)},
        {"promise": robfcp.LabelShift(1, mix="any")},
        {"promise": robfcp.LabelShift(1, mix={"flu": np.int64(1)})},
        {"promise": robfcp.LabelShift(1, mix=["uniform", {"flu": np.float32(1)}])},
    ],
)
def test_calibrations_by_class_verify_and_say_how_many_sites_there_are(asked, tmp_path):
    made = robfcp.calibrate(REPORTS, defence=TWO, **asked)
    made.save(tmp_path / "c.json")
    loaded = robfcp.Calibration.load(tmp_path / "c.json")
    assert verify_calibration(loaded) == []
    assert loaded.record.promise == made.record.promise
    certificates = made.certificate if made.several else [made.certificate]
    assert all(one.n_clients == len(SITES) for one in certificates)
    if made.by is None:
        return
    covered = covered_at_sites(made)
    for k, (p, y) in enumerate(SITES):
        for level, found in enumerate(made.levels):
            limits = np.array([one.threshold for one in found.parts])[y]
            assert covered[k, level] == pytest.approx((LAC(p, y) <= limits).mean())
