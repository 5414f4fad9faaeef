"""What the page embeds: the calibration for the eye, compactly."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp import __version__
from robfcp.calibration import Calibration, file_format, letters, what_if
from robfcp.diagnosis import diagnose
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.page import sentences


@dataclass(frozen=True)
class About:
    """The lines at the top of a page; empty ones are left out.

    Parameters
    ----------
    title
        What the calibration is for.
    study
        The study, protocol or project.
    by
        Who ran it.
    date
        When, as people write it.

    Examples
    --------
    >>> from robfcp.page import About
    >>> About("Outcome after stroke", study="IST", by="A. Analyst", date="15 November 2026").lines
    ('IST', '15 November 2026', 'run by A. Analyst')
    """

    title: str = ""
    study: str = ""
    by: str = ""
    date: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands beside the title."""
        by = f"run by {self.by}" if self.by else ""
        return tuple(part for part in (self.study, self.date, by) if part)


MOST_STRATA = 60
MOST_SITES = 20  # the worst, whose letters are worked out


def strata_data(calibration: Calibration) -> dict[str, Any] | None:
    """A row for each class or group, and for the worst sites in use their mix and own coverage.

    What sites hold that were left out is counted apart. None where the reports keep no such counts.
    """
    federation = calibration.federation
    strata = federation.strata
    if strata is None:
        return None
    used = calibration.trusted_mask[strata.rows]
    limits, covered, sizes = calibration.covered_by_class(calibration.levels[0])
    every, totals, hits = sizes.sum(axis=0), sizes[used].sum(axis=0), covered[used].sum(axis=0)
    order = np.sort(np.argsort(-every, kind="stable")[:MOST_STRATA])
    shares = covered.sum(axis=1) / np.maximum(sizes.sum(axis=1), 1)
    sites = np.flatnonzero(used)[np.argsort(shares[used], kind="stable")][:MOST_SITES]
    levels = {one.name: one for one in calibration.levels[0].parts}
    names = {r: federation.ids[strata.rows[r]] for r in sites.tolist()}
    own_letters = letters.own_thresholds(calibration, set(names.values()))
    return {
        "by": strata.by,
        "n_strata": strata.n_strata,
        "pooled_only": [
            federation.ids[k] for k in np.setdiff1d(range(federation.n_clients), strata.rows)
        ],
        "rows": [
            {
                "name": strata.labels[c],
                "threshold": number(limits[c]),
                "sites": int((sizes[used, c] > 0).sum()),
                "samples": int(totals[c]),
                "out": int(every[c] - totals[c]),
                "covered": _share(hits[c], totals[c]),
                "proved": [own.certificate.lower, own.certificate.upper] if own else None,
                "protection": own.protection if own else "",
            }
            for c in order
            for own in [levels.get(strata.labels[c])]
        ],
        "sites": [
            {
                "name": client,
                "samples": int(sizes[r].sum()),
                "covered": round(float(shares[r]), 5),
                "own": [number(own[0]), round(own[1], 5)] if own else None,
                "mix": [_share(sizes[r, c], sizes[r].sum()) for c in order],
                "by": [_share(covered[r, c], sizes[r, c]) for c in order],
            }
            for r, client in names.items()
            for own in [own_letters.get(client)]
        ],
    }


def _share(part: float, whole: float) -> float | None:
    return round(float(part) / float(whole), 5) if whole > 0 else None


VIEW = 160  # edges a distribution is drawn with
_TOLD = ("short", "fact", "finding", "advice", "instead")  # of a diagnosis


def page_data(calibration: Calibration, about: About) -> dict[str, Any]:
    """Everything the page shows, as JSON values."""
    federation, grid = calibration.federation, calibration.federation.grid
    view = view_edges(federation.rounded().pooled(), grid)
    others = what_if.other_settings(calibration, view)
    looked_up = [table.index[table.index >= 0] for table in others.tables.values()]
    used = np.unique(np.concatenate([view, *looked_up]))
    first = calibration.levels[0]
    below, drawn = map(_smoothed, (federation, federation.comparable()))
    shares = np.clip(below[:, view] / federation.masses[:, None], 0, 1)[calibration.trusted_mask]
    rising = np.maximum.accumulate(shares, axis=1)  # as counts with noise may not
    low, middle, high = np.quantile(rising, [0.05, 0.5, 0.95], axis=0)
    found = diagnose(calibration)
    verdict = sentences.message(calibration, found)
    return {
        "about": {"title": about.title, "lines": about.lines},
        "harm": sentences.harm(calibration),
        "message": verdict,
        "headline": sentences.headline(calibration, first),
        "diagnoses": {
            client: {name: getattr(one, name) for name in _TOLD} for client, one in found.items()
        },
        "risk": None if calibration.risk is None else msgspec.to_builtins(calibration.risk),
        "levels": [
            {
                "value": float(level.coverage),
                "threshold": number(level.threshold),
                "lower": level.certificate.lower,
                "upper": level.certificate.upper,
                "statement": level.certificate.statement,
                "curve": [[point.m, point.lower, point.upper] for point in level.curve],
                "empty_from": level.empty_from,
                "assumptions": [assumption.text for assumption in level.certificate.assumptions],
            }
            for level in calibration.levels
        ],
        "grid": {
            "name": grid.name,
            "bins": grid.n_bins,
            "low": number(grid.edges[0]),
            "used": used.tolist(),
            "edges": [number(federation.threshold_at(int(edge))) for edge in used],
        },
        "view": view.tolist(),
        "clients": {
            "id": list(federation.ids),
            "size": federation.sizes.tolist(),
            "oddness": [float(f"{value:.6g}") for value in calibration.oddness],
            "trusted": calibration.trusted_mask.astype(int).tolist(),
            "covered": rounded(calibration.covered_at_sites()[:, 0]),
            "reason": {c: calibration.reasons.get(c, "") for c in calibration.flagged},
        },
        "counts": np.diff(drawn[:, view], prepend=0).ravel().tolist(),
        "crowd": {"low": rounded(low), "middle": rounded(middle), "high": rounded(high)},
        "faulty": msgspec.to_builtins(calibration.faulty),
        "missing": list(calibration.missing),
        "whatif": _what_if(others, federation),
        "own": {
            "m": calibration.liars,
            "guarantee": first.certificate.kind if calibration.promised else None,
            "confidence": calibration.confidence,
        },
        "strata": strata_data(calibration),
        "brief": list(sentences.for_the_auditor(calibration, verdict["first"]).items()),
        "audit": audit(calibration),
        "notes": [*calibration.remarks, *sentences.how_to_read(calibration)],
    }


