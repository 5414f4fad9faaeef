"""`robfcp train`: models of public data sets, ending in a file of probabilities."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from robfcp.cli._common import Json, Printer, Quiet, Seed, json_text, prepare
from robfcp.errors import RobfcpError
from robfcp.files import write_atomically
from robfcp.lab import datasets, outputs

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where the data sets are; else $ROBFCP_DATA.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train", no_args_is_help=True)(train)


def train(
    dataset: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join(datasets.names())}; with --model leave-sites-out one of "
            f"{', '.join(datasets.site_names())}."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the outputs go (npz).")],
    data_dir: DataDir = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing files.")] = False,
    verify: Annotated[bool, typer.Option(help="Check checksums and counts.")] = True,
    beta: Annotated[float | None, typer.Option(help="Dirichlet split; without it iid.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="cnn, resnet18 or mlp; or leave-sites-out: scikit-learn models of the data's own "
            "sites, each site predicted by one that never saw it."
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of sites (100).")] = None,
    fraction: Annotated[float | None, typer.Option(help="Share of sites a round.")] = None,
    local_epochs: Annotated[int | None, typer.Option(help="Epochs a site trains.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="At the first round.")] = None,
    aggregation: Annotated[
        str | None, typer.Option(help="mean, median, trimmed-mean or multi-krum.")
    ] = None,
    malicious: Annotated[int | None, typer.Option(help="Sites that poison updates.")] = None,
    poison_strength: Annotated[float | None, typer.Option(help="How hard they do.")] = None,
    stop_after: Annotated[int | None, typer.Option(help="End after this many rounds.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Safetensors file to save to and resume from.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    bits: Annotated[int, typer.Option(help="16 or 8 bits a stored logit.")] = 16,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model over simulated sites, or leaving real sites out, and save its outputs.

    Settings left out are those of the shipped models. The file holds logits below each row's
    largest, labels, groups and sites; robfcp.lab.outputs.read gives the probabilities.

    [dim]Example: robfcp train mnist --data-dir data --beta 0.5 -o mnist.npz[/dim]
    [dim]Example: robfcp train stroke --model leave-sites-out --data-dir data -o stroke.npz[/dim]
    """
    printer = Printer(as_json, quiet)
    prepare(output, checkpoint)
    natural_only = dataset in datasets.site_names() and dataset not in datasets.names()
    if model == "leave-sites-out" or (natural_only and model is None):
        unused = {
            "--beta": beta, "--rounds": rounds, "--clients": clients, "--fraction": fraction,
            "--local-epochs": local_epochs, "--batch": batch, "--aggregation": aggregation,
            "--malicious": malicious, "--poison-strength": poison_strength,
            "--stop-after": stop_after, "--checkpoint": checkpoint,
        }  # fmt: skip
        given = next((name for name, value in unused.items() if value is not None), None)
        if given is not None:
            raise RobfcpError(f"{given}: says nothing to leave-sites-out; leave it away")
        data = datasets.load_sites(dataset, data_dir, verify=verify, fetch=download)
        _leave_sites_out(data, output, learning_rate, bits, seed, printer)
        return
    from robfcp.lab.training import Progress, recipe
    from robfcp.lab.training import train as run

    images = datasets.load(dataset, data_dir, verify=verify, fetch=download)
    settings = recipe(
        dataset,
        beta=beta,
        model=model,
        rounds=rounds,
        clients=clients,
        fraction=fraction,
        local_epochs=local_epochs,
        batch=batch,
        learning_rate=learning_rate,
        aggregation=aggregation,
        malicious=malicious,
        poison_strength=poison_strength,
        seed=seed,
    )
    with printer.progress() as bar:
        task = bar.add_task(f"training {dataset}", total=stop_after or settings.rounds)

        def advance(state: Progress) -> None:
            found = "" if state.accuracy is None else f", accuracy {state.accuracy:.3f}"
            bar.update(task, completed=state.round, description=f"training {dataset}{found}")

        trained = run(
            images,
            settings,
            device=device,
            checkpoint=checkpoint,
            stop_after=stop_after,
            on_round=advance,
        )
    outputs.write(output, trained.logits, images.test.y, images.test.groups, bits)
    record: dict[str, Any] = {
        "dataset": dataset,
        "accuracy": trained.accuracy,
        "history": trained.history,
        "seconds": trained.seconds,
        "train_samples": len(images.train),
        "test_samples": len(images.test),
        "settings": asdict(settings),
    }
    provenance = output.with_suffix(".json")
    write_atomically(provenance, json_text(record) + "\n")
    printer.table(
        f"{dataset}: {settings.model}, {settings.clients} sites, "
        f"{'iid' if settings.beta is None else f'Dirichlet({settings.beta:g})'}",
        ["rounds", "accuracy", "seconds", "outputs"],
        [(stop_after or settings.rounds, trained.accuracy, trained.seconds, str(output))],
    )
    printer.json(record)


def _leave_sites_out(
    data: datasets.SiteTable,
    output: Path,
    learning_rate: float | None,
    bits: int,
    seed: int,
    printer: Printer,
) -> None:
    """Train, save the outputs and their provenance, show the accuracy."""
    from robfcp.lab.natural import leave_out_recipe, leave_sites_out

    settings = leave_out_recipe(data.name, learning_rate=learning_rate, seed=seed)
    with printer.progress() as bar:
        task = bar.add_task(f"training {data.name}", total=settings.folds)
        found = leave_sites_out(data, settings, lambda: bar.advance(task))
    outputs.write(output, found.logits, found.table.y, None, bits, found.table.columns)
    record: dict[str, Any] = {
        "dataset": data.name,
        "accuracy": found.accuracy,
        "commonest_class": found.commonest,
        "seconds": found.seconds,
        "samples": len(found.table),
        "sites": len(set(found.table.sites.tolist())),
        "features": list(data.features) or data.x.shape[1],
        "class_names": list(data.classes),
        "library": found.library,
        "settings": asdict(settings),
    }
    write_atomically(output.with_suffix(".json"), json_text(record) + "\n")
    printer.table(
        f"{data.name}: every site predicted by a model that never saw it",
        ["sites", "samples", "accuracy", "commonest class", "seconds", "outputs"],
        [(record["sites"], record["samples"], found.accuracy, found.commonest, found.seconds,
          str(output))],
    )  # fmt: skip
    printer.json(record)
