"""What may be promised whatever some sites do: a threshold and the certificate that goes with it.

Promises are what a record keeps of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few, whole
from robfcp.certificate import FULL, Certificate, Kind
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import curve, engine, label_shift
from robfcp.guarantees.alike import prune
from robfcp.guarantees.engine import Edges, Mask, Tail, Whole, margins
from robfcp.guarantees.site import Anchor
from robfcp.guarantees.tails import pac_tail, pac_threshold, swap_tail


class _Found(NamedTuple):
    """An edge that holds a promise, and what there is to say of it."""

    edge: int | None
    kind: Kind
    confidence: float | None = None
    forcing: int | None = None  # the number of liars that can make every set full
    note: str = ""
    outside: str = ""
    assumed: Mapping[str, Any] = {}


class Stated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every promise can do."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:  # plain, whatever library they came from
            value: Any = getattr(self, name)
            if name == "mix":
                value = _plain(value)
            elif name == "alike":
                value = None if value is None else engine.check_sigma(value)
            elif value is not None or not isinstance(self, Marginal):
                value = whole(name, value, "state how many may lie")
            msgspec.structs.force_setattr(self, name, value)

    def threshold(
        self,
        federation: Federation,
        level: Fraction,
        confidence: float,
        anchor: Anchor | None = None,
    ) -> tuple[int | None, Certificate]:
        """The threshold that holds the promise, and what is proved of it.

        Parameters
        ----------
        federation
            The reports of one round.
        level
            The coverage promised.
        confidence
            With which it holds over the calibration data, where it does not hold on average.
        anchor
            Trusted samples between which it is held.

        Returns
        -------
        tuple
            The bin whose upper edge is the threshold, None for an infinite one; the certificate.
        """
        found, seen = self._find(federation, level, confidence), self.covers(federation)
        edge, forcing = found.edge, found.forcing
        if anchor is not None:  # an average does not survive an upper end
            anchor = anchor.from_below() if found.confidence is None else anchor
            edge, forcing = anchor.clipped(edge), forcing if anchor.high is None else None
        m: int | None = getattr(self, "liars", None)
        n_clients, bound = seen.n_clients, seen.n_clients - 1 if m is None else m
        notes = [FULL] if edge is None or edge == seen.grid.n_bins - 1 else []
        if forcing and forcing <= bound:
            words = f"guaranteed against {bound} of {n_clients}, but without a bound on how sites "
            words += f"differ {forcing} or more liars can make every set full; state how alike "
            notes.append(
                f"{words}sites are (Pac(alike=...), --promise pac --alike) to prevent that"
            )
        certificate = Certificate(
            kind=found.kind,
            lower=float(level),
            upper=1.0,
            confidence=found.confidence,
            m=bound,
            n_clients=n_clients,
            assumptions=curve.assumptions_of(seen, found.kind, m, **found.assumed),
            n_outside=len(curve.outside_of(federation)),
            outside=found.outside,
            full_sets_from=forcing,
            note="; ".join(filter(None, [*notes, found.note, curve.noise_note(seen)])),
            samples=found.assumed.get("samples"),
            **curve.loss_of(seen),
        )
        return edge, certificate if anchor is None else anchor.stated(certificate)

    def _find(self, federation: Federation, level: Fraction, confidence: float) -> _Found:
        """The first edge that holds the promise, as `threshold` takes and gives it."""
        raise NotImplementedError

    def covers(self, federation: Federation) -> Federation:
        """The sites that its certificate speaks of, and with it the curve.

        Parameters
        ----------
        federation
            The reports of one round.
        """
        return federation

    def remarks(self, federation: Federation, confidence: float) -> tuple[str, ...]:
        """What else must be said of these reports, beside the certificate.

        Parameters
        ----------
        federation
            The reports of one round.
        confidence
            Of the certificate.
        """
        return ()


class Marginal(Stated, frozen=True, tag="marginal"):
    """Coverage on average over calibration data, whatever the liars do.

    Parameters
    ----------
    liars
        How many sites may lie.
    samples
        How many samples lying sites may hold together; beside or in place of `liars`.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 15, 5]] * 20)
    >>> robfcp.calibrate(federation, 0.8, promise=robfcp.Marginal(liars=2)).statement
    'coverage is at least 80%, whatever at most 2 of 20 sites do, on average over calibration data'
    """

    liars: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.liars is None and self.samples is None:
            raise RobfcpError(
                "liars: state how many sites (--liars M), or how many samples, may lie"
            )
        super().__post_init__()

    def _find(self, federation: Federation, level: Fraction, confidence: float) -> _Found:
        edge, forcing = marginal_threshold(federation, level, self.liars, self.samples), None
        if self.liars is not None and self.samples is None:
            tail = swap_tail(level, federation.n_clients)
            forcing = tail.forced_by(federation.sizes, self.liars)
        return _Found(edge, "marginal", forcing=forcing, assumed={"samples": self.samples})


class Pac(Stated, frozen=True, tag="pac"):
    """Coverage with a stated confidence over the calibration data, whatever the liars do.

    Parameters
    ----------
    liars
        How many sites may lie.
    alike
        How far an honest site's scores may be from a common distribution (the largest difference
        of their CDFs), declared: sites that cannot be honest are then dropped first. Nothing is
        declared if None.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[80, 15, 5]] * 20)
    >>> print(robfcp.calibrate(federation, 0.8, promise=robfcp.Pac(2, alike=0.05)).statement)
    coverage is at least 80%, and at every honest site at least 70%, whatever at most 2 of 20 ...
    """

    liars: int
    alike: float | None = None

    def _find(self, federation: Federation, level: Fraction, confidence: float) -> _Found:
        m, delta = self.liars, engine.check_delta(1 - confidence)
        if self.alike is None:
            edge, forcing = pac_threshold(federation, level, m, delta), None
            if federation.risk is None:
                tail = pac_tail(federation.sizes, m, level, delta)
                forcing = tail.forced_by(federation.sizes, m)
            return _Found(edge, "pac", confidence, forcing)
        beta = engine.PRUNING_SHARE * delta  # what is left of the chance is the threshold's
        pruning, note = prune(federation, m, self.alike, beta), ""
        edge = pac_threshold(federation.subset(pruning.kept), level, pruning.m, delta - beta)
        if pruning.refuted:
            note = f"the reports contradict sites alike up to {self.alike:g} with at most {m} liars"
            note += ", so nobody was dropped; state a larger one"
        elif pruning.dropped:
            note = f"{len(pruning.dropped)} sites that cannot be honest were dropped first"
        return _Found(edge, "pac", confidence, note=note, assumed={"alike": self.alike})

    def remarks(self, federation: Federation, confidence: float) -> tuple[str, ...]:
        strata = federation.exact_strata
        if self.alike is None or strata is None or label_shift.mixes_differ(strata.sizes) > 1e-3:
            return ()
        words = "the sites are declared alike, but their label mixes differ beyond chance"
        return (f"{words}: coverage may be less than promised; promise LabelShift instead",)


class LabelShift(Stated, frozen=True, tag="label-shift"):
    """As `Pac`, where honest sites agree within classes while their label mixes differ at will.

    Parameters
    ----------
    liars
        How many sites may lie.
    alike
        How far an honest site's scores may be from a common distribution within a class.
    mix
        Coverage is promised for these shares of the classes: {class: share}, "uniform", "any"
        (whatever the shares) or a list of them; for the honest sites' own pool if None.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> scores, labels = np.random.default_rng(0).random((10, 400)), np.arange(400) % 2
    >>> reports = [
    ...     robfcp.Report.from_scores(f"site-{k}", own, labels=labels, classes=2)
    ...     for k, own in enumerate(scores)
    ... ]
    >>> promise = robfcp.LabelShift(liars=1, mix={"0": 0.2, "1": 0.8})
    >>> print(robfcp.calibrate(reports, 0.8, promise=promise).statement)
    coverage of the stated label mix is at least 80%, whatever at most 1 of 10 sites do, with ...
    """

    liars: int
    alike: float = 0.0
    mix: label_shift.Mix | None = None

    def _find(self, federation: Federation, level: Fraction, confidence: float) -> _Found:
        counts, m, delta = label_shift.class_counts(federation), self.liars, 1 - confidence
        kind: Kind = "pac" if self.mix is None else "mix"
        if self.mix is None:
            walk = label_shift.pruned_pac(counts, level, m, delta, self.alike)
        else:
            mixes, alpha = label_shift.read_mixes(self.mix, counts.names), float(1 - level)
            walk = label_shift.mix_threshold(counts, mixes, alpha, m, delta, self.alike)
        pooled, words = [name for name in federation.ids if name not in set(counts.ids)], ""
        notes = {
            f"{len(walk.dropped)} sites that cannot be honest were dropped first "
            f"({a_few(walk.dropped)})": walk.dropped,
            f"more than {m} sites disagree within classes by more than {self.alike:g}, so that "
            "they cannot be as declared: nothing is certified; state a larger alike or more "
            "liars": walk.contradiction,
            f"too few sites hold {', '.join(walk.too_few[:5])} for a guarantee against {m} "
            "liars": walk.too_few,
        }
        if pooled:
            sites = "site" if len(pooled) == 1 else "sites"
            words = f"{len(pooled)} {sites} without counts of all classes ({a_few(pooled)})"
        note = "; ".join(text for text, so in notes.items() if so)
        found = _Found(walk.index, kind, confidence, note=note, outside=words)
        return found._replace(assumed={"label_shift": self.alike})

    def covers(self, federation: Federation) -> Federation:
        compared = set(label_shift.class_counts(federation).ids)
        return federation.subset(np.array([name in compared for name in federation.ids]))


Promise = Marginal | Pac | LabelShift
PROMISES = {"marginal": Marginal, "pac": Pac, "label-shift": LabelShift}


def named_promise(name: str, **stated: Any) -> Promise:
    """The promise a word names, with what is stated of it; None is not stated.

    Examples
    --------
    >>> from robfcp.guarantees import named_promise
    >>> named_promise("pac", liars=3, alike=None)
    Pac(liars=3, alike=None)
    """
    if name not in PROMISES:
        raise RobfcpError(f"promise: {name!r:.60} is unknown; use {', '.join(PROMISES)}")
    kind, given = PROMISES[name], {k: v for k, v in stated.items() if v is not None}
    takes = kind.__struct_fields__
    if unknown := sorted(set(given) - set(takes)):
        raise RobfcpError(f"{unknown[0]}: {name} takes none; it takes {', '.join(takes)}")
    if kind is not Marginal and "liars" not in given:
        raise RobfcpError(
            "liars: state how many sites may lie (--liars M), before reports are seen"
        )
    promise: Promise = kind(**given)
    return promise


def _plain(mix: Any) -> Any:
    """A label mix in plain numbers, so that it is the same once written and read."""
    if isinstance(mix, Mapping):
        try:
            return {str(name): float(part) for name, part in mix.items()}
        except (TypeError, ValueError):
            raise RobfcpError("mix: shares are numbers; give {class: share}") from None
    several = isinstance(mix, Sequence) and not isinstance(mix, str)
    return [_plain(one) for one in mix] if several else mix


def marginal_threshold(
    federation: Federation, level: Fraction, m: int | None = None, samples: int | None = None
) -> int | None:
    """The first edge that covers at `level` whatever <= m clients (or W samples) do; None = inf.

    The first t at which sum_S (c_k - level n_k) >= 1 for every S that leaves out at most m clients.
    It is the largest of FCP's thresholds over all clients that could be the benign ones. Noise is
    allowed for, with a chance that is paid from the level.
    """
    counts = engine.counts_of(federation)
    tail, noise = marginal_tail(counts, level)
    m = None if m is None else engine.check_budget(m, federation.n_clients)
    if samples is not None:
        counts.require_sizes("samples")

    def accepted(edges: Edges) -> Mask:
        enough = np.zeros(len(edges), dtype=bool)
        if m is not None:
            enough = counts.accepted(edges, tail, m, noise)
        if samples is not None and not enough.all():
            gains = margins(counts.least(edges), counts.weights, tail.p, tail.q)
            needed = counts.halves * tail.needed + counts.room(edges, tail, noise)
            pairs = zip(gains, needed.tolist(), strict=True)
            enough |= [samples_hold(row, counts.sizes, samples, need) for row, need in pairs]
        return enough

    return counts.search(accepted)


def marginal_tail(counts: engine.ExactCounts, level: Fraction) -> tuple[Tail, float]:
    """What a marginal threshold needs at the level that leaves room for noise, and its chance."""
    beta = counts.level_share(level)
    return swap_tail(level + beta, len(counts.sizes), counts.unit), float(beta)


def samples_hold(gains: NDArray[Any], sizes: Whole, budget: int, needed: int = 0) -> bool:
    """Whether the sum of every S whose complement has at most `budget` samples reaches the needed.

    Sound, not exact: the knapsack of removals is relaxed to fractions and bounded by its dual,
    max sum_R g <= lambda W + sum (g_k - lambda n_k)+, lambda = g_j / n_j of the item that breaks.
    """
    if budget >= int(np.sum(sizes)):
        return False
    total = int(gains.sum()) - needed
    removable = (gains > 0) & (np.asarray(sizes) <= budget)
    gains, weights = gains[removable], np.asarray(sizes)[removable]
    order = np.argsort(-(gains / weights).astype(float), kind="stable")
    filled = np.cumsum(weights[order])
    if not filled.size or filled[-1] <= budget:
        return total - int(gains.sum()) >= 0
    breaking = order[int(np.searchsorted(filled, budget, side="right"))]
    gain, weight = int(gains[breaking]), int(weights[breaking])
    exact = gains.astype(object) * weight - gain * weights.astype(object)
    return total * weight - gain * budget - int(np.maximum(exact, 0).sum()) >= 0


def liars_no_rule_survives(sizes: NDArray[np.int64], level: Fraction) -> int | None:
    """The least m at which no rule that guarantees `level` against m can avoid full sets.

    m clients report all mass at the top; they lie, or they are honest and m others mimic the
    rest: the reports are the same. Sizes n_k, largest first: the least m with
    sum_{k<=m} n_k > (1 - level) (N - sum_{m<k<=2m} n_k), at most K/2.
    """
    running = [0, *np.cumsum(np.sort(np.asarray(sizes, dtype=np.int64))[::-1]).tolist()]

    def broken(m: int) -> bool:
        return running[m] > (1 - level) * (running[-1] - running[2 * m] + running[m])

    return next(filter(broken, range(1, len(sizes) // 2 + 1)), None)
