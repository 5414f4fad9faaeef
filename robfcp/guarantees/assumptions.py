"""What certificates rest on, as data apart from the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from robfcp.federation import Federation
from robfcp.guarantees.levels import Exchangeability

Kind = Literal["any-threshold", "marginal", "pac", "pac-homogeneous", "mix"]
_INDEPENDENT = (
    "independent",
    "samples are independent within a site and between sites (nobody is counted at two)",
)
_SAMPLES = {
    "any-threshold": _INDEPENDENT,
    "marginal": (
        "exchangeable",
        "a site's new cases are like its samples (exchangeable), given the other sites",
    ),
    "pac": _INDEPENDENT,
    "mix": _INDEPENDENT,
    "pac-homogeneous": (
        "iid",
        "samples within a site are independent and alike, and independent between sites",
    ),
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
    exchangeability: Exchangeability = "partial",
    label_shift: float | None = None,
) -> tuple[Assumption, ...]:
    """Everything a certificate of this kind rests on, as data."""
    found: list[Assumption] = []
    if m is not None:
        found.append(liars_assumption(m, federation.n_clients, estimated=estimated))
    if size_budget is not None:
        text = f"lying sites hold, and claim, at most {size_budget} samples together"
        found.append(Assumption("size_budget", size_budget, text))
    found.append(
        Assumption(
            "corruption", "fixed", "who lies or is missing does not depend on the honest samples"
        )
    )
    samples = _SAMPLES[kind if sigma is None else "pac-homogeneous"]
    found.append(Assumption("samples", *samples))
    if kind == "marginal" and exchangeability == "full":
        text = "the scores of all honest sites are exchangeable altogether, not only within them"
        found.append(Assumption("clients", "exchangeable", text))
    if kind == "mix":
        text = "new cases have the stated label mix, and each class's scores are as at the sites"
        found.append(Assumption("mixture", "stated", text))
    weight = "n_k + 1" if (kind, exchangeability) == ("marginal", "published") else "n_k"
    if kind != "mix":
        text = (
            "new cases come from the honest sites that reported, in proportion to their numbers "
            "of samples" + (", plus 1 each" if weight == "n_k + 1" else "")
        )
        found.append(Assumption("mixture", weight, text))
    if federation.checked.signatures == "not checked":
        text = "each report comes from the site it names: signatures were not checked"
        found.append(Assumption("identity", "claimed", text))
    if federation.registered:
        text = "each site's number of samples was registered beforehand"
        found.append(Assumption("sizes", "registered", text))
    elif not federation.sizes_known:
        text = "each site's number of samples is hidden by noise, which is allowed for"
        found.append(Assumption("sizes", "hidden", text))
    else:
        text = "each site's number of samples is its own claim; liars may inflate theirs"
        found.append(Assumption("sizes", "claimed", text))
    if kind == "pac-homogeneous" or sigma is not None:
        text = (
            "honest sites' scores are distributed alike: their CDFs are within "
            f"{sigma or 0:g} of a common one"
        )
        found.append(Assumption("heterogeneity", float(sigma or 0), text))
    if label_shift is not None:
        text = (
            "within each class honest sites' scores are distributed alike: their CDFs are within "
            f"{label_shift:g} of a common one (label shift, declared)"
        )
        found.append(Assumption("label_shift", label_shift, text))
    noise = (Assumption("noise", *stated) for stated in federation.noise.assumptions())
    return (*found, *noise)


def liars_assumption(m: int, n_clients: int, *, estimated: bool) -> Assumption:
    """How many lie at most, and when that number was chosen."""
    when = "a number read off the reports" if estimated else "stated before they were seen"
    return Assumption("liars", m, f"at most {m} of the {n_clients} reporting sites lie, {when}")


def curve_assumptions(
    stated: tuple[Assumption, ...], m: int, n_clients: int
) -> tuple[Assumption, ...]:
    """What an interval for m liars rests on, from another certificate of the same round."""
    text = f"at most {m} of the {n_clients} reporting sites lie; the number may be any"
    found = [Assumption("liars", m, text)]
    for assumption in stated:
        if assumption.name == "samples" and assumption.value == "exchangeable":
            found.append(Assumption("samples", *_INDEPENDENT))
        elif assumption.name not in ("liars", "size_budget", "clients"):
            found.append(assumption)
    return tuple(found)


def outside_of(federation: Federation) -> tuple[str, ...]:
    """The missing and faulty clients, of whom no certificate speaks."""
    return tuple(sorted({*federation.missing, *(fault.client for fault in federation.faulty)}))
