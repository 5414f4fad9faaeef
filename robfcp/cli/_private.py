"""The privacy options of the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.privacy import Ledger, Privacy, logistic_grid
from robfcp.scores import Score

GRID_BINS = 32  # of private reports of scores in [0, 1] unless told

Epsilon = Annotated[
    float | None, typer.Option(help="Add noise: differential privacy (extra: privacy).")
]
Delta = Annotated[float, typer.Option(help="Of (epsilon, delta); 0 takes Laplace noise.")]
Neighbours = Annotated[
    str,
    typer.Option(
        help="substitution (the number of samples is public) or add-remove (it is hidden)."
    ),
]
SamplesPerPatient = Annotated[int, typer.Option(help="Most samples of one person, protected too.")]
Rounds = Annotated[int, typer.Option(help="How many reports share the budget.")]
LedgerFile = Annotated[
    Path | None, typer.Option(help="Record of what was spent; --epsilon needs one.")
]
DataSet = Annotated[
    str | None, typer.Option(help="The data's name in the ledger; the file's name if not given.")
]


def chosen_privacy(
    epsilon: float | None, delta: float, neighbours: str, samples_per_patient: int, rounds: int
) -> Privacy | None:
    """The privacy asked for, None where no epsilon is given."""
    if epsilon is None:
        if (delta, neighbours, samples_per_patient, rounds) != (0.0, "substitution", 1, 1):
            raise RobfcpError("--delta: privacy options need --epsilon; give it or drop them")
        return None
    return Privacy(epsilon, delta, cast(Any, neighbours), samples_per_patient, rounds)


def default_grid(privacy: Privacy | None, score: Score) -> Grid:
    """The grid where none is named: the score's own, a coarse one of private reports."""
    usual = score.default_grid()
    if privacy is None:
        return usual
    if tuple(usual.edges[[0, -1]]) != (0.0, 1.0):
        raise RobfcpError(
            f"--grid: noise would drown the {usual.n_bins} bins that {score.name} has by default; "
            "name a coarse one, or make one with robfcp.recommend_grid(prior=...) in Python"
        )
    return logistic_grid(GRID_BINS)


def charge(ledger: Path | None, dataset: str, privacy: Privacy | None, round: str | None) -> None:
    """Enter the report into the site's ledger before anything is computed from the data."""
    if privacy is None and ledger is not None:
        raise RobfcpError("--ledger: only private reports are recorded; give --epsilon")
    if privacy is None:
        return
    if ledger is None:
        raise RobfcpError("--epsilon: needs --ledger FILE, where this site records what it spends")
    Ledger(ledger, dataset).charge(privacy, round)


def read_privacy(text: str | None, agreed: Privacy | None) -> Privacy | None:
    """The privacy that EPSILON or EPSILON,DELTA states, or else the one agreed."""
    if text is None:
        return agreed
    try:
        epsilon, _, delta = text.partition(",")
        return Privacy(float(epsilon), float(delta or 0))
    except ValueError as error:
        if isinstance(error, RobfcpError):
            raise
        raise RobfcpError(f"--privacy: {text!r} is not EPSILON or EPSILON,DELTA") from None
