"""One site's threshold from the others' reports, and the interval of its own scores."""

from fractions import Fraction

import makers
import msgspec
import numpy as np
import pytest
from makers import outputs, said, saved, table
from plain_shift import (
    ATTACKS,
    by_class,
    class_cdfs,
    draw_sites,
    label_counts,
    lie,
    mix_edge,
)
from scipy.stats import binom

import robfcp
from robfcp.calibration import verify_calibration
from robfcp.certificate import at_least
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.label_shift import ClassCounts, class_counts
from robfcp.guarantees.site import (
    Anchor,
    clip_ranks,
    own_interval,
    own_mixes,
    site_thresholds,
    stranger_threshold,
)


def federation(seed, n_sites, n_classes, n, bins, liars=0, attack="bottom"):
    """The counts of a federation whose last sites lie."""
    rng = np.random.default_rng(seed)
    sizes = label_counts(rng, n_sites, n_classes, n)
    tables = draw_sites(rng, sizes, class_cdfs(n_classes, bins))
    return class_counts(by_class(lie(rng, tables, liars, attack)))


def others(counts, site):
    """The counts without one site."""
    rows = [k for k in range(len(counts.ids)) if k != site]
    return ClassCounts(
        counts.below[:, rows],
        counts.sizes[rows],
        counts.edges,
        tuple(counts.ids[k] for k in rows),
        counts.names,
    )


def next_mixes(sizes):
    """The mixes of n labels and one more, class by class."""
    n = int(sizes.sum())
    return [
        [(int(sizes[c]) + (c == y)) / (n + 1) for c in range(len(sizes))] for y in range(len(sizes))
    ]


def test_own_mixes_are_those_of_one_more_label():
    sizes = np.array([4, 0, 5])
    assert pytest.approx(np.array(next_mixes(sizes))) == own_mixes(sizes).means(np.eye(3)).T


def check_federations(number, seed):
    """Each site's edge against rule T on the others in plain loops, largest of its next mixes.

    sigma is paid twice: from the others to the common distribution, and from that to the site's.
    """
    rng = np.random.default_rng(seed)
    edges, pruned = set(), 0
    for trial in range(number):
        n_sites, n_classes = int(rng.integers(4, 10)), int(rng.integers(1, 4))
        m, liars = int(rng.integers(0, 3)), int(rng.integers(0, 4))
        n, alpha, sigma = int(rng.choice([40, 150, 400])), 0.3, 0.04 * (trial % 3 == 0)
        counts = federation([seed, trial], n_sites, n_classes, n, 8, liars, ATTACKS[trial % 4])
        delta = alpha / 20
        found = site_thresholds(counts, alpha, m, sigma)
        for site in range(n_sites):
            alone = [
                mix_edge(counts, [mix], alpha - delta - sigma, m, delta, sigma, without=site)
                for mix in next_mixes(counts.sizes[site])
            ]
            wanted = -1 if None in alone else max(alone)
            assert found[site] == wanted
            stranger = stranger_threshold(others(counts, site), counts.sizes[site], alpha, m, sigma)
            assert (-1 if stranger is None else stranger) == wanted
            edges.add(wanted)
        pruned += len(set(found.tolist())) > 1
    return edges, pruned


def test_site_edges_are_those_of_the_rule_on_the_others():
    edges, apart = check_federations(12, 1)
    assert len(edges) > 2
    assert -1 in edges
    assert apart > 2


@pytest.mark.slow
def test_site_edges_are_those_of_the_rule_on_the_others_in_many_federations():
    edges, _ = check_federations(150, 2)
    assert len(edges) > 4


def test_what_a_site_reports_of_its_scores_does_not_move_its_edge():
    rng = np.random.default_rng(3)
    sizes = label_counts(rng, 10, 3, 200)
    tables = draw_sites(rng, sizes, class_cdfs(3, 40))
    honest = site_thresholds(class_counts(by_class(tables)), 0.2, 2)
    lied = site_thresholds(class_counts(by_class(lie(rng, tables, 1, "bottom"))), 0.2, 2)
    assert honest[-1] == lied[-1] >= 0


