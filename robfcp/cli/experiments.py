"""`robfcp lab`: train models, repeat the paper, simulate, attack defences, time every stage."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter as now
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
from robfcp.experiments import datasets, outputs, paper
from robfcp.experiments import redteam as team
from robfcp.experiments import simulation as range_
from robfcp.experiments.attacks import ATTACKS
from robfcp.experiments.natural_partitions import risk_table
from robfcp.experiments.paper.tables import to_csv
from robfcp.scores import ClassificationScore, get_score

SCORES = "lac, aps, raps, saps or ordinal-aps"
DATASETS = ", ".join(
    dict.fromkeys([*datasets.dataset_names(), *datasets.dataset_names(sites=True)])
)
_PARTITIONS, TOLD = ("artificial", "natural"), ("known", "estimate")

Data = Annotated[str, typer.Argument(help="Shipped outputs by name, or a .npz or .csv file.")]
_PRINTED_MEASURES = ("coverage", "worst_class_coverage", "worst_site_coverage", "set_size", "error",
           "flagged", "caught")  # fmt: skip


def _load_outputs(name: str, column: str | None) -> tuple[Any, Any, Any]:
    """Probabilities, labels and, where a column of them is named, sites: of shipped outputs by
    name, or of a file."""
    path = Path(name)
    arrays: list[str] = []
    with suppress(RobfcpError, OSError):  # of what is no such file the table's reader says why
        arrays, _ = read_arrays(path)
    if name in outputs.names():
        every = [one["dataset"] for one in outputs.entries() if one["split"] == outputs.NATURAL]
        if column is not None and name not in every:
            known = ", ".join(every)
            raise RobfcpError(f"--sites: {name} has no sites of its own; use one of {known}")
        shipped = outputs.load(name) if column is None else outputs.load(name, outputs.NATURAL)
    elif not path.suffix:
        known = ", ".join(outputs.names())
        raise RobfcpError(f"{name}: no outputs of that name ship; use one of {known}, or a file")
    elif "depth" in arrays:
        shipped = outputs.read(name)
    else:
        found = read_outputs(path, needs_targets=True, columns=[column], expects="classes")
        return found.predictions, found.targets, found.columns.get(column or "")
    sites = None if column is None else shipped.column(column)
    return shipped.probabilities, shipped.labels, sites


@dataclass(frozen=True)
class ScenarioOptions:
    """What `simulate` and `redteam` are both told of sites, liars and the level."""

    sites: Annotated[str, option("The data's own or not", among=_PARTITIONS)] = "artificial"
    coverage: Annotated[float, option("Wanted coverage.")] = 0.9
    output: console.Output = None
    plot: console.Plot = None
    site_column: Annotated[
        str, advanced_option("What natural sites are: site, country or group.")
    ] = "site"
    min_size: Annotated[int, advanced_option("Smaller natural sites are left out.", min=2)] = 20
    beta: Annotated[float | None, advanced_option("Dirichlet; without it sites are alike.")] = None
    liars: Annotated[str, advanced_option("Whether their number is told", among=TOLD)] = "known"
    exactly: Annotated[bool, advanced_option("Leave out exactly so many.", "--exactly")] = False
    score: Annotated[str, advanced_option(f"{SCORES}.")] = "lac"
    by: Annotated[str | None, advanced_option("class: a threshold a class; else one for all.")] = (
        None
    )

    def prepare(self) -> None:
        """Make sure that what is found can be written."""
        console.prepare_outputs(self.output, endings=(".json", ".csv"))
        console.prepare_outputs(self.plot, endings=(".png", ".svg", ".pdf"))
        if self.plot is not None:  # without matplotlib it is refused now, not after the work
            from robfcp.figures import style

            with style():
                pass

    def scenario_arguments(self, data: str) -> tuple[Any, Any, dict[str, Any]]:
        """Probabilities, labels and what the test range takes besides."""
        self.prepare()
        for name, known in (("sites", _PARTITIONS), ("liars", TOLD), ("by", (None, "class"))):
            if (given := getattr(self, name)) not in known:
                words = " or ".join(word for word in known if word)
                raise RobfcpError(f"--{name}: {given!r} is unknown here; use {words}")
        natural = self.sites == "natural"
        if natural and self.beta is not None:
            raise RobfcpError("--beta: natural sites are as they are; leave --beta away")
        rule = get_score(self.score)
        if not isinstance(rule, ClassificationScore):
            raise RobfcpError(f"--score: {self.score} is a regression score; use {SCORES}")
        p, labels, own = _load_outputs(data, self.site_column if natural else None)
        same = ("coverage", "min_size", "beta", "liars", "exactly", "by")
        told = {name: getattr(self, name) for name in same}
        return p, labels, {**told, "sites": own, "score": rule}

    def write_results(
        self, printer: Printer, records: Any, draw: Callable[[], Any] | None = None
    ) -> None:
        """What was found as a file, the figure, and where things went."""
        if self.output is not None and self.output.suffix.lower() == ".csv":
            write_atomically(self.output, to_csv(records))
        else:
            console.save_json(self.output, records)
        if self.plot is not None and draw is not None:
            from robfcp.figures import save

            save(draw(), self.plot)
        printer.wrote(self.output, self.plot)


def simulate(
    printer: Printer,
    told: ScenarioOptions,
    data: Data = "pathmnist",
    attack: Annotated[str, option("What liars do", among=ATTACKS)] = "coverage",
    share: Annotated[float, option("Share of sites that attack.")] = 0.4,
    clients: Annotated[int, option("Number of artificial sites.", min=1)] = 100,
    defence: Annotated[list[str] | None, option("Repeatable", among=DEFENSES)] = None,
    seeds: Annotated[int, option("Number of runs.")] = 5,
    seed: console.Seed = 0,
) -> None:
    """Run honest, attacked and defended federations on real model outputs.

    [dim]Example: robfcp lab simulate mnist --attack coverage --share 0.4 --plot attack.png[/dim]
    [dim]Example: robfcp lab simulate stroke --sites natural --attack swapped-labels[/dim]
    """
    defences = defence or ["none", "rob-fcp", Consensus.name]
    p, labels, setting = told.scenario_arguments(data)
    setting |= {
        "attack": attack,
        "share": share,
        "n_clients": clients,
        "n_runs": seeds,
        "rng": seed,
    }
    with printer.busy("simulating", seeds * len(defences)) as step:
        setting["progress"] = lambda: step(advance=1)
        rows = range_.simulate(p, labels, defenses=defences, **setting)
    first, means = rows[0], list(range_.summarize(rows))
    printer.table(
        f"{first.n_malicious} of {first.n_clients} sites attack ({attack}), number {told.liars}"
        f"{', a threshold for each class' if told.by else ''}",
        ["defence", *(name.removeprefix("worst_").partition("_")[0] for name in _PRINTED_MEASURES)],
        [(one["defence"], *(f"{one[name]:.3f}" for name in _PRINTED_MEASURES)) for one in means],
    )
    records = range_.to_records(rows)
    told.write_results(printer, records, lambda: range_.plot_comparison(rows, told.coverage))
    printer.json({"rows": records, "summary": means})


def redteam(
    printer: Printer,
    told: ScenarioOptions,
    data: Data = "mnist",
    attack: Annotated[list[str] | None, option("May be repeated; all of", among=ATTACKS)] = None,
    defence: Annotated[list[str] | None, option("Repeatable", among=team.DEFENSES)] = None,
    share: Annotated[list[float] | None, option("Share that attacks; repeatable.")] = None,
    clients: Annotated[int, option("Number of artificial sites.")] = 20,
    seeds: Annotated[int, option("Number of runs.")] = 3,
    search: Annotated[int, option("Instead: seek the worst lies in so many steps.", min=0)] = 0,
    trials: Annotated[int, advanced_option("Free steps of the adaptive attacker.")] = 50,
    seed: console.Seed = 0,
) -> None:
    """Run all attacks against all defences on real model outputs.

    Each cell holds coverage minus that of the honest sites alone, and the set size over theirs;
    a star marks the worst of each defence. With --by class it ends with the worst class's coverage.
    With --search a liar who knows the rule and all honest reports seeks the lies that do most harm.

    [dim]Example: robfcp lab redteam mnist --share 0.4 --plot redteam.png[/dim]
    [dim]Example: robfcp lab redteam heart --sites natural --share 0.25 --seeds 1[/dim]
    [dim]Example: robfcp lab redteam mnist --search 400 --clients 10 --beta 0.1 --share 0.4[/dim]
    """
    attacks, shares = attack or tuple(ATTACKS), share or team.MALICIOUS_FRACTIONS
    p, labels, setting = told.scenario_arguments(data)
    same: dict[str, Any] = {"n_clients": clients, "n_runs": seeds, "rng": seed, **setting}
    if search:
        if attack or told.plot:
            raise RobfcpError("--search: seeks its own attack and draws nothing; leave the other")
        rules = defence or [Consensus.name]
        with printer.busy("searching", len(rules) * len(shares) * seeds) as step:
            same |= {"trials": search, "progress": lambda: step(advance=1)}
            found = team.search_attacks(
                p, labels, defenses=rules, malicious_fractions=shares, **same
            )
        printer.table(
            f"coverage - honest in the worst of {len(found)} worlds, {search} steps each",
            ["defence", "world", "harm", "error", "undefended", "honest out", "lies"],
            [
                (one["defence"], f"{one['share']:.0%} {one['seed']}",
                 *(f"{one[name]:+.3f}" for name in ("harm", "error", "undefended")),
                 one["honest_left_out"], one["lies"])
                for one in found[:10]
            ],
        )  # fmt: skip
        if found[0]["harm"] > -0.0005:
            printer.line(f"no harmful lie found in {search} steps; 400 to 1,000 are serious")
        printer.line(
            "error: coverage minus that of the honest sites alone; undefended: the same of FCP; "
            "harm: error - undefended, or - 0 where that gains; honest out: honest sites left out"
        )
        told.write_results(printer, found)
        printer.json(found)
        return
    defences = defence or team.DEFENSES
    total = len(attacks) * len(shares) * len(defences) * seeds
    with printer.busy("attacking", total) as step:
        same |= {"trials": trials, "progress": lambda: step(advance=1)}
        cells = team.redteam(
            p, labels, attacks=attacks, defenses=defences, malicious_fractions=shares, **same
        )
    marked, by = team.worst_cells(cells), told.by
    lines: dict[tuple[str, float], dict[str, str]] = {}
    for cell in cells:
        words = f"{cell.coverage_error:+.3f} {cell.set_size_ratio:.2f}x"
        words += f" {cell.worst_class_coverage:.3f}" if by else ""
        star = "*" if marked[cell.defence] is cell else ""
        lines.setdefault((cell.attack, cell.share), {})[cell.defence] = words + star
    printer.table(
        f"coverage - honest, set size / honest{', worst class' if by else ''}; * worst",
        ["attack", "share", *marked],
        [
            (name, f"{part:.0%}", *(row.get(one, "not run") for one in marked))
            for (name, part), row in lines.items()
        ],
    )
    records = team.to_records(cells)
    told.write_results(printer, records, lambda: team.plot_redteam(cells))
    printer.json(records)


def compare(
    printer: Printer,
    data: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(team.COMPARED_DATASETS)}.")
    ] = None,
    attack: Annotated[list[str] | None, option("May be repeated", among=ATTACKS)] = None,
    clients: Annotated[int, option("Number of artificial sites.", min=2)] = 20,
    seeds: Annotated[int, option("Number of runs.", min=1)] = 1,
    workers: Annotated[int | None, option("Processes; all cores unless told.", min=1)] = None,
    output: console.Output = None,
    plot: console.Plot = None,
    seed: console.Seed = 0,
) -> None:
    """Compare every federated conformal method, with and without liars.

    Five data sets cut into unlike sites and four federations as they are. Where nobody lies: means
    of coverage, worst class, worst site, and set size over FCP's; then with one liar, 10, 20 and
    40%: the coverage lost and the growth of sets under the worst attack. All cells: --json, -o.

    [dim]Example: robfcp lab rivals heart --attack coverage[/dim]
    [dim]Example: robfcp lab rivals cifar10 pathmnist --clients 5 --seeds 50 -o field.csv[/dim]
    """
    told = ScenarioOptions(output=output, plot=plot)
    told.prepare()
    chosen, started = data or list(team.COMPARED_DATASETS), now()
    same: dict[str, Any] = {"n_clients": clients, "seeds": seeds, "rng": seed}
    same |= {"attacks": attack or team.COMPARED_ATTACKS, "workers": workers or os.cpu_count() or 1}
    with printer.busy("comparing", len(chosen)) as step:
        cells = team.full_comparison(chosen, progress=lambda: step(advance=1), **same)
    lines = team.ranking(cells)
    steps = [name for name in team.STEPS if name in lines[0]]
    printer.table(
        f"{len(chosen)} federation{'s'[: len(chosen) - 1]}, {now() - started:.0f} seconds",
        ["method", "covered", "class", "site", "size", *steps],
        [
            (line["method"], *(f"{line[name]:.3f}" for name in team.BENIGN_MEASURES),
             *("{:+.2f} {:.1f}x".format(*line[name]) for name in steps))
            for line in lines
        ],
    )  # fmt: skip
    printer.line(
        "covered, class, site, size: coverage, that of the worst class and site, and set size over "
        "FCP's, nobody lying; then coverage lost and growth of sets under the worst attack"
    )
    told.write_results(printer, cells, lambda: team.plot_ranking(lines))
    risks = [] if data else risk_table()
    if risks:
        columns = ["federation", "liars", "rule", "loss", "worst site", "above", "set size"]
        printer.table("a mean loss of at most 0.1", columns, [tuple(row.values()) for row in risks])
    printer.json({"cells": cells, "risks": risks})


def reproduce(
    printer: Printer,
    names: Annotated[list[str] | None, typer.Argument(help="Experiments, or all.")] = None,
    output: Annotated[Path, option("Folder of results.", "--output", "-o")] = Path("out/paper"),
    seeds: Annotated[int, option("Runs of every cell.")] = 10,
    workers: Annotated[int | None, option("Processes; all cores unless told.", min=1)] = None,
    resume: Annotated[bool, option("Keep what an earlier call has run.")] = True,
    page: Annotated[Path | None, option("Write a Markdown page of all results.")] = None,
) -> None:
    """Repeat the paper's experiments on shipped model outputs.

    Each leaves NAME.csv and some NAME.png. A call that was stopped goes on where it was.

    [dim]Example: robfcp lab reproduce main benign -o out/paper[/dim]
    [dim]Example: robfcp lab reproduce bounds --seeds 2 --workers 1 -o out/paper[/dim]
    """
    known = paper.TITLES
    if not names:
        printer.table("robfcp lab reproduce NAME ... (or all)", ["name", "shows"], known.items())
        printer.json({"experiments": known})
        return
    console.prepare_outputs(page, output / "any")
    chosen = list(known) if "all" in names else list(dict.fromkeys(names))
    told: dict[str, Any] = {"seeds": seeds, "workers": workers, "resume": resume}
    with printer.busy("running") as step:
        told |= {"start": lambda total: step(total=total), "advance": lambda: step(advance=1)}
        tables = paper.reproduce(chosen, output, **told)
    for name, rows in tables.items():
        printer.line(f"{name}: {known[name]} ({len(rows)} rows)")
    if page is not None:
        paper.write_page(output, page)
        printer.wrote(page)
    for name in chosen:
        printer.line(f"-> {output / name}.csv")
    printer.json(tables)


def train(
    printer: Printer,
    dataset: Annotated[str, typer.Argument(help=f"One of {DATASETS}.")],
    output: Annotated[Path, option("Where the outputs go (npz).", "--output", "-o")],
    data_dir: Annotated[Path | None, option("Where the data sets are; else $ROBFCP_DATA.")] = None,
    verify: Annotated[bool, option("Check checksums and counts.")] = True,
    model: Annotated[str | None, option("cnn, resnet18, mlp or leave-sites-out.")] = None,
    beta: Annotated[float | None, option("Dirichlet split; without it iid.")] = None,
    rounds: Annotated[int | None, option("Rounds of training.")] = None,
    clients: Annotated[int | None, option("Number of sites (100).")] = None,
    checkpoint: Annotated[Path | None, option("Safetensors file to save and resume.")] = None,
    device: Annotated[str, option("auto, cpu or cuda.")] = "auto",
    bits: Annotated[int, advanced_option("16 or 8 bits a stored logit.")] = 16,
    stop_after: Annotated[int | None, advanced_option("End after this many rounds.")] = None,
    seed: console.Seed = 0,
) -> None:
    """Train a model over simulated sites, or leaving real sites out, and save its outputs.

    Settings left out are those of the shipped models. The file holds logits below each row's
    largest, labels, groups and sites; robfcp.experiments.outputs.read gives the probabilities.

    [dim]Example: robfcp lab train mnist --data-dir data --beta 0.5 -o mnist.npz[/dim]
    [dim]Example: robfcp lab train stroke --model leave-sites-out -o stroke.npz[/dim]
    """
    console.prepare_outputs(output, checkpoint)
    told = {"beta": beta, "rounds": rounds, "clients": clients}
    where: dict[str, Any] = {"checkpoint": checkpoint, "stop_after": stop_after}
    record: dict[str, Any]
    natural_only = (
        dataset in datasets.dataset_names(sites=True) and dataset not in datasets.dataset_names()
    )
    if model == "leave-sites-out" or (natural_only and model is None):
        given = next((name for name, value in (told | where).items() if value is not None), None)
        if given is not None:
            option = given.replace("_", "-")
            raise RobfcpError(f"--{option}: says nothing to leave-sites-out; leave it away")
        from robfcp.experiments.natural_partitions import (
            LEAVE_OUT,
            LeaveOutSettings,
            leave_one_site_out,
        )

        data = datasets.load(dataset, data_dir, partitioned=True, verify=verify)
        plan, started = replace(LEAVE_OUT.get(dataset, LeaveOutSettings()), seed=seed), now()
        with printer.busy(f"training {dataset}", plan.folds) as step:
            table, logits, library = leave_one_site_out(data, plan, lambda: step(advance=1))
        seconds, y = now() - started, table.y
        outputs.write(output, logits, y, None, bits, table.columns)
        record = {
            "sites": len(set(table.sites.tolist())),
            "samples": len(y),
            "accuracy": float((logits.argmax(axis=1) == y).mean()),
            "commonest_class": float(np.bincount(y).max() / len(y)),
            "seconds": seconds,
            "features": list(data.features) or data.x.shape[1],
            "class_names": list(data.classes),
            "library": library,
            "settings": asdict(plan),
        }
    else:
        from robfcp.experiments.training import recipe
        from robfcp.experiments.training import train as run

        images = datasets.load(dataset, data_dir, verify=verify)
        settings, started = recipe(dataset=dataset, model=model, seed=seed, **told), now()
        with printer.busy(f"training {dataset}", stop_after or settings.rounds) as step:
            shown: Any = {"on_round": lambda done: step(completed=done), "device": device}
            trained, history = run(images, settings, **where, **shown)
        seconds = now() - started
        outputs.write(output, trained, images.test.y, images.test.groups, bits)
        record = {
            "accuracy": history[-1][1],
            "history": history,
            "seconds": seconds,
            "train_samples": len(images.train),
            "test_samples": len(images.test),
            "settings": asdict(settings),
        }
    record = {"dataset": dataset, **record}
    console.save_json(output.with_suffix(".json"), record)
    shown = {name: value for name, value in record.items() if isinstance(value, (int, float, str))}
    printer.table(str(output), [name.replace("_", " ") for name in shown], [list(shown.values())])
    printer.json(record)


def bench(
    printer: Printer,
    clients: Annotated[int, option("Number of sites.", min=1)] = 1000,
    samples: Annotated[int, option("Samples a site.", min=1)] = 500,
    repeat: Annotated[int, option("Runs a stage; the fastest counts.", min=1)] = 3,
    seed: console.Seed = 0,
) -> None:
    """Time every stage from probabilities to prediction sets on simulated data.

    [dim]Example: robfcp lab bench --clients 1000 --samples 500[/dim]
    [dim]Example: robfcp lab bench --clients 50 --samples 100 --repeat 1 --json[/dim]
    """
    from robfcp import LAC, Consensus, Federation, Report, RobFCP
    from robfcp._validation import parse_level
    from robfcp.defense import estimate_n_malicious
    from robfcp.guarantees import certify_threshold, fcp_bin_index, marginal_threshold_bin

    rng, score, level = np.random.default_rng(seed), LAC(), parse_level(0.9)
    site = rng.dirichlet(np.full(10, 0.3), samples).astype(np.float32)
    label = rng.integers(0, 10, samples)
    rows = rng.beta(0.5, 2, (clients, samples))
    reports = [Report.from_scores(f"{k:07d}", row, score=score) for k, row in enumerate(rows)]
    federation, liars = Federation.from_reports(reports), (clients - 1) // 4
    index = fcp_bin_index(federation, level)
    stages: dict[str, Callable[[], Any]] = {
        "score (one site)": lambda: score(site, label),
        "report (one site)": lambda: Report.from_scores("a", rows[0], score=score),
        "read and validate a report": lambda: Report.from_json(reports[0].to_json()),
        "stack the federation": lambda: Federation.from_reports(reports),
        "defend: rob-fcp": lambda: RobFCP(liars).assess(federation),
        "defend: consensus": lambda: Consensus(at_most=liars).assess(federation),
        "count": lambda: estimate_n_malicious(federation),
        "quantile": lambda: fcp_bin_index(federation, level),
        "guaranteed threshold": lambda: marginal_threshold_bin(federation, level, liars),
        "certify": lambda: certify_threshold(federation, index, liars),
        "predict (one site)": lambda: score.prediction_sets(site, [0.9]),
    }
    seconds = dict.fromkeys(stages, np.inf)
    with printer.busy("timing", len(stages) * repeat) as step:
        for name in [*stages] * repeat:
            start = now()
            stages[name]()
            seconds[name] = min(seconds[name], now() - start)
            step(advance=1)
    total = sum(seconds.values())
    printer.table(
        f"{clients} sites, {samples} samples each, 10 classes",
        ["stage", "milliseconds", "share"],
        [(name, f"{1000 * s:.2f}", f"{s / total:.1%}") for name, s in seconds.items()],
    )
    printer.json({"clients": clients, "samples": samples, "seconds": seconds})
