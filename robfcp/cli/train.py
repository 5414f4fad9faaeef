"""`robfcp train`: federated training on a public data set, ending in a file of probabilities."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from robfcp._util.files import write_atomically
from robfcp.cli._common import Json, Printer, Quiet, Seed, json_text
from robfcp.lab import datasets, outputs

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where the data sets are; else $ROBFCP_DATA.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train", no_args_is_help=True)(train)


def train(
    dataset: Annotated[str, typer.Argument(help=f"One of {', '.join(datasets.names())}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the outputs go (npz).")],
    data_dir: DataDir = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing files.")] = False,
    verify: Annotated[bool, typer.Option(help="Check checksums and counts.")] = True,
    beta: Annotated[float | None, typer.Option(help="Dirichlet split; without it iid.")] = None,
    model: Annotated[str | None, typer.Option(help="cnn, resnet18 or mlp.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients (100).")] = None,
    fraction: Annotated[float | None, typer.Option(help="Share of clients a round.")] = None,
    local_epochs: Annotated[int | None, typer.Option(help="Epochs a client trains.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="At the first round.")] = None,
    aggregation: Annotated[
        str | None, typer.Option(help="mean, median, trimmed-mean or multi-krum.")
    ] = None,
    malicious: Annotated[int | None, typer.Option(help="Clients that poison updates.")] = None,
    poison_strength: Annotated[float | None, typer.Option(help="How hard they do.")] = None,
    slots: Annotated[int | None, typer.Option(help="Clients trained side by side.")] = None,
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
    """Train a model over simulated clients and save its test outputs.

    Settings left out are those of the shipped models. The file holds logits below each row's
    largest, labels and groups; robfcp.lab.outputs.read gives the probabilities.

    [dim]Example: robfcp train mnist --data-dir data --beta 0.5 -o mnist.npz[/dim]
    """
    from robfcp.lab.training import Progress, recipe
    from robfcp.lab.training import train as run

    printer = Printer(as_json, quiet)
    data = datasets.load(dataset, data_dir, verify=verify, fetch=download)
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
        slots=slots,
        seed=seed,
    )
    with printer.progress() as bar:
        task = bar.add_task(f"training {dataset}", total=stop_after or settings.rounds)

        def advance(state: Progress) -> None:
            found = "" if state.accuracy is None else f", accuracy {state.accuracy:.3f}"
            bar.update(task, completed=state.round, description=f"training {dataset}{found}")

        trained = run(
            data,
            settings,
            device=device,
            checkpoint=checkpoint,
            stop_after=stop_after,
            on_round=advance,
        )
    outputs.write(output, trained.logits, data.test.y, data.test.groups, bits)
    record: dict[str, Any] = {
        "dataset": dataset,
        "accuracy": trained.accuracy,
        "history": trained.history,
        "seconds": trained.seconds,
        "train_samples": len(data.train),
        "test_samples": len(data.test),
        "settings": asdict(settings),
    }
    provenance = output.with_suffix(".json")
    write_atomically(provenance, json_text(record) + "\n")
    printer.table(
        f"{dataset}: {settings.model}, {settings.clients} clients, "
        f"{'iid' if settings.beta is None else f'Dirichlet({settings.beta:g})'}",
        ["rounds", "accuracy", "seconds", "outputs"],
        [(stop_after or settings.rounds, trained.accuracy, trained.seconds, str(output))],
    )
    printer.json(record)
