"""One site's threshold from the others' reports, and the interval of its own scores."""

from dataclasses import replace
from fractions import Fraction

import makers
import numpy as np
import pytest
from effort import cases
from makers import outputs, said, saved, table
from plain_shift import ATTACKS, by_class, class_cdfs, draw_sites, label_counts, lie, mix_edge
from scipy.stats import binom

import robfcp
from robfcp.audit import verify_calibration
from robfcp.certificates import format_lower
from robfcp.errors import RobfcpError
from robfcp.guarantees import _local_bounds as local_bounds
from robfcp.guarantees._label_shift import class_counts


def federation(seed, n_sites, n_classes, n, bins, liars=0, attack="bottom"):
    """The counts of a federation whose last sites lie."""
    rng = np.random.default_rng(seed)
    sizes = label_counts(rng, n_sites, n_classes, n)
    tables = draw_sites(rng, sizes, class_cdfs(n_classes, bins))
    return replace(class_counts(by_class(lie(rng, tables, liars, attack))), cumulative_upper=None)


def others(counts, site):
    """The counts without one site."""
    rows = [k for k in range(len(counts.clients)) if k != site]
    ids = tuple(counts.clients[k] for k in rows)
    return replace(
        counts,
        cumulative=counts.cumulative[:, rows],
        class_sizes=counts.class_sizes[rows],
        clients=ids,
    )


def next_mixes(sizes):
    """The mixes of n labels and one more, class by class."""
    n = int(sizes.sum())
    return [
        [(int(sizes[c]) + (c == y)) / (n + 1) for c in range(len(sizes))] for y in range(len(sizes))
    ]


@pytest.mark.effort
def test_site_edges_are_those_of_the_rule_on_the_others():
    """Each site's edge against rule T on the others in plain loops, largest of its next mixes.

    sigma is paid twice: from the others to the common distribution, and from that to the site's.
    """
    rng, edges, apart = np.random.default_rng(1), set(), 0
    for trial in range(cases(12)):
        n_sites, n_classes = int(rng.integers(4, 10)), int(rng.integers(1, 4))
        m, liars = int(rng.integers(0, 3)), int(rng.integers(0, 4))
        n, alpha, sigma = int(rng.choice([40, 150, 400])), 0.3, 0.04 * (trial % 3 == 0)
        counts = federation([1, trial], n_sites, n_classes, n, 8, liars, ATTACKS[trial % 4])
        delta = alpha / 20
        found = local_bounds.client_thresholds(counts, alpha, m, sigma)
        for site in range(n_sites):
            alone = [
                mix_edge(counts, [mix], alpha - delta - sigma, m, delta, sigma, without=site)
                for mix in next_mixes(counts.class_sizes[site])
            ]
            wanted = -1 if None in alone else max(alone)
            assert found[site] == wanted
            stranger = local_bounds.unseen_client_threshold(
                others(counts, site), counts.class_sizes[site], alpha, m, sigma
            )
            assert (-1 if stranger is None else stranger) == wanted
            edges.add(wanted)
        apart += len(set(found.tolist())) > 1
    assert len(edges) > 2
    assert -1 in edges
    assert apart > 2


def test_sites_not_asked_for_one_alone_or_without_room_get_none():
    counts = federation(4, 8, 2, 300, 20)
    every, some = (
        local_bounds.client_thresholds(counts, 0.3, 1),
        local_bounds.client_thresholds(counts, 0.3, 1, clients=[2, 5]),
    )
    assert some.tolist() == np.where(np.isin(range(8), [2, 5]), every, -1).tolist()
    assert local_bounds.client_thresholds(federation(5, 1, 2, 300, 20), 0.3, 0).tolist() == [-1]
    assert (local_bounds.client_thresholds(counts, 0.1, 0, 0.1) == -1).all()
    assert local_bounds.unseen_client_threshold(counts, np.array([3, 4]), 0.1, 0, 0.1) is None
    with pytest.raises(RobfcpError, match="nothing can be guaranteed against 3 of 3"):
        local_bounds.client_thresholds(federation(6, 4, 2, 50, 10), 0.2, 3)


