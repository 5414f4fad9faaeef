"""What certificates rest on, as data apart from the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from robfcp.federation import Federation

Kind = Literal["any-threshold", "marginal", "pac", "pac-homogeneous"]
_SAMPLES = {
    "any-threshold": ("independent", "samples within a client are independent"),
    "marginal": ("exchangeable", "samples within a client are exchangeable with its test points"),
    "pac": ("independent", "samples within a client are independent"),
    "pac-homogeneous": ("iid", "samples within a client are independent and alike"),
}


@dataclass(frozen=True)
class Assumption:
    """One thing a certificate rests on: a name, the value it takes here, and the words for it."""

    name: str
    value: int | float | str
    text: str


def assumptions_of(
    federation: Federation,
    kind: Kind,
    m: int | None,
    *,
    sigma: float | None = None,
    size_budget: int | None = None,
    estimated: bool = False,
) -> tuple[Assumption, ...]:
    """Everything a certificate of this kind rests on, as data."""
    found: list[Assumption] = []
    if m is not None:
        when = "estimated from the reports" if estimated else "stated before they were seen"
        text = f"at most {m} of the {federation.n_clients} reporting clients lie, {when}"
        found.append(Assumption("liars", m, text))
    if size_budget is not None:
        text = f"lying clients hold, and claim, at most {size_budget} samples together"
        found.append(Assumption("size_budget", size_budget, text))
    found.append(
        Assumption(
            "corruption", "fixed", "who lies or is missing does not depend on the honest samples"
        )
    )
    samples = _SAMPLES[kind if sigma is None else "pac-homogeneous"]
    found.append(Assumption("samples", *samples))
    weight = "n_k + 1" if kind == "marginal" else "n_k"
    text = f"test points come from the benign reporting clients in proportion to {weight}"
    found.append(Assumption("mixture", weight, text))
    if federation.registered:
        found.append(Assumption("sizes", "registered", "n_k was registered beforehand"))
    elif not federation.sizes_known:
        text = "n_k is hidden by noise, which is allowed for"
        found.append(Assumption("sizes", "hidden", text))
    else:
        text = "n_k is what each client claims: honest clients claim the truth, liars may inflate"
        found.append(Assumption("sizes", "claimed", text))
    if kind == "pac-homogeneous" or sigma is not None:
        text = f"benign clients' score CDFs are within {sigma or 0:g} of a common one"
        found.append(Assumption("heterogeneity", float(sigma or 0), text))
    number = federation.n_private
    if number:
        text = "benign clients with private reports added the noise that these state"
        found.append(Assumption("noise", number, text))
    return tuple(found)


def outside_of(federation: Federation) -> tuple[str, ...]:
    """The missing and faulty clients, of whom no certificate speaks."""
    return tuple(sorted({*federation.missing, *(fault.client for fault in federation.faulty)}))
