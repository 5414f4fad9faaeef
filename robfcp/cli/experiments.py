"""`robfcp experiments`: train models, reproduce the paper, simulate, attack, compare, measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer

from robfcp._files import write_atomically
from robfcp.cli import console
from robfcp.cli.console import Printer, advanced_option, option
from robfcp.cli.table_files import read_arrays
from robfcp.cli.tables import read_outputs
from robfcp.defense import DEFENSES, Consensus
from robfcp.errors import RobfcpError
from robfcp.experiments import datasets, outputs, paper, simulation
from robfcp.experiments import redteam as team
from robfcp.experiments.attacks import ATTACKS
from robfcp.experiments.baselines import BASELINES, ON_REPORTS
from robfcp.experiments.natural_partitions import risk_table
from robfcp.experiments.paper.result_rows import to_csv
from robfcp.reports import DEFAULT_MIN_CELL_COUNT
from robfcp.scores import ClassificationScore, get_score

SCORES = "lac, aps, raps, saps or ordinal-aps"
DATASETS = ", ".join(
    dict.fromkeys([*datasets.dataset_names(), *datasets.dataset_names(sites=True)])
)
LEAVE_ONE_OUT = "leave-sites-out"
SIMULATED_DEFENSES = ("none", "rob-fcp", Consensus.name)
HARMFUL = -0.0005  # coverage lost by an attack that is called harmful
MAX_SEARCHES_SHOWN = 10
_PARTITIONS = ("artificial", "natural")
_NUMBER_OF_MALICIOUS = ("known", "estimate")

Data = Annotated[str, typer.Argument(help="Shipped outputs by name, or a .npz or .csv file.")]
_PRINTED_MEASURES = {  # the key of a mean, and its column
    "coverage": "coverage",
    "worst_class_coverage": "worst class",
    "worst_client_coverage": "worst client",
    "set_size": "set size",
    "error": "error",
    "n_flagged": "flagged",
    "n_detected": "detected",
}


@dataclass(frozen=True)
class ScenarioData:
    """Model outputs that clients are made of.

    Attributes
    ----------
    probabilities : (n, C) ndarray
        Of each sample.
    labels : (n,) ndarray
        The true classes.
    partition : (n,) ndarray, optional
        Where each sample is from, for natural clients.
    """

    probabilities: Any
    labels: Any
    partition: Any


def _load_outputs(name: str, site_column: str | None) -> ScenarioData:
    """Return shipped outputs by name, or those in a file.

    Parameters
    ----------
    name : str
        Of shipped outputs, or the path of a file.
    site_column : str, optional
        The column that says where samples are from.
    """
    path = Path(name)
    if name in outputs.dataset_names():
        shipped = _load_shipped_outputs(name, site_column)
    elif not path.suffix:
        names = ", ".join(outputs.dataset_names())
        raise RobfcpError(f"{name}: no outputs of that name ship; use one of {names}, or a file")
    elif "depth" in _array_names(path):
        shipped = outputs.read_outputs(name)
    else:
        table = read_outputs(path, needs_targets=True, columns=[site_column], expects="classes")
        partition = table.columns.get(site_column or "")
        return ScenarioData(table.predictions, table.targets, partition)
    partition = None if site_column is None else shipped.column(site_column)
    return ScenarioData(shipped.probabilities, shipped.labels, partition)


def _load_shipped_outputs(name: str, site_column: str | None) -> Any:
    """Return shipped outputs, of the data set's own sites where their column is named."""
    if site_column is None:
        return outputs.load(name)
    natural_names = [
        entry["dataset"] for entry in outputs.entries() if entry["split"] == outputs.NATURAL
    ]
    if name not in natural_names:
        names = ", ".join(natural_names)
        raise RobfcpError(f"--partition: {name} has no sites of its own; use one of {names}")
    return outputs.load(name, outputs.NATURAL)


