"""The page says what the library computed, to anybody, whatever clients call themselves."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from effort import cases, thorough
from typer.testing import CliRunner

import robfcp
from robfcp import Calibration, Consensus, Fault, Federation, Grid, NoDefence, Report, RobFCP
from robfcp.cli import app
from robfcp.defence import Assessment
from robfcp.guarantees import tolerance_statement
from robfcp.page import render, safe_json, write_page
from robfcp.page.data import varints, view_edges
from robfcp.page.sentences import headline
from robfcp.privacy.budget import Privacy

HOSTILE = "</script><script>alert(1)</script>\u2028&"


@cache
def federation(n_clients: int = 24, attackers: int = 3, seed: int = 0) -> Federation:
    """Clients of unequal sizes, the first ones reporting zeros only."""
    rng = np.random.default_rng(seed)
    reports = []
    for k in range(n_clients):
        scores = rng.beta(0.7, 2, int(rng.integers(40, 120)))
        scores = np.zeros_like(scores) if k < attackers else scores
        reports.append(Report.from_scores(f"site-{k:03d}", scores, Grid.default()))
    return Federation.from_reports(reports)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    """The one that most tests look at, and may not change."""
    return robfcp.calibrate(federation(), malicious=3)


@pytest.fixture(scope="module")
def page(calibration: Calibration) -> str:
    """Its page."""
    return render(calibration)


def embedded(page: str) -> dict[str, Any]:
    """The data inside the page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found.group(1))


SETTINGS: list[dict[str, Any]] = [
    {"malicious": 3},
    {"malicious": 3, "exclude": "exactly"},
    {"defence": "rob-fcp", "malicious": 2},
    {"defence": "none", "malicious": 2},
    {"malicious": 2, "exchangeability": "full", "certificate_confidence": 0.9},
    {"malicious": 3, "heterogeneity": 0.3},
    {"malicious": 2, "guarantee": "marginal"},
    {"malicious": 2, "guarantee": "marginal", "heterogeneity": 0.3},
    {"malicious": 2, "guarantee": "pac"},
    {"malicious": 2, "guarantee": "pac-homogeneous"},
    {"guarantee": "marginal", "size_budget": 200},
]
QUICK_SETTINGS = [SETTINGS[k] for k in (0, 4, 8, 10)]


@pytest.mark.effort
@pytest.mark.parametrize("settings", thorough(SETTINGS, *QUICK_SETTINGS), ids=str)
def test_every_what_if_setting_is_what_calibrate_would_have_said(settings: dict[str, Any]) -> None:
    check_tables(federation(14), settings)


@pytest.mark.effort
@pytest.mark.parametrize("guarantee", thorough([None, "pac"], "pac"))
def test_what_if_of_private_reports_allows_for_their_noise(guarantee: Any) -> None:
    rng = np.random.default_rng(0)
    grid, privacy = Grid.uniform(40), Privacy(2.0)
    counts = rng.multinomial(400, np.full(40, 1 / 40), size=12)
    counts[:2] = np.eye(40, dtype=np.int64)[0] * 400
    stay = np.exp(-1 / privacy.scale)
    noise = rng.geometric(1 - stay, counts.shape) - rng.geometric(1 - stay, counts.shape)
    noisy = Federation.from_counts(counts + noise, grid, privacy=privacy, sizes=[400] * 12)
    settings = {"malicious": 2, "guarantee": guarantee}
    check_tables(noisy, settings)
    data = embedded(render(robfcp.calibrate(noisy, **settings)))
    assert privacy.statement in dict(data["audit"])["privacy"]


