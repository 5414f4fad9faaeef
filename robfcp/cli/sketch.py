"""`robfcp sketch`: one site's model outputs become a report file."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from robfcp.arguments import check_client
from robfcp.cli._common import (
    Json,
    Printer,
    Quiet,
    Seed,
    ServerKey,
    TermsFile,
    agreed_terms,
    completes,
    prepare,
    stream,
)
from robfcp.cli._data import (
    ClassesOption,
    IdColumn,
    LabelColumn,
    Logits,
    Normalise,
    expects,
    read_outputs,
    reading_of,
)
from robfcp.cli._private import (
    DataSet,
    Delta,
    Epsilon,
    LedgerFile,
    Neighbours,
    Rounds,
    SamplesPerPatient,
    charge,
    chosen_privacy,
    default_grid,
)
from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.privacy import grid_from_text
from robfcp.report import Report, load_key
from robfcp.scores import SCORES, ClassificationScore, Risk, Score


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sketch", no_args_is_help=True)(sketch)


def chosen_score(name: str, **options: Any) -> Score:
    """The score named on the command line, with those of the options that were given."""
    if name not in SCORES:
        raise RobfcpError(f"--score: {name!r} is unknown; use one of {', '.join(SCORES)}")
    given = {key: value for key, value in options.items() if value is not None}
    known = {field.name for field in fields(SCORES[name])}
    for key in given:
        if key not in known:
            takers = [other for other in SCORES if key in {f.name for f in fields(SCORES[other])}]
            raise RobfcpError(
                f"--{key.replace('_', '-')}: {name} has none; it goes with {', '.join(takers)}"
            )
    score: Score = SCORES[name](**given)
    return score


def chosen_grid(name: str) -> Grid:
    """The grid named on the command line: a fixed one, uniform:BINS or logistic:BINS."""
    try:
        return grid_from_text(name)
    except RobfcpError as error:
        raise RobfcpError(f"--{error}") from None


def sketch(
    data: Annotated[
        Path, typer.Argument(help="Model outputs with labels: .csv, .npz or .parquet.")
    ],
    client: Annotated[str, typer.Option("--client", "-c", help="This site's registered name.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the report goes.")],
    score: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(SCORES)}; lac if not agreed otherwise.",
            autocompletion=completes(*SCORES),
        ),
    ] = None,
    randomized: Annotated[
        bool | None, typer.Option(help="Draw u, as published; for aps, raps, saps, ordinal-aps.")
    ] = None,
    penalty: Annotated[float | None, typer.Option(help="For raps; 0.01 if not given.")] = None,
    k_reg: Annotated[int | None, typer.Option(help="For raps; 5 if not given.")] = None,
    weight: Annotated[float | None, typer.Option(help="For saps; 0.2 if not given.")] = None,
    ids: IdColumn = None,
    label: LabelColumn = None,
    classes: ClassesOption = None,
    logits: Logits = False,
    normalise: Normalise = False,
    grid: Annotated[
        str | None,
        typer.Option(
            help="default, extended, open-ended, uniform:BINS or logistic:BINS.",
            autocompletion=completes(
                "default", "extended", "open-ended", "uniform:100", "logistic:32"
            ),
        ),
    ] = None,
    by_class: Annotated[
        bool | None,
        typer.Option(
            "--by-class/--pooled",
            help="Keep counts by class (the default for classes), or withhold the labels.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Keep counts by this column (scanner, age band) instead."),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(help="All groups there are, as a,b,c; private reports must state them."),
    ] = None,
    set_sizes: Annotated[
        bool, typer.Option(help="Also tell how large sets are at every threshold; not private.")
    ] = False,
    least: Annotated[
        int, typer.Option(min=1, help="Merge classes with fewer samples into '(other)'.")
    ] = 1,
    bins_per_sample: Annotated[
        float | None, typer.Option(help="Refuse a grid with more bins a sample than this.")
    ] = None,
    risk: Annotated[
        str | None,
        typer.Option(
            help="Report a loss in place of scores: fnr or miss-rate of several labels a sample.",
            autocompletion=completes(*Risk.multilabel),
        ),
    ] = None,
    round: Annotated[
        str | None, typer.Option(help="The round's name, the same at all sites.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A digest of the shared model.")] = None,
    terms: TermsFile = None,
    server_key: ServerKey = None,
    sign: Annotated[
        Path | None, typer.Option(help="Sign with this key of robfcp keygen; needs --round.")
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = 0.0,
    neighbours: Neighbours = "substitution",
    samples_per_patient: SamplesPerPatient = 1,
    rounds: Rounds = 1,
    ledger: LedgerFile = None,
    dataset: DataSet = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn one site's calibration outputs into a report file to send to the server.

    [dim]Example: robfcp sketch site-3.csv --client site-3 -o reports/site-3.json[/dim]
    [dim]Example: robfcp sketch site-3.csv -c site-3 --score aps --round r1 -o site-3.json[/dim]
    """
    printer = Printer(as_json, quiet)
    agreed = agreed_terms(
        terms, server_key, round=round, model=model, score=score, grid=grid, epsilon=epsilon
    )
    round, model, grid = agreed.round, agreed.model, agreed.grid
    delta = agreed.delta or delta
    prepare(output, ledger)
    with printer.busy("sketching"):
        rule = chosen_score(
            agreed.score or "lac",
            randomized=randomized,
            penalty=penalty,
            k_reg=k_reg,
            weight=weight,
        )
        privacy = chosen_privacy(agreed.epsilon, delta, neighbours, samples_per_patient, rounds)
        outputs = read_outputs(
            data,
            needs_targets=True,
            columns=[group],
            expects=expects(rule, risk),
            reading=replace(
                reading_of(classes, logits, normalise, label),
                ids=ids,
                lenient=privacy is not None,  # that one was refused would tell of it
            ),
        )
        assert outputs.targets is not None
        edges = default_grid(privacy, rule) if grid is None else chosen_grid(grid)
        check_client(client)
        classes_known = isinstance(rule, ClassificationScore)
        if by_class and not classes_known:
            raise RobfcpError(f"--by-class: {rule.name} has no classes; leave it out")
        if groups is not None and group is None:
            raise RobfcpError("--groups: names go with a column; pass --group COLUMN too")
        if set_sizes and (risk is not None or not classes_known):
            raise RobfcpError("--set-sizes: only scores of classes make sets; leave it out")
        if set_sizes and privacy is not None:
            raise RobfcpError(
                "--set-sizes: they would tell what the noise hides; leave them out of private "
                "reports"
            )
        names: Any = outputs.classes if classes_known else None
        if group is not None:
            names = None if groups is None else [name.strip() for name in groups.split(",")]
        charge(ledger, dataset or data.name, privacy, round)
        context: Any = {"round": round, "model": model, "privacy": privacy}
        try:
            if risk is None:
                report = Report.of(
                    client,
                    outputs.predictions,
                    outputs.targets,
                    score=rule,
                    classes=names,
                    groups=None if group is None else outputs.columns[group],
                    by_class=by_class,
                    set_sizes=set_sizes,
                    rng=stream(seed, "sketch", client),
                    grid=edges,
                    least=least,
                    bins_per_sample=bins_per_sample,
                    **context,
                )
            else:
                report = Report.from_multilabel(
                    client, outputs.predictions, outputs.targets, edges, risk=risk, **context
                )
        except RobfcpError as error:
            raise RobfcpError(f"{data}: {error}") from error
        report.save(output, None if sign is None else load_key(sign))
    bins = int((report.counts > 0).sum())
    what = "scores" if risk is None else "samples"
    printer.line(
        f"{client}: {report.n_samples} {what} in {bins} of {report.grid.n_bins} bins "
        f"({output.stat().st_size} bytes) -> {output}"
    )
    for note in outputs.notes:
        printer.line(note)
    if report.strata is not None:
        held = int((report.strata.sizes > 0).sum())
        kept = f"{held} of {report.strata.n_strata}"
        printer.line(
            f"Counts are kept for each {report.strata.by} ({kept} occur); --pooled withholds them."
        )
    elif by_class is False:
        printer.line(
            "Labels are withheld: the server cannot give thresholds by class or for your label "
            "mix, nor compare you with other sites class by class."
        )
    if privacy is not None:
        printer.line(f"The report is {privacy.statement}.")
    printer.json(
        {
            "client": client,
            "n_samples": report.n_samples,
            "grid": report.grid.digest,
            **({"score": rule.name} if risk is None else {"risk": risk}),
            "output": str(output),
            **({} if privacy is None else {"privacy": asdict(privacy)}),
        }
    )
