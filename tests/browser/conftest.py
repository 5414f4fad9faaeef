"""A real headless Chromium that is told of no network, and the pages it opens."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest

import robfcp
from robfcp.page import write_html

QUIET = ("background-networking", "component-update", "gpu", "quic", "sync")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]


@dataclass
class Opened:
    """A page in the browser, with everything it asked for or complained about."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, element):
        """What an element shows."""
        return str(self.page.locator(f"#{element}").inner_text())

    def table(self, element):
        """The texts of a table's body, row by row, shown or not."""
        rows = self.page.locator(f"#{element} tbody tr").all()
        return [row.locator("td").all_text_contents() for row in rows]

    def data(self):
        """The embedded data."""
        return self.page.evaluate("JSON.parse(document.getElementById('data').textContent)")


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium."""
    api = pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    assert executable, "chromium is not installed; run `make test-browser`"
    with api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a calibration's page, or one that a function writes; at the end it must have kept quiet
    and to itself."""
    opened: list[Opened] = []

    def open_page(shown, history=None, about=None, **options):
        path = tmp_path / f"page{len(opened)}.html"
        if isinstance(shown, robfcp.Calibration):
            write_html(shown, path, history, about)
        else:
            shown(path)
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        found = Opened(context.new_page())
        for event in ("console", "pageerror", "dialog"):
            found.page.on(event, lambda told: found.messages.append(str(told)))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(path.as_uri())
        found.page.wait_for_selector("html[data-ready=yes]", timeout=20_000)
        opened.append(found)
        return found

    yield open_page
    for found in opened:
        assert found.messages == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in found.requests)
        found.page.context.close()
