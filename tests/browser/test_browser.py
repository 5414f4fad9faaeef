"""The page in a real browser: what is shown is what the library computes."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from makers import LAC, reports_of

import robfcp
from robfcp import Calibration, Federation, Grid, Report
from robfcp.federation import Fault
from robfcp.lab import outputs, partitions
from robfcp.lab.faults import stroke_story
from robfcp.page import About

pytestmark = pytest.mark.browser
Show = Callable[..., Any]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
IMAGES = Path(__file__).parents[2] / "docs" / "images"


def hospitals() -> Federation:
    """Pathology sites with a real model's outputs: a few lie, one is broken, one is silent."""
    shipped, rng = outputs.load("pathmnist"), np.random.default_rng(0)
    scores = []
    for k, rows in enumerate(partitions.iid(len(shipped.labels), 40, 0)):
        own = LAC(shipped.probabilities[rows], shipped.labels[rows])
        noisy = np.clip(own + rng.normal(0, 0.3, len(own)), 0, 1) if k in (8, 23) else own
        scores.append(np.zeros_like(own) if k in (4, 11, 17, 30, 36) else noisy)
    reports = reports_of(scores, round="7")
    sizes = {report.client: report.n_samples for report in reports} | {"site-40": 90}
    return Federation.from_reports(reports, sizes=sizes | {"site-25": 1})


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


def shown_numbers(opened: Any) -> tuple[float, ...]:
    """Threshold, excluded and certificate as the page holds them."""
    words = [opened.value(f"out-{name}") for name in ("threshold", "excluded", "certificate")]
    return tuple(map(float, " ".join(words).split()))


def test_page_opens_quietly_and_says_what_harm_was_done_by_whom_and_what_is_proved(
    show: Show, calibration: Calibration
) -> None:
    opened = show(calibration)
    for part, words in (
        ("first", "Had every report been believed, about "),
        ("message", f"{len(calibration.flagged)} of 39 sites were left out: "),
        ("claim", f"the {39 - len(calibration.flagged)} of 39 sites that were kept"),
        ("used", "used sites reported, 9"),
        ("promise", calibration.certificate.statement[1:]),  # "With", not "with"
        ("reports", "1 refused as faulty, 1 missing"),
        ("assumptions", "lie"),
        ("card", "**What is proved.** The threshold aims at 90% coverage"),
        ("audit", calibration.federation.grid.digest),
    ):
        assert words in opened.text(part)
    assert opened.requests == [opened.page.url, "data:,"][: len(opened.requests)]
    words = ("oddness", "of its scores", "of the trusted scores", "threshold")
    for chart, word in zip(("clients", "client", "pooled", "cost"), words, strict=True):
        opened.page.locator(f"#{chart}-chart .u-over").hover()
        assert word in opened.page.locator(f"#{chart}-chart .readout").inner_text()


@pytest.mark.parametrize("mode", ["defence", "marginal"])
def test_sliders_show_what_the_library_computes(
    show: Show, calibration: Calibration, mode: str
) -> None:
    opened = show(calibration)
    opened.page.locator(f"#modes [data-key={mode}]").click()
    table = opened.data()["whatif"]["tables"][mode]
    for level, m in ((0.9, 7), (0.9, 0), (0.995, 3), (0.55, 19), (0.8, 12)):
        opened.slide("level", table["levels"].index(level))
        opened.slide("liars", table["liars"].index(m))
        promise = robfcp.Marginal(liars=m) if mode == "marginal" else None
        rule = robfcp.Consensus(at_most=m)
        one = robfcp.calibrate(calibration.federation, level, defence=rule, promise=promise)
        proved = (one.certificate.lower, one.certificate.upper)
        wanted = (one.threshold, len(one.flagged), *proved)
        assert shown_numbers(opened) == pytest.approx(wanted, abs=1e-8)
    opened.page.locator("#reset").click()
    assert shown_numbers(opened)[0] == calibration.threshold
    before = opened.text("level-value")
    opened.page.locator("#level").focus()
    opened.page.keyboard.press("ArrowRight")
    assert opened.text("level-value") != before


