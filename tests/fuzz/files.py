"""A valid file of every kind, and what people do with it; broken, it must be refused cleanly."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

import robfcp
from fuzz.mutations import mutate_file
from robfcp.audit import AuditLog, log_calibration, verify_calibration
from robfcp.calibration._record import Record
from robfcp.cli.tables import read_outputs
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.local._feedback import ClientFeedback
from robfcp.monitoring import AlarmHistory, EValueReport, compare_rounds, merge_e_values
from robfcp.page import PageHistory, write_html
from robfcp.privacy import Privacy, PrivacyLedger
from robfcp.reports.signing import generate_key, load_key, read_public_key, sign
from robfcp.reports.terms import read_keys, read_registered_sizes, read_terms

SCORE = robfcp.LAC()
N_CLIENTS = 6
CLIENT = "s1"  # whose files are broken
ROUND = "r"
N_CLASSES = 3
N_SAMPLES = 60  # of each client that reports by class


class HostileFiles:
    """Breaks a file of every kind in turn, and uses it as people do.

    `case_kinds`, `max_seconds`, `clock` and `run_case` are what `cases.Target` asks for.
    """

    max_seconds = 2.0
    clock = staticmethod(time.process_time)  # nobody is waited for

    def __init__(self, folder: Path) -> None:
        self._valid = ValidRound(folder)
        self._file_kinds = valid_files(self._valid)
        self.case_kinds = list(self._file_kinds)

        # What is not broken must be accepted, or the cases would say nothing.
        for file_kind in self._file_kinds.values():
            self._use(file_kind, file_kind.content)

    def run_case(self, kind: str, rng: np.random.Generator) -> None:
        """Break a file of this kind and use it."""
        file_kind = self._file_kinds[kind]
        self._use(file_kind, mutate_file(kind, file_kind.content, rng))

    def _use(self, file_kind: FileKind, content: bytes) -> None:
        """Write a file of this content and use it as one of its kind."""
        path = self._valid.folder / file_kind.filename
        path.write_bytes(content)
        file_kind.use(self._valid, path)


class ValidRound:
    """Valid reports, calibrations and keys, beside which a hostile file is used.

    Parameters
    ----------
    folder : Path
        Where files of theirs are saved: signed reports (r0, r1, ...), private reports (p0, ...),
        two calibrations with their records (pooled.json, by-class.json), keys (key, key.pub) and
        a registry of keys (registry.toml).

    Attributes
    ----------
    reports, calibration, later_calibration
        Six clients' reports without classes, their calibration, and that of a later round.
    private_reports
        Three clients' reports with privacy noise.
    private_key, public_key
        One key, which signs for everybody.
    probabilities, labels : ndarray of shape (60, 3) and (60,)
        Model outputs and labels of each client that reports by class.
    reports_by_class, calibration_by_class
        The reports that six clients make of them, and their calibration with a guarantee.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rng = np.random.default_rng(0)
        self._make_pooled_round(rng)
        self._make_private_reports(rng)
        self._make_keys()
        self._make_round_by_class(rng)

    def _make_pooled_round(self, rng: np.random.Generator) -> None:
        """Make reports without classes and calibrate, then again without the last client."""
        self.reports = [
            robfcp.Report.from_scores(f"s{k}", rng.random(30), score=SCORE, round=ROUND, model="m")
            for k in range(N_CLIENTS)
        ]
        self.calibration = robfcp.calibrate(self.reports, defense=robfcp.Consensus(max_malicious=1))
        self.calibration.save(self.folder / "pooled.json")
        self.later_calibration = robfcp.calibrate(self.reports[:-1])

    def _make_private_reports(self, rng: np.random.Generator) -> None:
        """Make reports with privacy noise and save them."""
        binning = robfcp.Binning.uniform(8)
        self.private_reports = []
        for k in range(3):
            counts = rng.integers(0, 30, 8)
            report = robfcp.Report(
                f"p{k}", counts, binning, SCORE, n_samples=120, privacy=Privacy(1.0), round=ROUND
            )
            report.save(self.folder / f"p{k}")
            self.private_reports.append(report)

    def _make_keys(self) -> None:
        """Make a key, sign every report with it, and register one client's."""
        generate_key(self.folder / "key")
        self.private_key = load_key(self.folder / "key")
        self.public_key = read_public_key(str(self.folder / "key.pub"))
        for k, report in enumerate(self.reports):
            (self.folder / f"r{k}").write_bytes(sign(report, self.private_key))
        registry = f'["{CLIENT}"]\nkey = "{self.public_key}"\n'
        (self.folder / "registry.toml").write_text(registry, encoding="utf-8")

    def _make_round_by_class(self, rng: np.random.Generator) -> None:
        """Make reports by class of the same samples, and calibrate with a guarantee."""
        self.labels = rng.integers(0, N_CLASSES, N_SAMPLES)
        self.probabilities = rng.dirichlet(np.ones(N_CLASSES), N_SAMPLES)
        self.reports_by_class = [
            robfcp.Report.from_predictions(
                f"s{k}", self.probabilities, self.labels, stratify_by_class=True, min_cell_count=1
            )
            for k in range(N_CLIENTS)
        ]
        self.calibration_by_class = robfcp.calibrate(
            self.reports_by_class, guarantee=robfcp.LabelShiftGuarantee(max_malicious=1)
        )
        self.calibration_by_class.save(self.folder / "by-class.json")

    def monitor(self, path: Path) -> robfcp.Monitor:
        """Start a client's monitor, or go on with the state that it saved at this path."""
        return robfcp.Monitor(
            self.calibration_by_class,
            min_coverage=0.9,
            reference_report=self.reports_by_class[1],
            client=CLIENT,
            seed=1,
            path=path,
        )

    def draw_page(self, document: robfcp.Calibration | PageHistory) -> None:
        """Write the page of a calibration or of a history."""
        write_html(document, self.folder / "page.html")


