"""Thresholds by class: brute force, crepes, MAPIE, files, privacy, liars that gain nothing."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import ceil

import msgspec
import numpy as np
import pytest
from effort import cases
from scipy.optimize import brentq
from scipy.stats import binom

import robfcp
from robfcp import Consensus, Marginal, Pac, RobFCP
from robfcp.calibration import Calibration, calibrate
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, Stratified
from robfcp.federation.counts import DenseCounts
from robfcp.grid import Grid
from robfcp.guarantees.promises import marginal_threshold
from robfcp.guarantees.tails import pac_threshold
from robfcp.privacy import Privacy
from robfcp.report import Report, Strata

NAMES = ("cat", "dog", "eel")
LEVELS = [Fraction(9, 10), Fraction(1, 2), Fraction(3, 4), Fraction(19, 20), Fraction(1, 3)]
LAC = robfcp.LAC()


def federation_of(tables, names=None, by="class", grid=None):
    """A federation from (K, C, H) counts by class; sites without a sample are left out."""
    tables = np.asarray(tables)
    _, n_strata, bins = tables.shape
    grid = Grid.uniform(bins) if grid is None else grid
    reports = []
    for k, table in enumerate(tables):
        flat = table.ravel()
        cells = np.flatnonzero(flat)
        if cells.size:
            strata = Strata(by, names or n_strata, cells, flat[cells], bins)
            reports.append(Report(f"site-{k:02d}", None, grid, strata=strata))
    return Federation.from_reports(reports)


def random_tables(rng, equal=0):
    """(K, C, H) counts; some classes thin or absent at some sites."""
    n_sites, n_classes, bins = (int(x) for x in rng.integers([2, 1, 2], [7, 4, 7]))
    shares = rng.dirichlet(np.full(bins, 0.5), (n_sites, n_classes))
    if equal:
        return rng.multinomial(equal, shares) * rng.integers(0, 2, (n_sites, n_classes, 1))
    sizes = (
        rng.integers(0, 30, (n_sites, n_classes)) * rng.integers(0, 3, (n_sites, n_classes)) // 2
    )
    return rng.multinomial(sizes, shares)


def removals(number, m):
    """Every set that is left when at most m of the holders are removed."""
    for removed in range(m + 1):
        for gone in combinations(range(number), removed):
            yield [k for k in range(number) if k not in gone]


def order_statistic(rows, level, alone):
    """The edge of the pooled score of rank ceil(level N) + 1; ceil(level (N + 1)) if alone."""
    pooled = sorted(h for row in rows for h, count in enumerate(row) for _ in range(count))
    rank = ceil(level * (len(pooled) + 1)) if alone else ceil(level * len(pooled)) + 1
    return pooled[rank - 1] if rank <= len(pooled) else np.inf


def as_edges(thresholds, bins):
    """Thresholds as bin numbers, infinity as itself."""
    return [np.inf if np.isinf(t) else round(t * bins) - 1 for t in thresholds]


def site(k, classes=NAMES, n=200, grid=None, spread=0.2, **more):
    """One honest site: class c's scores are u ** (1/a), harder at some sites than at others."""
    rng = np.random.default_rng([7, k])
    number = classes if isinstance(classes, int) else len(classes)
    labels = rng.integers(0, number, n)
    power = np.exp(rng.normal(0, spread, number) - 0.3 * np.arange(number))
    scores = rng.random(n) ** (1 / power[labels])
    return Report.from_scores(
        f"site-{k:02d}", scores, grid, score=LAC, labels=labels, classes=classes, **more
    )


SITES = [site(k) for k in range(8)]


# Thresholds


@pytest.mark.effort
def test_without_a_guarantee_each_threshold_is_the_order_statistic_of_its_trusted_holders():
    rng = np.random.default_rng(1)
    finite = alone = excluded = 0
    for trial in range(cases(50)):
        tables = random_tables(rng)
        if np.count_nonzero(tables.any(axis=(1, 2))) < 3:
            continue
        federation, level = federation_of(tables), LEVELS[trial % len(LEVELS)]
        found = calibrate(federation, level, by="class", defence=RobFCP(liars=1))
        bins = tables.shape[2]
        rows = tables[tables.any(axis=(1, 2))][found.trusted_mask]
        excluded += not found.trusted_mask.all()
        wanted = []
        for c in range(tables.shape[1]):
            held = [row for row in rows[:, c].tolist() if any(row)]
            wanted.append(order_statistic(held, level, len(held) == 1) if held else np.inf)
            alone += len(held) == 1
        assert as_edges(found.threshold, bins) == wanted
        finite += np.isfinite(wanted).sum()
    assert min(finite, alone, excluded) > 0.15 * cases(50)