def test_sites_not_asked_for_get_none_and_the_rest_are_unmoved():
    counts = federation(4, 8, 2, 300, 20)
    every = site_thresholds(counts, 0.3, 1)
    assert (every >= 0).all()
    some = site_thresholds(counts, 0.3, 1, sites=[2, 5])
    assert some[[2, 5]].tolist() == every[[2, 5]].tolist()
    assert (np.delete(some, [2, 5]) == -1).all()


def test_one_site_alone_or_no_room_gets_none():
    assert site_thresholds(federation(5, 1, 2, 300, 20), 0.3, 0).tolist() == [-1]
    assert (site_thresholds(federation(5, 6, 2, 300, 20), 0.1, 0, 0.1) == -1).all()
    assert stranger_threshold(federation(5, 6, 2, 300, 20), np.array([3, 4]), 0.1, 0, 0.1) is None


def test_as_many_liars_as_others_are_refused():
    with pytest.raises(RobfcpError, match="nothing can be guaranteed against 3 of 3"):
        site_thresholds(federation(6, 4, 2, 50, 10), 0.2, 3)


# The site's own interval


def test_own_intervals_are_those_of_binomials():
    rng = np.random.default_rng(7)
    for n in (1, 2, 5, 20, 28, 36, 37, 50, 200, 1000):
        scores = rng.random(n)
        ordered = sorted(scores.tolist())
        for alpha in (0.01, 0.05, 0.1, 0.3):
            found = own_interval(scores, alpha)
            a = [a for a in range(1, n + 1) if binom.cdf(a - 1, n, 1 - alpha) <= 0.05]
            a = max(a, default=1)
            b = [b for b in range(1, n + 1) if binom.sf(b - 1, n, 1 - alpha) <= 0.025]
            assert found.low == ordered[a - 1]
            assert found.high == (ordered[b[0] - 1] if b else np.inf)
            assert found.floor == a / (n + 1)
            assert found.n == n
            assert found.low <= found.high


def test_an_own_interval_needs_a_sample():
    with pytest.raises(RobfcpError, match="samples: there are none"):
        own_interval(np.array([]), 0.1)


# Simulations


@pytest.mark.slow
def test_a_test_point_of_one_site_is_missed_with_at_most_alpha():
    """P(miss) over everything, of a site whose mix is unlike the others' and four liars.

    They know the test label and pick what misses it most: the least of all that they can reach.
    """
    runs, alpha, bins = 300, 0.2, 100
    cdfs = np.column_stack([class_cdfs(3, bins), np.ones(3)])  # edge -1 is infinite
    missed, knowing, infinite = [], [], 0
    for run in range(runs):
        rng = np.random.default_rng([8, run])
        sizes = label_counts(rng, 16, 3, 150)
        mix = rng.dirichlet(np.ones(3))
        sizes[0] = rng.multinomial(30, mix)
        tables = draw_sites(rng, sizes, cdfs[:, :-1])
        edges = [
            int(site_thresholds(class_counts(by_class(told)), alpha, 4, sites=[0])[0])
            for told in (lie(rng, tables, 4, attack) for attack in ATTACKS)
        ]
        infinite += -1 in edges
        missed.append([1 - mix @ cdfs[:, edge] for edge in edges])
        knowing.append(mix @ np.max([1 - cdfs[:, edge] for edge in edges], axis=0))
    assert np.mean(missed, axis=0).max() - 1e-9 <= np.mean(knowing) <= alpha
    assert infinite < 0.1 * runs
    assert np.max(missed) > 0.05  # not for want of a threshold


@pytest.mark.slow
def test_liars_that_were_not_allowed_for_break_the_claim():
    runs, alpha = 100, 0.2
    cdfs = class_cdfs(3, 100)
    missed = {0: [], 6: []}
    for run in range(runs):
        rng = np.random.default_rng([10, run])
        sizes = label_counts(rng, 16, 3, 150)
        counts = class_counts(by_class(lie(rng, draw_sites(rng, sizes, cdfs), 6, "bottom")))
        for told, found in missed.items():
            edge = int(site_thresholds(counts, alpha, told, sites=[0])[0])
            found.append(0.0 if edge < 0 else 1 - sizes[0] @ cdfs[:, edge] / 150)
    assert np.mean(missed[0]) > alpha + 0.02
    assert np.mean(missed[6]) <= alpha