class FileKind(NamedTuple):
    """A kind of file: a valid one, and what is done with it."""

    filename: str  # readers go by its ending
    content: bytes
    use: Callable[[ValidRound, Path], object]


def valid_files(valid: ValidRound) -> dict[str, FileKind]:
    """Make a valid file of every kind that people receive, keep or write themselves."""
    return {
        **_report_files(valid),
        **_calibration_files(valid),
        **_monitoring_files(valid),
        **_agreement_files(valid),
        **_bookkeeping_files(valid),
        **_model_output_files(),
    }


# Reports


def _report_files(valid: ValidRound) -> dict[str, FileKind]:
    """Make what a client sends."""
    pooled = valid.reports[1].to_json()
    by_class = valid.reports_by_class[1].to_json()
    private = valid.private_reports[1].to_json()
    signed = sign(valid.reports[1], valid.private_key)
    return {
        "report": FileKind("x.json", pooled, use_report),
        "report by class": FileKind("x.json", by_class, use_report),
        "private report": FileKind("x.json", private, use_private_report),
        "signed report": FileKind("x.json", signed, use_signed_report),
    }


def use_report(valid: ValidRound, path: Path) -> None:
    """Calibrate with the report in place of that client's report."""
    reports: list[robfcp.Report | bytes] = [valid.reports[0], path.read_bytes(), *valid.reports[2:]]
    robfcp.calibrate(Federation.from_reports(reports))


def use_private_report(valid: ValidRound, path: Path) -> None:
    """Calibrate with a guarantee, the report beside two other private ones."""
    federation = Federation.from_files([path, valid.folder / "p0", valid.folder / "p2"])
    robfcp.calibrate(federation, guarantee=robfcp.MarginalGuarantee(max_malicious=1))


def use_signed_report(valid: ValidRound, path: Path) -> None:
    """Read the report in rounds without and with registered keys."""
    other_paths = [valid.folder / f"r{k}" for k in (0, 2, 3)]
    Federation.from_files([path, *other_paths])

    keys = {"s0": valid.public_key, CLIENT: valid.public_key}
    Federation.from_files([path, other_paths[0]], keys=keys, round=ROUND)


# Calibrations


def _calibration_files(valid: ValidRound) -> dict[str, FileKind]:
    """Make what comes of a round: calibration, record and a client's feedback."""
    pooled = valid.calibration.to_json()
    by_class = valid.calibration_by_class.to_json()
    signed = valid.calibration.to_json(valid.private_key)
    record = valid.calibration.record.to_json()
    feedback = valid.calibration_by_class.feedback(CLIENT).to_json()
    return {
        "calibration": FileKind("x.json", pooled, use_calibration),
        "calibration by class": FileKind("x.json", by_class, use_calibration_by_class),
        "signed calibration": FileKind("x.json", signed, use_signed_calibration),
        "record": FileKind("x.json", record, use_record),
        "feedback": FileKind("x.json", feedback, use_feedback),
    }


