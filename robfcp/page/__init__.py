"""The calibration page: one self-contained HTML file to look at, print and hand to an auditor."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from importlib.resources import files

from robfcp._files import write_atomically
from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.page._data import PageInfo, page_data
from robfcp.page._history import PageHistory, history_data

__all__ = ["PageHistory", "PageInfo", "page_data", "render_html", "safe_json", "write_html"]

MAX_CLIENTS = 20_000
_SHARED = ("uplot/uPlot.iife.min", "embedded", "format", "charts", "history")
_SCRIPTS = ("data", "scores", "clients", "diagnoses", "distributions", "table", "strata")
_STYLES = ("uplot/uPlot.min.css", "page.css")
_ESCAPES = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"})


def render_html(
    shown: Calibration | PageHistory,
    history: PageHistory | None = None,
    about: PageInfo | None = None,
) -> str:
    """The page of a calibration, or of a history alone, as HTML.

    No network, no inline handlers, client names only ever as text.
    """
    if isinstance(shown, PageHistory):
        data = history_data(shown)
        if data is None:
            raise RobfcpError("history: there is none; pass alarms or a monitor's state")
        return _assembled("history.html", ("history-page",), {"history": data})
    if shown.federation.n_clients > MAX_CLIENTS:
        raise RobfcpError(
            f"page: {shown.federation.n_clients} sites are more than the {MAX_CLIENTS} a "
            "page can show; use robfcp show and calibrate --json"
        )
    data = {**page_data(shown, about or PageInfo()), "history": history_data(history)}
    return _assembled("page.html", (*_SCRIPTS, "page"), data)


def _assembled(template: str, scripts: Sequence[str], data: object) -> str:
    licence = f"/*! uPlot\n{_asset('uplot/LICENSE')}*/"
    script = "\n".join([licence, *(_asset(f"{name}.js") for name in (*_SHARED, *scripts))])
    style = "\n".join(_asset(name) for name in _STYLES)
    digests = [hashlib.sha256(text.encode()).digest() for text in (script, style)]
    own, look = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    parts = {  # a content security policy that allows these two texts and nothing from anywhere
        "{{policy}}": f"default-src 'none'; script-src {own}; style-src {look}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "{{style}}": style,
        "{{history}}": _asset("history-section.html"),
        "{{script}}": script,
        "{{data}}": safe_json(data),
    }
    page = _asset(template)
    for place, text in parts.items():
        head, found, tail = page.partition(place)
        assert found
        page = head + text + tail
    return page


def write_html(
    shown: Calibration | PageHistory,
    path: str | os.PathLike[str],
    history: PageHistory | None = None,
    info: PageInfo | None = None,
) -> None:
    """Write the page whole or not at all."""
    write_atomically(path, render_html(shown, history, info), private=True)


def safe_json(value: object) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def _asset(name: str) -> str:
    return (files("robfcp.page") / "assets" / name).read_text(encoding="utf-8")
