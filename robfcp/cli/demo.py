"""`robfcp demo`: the main job on embedded real data, ending with a page to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from robfcp._files import make_folder
from robfcp.calibration import Calibration, calibrate
from robfcp.cli import console
from robfcp.cli.console import Printer, option
from robfcp.cli.server import page_info
from robfcp.diagnosis import Diagnosis, diagnose
from robfcp.errors import RobfcpError
from robfcp.experiments.data_faults import (
    FaultScenario,
    compare_defenses,
    stroke_fault_scenario,
)
from robfcp.federation import Federation
from robfcp.page import write_html

NAMES = {
    "none": "no defense (FCP)",
    "consensus": "consensus (ours)",
    "label-swap": "two labels swapped",
    "class-permutation": "classes in another order",
    "degraded-model": "an old model",
    "wrong-file": "another hospital's file",
    "temperature-scaling-flat": "probabilities flattened",
}
N_REPORT_ZEROS = 19  # malicious hospitals of the main story
N_REPORT_ONES = 6  # of the other story, which makes sets wide
STORY_NAMES = ("all benign", "no defense (FCP)", "Consensus")  # what pictures compare
BAR_WIDTH = 40  # characters of the longest bar

Line = Mapping[str, Any]  # how one defense does, as `compare_defenses` gives it


@dataclass(frozen=True)
class DemoResults:
    """What the demo computes.

    Attributes
    ----------
    scenario : FaultScenario
        Hospitals of which some make mistakes and others report zeros.
    lines : list of mapping
        How the benign hospitals alone do, then all under each defense; ours comes last.
    exact_lines : list of mapping
        The benign hospitals alone and our defense, on exact counts of the same samples.
    wide_lines : list of mapping
        The same for the other story, without and with our defense.
    calibration : Calibration
        Of all reports, by our defense.
    diagnoses : mapping of str to Diagnosis
        What the reports of some hospitals look like.
    """

    scenario: FaultScenario
    lines: list[dict[str, Any]]
    exact_lines: list[dict[str, Any]]
    wide_lines: list[dict[str, Any]]
    calibration: Calibration
    diagnoses: Mapping[str, Diagnosis]

    @property
    def benign(self) -> Line:
        """The benign hospitals alone."""
        return self.lines[0]

    @property
    def undefended(self) -> Line:
        """Every report believed."""
        return self.lines[1]

    @property
    def published(self) -> Line:
        """Rob-FCP as the paper prints it."""
        return self.lines[2]

    @property
    def defended(self) -> Line:
        """Our defense."""
        return self.lines[-1]


def demo(
    printer: Printer,
    output: Annotated[Path, option("Folder for all results.", "--output", "-o")] = Path("out"),
    backend: Annotated[
        str, option("none, or flower: the round as messages between apps.")
    ] = "none",
    seed: console.Seed = 0,
) -> None:
    """Show what faulty and malicious clients do to prediction sets, and what the defense does.

    Real hospitals, real outputs of a model that never saw them; no network, no training.

    [dim]Example: robfcp demo -o out[/dim]
    [dim]Example: robfcp demo -o out --json[/dim]
    """
    run_round = _round_of_backend(backend)
    console.prepare_outputs(output / "page.html")
    with printer.busy("calibrating with 49 hospitals, eight times"):
        results = _compute_results(run_round, seed)

    _print_introduction(results.scenario, printer)
    _print_story(results, printer)
    _print_comparison(results, printer)
    _print_faults(results, printer)

    _write_results(results, output)
    printer.line(
        f"Open {output / 'page.html'}: who was excluded, why, and what to ask them. It knows only "
        "the reports, and counts all patients where 1. counts those with one outcome, so that its "
        f"figures differ from these. To calibrate again: robfcp calibrate {output / 'reports'}."
    )
    summaries = {client: diagnosis.summary for client, diagnosis in results.diagnoses.items()}
    printer.json({**_results_as_json(results), "diagnoses": summaries})


def _round_of_backend(name: str) -> Callable[[Federation], Calibration]:
    """Return the function that calibrates a federation: at once, or by messages between apps."""
    if name == "flower":
        from robfcp.integrations.flower import simulate_round

        return simulate_round
    if name != "none":
        raise RobfcpError(f"--backend: {name!r} is unknown; use none or flower")
    return calibrate


def _compute_results(run_round: Callable[[Federation], Calibration], seed: int) -> DemoResults:
    """Return both stories under the defenses, and the calibration of the first."""
    scenario = stroke_fault_scenario(n_malicious=N_REPORT_ZEROS, seed=seed)
    lines = compare_defenses(scenario)
    our_defense = lines[-1]["defense"]
    exact_scenario = stroke_fault_scenario(n_malicious=N_REPORT_ZEROS, seed=seed, min_cell_count=1)
    exact_lines = compare_defenses(exact_scenario, (our_defense,))
    wide_scenario = stroke_fault_scenario(
        faults=(), n_malicious=N_REPORT_ONES, crafted_score=1.0, seed=seed
    )
    wide_lines = compare_defenses(wide_scenario, ("none", our_defense))
    calibration = run_round(Federation.from_reports(scenario.reports))
    return DemoResults(
        scenario=scenario,
        lines=lines,
        exact_lines=exact_lines,
        wide_lines=wide_lines,
        calibration=calibration,
        diagnoses=diagnose(calibration),
    )


def _print_introduction(scenario: FaultScenario, printer: Printer) -> None:
    """Print whose data these are, and what is wrong with some of them."""
    n_patients = sum(report.n_samples for report in scenario.reports)
    n_mistakes = len(scenario.faults) - N_REPORT_ZEROS
    printer.line(
        f"{len(scenario.reports)} hospitals of the International Stroke Trial, {n_patients:,} "
        "patients, "
        "a model that never saw them. A prediction set is to hold a patient's outcome nine times "
        f"out of ten. {len(scenario.faults)} reports are wrong: {n_mistakes} mistakes, "
        f"and {N_REPORT_ZEROS} hospitals that claim the model is never in doubt."
    )
    min_cell_count = scenario.reports[0].min_cell_count
    printer.line(
        "These are default reports. Each holds how many patients there are, one histogram of their "
        f"scores in cells of at least {min_cell_count} patients, and the patients of each outcome "
        f"to the nearest {min_cell_count}.\n"
    )


def _print_story(results: DemoResults, printer: Printer) -> None:
    """Print what wrong reports do without a defense, and what they do with ours."""
    scenario = results.scenario
    benign = results.benign
    undefended = results.undefended
    defended = results.defended
    wrong_sets = _wrong_sets_of_1000(results)
    set_sizes = [round(line["mean_set_size"], 2) for line in results.wide_lines]
    hospital = _hospital_with_most_harm(benign, undefended)
    n_tests = len(scenario.tests[hospital][1])
    printer.line(
        f"1. Believe every report, and {wrong_sets[1]} of 1,000 patients with the outcome "
        f'"{undefended["worst_class_name"]}" get a set without it, in place '
        f"of {wrong_sets[0]} if all were benign (one threshold covers nine of ten of all patients, "
        f"not of each outcome); at {hospital}, {undefended['n_missed'][hospital]} of "
        f"{n_tests} sets are wrong in place of {benign['n_missed'][hospital]}."
    )
    _print_bars("wrong sets of 1,000", wrong_sets, printer)
    printer.line(
        f"2. Let {N_REPORT_ONES} hospitals claim the opposite, and a set holds {set_sizes[1]:g} of "
        "4 outcomes: never wrong, and of no use."
    )
    _print_bars("outcomes in a set", set_sizes, printer)
    printer.line(
        f"3. Defended, it is {wrong_sets[2]} of 1,000 and {set_sizes[2]:g} outcomes: "
        f"{defended['n_detected']} of the "
        f"{len(scenario.faults)} faulty or malicious reports were excluded, and "
        f"{defended['n_false_positives']} benign ones; "
        "the last table says what became of the mistakes. In round 1 its sets hold "
        f"{defended['mean_set_size']:.2f} outcomes, {benign['mean_set_size']:.2f} if all reports "
        f"were benign: larger sets miss less. Rob-FCP covers "
        f"{results.published['coverage']:.1%} here, Consensus {defended['coverage']:.1%}.\n"
    )


def _wrong_sets_of_1000(results: DemoResults) -> list[int]:
    """Return how many sets of the outcome that suffers most are wrong, for `STORY_NAMES`."""
    class_coverage = results.undefended["class_coverage"]
    worst_class = class_coverage.index(results.undefended["worst_class_coverage"])
    lines = (results.benign, results.undefended, results.defended)
    return [round(1000 * (1 - line["class_coverage"][worst_class])) for line in lines]


def _hospital_with_most_harm(benign: Line, undefended: Line) -> str:
    """Return the hospital where believing every report makes most sets wrong."""

    def harm(hospital: str) -> int:
        """Return how many more sets are wrong."""
        n_more: int = undefended["n_missed"][hospital] - benign["n_missed"][hospital]
        return n_more

    return max(undefended["n_missed"], key=harm)


def _print_bars(title: str, values: Sequence[float], printer: Printer) -> None:
    """Print a picture: a bar for each of `STORY_NAMES`."""
    lines = [f"   {title}:"]
    for name, value in zip(STORY_NAMES, values, strict=True):
        length = round(BAR_WIDTH * value / max(values))
        lines.append(f"   {name:<22}{'#' * length} {value:g}")
    printer.line("\n".join([*lines, ""]))


def _print_comparison(results: DemoResults, printer: Printer) -> None:
    """Print how each defense does on the test patients, and ours on exact counts."""
    rows = []
    for line in results.lines:
        defense = line["defense"]
        counts: tuple[object, object] = (line["n_detected"], line["n_false_positives"])
        if not any(counts):
            counts = ("", "")
        rows.append(
            (
                NAMES.get(defense, defense),
                f"{line['coverage']:.1%}",
                f"{line['mean_set_size']:.2f}",
                f"{line['worst_class_coverage']:.1%}",
                f"{line['worst_client_coverage']:.1%}",
                *counts,
            )
        )
    printer.table(
        "test patients of the hospitals where nothing is wrong",
        ["", "coverage", "size", "class", "hospital", "detected", "false"],
        rows,
    )
    printer.line(
        "size: mean number of outcomes in a set; class, hospital: coverage of the worst one; "
        "detected: faulty or malicious reports excluded; false: false positives. rob-fcp: as the "
        "paper prints it; rob-fcp-released: as its authors' code does."
    )
    benign, defended = results.exact_lines
    printer.line(
        f"On exact counts by outcome: benign hospitals only {benign['coverage']:.1%}, size "
        f"{benign['mean_set_size']:.2f}; consensus {defended['coverage']:.1%}, size "
        f"{defended['mean_set_size']:.2f}, detected {defended['n_detected']}, false positives "
        f"{defended['n_false_positives']}."
    )


def _print_faults(results: DemoResults, printer: Printer) -> None:
    """Print what became of the hospitals that make each mistake."""
    rows = []
    for cause in dict.fromkeys(results.scenario.faults.values()):
        clients = [client for client, name in results.scenario.faults.items() if name == cause]
        verdicts = Counter(_verdict(results.diagnoses.get(client)) for client in clients)
        diagnoses = [results.diagnoses[client] for client in clients if client in results.diagnoses]
        summaries = dict.fromkeys(diagnosis.summary for diagnosis in diagnoses)
        rows.append(
            (
                NAMES.get(cause, cause),
                len(clients),
                _verdicts_text(verdicts, len(clients)),
                ", ".join(summaries) or "nothing looks wrong",
            )
        )
    printer.table(
        "the faulty and malicious reports", ["fault", "hospitals", "verdict", "diagnosis"], rows
    )


def _verdict(diagnosis: Diagnosis | None) -> str:
    """Return what became of a report, in words."""
    if diagnosis is None:
        return "included"
    return "included, but suspicious" if diagnosis.is_benign else "excluded"


def _verdicts_text(verdicts: Mapping[str, int], n_clients: int) -> str:
    """Return the verdicts on some reports: each with its count unless it is that of all."""
    texts = []
    for verdict, count in verdicts.items():
        texts.append(verdict if count == n_clients else f"{verdict}: {count}")
    return ", ".join(texts)


def _write_results(results: DemoResults, folder: Path) -> None:
    """Write reports, calibration, page and figures."""
    report_folder = folder / "reports"
    make_folder(report_folder)
    for report in results.scenario.reports:
        report.save(report_folder / f"{report.client.replace(' ', '-')}.json")
    results.calibration.save(folder / "calibration.json")
    info = page_info(
        "Outcome six months after a stroke", "International Stroke Trial", "robfcp demo"
    )
    write_html(results.calibration, folder / "page.html", info=info)
    console.save_json(folder / "demo.json", _results_as_json(results))


def _results_as_json(results: DemoResults) -> dict[str, Any]:
    """Return the figures for programs."""
    return {
        "methods": results.lines,
        "methods_on_exact_counts": results.exact_lines,
        "faults": results.scenario.faults,
    }
