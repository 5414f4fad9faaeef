"""Hostile clients and careless operators get one printable line, or what they meant."""

import json
import os
from decimal import Decimal
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from makers import LAC, reports_of, seal

import robfcp
from robfcp import metrics
from robfcp._files import make_folder, write_atomically
from robfcp.binning import Binning
from robfcp.calibration import Calibration
from robfcp.calibration._record import Record
from robfcp.cli.show import _parse_max_malicious
from robfcp.cli.tables import read_outputs
from robfcp.errors import MAX_TEXT, RobfcpError
from robfcp.experiments import partitions, simulate
from robfcp.privacy import parse_binning
from robfcp.privacy._budget import Privacy
from robfcp.reports.terms import read_registered_sizes

REPORTS = reports_of(np.random.default_rng(0).beta(0.5, 2, (6, 30)))
MESSAGE = json.loads(REPORTS[0].to_json())
SIZES = {report.client: 30 for report in REPORTS}
CALIBRATION = robfcp.calibrate(REPORTS, defense=robfcp.RobFCP(n_malicious=1))

ESCAPES = [
    '{"schema": 99, "client": "a\\nrobfcp: all is well\\u001b[2J"}',
    '{"schema": 1, "kind": "report", "client": "b", "\\u001b[2J\\nx": 1}',
    json.dumps({"schema": 99, "client": "x" * 10**6}),
    json.dumps(MESSAGE | {"binning": {"name": "z" * 10**5, "digest": "0"}}),
    '{"schema": 99, "client": "\\u202eabc"}',
]


@pytest.mark.parametrize("text", ESCAPES, ids=range(len(ESCAPES)))
def test_what_a_hostile_report_says_cannot_steer_a_terminal_or_fill_a_log(text):
    calibration = robfcp.calibrate([*REPORTS[1:], text])
    (rejected,) = calibration.rejected_reports
    assert (rejected.reason + rejected.client).isprintable()
    assert len(rejected.reason) <= MAX_TEXT + 50
    assert len(rejected.client) <= 250
    assert Record.from_json(calibration.record.to_json(), "x").federation.rejected_reports == (
        rejected,
    )