def test_a_click_in_table_or_chart_chooses_the_client_there(
    show: Show, calibration: Calibration
) -> None:
    opened, flagged = show(calibration), calibration.flagged[0]
    opened.page.locator("#verdicts [data-key=flagged]").click()
    assert opened.page.locator("#table tbody tr[data-client]").count() == len(calibration.flagged)
    opened.page.locator("#table tbody tr[data-client]", has_text=flagged).click()
    assert opened.text("client-title") == flagged
    assert opened.text("client-verdict") == "left out"
    assert opened.text("client-finding").startswith("All its scores are equal")
    opened.page.locator("#client-technical summary").click()
    assert opened.text("client-reason") == calibration.reasons[flagged]
    opened.page.locator("#clients-chart").scroll_into_view_if_needed()
    box = opened.page.locator("#clients-chart .u-over").bounding_box()
    for share, verdicts in ((0.05, ["used"]), (0.995, ["faulty", "missing"])):
        opened.page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        assert opened.text("client-verdict") in verdicts


def test_filter_and_sort_and_export_give_the_rows_asked_for(
    show: Show, calibration: Calibration, tmp_path: Path
) -> None:
    opened = show(calibration)
    opened.page.locator("#filter").fill("site-1")
    assert opened.text("table-count").startswith("10 of")
    opened.page.locator("#table thead [data-key=id]").click()
    rows = exported(opened, tmp_path / "clients.csv")
    assert [row["client"] for row in rows] == [f"site-{k}" for k in range(10, 20)]
    by_name = dict(zip(calibration.federation.ids, calibration.oddness, strict=True))
    for row in rows:
        assert float(row["oddness"]) == pytest.approx(by_name[row["client"]], rel=1e-5)
        assert (row["verdict"] == "flagged") == (row["client"] in calibration.flagged)


def test_hostile_names_stay_text_and_exported_ones_are_no_formulas(
    show: Show, tmp_path: Path
) -> None:
    reports = hospitals()
    fault = Fault(HOSTILE + "f", "counts", f"{HOSTILE}: counts are broken")
    ids = (HOSTILE, '=HYPERLINK("x")', "\uff1dHYPERLINK", *reports.ids[3:])
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
    fetched = "fetch('https://example.org/').then(() => 'loaded', () => 'blocked')"
    assert opened.page.evaluate(fetched) == "blocked"
    assert all("Content Security Policy" in message for message in opened.messages)
    opened.messages.clear()
    opened.requests.clear()


def test_two_thousand_clients_do_not_stutter(show: Show) -> None:
    counts = np.random.default_rng(0).multinomial(150, np.full(50, 0.02), size=2000)
    opened = show(robfcp.calibrate(Federation.from_counts(counts), defence=robfcp.RobFCP(liars=60)))
    assert opened.page.locator("#table tbody tr[data-client]").count() < 60
    opened.page.locator("#scroll").evaluate("e => { e.scrollTop = e.scrollHeight; }")
    last = int(np.argmin(opened.data()["clients"]["oddness"]))
    opened.page.wait_for_selector(f"#table tr[data-client='{last}']")
    start = time.monotonic()
    for position in range(20):
        opened.slide("liars", position)
    assert time.monotonic() - start < 20 * 0.25


def test_dark_page_is_dark_and_a_printed_one_light_and_two_pages(
    show: Show, calibration: Calibration, stroke: Calibration
) -> None:
    opened = show(calibration, color_scheme="dark", viewport={"width": 375, "height": 700})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 375
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened.page.evaluate(ground) == "rgb(20, 24, 29)"
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator("#table tbody tr[data-client]").count() == 8  # not used
    assert "more sites are in this page's file" in opened.text("table-count")
    colour = "getComputedStyle(document.documentElement).getPropertyValue('--text')"
    assert opened.page.evaluate(colour) == "#1d232b"
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.text("table-count") == "41 of 41 sites"
    for one in (calibration, stroke):
        pdf = show(one).page.pdf(format="A4", prefer_css_page_size=True)
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 2


