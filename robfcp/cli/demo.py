"""`robfcp demo`: the main job on embedded real data, ending with a page to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from robfcp._files import make_folder
from robfcp.calibration import _calibrate
from robfcp.cli import console
from robfcp.cli.console import Printer, option
from robfcp.cli.server import page_info
from robfcp.diagnosis import diagnose
from robfcp.errors import RobfcpError
from robfcp.experiments.data_faults import compare_defenses, stroke_fault_scenario
from robfcp.federation import Federation
from robfcp.page import write_html

NAMES = {"none": "every report believed", "consensus": "consensus (ours)"} | {
    "swapped-labels": "two labels swapped",
    "other-class-order": "classes in another order",
    "old-model": "an old model",
    "stale-file": "another hospital's file",
    "temperature-flat": "probabilities flattened",
}
LIARS, WIDE = 19, 6  # hospitals that report zeros; in the other story, ones


def demo(
    printer: Printer,
    output: Annotated[Path, option("Folder for all results.", "--output", "-o")] = Path("out"),
    engine: Annotated[str, option("none, or flower: the round as messages between apps.")] = "none",
    seed: console.Seed = 0,
) -> None:
    """Show what wrong and lying sites do to prediction sets, and what is done about it.

    Real hospitals, real outputs of a model that never saw them; no network, no training.

    [dim]Example: robfcp demo -o out[/dim]
    [dim]Example: robfcp demo -o out --json[/dim]
    """
    calibrated: Any = _calibrate.calibrate
    if engine == "flower":
        from robfcp.integrations.flower import simulate_round as calibrated
    elif engine != "none":
        raise RobfcpError(f"--engine: {engine!r} is unknown; use none or flower")
    console.prepare_outputs(output / "page.html")
    with printer.busy("calibrating with 49 hospitals, eight times"):
        story = stroke_fault_scenario(n_malicious=LIARS, seed=seed)
        lines, wide = (
            compare_defenses(story),
            stroke_fault_scenario(faults=(), n_malicious=WIDE, crafted_score=1.0, seed=seed),
        )
        honest, plain, published, *_, ours = lines
        sizes = [round(x["set_size"], 2) for x in compare_defenses(wide, ("none", ours["defence"]))]
        calibration = calibrated(Federation.from_reports(story.reports))
        found = diagnose(calibration)
    worst = plain["by_class"].index(plain["worst_class"])
    wrong = [round(1000 * (1 - one["by_class"][worst])) for one in (honest, plain, ours)]
    patients = sum(report.n_samples for report in story.reports)
    hurt = max(plain["wrong"], key=lambda one: plain["wrong"][one] - honest["wrong"][one])
    kinds = "all honest", "every report believed", "defended"
    printer.line(
        f"{len(story.reports)} hospitals of the International Stroke Trial, {patients:,} patients, "
        "a model that never saw them. A prediction set is to hold a patient's outcome nine times "
        f"out of ten. {len(story.faults)} reports are wrong: {len(story.faults) - LIARS} mistakes, "
        f"and {LIARS} hospitals that claim the model is never in doubt.\n"
    )
    printer.line(
        f"1. Believe every report, and {wrong[1]} of 1,000 patients with the outcome "
        f'"{plain["worst_class_name"]}" get a set without it, in place '
        f"of {wrong[0]} were all honest (one threshold covers nine of ten of all patients, not of "
        f"each outcome); at {hurt}, {plain['wrong'][hurt]} of "
        f"{len(story.tests[hurt][1])} sets are wrong in place of {honest['wrong'][hurt]}."
    )
    _bars(printer, "wrong sets of 1,000", kinds, wrong)
    printer.line(
        f"2. Let {WIDE} hospitals claim the opposite, and a set holds {sizes[1]:g} of 4 outcomes: "
        "never wrong, and of no use."
    )
    _bars(printer, "outcomes in a set", kinds, sizes)
    printer.line(
        f"3. Defended, it is {wrong[2]} of 1,000 and {sizes[2]:g} outcomes: {ours['found']} of the "
        f"{len(story.faults)} wrong reports were left out, and {ours['false_alarms']} right ones; "
        "the last table says what became of the mistakes. In round 1 its sets hold "
        f"{ours['set_size']:.2f} outcomes, {honest['set_size']:.2f} were all honest: larger sets "
        f"miss less. The published rule covers {published['coverage']:.1%} here, ours "
        f"{ours['coverage']:.1%}.\n"
    )
    rows = []
    for line in lines:
        shares = [f"{line[name]:.1%}" for name in ("coverage", "worst_class", "worst_site")]
        caught = [line["found"], line["false_alarms"]]
        row = NAMES.get(line["defence"], line["defence"]), shares[0], f"{line['set_size']:.2f}"
        rows.append((*row, *shares[1:], *(caught if any(caught) else ("", ""))))
    heads = ["", "covered", "size", "class", "site", "found", "false"]
    printer.table("test patients of the hospitals where nothing is wrong", heads, rows)
    printer.line(
        "size: outcomes in a set; class, site: the share covered of the worst; found, false: left "
        "out rightly, wrongly. rob-fcp: as the paper prints it; rob-fcp-released: as its code does."
    )
    fates = []
    for fault in dict.fromkeys(story.faults.values()):
        names = [name for name, own in story.faults.items() if own == fault]
        looked = [found[name].trusted if name in found else None for name in names]
        ends = Counter({None: "used", True: "used, but look", False: "left out"}[x] for x in looked)
        words = dict.fromkeys(found[name].summary for name in names if name in found)
        decided = ", ".join(end if n == len(names) else f"{end}: {n}" for end, n in ends.items())
        said = ", ".join(words) or "nothing looks wrong"
        fates.append((NAMES.get(fault, fault), len(names), decided, said))
    heads = ["what is wrong", "at", "verdict", "what we say"]
    printer.table("what became of the others", heads, fates)
    make_folder(output / "reports")
    for report in story.reports:
        report.save(output / "reports" / f"{report.client.replace(' ', '-')}.json")
    calibration.save(output / "calibration.json")
    top = page_info(
        "Outcome six months after a stroke", "International Stroke Trial", "robfcp demo"
    )
    write_html(calibration, output / "page.html", info=top)
    told = {"lines": lines, "faults": story.faults}
    console.save_json(output / "demo.json", told)
    printer.line(
        f"Open {output / 'page.html'}: who was left out, why, and what to ask them. It knows only "
        "the reports, and counts all patients where 1. counts those with one outcome, so that its "
        f"figures differ from these. To calibrate again: robfcp calibrate {output / 'reports'}. "
        "These reports count every score by itself; those of robfcp report keep five together."
    )
    printer.json({**told, "said": {name: one.summary for name, one in found.items()}})


def _bars(printer: Printer, head: str, names: Sequence[str], numbers: Sequence[float]) -> None:
    """A picture: a bar a line."""
    rows = zip(names, numbers, strict=True)
    bars = [f"   {name:<22}{'#' * round(40 * n / max(numbers))} {n:g}" for name, n in rows]
    printer.line("\n".join([f"   {head}:", *bars, ""]))
