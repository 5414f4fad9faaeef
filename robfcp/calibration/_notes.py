"""Notes on a round: what must be said of its reports beside threshold and certificate."""

from __future__ import annotations

from robfcp._validation import abbreviate
from robfcp.calibration._request import Request
from robfcp.defense import Note
from robfcp.federation import Federation


def noise_notes(federation: Federation) -> tuple[Note, ...]:
    """Return which clients add how much privacy noise, where not all add the same.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    """
    if not federation.has_private_reports:
        return ()
    clients_by_noise: dict[str, list[str]] = {}
    for client, model in zip(federation.clients, federation.noise_models, strict=True):
        noise = "none" if model is None else f"{model.mechanism} of scale {model.scale:g}"
        clients_by_noise.setdefault(noise, []).append(client)
    if len(clients_by_noise) == 1:
        return ()

    parts = [
        f"{noise} in {abbreviate(clients)}" for noise, clients in sorted(clients_by_noise.items())
    ]
    return (Note(f"noise: {'; '.join(parts)}", federation.clients),)


def public_notes(federation: Federation, request: Request) -> list[str]:
    """Return what everybody may read: no note names a client.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    request : Request
        What was asked for.
    """
    notes = [
        _privacy_note(federation),
        _coarsening_note(federation),
        *_guarantee_notes(federation, request),
        _pooled_clients_note(federation),
        _clusters_note(federation, request),
    ]
    return [note for note in notes if note]


def _privacy_note(federation: Federation) -> str:
    """Return how private the reports are."""
    budgets = [privacy for privacy in federation.privacy if privacy is not None]
    if not budgets:
        return ""
    weakest = max(budgets, key=lambda privacy: (privacy.epsilon, privacy.delta))
    each = "each" if len(set(budgets)) == 1 else "at least"
    n_private = f"{len(budgets)} of {federation.n_clients} reports"
    return f"{n_private} are private, {each} {weakest.statement}."


def _coarsening_note(federation: Federation) -> str:
    """Return that most reports are coarsened; a few may look so by chance."""
    n_coarsened = int(federation.is_coarsened.sum())
    if 2 * n_coarsened <= federation.n_clients:
        return ""
    return (
        f"{n_coarsened} of {federation.n_clients} reports keep at least five samples together: "
        "scores are moved up for it, so that sets are rather too large than too small"
    )


def _guarantee_notes(federation: Federation, request: Request) -> tuple[str, ...]:
    """Return what the guarantee has to say of these reports."""
    if request.guarantee is None:
        return ()
    return request.guarantee.notes(federation, request.confidence)


def _pooled_clients_note(federation: Federation) -> str:
    """Return how many clients report no classes where others do."""
    strata = federation.strata
    if strata is None or len(strata.rows) == federation.n_clients:
        return ""
    n_pooled = federation.n_clients - len(strata.rows)
    sites = "site keeps its" if n_pooled == 1 else "sites keep their"
    return (
        f"{n_pooled} {sites} {strata.by} back: in what is said of all samples, and in nothing by "
        f"{strata.by}"
    )


def _clusters_note(federation: Federation, request: Request) -> str:
    """Return that a cluster's certificate is not that of each of its classes."""
    if federation.strata is None or request.clusters is None:
        return ""
    kinds = "classes" if federation.strata.by == "class" else "groups"
    return (
        f"thresholds are by cluster: what is proved holds for each cluster of {kinds}, not for "
        "each of them by itself"
    )
