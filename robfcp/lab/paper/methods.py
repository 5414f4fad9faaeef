"""The methods every table compares, in their order, and what each is called."""

from __future__ import annotations

from robfcp.defence import DEFAULT, RobFCP, RobFCPReleased
from robfcp.lab import quantile_of_quantiles

FCP = "fcp"
QQ = quantile_of_quantiles.NAME
TEXT = RobFCP.name
RELEASED = RobFCPReleased.name
OURS = DEFAULT
BY_CLASS = f"{OURS} by class"  # the same on reports that keep counts by class
RIVALS = (FCP, QQ, TEXT, RELEASED)
COMPARED = (*RIVALS, OURS)
EVERY = (*COMPARED, BY_CLASS)
DETECTORS = (TEXT, RELEASED, OURS)  # those that say how many lie
LABELS = {
    FCP: "FCP, undefended",
    QQ: "FedCP-QQ",
    TEXT: "Rob-FCP, the paper's text",
    RELEASED: "Rob-FCP, the released code",
    BY_CLASS: f"{OURS}, ours, reports by class",
    OURS: f"{OURS}, ours",
}
