"""The page in a real browser: what is shown is what the library computes."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robfcp
from robfcp import LAC, Calibration, Federation, Grid, Report
from robfcp.federation import Fault
from robfcp.lab import outputs, partitions
from robfcp.lab.faults import stroke_story
from robfcp.page import About

pytestmark = pytest.mark.browser
Show = Callable[..., Any]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
IMAGES = Path(__file__).parents[2] / "docs" / "images"


def hospitals(n_sites: int = 40) -> Federation:
    """Pathology sites with a real model's outputs: a few lie, one is broken, one is silent."""
    shipped = outputs.load("pathmnist")
    parts = partitions.iid(len(shipped.labels), n_sites, 0)
    score, grid, rng = LAC(), Grid.default(), np.random.default_rng(0)
    reports, sizes = [], {}
    for k, rows in enumerate(parts):
        scores = score(shipped.probabilities[rows], shipped.labels[rows])
        if k in (4, 11, 17, 30, 36):
            scores = np.zeros_like(scores)
        if k in (8, 23):
            scores = np.clip(scores + rng.normal(0, 0.3, len(scores)), 0, 1)
        report = Report.from_scores(f"hospital-{k + 1:02d}", scores, grid, score=score, round="7")
        sizes[report.client] = report.n_samples
        reports.append(report)
    sizes["hospital-26"] += 1
    sizes["hospital-41"] = 90
    return Federation.from_reports(reports, sizes=sizes)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return robfcp.calibrate(hospitals())


@pytest.fixture(scope="module")
def stroke() -> Calibration:
    """Real hospitals with faults as they happen, by class."""
    return robfcp.calibrate(stroke_story(seed=1).reports)


def exported(opened: Any, path: Path) -> list[dict[str, str]]:
    """The rows of the table as a spreadsheet reads them."""
    with opened.page.expect_download() as download:
        opened.page.locator("#export").click()
    download.value.save_as(path)
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def shown_numbers(opened: Any) -> tuple[float, int, float, float]:
    """Threshold, excluded and certificate as the page holds them."""
    threshold = opened.value("out-threshold")
    lower, upper = opened.value("out-certificate").split()
    return (
        float("inf") if threshold == "Infinity" else float(threshold),
        int(opened.value("out-excluded")),
        float(lower),
        float(upper),
    )


def test_page_opens_quietly_and_says_the_headline(show: Show, calibration: Calibration) -> None:
    opened = show(calibration)
    assert f"{len(calibration.flagged)} of 39 sites were left out: " in opened.text("message")
    assert "(scores all equal): check that the file" in opened.text("advice")
    assert f"the {39 - len(calibration.flagged)} of 39 sites that were kept" in opened.text("claim")
    assert calibration.certificate.statement[1:] in opened.text("promise")  # "With", not "with"
    assert "1 refused as faulty, 1 missing" in opened.text("reports")
    assert opened.page.locator(".chart canvas").count() == 5
    assert "lie" in opened.text("assumptions")
    assert calibration.federation.grid.digest in opened.text("audit")
    assert opened.requests == [opened.page.url, "data:,"][: len(opened.requests)]


@pytest.mark.parametrize(
    ("mode", "positions"),
    [
        ("defence", [(0.9, 7), (0.9, 0), (0.99, 3), (0.55, 19), (0.8, 12)]),
        ("marginal", [(0.9, 7), (0.9, 0), (0.95, 5), (0.7, 12), (0.995, 9)]),
    ],
)
def test_sliders_show_what_the_library_computes(
    show: Show, calibration: Calibration, mode: str, positions: list[tuple[float, int]]
) -> None:
    opened = show(calibration)
    opened.page.locator(f"#modes [data-key={mode}]").click()
    table = opened.data()["whatif"]["tables"][mode]
    seen = set()
    for level, m in positions:
        opened.slide("level", table["levels"].index(level))
        opened.slide("liars", table["liars"].index(m))
        promise = robfcp.Marginal(liars=m) if mode == "marginal" else None
        rule = robfcp.Consensus(at_most=m)
        wanted = robfcp.calibrate(calibration.federation, level, defence=rule, promise=promise)
        threshold, excluded, lower, upper = shown_numbers(opened)
        assert threshold == wanted.threshold
        assert excluded == len(wanted.flagged)
        assert lower == pytest.approx(wanted.certificate.lower, abs=1e-8)  # type: ignore[union-attr]
        assert upper == pytest.approx(wanted.certificate.upper, abs=1e-8)  # type: ignore[union-attr]
        seen.add((threshold, excluded))
    assert len(seen) > 2
    opened.page.locator("#reset").click()
    assert shown_numbers(opened)[0] == calibration.threshold
    before = opened.text("level-value")
    opened.page.locator("#level").focus()
    opened.page.keyboard.press("ArrowRight")
    assert opened.text("level-value") != before