def _array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a file; none where it is no such file."""
    # The reader of tables says what is wrong with it.
    with suppress(RobfcpError, OSError):
        names, _ = read_arrays(path)
        return names
    return []


@dataclass(frozen=True)
class ScenarioOptions:
    """Options of both `simulate` and `redteam`: the clients, which are malicious, the level."""

    partition: Annotated[
        str, option("Clients of the data set, or of an artificial split", among=_PARTITIONS)
    ] = "artificial"
    coverage: Annotated[float, option("Target coverage.")] = 0.9
    output: console.Output = None
    plot: console.Plot = None
    site_column: Annotated[
        str, advanced_option("Column of the natural clients: site, country or group.")
    ] = "site"
    min_client_size: Annotated[
        int, advanced_option("Natural clients with fewer samples take no part.", min=2)
    ] = 20
    beta: Annotated[
        float | None, advanced_option("Dirichlet concentration of labels; iid without it.")
    ] = None
    n_malicious: Annotated[
        str,
        advanced_option(
            "Number of malicious clients that defenses assume", among=_NUMBER_OF_MALICIOUS
        ),
    ] = "known"
    exclude_exactly: Annotated[
        bool, advanced_option("Exclude exactly so many clients.", "--exclude-exactly")
    ] = False
    score: Annotated[str, advanced_option(f"{SCORES}.")] = "lac"
    by: Annotated[
        str | None, advanced_option("class: one threshold for each class; else one for all.")
    ] = None
    min_cell_count: Annotated[
        int, advanced_option("Minimum cell count of the reports; 1: exact counts.", min=1)
    ] = DEFAULT_MIN_CELL_COUNT

    @property
    def reports_text(self) -> str:
        """What the server receives, in words."""
        if self.min_cell_count == 1:
            return team.EXACT_COUNTS
        kind = "default reports" if self.by is None else "reports by class"
        return f"{kind}, cells of {self.min_cell_count}"

    def prepare(self) -> None:
        """Refuse files that cannot be written, before the work starts."""
        console.prepare_outputs(self.output, endings=(".json", ".csv"))
        console.prepare_outputs(self.plot, endings=(".png", ".svg", ".pdf"))
        if self.plot is not None:
            # Without matplotlib it is refused now, not after the work.
            from robfcp.figures import style

            with style():
                pass

    def load(self, data: str) -> tuple[ScenarioData, dict[str, Any]]:
        """Return the outputs of a name or file, and what scenarios take besides."""
        self.prepare()
        _check_choice("--partition", self.partition, _PARTITIONS)
        _check_choice("--n-malicious", self.n_malicious, _NUMBER_OF_MALICIOUS)
        if self.by is not None:
            _check_choice("--by", self.by, ("class",))
        is_natural = self.partition == "natural"
        if is_natural and self.beta is not None:
            raise RobfcpError("--beta: natural sites are as they are; leave --beta away")
        score = get_score(self.score)
        if not isinstance(score, ClassificationScore):
            raise RobfcpError(f"--score: {self.score} is a regression score; use {SCORES}")

        loaded = _load_outputs(data, self.site_column if is_natural else None)
        arguments = {
            "partition": loaded.partition,
            "score": score,
            "coverage": self.coverage,
            "min_client_size": self.min_client_size,
            "beta": self.beta,
            "n_malicious_known": self.n_malicious == "known",
            "exclude_exactly": self.exclude_exactly,
            "by": self.by,
            "min_cell_count": self.min_cell_count,
        }
        return loaded, arguments

    def write_results(
        self, printer: Printer, records: Any, draw: Callable[[], Any] | None = None
    ) -> None:
        """Write records and their figure where files are named for them.

        Parameters
        ----------
        printer : Printer
            It says where things went.
        records : list of mapping
            What was computed.
        draw : callable, optional
            Returns the figure.
        """
        if self.output is not None and self.output.suffix.lower() == ".csv":
            write_atomically(self.output, to_csv(records))
        else:
            console.save_json(self.output, records)
        if self.plot is not None and draw is not None:
            from robfcp.figures import save

            save(draw(), self.plot)
        printer.wrote(self.output, self.plot)


def _check_choice(option_name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value of an option that is none of its choices."""
    if value not in choices:
        raise RobfcpError(f"{option_name}: {value!r} is unknown here; use {' or '.join(choices)}")


