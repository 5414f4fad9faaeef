"""Thresholds by class: each is a round of its holders; crepes, MAPIE, files, privacy, liars."""

from fractions import Fraction

import numpy as np
import pytest
from effort import cases
from makers import outputs

import robfcp
from robfcp import Consensus, MarginalGuarantee, PACGuarantee, RobFCP, calibrate
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.privacy import Privacy
from robfcp.reports import Report, StratifiedCounts

NAMES = ("cat", "dog", "eel")
PETS = {"cat": "pet", "dog": "pet", "eel": "fish"}
LEVELS = [Fraction(9, 10), Fraction(1, 2), Fraction(3, 4), Fraction(19, 20), Fraction(1, 3)]
LAC = robfcp.LAC()


def federation_of(tables):
    """A federation from (K, C, H) counts by class; sites without a sample are left out."""
    _, n_strata, bins = np.shape(tables)
    reports = []
    for k, table in enumerate(np.reshape(tables, (len(tables), -1))):
        cells = np.flatnonzero(table)
        if cells.size:
            strata = StratifiedCounts("class", n_strata, cells, table[cells], bins)
            reports.append(Report(f"site-{k:02d}", None, Binning.uniform(bins), strata=strata))
    return Federation.from_reports(reports)


def random_tables(rng):
    """(K, C, H) counts of three sites or more; some classes thin or absent at some of them."""
    n_sites, n_classes, bins = (int(x) for x in rng.integers([3, 1, 2], [8, 4, 7]))
    shares = rng.dirichlet(np.full(bins, 0.5), (n_sites, n_classes))
    sizes = rng.integers(0, 90, (n_sites, n_classes)) * rng.integers(0, 3, (n_sites, n_classes))
    tables = rng.multinomial(sizes // 2, shares)
    return tables if tables.any(axis=(1, 2)).all() else random_tables(rng)


def site(k, classes=NAMES, n=200, grid=None, by="labels", **more):
    """One honest site: class c's scores are u ** (1/a), harder at some sites than at others."""
    rng = np.random.default_rng([7, k])
    number = classes if isinstance(classes, int) else len(classes)
    labels = rng.integers(0, number, n)
    power = np.exp(rng.normal(0, 0.2, number) - 0.3 * np.arange(number))
    scores = rng.random(n) ** (1 / power[labels])
    told = {"labels": labels, "classes": classes}
    told = told if by == "labels" else {"groups": np.array(classes)[labels]}
    return Report.from_scores(f"site-{k:02d}", scores, grid, score=LAC, **told, **more)


SITES = [site(k) for k in range(8)]
GROUPED = [site(k, ("f", "m", "x"), by="groups") for k in range(6)]


# Thresholds


@pytest.mark.effort
@pytest.mark.parametrize("kind", [None, MarginalGuarantee, PACGuarantee])
def test_every_class_is_a_round_of_its_holders_with_its_share_of_the_confidence(kind):
    """Rounds of one distribution are held against brute force elsewhere; nobody flagged here."""
    rng = np.random.default_rng(5)
    seen = {"finite": 0, "infinite": 0, "": 0, "hardly protected": 0, "always covered": 0}
    for trial in range(cases(30)):
        tables, level = random_tables(rng), LEVELS[trial % len(LEVELS)]
        m = int(rng.integers(0, len(tables))) if kind else 0
        asked = {"defense": "none", "guarantee": kind and kind(m)}
        federation = federation_of(tables)
        if kind is None:  # of a class the trusted holders' own
            kept = calibrate(federation, level, by="class", defense=RobFCP(liars=1))
            for limit, table in zip(
                kept.threshold, tables[kept.benign_mask].swapaxes(0, 1), strict=True
            ):
                held = table[table.any(axis=1)]
                one = len(held) and calibrate(Federation.from_counts(held), level, defense="none")
                assert limit == (one.threshold if len(held) else np.inf)
        found = calibrate(federation, level, by="class", certificate_confidence=0.9, **asked)
        sure, parts = 1 - 0.1 / tables.shape[1], found.levels[0].strata
        for c, one in enumerate(parts):
            (held,) = np.nonzero(tables[:, c].any(axis=1))
            few = "hardly protected" if m and len(held) <= 2 * m else ""
            kept = "always covered" if np.isinf(one.threshold) else few
            seen[kept] += 1
            seen["finite" if np.isfinite(one.threshold) else "infinite"] += 1
            assert (one.n_clients, one.n_samples) == (len(held), tables[:, c].sum())
            assert one.protection == kept
            if len(held) <= m:
                assert (one.threshold, one.certificate.lower) == (np.inf, 1)
                continue
            alone = Federation.from_counts(tables[held, c])
            (own,) = calibrate(alone, level, certificate_confidence=sure, **asked).levels
            for field in ("threshold", "certificate_points", "certificate"):
                assert getattr(one, field) == getattr(own, field)
            assert found.certificates[one.name][0].confidence == 0.9
        assert found.certificate.lower == min(one.certificate.lower for one in parts)
        assert found.certificate.upper == max(one.certificate.upper for one in parts)
        assert found.certificate.confidence in (None, pytest.approx(0.9))
    assert min(seen[word] for word in (seen if kind else ("finite", ""))) > 0.1 * cases(30)


def test_classes_held_by_few_are_named_and_curves_of_many_classes_are_short():
    rng = np.random.default_rng(5)
    tables = rng.multinomial(60, np.full(8, 1 / 8), (9, 5))
    for c, holders in enumerate([9, 5, 4, 2, 0]):
        tables[holders:, c] = 0
    federation = federation_of(tables)
    for kind in (MarginalGuarantee, PACGuarantee):
        found = calibrate(federation, by="class", defense="none", guarantee=kind(2))
        assert np.isfinite(found.threshold).tolist() == [True, True, True, False, False]
        assert found.certificate.lower == 0.9  # infinite ones are covered for certain
        assert found.certificate.note == "always covered: 3, 4; hardly protected: 2"
        assert found.statement.startswith("coverage of every class is at least 90%, whatever")
    plain = calibrate(federation, by="class", defense=Consensus(at_most=2))
    assert np.isfinite(plain.threshold).tolist() == [True, True, True, True, False]
    kept = plain.levels[0].strata[3]
    assert (kept.protection, kept.certificate.lower) == ("unprotected", 0.0)
    many = calibrate([site(k, 40, n=400) for k in range(14)], by="class", defense="none")
    assert {len(curve) for curve in many.certificates.values()} == {5}


@pytest.mark.parametrize(
    ("by", "reports", "promise", "words"),
    [
        ("class", "pooled", None, "the reports keep no counts by class"),
        ("group", "classes", None, "keep counts by class, not by group"),
        ("ward", "classes", None, "by: 'ward' is unknown"),
        (
            "class",
            "classes",
            MarginalGuarantee(samples=100),
            "by class or group state liars, not samples",
        ),
        ({"cat": "a", "dog": "a"}, "classes", None, "by: 'eel' has no cluster"),
        (dict.fromkeys((*NAMES, "cow"), "a"), "classes", None, "by: 'cow' is none of"),
    ],
)
def test_what_is_asked_of_reports_that_lack_it_is_refused_in_words(by, reports, promise, words):
    pooled = [Report.from_scores(f"s{k}", [0.1, 0.2], score=LAC) for k in range(3)]
    with pytest.raises(RobfcpError, match=words):
        calibrate(pooled if reports == "pooled" else SITES, by=by, guarantee=promise)


@pytest.mark.parametrize("promise", [None, MarginalGuarantee(1), PACGuarantee(1)])
def test_clusters_share_a_threshold_that_equals_the_one_of_relabelled_reports(promise):
    asked = {"defense": "none", "guarantee": promise}
    mapped = calibrate(SITES, by=PETS, **asked)
    sent = []
    for report in SITES:
        table = np.zeros((2, report.grid.n_bins), dtype=int)
        np.add.at(table, [0, 0, 1], report.strata.dense())
        cells = np.flatnonzero(table)
        strata = StratifiedCounts(
            "class", ("pet", "fish"), cells, table.ravel()[cells], report.grid.n_bins
        )
        sent.append(Report(report.client, None, report.grid, report.score, strata=strata))
    again = calibrate(sent, by="class", **asked)
    np.testing.assert_array_equal(mapped.threshold, again.threshold[[0, 0, 1]])
    assert mapped.certificate.lower == again.certificate.lower
    thin = calibrate([*SITES, site(9, n=30, min_class_count=25)], by=PETS, **asked)
    assert (thin.strata, thin.threshold[0]) == (NAMES, thin.threshold[1])
    pooled = Report.from_scores("shy", np.zeros(500), SITES[0].grid, score=LAC)
    beside = calibrate([*SITES, pooled], by=PETS, **asked)
    np.testing.assert_array_equal(beside.threshold, mapped.threshold)
    assert [one.n_clients for one in beside.levels[0].strata] == [8, 8, 8]
    for words in ("1 site keeps its class back", "for each cluster"):
        assert any(words in note for note in beside.notes)


# Prediction and files


def test_a_set_holds_the_labels_whose_score_is_at_most_their_own_threshold():
    levels, asked = [0.8, 0.9, 0.95], {"by": "class", "guarantee": MarginalGuarantee(liars=1)}
    found, p = calibrate(SITES, levels, **asked), np.random.default_rng(1).dirichlet(np.ones(3), 50)
    sets = found.predict_set(p)
    for k, level in enumerate(levels):
        alone = calibrate(SITES, level, **asked)
        np.testing.assert_array_equal(found.threshold[k], alone.threshold)
        np.testing.assert_array_equal(alone.predict_set(p), 1 - p <= alone.threshold)
        np.testing.assert_array_equal(sets[:, :, k], alone.predict_set(p))
    for rows, part in found.iter_prediction_sets(p):
        np.testing.assert_array_equal(part, sets[rows])
    with pytest.raises(RobfcpError, match="4 columns, but the calibration is for 3"):
        found.predict_set(np.full((1, 4), 1 / 4))
    with pytest.raises(RobfcpError, match="thresholds are not by group"):
        calibrate(SITES).predict_set(p, groups=["a"] * 50)


def test_by_group_each_sample_is_held_against_its_own_groups_threshold():
    found = calibrate(GROUPED, by="group", guarantee=MarginalGuarantee(liars=1))
    p = np.random.default_rng(2).dirichlet(np.ones(4), 30)
    groups = np.array(["x", "f", "m"])[np.arange(30) % 3]
    own = found.threshold[[found.strata.index(g) for g in groups]]
    assert len(set(own)) == 3
    np.testing.assert_array_equal(found.predict_set(p, groups=groups), 1 - p <= own[:, None])
    ends = found.predict_interval(np.ones(30), groups=groups, score=robfcp.AbsoluteResidual())
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 2 * own)
    for wrong, words in (
        (None, "groups: the thresholds are by group; pass each sample's group"),
        (["f", "q"] * 15, "groups: 'q' had no report"),
        (["f"], "groups: need one a sample"),
    ):
        with pytest.raises(RobfcpError, match=words):
            found.predict_set(p, groups=wrong)
    with pytest.raises(RobfcpError, match="thresholds are by group"):
        next(found.iter_prediction_sets(p))