def test_click_on_a_flagged_client_shows_its_reason(show: Show, calibration: Calibration) -> None:
    opened = show(calibration)
    flagged = calibration.flagged[0]
    opened.page.locator("#verdicts [data-key=flagged]").click()
    assert opened.page.locator("#table tbody tr[data-client]").count() == len(calibration.flagged)
    opened.page.locator("#table tbody tr[data-client]", has_text=flagged).click()
    assert opened.text("client-title") == flagged
    assert opened.text("client-verdict") == "left out"
    assert opened.text("client-finding").startswith("All its scores are equal")
    assert not opened.page.locator("#client-reason").is_visible()
    opened.page.locator("#client-technical summary").click()
    assert opened.text("client-reason") == calibration.reasons[flagged]


def test_click_in_the_chart_chooses_the_client_there(show: Show, calibration: Calibration) -> None:
    opened = show(calibration)
    opened.page.locator("#clients-chart").scroll_into_view_if_needed()
    box = opened.page.locator("#clients-chart .u-over").bounding_box()
    names = set()
    for share in (0.05, 0.5):
        opened.page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        names.add(opened.text("client-title"))
        assert opened.text("client-verdict") == "used"
    opened.page.mouse.click(box["x"] + box["width"] - 6, box["y"] + box["height"] / 2)
    names.add(opened.text("client-title"))
    assert opened.text("client-verdict") in ("faulty", "missing")
    assert len(names) == 3


def test_pointer_reads_the_charts(show: Show, calibration: Calibration) -> None:
    opened = show(calibration)
    words = ("oddness", "of its scores", "of the trusted scores", "threshold")
    for chart, word in zip(("clients", "client", "pooled", "cost"), words, strict=True):
        opened.page.locator(f"#{chart}-chart .u-over").hover()
        assert word in opened.page.locator(f"#{chart}-chart .readout").inner_text()


def test_filter_and_sort_and_export_give_the_rows_asked_for(
    show: Show, calibration: Calibration, tmp_path: Path
) -> None:
    opened = show(calibration)
    opened.page.locator("#filter").fill("hospital-1")
    assert opened.text("table-count").startswith("10 of")
    opened.page.locator("#table thead [data-key=id]").click()
    rows = exported(opened, tmp_path / "clients.csv")
    assert [row["client"] for row in rows] == [f"hospital-{k}" for k in range(10, 20)]
    by_name = dict(zip(calibration.federation.ids, calibration.oddness, strict=True))
    for row in rows:
        assert float(row["oddness"]) == pytest.approx(by_name[row["client"]], rel=1e-5)
        assert (row["verdict"] == "flagged") == (row["client"] in calibration.flagged)
    opened.page.locator("#filter").fill("no such client")
    assert opened.text("table-count").startswith("0 of")


def test_hostile_names_stay_text_and_exported_ones_are_no_formulas(
    show: Show, tmp_path: Path
) -> None:
    reports = hospitals()
    odd = (HOSTILE, '=HYPERLINK("x")', "\uff1dHYPERLINK")
    fault = Fault(HOSTILE + "f", "counts", f"{HOSTILE}: counts are broken")
    ids = (*odd, *reports.ids[3:])
    named = replace(reports, ids=ids, faulty=(fault,), missing=(HOSTILE + "m",))
    opened = show(robfcp.calibrate(named, defence=robfcp.Consensus(at_most=3)))
    opened.page.locator("#filter").fill("alert")
    assert opened.text("table-count").startswith("3 of")
    for row in opened.page.locator("#table tbody tr[data-client]").all():
        row.click()
        assert opened.text("client-title").startswith(HOSTILE)
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script").count() == 2
    opened.page.locator("#filter").fill("hyperlink")
    found = {row["client"] for row in exported(opened, tmp_path / "clients.csv")}
    assert found == {'\'=HYPERLINK("x")', "'\uff1dHYPERLINK"}


