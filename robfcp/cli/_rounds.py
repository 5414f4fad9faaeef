"""What `robfcp calibrate --previous` adds: the chain of rounds."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from robfcp.arguments import a_few
from robfcp.calibration import Calibration
from robfcp.cli._common import Printer
from robfcp.federation import Federation
from robfcp.monitoring import Admission, AlarmHistory, Chain, chain_path


class Rounds:
    """The rounds before this one, and what this one adds to them."""

    def __init__(self, previous: Path, alarms: Path | None = None) -> None:
        self.begun = chain_path(previous).exists()
        self.path = previous
        self.previous, self.chain = Chain.of(previous)
        self.alarms = None if alarms is None else AlarmHistory.load(alarms)
        self.admission: Admission

    def admit(
        self,
        federation: Federation,
        malicious: int | str,
        sigma: float | None,
        readmit: list[str],
    ) -> tuple[Federation, int | str]:
        """The federation without those that stay out, and how many liars may remain."""
        self.admission = self.chain.admit(federation, malicious, sigma, readmit)
        return self.admission.federation, self.admission.malicious

    def close(self, calibration: Calibration) -> Calibration:
        """The calibration with the chain's notes; it becomes the last link."""
        noted = replace(
            calibration,
            public_remarks=(*calibration.public_remarks, *self.admission.remarks),
        )
        self.chain = self.chain.extended(noted, self.previous, self.admission, self.alarms)
        return noted

    def save(self, output: Path) -> None:
        """Write the chain beside where the calibration goes, and before it: a calibration whose
        chain was lost would begin another, and forget who is out."""
        self.chain.save(chain_path(output))

    def show(self, printer: Printer) -> None:
        """What changed, for people."""
        link = self.chain.links[-1]
        if not self.begun:
            printer.line(f"no chain lies beside {self.path}: it begins with that calibration")
        printer.line(f"round {link.number} of its chain; since the one before:")
        for line in self.chain.changes():
            printer.line(f"  {line}")
        stale = [name for name in link.repeated if link.rang or name in link.alarmed]
        if stale:
            printer.line(
                "  an alarm is answered by fresh samples only: ask "
                f"{a_few(stale)} for a new report, then calibrate again"
            )

    def as_data(self) -> dict[str, Any]:
        """What changed, for programs."""
        link = self.chain.links[-1]
        found = self.chain.reputations()
        return {
            "number": link.number,
            "previous": self.chain.links[-2].calibration,
            "changes": self.chain.changes(),
            "out": link.out,
            "drifted": link.drifted,
            "repeated": link.repeated,
            "rang": link.rang,
            "alarmed": link.alarmed,
            "error": link.error,
            "reputations": {name: asdict(reputation) for name, reputation in found.items()},
        }
