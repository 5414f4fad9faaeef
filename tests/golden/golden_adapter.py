"""How the golden cases call robfcp: the one file that changes when robfcp's names change.

`golden_cases` calls robfcp through these functions only. The comparison of two commits runs the
cases of the newer commit with the adapter of each, so that a case can stay as it is while modules
move and names change.
"""

import json
import tempfile
from contextlib import chdir
from pathlib import Path

import msgspec
from in_process import run
from integration_loopback import LoopbackDriver

import robfcp
from robfcp import (
    Consensus,
    Federation,
    LabelShiftGuarantee,
    MarginalGuarantee,
    PACGuarantee,
    Report,
    RobFCP,
)
from robfcp.audit import verify_calibration
from robfcp.defense import FCP, RobFCPReleased
from robfcp.fleet import _parquet
from robfcp.local._feedback import iter_feedback
from robfcp.page import PageInfo, page_data
from robfcp.reports import signing

LAC = robfcp.LAC()
APS = robfcp.APS()
REFUSAL = robfcp.RobfcpError

# Page data that is not compared: the audit rows hold the version.
PAGE_KEYS_LEFT_OUT = ("audit",)


def report(client, scores, *, min_cell_count=5, min_class_count=1, **options):
    """A report of one client's scores, by class where there are labels."""
    if "labels" in options:
        options.setdefault("stratify_by_class", True)
    return Report.from_scores(
        client,
        scores,
        min_cell_count=min_cell_count,
        min_class_count=min_class_count,
        **options,
    )


def report_of_counts(client, counts, binning, *, score, n_samples, privacy):
    """A report of counts that already hold noise."""
    return Report(client, counts, binning, score, n_samples=n_samples, privacy=privacy)


def report_of_multilabel(client, probabilities, truths, binning):
    """A report of false negative rates."""
    return Report.from_multilabel(client, probabilities, truths, binning)


def all_label_scores(probabilities):
    """(n, C) the scores of all labels."""
    return LAC.score_all_labels(probabilities, 0)


def report_json(report):
    """The report as it is sent."""
    return report.to_json()


def signed_report(report, key):
    """The report as it is sent, signed by a private key."""
    return signing.sign(report, key)


def public_key(key):
    """The text of a private key's public half."""
    return signing.encode_public_key(key)


def uniform_binning(n_bins):
    """Bins of equal width on [0, 1]."""
    return robfcp.Binning.uniform(n_bins)


def bin_counts(binning, scores):
    """(H,) how many scores fall into each bin."""
    return binning.counts(scores)


def privacy(epsilon, *, protects_sample_size=False):
    """A privacy budget of one report."""
    neighbors = "add-remove" if protects_sample_size else "substitution"
    return robfcp.Privacy(epsilon, neighbors=neighbors)


def noise_scale(privacy):
    """The scale of the noise on one count."""
    return privacy.noise.scale


def defense(name, *, n_malicious=None, max_malicious=None, seed=None, metric=None, vector=None):
    """A defense by name, told a number of malicious clients or not."""
    if name == "consensus":
        return Consensus(n_malicious=n_malicious, max_malicious=max_malicious, random_state=seed)
    if name == "none":
        return FCP()
    if name == "rob-fcp-released":
        return RobFCPReleased(n_malicious=n_malicious)
    options = {"metric": metric, "characterization": vector}
    options = {option: value for option, value in options.items() if value is not None}
    return RobFCP(n_malicious=n_malicious, **options)


def guarantee(
    name, max_malicious=None, *, max_malicious_samples=None, heterogeneity=None, labels=None
):
    """A guarantee by name."""
    if name == "marginal":
        return MarginalGuarantee(max_malicious, max_malicious_samples)
    if name == "pac":
        return PACGuarantee(max_malicious, heterogeneity)
    return LabelShiftGuarantee(max_malicious, heterogeneity or 0.0, labels)


def federation(reports, **options):
    """The federation of some reports."""
    return Federation.from_reports(reports, **options)


def intake_result(federation):
    """What became of everybody who sent something."""
    return {
        "clients": list(federation.clients),
        "sizes": federation.sample_sizes.tolist(),
        "sizes_known": federation.sizes_known,
        "rejected": msgspec.to_builtins(federation.rejected_reports),
        "missing": list(federation.missing_clients),
        "resubmitted": list(federation.resubmitted_clients),
        "verification": msgspec.to_builtins(federation.verification),
    }


def calibrate(reports, coverage=0.9, *, risk_level=None, guarantee=None, trusted=None, **options):
    """The calibration of some reports or of a federation."""
    return robfcp.calibrate(
        reports,
        coverage=coverage,
        risk_level=risk_level,
        guarantee=guarantee,
        trusted_report=trusted,
        **options,
    )


def calibration_json(calibration):
    """The calibration's file alone, without its record."""
    return calibration.with_record(None).to_json()


