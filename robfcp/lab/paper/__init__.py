"""The paper's experiments on shipped outputs, ours beside the published figures."""

from __future__ import annotations

from robfcp.lab.paper.experiments import NAMES, reproduce, titles
from robfcp.lab.paper.page import write_page
from robfcp.lab.paper.published import Published, published

__all__ = ["NAMES", "Published", "published", "reproduce", "titles", "write_page"]
