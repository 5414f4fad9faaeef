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

from robfcp._validation import abbreviate, check_integer
from robfcp.certificates import TRIVIAL_SETS, Certificate, CertificateKind
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import _certify, _label_shift, _worst_case
from robfcp.guarantees._heterogeneity import prune_clients
from robfcp.guarantees._local_bounds import TrustedInterval
from robfcp.guarantees._tail_bounds import marginal_tail_test, pac_tail_test, pac_threshold
from robfcp.guarantees._worst_case import BoolArray, IndexArray, IntArray, TailTest, excess_counts


class _CertifiedBin(NamedTuple):
    """An edge that holds a promise, and what there is to say of it."""

    bin_index: int | None
    kind: CertificateKind
    confidence: float | None = None
    breakdown_point: int | None = None  # the number of liars that can make every set full
    note: str = ""
    exclusions: str = ""
    assumption_values: Mapping[str, Any] = {}


class _BaseGuarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every promise can do."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:  # plain, whatever library they came from
            value: Any = getattr(self, name)
            if name == "mix":
                value = _normalize_label_distribution(value)
            elif name == "alike":
                value = None if value is None else _worst_case.check_heterogeneity(value)
            elif value is not None or not isinstance(self, MarginalGuarantee):
                value = check_integer(name, value, "state how many may lie")
            msgspec.structs.force_setattr(self, name, value)

    def threshold(
        self,
        federation: Federation,
        level: Fraction,
        confidence: float,
        anchor: TrustedInterval | None = None,
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
        found, seen = (
            self._find_threshold(federation, level, confidence),
            self.covered_federation(federation),
        )
        edge, forcing = found.bin_index, found.breakdown_point
        if anchor is not None:  # an average does not survive an upper end
            anchor = anchor.lower_only() if found.confidence is None else anchor
            edge, forcing = anchor.clip(edge), forcing if anchor.high is None else None
        m: int | None = getattr(self, "liars", None)
        n_clients, bound = seen.n_clients, seen.n_clients - 1 if m is None else m
        notes = [TRIVIAL_SETS] if edge is None or edge == seen.binning.n_bins - 1 else []
        if forcing and forcing <= bound:
            words = f"guaranteed against {bound} of {n_clients}, but without a bound on how sites "
            words += f"differ {forcing} or more liars can make every set full; state how alike "
            notes.append(
                f"{words}sites are (PACGuarantee(alike=...), --promise pac --alike) to prevent that"
            )
        certificate = Certificate(
            kind=found.kind,
            lower=float(level),
            upper=1.0,
            confidence=found.confidence,
            m=bound,
            n_clients=n_clients,
            assumptions=_certify.list_assumptions(seen, found.kind, m, **found.assumption_values),
            n_outside=len(_certify.clients_not_covered(federation)),
            outside=found.exclusions,
            full_sets_from=forcing,
            note="; ".join(filter(None, [*notes, found.note, _certify.noise_note(seen)])),
            samples=found.assumption_values.get("max_malicious_samples"),
            **_certify.risk_fields(seen),
        )
        return edge, certificate if anchor is None else anchor.annotate(certificate)

    def _find_threshold(
        self, federation: Federation, level: Fraction, confidence: float
    ) -> _CertifiedBin:
        """The first edge that holds the promise, as `threshold` takes and gives it."""
        raise NotImplementedError

    def covered_federation(self, federation: Federation) -> Federation:
        """The sites that its certificate speaks of, and with it the curve.

        Parameters
        ----------
        federation
            The reports of one round.
        """
        return federation

    def notes(self, federation: Federation, confidence: float) -> tuple[str, ...]:
        """What else must be said of these reports, beside the certificate.

        Parameters
        ----------
        federation
            The reports of one round.
        confidence
            Of the certificate.
        """
        return ()


class MarginalGuarantee(_BaseGuarantee, frozen=True, tag="marginal"):
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
    >>> robfcp.calibrate(federation, 0.8, guarantee=robfcp.MarginalGuarantee(liars=2)).statement
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

    def _find_threshold(
        self, federation: Federation, level: Fraction, confidence: float
    ) -> _CertifiedBin:
        edge, forcing = marginal_threshold_bin(federation, level, self.liars, self.samples), None
        if self.liars is not None and self.samples is None:
            tail = marginal_tail_test(level, federation.n_clients)
            forcing = tail.breakdown_point(federation.sample_sizes, self.liars)
        return _CertifiedBin(
            edge,
            "marginal",
            breakdown_point=forcing,
            assumption_values={"max_malicious_samples": self.samples},
        )


class PACGuarantee(_BaseGuarantee, frozen=True, tag="pac"):
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
    >>> guarantee = robfcp.PACGuarantee(2, alike=0.05)
    >>> print(robfcp.calibrate(federation, 0.8, guarantee=guarantee).statement)
    coverage is at least 80%, and at every honest site at least 70%, whatever at most 2 of 20 ...
    """

    liars: int
    alike: float | None = None

    def _find_threshold(
        self, federation: Federation, level: Fraction, confidence: float
    ) -> _CertifiedBin:
        m, delta = self.liars, _worst_case.check_delta(1 - confidence)
        if self.alike is None:
            edge, forcing = pac_threshold(federation, level, m, delta), None
            if federation.risk is None:
                tail = pac_tail_test(federation.sample_sizes, m, level, delta)
                forcing = tail.breakdown_point(federation.sample_sizes, m)
            return _CertifiedBin(edge, "pac", confidence, forcing)
        beta = (
            _worst_case.PRUNING_DELTA_FRACTION * delta
        )  # what is left of the chance is the threshold's
        pruning, note = prune_clients(federation, m, self.alike, beta), ""
        edge = pac_threshold(
            federation.select(pruning.kept_mask), level, pruning.max_malicious_left, delta - beta
        )
        if pruning.is_contradicted:
            note = f"the reports contradict sites alike up to {self.alike:g} with at most {m} liars"
            note += ", so nobody was dropped; state a larger one"
        elif pruning.pruned_at:
            note = f"{len(pruning.pruned_at)} sites that cannot be honest were dropped first"
        return _CertifiedBin(
            edge, "pac", confidence, note=note, assumption_values={"heterogeneity": self.alike}
        )

    def notes(self, federation: Federation, confidence: float) -> tuple[str, ...]:
        strata = federation.noise_free_strata
        if (
            self.alike is None
            or strata is None
            or _label_shift.label_homogeneity_p_value(strata.stratum_sizes) > 1e-3
        ):
            return ()
        words = "the sites are declared alike, but their label mixes differ beyond chance"
        return (
            f"{words}: coverage may be less than promised; promise LabelShiftGuarantee instead",
        )


class LabelShiftGuarantee(_BaseGuarantee, frozen=True, tag="label-shift"):
    """As `PACGuarantee`, where honest sites agree within classes and label mixes differ at will.

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
    >>> promise = robfcp.LabelShiftGuarantee(liars=1, mix={"0": 0.2, "1": 0.8})
    >>> print(robfcp.calibrate(reports, 0.8, guarantee=promise).statement)
    coverage of the stated label mix is at least 80%, whatever at most 1 of 10 sites do, with ...
    """

    liars: int
    alike: float = 0.0
    mix: _label_shift.LabelDistribution | None = None

    def _find_threshold(
        self, federation: Federation, level: Fraction, confidence: float
    ) -> _CertifiedBin:
        counts, m, delta = _label_shift.class_counts(federation), self.liars, 1 - confidence
        kind: CertificateKind = "pac" if self.mix is None else "mix"
        if self.mix is None:
            walk = _label_shift.pac_threshold_after_pruning(counts, level, m, delta, self.alike)
        else:
            mixes, alpha = (
                _label_shift.parse_label_distributions(self.mix, counts.names),
                float(1 - level),
            )
            walk = _label_shift.label_distribution_threshold(
                counts, mixes, alpha, m, delta, self.alike
            )
        pooled, words = [name for name in federation.clients if name not in set(counts.clients)], ""
        rare = walk.classes_with_too_few_clients
        notes = {
            f"{len(walk.pruned_clients)} sites that cannot be honest were dropped first "
            f"({abbreviate(walk.pruned_clients)})": walk.pruned_clients,
            f"more than {m} sites disagree within classes by more than {self.alike:g}, so that "
            "they cannot be as declared: nothing is certified; state a larger alike or more "
            "liars": walk.is_contradicted,
            f"too few sites hold {', '.join(rare[:5])} for a guarantee against {m} liars": rare,
        }
        if pooled:
            sites = "site" if len(pooled) == 1 else "sites"
            words = f"{len(pooled)} {sites} without counts of all classes ({abbreviate(pooled)})"
        note = "; ".join(text for text, so in notes.items() if so)
        found = _CertifiedBin(walk.bin_index, kind, confidence, note=note, exclusions=words)
        return found._replace(assumption_values={"label_shift": self.alike})

    def covered_federation(self, federation: Federation) -> Federation:
        compared = set(_label_shift.class_counts(federation).clients)
        return federation.select(np.array([name in compared for name in federation.clients]))


Guarantee = MarginalGuarantee | PACGuarantee | LabelShiftGuarantee
GUARANTEES = {
    "marginal": MarginalGuarantee,
    "pac": PACGuarantee,
    "label-shift": LabelShiftGuarantee,
}


def get_guarantee(name: str, **stated: Any) -> Guarantee:
    """The promise a word names, with what is stated of it; None is not stated.

    Examples
    --------
    >>> from robfcp.guarantees import get_guarantee
    >>> get_guarantee("pac", liars=3, alike=None)
    PACGuarantee(liars=3, alike=None)
    """
    if name not in GUARANTEES:
        raise RobfcpError(f"promise: {name!r:.60} is unknown; use {', '.join(GUARANTEES)}")
    kind, given = GUARANTEES[name], {k: v for k, v in stated.items() if v is not None}
    takes = kind.__struct_fields__
    if unknown := sorted(set(given) - set(takes)):
        raise RobfcpError(f"{unknown[0]}: {name} takes none; it takes {', '.join(takes)}")
    if kind is not MarginalGuarantee and "liars" not in given:
        raise RobfcpError(
            "liars: state how many sites may lie (--liars M), before reports are seen"
        )
    promise: Guarantee = kind(**given)
    return promise


def _normalize_label_distribution(mix: Any) -> Any:
    """A label mix in plain numbers, so that it is the same once written and read."""
    if isinstance(mix, Mapping):
        try:
            return {str(name): float(part) for name, part in mix.items()}
        except (TypeError, ValueError):
            raise RobfcpError("mix: shares are numbers; give {class: share}") from None
    several = isinstance(mix, Sequence) and not isinstance(mix, str)
    return [_normalize_label_distribution(one) for one in mix] if several else mix


def marginal_threshold_bin(
    federation: Federation,
    level: Fraction,
    max_malicious: int | None = None,
    max_malicious_samples: int | None = None,
) -> int | None:
    """The first edge that covers at `level` whatever <= m clients (or W samples) do; None = inf.

    The first t at which sum_S (c_k - level n_k) >= 1 for every S that leaves out at most m clients.
    It is the largest of FCP's thresholds over all clients that could be the benign ones. Noise is
    allowed for, with a chance that is paid from the level.
    """
    counts = _worst_case.count_bounds(federation)
    tail, noise = marginal_tail(counts, level)
    max_malicious = (
        None
        if max_malicious is None
        else _worst_case.check_max_malicious(max_malicious, federation.n_clients)
    )
    if max_malicious_samples is not None:
        counts.require_sizes("samples")

    def accepted(edges: IndexArray) -> BoolArray:
        enough = np.zeros(len(edges), dtype=bool)
        if max_malicious is not None:
            enough = counts.accepted(edges, tail, max_malicious, noise)
        if max_malicious_samples is not None and not enough.all():
            gains = excess_counts(counts.lower(edges), counts.weights, tail.p, tail.q)
            needed = counts.halves * tail.min_excess + counts.noise_allowance(edges, tail, noise)
            pairs = zip(gains, needed.tolist(), strict=True)
            enough |= [
                survives_malicious_samples(row, counts.sizes, max_malicious_samples, need)
                for row, need in pairs
            ]
        return enough

    return counts.search(accepted)


def marginal_tail(counts: _worst_case.CountBounds, level: Fraction) -> tuple[TailTest, float]:
    """What a marginal threshold needs at the level that leaves room for noise, and its chance."""
    beta = counts.level_share(level)
    return marginal_tail_test(level + beta, len(counts.sizes), counts.unit), float(beta)


def survives_malicious_samples(
    excess_counts: NDArray[Any],
    sizes: IntArray,
    max_malicious_samples: int,
    required_excess: int = 0,
) -> bool:
    """Whether the sum of every S whose complement has at most `budget` samples reaches the needed.

    Sound, not exact: the knapsack of removals is relaxed to fractions and bounded by its dual,
    max sum_R g <= lambda W + sum (g_k - lambda n_k)+, lambda = g_j / n_j of the item that breaks.
    """
    if max_malicious_samples >= int(np.sum(sizes)):
        return False
    total = int(excess_counts.sum()) - required_excess
    removable = (excess_counts > 0) & (np.asarray(sizes) <= max_malicious_samples)
    excess_counts, weights = excess_counts[removable], np.asarray(sizes)[removable]
    order = np.argsort(-(excess_counts / weights).astype(float), kind="stable")
    filled = np.cumsum(weights[order])
    if not filled.size or filled[-1] <= max_malicious_samples:
        return total - int(excess_counts.sum()) >= 0
    breaking = order[int(np.searchsorted(filled, max_malicious_samples, side="right"))]
    gain, weight = int(excess_counts[breaking]), int(weights[breaking])
    exact = excess_counts.astype(object) * weight - gain * weights.astype(object)
    return total * weight - gain * max_malicious_samples - int(np.maximum(exact, 0).sum()) >= 0


def breakdown_point_of_any_rule(sizes: NDArray[np.int64], level: Fraction) -> int | None:
    """The least m at which no rule that guarantees `level` against m can avoid full sets.

    m clients report all mass at the top; they lie, or they are honest and m others mimic the
    rest: the reports are the same. Sizes n_k, largest first: the least m with
    sum_{k<=m} n_k > (1 - level) (N - sum_{m<k<=2m} n_k), at most K/2.
    """
    running = [0, *np.cumsum(np.sort(np.asarray(sizes, dtype=np.int64))[::-1]).tolist()]

    def broken(m: int) -> bool:
        return running[m] > (1 - level) * (running[-1] - running[2 * m] + running[m])

    return next(filter(broken, range(1, len(sizes) // 2 + 1)), None)