def _smoothed(federation: Federation) -> NDArray[np.int64]:
    """(K, H) counts at or below every edge.

    Private counts need not add up to n_k: what is left over by edge t of H is t/H of it, the best
    unbiased mean of the noisy sum up to t and of n_k less the noisy sum above.
    """
    below = federation.cumulative()
    if not federation.noisy:
        return below
    passed = np.arange(1, below.shape[1] + 1) / below.shape[1]
    leftover = federation.masses - below[:, -1]
    return below + np.rint(leftover[:, None] * passed).astype(np.int64)


def view_edges(pooled: NDArray[np.int64], grid: Grid) -> NDArray[np.intp]:
    """About VIEW bins to draw a distribution with: half equiprobable, half spread evenly."""
    n_bins, upper = grid.n_bins, grid.upper
    if n_bins <= VIEW:
        return np.arange(n_bins)
    wanted = np.linspace(0, 1, VIEW // 2)
    equiprobable = np.searchsorted(np.cumsum(pooled) / pooled.sum(), wanted).clip(max=n_bins - 1)
    occupied = upper[(pooled > 0) & np.isfinite(upper)]
    low, high = (occupied[0], occupied[-1]) if occupied.size else (0.0, 0.0)
    spread = grid.edge_at(np.linspace(low, high, VIEW // 4))
    steps = np.linspace(0, n_bins - 1, VIEW // 4).astype(np.intp)
    return np.unique(np.concatenate([equiprobable, spread, steps, [n_bins - 1]]))


def number(value: float) -> float | None:
    """A float for JSON; infinite ones become null."""
    return float(value) if np.isfinite(value) else None


def rounded(values: NDArray[np.float64]) -> list[float]:
    """Five decimals, enough to draw with."""
    return [float(value) for value in np.round(values, 5)]


def audit(calibration: Calibration) -> list[tuple[str, str]]:
    """Names and values an auditor needs to make the same calibration again."""
    federation, record = calibration.federation, calibration.record
    checked = msgspec.structs.asdict(calibration.checked)
    noise = Counter(p.statement for p in federation.privacy if p is not None)
    rows = {
        "calibration digest (SHA-256 without key and signature)": file_format.digest_of(
            calibration.to_json()
        ),
        "record digest (SHA-256 of the file)": calibration.record_digest,
        "made with": f"robfcp {calibration.version}",
        "page made with": f"robfcp {__version__}, Python {platform.python_version()}",
        "wanted": ", ".join(map(calibration.wanted, calibration.levels)),
        "defence": record.defence,
        "promise": record.promise,
        "by": calibration.by,
        "clusters": record.clusters,
        "confidence": calibration.confidence,
        **{f"{record.defence}: {name}": value for name, value in record.parameters.items()},
        **{f"checked: {name}": value for name, value in checked.items()},
        "score": "not named" if federation.score is None else repr(federation.score),
        "grid": f"{federation.grid.name}, {federation.grid.n_bins} bins",
        "grid digest": federation.grid.digest,
        "round": federation.round,
        "model": federation.model,
        "privacy": "; ".join(f"{n} reports {words}" for words, n in noise.items()) or None,
        "reports digest": file_format.digest_of(federation.counts.astype("<i8").tobytes()),
    }
    return [(name, "none" if value is None else str(value)) for name, value in rows.items()]


def _what_if(others: what_if.OtherSettings, federation: Federation) -> dict[str, Any]:
    """Rows by number of liars, columns by level, and the mean number of labels in a set.

    That is told by some sites only; those that the defence would leave out are left out.
    """
    told, sizes, every = federation.set_sizes, {}, np.arange(federation.n_clients)
    liars = others.tables["defence"].liars
    if told is not None:
        for m, out in zip(liars, others.excluded, strict=True):
            sizes[m] = sentences.set_sizes(federation, told, ~np.isin(every, out))
    tables = {
        name: {
            "liars": list(table.liars),
            "levels": [float(level) for level in table.levels],
            "index": table.index.tolist(),
            "lower": [[float(f"{x:.9g}") for x in row] for row in table.lower],
            "upper": [[float(f"{x:.9g}") for x in row] for row in table.upper],
            "size": [  # -1, an infinite threshold, is the last bin: every label
                rounded(sizes[m][row]) for m, row in zip(table.liars, table.index, strict=True)
            ]
            if sizes
            else None,
        }
        for name, table in others.tables.items()
    }
    return {
        "tables": tables,
        "liars": list(liars),
        "excluded": [out.tolist() for out in others.excluded],
        "proved": {
            "lower": [rounded(row) for row in others.lower],
            "upper": [rounded(row) for row in others.upper],
        },
        "frozen": others.frozen,
    }