# One site, nobody lying


def test_one_sites_sets_equal_the_class_conditional_sets_of_crepes():
    """No class has 10 j - 1 samples: there crepes, which keeps p-values of alpha, takes one more.

    The grid has every calibration score for an edge.
    """
    crepes = pytest.importorskip("crepes")
    rng = np.random.default_rng(0)
    p, new = rng.dirichlet(np.full(5, 0.3), (2, 900))
    labels = (p.cumsum(axis=1) > rng.random((900, 1))).argmax(axis=1)
    assert ((np.bincount(labels) + 1) % 10).all()
    scores = LAC(p, labels)
    grid = Binning(np.unique(np.concatenate([[0.0], scores, [1.0]])))
    report = Report.from_scores("a", scores, grid, score=LAC, labels=labels, classes=5)
    found = calibrate([report], by="class", defense="none").predict_set(new)
    theirs = crepes.ConformalClassifier().fit(scores, bins=labels)
    for c in range(5):
        p_values = theirs.predict_p(1 - new[:, [c]], bins=np.full(900, c), smoothing=False)
        np.testing.assert_array_equal(found[:, c], np.ravel(p_values) > 0.1)


# Privacy


def test_noise_that_moves_no_count_costs_a_fiftieth_of_the_miss_rate():
    """Epsilon 60: no count moves (chance e^-30), but the rule must reckon with it."""
    pytest.importorskip("opendp")
    asked, grid = (
        {"by": "class", "defense": "none", "guarantee": MarginalGuarantee(1)},
        Binning.uniform(200),
    )
    exact = calibrate([site(k, grid=grid) for k in range(8)], "0.902", **asked)
    noisy = [site(k, grid=grid, privacy=Privacy(60.0)) for k in range(8)]
    np.testing.assert_array_equal(calibrate(noisy, **asked).threshold, exact.threshold)
    with pytest.raises(RobfcpError, match="private reports hold noise a class"):
        calibrate(noisy, by=PETS)