# Order statistics of trusted samples: a site's own, and the server's anchor


def binomial_ends(n, level, low, high):
    """a and b by scipy: the largest, and the least or n + 1."""
    ranks = np.arange(1, n + 1)
    a, b = (ranks[binom.cdf(ranks - 1, n, level) <= low], binom.sf(ranks - 1, n, level) <= high)
    return (a[-1] if a.size else 1), (ranks[b][0] if b.any() else n + 1)


BINS = 200
GRID = robfcp.Binning.uniform(BINS)
LEVEL = Fraction(9, 10)


def anchored(rng, n, shape=1.0):
    """The server's report of n trusted scores, uniform to a power."""
    return robfcp.Report.from_scores("server", rng.random(n) ** (1 / shape), GRID)


@pytest.mark.parametrize("level", [LEVEL, Fraction(4, 5), Fraction(99, 100)])
@pytest.mark.parametrize("delta", [0.05, 0.01])
def test_ends_of_trusted_samples_are_those_of_binomials(level, delta):
    rng = np.random.default_rng(13)
    for n in (1, 10, 28, 29, 37, 100, 500):
        scores = np.sort(rng.random(n))
        ordered = GRID.bin_indices(scores)
        found = local_bounds.TrustedInterval.from_counts(
            np.bincount(ordered, minlength=BINS), level, delta
        )
        a, b = binomial_ends(n, float(level), delta, delta)
        assert (found.low, found.marginal_lower) == (ordered[a - 1], a / (n + 1))
        assert found.high == (ordered[b - 1] if b <= n else None)
        own = local_bounds.local_threshold_range(scores, float(1 - level))
        a, b = binomial_ends(n, float(level), 0.05, 0.025)
        wanted = scores[a - 1], scores[b - 1] if b <= n else np.inf, a / (n + 1), n
        assert (own.low, own.high, own.marginal_lower, own.n) == wanted
    with pytest.raises(RobfcpError, match="samples: there are none"):
        local_bounds.local_threshold_range(np.array([]), 0.1)
    few = local_bounds.TrustedInterval.from_counts(np.bincount([3], minlength=9), level, delta)
    assert (few.clip(None), few.clip(1), few.clip(5)) == (None, 3, 5)
    ends = local_bounds.TrustedInterval(2, 6, 0.5, 99, 0.05)
    assert [ends.clip(edge) for edge in (None, 0, 4, 8)] == [6, 2, 4, 6]
    assert [ends.lower_only().clip(edge) for edge in (None, 0, 8)] == [None, 2, 8]


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
@pytest.mark.parametrize("share", [0.4, 0.9])
@pytest.mark.parametrize("lie", LIES)
def test_whoever_lies_trusted_samples_hold_coverage_from_below_and_sets_from_above(n, share, lie):
    rng = np.random.default_rng(14)
    anchor, reports = anchored(rng, n), attacked(rng, share, LIES[lie])
    held = local_bounds.TrustedInterval.from_counts(anchor.counts, LEVEL, 0.05)
    for promise in (None, robfcp.PACGuarantee(3)):
        asked = {"defense": "none", "guarantee": promise}
        free = robfcp.calibrate(reports, **asked).threshold
        found = robfcp.calibrate(reports, trusted_report=anchor, **asked)
        assert (
            found.threshold
            == GRID.upper_edges[held.clip(int(GRID.bin_index_of_threshold([free])[0]))]
        )
        assert GRID.upper_edges[held.low] <= found.threshold <= GRID.upper_edges[held.high]
        floor = format_lower(held.marginal_lower)
        words = f"whoever lies, at least {floor} on average over {n} trusted"
        assert words in found.statement
        assert promise is None or found.certificate.confidence == pytest.approx(0.9)


