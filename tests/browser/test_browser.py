"""The page in a real browser shows what the library computes."""

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


def download_lines(opened, button_id):
    """Return the lines of the file that a button offers."""
    with opened.page.expect_download() as download:
        opened.page.locator(f"#{button_id}").click()
    return Path(download.value.path()).read_text().splitlines()


def certified_text(bounds):
    """Return the certified bounds of a coverage as the page writes them."""
    return f"{format_lower(bounds.lower)} – {format_upper(bounds.upper)}"


def test_the_page_states_impact_verdicts_and_certificate_and_loads_nothing(show, stroke):
    opened = show(stroke)
    n_flagged = len(stroke.flagged_clients)
    for element_id, expected in (
        ("first-sentence", "Without a defense, about "),
        ("summary", f"{n_flagged} of 49 sites were excluded: "),
        ("claim", f"the {49 - n_flagged} of 49 sites that were included"),
        ("coverage", "included sites reported, 9"),
        ("certificate", stroke.certificate.statement[1:]),  # its first letter is a capital
        ("assumptions", stroke.certificate.assumptions[0].text),
        ("model-card", "**Aim.** The threshold aims at 90% coverage"),
        ("auditor-answers", "the clipped vote of the included sites"),
        ("audit", stroke.federation.binning.digest),
    ):
        assert expected in opened.text(element_id)

    readouts = {
        "clients": "maliciousness",
        "client": "of its scores",
        "pooled": "of the included scores",
        "certificates": "at most",
    }
    for chart, expected in readouts.items():
        opened.page.locator(f"#{chart}-chart .u-over").hover()
        assert expected in opened.page.locator(f"#{chart}-chart .readout").inner_text()

    assert opened.requests == [opened.page.url, "data:,"][: len(opened.requests)]
    fetch = "fetch('https://example.org/').then(() => 'loaded', () => 'blocked')"
    assert opened.page.evaluate(fetch) == "blocked"
    assert all("Content Security Policy" in message for message in opened.messages)
    opened.messages.clear()
    opened.requests.clear()


def test_tables_hold_the_threshold_and_the_certificate_of_each_number_of_malicious_clients(
    show, stroke
):
    opened = show(stroke)
    ((coverage, threshold, set_size, certified),) = opened.table("levels")
    assert coverage == "90%"
    assert float(threshold) == pytest.approx(stroke.threshold, rel=1e-3)
    assert set_size == f"{opened.data()['mean_set_sizes'][0]:.2f}"
    assert certified == certified_text(stroke.certificate)

    assert not opened.page.locator("#certificates-table").is_visible()
    opened.page.locator("#certificates-details summary").click()
    assert opened.page.locator("#certificates-table").is_visible()
    expected = [
        [str(max_malicious), certified_text(point)]
        for max_malicious, point in stroke.certificates.items()
    ]
    assert opened.table("certificates-table") == expected


def test_the_table_filters_sorts_selects_and_exports(show, stroke):
    opened = show(stroke)
    flagged = stroke.flagged_clients[0]
    opened.page.locator("#verdicts [data-key=flagged]").click()
    assert opened.page.locator(ROWS).count() == len(stroke.flagged_clients)
    client_index = stroke.federation.clients.index(flagged)
    opened.page.locator(f"tr[data-client='{client_index}']").click()
    assert opened.text("client").startswith(f"{flagged}\nflagged, excluded")
    opened.page.locator("#client-technical summary").click()
    assert opened.text("client-reason") == stroke.reasons[flagged]

    opened.page.locator("#verdicts [data-key=all]").click()
    opened.page.locator("#filter").fill("hospital 3")
    opened.page.locator("#table thead [data-key=client]").click()
    rows = list(csv.DictReader(download_lines(opened, "export")))
    matching = [name for name in stroke.federation.clients if name.startswith("hospital 3")]
    assert [row["client"] for row in rows] == sorted(matching, key=lambda name: int(name[9:]))
    maliciousness = dict(zip(stroke.federation.clients, stroke.maliciousness, strict=True))
    for row in rows:
        client = row["client"]
        assert float(row["maliciousness"]) == pytest.approx(maliciousness[client], rel=1e-5)
        assert (row["verdict"] == "flagged") == (client in stroke.flagged_clients)


def test_hostile_names_stay_text_and_exported_ones_are_no_formulas(show, stroke):
    federation = stroke.federation
    rejected = RejectedReport(HOSTILE + "f", "counts", f"{HOSTILE}: counts are broken")
    hostile = replace(
        federation,
        clients=(HOSTILE, '=HYPERLINK("x")', "\uff1dHYPERLINK", *federation.clients[3:]),
        rejected_reports=(rejected,),
        missing_clients=(HOSTILE + "m",),
    )
    opened = show(robfcp.calibrate(hostile))
    assert "1 rejected, 1 missing" in opened.text("reports")

    opened.page.locator("#clients-chart").scroll_into_view_if_needed()
    box = opened.page.locator("#clients-chart .u-over").bounding_box()
    for fraction, verdicts in ((0.05, ["benign"]), (0.995, ["rejected", "missing"])):
        x = box["x"] + fraction * box["width"]
        opened.page.mouse.click(x, box["y"] + box["height"] / 2)
        assert opened.text("client-verdict") in verdicts

    opened.page.locator("#filter").fill("alert")
    assert opened.text("table-count").startswith("3 of")
    for row in opened.page.locator(ROWS).all():
        row.click()
        assert opened.text("client-title").startswith(HOSTILE)
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script").count() == 2

    opened.page.locator("#filter").fill("hyperlink")
    exported = {row["client"] for row in csv.DictReader(download_lines(opened, "export"))}
    assert exported == {'\'=HYPERLINK("x")', "'\uff1dHYPERLINK"}