def simulate(
    printer: Printer,
    scenario: ScenarioOptions,
    data: Data = "pathmnist",
    attack: Annotated[str, option("Attack of the malicious clients", among=ATTACKS)] = "coverage",
    malicious_fraction: Annotated[float, option("Fraction of malicious clients.")] = 0.4,
    n_clients: Annotated[int, option("Number of artificial clients.", min=1)] = 100,
    defense: Annotated[list[str] | None, option("Repeatable", among=DEFENSES)] = None,
    n_runs: Annotated[int, option("Number of runs.")] = 5,
    seed: console.Seed = 0,
) -> None:
    """Simulate federations without attack, attacked, and defended, on real model outputs.

    [dim]Example: robfcp experiments simulate mnist --attack coverage --plot attack.png[/dim]
    [dim]Example: robfcp experiments simulate stroke --partition natural --attack label-swap[/dim]
    """
    defenses = defense or list(SIMULATED_DEFENSES)
    loaded, arguments = scenario.load(data)
    with printer.busy("simulating", n_runs * len(defenses)) as step:
        rows = simulation.simulate(
            loaded.probabilities,
            loaded.labels,
            defenses=defenses,
            attack=attack,
            malicious_fraction=malicious_fraction,
            n_clients=n_clients,
            n_runs=n_runs,
            rng=seed,
            progress=partial(step, advance=1),
            **arguments,
        )
    means = list(simulation.summarize(rows))
    _print_simulation(rows[0], means, attack, scenario, printer)
    records = simulation.to_records(rows)
    draw = partial(simulation.plot_comparison, rows, scenario.coverage)
    scenario.write_results(printer, records, draw)
    printer.json({"rows": records, "summary": means})


def _print_simulation(
    first_row: Any,
    means: Sequence[Mapping[str, Any]],
    attack: str,
    scenario: ScenarioOptions,
    printer: Printer,
) -> None:
    """Print the means of each defense."""
    by_class_text = ", a threshold for each class" if scenario.by else ""
    column_names = list(_PRINTED_MEASURES.values())
    rows = []
    for mean in means:
        measures = [f"{mean[name]:.3f}" for name in _PRINTED_MEASURES]
        rows.append((mean["defense"], *measures))
    printer.table(
        f"{first_row.n_malicious} of {first_row.n_clients} sites attack ({attack}), "
        f"number {scenario.n_malicious}{by_class_text}; {scenario.reports_text}",
        ["defense", *column_names],
        rows,
    )


def redteam(
    printer: Printer,
    scenario: ScenarioOptions,
    data: Data = "mnist",
    attack: Annotated[list[str] | None, option("May be repeated; all of", among=ATTACKS)] = None,
    defense: Annotated[list[str] | None, option("Repeatable", among=team.DEFENSES)] = None,
    malicious_fraction: Annotated[
        list[float] | None, option("Fraction of malicious clients; repeatable.")
    ] = None,
    n_clients: Annotated[int, option("Number of artificial clients.")] = 20,
    n_runs: Annotated[int, option("Number of runs.")] = 3,
    search: Annotated[int, option("Instead: seek the worst lies in so many steps.", min=0)] = 0,
    trials: Annotated[int, advanced_option("Free steps of the adaptive attacker.")] = 50,
    seed: console.Seed = 0,
) -> None:
    """Run all attacks against all defenses on real model outputs.

    Each cell holds coverage minus that of the honest sites alone, and the set size over theirs;
    a star marks the worst of each defense. With --by class it ends with the worst class's coverage.
    With --search a liar who knows the rule and all honest reports seeks the lies that do most harm.

    [dim]Example: robfcp experiments redteam mnist --malicious-fraction 0.4 --plot redteam.png[/dim]
    [dim]Example: robfcp experiments redteam heart --attack coverage --n-clients 10[/dim]
    [dim]Example: robfcp experiments redteam mnist --search 400 --n-clients 10 --beta 0.1[/dim]
    """
    loaded, arguments = scenario.load(data)
    fractions = malicious_fraction or team.MALICIOUS_FRACTIONS
    arguments |= {
        "malicious_fractions": fractions,
        "n_clients": n_clients,
        "n_runs": n_runs,
        "rng": seed,
    }
    if search:
        if attack or scenario.plot:
            raise RobfcpError("--search: seeks its own attack and draws nothing; leave the other")
        arguments |= {"defenses": defense or [Consensus.name], "trials": search}
        _search_attacks(loaded, arguments, scenario, printer)
        return

    attacks = attack or tuple(ATTACKS)
    defenses = defense or team.DEFENSES
    n_steps = len(attacks) * len(fractions) * len(defenses) * n_runs
    with printer.busy("attacking", n_steps) as step:
        cells = team.redteam(
            loaded.probabilities,
            loaded.labels,
            attacks=attacks,
            defenses=defenses,
            trials=trials,
            progress=partial(step, advance=1),
            **arguments,
        )
    _print_cells(cells, scenario, printer)
    records = team.to_records(cells)
    scenario.write_results(printer, records, partial(team.plot_redteam, cells))
    printer.json(records)


