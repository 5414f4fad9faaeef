"""How often the diagnosis names the fault that was put into a site's report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration import calibrate, diagnose
from robfcp.defence import Assessment
from robfcp.diagnosis import Diagnosis
from robfcp.federation import Federation
from robfcp.lab import partitions
from robfcp.lab.attacks import named_attack
from robfcp.lab.natural import FEDERATIONS, MIN_SIZE, NaturalFederation
from robfcp.report import Report
from robfcp.scores import LAC

Half = Literal["first", "second"]
_CODING = ("labels swapped", "labels mixed up")
_MODEL = ("another model", "probabilities too extreme", "much smaller spread")

# Which causes name a fault. Of two classes another order is a swap, and the report by class
# seldom tells which classes a wrong order confuses; an old model may be less sure or too sure.
NAMES: dict[str, tuple[str, ...]] = {
    "swapped-labels": ("labels swapped",),
    "other-class-order": _CODING,
    "label-poisoning": _CODING,
    "old-model": _MODEL,
    "temperature": ("probabilities too extreme",),
    "temperature-flat": ("much smaller spread",),
    "stale-file": ("copy",),
    "subset": ("hard cases missing",),
    "all-zero": ("scores all equal",),
}
NOBODY = "nothing wrong"


@dataclass(frozen=True)
class Named:
    """One fault in one federation: how many sites it was put into, what was said of them."""

    federation: str
    fault: str
    sites: int
    right: int
    said: dict[str, int]


class _LeaveOut:
    """Leaves one site out, so that the diagnosis is judged and not a defence."""

    name: ClassVar[str] = "leave-out"

    def __init__(self, client: str) -> None:
        self._client = client

    def __call__(self, federation: Federation) -> Assessment:
        trusted = np.array([name != self._client for name in federation.ids])
        return Assessment((~trusted).astype(np.float64), trusted, {self._client: "told so"})


def named(
    federation: NaturalFederation,
    faults: Sequence[str] = (*NAMES, NOBODY),
    *,
    half: Half = "second",
    most: int = 30,
    min_size: int = MIN_SIZE,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[Named]:
    """One row a fault: each site of one half of them is given the fault, alone, and diagnosed.

    The laws of the diagnosis were fitted to the first half (every other site by name).
    """
    given, sites = federation.load()
    parts = partitions.by_site(sites, min_size)
    samples = [(given.probabilities[part], given.labels[part]) for part in parts.values()]
    names, n_classes = list(parts), given.probabilities.shape[1]
    honest = [report(name, *pair, n_classes) for name, pair in zip(names, samples, strict=True)]
    rng = np.random.default_rng(seed)
    chosen = np.arange(len(names))[half == "second" :: 2]
    chosen = rng.permutation(chosen)[:most]
    for fault in faults:
        said: Counter[str] = Counter()
        for k in chosen.tolist():
            faulty = _faulty(fault, honest[k], samples, k, n_classes, rng)
            said[told([*honest[:k], faulty, *honest[k + 1 :]], names[k]).cause] += 1
        right = sum(said[cause] for cause in NAMES.get(fault, ("not told", "other mix of classes")))
        yield Named(federation.title, fault, len(chosen), right, dict(said.most_common()))
        advance()


def told(reports: Sequence[Report], client: str) -> Diagnosis:
    """The diagnosis of a client that is left out."""
    calibration = calibrate(reports, defence=_LeaveOut(client))
    return diagnose(calibration, [client])[client]


def report(
    name: str, probabilities: NDArray[Any], labels: NDArray[np.intp], n_classes: int
) -> Report:
    """A site's report by class."""
    score = LAC()
    scores = score(probabilities, labels)
    return Report.from_scores(name, scores, score=score, labels=labels, classes=n_classes)


def _faulty(
    fault: str,
    honest: Report,
    samples: list[tuple[NDArray[Any], NDArray[np.intp]]],
    k: int,
    n_classes: int,
    rng: np.random.Generator,
) -> Report:
    """The report of site k with the fault."""
    if fault == NOBODY:
        return honest
    if fault == "all-zero":
        labels = samples[k][1]
        zero = np.zeros(len(labels))
        return Report.from_scores(
            honest.client, zero, honest.grid, score=honest.score, labels=labels, classes=n_classes
        )
    attack: Any = named_attack(fault)
    ((probabilities, labels),) = attack.forge(samples, np.array([k]), rng)
    return report(honest.client, probabilities, labels, n_classes)


def named_table(half: Half = "second", most: int = 30, seed: int = 0) -> list[Named]:
    """All faults in all natural federations."""
    return [row for one in FEDERATIONS for row in named(one, half=half, most=most, seed=seed)]