def test_two_thousand_clients_do_not_stutter(show):
    counts = np.random.default_rng(0).multinomial(150, np.full(50, 0.02), size=2000)
    federation = Federation.from_counts(counts)
    opened = show(robfcp.calibrate(federation, defense=robfcp.RobFCP(n_malicious=60)))
    assert opened.page.locator(ROWS).count() < 60
    opened.page.locator("#scroll").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    last = int(np.argmin(opened.data()["clients"]["maliciousness"]))
    opened.page.wait_for_selector(f"#table tr[data-client='{last}']")
    start = time.monotonic()
    for _ in range(10):
        opened.page.locator("#scales [data-key=binning]").click()
        opened.page.locator("#scales [data-key=linear]").click()
    assert time.monotonic() - start < 20 * 0.25


def test_a_dark_page_is_dark_and_a_printed_page_is_light_on_two_sheets(show, stroke):
    opened = show(stroke, color_scheme="dark", viewport={"width": 375, "height": 700})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 375
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(20, 24, 29)"
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert "more sites are in this page's file" in opened.text("table-count")
    text_color = "getComputedStyle(document.documentElement).getPropertyValue('--text')"
    assert opened.page.evaluate(text_color) == "#1d232b"
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.text("table-count") == "49 of 49 sites"
    pdf = show(stroke).page.pdf(format="A4", prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 2


BROKEN_CELLS = """() => [...document.querySelectorAll("td, th")].filter((cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const tops = [...range.getClientRects()].map((box) => Math.round(box.top / 9));
  return cell.offsetParent && Math.max(...tops) - Math.min(...tops) > 1;
}).map((cell) => cell.innerText)"""
SCREENSHOTS = {"left-out": "diagnoses-section", "site": "client", "classes": "strata-section"}


@pytest.mark.parametrize(("width", "image"), [(500, "page-narrow"), (1280, "page")])
def test_impact_before_clients_before_thresholds_and_tables_never_break_a_word(
    show, stroke, width, image
):
    title = "Outcome after stroke, 49 hospitals"
    info = PageInfo(title, "International Stroke Trial", "the demo", "15 November 2026")
    opened = show(stroke, info=info, viewport={"width": width, "height": 1180})
    opened.page.screenshot(path=IMAGES / f"{image}.png")
    assert opened.text("info-title") == opened.page.title() == title
    assert opened.text("info-lines").endswith(" · 15 November 2026 · run by the demo")

    in_order = (
        "first-sentence",
        "summary",
        "coverage",
        "certificate",
        "diagnoses-section",
        "client",
        "levels",
    )
    tops = [opened.page.locator(f"#{element}").bounding_box()["y"] for element in in_order]
    assert tops == sorted(tops)
    assert tops[4] < 812
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate(BROKEN_CELLS) == []

    # A common threshold certifies no class by itself.
    assert "certified" not in opened.text("strata")
    model_card = download_lines(opened, "model-card-save")
    assert any(line.startswith("| recovered | 0.") for line in model_card)

    opened.page.locator("#diagnoses-more").click()
    diagnoses = robfcp.diagnose(stroke)
    names_shown = opened.page.locator("#diagnoses li .client-name").all_inner_texts()
    assert set(names_shown) == set(diagnoses)
    client = next(diagnosis.client for diagnosis in diagnoses.values() if diagnosis.coverage < 0.7)
    button = opened.page.locator("#diagnoses .client-name", has_text=re.compile(f"^{client}$"))
    button.click()
    assert opened.text("client-title") == client
    opened.page.wait_for_timeout(300)
    if width == 1280:
        for name, element in SCREENSHOTS.items():
            opened.page.locator(f"#{element}").screenshot(path=IMAGES / f"page-{name}.png")


def test_a_missed_faulty_client_is_included_but_suspicious(show):
    scenario = stroke_fault_scenario(
        faults=("class-permutation",), n_malicious=0, seed=1, min_cell_count=1
    )
    (faulty_client,) = scenario.faults
    calibration = robfcp.calibrate(scenario.reports, defense="none")
    opened = show(calibration, viewport={"width": 1280, "height": 700})
    opened.page.screenshot(path=IMAGES / "page-missed.png")
    expected = f"All 49 sites were included, but {faulty_client} is suspicious: only "
    assert opened.text("first-sentence").startswith(expected)
    assert opened.text("client").startswith(f"{faulty_client}\nsuspicious")


UNUSUAL = [
    (Binning.open_ended(), 12, lambda rng: rng.normal(0, 30, 200), None),
    (Binning.default(), 1, lambda rng: rng.random(50), None),
    (Binning.default(), 12, lambda rng: rng.beta(0.05, 8, 200), robfcp.PACGuarantee(3)),
]


@pytest.mark.parametrize(("binning", "n_clients", "sample_scores", "guarantee"), UNUSUAL)
def test_unusual_federations_have_a_page(show, binning, n_clients, sample_scores, guarantee):
    rng = np.random.default_rng(0)
    reports = [
        Report.from_scores(f"s{k}", sample_scores(rng), binning=binning) for k in range(n_clients)
    ]
    calibration = robfcp.calibrate(reports, coverage=[0.8, 0.85], guarantee=guarantee)
    opened = show(calibration)
    for key in ("binning", "linear"):
        opened.page.locator(f"#scales [data-key={key}]").click()
    rows = opened.table("levels")
    assert len(rows) == 2
    for row, level in zip(rows, calibration.levels, strict=True):
        threshold = float(row[1].replace("infinite", "inf"))
        assert threshold == pytest.approx(level.threshold, rel=1e-3)
    n_points = len(calibration.levels[0].certificate_points)
    assert opened.page.locator("#certificates-section").is_visible() == (n_points > 1)
