"""The page in a real browser: what is shown is what the library computes."""

import csv
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robfcp
from robfcp import Binning, Federation, Report
from robfcp.certificates import format_lower, format_upper
from robfcp.experiments.data_faults import stroke_fault_scenario
from robfcp.federation import RejectedReport
from robfcp.page import PageInfo

pytestmark = pytest.mark.browser
Show = Callable[..., Any]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
ROWS = "#table tbody tr[data-client]"


@pytest.fixture(scope="module")
def stroke():
    """Real hospitals with faults as they happen, by class."""
    return robfcp.calibrate(stroke_fault_scenario(seed=1, min_cell_count=1).reports)


def saved(opened, button):
    """The lines of the file that a button hands out."""
    with opened.page.expect_download() as download:
        opened.page.locator(f"#{button}").click()
    return Path(download.value.path()).read_text().splitlines()


def as_shown(bounds):
    """The certified bounds of a coverage as the page shows them."""
    return f"{format_lower(bounds.lower)} – {format_upper(bounds.upper)}"


def test_page_says_what_harm_was_done_by_whom_and_what_is_proved_and_loads_nothing(show, stroke):
    opened, out = show(stroke), len(stroke.flagged_clients)
    for part, words in (
        ("first", "Had every report been believed, about "),
        ("message", f"{out} of 49 sites were left out: "),
        ("claim", f"the {49 - out} of 49 sites that were used"),
        ("used", "used sites reported, 9"),
        ("promise", stroke.certificate.statement[1:]),  # "With", not "with"
        ("assumptions", "lie"),
        ("card", "**Aim.** The threshold aims at 90% coverage"),
        ("brief", "the vote of the sites that were used"),
        ("audit", stroke.federation.binning.digest),
    ):
        assert words in opened.text(part)
    words = {
        "clients": "oddness",
        "client": "of its scores",
        "pooled": "of the scores used",
        "curve": "at most",
    }
    for chart, word in words.items():
        opened.page.locator(f"#{chart}-chart .u-over").hover()
        assert word in opened.page.locator(f"#{chart}-chart .readout").inner_text()
    assert opened.requests == [opened.page.url, "data:,"][: len(opened.requests)]
    fetched = "fetch('https://example.org/').then(() => 'loaded', () => 'blocked')"
    assert opened.page.evaluate(fetched) == "blocked"
    assert all("Content Security Policy" in message for message in opened.messages)
    opened.messages.clear()
    opened.requests.clear()


def test_tables_hold_the_threshold_and_what_is_proved_for_each_number_of_liars(show, stroke):
    opened = show(stroke)
    ((coverage, threshold, set_size, certified),) = opened.table("levels")
    assert coverage == "90%"
    assert float(threshold) == pytest.approx(stroke.threshold, rel=1e-3)
    assert set_size == f"{opened.data()['mean_set_sizes'][0]:.2f}"
    assert certified == as_shown(stroke.certificate)

    assert not opened.page.locator("#curve-table").is_visible()
    opened.page.locator("#curve-numbers summary").click()
    assert opened.page.locator("#curve-table").is_visible()
    expected = [[str(m), as_shown(bounds)] for m, bounds in stroke.certificates.items()]
    assert opened.table("curve-table") == expected


def test_the_table_filters_sorts_chooses_and_exports(show, stroke):
    opened, flagged = show(stroke), stroke.flagged_clients[0]
    opened.page.locator("#verdicts [data-key=flagged]").click()
    assert opened.page.locator(ROWS).count() == len(stroke.flagged_clients)
    opened.page.locator(f"tr[data-client='{stroke.federation.clients.index(flagged)}']").click()
    assert opened.text("client").startswith(f"{flagged}\nleft out")
    opened.page.locator("#client-technical summary").click()
    assert opened.text("client-reason") == stroke.reasons[flagged]
    opened.page.locator("#verdicts [data-key=all]").click()
    opened.page.locator("#filter").fill("hospital 3")
    opened.page.locator("#table thead [data-key=id]").click()
    rows = list(csv.DictReader(saved(opened, "export")))
    wanted = [name for name in stroke.federation.clients if name.startswith("hospital 3")]
    assert [row["client"] for row in rows] == sorted(wanted, key=lambda name: int(name[9:]))
    by_name = dict(zip(stroke.federation.clients, stroke.maliciousness, strict=True))
    for row in rows:
        assert float(row["oddness"]) == pytest.approx(by_name[row["client"]], rel=1e-5)
        assert (row["verdict"] == "flagged") == (row["client"] in stroke.flagged_clients)


def test_hostile_names_stay_text_and_exported_ones_are_no_formulas(show, stroke):
    reports = stroke.federation
    fault = RejectedReport(HOSTILE + "f", "counts", f"{HOSTILE}: counts are broken")
    ids = (HOSTILE, '=HYPERLINK("x")', "\uff1dHYPERLINK", *reports.clients[3:])
    missing = (HOSTILE + "m",)
    named = replace(reports, clients=ids, rejected_reports=(fault,), missing_clients=missing)
    opened = show(robfcp.calibrate(named))
    assert "1 refused as faulty, 1 missing" in opened.text("reports")
    opened.page.locator("#clients-chart").scroll_into_view_if_needed()
    box = opened.page.locator("#clients-chart .u-over").bounding_box()
    for share, verdicts in ((0.05, ["used"]), (0.995, ["faulty", "missing"])):
        opened.page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        assert opened.text("client-verdict") in verdicts
    opened.page.locator("#filter").fill("alert")
    assert opened.text("table-count").startswith("3 of")
    for row in opened.page.locator(ROWS).all():
        row.click()
        assert opened.text("client-title").startswith(HOSTILE)
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script").count() == 2
    opened.page.locator("#filter").fill("hyperlink")
    found = {row["client"] for row in csv.DictReader(saved(opened, "export"))}
    assert found == {'\'=HYPERLINK("x")', "'\uff1dHYPERLINK"}


