"""The message of a monitor to its server, and how the server reads those of many clients."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from robfcp._files import read_bounded, write_atomically
from robfcp._sealed import FilePath
from robfcp._validation import check_client_name, check_text
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import RejectedReport, check_quorum
from robfcp.monitoring._fields import Count, Digest, OpenFraction
from robfcp.reports import decode_message, signing, terms

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAX_FILE_BYTES = 16_384
MAX_LOG_E_VALUE = 1e15  # of a logarithm, either way, so that sums of them stay finite
ROUNDING = 1e-9  # relative; the logarithm of a sum may exceed its bound in the last digits


class EValueReport(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="e-report"
):
    """The e-values of a client and the calibration that they are about; nothing of its data.

    `calibration` is the SHA-256 of the calibration monitored, `step` the number of the reporting
    date. The logarithms are of e-values, against "coverage is at least the floor" and against
    "fresh scores are like those reported", if that is computed.
    """

    client: str
    calibration: Digest
    floor: OpenFraction
    n_samples: Count
    log_coverage: float
    round: str | None = None
    step: Count = 0
    log_drift: float | None = None
    schema: Literal[1] = 1

    KIND: ClassVar[str] = "e-report"

    def __post_init__(self) -> None:
        check_client_name(self.client)
        check_text(self.client, "round", self.round)

        # The largest win is that of all wealth bet on misses when every sample is missed.
        max_log_coverage = -self.n_samples * math.log1p(-self.floor) * (1 + ROUNDING)
        self._check_log("log_coverage", self.log_coverage, min(MAX_LOG_E_VALUE, max_log_coverage))
        if self.log_drift is not None:
            self._check_log("log_drift", self.log_drift, MAX_LOG_E_VALUE)

    def _check_log(self, field: str, value: float, max_value: float) -> None:
        """Refuse the logarithm of an e-value that no monitor can have reached."""
        if not -MAX_LOG_E_VALUE <= value <= max_value:
            problem = f"{field} is {value!r}, which {self.n_samples} samples cannot earn"
            raise ReportError(self.client, field, problem, "make it again with robfcp monitor")

    def to_json(self) -> bytes:
        """Return the report as one JSON object."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes | str, source: str = "e-report") -> EValueReport:
        """Read a report from JSON; errors name client, field and remedy."""
        return decode_message(EValueReport, data, source, "make it with robfcp monitor")

    def save(self, path: FilePath, key: Ed25519PrivateKey | None = None) -> None:
        """Write the report atomically, signed if a key is given."""
        data = self.to_json() if key is None else signing.sign(self, key)
        write_atomically(path, data)

    @staticmethod
    def load(
        path: FilePath, keys: Mapping[str, str] | None = None, round: str | None = None
    ) -> EValueReport:
        """Read the report in a file; with keys only a signed one of this round."""
        data = read_bounded(path, MAX_FILE_BYTES)
        source = os.fspath(path)
        if keys is None:
            return EValueReport.from_json(signing.unwrap(data), source)
        return signing.verify(data, EValueReport, keys, str(round), source)


def read_e_value_reports(
    paths: Iterable[FilePath],
    *,
    keys: Mapping[str, str] | FilePath | None = None,
    round: str | None = None,
    calibration: str | None = None,
    step: int | None = None,
    quorum: int | None = None,
) -> tuple[list[EValueReport], list[RejectedReport]]:
    """Return the valid reports in files and the rejections of the others.

    All must be about one calibration (that of most, if none is stated), one round and, if it is
    stated, one step. A file without a valid signature is charged to the client that it names only
    if that client sent no valid one. Of unsigned files two that differ under one name are both
    rejected. Fewer valid reports than the quorum are refused, as no alarm would then mean nothing.
    """
    if keys is not None and round is None:
        raise RobfcpError("--keys: needs --round, or an old e-report could be used again")
    if keys is not None and not isinstance(keys, Mapping):
        keys = terms.read_keys(keys)

    loaded, rejected = _load_all(paths, keys, round)
    if calibration is None:
        calibration = _most_common_calibration(loaded)

    # The reports about the requested calibration, step and round, by client.
    by_client: dict[str, list[EValueReport]] = {}
    for report in loaded:
        mismatch = find_mismatch(report, calibration, step, round)
        if mismatch:
            rejected.append(reject(report, mismatch))
        else:
            by_client.setdefault(report.client, []).append(report)

    # Without signatures two reports that differ show that another sender uses the name, too.
    if keys is None:
        for client in sorted(by_client):
            if len(set(by_client[client])) > 1:
                reason = f"{client}: two different e-reports; send one, or sign them"
                rejected.append(RejectedReport(client, "client", reason))
                del by_client[client]
            else:
                by_client[client] = by_client[client][:1]

    valid = [report for reports in by_client.values() for report in reports]
    rejected = [rejection for rejection in rejected if rejection.client not in by_client]
    if quorum is not None:
        first_reason = rejected[0].reason if rejected else None
        check_quorum(len(valid), len(valid) + len(rejected), quorum, first_reason)
    return valid, rejected


def _load_all(
    paths: Iterable[FilePath], public_keys: Mapping[str, str] | None, round: str | None
) -> tuple[list[EValueReport], list[RejectedReport]]:
    """Return the reports that can be read, and why the other files cannot."""
    loaded: list[EValueReport] = []
    rejected: list[RejectedReport] = []
    for path in paths:
        try:
            loaded.append(EValueReport.load(path, public_keys, round))
        except ReportError as error:
            rejected.append(RejectedReport.of(error))
        except RobfcpError as error:
            rejected.append(RejectedReport(str(path), "file", str(error)))
    return loaded, rejected


def _most_common_calibration(reports: Sequence[EValueReport]) -> str:
    """Return the calibration that most reports are about; of several the first in order."""
    digests = [report.calibration for report in reports]
    return min(set(digests), key=lambda digest: (-digests.count(digest), digest), default="")


def find_mismatch(
    report: EValueReport, calibration: str, step: int | None = None, round: str | None = None
) -> str:
    """Return why a report is not of this calibration, step and round; empty if it is.

    A step or a round of None is not compared.
    """
    if report.calibration != calibration:
        return "watches another calibration; send one of this round"
    if step is not None and report.step != step:
        return f"of step {report.step}, not {step}; send one of this step"
    if round is not None and report.round != round:
        return f"of round {report.round}, not {round}; send one of this round"
    return ""


def reject(report: EValueReport, problem: str) -> RejectedReport:
    """Return the rejection of a report that could be read."""
    return RejectedReport(report.client, "e-report", f"{report.client}: {problem}")
