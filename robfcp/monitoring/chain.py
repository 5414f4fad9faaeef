"""Calibrations one after the other: what changed, who stays out, and what error is spent.

Round r of a chain spends 6 delta / (pi^2 r^2) on "this site cannot be honest" and as much on "this
site has drifted"; over all rounds each sums to at most delta, however long the chain grows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import pi
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import share
from robfcp.calibration.calibration import Calibration
from robfcp.calibration.file_format import FilePath, SealedFile, digest_of
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation
from robfcp.guarantees.alike import ClientIntervals, prune
from robfcp.monitoring.alarms import AlarmHistory
from robfcp.monitoring.monitor import LEAST_ROWS, Count, Digest, Share

N_EDGES = 32


def drifted(before: Federation, now: Federation, error: float) -> dict[str, float]:
    """Sites whose two reports differ by more than chance in Kolmogorov distance, and by how much.

    More than e_1 + e_2, e_i = sqrt(ln(4 K / error) / (2 n_i)): with a chance of at most `error` is
    any site named whose samples were drawn alike (Dvoretzky, Kiefer, Wolfowitz, Massart).
    """
    if before.exact_digest is None or before.exact_digest != now.exact_digest:
        return {}
    common, rows = _in_both(before, now)
    shares, slack = [], np.zeros(len(common))
    for federation, chosen in zip((before, now), rows, strict=True):
        size = federation.sizes[chosen]
        shares.append(federation.cumulative()[chosen] / size[:, None])
        slack += np.sqrt(np.log(4 * max(1, len(common)) / error) / (2 * size))
    distance = np.abs(shares[0] - shares[1]).max(axis=1, initial=0)
    return {common[k]: float(distance[k]) for k in np.flatnonzero(distance > slack)}


def repeated(before: Federation, now: Federation) -> list[str]:
    """Sites whose two reports are equal to the last count: no fresh samples went into the later.

    Fewer than 30 samples may fall alike by chance, and are not named.
    """
    if before.grid != now.grid:
        return []
    common, (old, new) = _in_both(before, now)
    every = np.arange(now.grid.n_bins)
    same = (before.cumulative(every)[old] == now.cumulative(every)[new]).all(axis=1)
    return [common[k] for k in np.flatnonzero(same & (now.sizes[new] >= LEAST_ROWS))]


def _in_both(before: Federation, now: Federation) -> tuple[list[str], list[NDArray[np.intp]]]:
    """The sites that sent both reports, and their rows in each federation."""
    places = [{name: k for k, name in enumerate(one.ids)} for one in (before, now)]
    common = sorted(places[0].keys() & places[1].keys())
    return common, [np.array([place[c] for c in common], dtype=np.intp) for place in places]


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One calibration of a chain; names of clients stay at the server.

    `out` are the sites that stay out, with the round since when; `left_out` those that joined them
    now, with the reason; `drifted` the Kolmogorov distance to the own report of the round before,
    where it is more than chance; `repeated` those that sent that very report again. `alarms` is the
    digest of the record of alarms on the calibration before, `rang` when each rang there, `alarmed`
    the sites that alarmed by themselves at its last look.
    """

    number: int
    calibration: Digest
    before: Digest | None  # of the link before
    round: str | None
    thresholds: list[float | None]
    lowers: list[float]
    clients: list[str]
    flagged: list[str]
    error: float
    alike: float | None = None
    out: dict[str, int] = {}
    left_out: dict[str, str] = {}
    readmitted: list[str] = []
    drifted: dict[str, float] = {}
    repeated: list[str] = []
    alarms: Digest | None = None
    rang: dict[str, int] = {}
    alarmed: list[str] = []

    @property
    def digest(self) -> str:
        """SHA-256 of the link, which the next one holds."""
        return digest_of(msgspec.json.encode(self))


@dataclass(frozen=True)
class Reputation:
    """What the rounds say of one site: how often it reported, was flagged, drifted, alarmed; if it
    is out.

    Being flagged proves nothing. Being out does, under the stated alikeness, at the error spent.
    """

    reported: int
    flagged: int
    drifted: int
    alarmed: int
    out_since: int | None


