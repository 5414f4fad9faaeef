"""The guarantee under label shift: clients differ in their label distributions alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from robfcp._validation import abbreviate
from robfcp.certificates import CertificateKind
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import _label_shift_thresholds
from robfcp.guarantees._base import BaseGuarantee, CertifiedBin
from robfcp.guarantees._count_bounds import CountBounds
from robfcp.guarantees._label_distributions import LabelDistribution, parse_label_distributions

# Classes that a note names.
MAX_NAMED_CLASSES = 5


class LabelShiftGuarantee(BaseGuarantee, frozen=True, tag="label-shift"):
    """As `PACGuarantee`, where benign clients agree within classes and label mixes may differ.

    Parameters
    ----------
    max_malicious : int
        The largest number of malicious clients.
    heterogeneity : float, default=0
        The declared heterogeneity within classes.
    label_distribution : dict, str or list, optional
        The label mix that coverage is guaranteed for: {class: share}, "uniform", "any" (whatever
        the shares) or a list of them; the benign clients' own if None.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> scores, labels = np.random.default_rng(0).random((10, 400)), np.arange(400) % 2
    >>> reports = [
    ...     robfcp.Report.from_scores(f"site-{k}", client_scores, labels=labels, classes=2)
    ...     for k, client_scores in enumerate(scores)
    ... ]
    >>> distribution = {"0": 0.2, "1": 0.8}
    >>> guarantee = robfcp.LabelShiftGuarantee(max_malicious=1, label_distribution=distribution)
    >>> print(robfcp.calibrate(reports, coverage=0.8, guarantee=guarantee).statement)
    coverage of the stated label mix is at least 80%, whatever at most 1 of 10 sites do, with ...
    """

    max_malicious: int
    heterogeneity: float = 0.0
    label_distribution: LabelDistribution | None = None

    def _normalize(self, name: str, value: Any) -> Any:
        if name == "label_distribution":
            return _normalize_label_distribution(value)
        return super()._normalize(name, value)

    def _max_malicious(self) -> int | None:
        return self.max_malicious

    def _find_threshold(
        self, bounds: CountBounds, level: Fraction, confidence: float
    ) -> CertifiedBin:
        counts = _label_shift_thresholds.class_counts(bounds.federation)
        delta = 1 - confidence
        kind: CertificateKind = "pac"
        if self.label_distribution is None:
            sequence = _label_shift_thresholds.pac_threshold_after_pruning(
                counts, level, self.max_malicious, delta, self.heterogeneity
            )
        else:
            kind = "label-distribution"
            distributions = parse_label_distributions(self.label_distribution, counts.names)
            sequence = _label_shift_thresholds.label_distribution_threshold(
                counts,
                distributions,
                float(1 - level),
                self.max_malicious,
                delta,
                self.heterogeneity,
            )

        compared = set(counts.clients)
        pooled = [client for client in bounds.federation.clients if client not in compared]
        exclusions = ""
        if pooled:
            clients = "site" if len(pooled) == 1 else "sites"
            exclusions = f"{len(pooled)} {clients} without counts of all classes"
            exclusions += f" ({abbreviate(pooled)})"
        return CertifiedBin(
            sequence.bin_index,
            kind,
            confidence,
            note=self._sequence_note(sequence),
            exclusions=exclusions,
            label_shift=self.heterogeneity,
        )

    def _sequence_note(self, sequence: _label_shift_thresholds.SequenceResult) -> str:
        """Return whom pruning dropped, and why nothing is certified; empty where nothing is odd."""
        notes = []
        if sequence.pruned_clients:
            notes.append(
                f"{len(sequence.pruned_clients)} sites that cannot be honest were dropped first "
                f"({abbreviate(sequence.pruned_clients)})"
            )
        if sequence.is_contradicted:
            notes.append(
                f"more than {self.max_malicious} sites disagree within classes by more than "
                f"{self.heterogeneity:g}, so that they cannot be as declared: nothing is "
                "certified; give a larger heterogeneity or max_malicious"
            )
        rare_classes = sequence.classes_with_too_few_clients
        if rare_classes:
            names = ", ".join(rare_classes[:MAX_NAMED_CLASSES])
            notes.append(
                f"too few sites hold {names} for a guarantee against {self.max_malicious} liars"
            )
        return "; ".join(notes)

    def covered_federation(self, federation: Federation) -> Federation:
        compared = set(_label_shift_thresholds.class_counts(federation).clients)
        return federation.select(np.array([name in compared for name in federation.clients]))


def _normalize_label_distribution(label_distribution: Any) -> Any:
    """Return a label mix in plain numbers, so that it is the same once written and read.

    Names of classes and fractions are not checked here, as the classes are not known yet:
    `parse_label_distributions` does, and refuses all other forms.

    Parameters
    ----------
    label_distribution : mapping, str, sequence of them, or None
        {class: fraction}, of any types that convert to str and float; "uniform" or "any"; None for
        the benign clients' own mix.

    Returns
    -------
    dict of str to float, str, list of them, or None
        Anything else is returned as it is.
    """
    if isinstance(label_distribution, Mapping):
        try:
            return {str(name): float(fraction) for name, fraction in label_distribution.items()}
        except (TypeError, ValueError):
            raise RobfcpError(
                "label_distribution: shares are numbers; give {class: share}"
            ) from None
    if isinstance(label_distribution, Sequence) and not isinstance(label_distribution, str):
        return [_normalize_label_distribution(distribution) for distribution in label_distribution]
    return label_distribution
