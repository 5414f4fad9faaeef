"""A real headless Chromium without network services, and the pages it opens."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest

import robfcp
from robfcp.page import write_html

DISABLED_FEATURES = ("background-networking", "component-update", "gpu", "quic", "sync")
FLAGS = [
    "--no-sandbox",
    "--no-first-run",
    *(f"--disable-{feature}" for feature in DISABLED_FEATURES),
]


@dataclass
class OpenedPage:
    """A page in the browser, with its requests and messages."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, element_id):
        """Return the visible text of an element."""
        return str(self.page.locator(f"#{element_id}").inner_text())

    def table(self, table_id):
        """Return the texts of a table's body, row by row, visible or not."""
        rows = self.page.locator(f"#{table_id} tbody tr").all()
        return [row.locator("td").all_text_contents() for row in rows]

    def data(self):
        """Return the embedded data."""
        return self.page.evaluate("JSON.parse(document.getElementById('data').textContent)")


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    assert executable, "chromium is not installed; run `make test-browser`"
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a calibration's page, or one that a function writes.

    At the end no page may have logged a message or requested anything from the network.
    """
    opened_pages: list[OpenedPage] = []

    def open_page(document, history=None, info=None, **context_options):
        path = tmp_path / f"page{len(opened_pages)}.html"
        if isinstance(document, robfcp.Calibration):
            write_html(document, path, history, info)
        else:
            document(path)
        viewport = {"width": 1280, "height": 900}
        context = browser.new_context(**{"viewport": viewport, **context_options})
        opened = OpenedPage(context.new_page())
        for event in ("console", "pageerror", "dialog"):
            opened.page.on(event, lambda message: opened.messages.append(str(message)))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(path.as_uri())
        opened.page.wait_for_selector("html[data-ready=yes]", timeout=20_000)
        opened_pages.append(opened)
        return opened

    yield open_page
    for opened in opened_pages:
        assert opened.messages == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.requests)
        opened.page.context.close()