def _search_attacks(
    loaded: ScenarioData, arguments: dict[str, Any], scenario: ScenarioOptions, printer: Printer
) -> None:
    """Search for the reports that do most harm, and print the worst of them."""
    n_searches = (
        len(arguments["defenses"]) * len(arguments["malicious_fractions"]) * arguments["n_runs"]
    )
    with printer.busy("searching", n_searches) as step:
        searches = team.search_attacks(
            loaded.probabilities, loaded.labels, progress=partial(step, advance=1), **arguments
        )

    n_steps = arguments["trials"]
    rows = []
    for search in searches[:MAX_SEARCHES_SHOWN]:
        changes = [f"{search[name]:+.3f}" for name in ("harm", "error", "undefended")]
        rows.append(
            (
                search["defense"],
                f"{search['malicious_fraction']:.0%} {search['seed']}",
                *changes,
                search["n_false_positives"],
                search["attack_family"],
            )
        )
    printer.table(
        f"coverage - benign in the worst of {len(searches)} searches, {n_steps} steps each; "
        f"{scenario.reports_text}",
        ["defense", "fraction, seed", "harm", "error", "undefended", "false positives", "attack"],
        rows,
    )
    if searches[0]["harm"] > HARMFUL:
        printer.line(f"no harmful attack found in {n_steps} steps; 400 to 1,000 are serious")
    printer.line(
        "error: coverage minus that of the benign clients alone; undefended: the same of FCP; "
        "harm: error - undefended, or - 0 where that gains; false positives: benign clients "
        "excluded"
    )
    scenario.write_results(printer, searches)
    printer.json(searches)


def _print_cells(cells: Sequence[Any], scenario: ScenarioOptions, printer: Printer) -> None:
    """Print a row for each attack and fraction of malicious clients, a column for each defense."""
    worst_cells = team.worst_cells(cells)
    texts: dict[tuple[str, float], dict[str, str]] = {}
    for cell in cells:
        text = f"{cell.coverage_error:+.3f} {cell.set_size_ratio:.2f}x"
        if scenario.by:
            text += f" {cell.worst_class_coverage:.3f}"
        if worst_cells[cell.defense] is cell:
            text += "*"
        texts.setdefault((cell.attack, cell.malicious_fraction), {})[cell.defense] = text

    rows = []
    for (attack, fraction), text_of_defense in texts.items():
        row = [text_of_defense.get(defense, "not run") for defense in worst_cells]
        rows.append((attack, f"{fraction:.0%}", *row))
    printer.table(
        f"coverage - benign, set size / benign{', worst class' if scenario.by else ''}; * worst; "
        f"{scenario.reports_text}",
        ["attack", "malicious", *worst_cells],
        rows,
    )
    baselines = [name for name in worst_cells if name in BASELINES and name not in ON_REPORTS]
    if baselines and scenario.min_cell_count > 1:
        printer.line(f"these get {team.EXACT_COUNTS}: {', '.join(baselines)}")


def compare(
    printer: Printer,
    data: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(team.COMPARED_DATASETS)}.")
    ] = None,
    attack: Annotated[list[str] | None, option("May be repeated", among=ATTACKS)] = None,
    n_clients: Annotated[int, option("Number of artificial clients.", min=2)] = 20,
    n_runs: Annotated[int, option("Number of runs.", min=1)] = 1,
    workers: Annotated[
        int | None, option("Number of processes; all cores by default.", min=1)
    ] = None,
    output: console.Output = None,
    plot: console.Plot = None,
    seed: console.Seed = 0,
) -> None:
    """Compare every federated conformal method, with and without malicious clients.

    Five data sets split among heterogeneous clients, and four natural partitions. Where all clients
    are benign: means of coverage, worst class, worst client, and set size over FCP's; then with one
    malicious client, 10%, 20% and 40%: the coverage lost and the growth of sets under the worst
    attack. All cells: --json, -o.

    [dim]Example: robfcp experiments compare heart --attack coverage[/dim]
    [dim]Example: robfcp experiments compare cifar10 --n-clients 5 --n-runs 50 -o all.csv[/dim]
    """
    scenario = ScenarioOptions(output=output, plot=plot)
    scenario.prepare()
    names = data or list(team.COMPARED_DATASETS)
    start = perf_counter()
    with printer.busy("comparing", len(names)) as step:
        cells = team.full_comparison(
            names,
            n_clients=n_clients,
            n_runs=n_runs,
            rng=seed,
            attacks=attack or team.COMPARED_ATTACKS,
            workers=workers or os.cpu_count() or 1,
            progress=partial(step, advance=1),
        )
    ranking = team.ranking(cells)
    _print_ranking(ranking, len(names), perf_counter() - start, printer)
    scenario.write_results(printer, cells, partial(team.plot_ranking, ranking))
    risks = [] if data else risk_table()
    if risks:
        printer.table(
            "a mean loss of at most 0.1",
            ["federation", "malicious", "method", "loss", "worst client", "above", "set size"],
            [tuple(risk.values()) for risk in risks],
        )
    printer.json({"cells": cells, "risks": risks})


