"""What a calibration says beside its figures: what the reports do not show, what to look at."""

from __future__ import annotations

from collections.abc import Sequence

from robfcp.calibration.settings import Settings
from robfcp.federation import Federation
from robfcp.guarantees import MOST_COMPARED, least_shift, mixes_differ

UNLIKE = 1e-3  # chance of label mixes this different if all sites drew from one


def nameless(notes: Sequence[str], federation: Federation) -> tuple[str, ...]:
    """Those that name no site: a calibration goes to everybody, names stay with the evidence."""
    return tuple(note for note in notes if not any(name in note for name in federation.ids))


def strata_notes(federation: Federation, settings: Settings) -> tuple[str, ...]:
    """How many report no classes where others do, and that a cluster's promise is not a class's."""
    found = []
    strata = federation.strata
    if strata is not None and len(strata.rows) < federation.n_clients:
        pooled = federation.n_clients - len(strata.rows)
        found.append(
            f"{pooled} {'site keeps its' if pooled == 1 else 'sites keep their'} {strata.by} back: "
            f"in what is said of all samples, and in nothing by {strata.by}"
        )
    if settings.clusters is not None:
        found.append(
            f"thresholds are by cluster: what is proved holds for each cluster of "
            f"{'classes' if settings.by == 'class' else 'groups'}, not for each of them by itself"
        )
    return tuple(found)


def mix_notes(federation: Federation, settings: Settings) -> tuple[str, ...]:
    """A warning where sites are declared alike but their label mixes are not."""
    strata = federation.exact_strata
    if settings.guarantee != "pac-homogeneous" or strata is None:
        return ()
    if mixes_differ(strata.sizes) > UNLIKE:
        return ()
    return (
        "pac-homogeneous declares the sites alike, but their label mixes differ beyond chance: it "
        "may cover less than promised; use guarantee='pac' with label_shift=",
    )


def shift_notes(federation: Federation, settings: Settings, m: int) -> tuple[str, ...]:
    """Beside a declared label shift the least one at which the reports would drop nobody."""
    strata = federation.exact_strata
    if settings.label_shift is None or strata is None or not m < len(strata.rows) <= MOST_COMPARED:
        return ()
    least = least_shift(federation, m, settings.certificate_confidence)
    return (
        f"label shift is declared as {settings.label_shift:g}; the least at which no site would be "
        f"dropped is {least:.3f} (a diagnostic, liars included: it proves nothing)",
    )
