"""Hostile sites, careless operators: refused in one printable line, or taken for what it means."""

import hashlib
import json
import os
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest

import robfcp
from robfcp.calibration import Calibration
from robfcp.calibration.record import Record
from robfcp.cli.console import natural
from robfcp.cli.tables import read_outputs
from robfcp.errors import MAX_TEXT, RobfcpError
from robfcp.files import make_folder, write_atomically
from robfcp.grid import Grid
from robfcp.lab import partitions, simulate
from robfcp.privacy import grid_from_text
from robfcp.privacy.budget import Privacy
from robfcp.report.agreement import read_sizes

LAC = robfcp.LAC()


def make_reports(n_clients=6, n=30, seed=0):
    rng = np.random.default_rng(seed)
    return [
        robfcp.Report.from_scores(f"site-{k}", rng.beta(0.5, 2, n), score=LAC)
        for k in range(n_clients)
    ]


REPORTS = make_reports()

ESCAPES = [
    '{"schema": 99, "client": "a\\nrobfcp: all is well\\u001b[2J"}',
    '{"schema": 1, "kind": "report", "client": "b", "\\u001b[2J\\nx": 1}',
    json.dumps({"schema": 99, "client": "x" * 10**6}),
    json.dumps(json.loads(REPORTS[0].to_json()) | {"grid": {"name": "z" * 10**5, "digest": "0"}}),
    '{"schema": 99, "client": "\\u202eabc"}',
]


@pytest.mark.parametrize("text", ESCAPES, ids=range(len(ESCAPES)))
def test_what_a_hostile_report_says_cannot_steer_a_terminal_or_fill_a_log(text):
    calibration = robfcp.calibrate([*REPORTS[1:], text])
    (fault,) = calibration.faulty
    assert fault.reason.isprintable()
    assert fault.client.isprintable()
    assert len(fault.reason) <= MAX_TEXT + 50
    assert len(fault.client) <= 250
    again = Calibration.from_json(calibration.to_json()).with_record(calibration.record)
    assert again.faulty == calibration.faulty
    assert Record.from_json(calibration.record.to_json(), "x").federation.faulty == (fault,)