class Admission(NamedTuple):
    """The federation of a round without those that stay out, how many liars may remain, and what
    its link says of it: `alike`, `out`, `left_out`, `readmitted`."""

    federation: Federation
    liars: int | None
    told: dict[str, Any]
    remarks: tuple[str, ...] = ()


class Chain(SealedFile, frozen=True):
    """A chain of calibrations, the oldest first; every link holds the digest of the one before."""

    kind = "chain"
    remedy = "pass the .chain.json that robfcp calibrate --previous wrote"

    delta: Share
    grid: Digest
    edges: tuple[Count, ...]
    links: tuple[Link, ...]

    @staticmethod
    def begin(calibration: Calibration, delta: float = 0.05) -> Chain:
        """A chain whose first link is this calibration; its pool fixes the edges looked at."""
        share("delta", delta, "give 0.05, say")
        federation = calibration.federation
        pooled = np.cumsum(federation.pooled(calibration.trusted_mask))
        places = np.searchsorted(pooled, pooled[-1] * np.arange(1, N_EDGES + 1) / (N_EDGES + 1))
        edges = np.unique(places.clip(0, max(federation.grid.n_bins - 2, 0))).tolist()
        bare = Chain(delta, federation.grid.digest, tuple(edges), ())
        return msgspec.structs.replace(bare, links=(bare._link(calibration),))

    @property
    def error(self) -> float:
        """What the next round r may spend: 6 delta / (pi^2 r^2), over all rounds delta."""
        return 6 * self.delta / (pi * (len(self.links) + 1)) ** 2

    def admit(
        self,
        federation: Federation,
        liars: int | None,
        alike: float | None = None,
        readmit: Iterable[str] = (),
    ) -> Admission:
        """The federation without the sites that stay out; those refuted now join them.

        While every honest site's CDF is within `alike` of a common one at the edges fixed, no
        honest site is ever left out with a chance of at least 1 - delta over all rounds.
        """
        out = dict(self.links[-1].out)
        back = list(dict.fromkeys(readmit))
        for client in back:
            if client not in out:
                raise RobfcpError(f"--readmit: {client} is not out; check the name")
            del out[client]
        since = "out since round {} of the chain; --readmit takes it back"
        why = {client: since.format(number) for client, number in out.items()}
        kept, left, remarks = _without(federation, why), dict[str, str](), tuple[str, ...]()
        if liars is not None:
            liars = max(0, liars - (federation.n_clients - kept.n_clients))
        if liars and alike is not None:
            if federation.exact_digest != self.grid:
                remarks = ("nobody was left out for good: the grid changed or reports hold noise",)
            elif max(self.edges, default=0) >= federation.grid.n_bins:
                raise RobfcpError("previous: its chain looks outside the grid; begin another")
            else:
                known = ClientIntervals(kept, self.error, np.array(self.edges))
                dropped = prune(kept, liars, alike, self.error, known).dropped
                words = f"its share below {{:.4g}} is not within {alike:g} of the others'"
                upper = federation.grid.upper
                left = {client: words.format(upper[edge]) for client, edge in dropped.items()}
                why = {name: f"{left[name]}; it stays out until --readmit" for name in left}
                kept, liars = _without(kept, why), liars - len(left)
        out |= dict.fromkeys(left, len(self.links) + 1)
        if out:
            sites = "1 site is" if len(out) == 1 else f"{len(out)} sites are"
            words = f"{sites} out, justly but for a chance of {self.delta:g} over all rounds"
            kept = replace(kept, checked=msgspec.structs.replace(kept.checked, chain=words))
        told = {"alike": alike, "out": out, "left_out": left, "readmitted": back}
        return Admission(kept, liars, told, remarks)

    def extended(
        self,
        calibration: Calibration,
        previous: Calibration,
        admission: Admission,
        alarms: AlarmHistory | None = None,
    ) -> Chain:
        """The chain with one more link; `previous` must be the calibration of the last one, and
        `alarms` the record of it."""
        watched, told = self.links[-1].calibration, dict(admission.told)
        if previous.identity != watched:
            raise RobfcpError("previous: is not the last calibration of its chain; pass the newest")
        if alarms is not None:
            if alarms.calibration != watched:
                raise RobfcpError("alarms: watches another calibration than the last; pass its own")
            told |= {"alarms": alarms.digest, "rang": alarms.rang, "alarmed": list(alarms.alarmed)}
        both = previous.federation, calibration.federation
        told |= {"drifted": drifted(*both, self.error), "repeated": repeated(*both)}
        link = msgspec.structs.replace(self._link(calibration), **told)
        return msgspec.structs.replace(self, links=(*self.links, link))

    def _link(self, calibration: Calibration) -> Link:
        """The next link, before anything is said of sites."""
        levels = calibration.levels
        return Link(
            number=len(self.links) + 1,
            calibration=calibration.identity,
            before=self.links[-1].digest if self.links else None,
            round=calibration.summary.round,
            thresholds=[x.threshold if np.isfinite(x.threshold) else None for x in levels],
            lowers=[level.certificate.lower for level in levels],
            clients=list(calibration.federation.ids),
            flagged=list(calibration.flagged),
            error=self.error,
        )

    def reputations(self) -> dict[str, Reputation]:
        """What all rounds say of every site that ever reported."""
        names = sorted({name for link in self.links for name in (*link.clients, *link.out)})
        seen, flags, drifts, alarms = (
            Counter(name for link in self.links for name in getattr(link, kind))
            for kind in ("clients", "flagged", "drifted", "alarmed")
        )
        out = self.links[-1].out
        return {n: Reputation(seen[n], flags[n], drifts[n], alarms[n], out.get(n)) for n in names}

    def changes(self) -> list[str]:
        """What the last round changed, a line each."""
        if len(self.links) < 2:
            return []
        old, new = self.links[-2:]
        each = zip(old.thresholds, new.thresholds, old.lowers, new.lowers, strict=False)
        lines = [
            f"threshold {_number(a)} -> {_number(b)}, proved at least {low:.4f} -> {high:.4f}"
            for a, b, low, high in each
        ]
        rang = "the {} alarm on the calibration before rang at step {}"
        lines += [rang.format(name, step) for name, step in new.rang.items()]
        was, now = set(old.clients), set(new.clients)
        groups = {
            "came": now - was,
            "went": was - now - set(new.out),
            "flagged now": (set(new.flagged) - set(old.flagged)) & was,
            "no longer flagged": (set(old.flagged) - set(new.flagged)) & now,
            "left out for good": new.left_out,
            "readmitted": new.readmitted,
            "drifted since": new.drifted,
            "alarmed by themselves before": new.alarmed,
            "sent the report of the round before again": new.repeated,
        }
        return lines + [f"{word}: {', '.join(sorted(who))}" for word, who in groups.items() if who]

    def problem(self) -> str:
        """What does not fit together: every link must hold the digest of the one before."""
        if not self.links or self.links[0].before is not None:
            return "the chain has no beginning"
        for before, link in pairwise(self.links):
            if link.before != before.digest or link.number != before.number + 1:
                return f"link {link.number} does not follow"
        return ""

    @staticmethod
    def of(path: FilePath, delta: float = 0.05) -> tuple[Calibration, Chain]:
        """A saved calibration with the chain beside it, or one begun with it."""
        previous, beside = Calibration.load(path), chain_path(path)
        if not beside.exists():
            return previous, Chain.begin(previous, delta)
        chain = Chain.load(beside)
        if previous.identity != chain.links[-1].calibration:
            raise RobfcpError(f"{beside}: is not the chain of {path}; pass the newest calibration")
        return previous, chain


def chain_path(path: FilePath) -> Path:
    """Where the chain of the calibration at `path` lies."""
    return Path(path).with_suffix(".chain.json")


def _without(federation: Federation, why: dict[str, str]) -> Federation:
    """The federation without some sites, which are listed as faulty with the reason."""
    gone = [client for client in federation.ids if client in why]
    if not gone:
        return federation
    if len(gone) == federation.n_clients:
        raise RobfcpError("previous: every site that reported is out; readmit some")
    faults = tuple(Fault(client, "chain", f"{client}: {why[client]}") for client in gone)
    mask = np.array([client not in why for client in federation.ids])
    return replace(federation.subset(mask), faulty=federation.faulty + faults)


def _number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.5g}"