@pytest.mark.slow
def test_own_ends_cover_what_they_say():
    runs, n, alpha = 4000, 60, 0.1
    rng = np.random.default_rng(9)
    found = [own_interval(rng.random(n), alpha) for _ in range(runs)]
    low = np.array([one.low for one in found])
    assert abs(low.mean() - found[0].floor) < 4 * low.std() / np.sqrt(runs)
    assert np.mean([one.high < 1 - alpha for one in found]) <= 0.025 + 3 * 0.0025


# The server's anchor

BINS = 200
GRID = robfcp.Grid.uniform(BINS)
LEVEL = Fraction(9, 10)


def anchored(rng, n, shape=1.0):
    """The server's report of n trusted scores, uniform to a power."""
    return robfcp.Report.from_scores("server", rng.random(n) ** (1 / shape), GRID)


@pytest.mark.parametrize("level", [LEVEL, Fraction(4, 5)])
@pytest.mark.parametrize("delta", [0.05, 0.01])
def test_an_anchors_ends_are_those_of_binomials(level, delta):
    rng = np.random.default_rng(13)
    for n in (1, 10, 28, 29, 100, 500):
        ordered = np.sort(GRID.index(rng.random(n)))
        found = Anchor.of(np.bincount(ordered, minlength=BINS), level, delta)
        ranks = np.arange(1, n + 1)
        low = ranks[binom.cdf(ranks - 1, n, float(level)) <= delta]
        high = ranks[binom.sf(ranks - 1, n, float(level)) <= delta]
        a = low[-1] if low.size else 1
        assert found.low == ordered[a - 1]
        assert found.floor == a / (n + 1)
        assert found.high == (ordered[high[0] - 1] if high.size else None)
    few = Anchor.of(np.bincount([3], minlength=9), level, delta)
    assert (few.clipped(None), few.clipped(1), few.clipped(5)) == (None, 3, 5)
    ends = Anchor(2, 6, 0.5, 99, 0.05)
    assert [ends.clipped(edge) for edge in (None, 0, 4, 8)] == [6, 2, 4, 6]
    assert [ends.from_below().clipped(edge) for edge in (None, 0, 8)] == [None, 2, 8]


def attacked(rng, share, forged, n_sites=20, n=60):
    """A round of uniform scores in which so large a share of the sites sends the forged ones."""
    honest = n_sites - round(share * n_sites)
    scores = [rng.random(n) for _ in range(honest)] + [forged(rng, n)] * (n_sites - honest)
    return [robfcp.Report.from_scores(f"s{k:02d}", one, GRID) for k, one in enumerate(scores)]


LIES = {
    "zeros": lambda rng, n: np.zeros(n),
    "ones": lambda rng, n: np.ones(n),
    "half": lambda rng, n: rng.random(n) / 2,
    "lifted": lambda rng, n: 0.9 + rng.random(n) / 10,
}


@pytest.mark.parametrize("n", [29, 100])
@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
@pytest.mark.parametrize("lie", LIES)
def test_whoever_lies_trusted_samples_hold_coverage_from_below_and_sets_from_above(n, share, lie):
    """Promise (i): a/(n+1) on average, and never above X_(b); uniform scores are their coverage."""
    runs, coverage = 30, []
    for run in range(runs):
        rng = np.random.default_rng([14, run])
        anchor, reports = anchored(rng, n), attacked(rng, share, LIES[lie])
        held = Anchor.of(anchor.counts, LEVEL, 0.05)
        for promise in (None, robfcp.Pac(3))[: 1 + (run < 3)]:
            asked = {"defence": "none", "promise": promise}
            free = robfcp.calibrate(reports, **asked).threshold
            found = robfcp.calibrate(reports, anchor=anchor, **asked)
            assert found.threshold == GRID.upper[held.clipped(int(GRID.edge_at([free])[0]))]
            assert GRID.upper[held.low] <= found.threshold <= GRID.upper[held.high]
            words = f"whoever lies, at least {at_least(held.floor)} on average over {n} trusted"
            assert words in found.statement
            coverage += [found.threshold] if promise is None else []
    assert np.mean(coverage) >= held.floor - 3 * np.std(coverage) / np.sqrt(runs)