def _print_ranking(
    ranking: Sequence[Mapping[str, Any]], n_federations: int, seconds: float, printer: Printer
) -> None:
    """Print how each method does, without and with malicious clients."""
    steps = [name for name in team.STEPS if name in ranking[0]]
    rows: list[tuple[str, ...]] = []
    exact_rows: list[tuple[str, ...]] = []
    for line in ranking:
        benign_measures = [f"{line[name]:.3f}" for name in team.BENIGN_MEASURES]
        costs = []
        for name in steps:
            coverage_lost, growth = line[name]
            costs.append(f"{coverage_lost:+.2f} {growth:.1f}x")
        table_rows = exact_rows if team.is_on_exact_counts(line) else rows
        table_rows.append((line["method"], *benign_measures, *costs))
    noun = "federations"
    if n_federations == 1:
        noun = "federation"
    printer.table(
        f"{n_federations} {noun}, {seconds:.0f} seconds; ours on default reports",
        ["method", "coverage", "worst class", "worst client", "set size", *steps],
        rows,
    )
    printer.table(
        f"the same on {team.EXACT_COUNTS}",
        ["method", "coverage", "worst class", "worst client", "set size", *steps],
        exact_rows,
    )
    printer.line(
        "coverage, worst class, worst client, set size (over FCP's): where all clients are benign; "
        "then coverage lost and growth of sets under the worst attack. Methods of other papers get "
        "exact counts; local-clipped and class-conditional get reports by class"
    )


def reproduce(
    printer: Printer,
    names: Annotated[list[str] | None, typer.Argument(help="Experiments, or all.")] = None,
    output: Annotated[Path, option("Folder of results.", "--output", "-o")] = Path("out/paper"),
    n_runs: Annotated[int, option("Runs of every cell.")] = 10,
    workers: Annotated[
        int | None, option("Number of processes; all cores by default.", min=1)
    ] = None,
    resume: Annotated[bool, option("Keep what an earlier call has run.")] = True,
    page: Annotated[Path | None, option("Write a Markdown page of all results.")] = None,
) -> None:
    """Repeat the paper's experiments on shipped model outputs.

    Each leaves NAME.csv and some NAME.png. A call that was stopped goes on where it was.

    [dim]Example: robfcp experiments reproduce main benign -o out/paper[/dim]
    [dim]Example: robfcp experiments reproduce bounds --n-runs 2 --workers 1 -o out/paper[/dim]
    """
    titles = paper.TITLES
    if not names:
        printer.table(
            "robfcp experiments reproduce NAME ... (or all)", ["name", "shows"], titles.items()
        )
        printer.json({"experiments": titles})
        return
    console.prepare_outputs(page, output / "any")
    experiments = list(dict.fromkeys(names))
    if "all" in names:
        experiments = list(titles)
    with printer.busy("running") as step:

        def start(total: int) -> None:
            """Show how many steps there are."""
            step(total=total)

        tables = paper.reproduce(
            experiments,
            output,
            n_runs=n_runs,
            workers=workers,
            resume=resume,
            start=start,
            advance=partial(step, advance=1),
        )
    for name, rows in tables.items():
        printer.line(f"{name}: {titles[name]} ({len(rows)} rows)")
    if page is not None:
        paper.write_page(output, page)
        printer.wrote(page)
    for name in experiments:
        printer.line(f"-> {output / name}.csv")
    printer.json(tables)


