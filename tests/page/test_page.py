"""The page shows what the library computed, to everybody, whatever the names of the clients."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from makers import (
    LAC,
    beta_scores,
    command_output,
    embedded_data,
    outputs,
    reports_by_class,
    reports_of,
    save_reports,
)

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
def make_federation(n_clients=14, n_malicious=3):
    """Return clients of unequal sizes, the first of which report zeros only."""
    scores = beta_scores(0, n_clients, 120, n_malicious)
    unequal = [client_scores[: 40 + 7 * k % 80] for k, client_scores in enumerate(scores)]
    return Federation.from_reports(reports_of(unequal, score=None, binning=Binning.default()))


@cache
def make_private_federation():
    """Return private reports, the first two of zeros."""
    rng = np.random.default_rng(0)
    binning = Binning.uniform(40)
    privacy = Privacy(2.0)
    counts = rng.multinomial(400, np.full(40, 1 / 40), size=12)
    counts[:2] = np.eye(40, dtype=np.int64)[0] * 400
    added, subtracted = rng.geometric(1 - np.exp(-1 / privacy.scale), (2, *counts.shape))
    return Federation.from_counts(
        counts + added - subtracted, binning, privacy=privacy, sample_sizes=[400] * 12
    )


def page_of(calibration):
    """Return the data of a calibration's page."""
    return embedded_data(render_html(calibration))


CALIBRATIONS: list[dict[str, Any]] = [
    {"defense": Consensus(max_malicious=3)},
    {"guarantee": robfcp.PACGuarantee(2), "certificate_confidence": 0.9},
    {"guarantee": robfcp.MarginalGuarantee(max_malicious_samples=200)},
    {"defense": FCP(), "coverage": 0.99999},
    {"make_reports": make_private_federation, "defense": Consensus(max_malicious=2)},
]


