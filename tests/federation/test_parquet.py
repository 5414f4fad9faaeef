"""Reports in tables: the same results and messages wherever the counts are stored."""

import json
import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from makers import LAC
from test_intake import message_of

import robfcp
from robfcp import Binning, Consensus, Federation, Report
from robfcp.errors import RobfcpError
from robfcp.federation import SparseTable
from robfcp.fleet import _parquet
from robfcp.privacy import Privacy

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
SETTINGS = (
    "robfcp.fleet._parquet.MAX_VALUES_IN_MEMORY",
    "robfcp.fleet._parquet.ROWS",
    "robfcp.federation._federation.BLOCK_ENTRIES",
)
LOCATIONS = {
    "memory": (2**28, 2**13, 2**22),
    "parts": (2**28, 2**13, 50),
    "one block": (0, 2**13, 2**22),
    "many blocks": (0, 4, 2**22),
}
REPORT_KINDS = ["plain", "class", "groups", "mixed", "private", "loss"]


def use_location(monkeypatch, location):
    for name, value in zip(SETTINGS, LOCATIONS[location], strict=True):
        monkeypatch.setattr(name, value)


def report(k, kind, rng):
    name, n = f"s{(k * 7919) % 1000:03d}", int(rng.integers(20, 40))
    scores = rng.beta(1, 3, n) if k % 9 else rng.random(n) / 20
    if kind == "loss":
        losses = np.sort(rng.random((n, 3)), axis=1)[:, ::-1]
        return Report.from_losses(name, losses, [0.1, 0.5, 0.9], risk="fnr")
    more = {
        "labels": rng.integers(0, 3, n),
        "classes": ["a", "b", "c"] if k % 5 else ["c", "b", "a"],
    }
    if kind == "groups":
        more = {"groups": rng.choice(["x", "y", f"z{k % 2}"], n)}
    if kind in ("plain", "private") or (kind == "mixed" and k % 3 == 0):
        more = {"privacy": Privacy(9.0)} if kind == "private" and k % 3 else {}
    if kind == "mixed" and k % 2:
        more["all_label_scores"] = rng.random((n, 3))
    return Report.from_scores(name, scores, Binning.uniform(40), score=LAC, round="r", **more)


def shards(folder, reports, n_tables=2):
    """A folder of nested tables, and the last of the reports as JSON, in no order."""
    *first_reports, last = reports
    table = folder / "round.parquet"
    (table / "day=1").mkdir(parents=True)
    for k in range(n_tables):
        Federation.from_reports(first_reports[k::n_tables]).save(
            table / "day=1" / f"part-{k}.parquet"
        )
    last.save(folder / "last.json")
    return [table, folder / "last.json"]


@pytest.mark.parametrize("n_samples", [85, 86, 255, 256, 21_846, 65_535])
def test_clients_of_any_size_can_be_calibrated_from_stored_counts(n_samples, tmp_path, monkeypatch):
    """Three times a size of 86 to 255 is beyond one byte, of 21,846 to 65,535 beyond two bytes."""
    rng = np.random.default_rng(0)
    binning = Binning.uniform(20)
    reports = []
    for k in range(12):
        scores = rng.beta(2, 4, n_samples) * (0.2 if k < 3 else 1)
        reports.append(Report.from_scores(f"s{k:02d}", scores, binning, score=LAC))
    in_memory = robfcp.calibrate(reports)
    Federation.from_reports(reports).save(tmp_path / "round.parquet")
    use_location(monkeypatch, "one block")
    stored = Federation.from_files(tmp_path / "round.parquet")
    assert stored.is_out_of_core
    assert stored.sample_sizes.dtype == np.int64
    calibration = robfcp.calibrate(stored)
    assert calibration.threshold == in_memory.threshold
    assert calibration.flagged_clients == in_memory.flagged_clients