@pytest.mark.parametrize(("n_classes", "n_points"), [(25, 7), (26, 5)])
def test_curves_of_more_than_25_classes_have_their_first_five_points(n_classes, n_points):
    rng = np.random.default_rng(0)
    labels = np.arange(4 * n_classes) % n_classes
    reports = [
        robfcp.Report.from_scores(
            f"s{k}", rng.random(len(labels)), labels=labels, classes=n_classes, min_cell_count=1
        )
        for k in range(13)
    ]
    (level,) = robfcp.calibrate(reports, by="class", defense="none").levels
    assert len(level.strata) == n_classes
    for stratum in level.strata:
        assert [point.m for point in stratum.certificate_points] == list(range(n_points))


def test_class_totals_name_the_classes_but_give_no_threshold_by_class():
    rng = np.random.default_rng(4)
    sites = [outputs(rng, 120) for _ in range(6)]
    names = ("flu", "cold", "none")
    found = calibrate(sent_by(sites, names), defense="none")
    assert found.classes == names
    columns = found.predict_set(sites[0][0][:5])
    assert columns.shape == (5, 3)
    named_labels = np.array(names)[sites[0][1]]
    assert found.evaluate(sites[0][0], named_labels).overall.n == 120
    with pytest.raises(RobfcpError) as error:
        calibrate(sent_by(sites, names), by="class")
    assert str(error.value) == (
        "by: the reports state class totals alone, no counts by class; make them with --by-class "
        "(stratify_by_class=True)"
    )
    by_cluster = dict.fromkeys(names, "all")
    with pytest.raises(RobfcpError, match="state class totals alone"):
        calibrate(sent_by(sites, names), by=by_cluster)
    assert calibrate(sent_by(sites, names, stratify_by_class=True), by="class").by == "class"


def sent_by(sites, names, **options):
    """Default reports of some sites."""
    return [
        Report.from_predictions(f"s{k}", p, y, classes=names, min_cell_count=5, **options)
        for k, (p, y) in enumerate(sites)
    ]


def test_notes_say_what_default_reports_leave_open():
    rng = np.random.default_rng(4)
    sites = [outputs(rng, 120) for _ in range(6)]
    default = sent_by(sites, 3)
    (note,) = calibrate(default, defense="none").notes
    assert note == (
        "6 of 6 reports are coarsened to cells of at least 5 samples: thresholds are estimated "
        "from the midpoints of their counts, and what is proved rests on the least that these can "
        "be"
    )
    mixed = [*sent_by(sites[:4], 3, stratify_by_class=True), *default[4:]]
    assert calibrate(mixed, defense="none").notes[-1] == (
        "2 sites state class totals alone: in what is said of all samples, and in nothing by class"
    )
