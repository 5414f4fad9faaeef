"""The experiments of the Rob-FCP paper on outputs that ship, beside the published results.

`reproduce` runs tables and figures by name and `write_page` makes the results page from their
files. May import all of `experiments` and what lies below it.
"""

from __future__ import annotations

from robfcp.experiments.paper.results_page import TITLES, reproduce, write_page

__all__ = ["TITLES", "reproduce", "write_page"]
