"""Thresholds by class, group and cluster: each is that of a round of its holders."""

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
LEVELS = [Fraction(9, 10), Fraction(1, 2), Fraction(3, 4), Fraction(19, 20), Fraction(2, 3)]
LAC = robfcp.LAC()


def federation_of(tables):
    """Return a federation from (K, C, H) counts by class, without clients that have no sample."""
    _, n_strata, bins = np.shape(tables)
    reports = []
    for k, table in enumerate(np.reshape(tables, (len(tables), -1))):
        cells = np.flatnonzero(table)
        if cells.size:
            strata = StratifiedCounts("class", n_strata, cells, table[cells], bins)
            reports.append(Report(f"site-{k:02d}", None, Binning.uniform(bins), strata=strata))
    return Federation.from_reports(reports)


def random_tables(rng):
    """Return (K, C, H) counts of three clients or more; some classes are rare or absent."""
    n_clients, n_classes, bins = (int(x) for x in rng.integers([3, 1, 2], [8, 4, 7]))
    fractions = rng.dirichlet(np.full(bins, 0.5), (n_clients, n_classes))
    sizes = rng.integers(0, 90, (n_clients, n_classes)) * rng.integers(0, 3, (n_clients, n_classes))
    tables = rng.multinomial(sizes // 2, fractions)
    return tables if tables.any(axis=(1, 2)).all() else random_tables(rng)


def client_report(
    client_index, names=NAMES, n_samples=200, binning=None, stratify_by="labels", **options
):
    """Return a benign report: class c's scores are u ** (1/a), a differing between clients."""
    rng = np.random.default_rng([7, client_index])
    n_classes = names if isinstance(names, int) else len(names)
    labels = rng.integers(0, n_classes, n_samples)
    power = np.exp(rng.normal(0, 0.2, n_classes) - 0.3 * np.arange(n_classes))
    scores = rng.random(n_samples) ** (1 / power[labels])
    strata = {"labels": labels, "classes": names}
    strata = strata if stratify_by == "labels" else {"groups": np.array(names)[labels]}
    return Report.from_scores(
        f"site-{client_index:02d}", scores, binning, score=LAC, **strata, **options
    )


CLIENTS = [client_report(k) for k in range(8)]
GROUPED = [client_report(k, ("f", "m", "x"), stratify_by="groups") for k in range(6)]


# Thresholds


@pytest.mark.effort
@pytest.mark.parametrize("guarantee_type", [None, MarginalGuarantee, PACGuarantee])
def test_every_class_is_a_round_of_its_holders_with_its_fraction_of_delta(guarantee_type):
    """Rounds of one distribution are compared with brute force elsewhere; no client is flagged."""
    rng = np.random.default_rng(5)
    n_seen = {"finite": 0, "infinite": 0, "": 0, "weakly protected": 0, "trivial": 0}
    for trial in range(cases(30)):
        tables, level = random_tables(rng), LEVELS[trial % len(LEVELS)]
        max_malicious = int(rng.integers(0, len(tables))) if guarantee_type else 0
        options = {"defense": "none", "guarantee": guarantee_type and guarantee_type(max_malicious)}
        federation = federation_of(tables)
        if guarantee_type is None:
            # The threshold of a class is that of FCP on its benign holders.
            defended = calibrate(
                federation, coverage=level, by="class", defense=RobFCP(n_malicious=1)
            )
            benign_tables = tables[defended.benign_mask].swapaxes(0, 1)
            for threshold, table in zip(defended.threshold, benign_tables, strict=True):
                counts = table[table.any(axis=1)]
                expected_threshold = np.inf
                if len(counts):
                    of_holders = Federation.from_counts(counts)
                    expected_threshold = calibrate(
                        of_holders, coverage=level, defense="none"
                    ).threshold
                assert threshold == expected_threshold

        calibration = calibrate(
            federation, coverage=level, by="class", certificate_confidence=0.9, **options
        )
        class_confidence = 1 - 0.1 / tables.shape[1]
        strata = calibration.levels[0].strata
        for c, stratum in enumerate(strata):
            (holders,) = np.nonzero(tables[:, c].any(axis=1))
            protection = ""
            if np.isinf(stratum.threshold):
                protection = "trivial"
            elif max_malicious and len(holders) <= 2 * max_malicious:
                protection = "weakly protected"
            n_seen[protection] += 1
            n_seen["finite" if np.isfinite(stratum.threshold) else "infinite"] += 1
            assert (stratum.n_clients, stratum.n_samples) == (len(holders), tables[:, c].sum())
            assert stratum.protection == protection
            if len(holders) <= max_malicious:
                assert (stratum.threshold, stratum.certificate.lower) == (np.inf, 1)
                continue

            of_holders = Federation.from_counts(tables[holders, c])
            (expected,) = calibrate(
                of_holders, coverage=level, certificate_confidence=class_confidence, **options
            ).levels
            for field in ("threshold", "certificate_points", "certificate"):
                assert getattr(stratum, field) == getattr(expected, field)
            assert calibration.certificates[stratum.name][0].confidence == 0.9

        assert calibration.certificate.lower == min(s.certificate.lower for s in strata)
        assert calibration.certificate.upper == max(s.certificate.upper for s in strata)
        assert calibration.certificate.confidence in (None, pytest.approx(0.9))
    cases_that_count = n_seen if guarantee_type else ("finite", "")
    assert min(n_seen[case] for case in cases_that_count) > 0.1 * cases(30)


def test_weakly_protected_classes_are_named_and_many_classes_have_fewer_points():
    rng = np.random.default_rng(5)
    tables = rng.multinomial(60, np.full(8, 1 / 8), (9, 5))
    for c, holders in enumerate([9, 5, 4, 2, 0]):
        tables[holders:, c] = 0
    federation = federation_of(tables)
    for guarantee_type in (MarginalGuarantee, PACGuarantee):
        calibration = calibrate(federation, by="class", defense="none", guarantee=guarantee_type(2))
        assert np.isfinite(calibration.threshold).tolist() == [True, True, True, False, False]
        assert calibration.certificate.lower == 0.9  # infinite ones are covered for certain
        assert calibration.certificate.note == "trivial: 3, 4; weakly protected: 2"
        assert calibration.statement.startswith("coverage of every class is at least 90%, whatever")
    defended = calibrate(federation, by="class", defense=Consensus(max_malicious=2))
    assert np.isfinite(defended.threshold).tolist() == [True, True, True, True, False]
    unprotected = defended.levels[0].strata[3]
    assert (unprotected.protection, unprotected.certificate.lower) == ("unprotected", 0.0)
    of_many_classes = calibrate(
        [client_report(k, 40, n_samples=400) for k in range(14)], by="class", defense="none"
    )
    assert {len(points) for points in of_many_classes.certificates.values()} == {5}


@pytest.mark.parametrize(
    ("by", "reports", "guarantee", "message"),
    [
        ("class", "pooled", None, "the reports hold no counts by class"),
        ("group", "classes", None, "keep counts by class, not by group"),
        ("ward", "classes", None, "by: 'ward' is unknown"),
        (
            "class",
            "classes",
            MarginalGuarantee(max_malicious_samples=100),
            "by class or group give max_malicious, not max_malicious_samples",
        ),
        ({"cat": "a", "dog": "a"}, "classes", None, "by: 'eel' has no cluster"),
        (dict.fromkeys((*NAMES, "cow"), "a"), "classes", None, "by: 'cow' is none of"),
    ],
)
def test_options_that_the_reports_do_not_support_are_refused(by, reports, guarantee, message):
    pooled = [Report.from_scores(f"s{k}", [0.1, 0.2], score=LAC) for k in range(3)]
    with pytest.raises(RobfcpError, match=message):
        calibrate(pooled if reports == "pooled" else CLIENTS, by=by, guarantee=guarantee)


@pytest.mark.parametrize("guarantee", [None, MarginalGuarantee(1), PACGuarantee(1)])
def test_clusters_have_the_threshold_of_relabeled_reports(guarantee):
    options = {"defense": "none", "guarantee": guarantee}
    mapped = calibrate(CLIENTS, by=PETS, **options)
    relabeled = []
    for report in CLIENTS:
        table = np.zeros((2, report.binning.n_bins), dtype=int)
        np.add.at(table, [0, 0, 1], report.strata.dense())
        cells = np.flatnonzero(table)
        strata = StratifiedCounts(
            "class", ("pet", "fish"), cells, table.ravel()[cells], report.binning.n_bins
        )
        relabeled.append(Report(report.client, None, report.binning, report.score, strata=strata))
    expected = calibrate(relabeled, by="class", **options)
    np.testing.assert_array_equal(mapped.threshold, expected.threshold[[0, 0, 1]])
    assert mapped.certificate.lower == expected.certificate.lower
    with_small_client = calibrate(
        [*CLIENTS, client_report(9, n_samples=30, min_class_count=25)], by=PETS, **options
    )
    assert with_small_client.strata == NAMES
    assert with_small_client.threshold[0] == with_small_client.threshold[1]
    pooled = Report.from_scores("shy", np.zeros(500), CLIENTS[0].binning, score=LAC)
    with_pooled_client = calibrate([*CLIENTS, pooled], by=PETS, **options)
    np.testing.assert_array_equal(with_pooled_client.threshold, mapped.threshold)
    assert [stratum.n_clients for stratum in with_pooled_client.levels[0].strata] == [8, 8, 8]
    for text in ("1 site keeps its class back", "for each cluster"):
        assert any(text in note for note in with_pooled_client.notes)


# Prediction and files


def test_a_set_holds_the_labels_whose_score_is_at_most_the_threshold_of_their_class():
    coverages = [0.8, 0.9, 0.95]
    options = {"by": "class", "guarantee": MarginalGuarantee(max_malicious=1)}
    calibration = calibrate(CLIENTS, coverage=coverages, **options)
    p = np.random.default_rng(1).dirichlet(np.ones(3), 50)
    sets = calibration.predict_set(p)
    for k, level in enumerate(coverages):
        single = calibrate(CLIENTS, coverage=level, **options)
        np.testing.assert_array_equal(calibration.threshold[k], single.threshold)
        np.testing.assert_array_equal(single.predict_set(p), 1 - p <= single.threshold)
        np.testing.assert_array_equal(sets[:, :, k], single.predict_set(p))
    for rows, block in calibration.iter_prediction_sets(p):
        np.testing.assert_array_equal(block, sets[rows])
    with pytest.raises(RobfcpError, match="4 columns, but the calibration is for 3"):
        calibration.predict_set(np.full((1, 4), 1 / 4))
    with pytest.raises(RobfcpError, match="thresholds are not by group"):
        calibrate(CLIENTS).predict_set(p, groups=["a"] * 50)


def test_by_group_each_sample_has_the_threshold_of_its_group():
    calibration = calibrate(GROUPED, by="group", guarantee=MarginalGuarantee(max_malicious=1))
    p = np.random.default_rng(2).dirichlet(np.ones(4), 30)
    groups = np.array(["x", "f", "m"])[np.arange(30) % 3]
    thresholds = calibration.threshold[[calibration.strata.index(g) for g in groups]]
    assert len(set(thresholds)) == 3
    np.testing.assert_array_equal(
        calibration.predict_set(p, groups=groups), 1 - p <= thresholds[:, None]
    )
    intervals = calibration.predict_interval(
        np.ones(30), groups=groups, score=robfcp.AbsoluteResidual()
    )
    np.testing.assert_allclose(intervals[:, 1] - intervals[:, 0], 2 * thresholds)
    for invalid_groups, message in (
        (None, "groups: the thresholds are by group; pass each sample's group"),
        (["f", "q"] * 15, "groups: 'q' had no report"),
        (["f"], "groups: need one a sample"),
    ):
        with pytest.raises(RobfcpError, match=message):
            calibration.predict_set(p, groups=invalid_groups)
    with pytest.raises(RobfcpError, match="thresholds are by group"):
        next(calibration.iter_prediction_sets(p))


# One benign client


def test_sets_of_one_client_equal_the_class_conditional_sets_of_crepes():
    """No class has 10 j - 1 samples: there crepes, which keeps p-values of alpha, takes one more.

    Every calibration score is an edge of the binning.
    """
    crepes = pytest.importorskip("crepes")
    rng = np.random.default_rng(0)
    p, new_probabilities = rng.dirichlet(np.full(5, 0.3), (2, 900))
    labels = (p.cumsum(axis=1) > rng.random((900, 1))).argmax(axis=1)
    assert ((np.bincount(labels) + 1) % 10).all()
    scores = LAC(p, labels)
    binning = Binning(np.unique(np.concatenate([[0.0], scores, [1.0]])))
    report = Report.from_scores("a", scores, binning, score=LAC, labels=labels, classes=5)
    sets = calibrate([report], by="class", defense="none").predict_set(new_probabilities)
    crepes_classifier = crepes.ConformalClassifier().fit(scores, bins=labels)
    for c in range(5):
        p_values = crepes_classifier.predict_p(
            1 - new_probabilities[:, [c]], bins=np.full(900, c), smoothing=False
        )
        np.testing.assert_array_equal(sets[:, c], np.ravel(p_values) > 0.1)


# Privacy


def test_negligible_noise_costs_a_fiftieth_of_the_miss_rate():
    """At epsilon 60 no count changes (probability e^-30), but the bound allows for it."""
    pytest.importorskip("opendp")
    options = {"by": "class", "defense": "none", "guarantee": MarginalGuarantee(1)}
    binning = Binning.uniform(200)
    exact = calibrate(
        [client_report(k, binning=binning) for k in range(8)], coverage="0.902", **options
    )
    noisy = [client_report(k, binning=binning, privacy=Privacy(60.0)) for k in range(8)]
    np.testing.assert_array_equal(calibrate(noisy, **options).threshold, exact.threshold)
    with pytest.raises(RobfcpError, match="private reports hold noise a class"):
        calibrate(noisy, by=PETS)


@pytest.mark.parametrize(("n_classes", "n_points"), [(25, 7), (26, 5)])
def test_more_than_25_classes_have_five_certificate_points_each(n_classes, n_points):
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
        assert [point.max_malicious for point in stratum.certificate_points] == list(
            range(n_points)
        )


def test_class_totals_name_the_classes_but_give_no_threshold_by_class():
    rng = np.random.default_rng(4)
    client_outputs = [outputs(rng, 120) for _ in range(6)]
    names = ("flu", "cold", "none")
    calibration = calibrate(coarsened_reports(client_outputs, names), defense="none")
    assert calibration.classes == names
    columns = calibration.predict_set(client_outputs[0][0][:5])
    assert columns.shape == (5, 3)
    named_labels = np.array(names)[client_outputs[0][1]]
    assert calibration.evaluate(client_outputs[0][0], named_labels).overall.n_samples == 120
    with pytest.raises(RobfcpError) as error:
        calibrate(coarsened_reports(client_outputs, names), by="class")
    assert str(error.value) == (
        "by: the reports state class totals alone, no counts by class; make them with "
        "--stratify-by-class (stratify_by_class=True)"
    )
    by_cluster = dict.fromkeys(names, "all")
    with pytest.raises(RobfcpError, match="state class totals alone"):
        calibrate(coarsened_reports(client_outputs, names), by=by_cluster)
    stratified = coarsened_reports(client_outputs, names, stratify_by_class=True)
    assert calibrate(stratified, by="class").by == "class"


def coarsened_reports(client_outputs, names, **options):
    """Return default reports of the outputs of some clients."""
    return [
        Report.from_predictions(f"s{k}", p, y, classes=names, min_cell_count=5, **options)
        for k, (p, y) in enumerate(client_outputs)
    ]


def test_notes_state_the_limits_of_default_reports():
    rng = np.random.default_rng(4)
    client_outputs = [outputs(rng, 120) for _ in range(6)]
    default = coarsened_reports(client_outputs, 3)
    (note,) = calibrate(default, defense="none").notes
    assert note == (
        "6 of 6 reports are coarsened to cells of at least 5 samples: thresholds are estimated "
        "from the midpoints of their counts, and what is proved rests on the least that these can "
        "be"
    )
    mixed = [*coarsened_reports(client_outputs[:4], 3, stratify_by_class=True), *default[4:]]
    assert calibrate(mixed, defense="none").notes[-1] == (
        "2 sites state class totals alone: in what is said of all samples, and in nothing by class"
    )