def failures(n, told, runs, worse=0):
    """How often a PAC threshold, told so many of two liars, held by n samples covers under 0.9."""
    rng, grid, low = np.random.default_rng(15), robfcp.Grid.uniform(1000), 0
    for _ in range(runs):
        counts = rng.multinomial(1500, np.full(1000, 1 / 1000), 20)
        counts[:2] = np.bincount([0], [1500], 1000)
        trusted = Anchor.of(grid.counts(rng.random(n)), LEVEL, 0.05)
        trusted = trusted._replace(high=max(trusted.low, trusted.high - worse))
        federation = Federation.from_counts(counts, grid)
        edge, certificate = robfcp.Pac(told).threshold(federation, LEVEL, 0.95, trusted)
        assert certificate.confidence == pytest.approx(0.9)
        low += grid.upper[edge] < 0.9
    return low


@pytest.mark.parametrize("n", [29, 100])
def test_while_at_most_m_lie_the_level_is_covered_as_often_as_stated(n):
    """Promise (ii): with 1 - delta - delta0; told one liar less, or b too small, it is not."""
    runs = 300
    assert binom.sf(failures(n, 2, runs) - 1, runs, 0.1) > 1e-3
    assert binom.sf(failures(n, 1, runs) - 1, runs, 0.1) < 1e-3
    assert binom.sf(failures(n, 2, runs, worse=100) - 1, runs, 0.1) < 1e-3


def test_ends_of_other_ranks_would_not_keep_their_promises():
    """X_(a) covers a/(n+1), not more; b - 1 has a chance above delta to cover less than asked."""
    rng = np.random.default_rng(16)
    for n in (29, 100):
        a, b = clip_ranks(n, 0.9, 0.05, 0.05)
        ordered = np.sort(rng.random((20_000, n)), axis=1)
        assert abs(ordered[:, a - 1].mean() - a / (n + 1)) < 0.002 < 0.5 / (n + 1)
        assert (ordered[:, a - 1] > 0.9).mean() <= 0.052
        assert (ordered[:, b - 1] < 0.9).mean() <= 0.052
        assert (ordered[:, b - 2] < 0.9).mean() > 0.054
        assert a == n or (ordered[:, a] > 0.9).mean() > 0.054


def test_an_average_is_held_from_below_only():
    rng = np.random.default_rng(17)
    reports, anchor = attacked(rng, 0.4, LIES["ones"]), anchored(rng, 100)
    found = robfcp.calibrate(reports, promise=robfcp.Marginal(8), anchor=anchor, defence="none")
    assert found.threshold == 1  # eight of twenty force full sets, which the average allows
    assert found.certificate.confidence is None
    low = robfcp.calibrate(
        attacked(rng, 0.9, LIES["zeros"]),
        0.9,
        promise=robfcp.Marginal(1),
        anchor=anchor,
        defence="none",
    )
    assert low.threshold == GRID.upper[Anchor.of(anchor.counts, LEVEL, 0.05).low]


def by_classes(rng, name, n, mix=(0.5, 0.45, 0.05), **more):
    labels = rng.choice(3, n, p=mix)
    scores = rng.random(n) ** np.array([1.0, 0.5, 2.0])[labels]
    return robfcp.Report.from_scores(name, scores, GRID, labels=labels, classes=3, **more)


