"""`robfcp bench`: how long each stage takes on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer

from robfcp.cli._common import Json, Printer, Quiet, Seed
from robfcp.defence import Consensus, RobFCP, estimate_malicious
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.guarantees import (
    certify,
    exact_level,
    fcp_index,
    marginal_threshold,
)
from robfcp.prediction import predict_sets
from robfcp.report import Report
from robfcp.scores import LAC

Stage = tuple[str, Callable[[], Any]]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    clients: Annotated[int, typer.Option(help="Number of sites.")] = 1000,
    samples: Annotated[int, typer.Option(help="Samples a site.")] = 500,
    classes: Annotated[int, typer.Option(help="Classes.")] = 10,
    repeat: Annotated[int, typer.Option(help="Runs a stage; the fastest counts.")] = 3,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time every stage from probabilities to prediction sets on simulated data.

    [dim]Example: robfcp bench --clients 1000 --samples 500[/dim]
    [dim]Example: robfcp bench --clients 50 --samples 100 --repeat 1 --json[/dim]
    """
    if min(clients, samples, classes - 1, repeat) < 1:
        raise RobfcpError("bench: needs at least 1 site, 1 sample, 2 classes and 1 run")
    printer = Printer(as_json, quiet)
    stages = _stages(clients, samples, classes, np.random.default_rng(seed))
    seconds: dict[str, float] = {}
    with printer.progress() as bar:
        task = bar.add_task("timing", total=len(stages))
        for name, stage in stages:
            seconds[name] = min(_timed(stage) for _ in range(repeat))
            bar.advance(task)
    total = sum(seconds.values())
    printer.table(
        f"{clients} sites, {samples} samples each, {classes} classes",
        ["stage", "milliseconds", "share"],
        [(name, f"{1000 * s:.2f}", f"{s / total:.1%}") for name, s in seconds.items()],
    )
    printer.json({"clients": clients, "samples": samples, "seconds": seconds})


def _timed(stage: Callable[[], Any]) -> float:
    start = time.perf_counter()
    stage()
    return time.perf_counter() - start


def _stages(clients: int, samples: int, classes: int, rng: np.random.Generator) -> list[Stage]:
    """Each stage as a call on what the stage before it gives."""
    score, grid, level = LAC(), Grid.default(), exact_level(0.9)
    site = rng.dirichlet(np.full(classes, 0.3), samples).astype(np.float32)
    label = rng.integers(0, classes, samples)
    rows = rng.beta(0.5, 2, (clients, samples))
    reports = [Report.from_scores(f"{k:07d}", row, grid, score=score) for k, row in enumerate(rows)]
    federation = Federation.from_reports(reports)
    liars = (clients - 1) // 4
    index = fcp_index(federation, level)
    return [
        ("score (one site)", lambda: score(site, label)),
        ("sketch (one site)", lambda: Report.from_scores("a", rows[0], grid, score=score)),
        ("read and validate a report", lambda: Report.from_json(reports[0].to_json())),
        ("stack the federation", lambda: Federation.from_reports(reports)),
        ("defend: rob-fcp", lambda: RobFCP(liars)(federation)),
        ("defend: consensus", lambda: Consensus(at_most=liars)(federation)),
        ("count", lambda: estimate_malicious(federation)),
        ("quantile", lambda: fcp_index(federation, level)),
        ("guaranteed threshold", lambda: marginal_threshold(federation, level, liars)),
        ("certify", lambda: certify(federation, index, liars)),
        ("predict (one site)", lambda: predict_sets(score, site, [0.9])),
    ]