def test_an_average_is_held_from_below_only():
    rng = np.random.default_rng(17)
    reports, anchor = attacked(rng, 0.4, LIES["ones"]), anchored(rng, 100)
    found = robfcp.calibrate(
        reports, guarantee=robfcp.MarginalGuarantee(8), trusted_report=anchor, defense="none"
    )
    assert found.threshold == 1  # eight of twenty force full sets, which the average allows
    assert found.certificate.confidence is None
    reports = attacked(rng, 0.9, LIES["zeros"])
    low = robfcp.calibrate(
        reports, guarantee=robfcp.MarginalGuarantee(1), trusted_report=anchor, defense="none"
    )
    assert (
        low.threshold
        == GRID.upper_edges[
            local_bounds.TrustedInterval.from_counts(anchor.counts, LEVEL, 0.05).low
        ]
    )


def by_classes(rng, name, n, mix=(0.5, 0.45, 0.05), **more):
    labels = rng.choice(3, n, p=mix)
    scores = rng.random(n) ** np.array([1.0, 0.5, 2.0])[labels]
    return robfcp.Report.from_scores(name, scores, GRID, labels=labels, classes=3, **more)


def test_classes_are_held_by_their_own_trusted_samples_and_thin_ones_together():
    rng, labels = np.random.default_rng(18), np.arange(200) % 3
    reports = [by_classes(rng, f"s{k}", 200) for k in range(6)]
    lies = {"labels": labels, "classes": 3}
    reports += [robfcp.Report.from_scores(f"z{k}", 0 * labels, GRID, **lies) for k in range(14)]
    anchor, delta = by_classes(rng, "server", 200), 0.05 / 3
    asked = {"by": "class", "defense": "none"}
    found = robfcp.calibrate(reports, trusted_report=anchor, **asked)
    *classes, rare = found.levels[0].strata
    held = [
        local_bounds.TrustedInterval.from_counts(counts, LEVEL, delta)
        for counts in anchor.strata.dense()
    ]
    for part, own in zip(classes, held[:2], strict=True):
        assert GRID.upper_edges[own.low] <= part.threshold <= GRID.upper_edges[own.high]
        assert part.certificate.floor == own.marginal_lower
    assert (held[2].high, rare.certificate.floor, found.certificate.floor) == (None, None, None)
    assert rare.threshold >= GRID.upper_edges[held[2].low]
    assert f"held from below by {held[2].n} trusted samples" in rare.certificate.note
    pooled = robfcp.Report("server", anchor.counts, GRID)
    parts = robfcp.calibrate(reports, trusted_report=pooled, **asked).levels[0].strata
    low = GRID.upper_edges[
        local_bounds.TrustedInterval.from_counts(pooled.counts, LEVEL, delta).low
    ]
    assert all(one.threshold >= low and "200 trusted" in one.certificate.note for one in parts)


def test_trusted_samples_that_classes_share_lower_no_threshold():
    """They may be of another class than a threshold that they seem to exceed."""
    rng = np.random.default_rng(19)
    reports = [by_classes(rng, f"s{k}", 200) for k in range(6)]
    easy = np.bincount(GRID.bin_indices(0.1 * rng.random(500)), minlength=GRID.n_bins)
    shared = robfcp.Report("server", easy, GRID)
    asked = {"by": "class", "defense": "none"}
    alone = robfcp.calibrate(reports, **asked).levels[0].strata
    together = robfcp.calibrate(reports, trusted_report=shared, **asked).levels[0].strata
    assert [one.threshold for one in together] == [one.threshold for one in alone]
    high = local_bounds.TrustedInterval.from_counts(shared.counts, LEVEL, 0.05 / 3).high
    assert all(one.threshold > GRID.upper_edges[high] for one in alone)


@pytest.mark.parametrize(
    ("guarantee", "is_trusted", "confidence"),
    [
        (None, False, 0.95),
        (None, True, 0.95),
        (robfcp.PACGuarantee(1), False, 0.95),
        (robfcp.PACGuarantee(1), True, 0.9),
    ],
)
def test_trusted_samples_that_may_lower_a_guaranteed_threshold_take_as_much_again(
    guarantee, is_trusted, confidence
):
    """A union of two events, each of 5%: a threshold covers too little, or its upper end does."""
    rng = np.random.default_rng(20)
    reports = [by_classes(rng, f"s{k}", 400) for k in range(8)]
    trusted = by_classes(rng, "server", 900) if is_trusted else None
    found = robfcp.calibrate(
        reports, by="class", defense="none", guarantee=guarantee, trusted_report=trusted
    )
    assert found.certificate.confidence == pytest.approx(confidence)