def test_nothing_can_be_loaded_from_anywhere(show: Show, calibration: Calibration) -> None:
    opened = show(calibration)
    blocked = opened.page.evaluate(
        "fetch('https://example.org/').then(() => 'loaded', () => 'blocked')"
    )
    assert blocked == "blocked"
    assert all("Content Security Policy" in message for message in opened.messages)
    opened.messages.clear()
    opened.requests.clear()


def test_two_thousand_clients_do_not_stutter(show: Show) -> None:
    rng = np.random.default_rng(0)
    grid = Grid.default()
    share = np.diff(grid.edges**0.4)
    counts = rng.multinomial(150, share / share.sum(), size=2000)
    counts[:60] = 0
    counts[:60, 0] = 150
    opened = show(
        robfcp.calibrate(Federation.from_counts(counts, grid), defence=robfcp.RobFCP(liars=60))
    )
    rows = opened.page.locator("#table tbody tr[data-client]").count()
    assert rows < 60
    opened.page.locator("#scroll").evaluate("e => { e.scrollTop = e.scrollHeight; }")
    last = min(zip(opened.data()["clients"]["oddness"], range(2000), strict=True))
    opened.page.wait_for_function(
        "wanted => [...document.querySelectorAll('#table tr[data-client]')]"
        ".some(row => +row.dataset.client === wanted)",
        arg=last[1],
    )
    longest = opened.page.evaluate(
        """() => {
          const slider = document.getElementById("liars");
          let longest = 0;
          for (let i = 0; i < 20; i++) {
            const start = performance.now();
            slider.value = i;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
            longest = Math.max(longest, performance.now() - start);
          }
          return longest;
        }"""
    )
    assert longest < 150


def test_phone_shows_everything_without_scrolling_sideways(
    show: Show, calibration: Calibration
) -> None:
    opened = show(calibration, viewport={"width": 375, "height": 700})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 375
    assert opened.page.locator("#out-threshold").is_visible()


