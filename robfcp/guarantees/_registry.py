"""The guarantees by name."""

from __future__ import annotations

from typing import Any

from robfcp.errors import RobfcpError
from robfcp.guarantees._label_shift_guarantee import LabelShiftGuarantee
from robfcp.guarantees._marginal_guarantee import MarginalGuarantee
from robfcp.guarantees._pac_guarantee import PACGuarantee

Guarantee = MarginalGuarantee | PACGuarantee | LabelShiftGuarantee

GUARANTEES: dict[str, type[Any]] = {
    "marginal": MarginalGuarantee,
    "pac": PACGuarantee,
    "label-shift": LabelShiftGuarantee,
}


def get_guarantee(name: str, **arguments: Any) -> Guarantee:
    """Return the guarantee of a name with its arguments; None leaves an argument out.

    Parameters
    ----------
    name : {"marginal", "pac", "label-shift"}
        The guarantee.
    **arguments
        Its fields.

    Examples
    --------
    >>> from robfcp.guarantees import get_guarantee
    >>> get_guarantee("pac", max_malicious=3, heterogeneity=None)
    PACGuarantee(max_malicious=3, heterogeneity=None)
    """
    if name not in GUARANTEES:
        raise RobfcpError(f"guarantee: {name!r:.60} is unknown; use {', '.join(GUARANTEES)}")
    guarantee_class = GUARANTEES[name]
    # Options of the command line that were not given are None.
    arguments = {field: value for field, value in arguments.items() if value is not None}
    fields = guarantee_class.__struct_fields__
    unknown = sorted(set(arguments) - set(fields))
    if unknown:
        raise RobfcpError(f"{unknown[0]}: {name} takes none; it takes {', '.join(fields)}")
    if guarantee_class is not MarginalGuarantee and "max_malicious" not in arguments:
        raise RobfcpError(
            "max_malicious: give how many clients may be malicious (--max-malicious M), before the "
            "round"
        )
    guarantee: Guarantee = guarantee_class(**arguments)
    return guarantee
