"""`robfcp demo`: the main job on embedded real data, ending with a page to look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from robfcp._util.files import make_folder
from robfcp.calibration import Calibration, calibrate
from robfcp.cli._common import Json, Printer, Quiet, Seed, save_json
from robfcp.cli.simulate import show
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.lab import outputs
from robfcp.lab.attacks import named_attack
from robfcp.lab.simulation import records, simulate, summarise
from robfcp.lab.worlds import apply_attack, make_world
from robfcp.scores import LAC

ATTACKS = ("coverage", "efficiency")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    data: Annotated[str, typer.Option(help="Which shipped outputs to use.")] = "pathmnist",
    clients: Annotated[int, typer.Option(min=3, help="Number of sites.")] = 100,
    share: Annotated[float, typer.Option(help="Share of them that lie.")] = 0.4,
    seeds: Annotated[int, typer.Option(help="Number of runs.")] = 5,
    engine: Annotated[
        str, typer.Option(help="none, or flower: the round as messages between apps.")
    ] = "none",
    seed: Seed = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for figure, page and calibration.")
    ] = Path("out"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what lying sites do to prediction sets, and what the defence does about it.

    Real class probabilities of a federated model; no network, no training.

    [dim]Example: robfcp demo -o out[/dim]
    """
    from robfcp.figures import save
    from robfcp.lab.figures import plot_comparison
    from robfcp.page import write_page

    if data not in outputs.names():
        raise RobfcpError(
            f"--data: {data!r} is not shipped; use one of {', '.join(outputs.names())}"
        )
    calibrated = chosen_engine(engine)
    shipped = outputs.load(data)
    make_folder(output)
    printer = Printer(as_json, quiet)
    printer.line(
        f"{data}: {len(shipped.labels)} samples of {clients} sites; the wanted coverage is 0.9"
    )
    rows = {}
    with printer.progress() as bar:
        task = bar.add_task("simulating", total=len(ATTACKS) * seeds * 3)
        for attack in ATTACKS:
            rows[attack] = simulate(
                shipped.probabilities,
                shipped.labels,
                attack=attack,
                share=share,
                n_clients=clients,
                malicious="estimate",
                seeds=seeds,
                rng=seed,
                progress=lambda: bar.advance(task),
            )
    for attack in ATTACKS:
        show(rows[attack], printer, "estimated")
    printer.line(
        "none: undefended; rob-fcp: the published defence; band: ours, the default. "
        "Error is against the honest clients alone, caught the liars among the "
        "flagged."
    )
    generator = np.random.default_rng(seed)
    world = make_world(
        shipped.probabilities,
        shipped.labels,
        n_clients=clients,
        share=share,
        beta=None,
        score=LAC(),
        grid=None,
        rng=generator,
    )
    calibration = calibrated(apply_attack(named_attack("coverage"), world, generator))
    calibration.save(output / "calibration.json")
    write_page(calibration, output / "page.html")
    save(
        plot_comparison([row for group in rows.values() for row in group], 0.9), output / "demo.png"
    )
    summary = {attack: list(summarise(group)) for attack, group in rows.items()}
    save_json(output / "demo.json", {a: records(group) for a, group in rows.items()})
    printer.line(f"One round: {calibration.certificate.statement}.")  # type: ignore[union-attr]
    printer.line(
        f"Look at {output / 'page.html'} (who was excluded and why) and {output / 'demo.png'}."
    )
    printer.json(summary)


def chosen_engine(name: str) -> Callable[[Federation], Calibration]:
    """How the one round is calibrated: in one call, or by Flower's messages in this process."""
    if name == "none":
        return calibrate
    if name != "flower":
        raise RobfcpError(f"--engine: {name!r} is unknown; use none or flower")
    from robfcp.flower import replay_in_process

    return replay_in_process
