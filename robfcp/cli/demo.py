"""`robfcp demo`: the main job on embedded real data, ending with a page to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from robfcp.calibration import Calibration, calibrate, diagnose
from robfcp.cli._common import Json, Printer, Quiet, Seed, prepare, save_json
from robfcp.cli.page import about
from robfcp.cli.simulate import show
from robfcp.defence import DEFAULT
from robfcp.diagnosis import Diagnosis
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.files import make_folder
from robfcp.lab import outputs
from robfcp.lab.attacks import named_attack
from robfcp.lab.faults import HONEST, LIE, Story, compared, stroke_story
from robfcp.lab.simulation import records, simulate, summarise
from robfcp.lab.worlds import Setting, apply_attack, make_world
from robfcp.page import write_page

STORY = "stroke"
ATTACKS = ("coverage", "efficiency")
WORDS = {
    "swapped-labels": "two labels swapped",
    "other-class-order": "classes in another order",
    "old-model": "an old model",
    "stale-file": "another hospital's file",
    "temperature-flat": "rescaled probabilities",
    LIE: "lies: all scores zero",
}
TITLES = {
    HONEST: "honest only",
    "none": "undefended",
    "rob-fcp": "published",
    "rob-fcp-released": "released",
    DEFAULT: "ours",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    data: Annotated[
        str,
        typer.Option(
            help=f"stroke: real hospitals; or {', '.join(outputs.names())}: made-up sites."
        ),
    ] = STORY,
    clients: Annotated[int, typer.Option(min=3, help="Number of sites; not for stroke.")] = 100,
    share: Annotated[float, typer.Option(help="Share that lies; not for stroke.")] = 0.4,
    seeds: Annotated[int, typer.Option(help="Number of runs; not for stroke.")] = 5,
    engine: Annotated[
        str, typer.Option(help="none, or flower: the round as messages between apps.")
    ] = "none",
    seed: Seed = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for page, calibration and reports.")
    ] = Path("out"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what wrong and lying sites do to prediction sets, and what is done about it.

    Real hospitals, real outputs of a model that never saw them; no network, no training. With
    another data set the sites are an artificial split and a share of them attacks.

    [dim]Example: robfcp demo -o out[/dim]
    [dim]Example: robfcp demo --data pathmnist --clients 20 --seeds 1[/dim]
    """
    if data not in outputs.names():
        raise RobfcpError(
            f"--data: {data!r} is not shipped; use one of {', '.join(outputs.names())}"
        )
    calibrated = chosen_engine(engine)
    prepare(output / "page.html")
    printer = Printer(as_json, quiet)
    if data == STORY:
        hospitals(calibrated, seed, output, printer)
    else:
        split(
            data,
            clients=clients,
            share=share,
            seeds=seeds,
            calibrated=calibrated,
            seed=seed,
            output=output,
            printer=printer,
        )