def test_dark_page_is_dark_and_printed_page_is_light(show: Show, calibration: Calibration) -> None:
    opened = show(calibration, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened.page.evaluate(ground) == "rgb(20, 24, 29)"
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    rows = opened.page.locator("#table tbody tr[data-client]").count()
    assert rows == 8  # of seven flagged, one faulty and one missing
    assert "more sites are in this page's file" in opened.text("table-count")
    colour = "getComputedStyle(document.documentElement).getPropertyValue('--text')"
    assert opened.page.evaluate(colour) == "#1d232b"
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.text("table-count") == "41 of 41 sites"


def test_print_fits_two_pages(show: Show, calibration: Calibration, stroke: Calibration) -> None:
    for one in (calibration, stroke):
        pdf = show(one).page.pdf(format="A4", prefer_css_page_size=True)
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 2


def test_culprits_stand_before_the_sliders(show: Show, stroke: Calibration) -> None:
    for size in ({"width": 1280, "height": 900}, {"width": 375, "height": 812}):
        opened = show(stroke, viewport=size)
        top = {
            part: opened.page.locator(f"#{part}").bounding_box()["y"]
            for part in ("message", "diagnoses-section", "client", "whatif")
        }
        assert top["message"] < top["diagnoses-section"] < top["client"] < top["whatif"]
        assert top["diagnoses-section"] < size["height"]
        assert 2 <= opened.page.locator("#diagnoses li").count() <= 6
    opened.page.locator("#diagnoses-more").click()
    shown = opened.page.locator("#diagnoses li .site").all_inner_texts()
    assert set(shown) == set(robfcp.diagnose(stroke))
    opened.page.locator("#diagnoses li .site").nth(2).click()
    assert opened.text("client-title") == shown[2]
    first = opened.page.locator("#diagnoses li").first
    assert not first.locator("details p").first.is_visible()
    first.locator("summary").click()
    assert first.locator("details p").first.inner_text().endswith(stroke.reasons[shown[0]])


def test_what_if_tells_how_large_sets_would_be(
    show: Show, stroke: Calibration, calibration: Calibration
) -> None:
    opened = show(stroke)
    table = opened.data()["whatif"]["tables"]["defence"]
    sizes = {}
    for level in (0.8, 0.95):
        opened.slide("level", table["levels"].index(level))
        sizes[level] = float(opened.value("out-size"))
        row = table["liars"].index(stroke.liars)
        assert sizes[level] == table["size"][row][table["levels"].index(level)]
    assert 1 < sizes[0.8] < sizes[0.95] < 4
    assert not show(calibration).page.locator("#size-tile").is_visible()


def test_a_missed_liar_is_used_but_to_be_looked_at(show: Show) -> None:
    story = stroke_story(faults=("other-class-order",), liars=0, seed=1)
    (liar,) = story.faults
    calibration = robfcp.calibrate(story.reports, defence="none")
    opened = show(calibration, viewport={"width": 1280, "height": 700})
    opened.page.screenshot(path=IMAGES / "page-missed.png")
    assert opened.text("message").startswith(f"All 49 sites were used, but look at {liar}: only ")
    assert opened.text("client-title") == liar
    assert opened.text("client-verdict") == "used, but look"
    opened.page.locator("#verdicts [data-key=look]").click()
    assert opened.page.locator("#table tbody tr[data-client]").count() == 1


@pytest.mark.parametrize(
    ("grid", "sites", "law"),
    [
        (Grid.open_ended(), 12, lambda rng: rng.normal(0, 30, 200)),
        (Grid.default(), 1, lambda rng: rng.random(50)),
        (Grid.default(), 12, lambda rng: rng.beta(0.05, 8, 200)),
    ],
    ids=["open-ended", "one client", "accurate"],
)
def test_unusual_federations_have_a_page(show: Show, grid: Grid, sites: int, law: Any) -> None:
    rng = np.random.default_rng(0)
    reports = [Report.from_scores(f"s{k}", law(rng), grid) for k in range(sites)]
    calibration = robfcp.calibrate(reports, [0.9, 0.95])
    opened = show(calibration)
    assert opened.page.locator("#levels tbody tr").count() == 2
    for key in ("grid", "linear"):
        opened.page.locator(f"#scales [data-key={key}]").click()
    assert shown_numbers(opened)[0] == calibration.levels[0].threshold


def test_a_stated_guarantee_has_its_own_mode(show: Show) -> None:
    reports = hospitals()
    calibration = robfcp.calibrate(reports, 0.8, promise=robfcp.Pac(3))
    opened = show(calibration)
    assert "guaranteed with 95% confidence even if any 3 of 39 sites lie" in opened.text("claim")
    assert opened.page.locator("#modes [data-key=stated]").get_attribute("aria-pressed") == "true"
    assert shown_numbers(opened)[0] == calibration.threshold


def test_pictures_for_the_documentation_and_what_they_are_about(
    show: Show, stroke: Calibration
) -> None:
    title = "Outcome after stroke, 49 hospitals"
    about = About(title, "International Stroke Trial", "the demo", "15 November 2026")
    opened = show(stroke, about=about, viewport={"width": 1280, "height": 1180})
    assert opened.text("about-title") == opened.page.title() == title
    lines = "International Stroke Trial · 15 November 2026 · run by the demo"
    assert opened.text("about-lines") == lines
    opened.page.screenshot(path=IMAGES / "page.png")
    odd = next(one.client for one in robfcp.diagnose(stroke).values() if one.covered < 0.7)
    opened.page.locator("#diagnoses-more").click()
    opened.page.locator("#diagnoses .site", has_text=re.compile(f"^{odd}$")).click()
    opened.page.wait_for_timeout(300)
    parts = {"left-out": "diagnoses-section", "site": "client", "classes": "strata-section"}
    for name, part in parts.items():
        opened.page.locator(f"#{part}").screenshot(path=IMAGES / f"page-{name}.png")
    for name in ("page", *(f"page-{name}" for name in parts)):
        assert (IMAGES / f"{name}.png").stat().st_size > 10_000