@pytest.mark.parametrize("kind", REPORT_KINDS)
def test_a_calibration_is_the_same_to_the_byte_wherever_its_counts_are(kind, tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    reports = [report(k, kind, rng) for k in range(40 if kind == "plain" else 20)]
    all_options = {"risk_level": 0.3} if kind == "loss" else {}
    variants = [{"defense": Consensus(random_state=5)}]
    variants += [{"guarantee": robfcp.PACGuarantee(max_malicious=2, heterogeneity=0.1)}] * (
        kind != "plain"
    )
    variants += [{"by": "group" if kind == "groups" else "class"}] * (kind in ("groups", "mixed"))
    variants += [
        {"by": {"a": "u", "b": "v", "c": "u"}},
        {"guarantee": robfcp.LabelShiftGuarantee(max_malicious=1)},
    ] * (kind == "class")
    all_options = [{"defense": "none", **all_options, **options} for options in variants]
    in_memory = Federation.from_reports(reports)
    in_memory = replace(in_memory, table=SparseTable.from_dense(in_memory.counts))
    expected = [robfcp.calibrate(in_memory, **options) for options in all_options]
    files = shards(tmp_path, reports)
    for location in LOCATIONS:
        use_location(monkeypatch, location)
        federation = Federation.from_files(files)
        assert list(federation.clients) == list(in_memory.clients)
        assert federation.is_out_of_core == (LOCATIONS[location][0] == 0)
        if location == "parts":
            assert len(list(federation.iter_blocks())) > 1 or kind == "loss"
        assert list(federation) == list(in_memory)
        row_indices = np.array([0, 3, 7])
        assert list(federation.select_rows(row_indices)) == list(in_memory.select_rows(row_indices))
        is_complete = location in ("parts", "many blocks")  # the others are these two, and simpler
        for calibration, options in list(zip(expected, all_options, strict=True))[
            : None if is_complete else 1
        ]:
            assert robfcp.calibrate(federation, **options).to_json() == calibration.to_json()


SHARED = {
    name: value
    for name, value in message_of(0).items()
    if name in ("schema", "binning", "score", "round")
}
SHARED = {"kind": "report", **SHARED}
BY_CLASS = {**SHARED, "strata": {"by": "class", "names": ["cat", "dog", "eel"]}}
ROWS = [("n_samples", value) for value in (-1, 0, 29, 31, 2**40 + 1, None)]
ROWS += [("client", value) for value in ("", " a", "report #3", "\u202eabc", "x" * 201, None)]
ROWS += [(name, ("first", v)) for name in ("bins", "counts") for v in (-1, 10**6, 2**40 + 1, None)]
ROWS += [(name, ("pop",)) for name in ("bins", "counts", "classes")]
ROWS += [("classes", ("first", -1)), ("classes", ("first", 3)), ("bins", ("first", 10**5))]
ROWS += [("privacy", text) for text in ("{}", "null", 'null,"client":"b"', "[" * 9**5)]
ROWS += [("min_cell_count", value) for value in (0, -1, 3, 10**9, None)]
ROWS += [("class_totals", value) for value in ([30], [10, 10, 10], [], None)]
ROWS += [
    ("counts", ("long", 1)),
    ("bins", None),
    ("all_label_bins", [0]),
    ("all_label_counts", [-3]),
]


ROW_FIELDS = {"client": "client", "n_samples": "n_samples", "min_cell_count": "min_cell_count"}


def row_of(message):
    counts, split = message.get("counts"), message.get("strata")
    row = {name: message[key] for name, key in ROW_FIELDS.items()}
    if split is None:
        return row | {"bins": list(counts["bins"]), "counts": list(counts["counts"])}
    classes, bins = np.divmod(np.cumsum(split["cell_steps"]), Binning.default().n_bins)
    return row | {"classes": classes.tolist(), "bins": bins.tolist(), "counts": split["counts"]}


def write(path, rows, shared=SHARED, columns=None):
    replacements = {pa.int32(): pa.int64(), pa.string(): pa.large_string()}
    schema = columns or pa.schema(
        [
            (
                f.name,
                pa.large_list(pa.int64())
                if pa.types.is_list(f.type)
                else replacements.get(f.type, f.type),
            )
            for f in _parquet.schema()
        ]
    )
    metadata = {
        _parquet.SHARED: shared if isinstance(shared, bytes) else json.dumps(shared).encode()
    }
    pq.write_table(
        pa.Table.from_pylist(rows, schema.with_metadata(metadata)), path, compression="zstd"
    )
    return path


@cache
def without(kind):
    """The other reports of the round."""
    return list(Federation.from_reports([json.dumps(message_of(k, kind)) for k in (0, 1, 3, 4)]))


def rejection_of(row):
    """Client and reason of the rejection of a row's report, among others."""
    message = {**message_of(2)} | {key: row[name] for name, key in ROW_FIELDS.items()}
    message |= {"counts": {name: row[name] or [] for name in ("bins", "counts")}}
    message = {name: value for name, value in message.items() if value is not None}
    (rejected,) = Federation.from_reports(
        map(json.dumps, [*map(message_of, (0, 1, 3, 4)), message])
    ).rejected_reports
    return rejected.client, rejected.reason


@pytest.mark.parametrize(("field", "value"), ROWS)
@pytest.mark.parametrize("kind", ["plain", "class"])
def test_one_wrong_row_costs_itself_alone_in_the_words_of_a_report(
    field, value, kind, tmp_path, monkeypatch
):
    rows = [row_of(message_of(k, kind)) for k in range(5)]
    if not isinstance(value, tuple):
        rows[2][field] = value
    elif value[0] == "first":
        rows[2][field] = [value[1], *rows[2].get(field, [0])[1:]]
    else:
        rows[2][field] = [*rows[2].get(field, [0])[1:], *value[1:] * 2**17]
    file = write(tmp_path / "r.parquet", rows, BY_CLASS if kind == "class" else SHARED)
    for location in ("memory", "many blocks"):
        use_location(monkeypatch, location)
        federation = Federation.from_files(file)
        harmless = ("privacy", "null"), ("classes", None), ("class_totals", None)
        if (field, value) in harmless:
            assert federation.n_clients == 5
            continue
        assert list(federation) == without(kind)
        (rejected,) = federation.rejected_reports
        assert rejected.reason.isprintable()
        if kind == "plain" and field in ("client", "n_samples", "min_cell_count", "bins", "counts"):
            client, reason = rejection_of(rows[2])
            source = client.replace("report #5", f"{file} row 3")
            assert (rejected.client, rejected.reason) == (
                source[:200],
                reason.replace(client, source),
            )
        assert rejected.client in rejected.reason


def broken(kind, path):
    """A file that is no table of reports, in one of the ways there are."""
    content = write(path, [row_of(message_of(9))]).read_bytes()
    columns = _parquet.schema().set(1, pa.field("n_samples", pa.string()))
    rows, split = [row_of(message_of(9))], {"by": "class", "names": ["a"] * 2}
    writers = {
        "cut": lambda: path.write_bytes(content[: len(content) // 2]),
        "altered": lambda: path.write_bytes(content[:4] + bytes(99) + content[103:]),
        "empty": lambda: path.write_bytes(b""),
        "JSON": lambda: path.write_text(json.dumps(message_of(9))),
        "text": lambda: write(path, [{**rows[0], "n_samples": "30"}], columns=columns),
        "column": lambda: pq.write_table(
            pa.table({"client": ["a"], "n_samples": [1], "min_cell_count": [1]}), path
        ),
        "alone": lambda: write(path, rows, b""),
        "binning": lambda: write(path, rows, {**SHARED, "binning": {"name": "x"}}),
        "more": lambda: write(path, rows, {**SHARED, "privacy": {}}),
        "names": lambda: write(path, rows, {**SHARED, "strata": split}),
        "classes": lambda: write(path, rows, {**SHARED, "strata": {"by": "class", "names": 10**6}}),
        "bomb": lambda: write(path, [{**rows[0], "bins": [0] * 2**21}]),
        "link": lambda: (path.unlink(), path.symlink_to(path.parent / "nowhere")),
        "text bomb": lambda: write(path, [{**rows[0], "privacy": "x" * 2**24}]),
        "name bomb": lambda: write(path, [{**rows[0], "client": "x" * 2000}] * 999),
        "wrong rows": lambda: write(path, [{"client": None}] * 5000),
        "link out": lambda: path.symlink_to(path.rename(path.parents[1] / "elsewhere.parquet")),
        "pipe": lambda: (path.unlink(), os.mkfifo(path)),
    }
    writers[kind]()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        *((kind, "is cut or no Parquet file; copy it again") for kind in ("cut", "empty", "JSON")),
        ("altered", "cut or no Parquet"),
        ("text", "holds string in 'n_samples' where int64 should be; write it with robfcp collect"),
        ("column", "has no column 'bins'; write it with robfcp collect"),
        ("alone", "its metadata do not say what its rows share"),
        ("binning", "'digest' at binning is missing"),
        ("more", "privacy leaves out"),
        ("names", "a name comes twice"),
        ("classes", "1000000 of them; give 1 to 20000"),
        *((kind, "which no reports do") for kind in ("bomb", "text bomb")),
        ("name bomb", "holds names beyond all reason"),
        ("wrong rows", "most of its rows are no reports"),
        ("link", "no such file; check the path"),
        ("link out", "is a link out of its folder; name or copy the file itself"),
        ("pipe", "no such file; check the path"),
    ],
)
def test_a_file_that_is_no_table_is_one_line_and_the_others_count(
    kind, message, tmp_path, monkeypatch
):
    write(tmp_path / "a.parquet", [row_of(message_of(k)) for k in range(3)])
    (tmp_path / "z.parquet").symlink_to(tmp_path / "a.parquet")  # the same reports are one
    broken(kind, tmp_path / "b.parquet")
    for location in LOCATIONS:
        use_location(monkeypatch, location)
        allocated_before = pa.total_allocated_bytes()
        federation = Federation.from_files(sorted(tmp_path.glob("*.parquet")))
        assert federation.n_samples == 90
        (rejected,) = federation.rejected_reports
        assert message in rejected.reason
        assert rejected.reason.isprintable()
        assert pa.total_allocated_bytes() - allocated_before < 2**20


def test_a_repeated_name_is_one_client_or_none_in_one_table_or_several(tmp_path, monkeypatch):
    rows = [row_of(message_of(k)) for k in range(4)]
    other_row = {**row_of(message_of(7)), "client": "s01"}
    write(tmp_path / "a.parquet", [*rows, rows[0], other_row])
    write(
        tmp_path / "b.parquet",
        [rows[2], row_of(message_of(5)), {**row_of(message_of(8)), "client": "s03"}],
    )
    for location in LOCATIONS:
        use_location(monkeypatch, location)
        files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
        federation = Federation.from_files(files)
        assert list(federation.clients) == ["s00", "s02", "s05"]
        assert [rejected.client for rejected in federation.rejected_reports] == ["s01", "s03"]
        assert "sent 2 different reports for this round" in federation.rejected_reports[0].reason
        federation = Federation.from_files(files, expected_clients=["s05", "s09"])
        assert federation.missing_clients == ("s09",)


def test_a_table_in_a_folder_of_reports_is_not_read_unless_it_is_named(tmp_path):
    client_report = Report.from_scores("s99", np.linspace(0, 1, 30), score=LAC)
    client_report.save(tmp_path / "s99.json")
    for name in ("top.parquet", "below/day.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Federation.from_reports([replace_client(client_report, name[:3])]).save(tmp_path / name)

    inbox = Federation.from_files(tmp_path)
    assert list(inbox.clients) == ["s99"]
    assert [rejected.reason.split(": ")[1] for rejected in inbox.rejected_reports] == [
        "is a table in a folder of reports; name it if it is the server's own"
    ] * 2

    with_table = Federation.from_files([tmp_path, tmp_path / "top.parquet"])
    assert list(with_table.clients) == ["s99", "top"]


def replace_client(report, client):
    """The same report of another client."""
    return Report.from_json(report.to_json().replace(b'"s99"', f'"{client}"'.encode()))


def test_a_folder_that_changes_while_it_is_read_is_noticed(tmp_path, monkeypatch):
    tmp_path = tmp_path / "round.parquet"
    tmp_path.mkdir()
    use_location(monkeypatch, "many blocks")
    for name in "abc":
        write(
            tmp_path / f"{name}.parquet", [row_of(message_of(ord(name) + 9 * k)) for k in range(9)]
        )
    iter_chunks = _parquet.ParquetTable.iter_chunks

    def read(file, binning):
        for chunk_index, chunk in enumerate(iter_chunks(file, binning)):
            if (file.path.stem, chunk_index) == ("a", 1):
                (tmp_path / "b.parquet").unlink()
                write(tmp_path / "a.parquet", [row_of(message_of(1))])
            yield chunk

    monkeypatch.setattr(_parquet.ParquetTable, "iter_chunks", read)
    federation = Federation.from_files(tmp_path)
    assert federation.n_clients == 9
    assert [rejected.reason.split(": ")[1] for rejected in federation.rejected_reports] == [
        "changed while it was read; start again",
        "no such file; check the path",
    ]


def test_a_table_that_changes_between_two_passes_is_refused(tmp_path, monkeypatch):
    rows = [row_of(message_of(k)) for k in range(9)]
    use_location(monkeypatch, "many blocks")
    federation = Federation.from_files(write(tmp_path / "a.parquet", rows))
    assert federation.pooled_counts().sum() == 270
    write(tmp_path / "a.parquet", rows[:8])
    with pytest.raises(RobfcpError, match="changed while it was read; start again"):
        federation.cumulative_count(0)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(RobfcpError, match="no such file"):
        robfcp.calibrate(federation)


def test_verdicts_are_a_table_of_all_clients(tmp_path):
    rng = np.random.default_rng(0)
    reports = [Report.from_scores(f"s{k:02d}", rng.random(99) * (k > 3)) for k in range(20)]
    calibration = robfcp.calibrate(
        Federation.from_reports([*reports, "{}"], expected_clients=["t"])
    )
    _parquet.write_verdict_table(
        calibration.federation, calibration.benign_mask, calibration.reasons, tmp_path / "v"
    )
    rows = pq.read_table(tmp_path / "v").to_pylist()
    statuses = {client: verdict.status for client, verdict in calibration.verdicts.items()}
    assert {row["client"]: row["verdict"] for row in rows} == statuses
    reasons = {row["client"]: row["reason"] for row in rows if row["verdict"] == "flagged"}
    assert reasons == dict(calibration.reasons)
    assert len(reasons) == 4


def test_the_table_can_be_read_without_this_package(tmp_path):
    polars = pytest.importorskip("polars")
    Federation.from_reports([json.dumps(message_of(k, "class")) for k in range(3)]).save(
        tmp_path / "r.parquet"
    )
    frame = polars.read_parquet(tmp_path / "r.parquet")
    assert frame["n_samples"].sum() == frame["counts"].explode().sum() == 90
    assert frame.columns == _parquet.schema().names