def check_against_brute_force(number, seed):
    """Guaranteed thresholds against all removals of at most m holders; how often what occurred."""
    rng = np.random.default_rng(seed)
    seen = {"finite": 0, "infinite": 0, "": 0, "hardly protected": 0, "unprotected": 0}
    done = 0
    while done < number:
        tables = random_tables(rng)
        present = np.count_nonzero(tables.any(axis=(1, 2)))
        if not present:
            continue
        done += 1
        level, m = LEVELS[done % len(LEVELS)], int(rng.integers(0, present))
        found = calibrate(
            federation_of(tables), level, by="class", defence="none", promise=Marginal(liars=m)
        )
        edges = as_edges(found.threshold, tables.shape[2])
        for c, one in enumerate(found.levels[0].parts):
            held = [row for row in tables[:, c].tolist() if any(row)]
            assert one.holders == len(held)
            assert one.samples == tables[:, c].sum()
            if len(held) <= m or not held:
                worst, kind = np.inf, "unprotected"
            else:
                worst = max(
                    order_statistic([held[k] for k in kept], level, len(held) == 1)
                    for kept in removals(len(held), m)
                )
                kind = "hardly protected" if len(held) <= 2 * m else ""
            assert edges[c] == worst
            assert one.protection == kind
            seen[kind] += 1
            seen["finite" if np.isfinite(worst) else "infinite"] += 1
            if kind != "unprotected":
                assert one.certificate.lower == float(level)
    return seen


def test_guaranteed_thresholds_are_the_worst_over_all_removals_of_holders():
    seen = check_against_brute_force(100, 2)
    assert min(seen.values()) > 8


@pytest.mark.slow
def test_guaranteed_thresholds_are_the_worst_over_all_removals_on_3000_tables():
    seen = check_against_brute_force(3000, 3)
    assert min(seen.values()) > 300


# Certificates of every class


def kl(share, p):
    """The divergence of two coins."""
    parts = ((share, p), (1 - share, 1 - p))
    return sum(x * np.log(x / y) if x else 0.0 for x, y in parts)


def least_within(share, radius):
    """The least p with kl(share, p) <= radius, by a root finder."""
    if share == 0 or kl(share, share * 2.0**-50) <= radius:
        return 0.0
    return brentq(lambda p: kl(share, p) - radius, share * 1e-18, share) if radius else share


def interval_by_hand(held, edge, m, delta, bins):
    """Where coverage lies over all removals of at most m holders, and what chance adds."""
    shares, totals = [], []
    for kept in removals(len(held), m):
        total = sum(sum(held[k]) for k in kept)
        shares.append(sum(sum(held[k][: edge + 1]) for k in kept) / total)
        totals.append(total)
    radius = np.log(2 * bins / delta) / min(totals)
    return least_within(min(shares), radius), 1 - least_within(1 - max(shares), radius)


