"""What a site allows, whatever a server asks: its privacy, its ledger, the grid and score it takes.

A site writes this where it starts its node, out of the server's reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from robfcp.engines.discretion import FilePath, Open, discretion_of
from robfcp.engines.requests import Refused, SketchRequest
from robfcp.grid import Grid
from robfcp.privacy import Privacy, grid_from_text
from robfcp.reports import Report, load_key, read_grid, read_score, sign
from robfcp.scores import Score, named_score

BUDGET_KEYS = ("delta", "neighbours", "samples-per-patient", "rounds")
DATASET = "calibration data"
SITE_WORDS = (  # all that a site's own configuration may hold
    "epsilon",
    *BUDGET_KEYS,
    *("privacy-ledger", "privacy-dataset", "privacy-grid", "privacy-score", "privacy-samples"),
    *("pooled", "least", "bins-per-sample", "signing-key", "letter-folder", "monitor-folder"),
    "output-folder",  # of a server: where results go instead of the job's own folder
)


@dataclass(frozen=True)
class SiteRules:
    """What one site allows.

    privacy: the noise of its reports. ledger: where it records what is spent; a private site has
    one. dataset: the name of the data the ledger speaks of. grid, score: what it reports on; any
    where None. samples: the number it states when asked, without looking at its data. pooled:
    whether it withholds its labels. least, bins_per_sample: how small the cells are that it shows,
    as `Report.from_scores` has it. signing_key: the private key its reports are signed with.
    """

    privacy: Privacy | None = None
    ledger: FilePath | None = None
    dataset: str | None = None
    grid: Grid | None = None
    score: Score | None = None
    samples: int | None = None
    pooled: bool = False
    least: int = 1
    bins_per_sample: float | None = None
    signing_key: FilePath | None = None

    def with_config(self, config: Mapping[str, Any]) -> SiteRules:
        """The same with what the site's own configuration says, which goes before."""
        rules = self
        if "epsilon" in config:
            budget = {key.replace("-", "_"): config[key] for key in BUDGET_KEYS if key in config}
            rules = replace(rules, privacy=Privacy(config["epsilon"], **cast(Any, budget)))
        if "privacy-ledger" in config:
            rules = replace(rules, ledger=str(config["privacy-ledger"]))
        if "privacy-dataset" in config:
            rules = replace(rules, dataset=str(config["privacy-dataset"]))
        if "privacy-grid" in config:
            rules = replace(rules, grid=grid_from_text(str(config["privacy-grid"])))
        if "privacy-score" in config:
            rules = replace(rules, score=named_score(str(config["privacy-score"]), {}))
        if "pooled" in config:
            rules = replace(rules, pooled=bool(config["pooled"]))
        if "least" in config:
            rules = replace(rules, least=int(config["least"]))
        if "bins-per-sample" in config:
            rules = replace(rules, bins_per_sample=float(config["bins-per-sample"]))
        if "signing-key" in config:
            rules = replace(rules, signing_key=str(config["signing-key"]))
        if "privacy-samples" in config:
            rules = replace(rules, samples=int(config["privacy-samples"]))
        return rules

    def accepted(self, request: SketchRequest) -> tuple[Grid, Score]:
        """The grid and score of a request, refused where the site takes others."""
        if self.grid is not None and request.grid.digest != self.grid.digest:
            raise Refused(5, "another grid than this site takes was asked for")
        score = read_score(request.score)
        if score is None or (self.score is not None and score != self.score):
            raise Refused(5, "another score than this site takes was asked for")
        return read_grid(request.grid) if self.grid is None else self.grid, score

    def sealed(self, report: Report) -> bytes:
        """The report as it leaves the site, signed where the site has a key."""
        if self.signing_key is None:
            return report.to_json()
        return sign(report, load_key(self.signing_key))

    @property
    def discretion(self) -> Open:
        """What the site keeps to itself."""
        return discretion_of(self.privacy, self.ledger, self.dataset or DATASET)