def check_tables(reports: Federation, settings: dict[str, Any]) -> None:
    """Random entries of every table against a calibration made for them."""
    calibration = robfcp.calibrate(reports, **settings)
    what_if = embedded(render(calibration))["whatif"]
    edges = [reports.threshold_at(k) for k in range(reports.grid.n_bins)]
    rng = np.random.default_rng(1)
    for mode, table in what_if["tables"].items():
        changed = {**settings, "guarantee": settings.get("guarantee")}
        if mode == "defence":
            changed |= {"guarantee": None, "size_budget": None}
        elif mode == "marginal":
            changed |= {"guarantee": "marginal", "heterogeneity": None, "size_budget": None}
        for _ in range(cases(3)):
            row = int(rng.integers(len(table["liars"])))
            column = int(rng.integers(len(table["levels"])))
            m = table["liars"][row]
            if changed.get("size_budget") is None:
                changed["malicious"] = m
            wanted = robfcp.calibrate(reports, **changed, confidence_level=table["levels"][column])
            index = table["index"][row][column]
            assert (np.inf if index < 0 else edges[index]) == wanted.threshold
            survived = table["tolerance"][row][column]
            assert (None if survived < 0 else survived) == wanted.tolerance
            certificate = wanted.certificate
            assert table["lower"][row][column] == pytest.approx(certificate.lower, abs=1e-8)
            assert table["upper"][row][column] == pytest.approx(certificate.upper, abs=1e-8)
            excluded = what_if["excluded"][what_if["liars"].index(m)]
            assert tuple(reports.ids[k] for k in excluded) == wanted.flagged


@pytest.mark.parametrize("exchangeability", thorough(["partial", "full", "published"], "full"))
def test_the_guaranteed_what_if_keeps_the_recorded_rank(exchangeability: Any) -> None:
    reports = federation(9, 1)
    settings = {"malicious": 1, "defence": "none", "exchangeability": exchangeability}
    what_if = embedded(render(robfcp.calibrate(reports, **settings)))["whatif"]
    table = what_if["tables"]["marginal"]
    edges = [*reports.grid.upper, np.inf]
    for row, m in enumerate(table["liars"]):
        changed = {**settings, "malicious": m, "guarantee": "marginal"}
        found = robfcp.calibrate(reports, confidence_level=table["levels"], **changed).threshold
        assert [edges[index] for index in table["index"][row]] == list(found)


def test_recorded_outcome_is_among_the_settings() -> None:
    calibration = robfcp.calibrate(federation(), malicious=3, confidence_level="0.873")
    data = embedded(render(calibration))
    table = data["whatif"]["tables"]["defence"]
    index = table["index"][table["liars"].index(3)][table["levels"].index(0.873)]
    assert calibration.federation.grid.upper[index] == calibration.threshold
    excluded = data["whatif"]["excluded"][data["whatif"]["liars"].index(3)]
    assert tuple(calibration.federation.ids[k] for k in excluded) == calibration.flagged


def test_every_offered_number_of_liars_has_its_exclusions_and_what_is_proved() -> None:
    counts = np.random.default_rng(0).multinomial(60, np.full(20, 0.05), size=150)
    calibration = robfcp.calibrate(
        Federation.from_counts(counts), malicious=11, guarantee="pac", defence="none"
    )
    what_if = embedded(render(calibration))["whatif"]
    for table in what_if["tables"].values():
        assert set(table["liars"]) <= set(what_if["liars"])
        assert 11 in table["liars"]
    assert len(what_if["excluded"]) == len(what_if["liars"]) == len(what_if["proved"]["lower"])


@pytest.mark.parametrize(
    "defence",
    [
        Consensus(exclude="exactly", false_alarm=0.3),
        RobFCP(distance="l1"),
        RobFCP("kolmogorov", bins=20),
        NoDefence(),
    ],
    ids=str,
)
def test_what_if_runs_the_defence_that_was_recorded(defence, tmp_path) -> None:
    reports = federation(14)
    calibration = robfcp.calibrate(reports, defence=defence, malicious=3)
    calibration.save(tmp_path / "c.json")
    what_if = embedded(render(Calibration.load(tmp_path / "c.json")))["whatif"]
    assert what_if["frozen"] == ""
    for m, out in zip(what_if["liars"], what_if["excluded"], strict=True):
        assert out == np.flatnonzero(~defence(reports, m).trusted).tolist()