def test_two_thousand_clients_do_not_stutter(show):
    counts = np.random.default_rng(0).multinomial(150, np.full(50, 0.02), size=2000)
    opened = show(robfcp.calibrate(Federation.from_counts(counts), defense=robfcp.RobFCP(liars=60)))
    assert opened.page.locator(ROWS).count() < 60
    opened.page.locator("#scroll").evaluate("e => { e.scrollTop = e.scrollHeight; }")
    last = int(np.argmin(opened.data()["clients"]["oddness"]))
    opened.page.wait_for_selector(f"#table tr[data-client='{last}']")
    start = time.monotonic()
    for _ in range(10):
        opened.page.locator("#scales [data-key=grid]").click()
        opened.page.locator("#scales [data-key=linear]").click()
    assert time.monotonic() - start < 20 * 0.25


def test_dark_page_is_dark_and_a_printed_one_light_and_two_pages(show, stroke):
    opened = show(stroke, color_scheme="dark", viewport={"width": 375, "height": 700})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 375
    ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(20, 24, 29)"
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert "more sites are in this page's file" in opened.text("table-count")
    colour = "getComputedStyle(document.documentElement).getPropertyValue('--text')"
    assert opened.page.evaluate(colour) == "#1d232b"
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.text("table-count") == "49 of 49 sites"
    pdf = show(stroke).page.pdf(format="A4", prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 2


BROKEN = """() => [...document.querySelectorAll("td, th")].filter((cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const tops = [...range.getClientRects()].map((box) => Math.round(box.top / 9));
  return cell.offsetParent && Math.max(...tops) - Math.min(...tops) > 1;
}).map((cell) => cell.innerText)"""


@pytest.mark.parametrize(("width", "picture"), [(500, "page-narrow"), (1280, "page")])
def test_harm_before_culprits_before_thresholds_and_tables_never_break_a_word(
    show, stroke, width, picture
):
    title = "Outcome after stroke, 49 hospitals"
    about = PageInfo(title, "International Stroke Trial", "the demo", "15 November 2026")
    opened = show(stroke, about=about, viewport={"width": width, "height": 1180})
    opened.page.screenshot(path=IMAGES / f"{picture}.png")
    assert opened.text("about-title") == opened.page.title() == title
    assert opened.text("about-lines").endswith(" · 15 November 2026 · run by the demo")
    parts = ("first", "message", "used", "promise", "diagnoses-section", "client", "levels")
    tops = [opened.page.locator(f"#{part}").bounding_box()["y"] for part in parts]
    assert tops == sorted(tops)
    assert tops[4] < 812
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate(BROKEN) == []
    assert "proved" not in opened.text("strata")  # one threshold for all classes proves none of one
    assert any(line.startswith("| recovered | 0.") for line in saved(opened, "card-save"))
    opened.page.locator("#diagnoses-more").click()
    shown = opened.page.locator("#diagnoses li .site").all_inner_texts()
    assert set(shown) == set(robfcp.diagnose(stroke))
    odd = next(one.client for one in robfcp.diagnose(stroke).values() if one.covered < 0.7)
    opened.page.locator("#diagnoses .site", has_text=re.compile(f"^{odd}$")).click()
    assert opened.text("client-title") == odd
    opened.page.wait_for_timeout(300)
    names = {"left-out": "diagnoses-section", "site": "client", "classes": "strata-section"}
    for name, part in names.items() if width == 1280 else ():
        opened.page.locator(f"#{part}").screenshot(path=IMAGES / f"page-{name}.png")


def test_a_missed_liar_is_used_but_to_be_looked_at(show):
    story = stroke_fault_scenario(
        faults=("other-class-order",), n_malicious=0, seed=1, min_cell_count=1
    )
    (liar,) = story.faults
    calibration = robfcp.calibrate(story.reports, defense="none")
    opened = show(calibration, viewport={"width": 1280, "height": 700})
    opened.page.screenshot(path=IMAGES / "page-missed.png")
    assert opened.text("first").startswith(f"All 49 sites were used, but look at {liar}: only ")
    assert opened.text("client").startswith(f"{liar}\nused, but look")


UNUSUAL = [
    (Binning.open_ended(), 12, lambda rng: rng.normal(0, 30, 200), None),
    (Binning.default(), 1, lambda rng: rng.random(50), None),
    (Binning.default(), 12, lambda rng: rng.beta(0.05, 8, 200), robfcp.PACGuarantee(3)),
]


@pytest.mark.parametrize(("grid", "sites", "law", "promise"), UNUSUAL)
def test_unusual_federations_have_a_page(show, grid, sites, law, promise):
    rng = np.random.default_rng(0)
    reports = [Report.from_scores(f"s{k}", law(rng), grid) for k in range(sites)]
    calibration = robfcp.calibrate(reports, [0.8, 0.85], guarantee=promise)
    opened = show(calibration)
    for key in ("grid", "linear"):
        opened.page.locator(f"#scales [data-key={key}]").click()
    rows = opened.table("levels")
    assert len(rows) == 2
    for row, level in zip(rows, calibration.levels, strict=True):
        threshold = float(row[1].replace("infinite", "inf"))
        assert threshold == pytest.approx(level.threshold, rel=1e-3)
    n_points = len(calibration.levels[0].certificate_points)
    assert opened.page.locator("#curve-section").is_visible() == (n_points > 1)