@dataclass(frozen=True)
class TrainOptions:
    """What is trained, on what, and for how long."""

    data_dir: Annotated[Path | None, option("Where the data sets are; else $ROBFCP_DATA.")] = None
    verify: Annotated[bool, option("Check checksums and counts.")] = True
    model: Annotated[str | None, option("cnn, resnet18, mlp or leave-sites-out.")] = None
    beta: Annotated[float | None, option("Dirichlet split; without it iid.")] = None
    rounds: Annotated[int | None, option("Rounds of training.")] = None
    n_clients: Annotated[int | None, option("Number of clients (100).")] = None
    checkpoint: Annotated[Path | None, option("Safetensors file to save and resume.")] = None
    device: Annotated[str, option("auto, cpu or cuda.")] = "auto"
    bits: Annotated[int, advanced_option("16 or 8 bits a stored logit.")] = 16
    stop_after: Annotated[int | None, advanced_option("End after this many rounds.")] = None
    seed: console.Seed = 0

    def is_leave_one_out(self, dataset: str) -> bool:
        """Whether a model is trained for each site that is left out."""
        if self.model is not None:
            return self.model == LEAVE_ONE_OUT
        is_partitioned = dataset in datasets.dataset_names(sites=True)
        return is_partitioned and dataset not in datasets.dataset_names()

    def check_leave_one_out(self) -> None:
        """Refuse options that only federated training has."""
        for name in ("beta", "rounds", "n_clients", "checkpoint", "stop_after"):
            if getattr(self, name) is not None:
                option_name = name.replace("_", "-")
                raise RobfcpError(
                    f"--{option_name}: says nothing to leave-sites-out; leave it away"
                )


def train(
    options: TrainOptions,
    printer: Printer,
    dataset: Annotated[str, typer.Argument(help=f"One of {DATASETS}.")],
    output: Annotated[Path, option("Where the outputs go (npz).", "--output", "-o")],
) -> None:
    """Train a model over simulated clients, or leaving real ones out, and save its outputs.

    Settings left out are those of the shipped models. The file holds logits below each row's
    largest, labels, groups and sites; robfcp.experiments.outputs.read gives the probabilities.

    [dim]Example: robfcp experiments train mnist --data-dir data --beta 0.5 -o mnist.npz[/dim]
    [dim]Example: robfcp experiments train stroke --model leave-sites-out -o stroke.npz[/dim]
    """
    console.prepare_outputs(output, options.checkpoint)
    if options.is_leave_one_out(dataset):
        options.check_leave_one_out()
        record = _train_leave_one_out(dataset, output, options, printer)
    else:
        record = _train_federated(dataset, output, options, printer)
    record = {"dataset": dataset, **record}
    console.save_json(output.with_suffix(".json"), record)
    single_values = {
        name: value for name, value in record.items() if isinstance(value, (int, float, str))
    }
    printer.table(
        str(output),
        [name.replace("_", " ") for name in single_values],
        [list(single_values.values())],
    )
    printer.json(record)


def _train_leave_one_out(
    dataset: str, output: Path, options: TrainOptions, printer: Printer
) -> dict[str, Any]:
    """Train on all sites but one, for each of them; write the outputs and return the record."""
    from robfcp.experiments.natural_partitions import (
        LEAVE_OUT,
        LeaveOutSettings,
        leave_one_site_out,
    )

    data = datasets.load(dataset, options.data_dir, partitioned=True, verify=options.verify)
    settings = replace(LEAVE_OUT.get(dataset, LeaveOutSettings()), seed=options.seed)
    start = perf_counter()
    with printer.busy(f"training {dataset}", settings.folds) as step:
        table, logits, library = leave_one_site_out(data, settings, partial(step, advance=1))
    seconds = perf_counter() - start

    labels = table.y
    outputs.write_outputs(output, logits, labels, None, options.bits, table.columns)
    is_right = logits.argmax(axis=1) == labels
    return {
        "n_clients": len(set(table.sites.tolist())),
        "n_samples": len(labels),
        "accuracy": float(is_right.mean()),
        "commonest_class": float(np.bincount(labels).max() / len(labels)),
        "seconds": seconds,
        "features": list(data.features) or data.x.shape[1],
        "class_names": list(data.classes),
        "library": library,
        "settings": asdict(settings),
    }


