"""The page says what the library computed, to anybody, whatever clients call themselves."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from effort import cases, thorough
from makers import beta_scores, embedded, reports_of, said, saved

import robfcp
from robfcp import Calibration, Consensus, Federation, Grid, Report, RobFCP
from robfcp.defence import Assessment, NoDefence
from robfcp.federation import Fault
from robfcp.page import render, safe_json, write_page
from robfcp.page.data import view_edges
from robfcp.page.sentences import headline
from robfcp.privacy.budget import Privacy

HOSTILE = "</script><script>alert(1)</script>\u2028&"


@cache
def federation(n_clients: int = 24, attackers: int = 3) -> Federation:
    """Clients of unequal sizes, the first ones reporting zeros only."""
    scores = beta_scores(0, n_clients, 120, attackers)
    parts = [part[: 40 + 7 * k % 80] for k, part in enumerate(scores)]
    return Federation.from_reports(reports_of(parts, score=None, grid=Grid.default()))


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    """The one that most tests look at, and may not change."""
    return robfcp.calibrate(federation(), defence=robfcp.Consensus(at_most=3))


@pytest.fixture(scope="module")
def page(calibration: Calibration) -> str:
    return render(calibration)


SETTINGS: list[dict[str, Any]] = [
    {"defence": Consensus(exactly=3)},
    {"defence": RobFCP(2, "kolmogorov", bins=20)},
    {"promise": robfcp.Pac(2), "confidence": 0.9},
    {"promise": robfcp.Marginal(samples=200)},
    {"defence": Consensus(at_most=3)},
    {"defence": NoDefence()},
    {"promise": robfcp.Pac(2, alike=0.3)},
]


TWO = {"promise": robfcp.Marginal(2)}


MOST = {"coverage": 0.99999}


@pytest.mark.effort
@pytest.mark.parametrize("settings", thorough(SETTINGS, *SETTINGS[:4]), ids=str)
def test_every_what_if_setting_is_what_calibrate_would_have_said(settings: dict[str, Any]) -> None:
    check_tables(federation(14), settings)


def test_what_if_of_private_reports_allows_for_their_noise() -> None:
    rng, grid, privacy = np.random.default_rng(0), Grid.uniform(40), Privacy(2.0)
    counts = rng.multinomial(400, np.full(40, 1 / 40), size=12)
    counts[:2] = np.eye(40, dtype=np.int64)[0] * 400
    more, less = rng.geometric(1 - np.exp(-1 / privacy.scale), (2, *counts.shape))
    noisy = Federation.from_counts(counts + more - less, grid, privacy=privacy, sizes=[400] * 12)
    settings = {"defence": Consensus(at_most=2), "promise": robfcp.Pac(2)}
    check_tables(noisy, settings)
    data = embedded(render(robfcp.calibrate(noisy, **settings)))
    assert privacy.statement in dict(data["audit"])["privacy"]


def check_tables(reports: Federation, settings: dict[str, Any]) -> None:
    """Random entries of every table against a calibration made for them."""
    what_if = embedded(render(robfcp.calibrate(reports, **settings)))["whatif"]
    assert what_if["frozen"] == ""
    assert len(what_if["excluded"]) == len(what_if["liars"]) == len(what_if["proved"]["lower"])
    edges, rng = (
        [reports.threshold_at(k) for k in range(reports.grid.n_bins)],
        np.random.default_rng(1),
    )
    rule, promise = settings.get("defence", Consensus()), settings.get("promise")
    number = {"consensus": "at_most", "rob-fcp": "liars"}.get(rule.name)
    number = "exactly" if getattr(rule, "exactly", None) else number
    for mode, table in what_if["tables"].items():
        for _ in range(cases(3)):
            row, column = rng.integers([len(table["liars"]), len(table["levels"])])
            m = table["liars"][row]
            changed = {**settings, "defence": replace(rule, **({number: m} if number else {}))}
            if mode == "stated" and promise.liars is not None:
                changed["promise"] = msgspec.structs.replace(promise, liars=m)
            elif mode != "stated":
                changed["promise"] = robfcp.Marginal(m) if mode == "marginal" else None
            wanted = robfcp.calibrate(reports, table["levels"][column], **changed)
            index = table["index"][row][column]
            assert (np.inf if index < 0 else edges[index]) == wanted.threshold
            certificate = wanted.curve[m] if mode == "defence" else wanted.certificate
            for end in ("lower", "upper"):
                assert table[end][row][column] == pytest.approx(getattr(certificate, end), abs=1e-8)
            excluded = what_if["excluded"][what_if["liars"].index(m)]
            assert tuple(reports.ids[k] for k in excluded) == wanted.flagged


def test_unknown_defence_keeps_the_recorded_exclusions() -> None:
    class Own:
        name = "own"

        def __call__(self, federation: Federation) -> Assessment:
            trusted = np.arange(federation.n_clients) != 5
            return Assessment(np.ones(federation.n_clients), trusted, {federation.ids[5]: "fifth"})

    what_if = embedded(render(robfcp.calibrate(federation(), defence=Own())))["whatif"]
    assert all(out == [5] for out in what_if["excluded"])
    assert "custom:own" in what_if["frozen"]


def test_hostile_names_cannot_leave_the_data() -> None:
    fault = Fault(HOSTILE + "2", "counts", f"{HOSTILE}: broken")
    ids = (HOSTILE, *federation().ids[1:])
    hostile = replace(federation(), ids=ids, faulty=(fault,), missing=(HOSTILE + "3",))
    page = render(robfcp.calibrate(hostile, defence=robfcp.Consensus(at_most=3)))
    assert "alert(1)" in page
    assert HOSTILE not in page
    assert page.count("<script") == 2
    data = embedded(page)
    assert (data["clients"]["id"][0], data["faulty"][0]["client"]) == (HOSTILE, fault.client)
    value = {"<&>": ["\u2028\u2029", 1.5, None, HOSTILE]}
    assert json.loads(safe_json(value)) == value
    assert not set("<>&\u2028\u2029") & set(safe_json(value))


def test_page_is_self_contained_and_its_policy_allows_only_itself(page: str) -> None:
    assert not re.search(r"""(src|href|action)\s*=\s*["']?(https?:|//)""", page)
    assert "innerHTML" not in page.split("uPlot=", 1)[1].split('"use strict";\n', 1)[1]
    for kind in ("script", "style"):
        (text,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert "unsafe" not in page.split("</head>")[0].split("<style>")[0]


def test_the_data_hold_all_counts_and_what_an_auditor_needs(calibration, page) -> None:
    data, grid = embedded(page), calibration.federation.grid
    merged = calibration.federation.merged(np.array(data["view"]))
    assert data["counts"] == merged.ravel().tolist()
    assert (merged.sum(axis=1) == data["clients"]["size"]).all()
    assert data["view"][-1] == grid.n_bins - 1
    rows = dict(data["audit"])
    assert {grid.digest, hashlib.sha256(calibration.to_json()).hexdigest()} <= set(rows.values())
    assert rows["defence"] == "consensus"
    assert robfcp.__version__ in rows["made with"]


def test_view_of_an_open_ended_grid_stays_where_the_scores_are() -> None:
    grid = Grid.open_ended()
    scores = np.random.default_rng(0).normal(0, 0.01, 5000)
    counts = np.bincount(grid.index(scores), minlength=grid.n_bins)
    assert (np.abs(grid.upper[view_edges(counts, grid)]) < 0.05).sum() > 80
    beyond = 7 * np.eye(grid.n_bins, dtype=np.int64)[-1]
    assert view_edges(beyond, grid)[-1] == grid.n_bins - 1


HEADLINES = [
    ((24, 3), TWO, "90% coverage is guaranteed even if any 2 of 24 sites lie"),
    ((24, 3), {"promise": robfcp.Pac(2)}, "is guaranteed with 95% confidence even if any 2 of"),
    ((24, 3), {"promise": robfcp.Marginal(samples=200)}, "at most 200 samples together lie"),
    ((8, 0), {"promise": robfcp.Marginal(0)}, "guaranteed if nobody lies; no site flagged"),
    ((24, 3), {"defence": Consensus(at_most=0)}, "either at least one of the 24 sites lies or"),
    ((24, 3), MOST, "every prediction set is full"),
    ((8, 0), TWO | MOST, "every prediction set is full"),
]


@pytest.mark.parametrize(("sites", "options", "words"), HEADLINES)
def test_the_headline_says_what_is_proved(sites, options, words) -> None:
    calibration = robfcp.calibrate(federation(*sites), **options)
    top = headline(calibration, calibration.levels[0])
    assert words in top["claim"] + top["promise"]
    level = embedded(render(calibration))["levels"][0]
    assert level["threshold"] == (calibration.threshold if "full" not in words else None)
    assert [m for m, _, _ in level["curve"]] == list(range(len(calibration.curve)))
    assert level["curve"][3][1:] == [calibration.curve[3].lower, calibration.curve[3].upper]


def test_one_client_and_several_levels_have_a_page() -> None:
    report = Report.from_scores("only", np.linspace(0, 1, 99), Grid.default())
    data = embedded(render(robfcp.calibrate([report], [0.8, 0.9])))
    assert [level["value"] for level in data["levels"]] == [0.8, 0.9]
    assert data["whatif"]["liars"] == [0]
    assert data["headline"]["claim"].endswith("from the one site")
    assert data["message"]["first"] == "The one site was used; nothing in its report looks wrong."


def test_large_federations_get_a_bounded_page() -> None:
    counts = np.random.default_rng(0).multinomial(100, np.full(50, 0.02), size=300)
    calibration = robfcp.calibrate(Federation.from_counts(counts), defence=robfcp.RobFCP(liars=70))
    page = render(calibration)
    assert len(page) < 700_000
    liars = embedded(page)["whatif"]["liars"]
    assert 70 in liars
    assert len(liars) < 60
    many = Federation.from_counts(np.ones((20_001, 2), dtype=np.int64))
    with pytest.raises(robfcp.RobfcpError, match=r"20001 sites are more than the 20000"):
        render(robfcp.calibrate(many, defence="none"))


def test_the_same_page_is_written_whole_by_python_calibrate_and_show(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = saved(tmp_path / "in", federation(8, 0))
    said("calibrate", *files, "-o", "c.json", "--html", "a.html", "--liars", "1")
    told = json.loads(said("show", "c.json", "--html", "b.html", "--json"))
    said("show", "c.json", "--date", "", "--html", "d.html")
    write_page(Calibration.load("c.json"), "e.html")
    pages = {name: (tmp_path / f"{name}.html").read_bytes() for name in "abde"}
    assert told["bytes"] == len(pages["b"])
    assert pages["a"] == pages["b"]
    assert pages["d"] == pages["e"]
    assert pages["e"].rstrip().endswith(b"</html>")
