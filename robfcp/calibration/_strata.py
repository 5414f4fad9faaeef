"""The strata of a round: its classes or groups, or clusters of them, each a smaller federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from robfcp.errors import RobfcpError
from robfcp.federation import Federation, StratifiedTable
from robfcp.reports import OTHER_STRATUM, StratumKind


def resolve_strata(federation: Federation, by: str | None) -> StratifiedTable:
    """Return the counts by class or group.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    by : {"class", "group"} or None
        The kind of strata that is asked for; None for the one that the reports keep.

    Raises
    ------
    RobfcpError
        Where the reports do not keep them.
    """
    if by not in (None, "class", "group"):
        raise RobfcpError(f"by: {by!r} is unknown; use 'class', 'group' or {{class: cluster}}")
    strata = federation.strata
    if strata is None and federation.class_totals is not None and by != "group":
        raise RobfcpError(
            "by: the reports state class totals alone, no counts by class; make them with "
            "--stratify-by-class (stratify_by_class=True)"
        )
    if strata is None:
        raise RobfcpError(
            f"by: the reports hold no counts by {by or 'class'}; recreate them with "
            "--stratify-by-class or "
            "--group (stratify_by_class=True, groups=)"
        )
    if by is not None and strata.by != by:
        raise RobfcpError(f"by: the reports keep counts by {strata.by}, not by {by}; use that")
    return strata


@dataclass(frozen=True, eq=False)
class StratumFederation:
    """One class, group or cluster of them, as a federation of the clients that hold it.

    Attributes
    ----------
    name : str
        Its name, of a cluster that of the cluster; empty for a whole round.
    members : tuple of str
        The classes or groups that it consists of, without "(other)"; empty for a whole round.
    parent : Federation
        The round, with its strata; of a cluster with the clusters as strata.
    stratum_index : int or None
        The position of the stratum among those of `parent`; None for a whole round.
    """

    name: str
    members: tuple[str, ...]
    parent: Federation
    stratum_index: int | None = None

    def federation(self) -> Federation:
        """Return the clients that hold the stratum, with their counts of it.

        Its `rows` are the positions of these clients in the round; of a whole round they are None.
        A stratum that nobody holds has no clients.

        Made anew with every call, as there may be thousands of strata.
        """
        if self.stratum_index is None:
            return self.parent
        return self.parent.select_stratum(self.stratum_index)


def stratum_federations(
    federation: Federation, by: StratumKind, clusters: Mapping[str, str] | None
) -> tuple[StratumFederation, ...]:
    """Return every class, group or cluster that has a name, as a federation.

    What clients merged as "(other)" has no threshold of its own.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    by : {"class", "group"}
        The kind of its strata.
    clusters : mapping of str to str, optional
        The cluster of each class or group, without "(other)".

    Returns
    -------
    tuple of StratumFederation
        At least one; clusters in the order of their first labels.
    """
    strata = resolve_strata(federation, by)
    labels = strata.labels

    # The cluster of each label, in their order. Without clusters a label is one by itself, and what
    # clients merged as "(other)" may lie in any cluster, so it goes to none that has a name.
    cluster_of_label = labels
    if clusters is not None:
        _check_clusters(clusters, labels, strata.by)
        cluster_of_label = tuple(clusters.get(label, OTHER_STRATUM) for label in labels)

    # Number the clusters in the order of their first labels.
    index_of_cluster: dict[str, int] = {}
    for cluster in cluster_of_label:
        index_of_cluster.setdefault(cluster, len(index_of_cluster))
    names = tuple(index_of_cluster)

    # Merged counts would hold several draws of noise, where bounds allow for one.
    merges_labels = len(names) < len(labels)
    if merges_labels and federation.has_noise:
        is_private = any(federation.privacy[row] is not None for row in strata.rows)
        if is_private:
            raise RobfcpError("by: private reports hold noise a class; let sites report by cluster")
    if clusters is not None:
        cluster_indices = [index_of_cluster[cluster] for cluster in cluster_of_label]
        federation = federation.merge_strata(cluster_indices, names)

    members: dict[str, list[str]] = {name: [] for name in names}
    for label, cluster in zip(labels, cluster_of_label, strict=True):
        if label != OTHER_STRATUM:
            members[cluster].append(label)

    results = []
    for index, name in enumerate(names):
        if members[name]:
            results.append(StratumFederation(name, tuple(members[name]), federation, index))
    if not results:
        raise RobfcpError(f"by: no {by} has a name; every site merged all of them")
    return tuple(results)


def _check_clusters(
    clusters: Mapping[str, str], labels: tuple[str, ...], kind: StratumKind
) -> None:
    """Refuse clusters that leave out a class or name an unknown one.

    Parameters
    ----------
    clusters : mapping of str to str
        The cluster of each class or group.
    labels : tuple of str
        The classes or groups of the round, perhaps with "(other)".
    kind : {"class", "group"}
        What they are, for messages.
    """
    for label in labels:
        if label not in clusters and label != OTHER_STRATUM:
            raise RobfcpError(f"by: {label!r} has no cluster; give every class one")
    unknown = sorted(set(clusters) - (set(labels) - {OTHER_STRATUM}))
    if unknown:
        raise RobfcpError(f"by: {unknown[0]!r:.60} is none of the {kind} names")
    if OTHER_STRATUM in clusters.values():
        raise RobfcpError(
            f"by: {OTHER_STRATUM!r} is kept for what sites merge; rename that cluster"
        )
