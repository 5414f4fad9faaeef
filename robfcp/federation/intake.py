"""Untrusted reports in, one table of the valid ones out; the rest is listed with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import le
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._util.numbers import whole
from robfcp.errors import RobfcpError
from robfcp.federation.agreement import common_strata, same, same_strata
from robfcp.federation.arrivals import Arrivals, Refusal
from robfcp.federation.columns import Columns
from robfcp.federation.counts import Counts, check_extent
from robfcp.federation.entries import Sent
from robfcp.federation.faults import Fault, Untrusted
from robfcp.federation.marks import Header, Objection, agreed_noise, same_noise, sizes_known
from robfcp.federation.quorum import check_quorum
from robfcp.federation.reception import Reception
from robfcp.federation.strata import Stratified, stratified
from robfcp.privacy import Privacy
from robfcp.reports import By, Names, Report, check_client


@dataclass(frozen=True)
class Intake:
    """The valid reports in the order of their clients' names, their counts, and the rest.

    Parameters
    ----------
    arrived
        Who they are from and what they share.
    sizes
        n_k: as reported, or as registered where the report hides it.
    counts
        Their counts, row by row.
    faulty, missing
        Who is left out, and who is silent.
    sizes_known
        Whether sizes are exact.
    strata, set_sizes
        Counts by class and scores of all labels, of those that have them.
    """

    arrived: Arrivals
    sizes: NDArray[np.int64]
    counts: Counts
    faulty: tuple[Fault, ...]
    missing: tuple[str, ...]
    sizes_known: bool
    strata: Stratified | None
    set_sizes: Stratified | None

    @property
    def first(self) -> Header:
        """What all of them share is what the first has."""
        return self.arrived.headers[self.arrived.kinds[0]]

    @property
    def privacy(self) -> list[Privacy | None]:
        """(K,) what noise each holds."""
        return [self.arrived.headers[kind].privacy for kind in self.arrived.kinds.tolist()]


def take_in(
    reports: Iterable[Untrusted | Sent | Columns],
    expected: Mapping[str, Any],
    sizes: Mapping[str, int] | None,
    quorum: int | float | None,
    faults: Iterable[Fault],
    invited: Iterable[str],
    privacy: Privacy | None = None,
) -> Intake:
    """Read every report once, keep the valid ones; see `Federation.from_reports`."""
    registered = sizes is not None
    sizes = None if sizes is None else _checked_sizes(sizes)
    reception = Reception(expected.get("grid"))
    if isinstance(reports, (Report, bytes, str, Mapping, Columns)) or not isinstance(
        reports, Iterable
    ):
        raise RobfcpError("reports: pass a list of them, also where there is only one")
    for item in reports:
        reception.add(item)
    arrived = reception.finish()
    refused = [Refusal(f"report #{position + 1}", fault) for position, fault in reception.refused]
    refused += [Refusal(f"file:{fault.client}", fault) for fault in faults]
    if sizes is not None:
        arrived = arrived.without(refused, _unregistered(arrived, sizes))
    for field, value in expected.items():
        arrived = arrived.keep(refused, same(field, value, arrived))
    by, names = common_strata(arrived.votes())
    if by is not None:
        arrived = arrived.keep(refused, same_strata(by, names))
    arrived = arrived.keep(refused, agreed_noise(arrived.votes(), privacy, registered))
    accepted = _without_conflicts(arrived, refused)
    alike = same_noise(accepted.votes(), registered)
    if alike is not None:
        accepted = accepted.keep(refused, alike)
    awaits = {*invited, *(sizes or ())}
    heard = set(accepted.clients) if refused or awaits else set()  # of no use without any
    faulty = _charged(refused, heard)
    seen = {fault.client for fault in faulty}
    silent = {client for client in invited if client not in heard and client not in seen}
    received = len(accepted) + len(faulty)
    awaited = received + len(silent) if sizes is None else len(silent | set(sizes))
    check_quorum(len(accepted), awaited, quorum, faulty)
    unheard = {client for client in sizes or () if client not in heard and client not in seen}
    accepted = _by_name(accepted)
    n_bins = accepted.headers[accepted.kinds[0]].grid.n_bins
    check_extent(len(accepted), n_bins)
    return Intake(
        accepted,
        sizes=_sizes(accepted, sizes),
        counts=reception.counts.build(accepted.rows, n_bins),
        faulty=tuple(sorted(faulty, key=lambda fault: fault.client)),
        missing=tuple(sorted(silent | unheard)),
        sizes_known=sizes_known(accepted.votes(), registered),
        strata=None if by is None else _strata(reception, accepted, by, names, n_bins),
        set_sizes=_set_sizes(reception, accepted, n_bins),
    )


def _by_name(accepted: Arrivals) -> Arrivals:
    """In the order of their names; most often that is how they come."""
    clients = accepted.clients
    if all(map(le, clients, islice(clients, 1, None))):
        return accepted
    order = sorted(range(len(clients)), key=clients.__getitem__)
    return accepted.taken(np.array(order, dtype=np.intp))


def _sizes(accepted: Arrivals, sizes: Mapping[str, int] | None) -> NDArray[np.int64]:
    """n_k: as reported, or as registered where the report hides it."""
    hidden = np.array([header.hides_size for header in accepted.headers], dtype=bool)
    found = accepted.sizes.copy()
    if sizes is not None:
        for k in np.flatnonzero(hidden[accepted.kinds]).tolist():
            found[k] = sizes[accepted.clients[k]]
    return found


def _strata(
    reception: Reception, accepted: Arrivals, by: By, names: Names, n_bins: int
) -> Stratified | None:
    """The counts by class of those that have them."""
    split = np.array([header.strata is not None for header in accepted.headers], dtype=bool)
    places = np.flatnonzero(split[accepted.kinds])
    if not len(places):
        return None
    n_strata = names if isinstance(names, int) else len(names)
    return stratified(
        reception.by_class.build(accepted.rows[places], n_strata * n_bins),
        places,
        by=by,
        names=names,
        n_bins=n_bins,
        owns=[0 if header.strata is None else header.strata[1] for header in accepted.headers],
        kinds=accepted.kinds[places],
    )


def _set_sizes(reception: Reception, accepted: Arrivals, n_bins: int) -> Stratified | None:
    """The scores of all labels, of those that tell them."""
    places = np.flatnonzero(np.isin(accepted.rows, reception.of_labels.rows))
    if not len(places):
        return None
    counts = reception.of_labels.build(accepted.rows[places], n_bins)
    return Stratified("class", 1, counts, places, n_bins)


def _without_conflicts(arrived: Arrivals, refused: list[Refusal]) -> Arrivals:
    """The reports of clients that sent one; several different ones contradict each other."""
    if arrived.distinct:
        return arrived
    for client, number in Counter(arrived.clients).items():
        if number > 1:
            reason = f"{client}: sent {number} different reports for this round; send one"
            refused.insert(0, Refusal(client, Fault(client, "client", reason)))
    return arrived.where(arrived.alone())


def _charged(refused: list[Refusal], heard: set[str]) -> list[Fault]:
    """One fault a client that is not heard; what bears a heard one's name is its source's fault."""
    faulty: dict[str, Fault] = {}
    for source, fault in refused:
        if fault.client in heard:
            fault = Fault(source, fault.field, f"{source}: {fault.reason}")
        faulty.setdefault(fault.client, fault)
    return list(faulty.values())


def _checked_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """The registry with whole numbers for plain names."""
    if not isinstance(sizes, Mapping) or not sizes:
        raise RobfcpError("sizes: registers nobody; map site names to numbers of samples")
    for client in sizes:
        check_client(client)
    return {
        str(client): whole(f"sizes: {client}", size, "register its number of samples", 1)
        for client, size in sizes.items()
    }


def _unregistered(
    arrived: Arrivals, sizes: Mapping[str, int]
) -> Iterator[tuple[int, Objection | None]]:
    """The reports of strangers, and those of another size than the registered one."""
    hidden = [header.hides_size for header in arrived.headers]
    claims = zip(arrived.clients, arrived.sizes.tolist(), arrived.kinds.tolist(), strict=True)
    for k, (client, claimed, kind) in enumerate(claims):
        expected = sizes.get(client)
        if expected is None:
            yield k, Objection("client", "is not registered", "add it to the registry")
        elif claimed != expected and not hidden[kind]:
            problem = f"counts sum to {claimed} but {expected} samples were registered"
            yield k, Objection("n_samples", problem, "rebuild the report or fix the registry")
