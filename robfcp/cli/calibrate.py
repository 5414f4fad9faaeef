"""`robfcp calibrate`: the server turns report files into a calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import typer
from msgspec import structs

from robfcp.calibration import (
    AuditLog,
    diagnose,
    evidence_path,
    log_round,
    save_letters,
)
from robfcp.calibration import calibrate as run
from robfcp.cli._calibrated import as_data, show
from robfcp.cli._common import (
    AgreedGrid,
    Json,
    Keys,
    Output,
    Printer,
    Quiet,
    Revoked,
    TermsFile,
    agreed_terms,
    completes,
    natural,
    prepare,
)
from robfcp.cli._paths import REPORTS, expanded
from robfcp.cli._private import read_privacy
from robfcp.cli._rounds import Rounds
from robfcp.cli.page import RunBy, Study, Title, about
from robfcp.defence import DEFAULT, DEFENCES, Defence, RobFCP, named_defence
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import named_promise
from robfcp.page import History, write_page
from robfcp.report import load_key


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate", no_args_is_help=True)(calibrate)


def calibrate(
    reports: Annotated[
        list[Path],
        typer.Argument(help="The sites' report files, or their folder."),
    ],
    output: Output = None,
    confidence: Annotated[
        list[str] | None,
        typer.Option("--confidence", help="Wanted coverage (0.9); may be repeated."),
    ] = None,
    defence: Annotated[
        str,
        typer.Option(
            help=f"Whom to trust: {', '.join(DEFENCES)}.", autocompletion=completes(*DEFENCES)
        ),
    ] = DEFAULT,
    malicious: Annotated[
        str, typer.Option(help="The most sites that may lie, or 'estimate'.")
    ] = "estimate",
    exclude: Annotated[
        str,
        typer.Option(
            help="outstanding or exactly.", autocompletion=completes("outstanding", "exactly")
        ),
    ] = "outstanding",
    guarantee: Annotated[
        str | None,
        typer.Option(
            help="marginal or pac; needs --malicious.",
            autocompletion=completes("marginal", "pac"),
        ),
    ] = None,
    heterogeneity: Annotated[
        float | None, typer.Option(help="Stated bound on how much honest sites differ.")
    ] = None,
    distance: Annotated[
        str, typer.Option(help="l1, l2, linf, cosine, kolmogorov or wasserstein.")
    ] = "l2",
    certificate_confidence: Annotated[float, typer.Option(help="For certificates.")] = 0.95,
    sizes: Annotated[
        Path | None, typer.Option(help="JSON registry {site: samples}; others are refused.")
    ] = None,
    keys: Keys = None,
    revoked: Revoked = None,
    quorum: Annotated[int | None, typer.Option(help="Least number of valid reports.")] = None,
    round: Annotated[str | None, typer.Option(help="Refuse reports of another round.")] = None,
    terms: TermsFile = None,
    model: Annotated[str | None, typer.Option(help="Refuse reports of another model.")] = None,
    score: Annotated[str | None, typer.Option(help="Refuse reports of another score.")] = None,
    grid: AgreedGrid = None,
    privacy: Annotated[
        str | None, typer.Option(help="EPSILON or EPSILON,DELTA: refuse any other privacy.")
    ] = None,
    max_share: Annotated[
        float | None, typer.Option(help="Refuse a site with more than this share of samples.")
    ] = None,
    size_budget: Annotated[
        int | None, typer.Option(help="Most samples liars may hold, for --guarantee marginal.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="class or group: a threshold for each of them.",
            autocompletion=completes("class", "group"),
        ),
    ] = None,
    label_shift: Annotated[
        float | None,
        typer.Option(
            help="With --guarantee pac: honest sites agree within classes up to this (0, say)."
        ),
    ] = None,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            help="uniform, any or flu=0.1,cold=0.9: a threshold for this label mix; repeatable."
        ),
    ] = None,
    risk: Annotated[
        list[str] | None,
        typer.Option(help="For reports of losses: the mean loss accepted; may be repeated."),
    ] = None,
    previous: Annotated[
        Path | None, typer.Option(help="The calibration before: keep the chain, say what changed.")
    ] = None,
    alarms: Annotated[
        Path | None,
        typer.Option(help="The record of alarms on --previous, as robfcp alarms --history kept."),
    ] = None,
    readmit: Annotated[
        list[str] | None, typer.Option(help="Take back a site that is out; may be repeated.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also make a page of it, as robfcp page does.")
    ] = None,
    title: Title = "",
    study: Study = "",
    run_by: RunBy = "",
    sign: Annotated[
        Path | None, typer.Option(help="Sign calibration and letters with this key of keygen.")
    ] = None,
    letters: Annotated[
        Path | None, typer.Option(help="Folder for a small file to each site: its own verdict.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="Append what happened to this log; see robfcp audit.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find whom to trust, take one threshold, and say what is proved about it.

    [dim]Example: robfcp calibrate reports/*.json --malicious 5 --guarantee marginal -o c.json[/dim]
    [dim]Example: robfcp calibrate reports/*.json -o c.json --html page.html --letters letters[/dim]
    """
    printer = Printer(as_json, quiet)
    if readmit and previous is None:
        raise RobfcpError("--readmit: nobody is out without a chain; pass --previous")
    if alarms is not None and previous is None:
        raise RobfcpError("--alarms: rang on a calibration before this one; pass it as --previous")
    key = None if sign is None else load_key(sign)
    reports = expanded(reports, REPORTS)
    prepare(output, html, audit, None if letters is None else letters / "any")
    with printer.busy(f"calibrating {len(reports)} reports"):
        agreed = agreed_terms(terms, None, round=round, model=model, score=score, grid=grid)
        federation = Federation.read(
            reports,
            sizes=sizes,
            quorum=quorum,
            round=agreed.round,
            keys=keys,
            revoked=revoked,
            model=agreed.model,
            privacy=read_privacy(privacy, agreed.privacy),
            score=agreed.agreed_score,
            grid=agreed.agreed_grid,
            max_share=max_share,
        )
        number = read_number(malicious)
        rounds = None if previous is None else Rounds(previous, alarms)
        if rounds is not None:
            federation, number = rounds.admit(federation, number, heterogeneity, readmit or [])
        liars = None if number == "estimate" else int(number)
        stated: dict[str, Any] = {"alike": heterogeneity, "samples": size_budget}
        promise = guarantee
        if promise is None and size_budget is not None:
            raise RobfcpError("--size-budget: goes with --guarantee marginal; state it")
        if label_shift is not None or mix:
            promise = "label-shift"
            stated = {"alike": label_shift, "mix": read_mix(mix or [])}
        calibration = run(
            federation,
            _levels(confidence),
            risk=None if not risk else risk if len(risk) > 1 else risk[0],
            by=by,
            defence=_defence(defence, None if promise else liars, exclude, distance),
            promise=None if promise is None else named_promise(promise, liars=liars, **stated),
            confidence=certificate_confidence,
        )
        if rounds is not None:
            calibration = rounds.close(calibration)
        if output is not None:
            if rounds is not None:
                rounds.save(output)
            calibration.save(output, key)
        if audit is not None:
            known = {"sizes": sizes, "keys": keys, **structs.asdict(agreed)}
            stated = {name: str(value) for name, value in known.items() if value is not None}
            settings = msgspec.to_builtins(calibration.settings)
            log_round(AuditLog(audit), calibration, {**stated, "settings": settings})
        if html is not None:
            past = None if rounds is None else History(chain=rounds.chain)
            write_page(calibration, html, past, about(title, study, run_by))
        if letters is not None:
            save_letters(calibration, letters, key)
        found = diagnose(calibration)
    show(calibration, found, printer)
    if rounds is not None:
        rounds.show(printer)
    if output is not None:
        printer.line(f"-> {output}, what it rests on in {evidence_path(output).name}")
    for written in (html, letters):
        if written is not None:
            printer.line(f"-> {written}")
    chain = {} if rounds is None else {"chain": rounds.as_data()}
    printer.json({**as_data(calibration, found), **chain})