def test_folders_devices_and_pipes_are_never_replaced_by_a_file(tmp_path):
    with pytest.raises(RobfcpError, match=r"cannot be written \(it is a folder\)"):
        REPORTS[0].save(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "pipe", "hello")
    assert os.read(reader, 99) == b"hello"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_atomically(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"
    for place in ("a\0b", tmp_path / "real.json" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(RobfcpError, match="choose another place"):
            write_atomically(place, "")
    with pytest.raises(RobfcpError, match="cannot be made"):
        make_folder(tmp_path / "real.json")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "real.json", "link.json"}


def saved(calibration):
    """The calibration after its way through a file."""
    again = Calibration.from_json(calibration.to_json()).with_record(calibration.record)
    assert again == calibration
    assert again.record.promise == calibration.record.promise
    return again


NINE_TENTHS = ["0.9", "9/10", "9e-1", Fraction(9, 10), Decimal("0.9"), np.float64(0.9)]
NINE_TENTHS += [np.float32(0.9), np.float16(0.9), np.array(0.9), 1 - 0.1]


@pytest.mark.parametrize("level", NINE_TENTHS, ids=repr)
def test_nine_tenths_is_nine_tenths_in_every_type(level):
    calibration = saved(robfcp.calibrate(REPORTS, level))
    assert calibration.levels[0].coverage == Fraction(9, 10)
    assert calibration.threshold == robfcp.calibrate(REPORTS).threshold


@pytest.mark.parametrize(
    "level", ["1e-99999999", "1e99999999", "1/0", "9" * 50, "nan", b"0.9", True, {0.9}, 0.9 + 0j]
)
def test_levels_that_are_no_numbers_are_refused_at_once(level):
    with pytest.raises(RobfcpError, match="coverage"):
        robfcp.calibrate(REPORTS, level)


def test_numbers_of_other_libraries_are_saved_as_plain_ones():
    calibration = robfcp.calibrate(
        robfcp.Federation.from_reports(
            REPORTS, sizes={report.client: np.int64(30) for report in REPORTS}, quorum=np.float32(1)
        ),
        promise=robfcp.Marginal(liars=np.int8(1)),
        confidence=Fraction(19, 20),
    )
    assert saved(calibration).confidence == 0.95
    budget = robfcp.calibrate(REPORTS, promise=robfcp.Marginal(samples=np.uint16(30)))
    assert saved(budget).record.promise.samples == 30


@pytest.mark.parametrize(
    "call",
    [
        lambda: robfcp.calibrate(REPORTS, confidence=2, promise=robfcp.Marginal(1)),
        lambda: robfcp.calibrate(REPORTS, confidence="0.95"),
        lambda: robfcp.Pac(1, alike="0.1"),
        lambda: robfcp.Pac(1, alike=float("nan")),
        lambda: robfcp.Federation.from_reports(REPORTS, max_share="0.5"),
        lambda: robfcp.Marginal(samples="5"),
        lambda: robfcp.Marginal(samples=1.5),
        lambda: robfcp.calibrate(REPORTS, defence=None),
        lambda: robfcp.calibrate(REPORTS, defence=robfcp.RobFCP),
        lambda: robfcp.Consensus(at_most=np.array([1, 2])),
        lambda: robfcp.RobFCP(liars=-1),
    ],
)
def test_careless_requests_are_refused_by_name(call):
    with pytest.raises(RobfcpError):
        call()


@pytest.mark.parametrize(
    "arguments",
    [
        {"quorum": float("nan")},
        {"quorum": -1},
        {"quorum": 1.5},
        {"quorum": True},
        {"quorum": "3"},
        {"sizes": {}},
        {"sizes": {report.client: 30.0 for report in REPORTS}},
        {"sizes": {report.client: "30" for report in REPORTS}},
        {"sizes": {report.client: -30 for report in REPORTS}},
        {"sizes": {report.client: 30 for report in REPORTS} | {"\ud800": 1}},
        {"sizes": [("site-0", 30)]},
    ],
    ids=repr,
)
def test_careless_registries_are_refused_by_name(arguments):
    with pytest.raises(RobfcpError):
        robfcp.Federation.from_reports(REPORTS, **arguments)


@pytest.mark.parametrize("reports", [None, 5, REPORTS[0], REPORTS[0].to_json(), {}])
def test_reports_come_in_a_list(reports):
    with pytest.raises(RobfcpError, match="pass a list"):
        robfcp.calibrate(reports)


def test_a_report_that_holds_itself_is_faulty():
    endless = {}
    endless["x"] = endless
    assert len(robfcp.calibrate([*REPORTS, endless]).faulty) == 1


DATA = Path(__file__).parents[1] / "data"
CALIBRATION = robfcp.calibrate(REPORTS, defence=robfcp.RobFCP(liars=1))
LIGHT = json.loads(CALIBRATION.to_json())["body"]
RECORD = json.loads(CALIBRATION.record.to_json())["body"]


def sealed(body, schema=1, kind="calibration"):
    """A file with a digest that fits, as anybody can write one."""
    text = json.dumps(body, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"kind":"{kind}","schema":{schema},"digest":"{digest}","body":{text}}}'


def altered(body, changes):
    """The body with some fields replaced; double underscores go into what they name."""
    body = json.loads(json.dumps(body))
    for path, value in changes.items():
        *outer, last = [int(part) if part.isdigit() else part for part in path.split("__")]
        inner = body
        for part in outer:
            inner = inner[part]
        inner[last] = value
    return body


STARTS, IDS = RECORD["federation"]["starts"], RECORD["federation"]["ids"]
N = len(RECORD["federation"]["bins"])


def changed(cases):
    """A parameter called `changes` with readable names."""
    words = [",".join(f"{k}={v}"[:60] for k, v in changes.items()) for changes in cases]
    return pytest.mark.parametrize("changes", cases, ids=words)


