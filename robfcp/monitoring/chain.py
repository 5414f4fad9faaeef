"""Calibrations one after the other: what changed, who stays out, and what error is spent.

Round r of a chain spends 6 delta / (pi^2 r^2) on "this site cannot be honest" and as much on "this
site has drifted"; over all rounds each sums to at most delta, however long the chain grows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import pi
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import share
from robfcp.calibration.calibration import Calibration, FilePath
from robfcp.calibration.sealed import decode_body, digest_of, seal, unseal
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation
from robfcp.files import read_limited, write_atomically
from robfcp.guarantees import ClientIntervals, prune
from robfcp.monitoring.alarms import AlarmHistory

LEAST = 30  # samples of a report that does not come twice by chance


class FixedIntervals(ClientIntervals):
    """Clopper-Pearson ends at edges fixed before the reports; all hold with chance 1 - beta."""

    def __init__(self, federation: Federation, beta: float, edges: NDArray[np.intp]) -> None:
        from scipy.special import betaincinv

        self.ids, self.beta, self.edges = federation.ids, beta, edges
        tail = beta / (2 * federation.n_clients * len(edges))
        below = federation.cumulative(edges).T.astype(np.float64)
        size = federation.sizes[None, :].astype(np.float64)
        low = betaincinv(np.maximum(below, 1), size - below + 1, tail)
        high = betaincinv(below + 1, np.maximum(size - below, 1), 1 - tail)
        self.low = np.ascontiguousarray(np.where(below > 0, low, 0.0))
        self.high = np.ascontiguousarray(np.where(below < size, high, 1.0))


def spent(number: int, delta: float) -> float:
    """6 delta / (pi^2 r^2): summed over all rounds r it is delta."""
    return 6 * delta / (pi * number) ** 2


def drifted(before: Federation, now: Federation, error: float) -> dict[str, float]:
    """Sites whose two reports differ by more than chance in Kolmogorov distance, and by how much.

    More than e_1 + e_2, e_i = sqrt(ln(4 K / error) / (2 n_i)): with a chance of at most `error` is
    any site named whose samples were drawn alike (Dvoretzky, Kiefer, Wolfowitz, Massart).
    """
    if before.exact_digest is None or before.exact_digest != now.exact_digest:
        return {}
    common = sorted(set(before.ids) & set(now.ids))
    shares, slack = [], np.zeros(len(common))
    for federation in (before, now):
        place = {name: k for k, name in enumerate(federation.ids)}
        rows = np.array([place[name] for name in common], dtype=np.intp)
        size = federation.sizes[rows]
        shares.append(federation.cumulative()[rows] / size[:, None])
        slack += np.sqrt(np.log(4 * max(1, len(common)) / error) / (2 * size))
    distance = np.abs(shares[0] - shares[1]).max(axis=1, initial=0)
    return {
        name: float(d) for name, d, most in zip(common, distance, slack, strict=True) if d > most
    }


def repeated(before: Federation, now: Federation) -> list[str]:
    """Sites whose two reports are equal to the last count: no fresh samples went into the later.

    Fewer than 30 samples may fall alike by chance, and are not named.
    """
    if before.grid != now.grid:
        return []
    place = {name: k for k, name in enumerate(before.ids)}
    both = [(place[name], k) for k, name in enumerate(now.ids) if name in place]
    if not both:
        return []
    old, new = (np.array(rows, dtype=np.intp) for rows in zip(*both, strict=True))
    every = np.arange(now.grid.n_bins)
    same = (before.cumulative(every)[old] == now.cumulative(every)[new]).all(axis=1)
    same &= now.sizes[new] >= LEAST
    return [now.ids[k] for k in new[same]]


KIND = "chain"
SCHEMA = 1
N_EDGES = 32
_REMEDY = "pass the .chain.json that robfcp calibrate --previous wrote"


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One calibration of a chain; names of clients stay at the server.

    `out` are the sites that stay out, with the round since when; `left_out` those that joined them
    now, with the reason; `drifted` the Kolmogorov distance to the own report of the round before,
    where it is more than chance; `repeated` those that sent that very report again. `alarms` is the
    digest of the record of alarms on the calibration before, `rang` when each rang there, `alarmed`
    the sites that alarmed by themselves at its last look.
    """

    number: int
    calibration: str
    before: str | None  # digest of the link before
    round: str | None
    thresholds: list[float | None]
    lowers: list[float]
    clients: list[str]
    flagged: list[str]
    error: float
    sigma: float | None = None
    out: dict[str, int] = {}
    left_out: dict[str, str] = {}
    readmitted: list[str] = []
    drifted: dict[str, float] = {}
    repeated: list[str] = []
    alarms: str | None = None
    rang: dict[str, int] = {}
    alarmed: list[str] = []


class ChainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the digest covers."""

    delta: float
    grid: str
    edges: list[int]
    links: list[Link]


@dataclass(frozen=True)
class Reputation:
    """What the rounds say of one site: how often it reported, was flagged, drifted, alarmed; if it
    is out.

    Being flagged proves nothing. Being out does, under the stated sigma, at the error spent.
    """

    reported: int
    flagged: int
    drifted: int
    alarmed: int
    out_since: int | None


@dataclass(frozen=True)
class Admission:
    """The federation of a round without those that stay out, and how many liars may remain."""

    federation: Federation
    malicious: int | str
    out: dict[str, int]
    left_out: dict[str, str]
    readmitted: tuple[str, ...]
    sigma: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """A chain of calibrations, the oldest first; every link holds the digest of the one before."""

    delta: float
    grid: str
    edges: tuple[int, ...]
    links: tuple[Link, ...]

    @staticmethod
    def begin(calibration: Calibration, delta: float = 0.05) -> Chain:
        """A chain whose first link is this calibration; its pool fixes the edges looked at."""
        share("delta", delta, "give 0.05, say")
        federation = calibration.federation
        pooled = np.cumsum(federation.pooled(calibration.trusted_mask))
        places = np.searchsorted(pooled, pooled[-1] * np.arange(1, N_EDGES + 1) / (N_EDGES + 1))
        last = max(federation.grid.n_bins - 2, 0)
        edges = tuple(np.unique(places.clip(0, last)).tolist())
        first = _link(calibration, None, 1, delta)
        return Chain(delta, federation.grid.digest, edges, (first,))

    @property
    def error(self) -> float:
        """What the next round may spend: 6 delta / (pi^2 r^2)."""
        return spent(len(self.links) + 1, self.delta)

    def admit(
        self,
        federation: Federation,
        malicious: int | str,
        sigma: float | None = None,
        readmit: Iterable[str] = (),
    ) -> Admission:
        """The federation without the sites that stay out; with sigma, those refuted now join them.

        While every honest site's CDF is within sigma of a common one at the edges fixed, no honest
        site is ever left out with a chance of at least 1 - delta over all rounds.
        """
        out = dict(self.links[-1].out)
        back = tuple(dict.fromkeys(readmit))
        for client in back:
            if client not in out:
                raise RobfcpError(f"--readmit: {client} is not out; check the name")
            del out[client]
        kept, notes = _without(federation, out, {}), []
        bound, left = _remaining(malicious, federation, kept), dict[str, str]()
        if sigma is not None and isinstance(bound, int) and bound > 0:
            if federation.exact_digest != self.grid:
                notes.append("nobody was left out for good: the grid changed or reports hold noise")
            else:
                left = self._refuted(kept, bound, sigma)
                kept = _without(kept, dict.fromkeys(left, 0), left)
                bound -= len(left)
        out |= dict.fromkeys(left, len(self.links) + 1)
        if out:
            notes.append(
                f"{len(out)} sites are out since earlier rounds or this one; all of them justly "
                f"with {100 * (1 - self.delta):.4g}% confidence over all rounds, beside each "
                "round's own"
            )
        return Admission(
            kept,
            malicious=bound,
            out=out,
            left_out=left,
            readmitted=back,
            sigma=sigma,
            notes=tuple(notes),
        )

    def extended(
        self,
        calibration: Calibration,
        previous: Calibration,
        admission: Admission,
        alarms: AlarmHistory | None = None,
    ) -> Chain:
        """The chain with one more link; `previous` must be the calibration of the last one, and
        `alarms` the record of it."""
        last = self.links[-1]
        if previous.identity != last.calibration:
            raise RobfcpError(
                "previous: is not the last calibration of its chain; pass the newest one"
            )
        link = msgspec.structs.replace(
            _link(calibration, last, last.number + 1, self.delta),
            sigma=admission.sigma,
            out=admission.out,
            left_out=admission.left_out,
            readmitted=list(admission.readmitted),
            drifted=drifted(previous.federation, calibration.federation, self.error),
            repeated=repeated(previous.federation, calibration.federation),
            alarms=None if alarms is None else alarms.digest,
            rang={} if alarms is None else dict(alarms.rang or {}),
            alarmed=[] if alarms is None else list(alarms.alarmed),
        )
        return replace(self, links=(*self.links, link))

    def reputations(self) -> dict[str, Reputation]:
        """What all rounds say of every site that ever reported."""
        names = sorted({name for link in self.links for name in (*link.clients, *link.out)})
        return {
            name: Reputation(
                reported=sum(name in link.clients for link in self.links),
                flagged=sum(name in link.flagged for link in self.links),
                drifted=sum(name in link.drifted for link in self.links),
                alarmed=sum(name in link.alarmed for link in self.links),
                out_since=self.links[-1].out.get(name),
            )
            for name in names
        }

    def changes(self) -> list[str]:
        """What the last round changed, a line each."""
        if len(self.links) < 2:
            return []
        old, new = self.links[-2:]
        lines = [
            f"threshold {_number(a)} -> {_number(b)}, proved at least {low:.4f} -> {high:.4f}"
            for a, b, low, high in zip(
                old.thresholds, new.thresholds, old.lowers, new.lowers, strict=False
            )
        ]
        was, now = set(old.clients), set(new.clients)
        groups = (
            ("came", now - was),
            ("went", was - now - set(new.out)),
            ("flagged now", (set(new.flagged) - set(old.flagged)) & was),
            ("no longer flagged", (set(old.flagged) - set(new.flagged)) & now),
            ("left out for good", set(new.left_out)),
            ("readmitted", set(new.readmitted)),
            ("drifted since", set(new.drifted)),
            ("alarmed by themselves before", set(new.alarmed)),
            ("sent the report of the round before again", set(new.repeated)),
        )
        lines += [
            f"the {'alarm' if name == 'coverage' else 'drift alarm'} on the calibration before "
            f"rang at step {step}"
            for name, step in new.rang.items()
        ]
        return lines + [f"{word}: {', '.join(sorted(names))}" for word, names in groups if names]

    def to_json(self) -> bytes:
        """The chain as sealed JSON."""
        body = ChainBody(self.delta, self.grid, list(self.edges), list(self.links))
        return seal(KIND, SCHEMA, body)

    @staticmethod
    def from_json(data: bytes | str, source: str = "chain") -> Chain:
        """A chain from JSON, refused where a link does not hold the digest of the one before."""
        _, raw = unseal(data, KIND, SCHEMA, source, _REMEDY)
        body = decode_body(raw, ChainBody, KIND, source, _REMEDY)
        if not 0 < body.delta < 1 or not body.links or body.links[0].before is not None:
            raise RobfcpError(f"{source}: the chain has no beginning; {_REMEDY}")
        for before, link in pairwise(body.links):
            if link.before != _digest(before) or link.number != before.number + 1:
                raise RobfcpError(f"{source}: link {link.number} does not follow; {_REMEDY}")
        return Chain(body.delta, body.grid, tuple(body.edges), tuple(body.links))

    def save(self, path: FilePath) -> None:
        """Write it whole or not at all."""
        write_atomically(path, self.to_json())

    @staticmethod
    def of(path: FilePath, delta: float = 0.05) -> tuple[Calibration, Chain]:
        """A saved calibration with the chain beside it, or one begun with it."""
        previous, beside = Calibration.load(path), chain_path(path)
        if not beside.exists():
            return previous, Chain.begin(previous, delta)
        chain = Chain.from_json(read_limited(beside), os.fspath(beside))
        if previous.identity != chain.links[-1].calibration:
            raise RobfcpError(f"{beside}: is not the chain of {path}; pass the newest calibration")
        return previous, chain

    def alarms_of(self, path: FilePath) -> AlarmHistory:
        """The record of alarms on the last calibration of the chain; refused if of another."""
        found = AlarmHistory.load(path)
        if found.calibration != self.links[-1].calibration:
            raise RobfcpError(
                f"{path}: watches another calibration than the last of this chain; pass its own"
            )
        return found

    def _refuted(self, federation: Federation, m: int, sigma: float) -> dict[str, str]:
        """The sites that cannot be honest at the fixed edges, and why."""
        known = FixedIntervals(federation, self.error, np.array(self.edges))
        found = prune(federation, m, sigma, self.error, lambda _: known).evidence
        upper = federation.grid.upper
        return {
            e.client: f"its share below {upper[e.edge]:.4g} is not within {sigma:g} of the others'"
            for e in found.exclusions
        }


def chain_path(path: FilePath) -> Path:
    """Where the chain of the calibration at `path` lies."""
    return Path(path).with_suffix(".chain.json")


def _link(calibration: Calibration, before: Link | None, number: int, delta: float) -> Link:
    return Link(
        number=number,
        calibration=calibration.identity,
        before=None if before is None else _digest(before),
        round=calibration.summary.round,
        thresholds=[x.threshold if np.isfinite(x.threshold) else None for x in calibration.levels],
        lowers=[level.certificate.lower for level in calibration.levels],
        clients=list(calibration.federation.ids),
        flagged=list(calibration.flagged),
        error=spent(number, delta),
    )


def _without(federation: Federation, out: dict[str, int], why: dict[str, str]) -> Federation:
    """The federation without some sites, which are listed as faulty with the reason."""
    gone = [client for client in federation.ids if client in out]
    if not gone:
        return federation
    if len(gone) == federation.n_clients:
        raise RobfcpError("previous: every site that reported is out; readmit some")
    faults = tuple(
        Fault(
            client,
            "chain",
            f"{client}: {why[client]}; it stays out until --readmit"
            if client in why
            else f"{client}: out since round {out[client]} of the chain; --readmit takes it back",
        )
        for client in gone
    )
    mask = np.array([client not in out for client in federation.ids])
    return replace(federation.subset(mask), faulty=federation.faulty + faults)


def _remaining(malicious: int | str, federation: Federation, kept: Federation) -> int | str:
    """How many liars may remain once some are out."""
    if not isinstance(malicious, int):
        return malicious
    return max(0, malicious - (federation.n_clients - kept.n_clients))


def _digest(link: Link) -> str:
    return digest_of(msgspec.json.encode(link))


def _number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.5g}"
