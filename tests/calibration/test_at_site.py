"""A site's own threshold: letters, clipping, strangers, and coverage that does not follow liars."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import robfcp
from robfcp import Consensus
from robfcp.calibration import Letter
from robfcp.calibration.at_site import at_stranger
from robfcp.calibration.by_class import site_coverage
from robfcp.calibration.document import digest_of
from robfcp.calibration.letters import own_thresholds
from robfcp.cli import app
from robfcp.errors import RobfcpError
from robfcp.page.data import strata_data

LAC = robfcp.LAC()
NAMES = ("flu", "cold", "none")


def site(rng, n=300, mix=None, pull=1.5):
    """Probabilities and labels of one site; pull is how well the model knows the class."""
    y = rng.choice(3, n, p=rng.dirichlet([1, 1, 1]) if mix is None else mix)
    z = rng.normal(size=(n, 3))
    z[np.arange(n), y] += pull
    p = np.exp(z)
    return p / p.sum(axis=1, keepdims=True), y


def reports_of(sites):
    return [
        robfcp.Report.from_scores(f"site-{k:02d}", LAC(p, y), score=LAC, labels=y, classes=NAMES)
        for k, (p, y) in enumerate(sites)
    ]


@pytest.fixture(scope="module")
def sites():
    rng = np.random.default_rng(5)
    return [site(rng) for _ in range(11)]


@pytest.fixture(scope="module")
def calibration(sites):
    return robfcp.calibrate(reports_of(sites), defence=Consensus(at_most=2))


def test_a_letter_keeps_what_the_others_prove_and_at_site_clips_it(sites, calibration, tmp_path):
    letter = calibration.letter("site-03")
    letter.save(tmp_path / "letter.json")
    again = Letter.load(tmp_path / "letter.json")
    assert again.others == letter.others
    assert letter.others.label_counts == tuple(np.bincount(sites[3][1], minlength=3))
    local = again.at_site(*sites[3])
    one = local.levels[0]
    ordered = np.sort(LAC(*sites[3]))
    low = ordered[round(one.floor * (one.n + 1)) - 1]
    assert one.threshold == max(low, min(one.federation, one.own))
    assert one.unclipped == max(low, one.federation)
    assert low <= one.threshold <= one.own
    assert local.threshold == one.threshold
    assert local.remarks == ()
    np.testing.assert_array_equal(
        local.predict_set(sites[4][0]), LAC.all_labels(sites[4][0]) <= one.threshold
    )
    np.testing.assert_array_equal(
        local.predict_set(sites[4][0], clip=False), LAC.all_labels(sites[4][0]) <= one.unclipped
    )
    assert one.set_sizes[2] == pytest.approx(local.predict_set(sites[3][0]).sum(axis=1).mean())
    assert any("at most 2 other sites lie" in text for text in one.statements)


def test_the_server_knows_each_sites_own_threshold_up_to_one_bin(sites, calibration):
    chosen = {"site-00", "site-03", "site-07"}
    found = own_thresholds(calibration, chosen)
    assert set(found) == chosen
    edges = calibration.federation.grid.edges
    for client, known in found.items():
        own = sites[int(client[-2:])]
        local = calibration.letter(client).at_site(*own)
        bins = np.searchsorted(edges, [local.threshold, known.threshold], side="left")
        assert bins[0] == bins[1]
        assert local.threshold <= known.threshold
        assert known.covered == np.mean(LAC(*own) <= known.threshold)


def test_certify_and_the_page_show_each_site_under_its_own_threshold(calibration, tmp_path):
    calibration.save(tmp_path / "c.json")
    ran = CliRunner().invoke(app, ["show", str(tmp_path / "c.json"), "-m", "2", "--json"])
    shown = json.loads(ran.stdout)["sites"]
    known = own_thresholds(calibration, set(calibration.federation.ids))
    for one in shown[:10]:
        assert one["own"] == known[one["client"]]._asdict()
    assert shown[10]["own"] is None
    text = CliRunner().invoke(app, ["show", str(tmp_path / "c.json"), "-m", "2"]).stdout
    assert "own threshold" in text
    for site in strata_data(calibration)["sites"]:
        assert site["own"][0] == known[site["name"]].threshold
        assert site["own"][1] == round(known[site["name"]].covered, 5)


def test_a_sites_own_report_does_not_move_what_the_others_prove(sites, calibration):
    scores = np.zeros(300)
    lying = reports_of(sites)
    lying[3] = robfcp.Report.from_scores(
        "site-03", scores, score=LAC, labels=sites[3][1], classes=NAMES
    )
    told = robfcp.calibrate(lying, defence=Consensus(at_most=2)).letter("site-03").others
    assert told == calibration.letter("site-03").others


def pooled(sites):
    return [robfcp.Report.from_scores(one.client, LAC(*own), score=LAC)
            for one, own in zip(reports_of(sites), sites, strict=True)]  # fmt: skip


def unlike():
    """No label shift at all: sites differ within classes."""
    rng = np.random.default_rng(12)
    return [site(rng, pull=-2.0 if k % 2 else 3.0) for k in range(11)]


@pytest.mark.parametrize(
    ("sent", "own", "rule", "words"),
    [
        (reports_of, 4, Consensus(at_most=2), "not the labels this site reported"),
        (reports_of, 3, Consensus(), "estimated, not stated"),
        (pooled, 3, Consensus(at_most=2), "no threshold from other sites"),
        (None, 3, Consensus(at_most=1), "more than 1 of them disagree within classes"),
    ],
)
def test_a_site_is_told_why_the_others_prove_nothing_for_it(sites, sent, own, rule, words):
    sites = unlike() if sent is None else sites
    found = robfcp.calibrate((sent or reports_of)(sites), defence=rule)
    local = found.letter("site-03").at_site(*sites[own])
    assert words in local.remarks[-1]
    assert not any("other sites lie" in text for text in local.levels[0].statements)
    assert local.levels[0].rows[0][3] == "nothing"
    if np.isinf(local.levels[0].federation):
        assert local.threshold == local.levels[0].own
    if sent is pooled:
        assert found.letter("site-03").others is None
        assert own_thresholds(found, {"site-03"}) == {}


def test_too_few_samples_prove_nothing_by_themselves():
    rng = np.random.default_rng(1)
    sites = [site(rng, n=20) for _ in range(4)]
    letter = robfcp.calibrate(reports_of(sites), [0.9, 0.8], defence=Consensus(at_most=1)).letter(
        "site-00"
    )
    local = letter.at_site(*sites[0])
    assert np.isinf(local.levels[0].own)
    assert local.levels[0].rows[1][3] == "nothing: too few samples"
    assert local.predict_set(sites[1][0]).shape == (20, 3, 2)
    assert len(local.threshold) == 2


def test_a_stranger_gets_a_threshold_from_the_evidence(sites, calibration):
    p, y = site(np.random.default_rng(9))
    local = at_stranger(calibration, p, y)
    assert np.isfinite(local.levels[0].federation)
    assert local.remarks == ()
    everybody = robfcp.calibrate(
        [*reports_of(sites), *reports_of([(p, y)] * 12)[11:]], defence=Consensus(at_most=2)
    )
    told = everybody.letter("site-11").others
    assert told.limits == (local.levels[0].federation,)


def test_damaged_letters_are_refused_in_words(calibration):
    good = json.loads(calibration.letter("site-03").to_json())
    assert good["body"]["others"]["liars"] == 2
    others = good["body"]["others"]
    for change in (
        {"others": {**others, "thresholds": [0.5, 0.6]}},
        {"others": {**others, "label_counts": [1, -2, 3]}},
        {"others": {**others, "liars": -1}},
        {"others": {**others, "alike": 7.0}},
        {"others": {**others, "more": 1}},
        {"verdict": "perhaps"},
        {"covered": [1.5]},
        {"calibration": {}},
        {"more": 1},
    ):
        raw = json.dumps({**good["body"], **change}, separators=(",", ":")).encode()
        head = f'{{"kind":"letter","schema":1,"digest":"{digest_of(raw)}","body":'.encode()
        with pytest.raises(RobfcpError, match=r"^letter: .*pass a file that robfcp calibrate"):
            Letter.from_json(head + raw + b"}")


def test_regression_has_no_mix_of_labels():
    grid = robfcp.Grid.open_ended([0.0, 0.5, 1.0])
    reports = [
        robfcp.Report.from_scores(name, [0.1, 0.4], grid, score=robfcp.AbsoluteResidual())
        for name in "ab"
    ]
    letter = robfcp.calibrate(reports, 0.5).letter("a")
    with pytest.raises(RobfcpError, match="has no classes"):
        letter.at_site([1.0, 2.0], [0, 1])


def test_coverage_by_site_is_each_ones_own(sites, calibration):
    covered = site_coverage(calibration.federation, [calibration.threshold, np.inf])
    for k, one in enumerate(sites):
        assert covered[k, 0] == pytest.approx((LAC(*one) <= calibration.threshold).mean())
    assert (covered[:, 1] == 1).all()


def test_declaring_sites_alike_warns_where_label_mixes_differ(sites):
    found = robfcp.calibrate(reports_of(sites), promise=robfcp.Pac(2, alike=0.1))
    assert any("label mixes differ" in one for one in found.remarks)
    rng = np.random.default_rng(2)
    alike = [site(rng, mix=[0.3, 0.3, 0.4]) for _ in range(11)]
    found = robfcp.calibrate(reports_of(alike), promise=robfcp.Pac(2, alike=0.1))
    assert not any("label mixes" in one for one in found.remarks)


def write(path, p, y=None):
    rows = [
        ",".join(f"{v:.9f}" for v in row) + ("" if y is None else f",{y[i]}")
        for i, row in enumerate(p)
    ]
    head = ",".join(NAMES) + ("" if y is None else ",label")
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_the_command_from_sketch_to_a_sites_own_sets(tmp_path, sites):
    files = [write(tmp_path / f"{k}.csv", *one) for k, one in enumerate(sites)]
    for k, data in enumerate(files):
        run("report", data, "--client", f"s{k}", "-o", tmp_path / f"r{k}.json", "-q")
    made = run(
        "calibrate",
        *[tmp_path / f"r{k}.json" for k in range(len(files))],
        *("--liars", 2, "--promise", "label-shift", "--alike", 0),
        *("--letters", tmp_path / "letters", "-o", tmp_path / "c.json"),
    )
    assert made.exit_code == 0, made.output
    letter = tmp_path / "letters" / "s3.json"
    shown = run("predict", letter, "--local", files[3])
    assert shown.exit_code == 0, shown.output
    assert "clipped" in shown.output
    data = json.loads(run("predict", letter, "--local", files[3], "--json").stdout)
    assert data["levels"][0]["liars"] == 2
    new = write(tmp_path / "new.csv", sites[5][0])
    sets = tmp_path / "sets.csv"
    assert run("predict", letter, new, "--local", files[3], "-o", sets).exit_code == 0
    with sets.open() as lines:
        sizes = [int(row["size"]) for row in csv.DictReader(lines)]
    limit = data["levels"][0]["threshold"]
    assert np.mean(sizes) == pytest.approx((LAC.all_labels(sites[5][0]) <= limit).sum(1).mean())
    stranger = json.loads(run("predict", tmp_path / "c.json", "--local", files[0], "--json").stdout)
    assert stranger["client"] == "this site"
    certified = json.loads(run("show", tmp_path / "c.json", "-m", "0,2", "--json").stdout)
    shares = [one["coverage"][0] for one in certified["sites"]]
    assert shares == sorted(shares)
    assert certified["classes"]["least_shift"] == 0
    assert "Label shift" in run("show", tmp_path / "c.json", "-m", "2").output


def test_the_commands_say_what_is_wrong(tmp_path, sites):
    data = write(tmp_path / "a.csv", *sites[0])
    for k in range(3):
        own = write(tmp_path / f"{k}.csv", *sites[k])
        run("report", own, "--client", f"s{k}", "-o", tmp_path / f"r{k}.json", "-q")
    reports = [tmp_path / f"r{k}.json" for k in range(3)]
    made = run("calibrate", *reports, "--mix", "flu=a lot")
    assert "is neither uniform, any nor NAME=SHARE" in str(made.exception)
    mixed = ("--liars", 0, "--promise", "label-shift", "--mix", "uniform", "--mix", "flu=1")
    assert run("calibrate", *reports, *mixed, "-o", tmp_path / "c.json").exit_code == 0
    alone = run("predict", tmp_path / "c.json", "-o", "x.csv", "--local", data)
    assert "name the outputs to predict from" in str(alone.exception)
    level = run("predict", tmp_path / "c.json", "--local", data, "--level", 4)
    assert "--level: '4' is none of the calibration's levels" in str(level.exception)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [None, "low", "high"])
def test_a_site_is_covered_on_average_while_others_lie(lie):
    """400 rounds of 12 sites with 2 liars: mean coverage at a fresh site keeps 0.9 unclipped."""
    rng = np.random.default_rng(17)
    covered, floors = [], []
    for _ in range(400):
        sites = [site(rng, n=120) for _ in range(12)]
        reports = reports_of(sites)
        for k in (5, 9) if lie else ():
            value = np.full(120, 0.001 if lie == "low" else 0.999)
            reports[k] = robfcp.Report.from_scores(
                f"site-{k:02d}", value, score=LAC, labels=sites[k][1], classes=NAMES
            )
        stated = robfcp.calibrate(reports, defence="none", promise=robfcp.Marginal(2))
        local = stated.letter("site-00").at_site(*sites[0]).levels[0]
        mix = np.bincount(sites[0][1], minlength=3) / 120
        p, y = site(rng, n=400, mix=mix)
        covered.append((LAC(p, y) <= local.unclipped).mean())
        floors.append((LAC(p, y) <= local.threshold).mean() - local.floor)
    assert np.mean(covered) >= 0.9 - 3 * np.std(covered) / 20
    assert np.mean(floors) >= -3 * np.std(floors) / 20
    assert np.mean(covered) < 0.97  # and it says something


def test_sites_without_classes_are_outside_what_label_shift_proves(sites):
    pooled = [
        robfcp.Report.from_scores(f"pooled-{k}", np.full(300, 0.95), score=LAC) for k in range(8)
    ]
    found = robfcp.calibrate(
        [*reports_of(sites), *pooled], promise=robfcp.LabelShift(0)
    ).certificate
    assert found.n_clients == len(sites)
    assert found.n_outside == 8
    assert "says nothing of 8 sites" in found.note
    assert not any("of the 19" in one.text for one in found.assumptions)


def test_sites_that_merged_classes_are_outside_too(sites):
    reports = reports_of(sites)
    p, y = sites[2]
    few = np.concatenate([np.flatnonzero(y == 0)[:2], np.flatnonzero(y != 0)])
    reports[2] = robfcp.Report.from_scores(
        "site-02", LAC(p, y)[few], score=LAC, labels=y[few], classes=NAMES, least=5
    )
    found = robfcp.calibrate(reports, promise=robfcp.LabelShift(1))
    assert found.certificate.n_outside == 1
    assert "(site-02)" in found.certificate.note
    mixed = robfcp.calibrate(reports, promise=robfcp.LabelShift(1, mix="uniform"))
    without = robfcp.calibrate(
        [*reports[:2], *reports[3:]], promise=robfcp.LabelShift(1, mix="uniform")
    )
    assert mixed.threshold == without.threshold
    assert found.letter("site-02").others is None


def test_two_shifts_are_paid_for_one_site(sites):
    """From the others to the common distribution, and from that to this site."""
    from robfcp.guarantees import class_counts, own_mixes, site_thresholds
    from robfcp.guarantees.label_shift import mix_threshold

    counts = class_counts(robfcp.Federation.from_reports(reports_of(sites)))
    found = site_thresholds(counts, 0.2, 0, 0.03)
    others = class_counts(robfcp.Federation.from_reports(reports_of(sites)[1:]))
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
    ],
)
def test_calibrations_by_class_verify_and_say_how_many_sites_there_are(sites, asked, tmp_path):
    from robfcp.calibration import verify_calibration
    from robfcp.calibration.by_class import covered_at_sites

    made = robfcp.calibrate(reports_of(sites), defence=Consensus(at_most=2), **asked)
    made.save(tmp_path / "c.json")
    loaded = robfcp.Calibration.load(tmp_path / "c.json")
    assert verify_calibration(loaded) == []
    certificates = made.certificate if made.several else [made.certificate]
    assert all(one.n_clients == len(sites) for one in certificates)
    if made.by is None:
        return
    covered = covered_at_sites(made)
    for k, (p, y) in enumerate(sites):
        for level, found in enumerate(made.levels):
            limits = np.array([one.threshold for one in found.strata])[y]
            assert covered[k, level] == pytest.approx((LAC(p, y) <= limits).mean())


@pytest.mark.parametrize(
    "mix", [["uniform", {"flu": np.float32(1)}], "any", {"flu": 1}, {"flu": np.int64(1)}]
)
def test_a_mix_is_the_same_once_written_and_read(sites, mix):
    made = robfcp.calibrate(reports_of(sites), promise=robfcp.LabelShift(1, mix=mix))
    again = robfcp.calibration.Record.from_json(made.record.to_json())
    assert again.promise == made.record.promise


def test_another_number_of_classes_is_refused_at_a_site(sites, calibration):
    four = np.full((300, 4), 0.25)
    labels = np.arange(300) % 4
    wanted = "4 columns, but the calibration is for 3 classes"
    letter = calibration.letter("site-03")
    with pytest.raises(RobfcpError, match=wanted):
        letter.at_site(four, labels)
    with pytest.raises(RobfcpError, match=wanted):
        letter.at_site(*sites[3]).predict_set(four)
    with pytest.raises(RobfcpError, match=wanted):
        at_stranger(calibration, four, labels)