def _train_federated(
    dataset: str, output: Path, options: TrainOptions, printer: Printer
) -> dict[str, Any]:
    """Train over simulated sites; write the outputs and return the record."""
    from robfcp.experiments.training import recipe
    from robfcp.experiments.training import train as run_training

    images = datasets.load(dataset, options.data_dir, verify=options.verify)
    settings = recipe(
        dataset=dataset,
        model=options.model,
        seed=options.seed,
        beta=options.beta,
        rounds=options.rounds,
        clients=options.n_clients,
    )
    start = perf_counter()
    with printer.busy(f"training {dataset}", options.stop_after or settings.rounds) as step:

        def show_round(n_rounds: int) -> None:
            """Show how many rounds are done."""
            step(completed=n_rounds)

        logits, history = run_training(
            images,
            settings,
            checkpoint=options.checkpoint,
            stop_after=options.stop_after,
            on_round=show_round,
            device=options.device,
        )
    seconds = perf_counter() - start

    outputs.write_outputs(output, logits, images.test.y, images.test.groups, options.bits)
    _, last_accuracy = history[-1]
    return {
        "accuracy": last_accuracy,
        "history": history,
        "seconds": seconds,
        "train_samples": len(images.train),
        "test_samples": len(images.test),
        "settings": asdict(settings),
    }


def bench(
    printer: Printer,
    n_clients: Annotated[int, option("Number of clients.", min=1)] = 1000,
    n_samples: Annotated[int, option("Samples of each client.", min=1)] = 500,
    repeat: Annotated[int, option("Runs a stage; the fastest counts.", min=1)] = 3,
    seed: console.Seed = 0,
) -> None:
    """Time every stage from probabilities to prediction sets on simulated data.

    [dim]Example: robfcp experiments bench --n-clients 1000 --n-samples 500[/dim]
    [dim]Example: robfcp experiments bench --n-clients 50 --n-samples 100 --repeat 1 --json[/dim]
    """
    stages = _bench_stages(n_clients, n_samples, seed)
    seconds = dict.fromkeys(stages, np.inf)
    with printer.busy("timing", len(stages) * repeat) as step:
        for _ in range(repeat):
            for name, run_stage in stages.items():
                start = perf_counter()
                run_stage()
                seconds[name] = min(seconds[name], perf_counter() - start)
                step(advance=1)

    total = sum(seconds.values())
    rows = []
    for name, fastest in seconds.items():
        rows.append((name, f"{1000 * fastest:.2f}", f"{fastest / total:.1%}"))
    printer.table(
        f"{n_clients} sites, {n_samples} samples each, 10 classes",
        ["stage", "milliseconds", "share"],
        rows,
    )
    printer.json({"n_clients": n_clients, "n_samples": n_samples, "seconds": seconds})


def _bench_stages(n_clients: int, n_samples: int, seed: int) -> dict[str, Callable[[], Any]]:
    """Return what is timed by its name, on simulated data of 10 classes."""
    from robfcp import LAC, Consensus, Federation, Report, RobFCP
    from robfcp._validation import parse_level
    from robfcp.defense import estimate_n_malicious
    from robfcp.guarantees import certify_threshold, fcp_bin_index, marginal_threshold_bin

    rng = np.random.default_rng(seed)
    score = LAC()
    level = parse_level(0.9)
    probabilities = rng.dirichlet(np.full(10, 0.3), n_samples).astype(np.float32)
    labels = rng.integers(0, 10, n_samples)
    client_scores = rng.beta(0.5, 2, (n_clients, n_samples))
    reports = []
    for index, scores in enumerate(client_scores):
        reports.append(Report.from_scores(f"{index:07d}", scores, score=score))
    federation = Federation.from_reports(reports)
    max_malicious = (n_clients - 1) // 4
    bin_index = fcp_bin_index(federation, level)

    def read_report() -> Report:
        """Write a report and read it again."""
        return Report.from_json(reports[0].to_json())

    def predict() -> Any:
        """Predict the sets of one client's samples."""
        return score.prediction_sets(probabilities, [0.9])

    rob_fcp = RobFCP(max_malicious)
    consensus = Consensus(max_malicious=max_malicious)
    return {
        "score (one site)": partial(score, probabilities, labels),
        "report (one site)": partial(Report.from_scores, "a", client_scores[0], score=score),
        "read and validate a report": read_report,
        "stack the federation": partial(Federation.from_reports, reports),
        "defend: rob-fcp": partial(rob_fcp.assess, federation),
        "defend: consensus": partial(consensus.assess, federation),
        "count": partial(estimate_n_malicious, federation),
        "quantile": partial(fcp_bin_index, federation, level),
        "guaranteed threshold": partial(marginal_threshold_bin, federation, level, max_malicious),
        "certify": partial(certify_threshold, federation, bin_index, max_malicious),
        "predict (one site)": predict,
    }
