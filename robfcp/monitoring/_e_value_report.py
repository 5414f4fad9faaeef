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
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="e-value-report"
):
    """The e-values of a client and the calibration that they are about; nothing of its data.

    The fields are keys of the file.

    Attributes
    ----------
    client : str
        The name of the client.
    calibration : str
        The `Calibration.fingerprint` of the calibration monitored, a SHA-256 in 64 digits.
    min_coverage : float
        The coverage to hold.
    n_samples : int
        The number of samples counted so far.
    log_e_coverage : float
        Natural logarithm of the e-value against "coverage is at least the floor".
    round : str or None
        The name of the round; a signed report needs one.
    step : int
        The number of the reporting date, on which clients agree.
    log_e_exchangeability : float or None
        Natural logarithm of the e-value against "fresh scores are like those reported"; None where
        that is not computed.
    schema : int
        The version of the format.
    """

    client: str
    calibration: Digest
    min_coverage: OpenFraction
    n_samples: Count
    log_e_coverage: float
    round: str | None = None
    step: Count = 0
    log_e_exchangeability: float | None = None
    schema: Literal[1] = 1

    KIND: ClassVar[str] = "e-value-report"

    def __post_init__(self) -> None:
        check_client_name(self.client)
        check_text(self.client, "round", self.round)

        # The largest win is that of all wealth bet on misses when every sample is missed: a factor
        # of 1 / a for each, where a = 1 - floor.
        max_log_coverage = -self.n_samples * math.log1p(-self.min_coverage) * (1 + ROUNDING)
        self._check_log(
            "log_e_coverage", self.log_e_coverage, min(MAX_LOG_E_VALUE, max_log_coverage)
        )
        if self.log_e_exchangeability is not None:
            self._check_log("log_e_exchangeability", self.log_e_exchangeability, MAX_LOG_E_VALUE)

    def _check_log(self, field: str, value: float, max_value: float) -> None:
        """Refuse the logarithm of an e-value that no monitor can have reached.

        Parameters
        ----------
        field : str
            The name of the field, for the message.
        value : float
            The natural logarithm. NaN is refused, too.
        max_value : float
            The largest that is possible. The least is -`MAX_LOG_E_VALUE` in every field.
        """
        if not -MAX_LOG_E_VALUE <= value <= max_value:
            problem = f"{field} is {value!r}, which {self.n_samples} samples cannot earn"
            raise ReportError(self.client, field, problem, "make it again with robfcp monitor")

    def to_json(self) -> bytes:
        """Return the report as one JSON object, which is what `signing.sign` signs."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes | str, source: str = "e-value-report") -> EValueReport:
        """Read a report from JSON; errors name client, field and remedy.

        Parameters
        ----------
        data : bytes or str
            The report, without a signature around it.
        source : str
            How errors name it where they cannot name a client.

        Raises
        ------
        ReportError
            Where it is no valid report.
        """
        return decode_message(EValueReport, data, source, "make it with robfcp monitor")

    def save(self, path: FilePath, key: Ed25519PrivateKey | None = None) -> None:
        """Write the report atomically, signed if a key is given.

        Parameters
        ----------
        path : str or PathLike
            The file; an old one is replaced.
        key : Ed25519PrivateKey, optional
            The client's private key. The report must then name its round.
        """
        data = self.to_json() if key is None else signing.sign(self, key)
        write_atomically(path, data)

    @staticmethod
    def load(
        path: FilePath, keys: Mapping[str, str] | None = None, round: str | None = None
    ) -> EValueReport:
        """Read the report in a file; with keys only a signed one of this round.

        Parameters
        ----------
        path : str or PathLike
            The file.
        keys : mapping of str to str, optional
            The registered public key of every client. Without them any valid report is read, and a
            signature around it is not checked.
        round : str, optional
            The round that a signed report must name; it is not compared without keys. With keys it
            must be given: None would be taken for a round of the name "None".

        Raises
        ------
        RobfcpError
            Where the file cannot be read.
        ReportError
            Where it holds no valid report, or with keys none that its client signed for the round.
        """
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

    All must be about one calibration (that of most, if none is stated) and, if they are stated, one
    round and one step. A file without a valid signature is charged to the client that it names only
    if that client sent no valid one. Of unsigned files two that differ under one name are both
    rejected. Fewer valid reports than the quorum are refused, as no alarm would then mean nothing.

    Parameters
    ----------
    paths : iterable of str or PathLike
        The files.
    keys : mapping of str to str, str or PathLike, optional
        The registered public key of every client, or the file of the registry. Without keys
        signatures are not checked.
    round : str, optional
        The round that reports must name; needed with keys.
    calibration : str, optional
        The fingerprint of the calibration that reports must be about.
    step : int, optional
        The reporting date that reports must be of; any if None.
    quorum : int, optional
        How many valid reports there must be at least.

    Returns
    -------
    valid : list of EValueReport
        The valid reports; without keys one of each client. With keys a client may have several,
        all of them signed; `merge_e_values` takes the newest.
    rejected : list of RejectedReport
        At most one entry for each file, and none of a client with a valid report.
    """
    if keys is not None and round is None:
        raise RobfcpError(
            "keys (--keys): need round (--round), or an old e-value report could be used again"
        )
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
            rejected.append(rejection_of(report, mismatch))
        else:
            by_client.setdefault(report.client, []).append(report)

    # Without signatures two reports that differ show that another sender uses the name, too.
    if keys is None:
        for client in sorted(by_client):
            if len(set(by_client[client])) > 1:
                reason = f"{client}: two different e-value reports; send one, or sign them"
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
    """Return the reports that can be read, and why the other files cannot.

    An error that names a client is filed under that client, though the file may only claim its
    name; any other under the path of the file.

    Parameters
    ----------
    paths : iterable of str or PathLike
        The files.
    public_keys, round
        As `EValueReport.load` takes them: with keys a round must be given.
    """
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
    """Return the calibration that most reports are about, "" without reports.

    Of several with as many reports it is the first in the order of their digests.
    """
    digests = [report.calibration for report in reports]
    return min(set(digests), key=lambda digest: (-digests.count(digest), digest), default="")


def find_mismatch(
    report: EValueReport, calibration: str, step: int | None = None, round: str | None = None
) -> str:
    """Return why a report is not of this calibration, step and round; empty if it is.

    The text ends a sentence that begins with the client; see `rejection_of`.

    Parameters
    ----------
    report : EValueReport
        The report.
    calibration : str
        The fingerprint of the calibration it must be about.
    step : int, optional
        The reporting date it must be of; not compared if None.
    round : str, optional
        The round it must name; not compared if None.
    """
    if report.calibration != calibration:
        return "watches another calibration; send one of this round"
    if step is not None and report.step != step:
        return f"of step {report.step}, not {step}; send one of this step"
    if round is not None and report.round != round:
        return f"of round {report.round}, not {round}; send one of this round"
    return ""


def rejection_of(report: EValueReport, problem: str) -> RejectedReport:
    """Return the rejection of a report that could be read.

    Parameters
    ----------
    report : EValueReport
        The report.
    problem : str
        What is wrong and what to do, without the client's name, which is put before it.
    """
    return RejectedReport(report.client, "e-value-report", f"{report.client}: {problem}")