def test_classes_are_held_by_their_own_trusted_samples_and_thin_ones_together():
    runs, covered = 40, []
    shapes = np.array([1.0, 2.0, 0.5])  # coverage of each class is the threshold to this power
    for run in range(runs):
        rng = np.random.default_rng([18, run])
        reports = [by_classes(rng, f"s{k}", 200) for k in range(6)]
        reports += [
            robfcp.Report.from_scores(
                f"z{k}", np.zeros(200), GRID, labels=np.arange(200) % 3, classes=3
            )
            for k in range(14)
        ]
        anchor = by_classes(rng, "server", 200)
        found = robfcp.calibrate(reports, by="class", defence="none", anchor=anchor)
        parts = found.levels[0].parts
        delta = 0.05 / 3
        for c in (0, 1):
            held = Anchor.of(anchor.strata.dense()[c], LEVEL, delta)
            assert GRID.upper[held.low] <= parts[c].threshold <= GRID.upper[held.high]
            assert parts[c].certificate.floor == held.floor
            covered.append(parts[c].threshold ** shapes[c] - held.floor)
        few = Anchor.of(anchor.strata.dense()[2], LEVEL, delta)
        assert few.high is None
        assert parts[2].certificate.floor is None
        assert parts[2].threshold >= GRID.upper[few.low]
        assert f"held from below by {few.n} trusted samples" in parts[2].certificate.note
        assert found.certificate.floor is None
    assert np.mean(covered) >= -3 * np.std(covered) / np.sqrt(len(covered))
    pooled = robfcp.Report("server", anchor.counts, GRID)
    parts = robfcp.calibrate(reports, by="class", defence="none", anchor=pooled).levels[0].parts
    low = GRID.upper[Anchor.of(pooled.counts, LEVEL, delta).low]
    assert all(one.threshold >= low and "200 trusted" in one.certificate.note for one in parts)


@pytest.mark.parametrize(
    ("made", "asked", "words"),
    [
        (lambda rng: 0.9, {}, "is not a report"),
        (lambda rng: anchored(rng, 50), {"promise": robfcp.LabelShift(1)}, "with LabelShift"),
        (
            lambda rng: robfcp.Report.from_scores("server", [0.5], robfcp.Grid.uniform(9)),
            {},
            "grid",
        ),
        (lambda rng: robfcp.Report.from_scores("s01", [0.5], GRID), {}, "is among the reports"),
        (
            lambda rng: robfcp.Report(
                "server", GRID.counts(rng.random(9)), GRID, n_samples=9, privacy=robfcp.Privacy(1.0)
            ),
            {},
            "holds noise",
        ),
        (lambda rng: anchored(rng, 50), {"confidence": 0.5}, "more than 0.5"),
    ],
)
def test_trusted_samples_that_cannot_hold_the_threshold_are_refused(made, asked, words):
    rng = np.random.default_rng(19)
    with pytest.raises(RobfcpError, match=f"anchor: .*{words}"):
        robfcp.calibrate(
            [by_classes(rng, f"s{k:02d}", 60) for k in range(5)],
            anchor=made(rng),
            defence="none",
            **asked,
        )


def test_the_record_keeps_the_anchor_so_that_the_calibration_can_be_repeated(tmp_path):
    rng = np.random.default_rng(20)
    p, y = outputs(rng, 400, 2)
    sites = [(p[k::9], y[k::9]) for k in range(8)]
    files = saved(tmp_path / "in", makers.by_class(sites, 2))
    own = table(tmp_path / "own.csv", p[8::9], y[8::9])
    asked = ["calibrate", *files, *["--promise", "pac", "--liars", "1", "-o"]]
    said(*asked, tmp_path / "c.json", "--anchor", own)
    found = robfcp.Calibration.load(tmp_path / "c.json")
    assert "whoever lies, at least" in found.statement
    assert f"{len(p[8::9])} trusted samples" in found.statement
    assert found.record.trusted_samples.counts.sum() == len(p[8::9])
    assert verify_calibration(found) == []
    found.record.trusted_samples.save(tmp_path / "own.json")
    said(*asked, tmp_path / "d.json", "--anchor", tmp_path / "own.json")
    assert robfcp.Calibration.load(tmp_path / "d.json").threshold == found.threshold
    other = msgspec.structs.replace(found.record, anchor=None)
    assert verify_calibration(found.with_record(other)) != []