def hospitals(
    calibrated: Callable[[Federation], Calibration], seed: int, output: Path, printer: Printer
) -> None:
    """The story of a round of the stroke trial's hospitals."""
    with printer.busy("calibrating with 49 hospitals, five times"):
        story = stroke_story(seed=seed)
        lines = compared(story)
        calibration = calibrated(Federation.from_reports(story.reports))
        found = diagnose(calibration)
    patients = sum(report.n_samples for report in story.reports)
    printer.line(
        f"{len(story.reports)} hospitals of the International Stroke Trial, {patients:,} patients. "
        "A prediction set is to hold a patient's outcome nine times out of ten."
    )
    wrong = Counter(WORDS[fault] for fault in story.faults.values())
    printer.line(
        f"At {len(story.faults)} of them something is wrong: "
        + ", ".join(f"{words} ({number})" for words, number in wrong.items())
        + "."
    )
    printer.table(
        "at the hospitals where nothing is wrong",
        ["", "covered", "set size", "worst class", "worst site", "found", "false"],
        [
            (
                TITLES.get(line.defence, line.defence),
                f"{line.coverage:.1%}",
                f"{line.set_size:.2f}",
                f"{line.worst_class:.1%}",
                f"{line.worst_site:.1%}",
                "" if line.found + line.false_alarms == 0 else str(line.found),
                "" if line.found + line.false_alarms == 0 else str(line.false_alarms),
            )
            for line in lines
        ],
    )
    printer.line(
        "Published is the rule as the paper prints it, released what its code does; found and "
        "false count the hospitals left out, rightly and wrongly."
    )
    printer.table(
        "what became of the others",
        ["hospital", "what is wrong", "verdict", "what we say"],
        _fates(story, found),
    )
    _saved(calibration, story, output)
    save_json(
        output / "demo.json",
        {"lines": [asdict(line) for line in lines], "faults": dict(story.faults)},
    )
    printer.line(
        f"Open {output / 'page.html'}: who was left out, why, and what to ask them. To calibrate "
        f"again: robfcp calibrate {output / 'reports' / '*.json'}"
    )
    printer.json(
        {
            "lines": [asdict(line) for line in lines],
            "faults": dict(story.faults),
            "said": {name: one.short for name, one in found.items()},
        }
    )


def _fates(story: Story, found: Mapping[str, Diagnosis]) -> list[tuple[str, str, str, str]]:
    """Each mistake in a line, all liars in one: what is wrong, what was decided, what was said."""
    rows = []
    for name, fault in story.faults.items():
        one = found.get(name)
        if fault != LIE:
            said = "nothing looks wrong" if one is None else one.short
            rows.append((name, WORDS[fault], _verdict(one), said))
    liars = [found.get(name) for name, fault in story.faults.items() if fault == LIE]
    verdicts = Counter(map(_verdict, liars))
    decided = ", ".join(f"{words}: {number}" for words, number in verdicts.most_common())
    said = ", ".join(dict.fromkeys(one.short for one in liars if one is not None))
    return [*rows, (f"{len(liars)} hospitals", WORDS[LIE], decided, said)]


def _verdict(one: Diagnosis | None) -> str:
    return "used" if one is None else "used, but look" if one.trusted else "left out"


def _saved(calibration: Calibration, story: Story, output: Path) -> None:
    """Reports, calibration and page."""
    make_folder(output / "reports")
    for report in story.reports:
        report.save(output / "reports" / f"{report.client.replace(' ', '-')}.json")
    calibration.save(output / "calibration.json")
    top = about("Outcome six months after a stroke", "International Stroke Trial", "robfcp demo")
    write_page(calibration, output / "page.html", about=top)


def split(
    data: str,
    clients: int,
    share: float,
    seeds: int,
    calibrated: Callable[[Federation], Calibration],
    seed: int,
    output: Path,
    printer: Printer,
) -> None:
    """A data set cut into sites, a share of which attacks."""
    from robfcp.figures import save
    from robfcp.lab.simulation import plot_comparison

    shipped = outputs.load(data)
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
        f"none: undefended; rob-fcp: the published defence; {DEFAULT}: ours, the default. "
        "Error is against the honest sites alone, caught the liars among the "
        "flagged."
    )
    generator = np.random.default_rng(seed)
    setting = Setting(n_clients=clients, share=share)
    world = make_world(shipped.probabilities, shipped.labels, setting, generator)
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
        f"Look at {output / 'page.html'} (who was left out and why) and {output / 'demo.png'}."
    )
    printer.json(summary)


def chosen_engine(name: str) -> Callable[[Federation], Calibration]:
    """How the one round is calibrated: in one call, or by Flower's messages in this process."""
    if name == "none":
        return calibrate
    if name != "flower":
        raise RobfcpError(f"--engine: {name!r} is unknown; use none or flower")
    from robfcp.engines.flower import calibrate_in_process

    return calibrate_in_process
