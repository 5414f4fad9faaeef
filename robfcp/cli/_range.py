"""What `simulate` and `redteam` are both told: sites, score, level, what is known of the liars."""

from __future__ import annotations

from typing import Annotated

import typer

from robfcp.cli._common import completes
from robfcp.cli.sketch import chosen_score
from robfcp.errors import RobfcpError
from robfcp.scores import ClassificationScore

Data = Annotated[
    str, typer.Argument(help="Shipped outputs by name, or a .npz/.csv file with labels.")
]
Beta = Annotated[
    float | None, typer.Option(help="Dirichlet heterogeneity; without it sites are alike.")
]
Malicious = Annotated[
    str, typer.Option(help="known or estimate.", autocompletion=completes("known", "estimate"))
]
ExcludeOption = Annotated[
    str,
    typer.Option(
        help="outstanding or exactly.", autocompletion=completes("outstanding", "exactly")
    ),
]
Confidence = Annotated[float, typer.Option(help="Wanted coverage.")]
ScoreName = Annotated[str, typer.Option(help="lac, aps, raps, saps or ordinal-aps.")]
Sites = Annotated[
    str,
    typer.Option(
        help="artificial: as --clients and --beta say; natural: the data's own.",
        autocompletion=completes("artificial", "natural"),
    ),
]
SiteColumn = Annotated[str, typer.Option(help="What natural sites are: site, country or group.")]
By = Annotated[
    str | None,
    typer.Option(
        help="class: one threshold a class, and the worst class's coverage; else one for all.",
        autocompletion=completes("class"),
    ),
]
MinSize = Annotated[int, typer.Option(min=2, help="Smaller natural sites are left out.")]


def natural_column(sites: str, column: str, beta: float | None) -> str | None:
    """The column of the data's own sites, or None for artificial ones."""
    if sites not in ("artificial", "natural"):
        raise RobfcpError(f"--sites: {sites!r} is neither 'artificial' nor 'natural'")
    if sites == "natural" and beta is not None:
        raise RobfcpError("--beta: natural sites are as they are; leave --beta away")
    return column if sites == "natural" else None


def range_options(score: str, malicious: str) -> tuple[ClassificationScore, str]:
    """The score and what is told of the number of liars, as the test range takes them."""
    rule = chosen_score(score)
    if not isinstance(rule, ClassificationScore):
        raise RobfcpError(
            f"--score: {score} is a regression score; use lac, aps, raps, saps or ordinal-aps"
        )
    if malicious not in ("known", "estimate"):
        raise RobfcpError(f"--malicious: {malicious!r} is neither 'known' nor 'estimate'")
    return rule, malicious


def chosen_by(by: str | None) -> str | None:
    """Whether each class has a threshold of its own."""
    if by not in (None, "class"):
        raise RobfcpError(f"--by: {by!r} is unknown here; use class, or leave it away")
    return by
