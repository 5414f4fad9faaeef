"""The calibration page: one self-contained HTML file to read, print and hand to an auditor.

`render_html` returns the page of a calibration or of a `PageHistory`, and `write_html` writes it;
`page_data` is what it embeds. May import `monitoring`, `diagnosis`, `local`, `calibration` and what
lies below them.
"""

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

# The names of the scripts in `assets`, in the order in which they run. Every page has the common
# ones first.
_COMMON_SCRIPTS = ("uplot/uPlot.iife.min", "embedded", "format", "charts", "history")
_CALIBRATION_SCRIPTS = (
    "data",
    "scores",
    "clients",
    "diagnoses",
    "distributions",
    "table",
    "strata",
    "page",
)
_HISTORY_SCRIPTS = ("history-page",)
_STYLES = ("uplot/uPlot.min.css", "page.css")

# Signs that could end a script element or a line of JavaScript, as JSON's escapes of them.
_UNSAFE_SIGNS = "<>&\u2028\u2029"
_ESCAPES = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in _UNSAFE_SIGNS})


def render_html(
    document: Calibration | PageHistory,
    history: PageHistory | None = None,
    info: PageInfo | None = None,
) -> str:
    """Return the page of a calibration, or of a history alone, as HTML.

    No network, no inline handlers, client names only ever as text.

    Parameters
    ----------
    document : Calibration or PageHistory
        The calibration or history to show.
    history : PageHistory, optional
        What is known since the calibration; ignored if `document` is a history.
    info : PageInfo, optional
        The lines at the top of a calibration's page.

    Raises
    ------
    RobfcpError
        If a history is empty, or if there are more clients than a page can show.
    """
    if isinstance(document, PageHistory):
        data = history_data(document)
        if data is None:
            raise RobfcpError("history: there is none; pass an alarm history or monitor states")
        return _assemble("history.html", _HISTORY_SCRIPTS, {"history": data})

    n_clients = document.federation.n_clients
    if n_clients > MAX_CLIENTS:
        raise RobfcpError(
            f"page: {n_clients} sites are more than the {MAX_CLIENTS} a "
            "page can show; use robfcp show and calibrate --json"
        )
    data = page_data(document, info or PageInfo())
    data["history"] = history_data(history)
    return _assemble("page.html", _CALIBRATION_SCRIPTS, data)


def _assemble(template: str, scripts: Sequence[str], data: object) -> str:
    """Return a template with its scripts, styles and data in it."""
    script = _script_text(scripts)
    style = "\n".join(_read_asset(name) for name in _STYLES)
    contents = {
        "{{policy}}": _content_security_policy(script, style),
        "{{style}}": style,
        "{{history}}": _read_asset("history-section.html"),
        "{{script}}": script,
        "{{data}}": safe_json(data),
    }

    page = _read_asset(template)
    for placeholder, text in contents.items():
        assert placeholder in page
        page = page.replace(placeholder, text, 1)
    return page


def _script_text(names: Sequence[str]) -> str:
    """Return the common scripts and those of one page, after uPlot's license."""
    texts = [f"/*! uPlot\n{_read_asset('uplot/LICENSE')}*/"]
    for name in (*_COMMON_SCRIPTS, *names):
        texts.append(_read_asset(f"{name}.js"))
    return "\n".join(texts)


def _content_security_policy(script: str, style: str) -> str:
    """Return a policy that allows these two texts and nothing from anywhere else."""
    return (
        f"default-src 'none'; script-src {_policy_hash(script)}; style-src {_policy_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _policy_hash(text: str) -> str:
    """Return the digest by which a content security policy allows an inline text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def write_html(
    document: Calibration | PageHistory,
    path: str | os.PathLike[str],
    history: PageHistory | None = None,
    info: PageInfo | None = None,
) -> None:
    """Write the page atomically.

    Parameters
    ----------
    document : Calibration or PageHistory
        The calibration or history to show.
    path : path
        The file to write.
    history : PageHistory, optional
        What is known since the calibration.
    info : PageInfo, optional
        The lines at the top of a calibration's page.
    """
    write_atomically(path, render_html(document, history, info), private=True)


def safe_json(value: object) -> str:
    """Return JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def _read_asset(name: str) -> str:
    """Return the text of a file in `assets`."""
    path = files("robfcp.page") / "assets" / name
    return path.read_text(encoding="utf-8")