OF_LEVELS = [
    {"levels": []},
    {"levels": LIGHT["levels"] * 2},
    {"levels__0__coverage": "2"},
    {"levels__0__coverage": "x"},
    {"levels__0__coverage": "1/0"},
    {"levels__0__coverage": "1e-99999999"},
    {"levels__0__certificate__lower": -5},
    {"levels__0__certificate__upper": 50},
    {"levels__0__certificate__n_clients": 7},
    {"liars": -1},
    {"liars": 6},
    {"confidence": 5},
    {"checked__more": 1},
    {"summary__more": 1},
    {"levels__0__certificate__more": 1},
    {"levels__0__certificate__assumptions__0__more": 1},
    {"levels__0__curve__0__more": 1},
    {"score__more": 1},
]
OF_THRESHOLDS = [{"levels__0__threshold": 0.123456789}, {"levels__0__threshold": -5}]
OF_REPORTS = [
    {"flagged": {"nobody": ""}},
    {"flagged": dict.fromkeys(IDS, "")},
    {"oddness": [1.0]},
    {"promise": {"type": "pac", "liars": -5}},
    {"promise": {"type": "pac", "liars": 1, "tolerance": 2}},
    {"federation__more": 1},
    {"federation__checked__more": 1},
    {"federation__faulty": [{"client": "a", "field": "b", "reason": "c", "more": 1}]},
    {"federation__ids": []},
    {"federation__ids": IDS * 2},
    {"federation__ids": IDS[:1] * 6},
    {"federation__ids": ["a\nb", *IDS[1:]]},
    {"federation__missing": ["\x1b[2J"]},
    {"federation__starts": []},
    {"federation__starts": STARTS[::-1]},
    {"federation__starts": [*STARTS[:-1], 10**12]},
    {"federation__starts": [-1, *STARTS[1:]]},
    {"federation__starts": [0, 0, *STARTS[2:]]},
    {"federation__starts": [2**70] * 7},
    {"federation__starts": [0] * 300_000},
    {"federation__bins": [0] * N},
    {"federation__bins": [10**6] * N},
    {"federation__bins": [2**70] * N},
    {"federation__counts": []},
    {"federation__counts": [-1] * N},
    {"federation__counts": [0] * N},
    {"federation__counts": [2**62] * N},
    {"federation__counts": [2**70] * N},
    {"federation__privacy": [None] * 6},
    {"federation__privacy": [{"epsilon": 1.0}] * 6},
    {"federation__sizes": [1] * 6},
]


def test_files_with_a_fitting_digest_are_read():
    assert Calibration.from_json(sealed(LIGHT)) == CALIBRATION
    again = Record.from_json(sealed(RECORD, kind="record"), "x")
    assert again.flagged == CALIBRATION.record.flagged


@changed(OF_LEVELS)
def test_a_calibration_whose_parts_contradict_each_other_is_refused(changes):
    with pytest.raises(RobfcpError, match=r"^x\.json: .*; (calibrate again|pass a file)"):
        Calibration.from_json(sealed(altered(LIGHT, changes)), "x.json")


@changed(OF_REPORTS)
def test_evidence_whose_parts_contradict_each_other_is_refused(changes):
    with pytest.raises(RobfcpError, match=r"^x\.json: .*; (calibrate again|pass the file)"):
        Record.from_json(sealed(altered(RECORD, changes), kind="record"), "x.json")


@changed([*OF_THRESHOLDS, {"summary__n_trusted": 2}, {"summary__grid": "0"}])
def test_a_calibration_that_does_not_fit_its_evidence_says_so(changes, tmp_path):
    CALIBRATION.save(tmp_path / "c.json")
    (tmp_path / "c.json").write_text(sealed(altered(LIGHT, changes)))
    with pytest.raises(RobfcpError, match=r"record\.json: does not fit the calibration"):
        _ = Calibration.load(tmp_path / "c.json").trusted


WHOLE = msgspec.structs.asdict(Privacy(1.0))


def test_negative_counts_cannot_come_in_as_private_ones():
    body = json.loads(json.dumps(RECORD))
    for marks, problem in (
        ([], "a count is not positive"),
        ([None] * 6, "privacy is stated though no report is private"),
        ([{"epsilon": 1.0}], "not stated for every site"),
        ([None, *[{"epsilon": 1.0}] * 5], "a count is not positive"),
    ):
        body["federation"] |= {"counts": [-1] * N, "sizes": [30] * 6, "privacy": marks}
        with pytest.raises(RobfcpError, match=problem):
            Record.from_json(sealed(body, kind="record"), "x")
    message = json.loads(REPORTS[0].to_json())
    bins = [3, 4]
    for change in (
        {"counts": {"bins": bins, "counts": [31, -1]}},
        {"schema": 2},
        {"privacy": WHOLE | {"epsilon": 1e300}},
        {"privacy": WHOLE, "counts": {"bins": bins, "counts": [9999, 0]}},
        {"privacy": WHOLE | {"neighbours": "add-remove"}},
        *({"privacy": {k: v for k, v in WHOLE.items() if k != left}} for left in WHOLE),
        {"privacy": {"epsilon": 1.0}},
        {"privacy": WHOLE | {"scale": 0}},
        {"privacy": WHOLE | {"mechanism": "auto"}},
        {"privacy": WHOLE | {"scale": None}},
        {"privacy": WHOLE | {"scale": 1.9}},
    ):
        with pytest.raises(RobfcpError, match="site-0"):
            robfcp.Report.from_json(json.dumps(message | change))
    assert robfcp.Report.from_json(json.dumps(message | {"privacy": WHOLE})).privacy == Privacy(1.0)


