"""Runs cases over seeds on all cores, keeps what is done, and goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields
from multiprocessing import get_context
from pathlib import Path

from robfcp import __version__
from robfcp.files import write_atomically
from robfcp.lab.paper.cases import Case
from robfcp.lab.paper.runs import Run, RunOutcome, run_seed
from robfcp.lab.paper.trials import PaperWorld, world_key

Results = dict[tuple[PaperWorld, Run], list[RunOutcome]]
Wanted = dict[PaperWorld, list[Run]]
FIELDS = [field.name for field in fields(RunOutcome)]


def collect(cases: Iterable[Case]) -> Wanted:
    """The distinct runs of every world; several tables share many of them."""
    wanted: dict[PaperWorld, dict[Run, None]] = {}
    for case in cases:
        wanted.setdefault(case.world, {})[case.run] = None
    return {world: list(runs) for world, runs in wanted.items()}


def run_cases(
    cases: Iterable[Case],
    *,
    seeds: int,
    store: Path | None = None,
    workers: int | None = None,
    start: Callable[[int], None] = lambda total: None,
    advance: Callable[[], None] = lambda: None,
) -> Results:
    """The outcomes of every case on seeds 0..seeds-1; worlds found in `store` are not run again."""
    results: Results = {}
    missing: Wanted = {}
    for world, runs in collect(cases).items():
        kept = _load(store, world, seeds)
        for run in runs:
            if run in kept:
                results[world, run] = kept[run]
            else:
                missing.setdefault(world, []).append(run)
    start(seeds * len(missing))
    done: dict[PaperWorld, dict[int, list[RunOutcome]]] = {world: {} for world in missing}
    for world, seed, outcomes in _execute(missing, seeds, workers or os.cpu_count() or 1):
        done[world][seed] = outcomes
        advance()
        if len(done[world]) == seeds:
            fresh = {
                run: [done[world][s][position] for s in range(seeds)]
                for position, run in enumerate(missing[world])
            }
            results.update({(world, run): found for run, found in fresh.items()})
            _save(store, world, seeds, fresh)
    return results


def _execute(
    missing: Wanted, seeds: int, workers: int
) -> Iterator[tuple[PaperWorld, int, list[RunOutcome]]]:
    if workers == 1:
        for world, runs in missing.items():
            for seed in range(seeds):
                yield world, seed, run_seed(world, runs, seed)
        return
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        tasks = {
            pool.submit(run_seed, world, runs, seed): (world, seed)
            for world, runs in missing.items()
            for seed in range(seeds)
        }
        for task in as_completed(tasks):
            yield *tasks[task], task.result()


def _path(store: Path, world: PaperWorld) -> Path:
    name = "-".join(str(part) for part in (world.dataset, world.split, world.stage) if part)
    digest = "".join(f"{byte:02x}" for byte in world_key(world))
    return store / f"{name}-{digest}.json"


def _load(store: Path | None, world: PaperWorld, seeds: int) -> dict[Run, list[RunOutcome]]:
    if store is None or not _path(store, world).is_file():
        return {}
    content = json.loads(_path(store, world).read_text(encoding="utf-8"))
    same = (content["version"], content["seeds"], content.get("fields")) == (
        __version__,
        seeds,
        FIELDS,
    )
    if not same:
        return {}
    return {
        Run(**entry["run"]): [RunOutcome(*values) for values in entry["outcomes"]]
        for entry in content["runs"]
    }


def _save(
    store: Path | None, world: PaperWorld, seeds: int, fresh: dict[Run, list[RunOutcome]]
) -> None:
    if store is None:
        return
    store.mkdir(parents=True, exist_ok=True)
    merged = {**_load(store, world, seeds), **fresh}
    content = {
        "version": __version__,
        "seeds": seeds,
        "fields": FIELDS,
        "world": asdict(world),
        "runs": [
            {"run": asdict(run), "outcomes": [list(asdict(one).values()) for one in found]}
            for run, found in merged.items()
        ],
    }
    write_atomically(_path(store, world), json.dumps(content))
