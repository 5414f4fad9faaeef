"""What the page embeds of classes or groups, and of the clients of lowest coverage."""

from __future__ import annotations

from typing import Any

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray
from robfcp.calibration import Calibration, StratumCoverage
from robfcp.federation import StratifiedTable
from robfcp.local import local_thresholds
from robfcp.page._format import finite_or_none, rounded_ratio

MAX_STRATA_SHOWN = 60
MAX_CLIENTS_SHOWN = 20  # those of lowest coverage, whose local thresholds are computed


def strata_data(calibration: Calibration) -> dict[str, Any] | None:
    """Return a row for each class or group, and one for each benign client of lowest coverage.

    The tables of classes and clients (strata.js) and the model card (page.js). Samples of excluded
    clients are counted apart. None where the reports have no such counts.
    """
    federation = calibration.federation
    strata = federation.strata
    if strata is None:
        return None

    coverage = calibration.class_coverage(calibration.levels[0])
    is_benign = calibration.benign_mask[strata.rows]
    columns = _largest_strata(coverage)
    rows_without_strata = np.setdiff1d(range(federation.n_clients), strata.rows)
    return {
        "by": strata.by,
        "n_strata": strata.n_strata,
        "pooled_clients": [federation.clients[row] for row in rows_without_strata],
        "rows": _stratum_rows(calibration, strata, coverage, is_benign, columns),
        "clients": _client_rows(calibration, strata, coverage, is_benign, columns),
    }


def _largest_strata(coverage: StratumCoverage) -> IndexArray:
    """Return the indices of the strata with most samples, in the order of the strata."""
    sample_counts = coverage.sizes.sum(axis=0)
    by_size = np.argsort(-sample_counts, kind="stable")
    return np.sort(by_size[:MAX_STRATA_SHOWN])


def _stratum_rows(
    calibration: Calibration,
    strata: StratifiedTable,
    coverage: StratumCoverage,
    is_benign: BoolArray,
    columns: IndexArray,
) -> list[dict[str, Any]]:
    """Return the coverage and the certificate of each stratum."""
    certified_strata = {stratum.name: stratum for stratum in calibration.levels[0].strata}
    n_samples = coverage.sizes.sum(axis=0)
    n_benign_samples = coverage.sizes[is_benign].sum(axis=0)
    n_covered = coverage.covered[is_benign].sum(axis=0)
    n_clients = (coverage.sizes[is_benign] > 0).sum(axis=0)

    rows = []
    for column in columns:
        name = strata.labels[column]
        certified = None
        protection = ""
        if name in certified_strata:
            stratum = certified_strata[name]
            certified = [stratum.certificate.lower, stratum.certificate.upper]
            protection = stratum.protection
        row = {
            "name": name,
            "threshold": finite_or_none(coverage.thresholds[column]),
            "n_clients": int(n_clients[column]),
            "n_samples": int(n_benign_samples[column]),
            "n_excluded_samples": int(n_samples[column] - n_benign_samples[column]),
            "coverage": rounded_ratio(n_covered[column], n_benign_samples[column]),
            "certified": certified,
            "protection": protection,
        }
        rows.append(row)
    return rows


def _client_rows(
    calibration: Calibration,
    strata: StratifiedTable,
    coverage: StratumCoverage,
    is_benign: BoolArray,
    columns: IndexArray,
) -> list[dict[str, Any]]:
    """Return the label distribution and coverage of the benign clients of lowest coverage.

    "local_threshold" is the threshold of a client's feedback and its coverage of the client's
    samples.
    """
    clients = calibration.federation.clients
    client_coverage: FloatArray = coverage.covered.sum(axis=1) / np.maximum(
        coverage.sizes.sum(axis=1), 1
    )
    benign_rows = np.flatnonzero(is_benign)
    worst_first = np.argsort(client_coverage[is_benign], kind="stable")
    rows_shown = benign_rows[worst_first][:MAX_CLIENTS_SHOWN].tolist()
    names = {row: clients[strata.rows[row]] for row in rows_shown}
    local_threshold_of_client = local_thresholds(calibration, set(names.values()))

    client_rows = []
    for row, client in names.items():
        sizes = coverage.sizes[row]
        covered = coverage.covered[row]
        local_threshold = None
        if client in local_threshold_of_client:
            threshold, local_coverage = local_threshold_of_client[client]
            local_threshold = [finite_or_none(threshold), round(local_coverage, 5)]
        client_row = {
            "name": client,
            "n_samples": int(sizes.sum()),
            "coverage": round(float(client_coverage[row]), 5),
            "local_threshold": local_threshold,
            "label_distribution": [rounded_ratio(sizes[column], sizes.sum()) for column in columns],
            "stratum_coverage": [
                rounded_ratio(covered[column], sizes[column]) for column in columns
            ],
        }
        client_rows.append(client_row)
    return client_rows