def texts(calibration, *, everything=True):
    """{part: bytes} of all that people and programs read of a calibration."""
    diagnoses = {
        client: str(diagnosis) for client, diagnosis in robfcp.diagnose(calibration).items()
    }
    answers = {
        "decisions": json.dumps(decisions(calibration)).encode(),
        "calibration": calibration.to_json(),
        "record": calibration.require_record().to_json(),
        "printed": str(calibration).encode(),
        "diagnoses": json.dumps(diagnoses).encode(),
    }
    if everything:
        feedback = [client_feedback.to_json() for client_feedback in iter_feedback(calibration)]
        answers["feedback"] = b"\n".join(feedback)
        page = page_data(calibration, PageInfo())
        page = {key: value for key, value in page.items() if key not in PAGE_KEYS_LEFT_OUT}
        answers["page"] = json.dumps(page, sort_keys=True, default=str).encode()
        differences = [difference.line for difference in verify_calibration(calibration)]
        answers["verification"] = json.dumps(differences).encode()
    return answers


def decisions(calibration):
    """The decisions of a calibration in numbers and texts, for comparison on any machine."""
    levels = []
    for level in calibration.levels:
        levels.append(
            {
                "coverage": str(level.coverage),
                "threshold": level.threshold,
                "thresholds_by_stratum": {part.name: part.threshold for part in level.strata},
                "lower": level.certificate.lower,
                "upper": level.certificate.upper,
                "certificate": level.certificate.statement,
                "vacuous_from": level.vacuous_from,
                "lower_for_each_number": [point.lower for point in level.certificate_points],
            }
        )
    maliciousness = zip(
        calibration.federation.clients, calibration.maliciousness.tolist(), strict=True
    )
    return {
        "levels": levels,
        "excluded": list(calibration.flagged_clients),
        "rejected": [fault.reason for fault in calibration.rejected_reports],
        "n_malicious": calibration.n_malicious,
        "maliciousness": dict(maliciousness),
        "notes": list(calibration.notes),
    }


def stored_calibrations(reports, guarantees, *, coverage=0.9):
    """What is calibrated where the counts stay in Parquet, once for each guarantee."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "round.parquet"
        Federation.from_reports(reports).save(path)
        limit, _parquet.MAX_VALUES_IN_MEMORY = _parquet.MAX_VALUES_IN_MEMORY, 0
        try:
            return [
                calibrate(Federation.from_files(path), coverage=coverage, guarantee=wanted)
                for wanted in guarantees
            ]
        finally:
            _parquet.MAX_VALUES_IN_MEMORY = limit


def monitor(calibration, *, seed, min_coverage=None, reference_report=None, client=None):
    """A monitor of a calibration."""
    return robfcp.Monitor(
        calibration,
        seed=seed,
        min_coverage=min_coverage,
        reference_report=reference_report,
        client=client,
    )


def monitor_update(monitor, probabilities, labels):
    """What the monitor says after a batch."""
    state = monitor.update(probabilities, labels)
    return msgspec.json.encode(state)


def e_value_report(monitor, round, step):
    """The e-value report of a monitor."""
    return monitor.e_value_report(round, step).to_json()


def evaluation_text(calibration, probabilities, labels, *, min_coverage):
    """The printed evaluation of fresh samples."""
    return str(calibration.evaluate(probabilities, labels, min_coverage=min_coverage)).encode()


def command_line(name, *arguments, folder, min_cell_count=None, **options):
    """Exit code and output of a command that runs in a folder."""
    arguments = [name, *arguments]
    if min_cell_count is not None:
        arguments += ["--min-cell-count", min_cell_count]
    for option, value in options.items():
        arguments.append(f"--{option.replace('_', '-')}")
        if value is not True:
            arguments.append(str(value))
    with chdir(folder):
        done = run(*arguments, COLUMNS="100")
    return f"exit {done.returncode}\n{done.stdout}{done.stderr}".encode()


def integration_drivers():
    """{name: driver} of the integrations whose framework is installed."""
    drivers = {"loopback": LoopbackDriver}
    try:
        from flower_faults import FlowerDriver

        drivers["flower"] = FlowerDriver
    except ImportError:
        pass
    try:
        from nvflare_faults import NVFlareDriver

        drivers["nvflare"] = NVFlareDriver
    except ImportError:
        pass
    return drivers


def integration_round(driver, folder, faults, deadline):
    """{part: bytes} of one round over an integration, and what every client did."""
    calibration, _, _ = driver().play(folder, faults=faults, deadline=deadline)
    clients = calibration.provenance["clients"]
    told = ("status", "reason", "attempts", "claims")
    outcomes = {name: {key: entry[key] for key in told} for name, entry in clients.items()}
    parts = {"decisions": json.dumps(decisions(calibration)), "outcomes": json.dumps(outcomes)}
    round_name = calibration.summary.round  # drawn anew for every round
    return {part: text.replace(round_name, "ROUND").encode() for part, text in parts.items()}