def use_calibration(valid: ValidRound, path: Path) -> None:
    """Use the file as the pooled round's calibration."""
    _use_calibration_with_record(valid, path, "pooled.*.record.json")


def use_calibration_by_class(valid: ValidRound, path: Path) -> None:
    """Use the file as the calibration of the round by class."""
    _use_calibration_with_record(valid, path, "by-class.*.record.json")


def _use_calibration_with_record(valid: ValidRound, path: Path, record_pattern: str) -> None:
    """Load a calibration, predict with it, verify it against a record and draw its page."""
    calibration = robfcp.Calibration.load(path)
    uniform = np.full((4, N_CLASSES), 1 / N_CLASSES)
    with contextlib.suppress(RobfcpError):  # a refused prediction does not end the use
        calibration.predict_set(uniform, 0)

    record_path = next(valid.folder.glob(record_pattern))
    calibration = calibration.with_record(record_path)
    verify_calibration(calibration)
    valid.draw_page(calibration)


def use_signed_calibration(valid: ValidRound, path: Path) -> None:
    """Load a calibration that the server must have signed."""
    robfcp.Calibration.load(path, server_key=valid.public_key)


def use_record(valid: ValidRound, path: Path) -> None:
    """Calibrate again from a record whose digest nobody compares, as a forger writes it anew."""
    record = Record.from_json(path.read_bytes(), "record")
    calibration = robfcp.calibrate(record.federation, defense=robfcp.Consensus(max_malicious=0))
    valid.draw_page(calibration)
    _ = compare_rounds(calibration, valid.later_calibration).lines


def use_feedback(valid: ValidRound, path: Path) -> None:
    """Make a local threshold and predict, as a client does with its feedback."""
    feedback = ClientFeedback.load(path)
    feedback.calibrate_locally(valid.probabilities, valid.labels)
    feedback.calibration.predict_set(valid.probabilities, 0)


# After calibration


def _monitoring_files(valid: ValidRound) -> dict[str, FileKind]:
    """Make what is kept and sent later: alarms, a monitor's state and e-value report."""
    state_path = valid.folder / "state"
    monitor = valid.monitor(state_path)
    monitor.update(valid.probabilities, valid.labels, ids=range(N_SAMPLES))

    history = AlarmHistory(valid.calibration_by_class.fingerprint, ROUND, N_CLIENTS, 1, 0.05)
    for step in (1, 2):
        _, history = history.with_inspection([monitor.e_value_report(ROUND, step)], step)
    e_value_report = monitor.e_value_report(ROUND, 3)

    return {
        "history": FileKind("x.json", history.to_json(), use_history),
        "monitor state": FileKind("x", state_path.read_bytes(), use_monitor_state),
        "e-value report": FileKind("x.json", e_value_report.to_json(), use_e_value_report),
    }


def use_history(valid: ValidRound, path: Path) -> None:
    """Inspect once more, and draw the history."""
    history = AlarmHistory.load(path)
    e_value_reports = [EValueReport("s2", history.calibration, 0.9, 9, 0.5, history.round, 9)]
    with contextlib.suppress(RobfcpError):  # a refused inspection does not end the use
        _, history = history.with_inspection(e_value_reports, 9)
    valid.draw_page(PageHistory(alarms=history))


def use_monitor_state(valid: ValidRound, path: Path) -> None:
    """Go on monitoring from the state, with samples of which half were counted before."""
    monitor = valid.monitor(path)
    monitor.update(valid.probabilities, valid.labels, ids=range(30, 30 + N_SAMPLES))
    monitor.e_value_report(ROUND, 9)


def use_e_value_report(valid: ValidRound, path: Path) -> None:
    """Merge the e-value report with others that say the same."""
    report = EValueReport.load(path)
    copies = [replace(report, client=f"o{k}") for k in range(3)]
    merge_e_values([report, *copies], 1)


# What was agreed on