def test_unknown_defence_keeps_the_recorded_exclusions() -> None:
    class Own:
        name = "own"

        def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
            trusted = np.arange(federation.n_clients) != 5
            return Assessment(np.ones(federation.n_clients), trusted, {federation.ids[5]: "fifth"})

    calibration = robfcp.calibrate(federation(), defence=Own(), malicious=1)
    what_if = embedded(render(calibration))["whatif"]
    assert all(out == [5] for out in what_if["excluded"])
    assert "custom:own" in what_if["frozen"]
    assert calibration.settings.defence == "custom:own"


def test_hostile_names_cannot_leave_the_data() -> None:
    reports = federation()
    ids = (HOSTILE, *reports.ids[1:])
    fault = Fault(HOSTILE + "2", "counts", f"{HOSTILE}: broken")
    hostile = replace(reports, ids=ids, faulty=(fault,), missing=(HOSTILE + "3",))
    page = render(robfcp.calibrate(hostile, malicious=3))
    assert "alert(1)" in page
    assert HOSTILE not in page
    assert page.count("<script") == 2
    data = embedded(page)
    assert data["clients"]["id"][0] == HOSTILE
    assert data["faulty"][0]["client"] == fault.client


def test_page_is_self_contained_and_its_policy_allows_only_itself(page: str) -> None:
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(https?:|//)""", page)
    assert "innerHTML" not in page.split("uPlot=", 1)[1].split('"use strict";\n', 1)[1]
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert script
    assert style
    for text in (script.group(1), style.group(1)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert "unsafe" not in page.split("</head>")[0].split("<style>")[0]


def test_same_calibration_gives_the_same_page(calibration: Calibration, page: str) -> None:
    assert page == render(
        Calibration.from_json(calibration.to_json(), evidence=calibration.evidence)
    )


def test_safe_json_reads_back_as_it_was() -> None:
    value = {"<&>": ["\u2028\u2029", 1.5, None, HOSTILE]}
    text = safe_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)


def test_varints_read_back_as_they_were() -> None:
    values = np.array([0, 1, 127, -128, 300, -(2**21), 2**40, -5])
    found, value, shift = [], 0, 0
    for byte in varints(values):
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            found.append(-(value + 1) // 2 if value % 2 else value // 2)
            value, shift = 0, 0
    assert found == values.tolist()


def test_counts_shown_add_up_to_the_sizes(calibration: Calibration, page: str) -> None:
    data = embedded(page)
    merged = calibration.federation.merged(np.array(data["view"]))
    assert base64.b64decode(data["counts"]) == varints(merged)
    assert (merged.sum(axis=1) == data["clients"]["size"]).all()
    assert data["view"][-1] == calibration.federation.grid.n_bins - 1


def test_view_of_an_open_ended_grid_stays_where_the_scores_are() -> None:
    grid = Grid.open_ended()
    scores = np.random.default_rng(0).normal(0, 0.01, 5000)
    counts = np.bincount(grid.index(scores), minlength=grid.n_bins)
    view = view_edges(counts, grid)
    inside = np.abs(grid.upper[view]) < 0.05
    assert inside.sum() > 80
    everything_beyond = np.zeros(grid.n_bins, dtype=np.int64)
    everything_beyond[-1] = 7
    assert view_edges(everything_beyond, grid)[-1] == grid.n_bins - 1


def test_headline_states_the_guarantee_in_words() -> None:
    calibration = robfcp.calibrate(federation(), malicious=2, guarantee="marginal")
    top = headline(calibration, calibration.levels[0])
    assert top.claim.startswith("90% coverage is guaranteed even if any 2 of 24 sites lie")
    pac = robfcp.calibrate(federation(), malicious=2, guarantee="pac")
    claim = headline(pac, pac.levels[0]).claim
    assert claim.startswith("90% coverage is guaranteed with 95% confidence even if any 2 of 24")
    budget = robfcp.calibrate(federation(), guarantee="marginal", size_budget=200)
    assert "at most 200 samples together lie" in headline(budget, budget.levels[0]).claim


def test_the_tolerance_of_a_guarantee_has_one_wording_everywhere() -> None:
    calibration = robfcp.calibrate(federation(), malicious=3, guarantee="marginal")
    (level,) = calibration.levels
    words = tolerance_statement(level.tolerance, level.confidence_level)
    promise = headline(calibration, level).promise
    assert promise == words[0].upper() + words[1:] + "."
    assert "is at most 10%" in promise


def test_headline_for_honest_sites_only_says_so() -> None:
    calibration = robfcp.calibrate(federation(8, 0), malicious=0, guarantee="marginal")
    claim = headline(calibration, calibration.levels[0]).claim
    assert claim.startswith("90% coverage is guaranteed if nobody lies; no site was flagged")


def test_the_headline_says_what_is_proved_and_the_page_shows_it_for_every_number() -> None:
    calibration = robfcp.calibrate(federation(), malicious=0, exchangeability="full")
    top = headline(calibration, calibration.levels[0])
    assert top.promise.startswith(
        "With 95% confidence, either at least one of the 24 sites lies or"
    )
    curve = embedded(render(calibration))["levels"][0]["curve"]
    assert [m for m, _, _ in curve] == list(range(12))
    assert curve[3][1:] == [calibration.certificates[3].lower, calibration.certificates[3].upper]


@pytest.mark.parametrize("guarantee", [None, "marginal"])
def test_infinite_threshold_is_called_full_sets(guarantee: Any) -> None:
    grid = Grid.uniform(10)
    reports = [Report.from_scores(f"s{k}", np.array([0.2, 0.1 * k]), grid) for k in range(3)]
    calibration = robfcp.calibrate(reports, defence="rob-fcp", malicious=1, guarantee=guarantee)
    assert calibration.threshold == np.inf
    assert "every prediction set is full" in headline(calibration, calibration.levels[0]).claim
    assert embedded(render(calibration))["levels"][0]["threshold"] is None


def test_one_client_and_several_levels_have_a_page() -> None:
    report = Report.from_scores("only", np.linspace(0, 1, 99), Grid.default())
    calibration = robfcp.calibrate([report], confidence_level=[0.8, 0.9])
    data = embedded(render(calibration))
    assert [level["level"] for level in data["levels"]] == ["80%", "90%"]
    assert data["whatif"]["liars"] == [0]
    assert data["headline"]["claim"].endswith("from the one site")
    assert data["message"]["first"] == "The one site was used; nothing in its report looks wrong."


def test_audit_lists_digests_versions_and_parameters() -> None:
    calibration = robfcp.calibrate(federation(), malicious=3)
    rows = dict(embedded(render(calibration))["audit"])
    assert calibration.federation.grid.digest in rows.values()
    assert hashlib.sha256(calibration.to_json()).hexdigest() in rows.values()
    assert rows["defence"] == "consensus"
    assert robfcp.__version__ in rows["made with"]


def test_large_federations_get_a_bounded_page() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(100, np.full(50, 0.02), size=300)
    calibration = robfcp.calibrate(Federation.from_counts(counts), defence="rob-fcp", malicious=70)
    page = render(calibration)
    assert len(page) < 700_000
    liars = embedded(page)["whatif"]["liars"]
    assert 70 in liars
    assert len(liars) < 60


def test_more_clients_than_a_page_can_show_are_refused() -> None:
    counts = np.ones((20_001, 2), dtype=np.int64)
    calibration = robfcp.calibrate(Federation.from_counts(counts), defence="none", malicious=0)
    with pytest.raises(robfcp.RobfcpError, match=r"20001 sites are more than the 20000"):
        render(calibration)


def test_report_command_writes_the_page_calibrate_writes_too(tmp_path: Any) -> None:
    for report in federation(8, 0):
        report.save(tmp_path / f"{report.client}.json")
    files = [str(path) for path in sorted(tmp_path.glob("site-*.json"))]
    both = ["-o", str(tmp_path / "c.json"), "--html", str(tmp_path / "a.html")]
    result = CliRunner().invoke(app, ["calibrate", *files, "--malicious", "1", *both])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(
        app, ["report", str(tmp_path / "c.json"), "-o", str(tmp_path / "b.html"), "--json"]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["bytes"] == (tmp_path / "b.html").stat().st_size
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_pages_are_written_whole(tmp_path: Any) -> None:
    write_page(robfcp.calibrate(federation(6, 0), malicious=0), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().rstrip().endswith("</html>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
