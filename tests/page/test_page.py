"""The page says what the library computed, to anybody, whatever clients call themselves."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from makers import LAC, beta_scores, by_class, embedded, outputs, reports_of, said, saved

import robfcp
from robfcp import Binning, Calibration, Consensus, Federation, Report, RobFCP
from robfcp.defense import FCP, Assessment
from robfcp.federation import RejectedReport
from robfcp.guarantees import certify_threshold
from robfcp.page import render_html, write_html
from robfcp.page._auditor import auditor_questions
from robfcp.page._impact import impact_text
from robfcp.privacy._budget import Privacy

HOSTILE = "</script><script>alert(1)</script>\u2028&"


@cache
def federation(n_clients=14, attackers=3):
    """Clients of unequal sizes, the first ones reporting zeros only."""
    scores = beta_scores(0, n_clients, 120, attackers)
    parts = [part[: 40 + 7 * k % 80] for k, part in enumerate(scores)]
    return Federation.from_reports(reports_of(parts, score=None, binning=Binning.default()))


@cache
def noisy():
    """Private reports, the first two of zeros."""
    rng, grid, privacy = np.random.default_rng(0), Binning.uniform(40), Privacy(2.0)
    counts = rng.multinomial(400, np.full(40, 1 / 40), size=12)
    counts[:2] = np.eye(40, dtype=np.int64)[0] * 400
    more, less = rng.geometric(1 - np.exp(-1 / privacy.scale), (2, *counts.shape))
    return Federation.from_counts(
        counts + more - less, grid, privacy=privacy, sample_sizes=[400] * 12
    )


TWO, MOST = {"guarantee": robfcp.MarginalGuarantee(2)}, {"coverage": 0.99999}


CALIBRATIONS: list[dict[str, Any]] = [
    {"defense": Consensus(at_most=3)},
    {"guarantee": robfcp.PACGuarantee(2), "certificate_confidence": 0.9},
    {"guarantee": robfcp.MarginalGuarantee(samples=200)},
    {"defense": FCP(), "coverage": 0.99999},
    {"reports": noisy, "defense": Consensus(at_most=2)},
]


@pytest.mark.parametrize("options", CALIBRATIONS, ids=lambda options: " ".join(options))
def test_the_band_around_the_scores_is_what_is_certified_of_each_threshold(options):
    options = dict(options)
    reports = options.pop("reports", federation)()
    calibration = robfcp.calibrate(reports, **options)
    data = embedded(render_html(calibration))
    band, bins = data["coverage_band"], data["view"]
    assert len(band["lower"]) == len(band["upper"]) == len(bins)
    for i in (0, len(bins) // 3, len(bins) // 2, len(bins) - 1):
        certificate = certify_threshold(
            reports, bins[i], calibration.n_malicious, calibration.certificate_confidence
        )
        assert band["lower"][i] == pytest.approx(certificate.lower, abs=1e-5)
        assert band["upper"][i] == pytest.approx(certificate.upper, abs=1e-5)


@pytest.mark.parametrize("options", CALIBRATIONS, ids=lambda options: " ".join(options))
def test_the_charts_know_the_bin_of_the_threshold(options):
    options = dict(options)
    reports = options.pop("reports", federation)()
    calibration = robfcp.calibrate(reports, **options)
    data = embedded(render_html(calibration))
    grid, threshold = data["grid"], data["levels"][0]["threshold"]
    if threshold is None:
        assert calibration.threshold == np.inf
    else:
        bin_index = grid["used"][grid["edges"].index(threshold)]
        assert reports.threshold_at(bin_index) == calibration.threshold


class Own:
    name = "own"

    def assess(self, federation):
        trusted = np.arange(federation.n_clients) != 5
        return Assessment(np.ones(federation.n_clients), trusted, {federation.clients[5]: "fifth"})


def test_a_page_holds_only_itself_and_hostile_names_cannot_leave_the_data():
    fault = RejectedReport(HOSTILE + "2", "counts", f"{HOSTILE}: broken")
    ids = (HOSTILE, *federation().clients[1:])
    hostile = replace(
        federation(), clients=ids, rejected_reports=(fault,), missing_clients=(HOSTILE + "3",)
    )
    page = render_html(robfcp.calibrate(hostile, defense=Consensus(at_most=3)))
    assert HOSTILE not in page
    assert page.count("<script") == 2
    data = embedded(page)
    assert (data["clients"]["id"][0], data["faulty"][0]["client"]) == (HOSTILE, fault.client)
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(https?:|//)""", page)
    assert "innerHTML" not in page.split("uPlot=", 1)[1].split('"use strict";\n', 1)[1]
    for kind in ("script", "style"):
        (text,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_the_data_hold_all_counts_and_what_an_auditor_needs():
    calibration = robfcp.calibrate(federation(), defense=Consensus(at_most=3))
    data, grid = embedded(render_html(calibration)), calibration.federation.binning
    merged = calibration.federation.merge_bins(np.array(data["view"]))
    assert data["counts"] == merged.ravel().tolist()
    assert (merged.sum(axis=1) == data["clients"]["size"]).all()
    assert min(data["clients"]["oddness"]) == 0
    with pytest.raises(robfcp.RobfcpError, match="keep no counts by class or group"):
        calibration.class_coverage(calibration.levels[0])
    digests = {grid.digest, hashlib.sha256(calibration.to_json()).hexdigest()}
    assert digests <= set(dict(data["audit"]).values())


HEADLINES = [
    ((14, 3), TWO, "90% coverage is guaranteed even if any 2 of 14 sites lie"),
    (
        (14, 3),
        {"guarantee": robfcp.PACGuarantee(2)},
        "is guaranteed with 95% confidence even if any 2 of",
    ),
    (
        (14, 3),
        {"guarantee": robfcp.MarginalGuarantee(samples=200)},
        "at most 200 samples together lie",
    ),
    (
        (8, 0),
        {"guarantee": robfcp.MarginalGuarantee(0)},
        "guaranteed if nobody lies; no site flagged",
    ),
    ((24, 0), {"defense": Consensus(at_most=0)}, "either at least one of the 24 sites lies or"),
    ((24, 0), {}, "The wanted level itself is not proved."),
    ((8, 0), MOST, "every prediction set is full"),
    ((1, 0), {}, "from the one site"),
]


@pytest.mark.parametrize(("sites", "options", "words"), HEADLINES)
def test_the_headline_says_what_is_proved(sites, options, words):
    calibration = robfcp.calibrate(federation(*sites), **options)
    data = embedded(render_html(calibration))
    top, level = data["headline"], data["levels"][0]
    assert words in top["claim"] + top["promise"]
    assert level["threshold"] == (calibration.threshold if "full" not in words else None)
    curve = calibration.certificates.items()
    assert level["curve"] == [[m, point.lower, point.upper] for m, point in curve]


MADE = [
    (
        {},
        "the vote of the sites that were used, never below FCP's threshold on them; here ",
        "read",
    ),
    ({"defense": Consensus(exactly=2)}, "the vote of", "2, stated before"),
    ({"defense": "rob-fcp"}, "FCP's, on the reports of the sites that were used", "read off"),
    ({"guarantee": robfcp.MarginalGuarantee(2)}, "the promise's", "2, stated before"),
    ({"defense": Own()}, "that of the defence that was passed", "read off"),
    ({"by": "class"}, "FCP's, on the reports of the sites that were used, for each class", "read"),
]


@pytest.mark.parametrize(("options", "rule", "number"), MADE)
def test_an_auditor_reads_which_rule_made_the_threshold_and_whence_the_number_is(
    options, rule, number
):
    held = by_class([outputs(k, 150) for k in range(8)]) if "by" in options else federation()
    calibration = robfcp.calibrate(held, **options)
    told = dict(embedded(render_html(calibration))["brief"])
    assert told["threshold"].startswith(rule)
    assert number in told["number of liars"]
    assert told["proved"] == calibration.statement
    assert ("promised" in told["what would change it"]) == calibration.is_guaranteed
    assert ("below ten" in told["what would change it"]) == ("by" in options)
    if not options:  # noise: no vote; a sample of the server's own
        anchor = Report.from_scores("server", np.linspace(0, 1, 200), binning=noisy().binning)
        told = auditor_questions(robfcp.calibrate(noisy(), trusted_report=anchor), "")["threshold"]
        assert re.match("FCP's.*; held within what the server's own sample allows", told)


def lying(score, by=None):
    """Twenty sites by class, the first five reporting one score only; what all of them hold."""
    made = [outputs(k, 150) for k in range(20)]
    reports = by_class(made, include_all_labels=True)
    for k, (_, y) in enumerate(made[:5] if score is not None else []):
        told = {"score": LAC, "labels": y, "classes": 3}
        reports[k] = Report.from_scores(f"site-{k:02d}", np.full(150, score), **told)
    return robfcp.calibrate(reports, by=by), made


@pytest.mark.parametrize("by", [None, "class"])
def test_harm_and_classes_are_counted_at_the_sites_used_and_the_others_apart(by):
    calibration, made = lying(0.0, by)
    assert len(calibration.flagged_clients) == 5
    plain = robfcp.calibrate(calibration.federation, by=by, defense="none")
    labels, used = np.concatenate([y for _, y in made]), np.repeat(np.arange(20) > 4, 150)
    rows, p = np.arange(len(labels)), np.concatenate([p for p, _ in made])
    hits = [one.predict_set(p)[rows, labels] for one in (calibration, plain)]
    told = impact_text(calibration)
    more = 1000 * (hits[0][used].mean() - hits[1][used].mean())
    assert int(told["first"].split("about ")[1].split()[0]) == pytest.approx(more, abs=1.01)
    assert more > 30
    assert "in class " in told["first"]
    assert "estimated from the reports of the sites that were used" in told["then"]
    share = f"the 15 used sites reported, {100 * hits[0][used].mean():.4g}%"
    page = embedded(render_html(calibration))
    assert share in page["headline"]["used"]
    data = page["strata"]
    for row in data["rows"]:
        own = labels == int(row["name"])
        assert (row["samples"], row["out"]) == ((own & used).sum(), (own & ~used).sum())
        assert row["covered"] == pytest.approx(hits[0][own & used].mean(), abs=1e-5)
        assert (row["sites"], row["proved"] is None) == (15, by is None)
    assert not {site["name"] for site in data["sites"]} & set(calibration.flagged_clients)


def test_sets_that_a_lie_inflates_are_told_and_no_harm_is_none():
    assert (
        "a set would hold about 3.00 labels in place of 1." in impact_text(lying(1.0)[0])["first"]
    )
    assert "wider than needed" in impact_text(lying(0.97, "class")[0])["first"]
    assert impact_text(lying(None)[0]) == {"first": "", "then": ""}
    lambdas, rng = np.linspace(0, 1, 101), np.random.default_rng(0)
    losses = [(rng.random((60, 1)) > lambdas) * (k > 3) * 1.0 for k in range(14)]  # four never lose
    told = [Report.from_losses(f"s{k}", own, lambdas, risk="r") for k, own in enumerate(losses)]
    assert (
        "the mean r would be about 1"
        in impact_text(robfcp.calibrate(told, risk_level=0.1))["first"]
    )


def test_large_federations_get_a_bounded_page():
    counts = np.random.default_rng(0).multinomial(100, np.full(50, 0.02), size=300)
    page = render_html(robfcp.calibrate(Federation.from_counts(counts), defense=RobFCP(liars=70)))
    assert len(page) < 700_000
    with pytest.raises(robfcp.RobfcpError, match=r"20001 sites are more than the 20000"):
        render_html(
            robfcp.calibrate(Federation.from_counts(np.ones((20_001, 2), int)), defense="none")
        )


def test_the_same_page_is_written_whole_by_python_calibrate_and_show(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = saved(tmp_path / "in", federation(8, 0))
    said("calibrate", *files, "-o", "c.json", "--html", "a.html", "--liars", "1")
    said("show", "c.json", "--html", "b.html")
    said("show", "c.json", "--date", "", "--html", "d.html")
    write_html(Calibration.load("c.json", record=True), "e.html")
    pages = {name: (tmp_path / f"{name}.html").read_bytes() for name in "abde"}
    assert pages["a"] == pages["b"]
    assert pages["d"] == pages["e"]
    assert pages["e"].rstrip().endswith(b"</html>")


def default_rounds(n_sites=12, n=80):
    """A round of default reports, and the same with exact counts."""
    made = [outputs(k, n) for k in range(n_sites)]
    return [
        robfcp.calibrate(by_class(made, min_cell_count=m, stratify_by_class=by), defense="none")
        for m, by in ((5, None), (1, False))
    ]


def test_curves_of_coarsened_reports_lie_half_way_between_what_they_may_be():
    """Neither above nor below those of the exact counts, on average over edges and sites."""
    coarse, exact = default_rounds()
    data = embedded(render_html(coarse))
    federation = coarse.federation
    bins = np.array(data["view"])
    counts = np.array(data["counts"]).reshape(federation.n_clients, -1)
    assert counts.dtype.kind == "i"
    assert (counts.sum(axis=1) == data["clients"]["size"]).all()
    middle = federation.at_midpoints(lambda bounded: bounded.cumulative_counts(bins))
    assert np.abs(np.cumsum(counts, axis=1) - middle).max() <= 0.5

    true_counts = exact.federation.cumulative_counts(bins)
    errors = np.cumsum(counts, axis=1) - true_counts
    assert abs(errors.mean()) < 0.4  # samples of 80
    as_sent = federation.cumulative_counts(bins) - true_counts
    assert as_sent.mean() < -1


def test_a_page_of_class_totals_says_how_to_get_results_by_class():
    coarse, exact = default_rounds()
    page = embedded(render_html(coarse))
    assert page["strata"] is None
    assert "no counts by class" in page["notes"][-1]
    assert "stratify_by_class=True" in page["notes"][-1]
    assert not any("no counts by class" in note for note in embedded(render_html(exact))["notes"])