def test_folders_devices_and_pipes_are_never_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", "hello")
    assert os.read(reader, 99) == b"hello"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "real.json").touch(mode=0o600)
    (tmp_path / "link.json").symlink_to("real.json")
    write_atomically(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"
    assert (tmp_path / "real.json").stat().st_mode & 0o777 == 0o600
    for path in (tmp_path, "a\0b", tmp_path / "real.json" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(RobfcpError, match=r"choose another place|it is a folder"):
            write_atomically(path, "")
    with pytest.raises(RobfcpError, match="cannot be made"):
        make_folder(tmp_path / "real.json")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "real.json", "link.json"}


def reload(calibration):
    """The calibration after its way through a file."""
    read = Calibration.from_json(calibration.to_json()).with_record(calibration.record)
    assert (read, read.record.guarantee) == (calibration, calibration.record.guarantee)
    return read


NINE_TENTHS = ["0.9", "9/10", "9e-1", Fraction(9, 10), Decimal("0.9"), np.float64(0.9)]
NINE_TENTHS += [np.float32(0.9), np.float16(0.9), np.array(0.9), 1 - 0.1]


USUAL = robfcp.calibrate(REPORTS)


@pytest.mark.parametrize("level", NINE_TENTHS, ids=repr)
def test_nine_tenths_is_nine_tenths_in_every_type(level):
    calibration = reload(robfcp.calibrate(REPORTS, coverage=level))
    assert calibration.levels[0].coverage == Fraction(9, 10)
    assert calibration.threshold == USUAL.threshold


def test_numbers_of_other_libraries_are_saved_as_plain_ones():
    sizes = {client: np.int64(30) for client in SIZES}
    federation = robfcp.Federation.from_reports(
        REPORTS, registered_sizes=sizes, quorum=np.float32(1)
    )
    guarantee = robfcp.MarginalGuarantee(max_malicious=np.int8(1))
    calibration = robfcp.calibrate(
        federation, guarantee=guarantee, certificate_confidence=Fraction(19, 20)
    )
    assert reload(calibration).certificate_confidence == 0.95


def test_a_report_that_holds_itself_is_faulty():
    endless = {}
    endless["x"] = endless
    assert len(robfcp.calibrate([*REPORTS, endless]).rejected_reports) == 1


# Files whose digest fits, as any forger can write them

VALID_BODIES = {
    "calibration": json.loads(CALIBRATION.to_json())["body"],
    "record": json.loads(CALIBRATION.record.to_json())["body"],
}
FEDERATION = VALID_BODIES["record"]["federation"]
SENT_REPORTS = FEDERATION["reports"]
IDS = [report["client"] for report in SENT_REPORTS]
REJECTION = {"client": "a", "field": "b", "reason": "c", "more": 1}
WRONG_VALUES = {
    "calibration": {
        "levels": [[], VALID_BODIES["calibration"]["levels"] * 2],
        "levels.0.coverage": ["2", "x", "1/0", "1e-99999999"],
        "levels.0.certificate.lower": [-5],
        "levels.0.certificate.upper": [50],
        "levels.0.certificate.n_clients": [7],
        "n_malicious": [-1, 6],
        "certificate_confidence": [5],
        **{
            f"{field}more": [1]
            for field in (
                "verification.",
                "summary.",
                "levels.0.certificate.",
                "levels.0.certificate_points.0.",
                "score.",
                "levels.0.certificate.assumptions.0.",
            )
        },
    },
    "record": {
        "flagged": [{"nobody": ""}, dict.fromkeys(IDS, "")],
        "maliciousness": [{}, dict.fromkeys(IDS[1:], 1.0)],
        "guarantee": [
            {"type": "pac", "max_malicious": -5},
            {"type": "pac", "max_malicious": 1, "tolerance": 2},
        ],
        "federation.more": [1],
        "federation.verification.more": [1],
        "federation.rejected_reports": [[REJECTION]],
        "federation.missing_clients": [["\x1b[2J"]],
        "federation.reports": [
            [],
            SENT_REPORTS[1:],
            [*SENT_REPORTS, SENT_REPORTS[0] | {"n_samples": 1}],
            [*SENT_REPORTS, {}],
            [*SENT_REPORTS[1:], SENT_REPORTS[0] | {"round": "another"}],
            [*SENT_REPORTS[1:], SENT_REPORTS[1] | SENT_REPORTS[0]["counts"]],
        ],
        **{
            f"federation.reports.0.{field}": values
            for field, values in {
                "client": ["a\nb", IDS[1]],
                "counts.bins": [[0], [10**6], [2**70]],
                "counts.counts": [[], [-1] * 30, [0] * 30, [2**62] * 30, [2**70]],
                "privacy": [{"epsilon": 1.0}],
                "n_samples": [0, 29],
            }.items()
        },
    },
}
CASES = [
    (k, f, v) for k, fields in WRONG_VALUES.items() for f, values in fields.items() for v in values
]


def altered(kind, field, value):
    """The file with another value there, its digest made to fit again."""
    body = json.loads(json.dumps(VALID_BODIES[kind]))
    *parents, last = [int(step) if step.isdigit() else step for step in field.split(".")]
    container = body
    for step in parents:
        container = container[step]
    container[last] = value
    return seal(kind, body)


@pytest.mark.parametrize(("kind", "field", "value"), CASES, ids=lambda value: str(value)[:30])
def test_a_file_whose_parts_contradict_each_other_is_refused(kind, field, value):
    read = Calibration.from_json if kind == "calibration" else Record.from_json
    read(seal(kind, VALID_BODIES[kind]))
    with pytest.raises(RobfcpError, match=r"^x\.json: .*; (calibrate again|pass (a|the) file)"):
        read(altered(kind, field, value), "x.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("levels.0.threshold", value) for value in (0.123456789, -5)),
        ("summary.n_benign", 2),
        ("summary.binning", "0"),
    ],
)
def test_a_calibration_that_does_not_fit_its_evidence_says_so(field, value, tmp_path):
    CALIBRATION.save(tmp_path / "c.json")
    (tmp_path / "c.json").write_bytes(altered("calibration", field, value))
    with pytest.raises(RobfcpError, match=r"record\.json: does not fit the calibration"):
        _ = Calibration.load(tmp_path / "c.json", record=True).benign_clients


PRIVACY_FIELDS = msgspec.structs.asdict(Privacy(1.0))
TWO_BINS = {"bins": [3, 4]}