RAGGED = [[0.5], [0.2, 0.3]]
PAIR = np.array([[0.5, 0.5]])


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("grid", lambda: Grid("ab")),
        ("grid", lambda: Grid([0, 1 + 1j])),
        ("grid", lambda: Grid([10**400, 10**401])),
        ("grid", lambda: Grid.open_ended(["a"])),
        ("grid", lambda: Grid.uniform(float("nan"))),
        ("grid", lambda: Grid.uniform(float("inf"))),
        ("grid", lambda: Grid.uniform(3, 0, 10**400)),
        ("grid", lambda: Grid.uniform(np.complex64(3))),
        ("scores", lambda: Grid.default().index(RAGGED)),
        ("scores", lambda: robfcp.Report.from_scores("a", RAGGED)),
        ("default", lambda: robfcp.Report.from_scores("a", [0.5], "default")),
        ("grid", lambda: robfcp.Report("a", [1], None)),
        ("score", lambda: robfcp.Report.from_scores("a", [0.5], score="lac")),
        ("score", lambda: robfcp.Report("a", [1], Grid.uniform(1), score=robfcp.LAC)),
        ("privacy", lambda: robfcp.Report("a", [1], Grid.uniform(1), privacy="x")),
        ("n_samples", lambda: robfcp.Report("a", [1], Grid.uniform(1), n_samples=1.0)),
        ("n_samples", lambda: robfcp.Report("a", [1], Grid.uniform(1), n_samples=True)),
        ("n_samples", lambda: robfcp.Report("a", [1], Grid.uniform(1), n_samples=np.ones(2))),
        ("probabilities", lambda: LAC.all_labels(RAGGED)),
        ("probabilities", lambda: LAC.all_labels([[1e308, 1e308]])),
        ("probabilities", lambda: CALIBRATION.predict_set(None)),
        ("labels", lambda: LAC(PAIR, [[0], [1, 2]])),
        ("rng", lambda: robfcp.APS().all_labels(PAIR, -1)),
        ("rng", lambda: robfcp.APS().all_labels(PAIR, "seed")),
        ("lac", lambda: CALIBRATION.predict_set(PAIR, score="lac")),
        ("use predict_set", lambda: CALIBRATION.predict_interval([1.0], score="x")),
        ("randomized", lambda: robfcp.APS("x")),
        ("penalty", lambda: robfcp.RAPS("a")),
        ("penalty", lambda: robfcp.RAPS(1e308)),
        ("k_reg", lambda: robfcp.RAPS(0.1, 1.5)),
        ("targets", lambda: robfcp.AbsoluteResidual()([1.0, 2.0], [1.0])),
        ("targets", lambda: robfcp.CQR()([[1.0, 2.0]], [1.0, 2.0])),
        ("targets", lambda: robfcp.CQR()([[1.0, 2.0]], ["a"])),
        ("predictions", lambda: robfcp.AbsoluteResidual()([1 + 1j], [1.0])),
    ],
)
def test_what_is_no_number_no_grid_and_no_score_is_refused_by_name(field, call):
    with pytest.raises(RobfcpError, match=field):
        call()


def test_names_and_numbers_of_other_libraries_reach_the_file():
    score = robfcp.RAPS(np.float32(0.5), np.int64(2), np.bool_(False))
    report = robfcp.Report(np.str_("site"), [1, 2], Grid.uniform(2), score, n_samples=np.int32(3))
    assert robfcp.Report.from_json(report.to_json()) == report