@pytest.mark.parametrize("options", CALIBRATIONS, ids=lambda options: " ".join(options))
def test_the_band_around_the_scores_is_the_certificate_of_each_threshold(options):
    options = dict(options)
    federation = options.pop("make_reports", make_federation)()
    calibration = robfcp.calibrate(federation, **options)
    data = page_of(calibration)
    band = data["coverage_band"]
    bins = data["plot_bins"]
    assert len(band["lower"]) == len(band["upper"]) == len(bins)
    for i in (0, len(bins) // 3, len(bins) // 2, len(bins) - 1):
        certificate = certify_threshold(
            federation, bins[i], calibration.n_malicious, calibration.certificate_confidence
        )
        assert band["lower"][i] == pytest.approx(certificate.lower, abs=1e-5)
        assert band["upper"][i] == pytest.approx(certificate.upper, abs=1e-5)


@pytest.mark.parametrize("options", CALIBRATIONS, ids=lambda options: " ".join(options))
def test_the_bin_of_the_threshold_is_among_those_of_the_charts(options):
    options = dict(options)
    federation = options.pop("make_reports", make_federation)()
    calibration = robfcp.calibrate(federation, **options)
    data = page_of(calibration)
    binning = data["binning"]
    threshold = data["levels"][0]["threshold"]
    if threshold is None:
        assert calibration.threshold == np.inf
    else:
        bin_index = binning["bins"][binning["upper_edges"].index(threshold)]
        assert federation.threshold_at(bin_index) == calibration.threshold


class CustomDefense:
    name = "custom"

    def assess(self, federation):
        benign_mask = np.arange(federation.n_clients) != 5
        maliciousness = np.ones(federation.n_clients)
        return Assessment(maliciousness, benign_mask, {federation.clients[5]: "fifth"})


def test_a_page_holds_only_itself_and_hostile_names_cannot_leave_the_data():
    federation = make_federation()
    rejected = RejectedReport(HOSTILE + "2", "counts", f"{HOSTILE}: broken")
    hostile = replace(
        federation,
        clients=(HOSTILE, *federation.clients[1:]),
        rejected_reports=(rejected,),
        missing_clients=(HOSTILE + "3",),
    )
    page = render_html(robfcp.calibrate(hostile, defense=Consensus(max_malicious=3)))
    assert HOSTILE not in page
    assert page.count("<script") == 2
    data = embedded_data(page)
    assert data["clients"]["client"][0] == HOSTILE
    assert data["rejected_reports"][0]["client"] == rejected.client
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(https?:|//)""", page)
    assert "innerHTML" not in page.split("uPlot=", 1)[1].split('"use strict";\n', 1)[1]
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_the_data_hold_all_counts_and_what_an_auditor_needs():
    calibration = robfcp.calibrate(make_federation(), defense=Consensus(max_malicious=3))
    data = page_of(calibration)
    merged = calibration.federation.merge_bins(np.array(data["plot_bins"]))
    assert data["counts"] == merged.ravel().tolist()
    assert (merged.sum(axis=1) == data["clients"]["n_samples"]).all()
    assert min(data["clients"]["maliciousness"]) == 0
    with pytest.raises(robfcp.RobfcpError, match="hold no counts by class or group"):
        calibration.class_coverage(calibration.levels[0])
    audit_rows = dict(data["audit"])
    assert audit_rows["binning digest"] == calibration.federation.binning.digest
    assert hashlib.sha256(calibration.to_json()).hexdigest() in audit_rows.values()


HEADLINES = [
    (
        (14, 3),
        {"guarantee": robfcp.MarginalGuarantee(2)},
        "90% coverage is guaranteed even if any 2 of 14 sites are malicious",
    ),
    (
        (14, 3),
        {"guarantee": robfcp.PACGuarantee(2)},
        "is guaranteed with 95% confidence even if any 2 of",
    ),
    (
        (14, 3),
        {"guarantee": robfcp.MarginalGuarantee(max_malicious_samples=200)},
        "at most 200 samples together are malicious",
    ),
    (
        (8, 0),
        {"guarantee": robfcp.MarginalGuarantee(0)},
        "guaranteed if all sites are benign; no site flagged",
    ),
    (
        (24, 0),
        {"defense": Consensus(max_malicious=0)},
        "either at least one of the 24 sites lies or",
    ),
    ((24, 0), {}, "The target itself is not certified."),
    ((8, 0), {"coverage": 0.99999}, "every prediction set contains all labels"),
    ((1, 0), {}, "from the only site"),
]


@pytest.mark.parametrize(("counts", "options", "expected"), HEADLINES)
def test_the_headline_states_the_certificate(counts, options, expected):
    calibration = robfcp.calibrate(make_federation(*counts), **options)
    data = page_of(calibration)
    headline = data["headline"]
    level = data["levels"][0]
    assert expected in headline["claim"] + headline["certificate"]
    is_trivial = "all labels" in expected
    assert level["threshold"] == (None if is_trivial else calibration.threshold)
    certificates = calibration.certificates.items()
    assert level["certificate_points"] == [
        [max_malicious, point.lower, point.upper] for max_malicious, point in certificates
    ]


THRESHOLD_ANSWERS = [
    (
        {},
        "the clipped vote of the included sites, never below FCP's threshold on them; here ",
        "estimated",
    ),
    ({"defense": Consensus(n_malicious=2)}, "the clipped vote of", "2, given before the round"),
    (
        {"defense": "rob-fcp"},
        "FCP's, on the reports of the included sites",
        "estimated from the reports",
    ),
    (
        {"guarantee": robfcp.MarginalGuarantee(2)},
        "the guarantee's",
        "2, given before the round",
    ),
    ({"defense": CustomDefense()}, "that of the given defense", "estimated from the reports"),
    (
        {"by": "class"},
        "FCP's, on the reports of the included sites, for each class",
        "estimated",
    ),
]


@pytest.mark.parametrize(("options", "threshold_answer", "origin"), THRESHOLD_ANSWERS)
def test_an_auditor_reads_the_rule_of_the_threshold_and_the_origin_of_the_number(
    options, threshold_answer, origin
):
    reports = make_federation()
    if "by" in options:
        reports = reports_by_class([outputs(k, 150) for k in range(8)])
    calibration = robfcp.calibrate(reports, **options)
    answers = dict(page_of(calibration)["auditor"])
    assert answers["threshold"].startswith(threshold_answer)
    assert origin in answers["number of malicious sites"]
    assert answers["certified"] == calibration.statement
    sensitivity = answers["what would change it"]
    assert ("nothing is guaranteed" in sensitivity) == calibration.is_guaranteed
    assert ("fewer than ten" in sensitivity) == ("by" in options)


def test_an_auditor_reads_that_trusted_data_bound_the_threshold():
    """Of private reports, which have no vote."""
    federation = make_private_federation()
    scores = np.linspace(0, 1, 200)
    trusted_report = Report.from_scores("server", scores, binning=federation.binning)
    calibration = robfcp.calibrate(federation, trusted_report=trusted_report)
    answer = auditor_questions(calibration, "")["threshold"]
    assert re.match("FCP's.*; kept within the bounds of the server's trusted data", answer)


def calibrate_attacked(malicious_score, by=None):
    """Return a calibration of twenty clients by class, and their outputs.

    The first five report a single score only, unless it is None.
    """
    client_outputs = [outputs(k, 150) for k in range(20)]
    reports = reports_by_class(client_outputs, include_all_labels=True)
    malicious_outputs = client_outputs[:5] if malicious_score is not None else []
    for k, (_, labels) in enumerate(malicious_outputs):
        scores = np.full(150, malicious_score)
        reports[k] = Report.from_scores(
            f"site-{k:02d}", scores, score=LAC, labels=labels, classes=3
        )
    return robfcp.calibrate(reports, by=by), client_outputs


@pytest.mark.parametrize("by", [None, "class"])
def test_impact_and_classes_are_those_of_benign_clients_and_excluded_samples_are_apart(by):
    calibration, client_outputs = calibrate_attacked(0.0, by)
    assert len(calibration.flagged_clients) == 5
    undefended = robfcp.calibrate(calibration.federation, by=by, defense="none")

    labels = np.concatenate([client_labels for _, client_labels in client_outputs])
    probabilities = np.concatenate([p for p, _ in client_outputs])
    is_benign = np.repeat(np.arange(20) > 4, 150)
    rows = np.arange(len(labels))
    is_covered = calibration.predict_set(probabilities)[rows, labels]
    is_covered_undefended = undefended.predict_set(probabilities)[rows, labels]
    coverage = is_covered[is_benign].mean()
    n_more = 1000 * (coverage - is_covered_undefended[is_benign].mean())
    assert n_more > 30

    impact = impact_text(calibration)
    n_stated = int(impact["sentence"].split("about ")[1].split()[0])
    assert n_stated == pytest.approx(n_more, abs=1.01)
    assert "in class " in impact["sentence"]
    assert "estimated from the reports of the included sites" in impact["details"]

    data = page_of(calibration)
    stated_coverage = f"the 15 included sites reported, {100 * coverage:.4g}%"
    assert stated_coverage in data["headline"]["coverage"]
    strata = data["strata"]
    for row in strata["rows"]:
        in_class = labels == int(row["name"])
        assert row["n_samples"] == (in_class & is_benign).sum()
        assert row["n_excluded_samples"] == (in_class & ~is_benign).sum()
        class_coverage = is_covered[in_class & is_benign].mean()
        assert row["coverage"] == pytest.approx(class_coverage, abs=1e-5)
        assert row["n_clients"] == 15
        assert (row["certified"] is None) == (by is None)
    clients_shown = {client["name"] for client in strata["clients"]}
    assert not clients_shown & set(calibration.flagged_clients)


def test_sets_that_an_attack_inflates_are_an_impact_and_without_impact_there_is_no_sentence():
    larger_sets = "a set would hold about 3.00 labels instead of 1."
    assert larger_sets in impact_text(calibrate_attacked(1.0)[0])["sentence"]
    by_class_impact = impact_text(calibrate_attacked(0.97, "class")[0])
    assert "wider than needed" in by_class_impact["sentence"]
    assert impact_text(calibrate_attacked(None)[0]) == {"sentence": "", "details": ""}


def test_the_impact_on_a_risk_is_its_mean_loss():
    """Four of fourteen clients report that they never lose."""
    lambdas = np.linspace(0, 1, 101)
    rng = np.random.default_rng(0)
    reports = []
    for k in range(14):
        losses = (rng.random((60, 1)) > lambdas) * (k > 3) * 1.0
        reports.append(Report.from_losses(f"s{k}", losses, lambdas, risk="r"))
    impact = impact_text(robfcp.calibrate(reports, risk_level=0.1))
    assert "the mean r would be about 1" in impact["sentence"]


def test_large_federations_get_a_bounded_page():
    counts = np.random.default_rng(0).multinomial(100, np.full(50, 0.02), size=300)
    calibration = robfcp.calibrate(Federation.from_counts(counts), defense=RobFCP(n_malicious=70))
    assert len(render_html(calibration)) < 700_000

    too_many = Federation.from_counts(np.ones((20_001, 2), int))
    calibration = robfcp.calibrate(too_many, defense="none")
    with pytest.raises(robfcp.RobfcpError, match=r"20001 sites are more than the 20000"):
        render_html(calibration)


def test_the_same_page_is_written_whole_by_python_calibrate_and_show(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = save_reports(tmp_path / "in", make_federation(8, 0))
    command_output("calibrate", *files, "-o", "c.json", "--html", "a.html", "--max-malicious", "1")
    command_output("show", "c.json", "--html", "b.html")
    command_output("show", "c.json", "--date", "", "--html", "d.html")
    write_html(Calibration.load("c.json", record=True), "e.html")
    pages = {name: (tmp_path / f"{name}.html").read_bytes() for name in "abde"}
    assert pages["a"] == pages["b"]
    assert pages["d"] == pages["e"]
    assert pages["e"].rstrip().endswith(b"</html>")


def calibrate_coarsened_and_exact(n_clients=12, n_samples=80):
    """Return a calibration of default reports, and the same with exact counts."""
    client_outputs = [outputs(k, n_samples) for k in range(n_clients)]
    coarsened = reports_by_class(client_outputs, min_cell_count=5, stratify_by_class=None)
    exact = reports_by_class(client_outputs, min_cell_count=1, stratify_by_class=False)
    return robfcp.calibrate(coarsened, defense="none"), robfcp.calibrate(exact, defense="none")


def test_curves_of_coarsened_reports_are_at_midpoints_of_their_bounds():
    """Neither above nor below those of the exact counts, on average over edges and clients."""
    coarsened, exact = calibrate_coarsened_and_exact()
    data = page_of(coarsened)
    federation = coarsened.federation
    bins = np.array(data["plot_bins"])
    counts = np.array(data["counts"]).reshape(federation.n_clients, -1)
    assert counts.dtype.kind == "i"
    assert (counts.sum(axis=1) == data["clients"]["n_samples"]).all()
    midpoints = federation.at_midpoints(lambda bounded: bounded.cumulative_counts(bins))
    assert np.abs(np.cumsum(counts, axis=1) - midpoints).max() <= 0.5

    true_counts = exact.federation.cumulative_counts(bins)
    errors = np.cumsum(counts, axis=1) - true_counts
    assert abs(errors.mean()) < 0.4  # samples of 80
    errors_of_reported = federation.cumulative_counts(bins) - true_counts
    assert errors_of_reported.mean() < -1


def test_a_page_of_class_totals_notes_how_to_get_results_by_class():
    coarsened, exact = calibrate_coarsened_and_exact()
    data = page_of(coarsened)
    assert data["strata"] is None
    assert "no counts by class" in data["notes"][-1]
    assert "stratify_by_class=True" in data["notes"][-1]
    assert not any("no counts by class" in note for note in page_of(exact)["notes"])