@pytest.mark.parametrize(
    "change",
    [
        {"counts": TWO_BINS | {"counts": [31, -1]}},
        {"privacy": PRIVACY_FIELDS, "counts": TWO_BINS | {"counts": [9999, 0]}},
        *(
            {"privacy": {k: v for k, v in PRIVACY_FIELDS.items() if k != left}}
            for left in PRIVACY_FIELDS
        ),
        *({"privacy": PRIVACY_FIELDS | {"scale": scale}} for scale in (0, None, 1.9)),
        {"privacy": PRIVACY_FIELDS | {"epsilon": 1e300}},
        {"privacy": PRIVACY_FIELDS | {"neighbors": "add-remove"}},
        {"privacy": PRIVACY_FIELDS | {"mechanism": "auto"}},
    ],
    ids=lambda change: str(change)[:60],
)
def test_noise_that_is_half_stated_or_impossible_is_refused(change):
    assert (
        robfcp.Report.from_json(json.dumps(MESSAGE | {"privacy": PRIVACY_FIELDS})).privacy.epsilon
        == 1
    )
    with pytest.raises(RobfcpError, match="site-00"):
        robfcp.Report.from_json(json.dumps(MESSAGE | change))


# What callers may pass by mistake

SETS = np.array([[True, False, True], [False, False, False]])
HALVES = np.full((99, 2), 0.5)
PAIR = HALVES[:1]


def read_round(**options):
    return robfcp.Federation.from_reports(REPORTS, **options)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        *(
            ("coverage", lambda level=level: robfcp.calibrate(REPORTS, coverage=level))
            for level in ("1e-99999999", "1e99999999", "1/0", "9" * 50, "nan", b"0.9", True, 0.9j)
        ),
        *(
            ("pass a list", lambda reports=reports: robfcp.calibrate(reports))
            for reports in (None, 5, REPORTS[0], REPORTS[0].to_json(), {})
        ),
        *(
            ("quorum", lambda quorum=quorum: read_round(quorum=quorum))
            for quorum in (np.nan, -1, 1.5, True, "3")
        ),
        *(
            ("registered_sizes", lambda sizes=sizes: read_round(registered_sizes=sizes))
            for sizes in ({}, [("site-00", 30)], *(SIZES | {"a": n} for n in (30.0, "30", -30)))
        ),
        ("name", lambda: read_round(registered_sizes=SIZES | {"\ud800": 1})),
        ("max_client_share", lambda: read_round(max_client_share="0.5")),
        (
            "certificate_confidence",
            lambda: robfcp.calibrate(
                REPORTS, certificate_confidence=2, guarantee=robfcp.MarginalGuarantee(1)
            ),
        ),
        (
            "certificate_confidence",
            lambda: robfcp.calibrate(REPORTS, certificate_confidence="0.95"),
        ),
        ("defense", lambda: robfcp.calibrate(REPORTS, defense=None)),
        ("defense", lambda: robfcp.calibrate(REPORTS, defense=robfcp.RobFCP)),
        ("heterogeneity", lambda: robfcp.PACGuarantee(1, heterogeneity=float("nan"))),
        ("max_malicious", lambda: robfcp.Consensus(max_malicious=np.array([1, 2]))),
        ("n_malicious", lambda: robfcp.RobFCP(n_malicious=-1)),
        ("probabilities", lambda: CALIBRATION.predict_set(None)),
        ("lac", lambda: CALIBRATION.predict_set(PAIR, score="lac")),
        ("use predict_set", lambda: CALIBRATION.predict_interval([1.0], score="x")),
        ("sets", lambda: metrics.mean_set_size([])),
        ("sets", lambda: metrics.empty_set_rate([[True], [True, False]])),
        ("level", lambda: metrics.covgap(SETS, [0, 1], "0.9")),
        ("level", lambda: metrics.size_stratified_coverage_violation(SETS, [0, 1], np.nan)),
        ("size_ends", lambda: metrics.size_stratified_coverage(SETS, [0, 1], (5, 1))),
        ("targets", lambda: metrics.interval_coverage([[1, 2], [1, 2]], [1.0])),
        ("targets", lambda: metrics.interval_coverage([[1, 2]], [np.nan])),
        ("intervals", lambda: metrics.interval_coverage([], [])),
        ("intervals", lambda: metrics.interval_width([1, 2])),
        ("n_clients", lambda: partitions.partition_iid(10, 1.5)),
        ("rng", lambda: partitions.partition_iid(10, 2, -1)),
        ("labels", lambda: partitions.partition_dirichlet([["a"]] * 30, 2, 0.5)),
        ("labels", lambda: partitions.partition_dirichlet([1, "a", None] * 30, 2, 0.5)),
        ("attempts", lambda: partitions.partition_dirichlet([0] * 30, 2, 0.5, attempts=0)),
        ("n_runs", lambda: simulate(HALVES, [0] * 99, n_runs=0)),
        ("malicious_fraction", lambda: simulate(HALVES, [0] * 99, malicious_fraction="a")),
        ("test on", lambda: simulate(HALVES, [0] * 99, n_clients=99)),
    ],
)
def test_careless_requests_are_refused_by_name(field, call):
    with pytest.raises(RobfcpError, match=field):
        call()