@pytest.mark.parametrize(
    "grid",
    [
        Grid([0, 0.5, 1], "default"),
        Grid([0, 0.3, 1], "uniform"),
        Grid([0, 0.3, 1], "uniform", {"bins": 2, "low": 0.0, "high": 1.0}),
        Grid(Grid.open_ended().edges, "mine"),
        Grid([-np.inf, np.inf]),
        Grid([5e-324, 1e-323]),
    ],
)
def test_a_report_can_be_read_whatever_its_grid_is_called(grid):
    report = robfcp.Report("a", np.ones(grid.n_bins, dtype=int), grid)
    assert robfcp.Report.from_json(report.to_json()) == report


def test_grids_that_bin_alike_are_equal():
    assert Grid([-0.0, 0.5, 1]) == Grid([0.0, 0.5, 1])


def test_residuals_beyond_the_largest_number_are_infinite_not_a_warning():
    assert robfcp.AbsoluteResidual()([1e308], [-1e308]) == [np.inf]
    assert robfcp.CQR()([[1e308, 1.1e308]], [-1e308]) == [np.inf]


SETS = np.array([[True, False, True], [False, False, False]])
HALVES = np.full((99, 2), 0.5)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("sets", lambda: robfcp.metrics.set_size([])),
        ("sets", lambda: robfcp.metrics.singleton_share(SETS[:0])),
        ("sets", lambda: robfcp.metrics.empty_share([[True], [True, False]])),
        ("sets", lambda: robfcp.metrics.set_size(SETS.astype(int))),
        ("level", lambda: robfcp.metrics.coverage_gap(SETS, [0, 1], "0.9")),
        ("level", lambda: robfcp.metrics.size_stratified_violation(SETS, [0, 1], np.nan)),
        ("ends", lambda: robfcp.metrics.size_stratified_coverage(SETS, [0, 1], (5, 1))),
        ("targets", lambda: robfcp.metrics.interval_coverage([[1, 2], [1, 2]], [1.0])),
        ("targets", lambda: robfcp.metrics.interval_coverage([[1, 2]], [np.nan])),
        ("intervals", lambda: robfcp.metrics.interval_coverage([], [])),
        ("intervals", lambda: robfcp.metrics.interval_width([1, 2])),
        ("n_clients", lambda: partitions.iid(10, 1.5)),
        ("n_samples", lambda: partitions.iid("a", 1)),
        ("rng", lambda: partitions.iid(10, 2, -1)),
        ("labels", lambda: partitions.dirichlet([["a"]] * 30, 2, 0.5)),
        ("labels", lambda: partitions.dirichlet([1, "a", None] * 30, 2, 0.5)),
        ("beta", lambda: partitions.dirichlet([0] * 30, 2, "a")),
        ("minimum", lambda: partitions.dirichlet([0] * 30, 2, 0.5, minimum=None)),
        ("attempts", lambda: partitions.dirichlet([0] * 30, 2, 0.5, attempts=0)),
        ("seeds", lambda: simulate(HALVES, [0] * 99, seeds=0)),
        ("rng", lambda: simulate(HALVES, [0] * 99, rng=-1)),
        ("share", lambda: simulate(HALVES, [0] * 99, share="a")),
        ("test on", lambda: simulate(HALVES, [0] * 99, n_clients=99)),
    ],
)
def test_metrics_and_the_test_range_refuse_by_name(field, call):
    with pytest.raises(RobfcpError, match=field):
        call()


def test_client_names_of_mixed_kinds_are_told_apart():
    assert robfcp.metrics.group_coverage(SETS, [0, 1], [1, None]) == {
        "1": (1, 1.0),
        "None": (1, 0.0),
    }


ROWS = "p0,p1,p2,label\n0.2,0.3,0.5,0\n0.1,0.8,0.1,2\n0.6,0.2,0.2,1\n"


@pytest.mark.parametrize(
    "text",
    [
        ROWS,
        "\ufeff" + ROWS,
        ROWS.replace("\n", "\r\n"),
        ROWS.replace(",", ", "),
        "\n".join(",".join(f'"{cell}"' for cell in row.split(",")) for row in ROWS.split()),
    ],
    ids=["plain", "byte order mark", "CRLF", "blanks", "quotes"],
)
def test_tables_of_every_spreadsheet_are_read_alike(text, tmp_path):
    (tmp_path / "t.csv").write_bytes(text.encode())
    outputs = read_outputs(tmp_path / "t.csv", needs_targets=True)
    assert outputs.targets.tolist() == [0, 2, 1]
    assert outputs.predictions[1].tolist() == [0.1, 0.8, 0.1]