NOISE = {"n_samples": 200, "privacy": robfcp.Privacy(1.0)}
OWN = robfcp.Report("server", [1] * BINS, GRID)


@pytest.mark.parametrize(
    ("anchor", "asked", "words"),
    [
        (0.9, {}, "is no report"),
        (OWN, {"guarantee": robfcp.LabelShiftGuarantee(1)}, "with LabelShift"),
        (robfcp.Report("server", [1] * 9, robfcp.Binning.uniform(9)), {}, "grid"),
        (robfcp.Report("s01", [1] * BINS, GRID), {}, "is among the reports"),
        (robfcp.Report("server", [1] * BINS, GRID, **NOISE), {}, "holds noise"),
        (OWN, {"certificate_confidence": 0.5}, "more than 0.5"),
    ],
)
def test_trusted_samples_that_cannot_hold_the_threshold_are_refused(anchor, asked, words):
    reports = [by_classes(np.random.default_rng(k), f"s{k:02d}", 60) for k in range(5)]
    with pytest.raises(RobfcpError, match=f"anchor: .*{words}"):
        robfcp.calibrate(reports, trusted_report=anchor, defense="none", **asked)


def test_the_record_keeps_the_anchor_so_that_the_calibration_can_be_repeated(tmp_path):
    p, y = outputs(20, 400, 2)
    files = saved(tmp_path / "in", makers.by_class([(p[k::9], y[k::9]) for k in range(8)], 2))
    own, asked = table(tmp_path / "own.csv", p[8::9], y[8::9]), ["--promise", "pac", "--liars", "1"]
    said("calibrate", *files, *asked, "-o", tmp_path / "c.json", "--anchor", own)
    found = robfcp.Calibration.load(tmp_path / "c.json", record=True)
    assert f"on average over {len(p[8::9])} trusted samples" in found.statement
    assert verify_calibration(found) == []
    found.record.trusted_report.save(tmp_path / "own.json")
    said("calibrate", *files, *asked, "-o", tmp_path / "d.json", "--anchor", tmp_path / "own.json")
    assert robfcp.Calibration.load(tmp_path / "d.json").threshold == found.threshold
    other = replace(found.record, trusted_report=None)
    assert verify_calibration(found.with_record(other)) != []


@pytest.mark.effort
@pytest.mark.parametrize("n", [3, 12, 60])
def test_whatever_the_federation_says_own_losses_hold_lambda_where_brute_force_does(n):
    """The share of three labels missed, each with a chance of 1 - sqrt(lambda)."""
    rng, lambdas, costs, high = np.random.default_rng(n), np.linspace(0, 1, 101), [], []
    allowed, unit = max(0.1 + (0.09 / n) ** 0.5, 2 / (n + 1)), robfcp.Risk("fnr").resolution
    for _ in range(cases(300)):
        losses = (rng.random((n, 3, 1)) ** 2 > lambdas).mean(axis=1)
        report = robfcp.Report.from_losses("a", losses, lambdas, risk="fnr")
        own = local_bounds.local_lambda_range(
            report.counts, n, unit, Fraction(9, 10), report.grid.upper_edges
        )
        fine = (losses.sum(axis=0) + 1) / (n + 1) <= allowed + 1e-9
        assert own.low == lambdas[fine.argmax()]
        assert own.marginal_lower == pytest.approx(1 - allowed)
        told = np.array([0.0, 0.81, 1.0])  # a lie, the truth, a lie
        costs.append(1 - np.sqrt(np.maximum(own.low, np.minimum(told, own.high)).clip(0, 1)))
        high.append(own.high)
    mean, error = np.mean(costs, axis=0), np.std(costs, axis=0) / len(costs) ** 0.5
    assert (mean <= allowed + 3 * error).all()
    assert mean[2] <= mean[1] <= 0.1 < allowed  # not held, the first lie would cost everything
    assert np.mean(np.array(high) < 0.81) <= 0.025