def test_harm_stands_before_culprits_and_those_before_the_sliders(
    show: Show, stroke: Calibration
) -> None:
    parts = ("first", "message", "used", "promise", "diagnoses-section", "client", "whatif")
    for width, height in ((1280, 900), (375, 812)):
        opened = show(stroke, viewport={"width": width, "height": height})
        tops = [opened.page.locator(f"#{part}").bounding_box()["y"] for part in parts]
        assert tops == sorted(tops)
        assert tops[4] < height
        assert 2 <= opened.page.locator("#diagnoses li").count() <= 6
    opened.page.locator("#diagnoses-more").click()
    shown = opened.page.locator("#diagnoses li .site").all_inner_texts()
    assert set(shown) == set(robfcp.diagnose(stroke))
    opened.page.locator("#diagnoses li .site").nth(2).click()
    assert opened.text("client-title") == shown[2]
    first = opened.page.locator("#diagnoses li").first
    first.locator("summary").click()
    assert first.locator("details p").first.inner_text().endswith(stroke.reasons[shown[0]])
    table = opened.data()["whatif"]["tables"]["defence"]
    column = table["levels"].index(0.95)
    opened.slide("level", column)
    wanted = table["size"][table["liars"].index(stroke.liars)][column]
    assert 1 < float(opened.value("out-size")) == wanted < 4


BROKEN = """() => [...document.querySelectorAll("td, th")].filter((cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const tops = [...range.getClientRects()].map((box) => Math.round(box.top / 9));
  return cell.offsetParent && Math.max(...tops) - Math.min(...tops) > 1;
}).map((cell) => cell.innerText)"""


@pytest.mark.parametrize("width", [500, 1280])
def test_tables_scroll_and_never_break_a_word(show: Show, stroke: Calibration, width: int) -> None:
    opened = show(stroke, viewport={"width": width, "height": 900})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate(BROKEN) == []
    assert "proved" not in opened.text("strata")  # one threshold for all classes proves none of one
    with opened.page.expect_download() as download:
        opened.page.locator("#card-save").click()
    assert "| recovered | 0." in Path(download.value.path()).read_text()


def test_a_missed_liar_is_used_but_to_be_looked_at(show: Show) -> None:
    story = stroke_story(faults=("other-class-order",), liars=0, seed=1)
    (liar,) = story.faults
    calibration = robfcp.calibrate(story.reports, defence="none")
    opened = show(calibration, viewport={"width": 1280, "height": 700})
    opened.page.screenshot(path=IMAGES / "page-missed.png")
    assert opened.text("first").startswith(f"All 49 sites were used, but look at {liar}: only ")
    assert opened.text("client-title") == liar
    assert opened.text("client-verdict") == "used, but look"
    opened.page.locator("#verdicts [data-key=look]").click()
    assert opened.page.locator("#table tbody tr[data-client]").count() == 1


@pytest.mark.parametrize(
    ("grid", "sites", "law", "promise"),
    [
        (Grid.open_ended(), 12, lambda rng: rng.normal(0, 30, 200), None),
        (Grid.default(), 1, lambda rng: rng.random(50), None),
        (Grid.default(), 12, lambda rng: rng.beta(0.05, 8, 200), robfcp.Pac(3)),
    ],
    ids=["open-ended", "one client", "accurate, with a promise"],
)
def test_unusual_federations_have_a_page(show: Show, grid, sites, law, promise) -> None:
    rng = np.random.default_rng(0)
    reports = [Report.from_scores(f"s{k}", law(rng), grid) for k in range(sites)]
    calibration = robfcp.calibrate(reports, [0.8, 0.85], promise=promise)
    opened = show(calibration)
    assert opened.page.locator("#levels tbody tr").count() == 2
    for key in ("grid", "linear"):
        opened.page.locator(f"#scales [data-key={key}]").click()
    assert shown_numbers(opened)[0] == calibration.levels[0].threshold
    if promise is not None:
        stated = opened.page.locator("#modes [data-key=stated]")
        assert stated.get_attribute("aria-pressed") == "true"


def test_pictures_for_the_documentation_and_what_they_are_about(
    show: Show, stroke: Calibration
) -> None:
    title = "Outcome after stroke, 49 hospitals"
    about = About(title, "International Stroke Trial", "the demo", "15 November 2026")
    narrow = show(stroke, about=about, viewport={"width": 500, "height": 1180})
    narrow.page.screenshot(path=IMAGES / "page-narrow.png")
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