@pytest.mark.parametrize(
    "text",
    [
        ROWS + "0.2,0.3,0.5,inf\n",
        ROWS + "0.2,0.3,0.5,1e300\n",
        ROWS + "0.2,0.3,0.5,nan\n",
        ROWS + "0.2,0.3,0.5,0 # sure?\n",
        ROWS + "0.2,0.3\n",
        ROWS.replace("p2", "label"),
        "x" * 200_000 + ",label\n1,0\n",
        "\0",
    ],
    ids=["inf", "huge", "nan", "comment", "short", "two labels", "long", "nul"],
)
def test_broken_tables_are_refused(text, tmp_path):
    (tmp_path / "t.csv").write_bytes(text.encode())
    with pytest.raises(RobfcpError):
        scored(read_outputs(tmp_path / "t.csv", needs_targets=True))


def scored(outputs):
    return LAC(outputs.predictions, outputs.targets)


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
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000, 1000), }"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n")
    for name in ("no.npz", "no.npy"):  # either is told by what it holds
        assert read_outputs(tmp_path / name, needs_targets=False).predictions.shape == (2, 2)
    for name in ("evil.npz", "evil.npy", "cut.npz", "huge.npy"):
        with pytest.raises(RobfcpError, match=name):
            read_outputs(tmp_path / name, needs_targets=False)
    assert not (tmp_path / "owned").exists()


def test_registries_that_name_somebody_twice_or_nest_without_end_are_refused(tmp_path):
    for text in ('{"a": 5, "a": 6}', "[" * 10**5):
        (tmp_path / "sizes.json").write_text(text)
        with pytest.raises(RobfcpError, match=r"sizes\.json: not JSON"):
            read_sizes(tmp_path / "sizes.json")


@pytest.mark.parametrize("text", ["²", "٣", "9" * 5000, "-1", "1.5", ""])
def test_numbers_on_the_command_line_are_plain_digits(text):
    assert natural(text) is None
    with pytest.raises(RobfcpError, match="grid"):
        grid_from_text(f"uniform:{text}")


@pytest.mark.parametrize("characterisation", ["gaussian", "k-means", "kernel", "quantiles"])
def test_a_bin_without_finite_ends_has_a_finite_middle(characterisation):
    grid = Grid([-np.inf, np.inf])
    reports = [robfcp.Report(f"c{k}", [9], grid) for k in range(5)]
    rule = robfcp.RobFCP(1, characterisation=characterisation)
    assert robfcp.calibrate(reports, defence=rule).oddness.tolist() == [0.0] * 5


def test_identical_giants_cost_the_server_nothing():
    """Two copies that claim a thousand million samples each beside honest clients."""
    rng = np.random.default_rng(0)
    honest = [robfcp.Report.from_scores(f"s{k}", rng.beta(0.5, 2, 50)) for k in range(30)]
    counts = np.zeros(robfcp.Grid.default().n_bins, dtype=np.int64)
    counts[[3, 5]] = 10**9 - 1, 1
    giants = [
        robfcp.Report(client=name, counts=counts, grid=robfcp.Grid.default()) for name in "ab"
    ]
    assert set(robfcp.calibrate([*honest, *giants]).flagged) == {"a", "b"}


def test_clients_without_any_difference_are_all_trusted():
    score = robfcp.LAC()
    reports = [robfcp.Report.from_scores(f"s{k}", np.zeros(30), score=score) for k in range(3)]
    assert robfcp.calibrate(reports, defence=robfcp.Consensus(at_most=0)).flagged == ()


def test_extreme_privacy_is_refused_or_works():
    scores = np.random.default_rng(0).random(50)
    private = robfcp.Report.from_scores(
        "a", scores, robfcp.Grid.uniform(1000), privacy=Privacy(1.0)
    )
    assert private.n_samples == 50
    for epsilon in (1e-300, 1e-9, 1e300, 0.0, -1.0, np.nan):
        with pytest.raises(robfcp.RobfcpError, match="epsilon"):
            Privacy(epsilon)