@pytest.mark.parametrize("promised", [False, True])
def test_every_class_has_its_certificates_for_every_number_of_liars_among_its_holders(promised):
    rng = np.random.default_rng(5)
    compared = infinite = 0
    for trial in range(40):
        tables = random_tables(rng)
        present = np.count_nonzero(tables.any(axis=(1, 2)))
        if not present:
            continue
        level = LEVELS[trial % len(LEVELS)]
        liars = int(rng.integers(0, present))
        promise = Marginal(liars) if promised else None
        found = calibrate(federation_of(tables), level, by="class", defence="none", promise=promise)
        bins = tables.shape[2]
        edges = as_edges(found.threshold, bins)
        assert tuple(found.curve) == found.parts
        for c, one in enumerate(found.levels[0].parts):
            held = [row for row in tables[:, c].tolist() if any(row)]
            curve = found.curve[one.name]
            empty = []
            for m in range(len(held)):
                if edges[c] == np.inf:
                    wanted = (1.0, 1.0)
                else:
                    wanted = interval_by_hand(held, edges[c], m, 0.05 / tables.shape[1], bins)
                empty += [m] if wanted == (0, 1) else []
                if m not in curve:
                    continue
                stated = curve[m]
                assert (stated.lower, stated.upper) == pytest.approx(wanted, abs=1e-9)
                assert (stated.m, stated.n_clients, stated.confidence) == (m, len(held), 0.95)
                assert {"liars", "samples"} <= {each.name for each in stated.assumptions}
                infinite += edges[c] == np.inf
                compared += 1
            assert set(range((len(held) + 1) // 2)) <= set(curve)
            if edges[c] != np.inf:
                assert one.empty_from == (empty[0] if empty else None)
    assert compared > 80
    assert infinite > 5


def test_certificates_by_class_travel_with_the_calibration(tmp_path):
    found = calibrate(SITES, [0.8, 0.9], by="class", defence=Consensus(at_most=1))
    found.save(tmp_path / "c.json")
    again = Calibration.load(tmp_path / "c.json")
    assert again.curve == found.curve
    assert [tuple(each) for each in again.curve] == [NAMES, NAMES]
    assert len(found.curve[0]["dog"]) == 4
    assert "either more than 2 of the 8 sites lie" in found.curve[0]["dog"][2].statement


def test_curves_of_very_many_classes_have_their_first_points_only():
    sites = [site(k, 40, n=400) for k in range(14)]
    found = calibrate(sites, by="class", defence="none")
    assert {len(curve) for curve in found.curve.values()} == {5}
    assert {len(curve) for curve in calibrate(SITES, by="class").curve.values()} == {4}


def pac_by_hand(held, level, m, delta, bins):
    """The first edge with count_S >= c(N_S) for all removals; c by the binomial tail."""
    for edge in range(bins):
        enough = True
        for kept in removals(len(held), m):
            total = sum(sum(held[k]) for k in kept)
            below = sum(sum(held[k][: edge + 1]) for k in kept)
            needed = ceil(level * total) + 1
            while binom.sf(needed - 1, total, float(level)) > delta and needed <= total:
                needed += 1
            enough &= below >= needed
        if enough:
            return edge
    return np.inf


def test_pac_thresholds_hold_jointly_at_delta_over_the_number_of_classes():
    rng = np.random.default_rng(4)
    finite = 0
    for trial in range(40):
        tables = random_tables(rng, equal=40)
        present = np.count_nonzero(tables.any(axis=(1, 2)))
        if not present:
            continue
        level, m = LEVELS[1 + trial % 2], min(int(rng.integers(0, 3)), present - 1)
        found = calibrate(
            federation_of(tables), level, by="class", defence="none", promise=Pac(m), confidence=0.9
        )
        n_classes, bins = tables.shape[1:]
        delta = 0.1 / n_classes
        wanted = []
        for c in range(n_classes):
            held = [row for row in tables[:, c].tolist() if any(row)]
            hopeless = len(held) <= m or not held
            wanted.append(np.inf if hopeless else pac_by_hand(held, level, m, delta, bins))
        assert as_edges(found.threshold, bins) == wanted
        finite += np.isfinite(wanted).sum()
        for one in found.levels[0].parts:
            assert one.certificate.confidence == pytest.approx(1 - delta)
        overall = found.certificate.confidence
        assert overall == pytest.approx(0.9)
    assert finite > 30


def test_pac_thresholds_of_three_classes_have_a_third_of_delta_each():
    federation = Federation.from_reports(SITES)
    joint = calibrate(federation, by="class", promise=Pac(1))
    upper = federation.grid.upper
    wanted = [
        upper[pac_threshold(federation.stratum(c), Fraction(9, 10), 1, 0.05 / 3)] for c in range(3)
    ]
    np.testing.assert_array_equal(joint.threshold, wanted)


def test_classes_held_by_few_are_marked_and_those_held_by_m_or_fewer_are_infinite():
    rng = np.random.default_rng(5)
    tables = rng.multinomial(60, np.full(8, 1 / 8), (9, 5))
    for c, holders in enumerate([9, 5, 4, 2, 0]):
        tables[holders:, c] = 0
    federation = federation_of(tables, ("a", "b", "c", "d", "e"))
    words = ["", "", "hardly protected", "unprotected", "unprotected"]
    for kind in (Marginal, Pac):
        found = calibrate(federation, by="class", defence="none", promise=kind(2))
        strata = found.levels[0].parts
        assert [one.protection for one in strata] == words
        assert [one.holders for one in strata] == [9, 5, 4, 2, 0]
        assert np.isinf(found.threshold[3:]).all()
        assert np.isfinite(found.threshold[:2]).all()
        assert [one.certificate.lower for one in strata[3:]] == [0.0, 0.0]
        assert found.certificate.lower == 0.0
        assert "unprotected: d, e; hardly protected: c" in found.certificate.note
    plain = calibrate(federation, by="class", defence=Consensus(at_most=2))
    assert np.isfinite(plain.threshold).tolist() == [True, True, True, True, False]
    assert plain.levels[0].parts[3].protection == "unprotected"
    assert plain.levels[0].parts[3].certificate.lower == 0.0
    nobody = calibrate(federation, by="class", defence="none", promise=Marginal(liars=0))
    assert [one.protection for one in nobody.levels[0].parts] == ["", "", "", "", "unprotected"]


def test_clients_that_report_pooled_hold_no_class():
    pooled = Report.from_scores("pooled", np.zeros(500), SITES[0].grid, score=LAC)
    alone = calibrate(SITES, by="class", defence="none", promise=Marginal(liars=1))
    beside = calibrate([*SITES, pooled], by="class", defence="none", promise=Marginal(liars=1))
    np.testing.assert_array_equal(beside.threshold, alone.threshold)
    assert [one.holders for one in beside.levels[0].parts] == [8, 8, 8]
    assert beside.summary.n_clients == 9


def test_what_is_asked_of_reports_that_lack_it_is_refused_in_words():
    pooled = [Report.from_scores(f"s{k}", [0.1, 0.2], score=LAC) for k in range(3)]
    with pytest.raises(RobfcpError, match="no report keeps counts by class"):
        calibrate(pooled, by="class", defence=Consensus(at_most=0))
    with pytest.raises(RobfcpError, match="keep counts by class, not by group"):
        calibrate(SITES, by="group", defence=Consensus(at_most=0))
    with pytest.raises(RobfcpError, match="by: 'ward' is unknown"):
        calibrate(SITES, by="ward", defence=Consensus(at_most=0))
    with pytest.raises(RobfcpError, match="promise: by class or group state liars, not samples"):
        calibrate(SITES, by="class", promise=Marginal(samples=100))


def test_several_levels_give_one_row_each():
    levels = [0.8, 0.9, 0.95]
    found = calibrate(SITES, levels, by="class", promise=Marginal(liars=1))
    assert found.threshold.shape == (3, 3)
    for row, level in zip(found.threshold, levels, strict=True):
        one = calibrate(SITES, level, by="class", promise=Marginal(liars=1))
        assert one.threshold.shape == (3,)
        np.testing.assert_array_equal(row, one.threshold)
    p = np.random.default_rng(0).dirichlet(np.ones(3), 20)
    sets = found.predict_set(p)
    assert sets.shape == (20, 3, 3)
    np.testing.assert_array_equal(sets, (1 - p)[:, :, None] <= found.threshold.T)
    for rows, part in found.iterate_sets(p):
        np.testing.assert_array_equal(part, sets[rows])


# Clusters


def relabelled(report, cluster, names):
    """The report as the site would have made it with clusters for classes."""
    table = np.zeros((len(names), report.grid.n_bins), dtype=int)
    np.add.at(table, cluster, report.strata.dense())
    cells = np.flatnonzero(table)
    strata = Strata("class", names, cells, table.ravel()[cells], report.grid.n_bins)
    return Report(report.client, None, report.grid, report.score, strata=strata)


@pytest.mark.parametrize("promise", [None, Marginal(1), Pac(1)])
def test_clusters_share_a_threshold_that_equals_the_one_of_relabelled_reports(promise):
    asked = {"defence": "none", "promise": promise}
    mapped = calibrate(SITES, by={"eel": "fish", "cat": "pet", "dog": "pet"}, **asked)
    assert mapped.parts == NAMES
    sent = [relabelled(r, [0, 0, 1], ("pet", "fish")) for r in SITES]
    again = calibrate(sent, by="class", **asked)
    np.testing.assert_array_equal(mapped.threshold, again.threshold[[0, 0, 1]])
    assert mapped.certificate.lower == again.certificate.lower
    assert mapped.predict_set([[0.6, 0.3, 0.1]]).shape == (1, 3)
    assert Calibration.from_json(mapped.to_json()).parts == NAMES


def test_clusters_need_every_class_and_no_other():
    with pytest.raises(RobfcpError, match="by: 'eel' has no cluster"):
        calibrate(SITES, by={"cat": "a", "dog": "a"})
    with pytest.raises(RobfcpError, match="by: 'cow' is none of"):
        calibrate(SITES, by=dict.fromkeys((*NAMES, "cow"), "a"))


def test_clusters_are_for_the_classes_even_where_a_site_merged_its_thin_ones():
    thin = [*SITES, site(9, n=30, least=25)]
    found = calibrate(thin, by=dict(zip(NAMES, "aab", strict=True)), defence="none")
    assert found.parts == NAMES
    assert found.threshold[0] == found.threshold[1]


# Prediction


def test_a_set_holds_the_labels_whose_score_is_at_most_their_own_threshold():
    found = calibrate(SITES, by="class", defence="none")
    p = np.random.default_rng(1).dirichlet(np.ones(3), 50)
    np.testing.assert_array_equal(found.predict_set(p), 1 - p <= found.threshold)


def test_another_number_of_classes_is_refused():
    found = calibrate(SITES, by="class", defence=Consensus(at_most=0))
    for columns in (2, 4):
        with pytest.raises(RobfcpError, match=f"{columns} columns, but the calibration is for 3"):
            found.predict_set(np.full((1, columns), 1 / columns))
    with pytest.raises(RobfcpError, match="thresholds are not by group"):
        calibrate(SITES, defence=Consensus(at_most=0)).predict_set([[0.2, 0.3, 0.5]], groups=["a"])


def grouped(k, names=("f", "m", "x")):
    rng = np.random.default_rng([8, k])
    groups = rng.integers(0, len(names), 150)
    scores = rng.random(150) ** (1 + groups)
    return Report.from_scores(f"site-{k}", scores, score=LAC, groups=np.array(names)[groups])


def test_by_group_each_sample_is_held_against_its_own_groups_threshold():
    reports = [grouped(k) for k in range(6)]
    found = calibrate(reports, by="group", promise=Marginal(liars=1))
    assert found.parts == ("f", "m", "x")
    federation = Federation.from_reports(reports)
    for c, one in enumerate(found.levels[0].parts):
        alone = calibrate(federation.stratum(c), defence="none", promise=Marginal(liars=1))
        assert one.threshold == alone.threshold
    p = np.random.default_rng(2).dirichlet(np.ones(4), 30)
    groups = np.array(["x", "f", "m"])[np.arange(30) % 3]
    own = found.threshold[[found.parts.index(g) for g in groups]]
    np.testing.assert_array_equal(found.predict_set(p, groups=groups), 1 - p <= own[:, None])


def test_by_group_needs_groups_it_knows():
    found = calibrate([grouped(k) for k in range(6)], by="group", defence=Consensus(at_most=0))
    p = np.full((2, 3), 1 / 3)
    with pytest.raises(RobfcpError, match="groups: the thresholds are by group; pass"):
        found.predict_set(p)
    with pytest.raises(RobfcpError, match="groups: 'q' had no report"):
        found.predict_set(p, groups=["f", "q"])
    with pytest.raises(RobfcpError, match="groups: need one a sample"):
        found.predict_set(p, groups=["f"])
    with pytest.raises(RobfcpError, match="thresholds are by group"):
        next(found.iterate_sets(p))


# Files


@pytest.mark.parametrize("promise", [None, Marginal(1), Pac(1)])
def test_the_light_file_keeps_names_and_thresholds_and_the_record_the_tables(tmp_path, promise):
    rare = Report.from_scores("z", [0.2, 0.3], score=LAC, labels=[3, 3], classes=(*NAMES, "fox"))
    four = [site(k, (*NAMES, "fox")) for k in range(6)]
    found = calibrate([*four, rare], [0.8, 0.9], by="class", promise=promise)
    found.save(tmp_path / "c.json")
    again = Calibration.load(tmp_path / "c.json")
    assert again == found
    for one, other in zip(again.levels, found.levels, strict=True):
        for kept, made in zip(one.parts, other.parts, strict=True):
            said = msgspec.structs.replace(
                kept.certificate, assumptions=made.certificate.assumptions
            )
            assert msgspec.structs.replace(kept, certificate=said) == made
    assert (again.by, again.parts, again.classes) == ("class", found.parts, (*NAMES, "fox"))
    np.testing.assert_array_equal(again.threshold, found.threshold)
    kept, made = again.federation.strata, found.federation.strata
    assert (kept.by, kept.names) == (made.by, made.names)
    np.testing.assert_array_equal(kept.rows, made.rows)
    np.testing.assert_array_equal(kept.table.dense(), made.table.dense())
    assert list(again.federation) == list(found.federation)
    (tmp_path / "c.record.json").unlink()
    light = Calibration.load(tmp_path / "c.json")
    p = np.random.default_rng(3).dirichlet(np.ones(4), 10)
    np.testing.assert_array_equal(light.predict_set(p), found.predict_set(p))
    with pytest.raises(RobfcpError, match="4 classes"):
        light.predict_set(p[:, :3])


def test_by_group_and_infinite_thresholds_survive_the_file(tmp_path):
    reports = [grouped(k) for k in range(5)]
    odd = Report.from_scores("odd", [0.5], score=LAC, groups=["rare"])
    found = calibrate([*reports, odd], by="group", promise=Marginal(liars=1))
    assert np.isinf(found.threshold[found.parts.index("rare")])
    found.save(tmp_path / "c.json")
    again = Calibration.load(tmp_path / "c.json")
    assert again == found
    assert again.parts == ("f", "m", "rare", "x")
    p = [[0.2, 0.3, 0.5]]
    assert again.predict_set(p, groups=["rare"]).all()


def test_a_damaged_file_or_record_is_refused(tmp_path):
    found = calibrate(SITES, by="class", promise=Marginal(liars=1))
    found.save(tmp_path / "c.json")
    whole = (tmp_path / "c.json").read_bytes()
    threshold = str(found.threshold[1]).encode()
    for old, new in [(threshold, b"0.5"), (b'"dog"', b'"cow"'), (b'"holders":8', b'"holders":9')]:
        assert old in whole
        (tmp_path / "c.json").write_bytes(whole.replace(old, new, 1))
        with pytest.raises(RobfcpError, match=r"c\.json"):
            Calibration.load(tmp_path / "c.json")
    (tmp_path / "c.json").write_bytes(whole)
    path = tmp_path / "c.record.json"
    tree = json.loads(path.read_bytes())
    tree["body"]["federation"]["strata"]["counts"][0] += 1
    path.write_text(json.dumps(tree))
    with pytest.raises(RobfcpError, match="record"):
        _ = Calibration.load(tmp_path / "c.json").federation


# One site, nobody lying


@pytest.fixture(scope="module")
def digits():
    """A model on digits, calibration and test samples; no class has 10 j - 1 of the former.

    There alpha (n + 1) is whole and crepes, which keeps p-values equal to alpha, takes one more.
    """
    sklearn = pytest.importorskip("sklearn.datasets")
    from sklearn.linear_model import LogisticRegression

    x, y = sklearn.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, calibration, test = np.split(order, [300, 1200])
    model = LogisticRegression(C=0.001, max_iter=2000).fit(x[train], y[train])
    for c in range(10):
        (own,) = np.nonzero(y[calibration] == c)
        if (len(own) + 1) % 10 == 0:
            calibration = np.delete(calibration, own[0])
    return model, x[calibration], y[calibration], x[test], y[test]


def one_site(digits):
    """The calibration of one site whose grid has every calibration score for an edge: exact."""
    model, x, y, _, _ = digits
    p = model.predict_proba(x)
    scores = LAC(p, y)
    grid = Grid(np.unique(np.concatenate([[0.0], scores, [1.0]])))
    report = Report.from_scores("a", scores, grid, score=LAC, labels=y, classes=10)
    return calibrate([report], by="class", defence="none")


def test_one_sites_sets_equal_the_class_conditional_sets_of_crepes(digits):
    crepes = pytest.importorskip("crepes")
    model, x, y, new, true = digits
    theirs = crepes.WrapClassifier(model)
    theirs.calibrate(x, y, class_cond=True)
    expected = np.array(
        theirs.predict_set(new, labels=False, confidence=0.9, smoothing=False), bool
    )
    found = one_site(digits).predict_set(model.predict_proba(new))
    np.testing.assert_array_equal(found, expected)
    sizes = found.sum(axis=1)
    assert 0.8 < sizes.mean() < 3
    covered = found[np.arange(len(true)), true]
    assert 0.87 < covered.mean() < 0.94


def test_one_sites_sets_equal_those_of_mapie_conformalised_class_by_class(digits):
    """MAPIE 1.6 has no class-conditional classifier; one of its LAC ones a class is the same."""
    mapie = pytest.importorskip("mapie.classification")
    model, x, y, new, _ = digits
    p = model.predict_proba(new)
    found = one_site(digits).predict_set(p)
    for c in range(10):
        theirs = mapie.SplitConformalClassifier(model, confidence_level=0.9, prefit=True)
        with pytest.warns(UserWarning, match="less labels"):
            theirs.conformalize(x[y == c], y[y == c])
        _, sets = theirs.predict_set(new)
        np.testing.assert_array_equal(found[:, c], sets[:, c, 0])


# Privacy

COARSE = robfcp.recommend_grid(4.0, 200, 10)


@pytest.mark.effort
def test_private_thresholds_by_class_are_rarely_below_the_exact_ones_and_cover():
    pytest.importorskip("opendp")
    asked = {"by": "class", "defence": "none", "promise": Marginal(1)}
    below = total = 0
    coverage = []
    for run in range(cases(4)):
        rng = np.random.default_rng([9, run])
        scores, labels = rng.random((10, 600)), rng.integers(0, 3, (10, 600))
        pair = []
        for privacy in (None, Privacy(4.0)):
            reports = [
                Report.from_scores(
                    f"s{k}", scores[k], COARSE, labels=labels[k], classes=3, privacy=privacy
                )
                for k in range(10)
            ]
            pair.append(calibrate(reports, **asked))
        exact, private = (found.threshold for found in pair)
        below += (private < exact).sum()
        total += exact.size
        coverage.append(np.minimum(private, 1))  # scores are uniform
    assert below <= 0.1 * total  # 0.2% are allowed; the noise is drawn afresh every time
    assert np.mean(coverage, axis=0).min() >= 0.9
    assert np.isfinite(coverage).all()


def test_noise_that_never_moves_a_count_gives_the_exact_thresholds():
    pytest.importorskip("opendp")
    for promise in (None, Marginal(1), Pac(1)):
        asked = {"by": "class", "defence": "none", "promise": promise}
        exact = calibrate([site(k, grid=COARSE) for k in range(8)], **asked)
        private = calibrate([site(k, grid=COARSE, privacy=Privacy(1e6)) for k in range(8)], **asked)
        np.testing.assert_array_equal(private.threshold, exact.threshold)


def test_noise_that_hardly_moves_a_count_costs_a_fiftieth_of_the_miss_rate():
    """Epsilon 60: no count moves (chance e^-30), but the rule must reckon with it."""
    pytest.importorskip("opendp")
    asked = {"by": "class", "defence": "none", "promise": Marginal(1)}
    fine = Grid.uniform(200)
    private = calibrate([site(k, grid=fine, privacy=Privacy(60.0)) for k in range(8)], **asked)
    sites = [site(k, grid=fine) for k in range(8)]
    stricter = calibrate(sites, "0.902", **asked)
    np.testing.assert_array_equal(private.threshold, stricter.threshold)
    assert np.abs(private.threshold - calibrate(sites, **asked).threshold).max() < 0.02


def test_private_classes_are_not_clustered_at_the_server():
    pytest.importorskip("opendp")
    reports = [site(k, grid=COARSE, privacy=Privacy(4.0)) for k in range(4)]
    with pytest.raises(RobfcpError, match="private reports hold noise for every class"):
        calibrate(reports, by=dict(zip(NAMES, "aab", strict=True)))
    each = calibrate(reports, by=dict(zip(NAMES, "abc", strict=True)), defence="none")
    plain = calibrate(reports, by="class", defence="none")
    np.testing.assert_array_equal(each.threshold, plain.threshold)


# Liars

K, N, C, BINS = 20, 50, 10, 400


class Round:
    """Honest sites that differ inside classes (and in their labels), and one liar, site 0."""

    def __init__(self, seed, skew=None):
        rng = np.random.default_rng(seed)
        self.power = np.exp(rng.normal(0, 0.3, (K, C)) + np.linspace(-0.7, 0.7, C))
        self.mix = np.full((K, C), 1 / C) if skew is None else rng.dirichlet(np.full(C, skew), K)

    def draw(self, rng, n=N):
        """(K, n) labels and scores of everybody, the liar's as if it were honest."""
        cumulative = np.cumsum(self.mix, axis=1)
        labels = (rng.random((K, n, 1)) > cumulative[:, None, :-1]).sum(axis=2)
        power = np.take_along_axis(self.power, labels, axis=1)
        return labels, rng.random((K, n)) ** (1 / power)

    def coverage(self, thresholds, honest):
        """(C,) coverage of each class over the honest sites, weighted by n_k P(Y = c)."""
        weights = self.mix[honest]
        covered = np.minimum(thresholds, 1) ** self.power[honest]
        return (weights * covered).sum(axis=0) / weights.sum(axis=0)


def honest(labels, scores):
    pass


def all_zero(labels, scores):
    scores[0] = 0


def all_one(labels, scores):
    scores[0] = 1


def capture_low(labels, scores):
    labels[0], scores[0] = 4, 0


def capture_high(labels, scores):
    labels[0], scores[0] = 4, 1


def swapped(labels, scores):
    labels[0] = C - 1 - labels[0]


def hardest_as_easiest(labels, scores):
    """Every sample claimed in the class whose scores it makes lower."""
    labels[0], scores[0] = np.arange(N) % 2, np.sort(scores[0]) / 4


ATTACKS = [honest, all_zero, all_one, capture_low, capture_high, swapped, hardest_as_easiest]


def counted(labels, scores):
    cells = labels * BINS + np.minimum((np.ceil(scores * BINS)).astype(int) - 1, BINS - 1).clip(0)
    table = np.zeros((len(labels), C * BINS), dtype=np.int64)
    np.add.at(table, (np.arange(len(labels))[:, None], cells), 1)
    return Federation(
        ids=tuple(f"s{k:02d}" for k in range(len(labels))),
        table=DenseCounts(table.reshape(-1, C, BINS).sum(axis=1)),
        sizes=np.full(len(labels), labels.shape[1]),
        grid=Grid.uniform(BINS),
        strata=Stratified("class", C, DenseCounts(table), np.arange(len(labels)), BINS),
    )


def thresholds(labels, scores, m):
    """(C,) guaranteed thresholds: the rule on the holders of each class, and nothing beside it."""
    federation = counted(labels, scores)
    found = []
    for c in range(C):
        held = federation.stratum(c)
        index = marginal_threshold(held, LEVELS[0], m) if held.n_clients > m else None
        found.append(np.inf if index is None else held.grid.upper[index])
    return np.array(found)


@pytest.mark.parametrize("m", [0, 1, 3])
def test_the_simulated_thresholds_are_those_of_calibrate(m):
    world, rng = Round(4, 0.5), np.random.default_rng(13)
    for n in (10, N, 4 * N):
        labels, scores = world.draw(rng, n)
        asked = {"by": "class", "defence": "none", "promise": Marginal(m)}
        made = calibrate(counted(labels, scores), **asked).threshold
        np.testing.assert_array_equal(made, thresholds(labels, scores, m))


def simulated(attack, runs, m, skew=None, n=N):
    """(runs, C) thresholds and coverage of the honest sites."""
    world, rng = Round(0, skew), np.random.default_rng([len(attack.__name__), m])
    honest_ones = np.arange(K) >= (attack is not honest)
    found, covered = [], []
    for _ in range(runs):
        labels, scores = world.draw(rng, n)
        attack(labels, scores)
        found.append(thresholds(labels, scores, m))
        covered.append(world.coverage(found[-1], honest_ones))
    return np.array(found), np.array(covered)


@pytest.mark.effort
@pytest.mark.parametrize("attack", ATTACKS[1:])
def test_whatever_one_site_reports_no_threshold_is_below_that_of_the_others_alone(attack):
    world, rng = Round(1, 0.5), np.random.default_rng(10)
    for _ in range(cases(2)):
        labels, scores = world.draw(rng)
        attack(labels, scores)
        assert (thresholds(labels, scores, 1) >= thresholds(labels[1:], scores[1:], 0)).all()


def test_a_budget_below_the_number_of_liars_is_caught_by_the_same_comparison():
    world, rng = Round(1), np.random.default_rng(11)
    lower = 0
    for _ in range(3):
        labels, scores = world.draw(rng)
        capture_low(labels, scores)
        lower += thresholds(labels, scores, 0)[4] < thresholds(labels[1:], scores[1:], 0)[4]
    assert lower == 3


def assert_covers(covered):
    error = covered.std(axis=0) / np.sqrt(len(covered))
    assert (covered.mean(axis=0) >= 0.9 - 3 * error).all()


@pytest.mark.slow
@pytest.mark.parametrize("skew", [None, 0.5])
@pytest.mark.parametrize("attack", ATTACKS)
def test_coverage_of_every_class_holds_whatever_one_of_twenty_sites_does(attack, skew):
    found, covered = simulated(attack, 2000, 1, skew)
    assert_covers(covered)
    if attack is honest:
        assert np.isfinite(found).all()
        # under skew one site holds a fifth of a class, and any site might be the liar
        assert covered.mean(axis=0).max() <= (0.92 if skew is None else 0.93)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "n", "classes"), [(capture_low, N, [4]), (all_zero, 10 * N, range(C))]
)
def test_a_budget_below_the_number_of_liars_is_caught(attack, n, classes):
    """Zeros everywhere are 5 of 100 in a class at n = 50: less than the one rank that is charged.

    Told of no liar the rule then still covers .9005 to .9038; it takes more samples to fool it.
    """
    _, covered = simulated(attack, 2000, 0, n=n)
    error = covered.std(axis=0) / np.sqrt(len(covered))
    lost = covered.mean(axis=0) < 0.9 - 3 * error
    assert lost[list(classes)].all()


