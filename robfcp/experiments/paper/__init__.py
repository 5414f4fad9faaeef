"""The paper's experiments on shipped outputs, ours beside the published figures."""

from __future__ import annotations

from robfcp.experiments.paper.results_page import TITLES, reproduce, write_page

__all__ = ["TITLES", "reproduce", "write_page"]