def test_group_names_of_mixed_types_are_distinguished():
    coverage_of_groups = metrics.group_conditional_coverage(SETS, [0, 1], [1, None])
    assert coverage_of_groups == {"1": (1, 1.0), "None": (1, 0.0)}


class Touch:
    """What a pickle could do."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_arrays_never_run_code_and_never_leave_files_open(tmp_path):
    evil = np.array([Touch(str(tmp_path / "owned"))], dtype=object)
    np.savez(tmp_path / "evil.npz", probabilities=evil, labels=[0])
    np.save(tmp_path / "evil.npy", evil)
    np.save(tmp_path / "array.npy", np.eye(2))
    (tmp_path / "array.npy").rename(tmp_path / "no.npz")
    np.savez(tmp_path / "z.npz", probabilities=np.eye(2))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "z.npz").read_bytes()[:100])
    (tmp_path / "z.npz").rename(tmp_path / "no.npy")
    for name in ("no.npz", "no.npy"):  # the content decides, not the ending
        assert read_outputs(tmp_path / name, needs_targets=False).predictions.shape == (2, 2)
    for name in ("evil.npz", "evil.npy", "cut.npz"):
        with pytest.raises(RobfcpError, match=name):
            read_outputs(tmp_path / name, needs_targets=False)
    assert not (tmp_path / "owned").exists()


def test_registries_that_nest_without_end_are_refused(tmp_path):
    (tmp_path / "sizes.json").write_text("[" * 10**5)
    with pytest.raises(RobfcpError, match=r"sizes\.json: not JSON"):
        read_registered_sizes(tmp_path / "sizes.json")


@pytest.mark.parametrize("text", ["²", "٣", "9" * 5000, "-1", "1.5", ""])
def test_numbers_on_the_command_line_are_plain_digits(text):
    if text:
        with pytest.raises(
            RobfcpError, match=r"--max-malicious: .* is not a number below the 9 sites"
        ):
            _parse_max_malicious([text], 9)
    with pytest.raises(RobfcpError, match="binning"):
        parse_binning(f"uniform:{text}")


# Unusual reports that are valid


@pytest.mark.parametrize("characterization", ["gaussian", "k-means", "kernel", "quantiles"])
def test_a_bin_without_finite_ends_has_a_finite_midpoint(characterization):
    reports = [robfcp.Report(f"c{k}", [9], Binning([-np.inf, np.inf])) for k in range(5)]
    defense = robfcp.RobFCP(1, characterization=characterization)
    assert robfcp.calibrate(reports, defense=defense).maliciousness.tolist() == [0.0] * 5


def test_identical_giants_cost_the_server_nothing():
    """Two duplicates that claim a thousand million samples each beside benign clients."""
    benign = reports_of(np.random.default_rng(0).beta(0.5, 2, (30, 50)))
    counts = np.zeros(Binning.default().n_bins, dtype=np.int64)
    counts[[3, 5]] = 10**9 - 1, 1
    giants = [robfcp.Report(name, counts, Binning.default(), LAC) for name in "ab"]
    assert set(robfcp.calibrate([*benign, *giants]).flagged_clients) == {"a", "b"}


def test_clients_without_any_difference_are_all_benign():
    reports = reports_of(np.zeros((3, 30)))
    assert (
        robfcp.calibrate(reports, defense=robfcp.Consensus(max_malicious=0)).flagged_clients == ()
    )