def _defence(name: str, liars: int | None, exclude: str, distance: str) -> Defence:
    """The defence as told on the command line."""
    if exclude not in ("outstanding", "exactly"):
        raise RobfcpError(f"--exclude: {exclude!r} is neither 'outstanding' nor 'exactly'")
    if name == "rob-fcp":
        return RobFCP(liars, cast(Any, distance))
    if distance != "l2":
        raise RobfcpError("--distance: is of --defence rob-fcp; leave it out")
    return named_defence(name, liars, exactly=exclude == "exactly")


def _levels(texts: list[str] | None) -> Any:
    """One level, several, or the default."""
    if not texts:
        return 0.9
    return texts if len(texts) > 1 else texts[0]


def read_mix(texts: list[str]) -> Any:
    """One label mix or several: 'uniform', 'any' or NAME=SHARE,NAME=SHARE."""
    found: list[Any] = []
    for text in texts:
        if text in ("uniform", "any"):
            found.append(text)
            continue
        try:
            pairs = [pair.rpartition("=") for pair in text.split(",")]
            found.append({name.strip(): float(share) for name, _, share in pairs})
        except ValueError:
            raise RobfcpError(
                f"--mix: {text!r:.60} is neither uniform, any nor NAME=SHARE,NAME=SHARE"
            ) from None
    return None if not found else found if len(found) > 1 else found[0]


def read_number(text: str) -> int | str:
    """'estimate' or a whole number."""
    if text == "estimate":
        return text
    number = natural(text)
    if number is None:
        raise RobfcpError(f"--malicious: {text!r} is neither a number nor 'estimate'")
    return number