def test_the_simulated_tables_are_those_of_reports():
    labels, scores = Round(2, 0.5).draw(np.random.default_rng(12))
    reports = [
        Report.from_scores(f"s{k:02d}", scores[k], Grid.uniform(BINS), labels=labels[k], classes=C)
        for k in range(K)
    ]
    made, told = Federation.from_reports(reports), counted(labels, scores)
    np.testing.assert_array_equal(made.strata.table.dense(), told.strata.table.dense())
    np.testing.assert_array_equal(made.counts, told.counts)
    assert replace(told, strata=made.strata).ids == made.ids


def test_intervals_by_group_are_each_groups_own():
    grid = Grid.open_ended([0.0, 0.5, 1.0, 2.0, 4.0])
    rng = np.random.default_rng(3)
    reports = []
    for name in "abc":
        groups = np.repeat(["old", "new"], 40)
        scores = rng.random(80) * np.where(groups == "old", 0.45, 1.9)
        reports.append(
            Report.from_scores(name, scores, grid, score=robfcp.AbsoluteResidual(), groups=groups)
        )
    found = calibrate(reports, by="group", defence="none")
    wide = dict(zip(found.parts, found.threshold, strict=True))
    ends = found.predict_interval([1.0, 2.0, 3.0], groups=["new", "old", "new"])
    half = [wide["new"], wide["old"], wide["new"]]
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 2 * np.array(half))
    assert wide["old"] < wide["new"]
    with pytest.raises(RobfcpError, match="pass each sample's group"):
        found.predict_interval([1.0])
    again = Calibration.from_json(found.to_json())
    for own, loaded in zip(found.levels[0].parts, again.levels[0].parts, strict=True):
        assert own.certificate == loaded.certificate


def test_clusters_and_pooled_sites_are_told_in_the_remarks():
    rng = np.random.default_rng(0)
    reports = [
        Report.from_scores(n, rng.random(90), labels=rng.integers(0, 3, 90), classes=NAMES)
        for n in "abcd"
    ]
    pooled = Report.from_scores("shy", rng.random(50))
    found = calibrate(
        [*reports, pooled], by={"cat": "pet", "dog": "pet", "eel": "fish"}, defence="none"
    )
    assert any("1 site keeps its class back" in note for note in found.remarks)
    assert "shy" not in found.to_json().decode()
    assert any("for each cluster" in note for note in found.remarks)
    assert "every cluster" in found.certificate.statement
    assert not calibrate(reports, by="class", defence="none").remarks