def _agreement_files(valid: ValidRound) -> dict[str, FileKind]:
    """Make what the server and its clients write down before a round, by hand."""
    sizes = json.dumps({f"s{k}": 30 for k in range(N_CLIENTS)})
    key_lines = [
        f'["{CLIENT}"]',
        "n-samples = 30",
        f'key = "{valid.public_key}"',
        'not-after = "2099-01-01"',
    ]
    term_lines = [
        'round = "r"',
        'model = "m"',
        'score = "lac"',
        'binning = "uniform:9"',
        "dp-epsilon = 1.0",
    ]
    revoked_key_lines = [f"{valid.public_key} # old"]
    return {
        "sizes": FileKind("x.json", sizes.encode(), use_sizes),
        "keys": FileKind("x.toml", _text(key_lines), use_keys),
        "terms": FileKind("x.toml", _text(term_lines), use_terms),
        "revoked": FileKind("x", _text(revoked_key_lines), use_revoked_keys),
    }


def use_sizes(valid: ValidRound, path: Path) -> None:
    """Read registered sample sizes."""
    read_registered_sizes(path)


def use_keys(valid: ValidRound, path: Path) -> None:
    """Read registered keys."""
    read_keys(path)


def use_terms(valid: ValidRound, path: Path) -> None:
    """Read all that the terms say."""
    terms = read_terms(path)
    _ = terms.expected_context


def use_revoked_keys(valid: ValidRound, path: Path) -> None:
    """Read registered keys of which some are revoked."""
    read_keys(valid.folder / "registry.toml", path)


# Keys, ledger and log


def _bookkeeping_files(valid: ValidRound) -> dict[str, FileKind]:
    """Make what a client or the server keeps for itself."""
    ledger_path = valid.folder / "ledger"
    PrivacyLedger(ledger_path, "d").charge(Privacy(1.0, n_rounds=3), ROUND)
    log_path = valid.folder / "log"
    log_calibration(AuditLog(log_path), valid.calibration, {})
    private_key = (valid.folder / "key").read_bytes()
    public_key = (valid.folder / "key.pub").read_bytes()
    return {
        "private key": FileKind("x", private_key, use_private_key),
        "public key": FileKind("x", public_key, use_public_key),
        "ledger": FileKind("x", ledger_path.read_bytes(), use_ledger),
        "audit log": FileKind("x", log_path.read_bytes(), use_audit_log),
    }


def use_private_key(valid: ValidRound, path: Path) -> None:
    """Load a private key."""
    load_key(path)


def use_public_key(valid: ValidRound, path: Path) -> None:
    """Read a public key."""
    read_public_key(str(path))


def use_ledger(valid: ValidRound, path: Path) -> None:
    """Spend privacy budget."""
    # The lock keeps the number of reports ever recorded, and would refuse the next case for it.
    Path(f"{path}.lock").unlink(missing_ok=True)
    PrivacyLedger(path, "d").charge(Privacy(1.0, n_rounds=3))


def use_audit_log(valid: ValidRound, path: Path) -> None:
    """Read all events of the log."""
    list(AuditLog(path).events())


# Model outputs


def _model_output_files() -> dict[str, FileKind]:
    """Make what a client's model predicted, in the three formats that need no extra."""
    probabilities = np.random.default_rng(1).dirichlet(np.ones(N_CLASSES), 20)
    labels = np.arange(20) % N_CLASSES
    archive = io.BytesIO()
    np.savez_compressed(archive, probabilities=probabilities, labels=labels)
    array = io.BytesIO()
    np.save(array, probabilities)
    table = _binary_table(probabilities[:, 0])
    return {
        "npz": FileKind("x.npz", archive.getvalue(), use_model_outputs),
        "npy": FileKind("x.npy", array.getvalue(), use_model_outputs),
        "csv": FileKind("x.csv", table, use_model_outputs),
    }


def _binary_table(first_probabilities: NDArray[np.float64]) -> bytes:
    """Write two classes' probabilities and labels as a CSV table."""
    lines = ["a,b,label"]
    for row, first in enumerate(first_probabilities):
        lines.append(f"{first},{1 - first},{row % 2}")
    return _text(lines)


def use_model_outputs(valid: ValidRound, path: Path) -> None:
    """Predict sets, and score the labels where the file has them."""
    outputs = read_outputs(path, needs_targets=False)
    valid.calibration.predict_set(outputs.predictions, 0)
    if outputs.targets is not None:
        SCORE(outputs.predictions, outputs.targets)


def _text(lines: list[str]) -> bytes:
    """Write lines as a text file."""
    return ("\n".join(lines) + "\n").encode()
