"""Many reports in one file: the same federation as from the reports, and nothing is believed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from effort import thorough
from test_reception import KINDS, lies_about, seen, site, taken

import robfcp
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, columns
from robfcp.federation import _column_file as container
from robfcp.federation import intake as reception
from robfcp.grid import Grid
from robfcp.report import generate_key, load_key, sign

HERE = Path(__file__).parent


def packed(items, path, shards=1, **options):
    """The items in files, opened again."""
    ends = [len(items) * k // shards for k in range(shards + 1)]
    found = []
    for k in range(shards):
        own = f"{path}-{k}.columns"
        robfcp.pack_reports(items[ends[k] : ends[k + 1]], own, **options)
        found.append(robfcp.open_columns(own))
    return found


def messy(seed, number=60):
    """A round of all kinds, with lies, repeats, conflicts and rubbish among them."""
    rng = np.random.default_rng(seed)
    kinds = [["plain"], ["class", "other order"], ["both", "sizes"], KINDS][seed % 4]
    items = [json.dumps(site(k, rng.choice(kinds))) for k in range(number)]
    lies = [lie for kind in kinds for lie in lies_about(site(70, kind))]
    chosen = rng.choice(len(lies), 15)
    items += [json.dumps({**lies[c], "client": f"x{k % 9}"}) for k, c in enumerate(chosen)]
    items += ["{broken", b"\xff", "{}", items[0], items[7], json.dumps(site(3, n=20))]
    return [items[k] for k in rng.permutation(len(items))]


@pytest.mark.parametrize("seed", thorough(range(8), *range(4)))
@pytest.mark.parametrize("shards", [1, 3])
def test_packed_reports_make_the_same_federation_faults_included(seed, shards, tmp_path):
    items = messy(seed)
    for options in ({}, {"round": "r"}, {"sizes": {f"s{k:02d}": 30 for k in range(50)}}):
        assert taken(packed(items, tmp_path / "r", shards), **options) == taken(items, **options)


@pytest.mark.parametrize("seed", range(4))
def test_with_a_stated_grid_too(seed, tmp_path):
    items, grid = messy(seed), Grid.default()
    assert taken(packed(items, tmp_path / "r", 2, grid=grid), grid=grid) == taken(items, grid=grid)


def test_files_and_reports_can_be_mixed_and_blocks_have_any_size(tmp_path, monkeypatch):
    items = messy(0)
    expected = taken(items)
    first, second = packed(items, tmp_path / "r", 2)
    half = len(items) // 2
    assert taken([first, *items[half:]]) == expected
    assert taken([*items[:half], second]) == expected
    for rows in (1, 7):
        monkeypatch.setattr(columns, "_ROWS", rows)
        assert taken([first, second]) == expected


def test_a_calibration_from_shards_is_the_same_to_the_byte(tmp_path):
    rng = np.random.default_rng(0)
    paths = []
    for k in range(40):
        scores = np.zeros(50) if k < 8 else rng.beta(0.5, 2, 50)
        labels = rng.integers(0, 3, 50)
        report = robfcp.Report.from_scores(
            f"s{k:02d}", scores, score=robfcp.LAC(), labels=labels, classes=["a", "b", "c"]
        )
        paths.append(tmp_path / f"{k:02d}.json")
        report.save(paths[-1])
    (tmp_path / "broken.json").write_text("{")
    shutil.copy(paths[3], tmp_path / "again.json")  # a repeat, in another shard
    robfcp.Report.from_scores("s09", rng.random(20), score=robfcp.LAC()).save(
        tmp_path / "other.json"
    )
    paths += [
        tmp_path / name for name in ("broken.json", "again.json", "other.json", "nobody.json")
    ]
    shards = robfcp.pack_files(paths, tmp_path / "round.columns", processes=2)
    assert [path.name for path in shards] == ["round-1.columns", "round-2.columns"]
    (whole,) = robfcp.pack_files(paths, tmp_path / "round.columns")
    files = []
    for k, sources in enumerate((paths, shards, [whole])):
        federation = robfcp.read_federation(sources)
        calibration = robfcp.calibrate(federation, malicious=8, by="class")
        calibration.save(tmp_path / f"c{k}.json")
        written = [tmp_path / f"c{k}.json", tmp_path / f"c{k}.evidence.json"]
        files.append([path.read_bytes() for path in written])
    assert len(federation.faulty) == 3
    assert federation.n_clients == 39
    assert files[0] == files[1] == files[2]


def test_private_and_hidden_sizes_survive(tmp_path):
    reports = [
        robfcp.Report.from_scores(
            f"s{k}",
            np.random.default_rng(k).random(200),
            Grid.uniform(8),
            privacy=robfcp.Privacy(1.0, neighbours=["substitution", "add-remove"][k % 2]),
        )
        for k in range(10)
    ]
    sizes = {report.client: 200 for report in reports}
    assert taken(packed(reports, tmp_path / "r"), sizes=sizes) == taken(reports, sizes=sizes)


def test_a_usual_file_is_checked_without_reading_single_reports(tmp_path, monkeypatch):
    items = [json.dumps(site(k, kind)) for k, kind in enumerate(KINDS[:1] * 5)]
    (found,) = packed(items, tmp_path / "r")
    monkeypatch.setattr(reception.Reception, "_quick", lambda *_: pytest.fail("was read"))
    assert Federation.from_reports([found]).n_clients == 5


WRONG = {
    "negative": ("count_values", lambda v: np.append(v[:-1].astype(np.int8), np.int8(-1))),
    "huge": ("count_values", lambda v: np.append(v[:-1].astype(np.uint64), np.uint64(2**64 - 1))),
    "large": ("count_values", lambda v: np.append(v[:-1].astype(np.int64), 2**41)),
    "sum": ("count_values", lambda v: np.append(v[:-1], v[-1:] + 1)),
    "bins fall": ("count_bins", lambda v: np.append(v[:-2], v[:-3:-1])),
    "bin beyond": ("count_bins", lambda v: np.append(v[:-1], v.dtype.type(1000))),
    "bin negative": ("count_bins", lambda v: np.append(v[:-1].astype(np.int16), np.int16(-1))),
    "size": ("sizes", lambda v: np.append(v[:-1], v[-1:] + 1)),
    "no size": ("sizes", lambda v: np.append(v[:-1], v[-1:] * 0)),
    "name": ("names", lambda v: np.append(v[:-1], np.uint8(10))),
    "blank": ("names", lambda v: np.append(v[:-1], np.uint8(32))),
    "no text": ("names", lambda v: np.append(v[:-1], np.uint8(255))),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_refused_in_the_words_for_a_report_and_costs_nobody_else(case, tmp_path):
    items = [json.dumps(site(k)) for k in range(9)]
    (found,) = packed(items, tmp_path / "r")
    column, change = WRONG[case]
    found.arrays[column] = change(found.arrays[column])
    federation = Federation.from_reports([found])
    assert federation.ids == tuple(f"s{k:02d}" for k in range(8))
    (fault,) = federation.faulty
    assert fault == Federation.from_reports([*items[:8], found.json(8)]).faulty[0]
    assert fault.field in ("counts", "n_samples", "client", "report")


def test_a_hostile_context_refuses_its_rows_alone(tmp_path):
    items = [json.dumps(site(k)) for k in range(6)] + [json.dumps(site(7) | {"model": "m"})]
    (found,) = packed(items, tmp_path / "r")
    found.contexts[1].grid.digest = "0" * 64
    federation = Federation.from_reports([found])
    assert federation.n_clients == 6
    assert "the digest does not fit the edges" in federation.faulty[0].reason


COLUMNS_OF_NUMBERS = [
    name for name in columns.COLUMNS if name.endswith(("values", "bins", "cells"))
]


def spoilt(found, rng):
    """The opened file with some numbers, names and contexts changed at random."""
    for name in ("sizes", "names", *COLUMNS_OF_NUMBERS):
        column = found.arrays[name].astype(np.uint8 if name == "names" else np.int64)
        for place in rng.choice(len(column), min(len(column), rng.integers(3)), replace=False):
            column[place] = rng.choice([0, 1, 7, 10, 255, *([-1, 2**62] * (name != "names"))])
        found.arrays[name] = column
    context = found.contexts[rng.integers(len(found.contexts))]
    change = rng.integers(6)
    if change == 0:
        context.grid.digest = "0" * 64
    elif change == 1:
        context.names = ["twice", "twice"]
    elif change == 2:
        context.score.name = "nobody's"
    elif change == 3:
        context.round = "\n"
    return found


@pytest.mark.parametrize("seed", thorough(range(40), *range(6)))
@pytest.mark.parametrize("options", [{}, {"grid": Grid.default()}])
def test_wrong_rows_among_right_ones_are_refused_as_single_reports(
    seed, options, tmp_path, monkeypatch
):
    rng = np.random.default_rng(seed)
    kinds = [["plain"], ["class", "other order"], KINDS][seed % 3]
    items = [json.dumps(site(k, rng.choice([*kinds, "plain"]))) for k in range(40)]
    (found,) = packed(items, tmp_path / "r")
    spoilt(found, rng)
    monkeypatch.setattr(columns, "_ROWS", int(rng.choice([3, 4096])))
    assert taken([found], **options) == taken(map(found.json, range(40)), **options)


@pytest.mark.parametrize("by", ["class", "group"])
def test_a_wrong_row_costs_nothing_of_what_all_rows_share(by, tmp_path, monkeypatch):
    names = [f"{k:0100d}" for k in range(500)]
    how = {"classes": names, "labels": [3, 4]} if by == "class" else {"groups": ["a", "b"]}
    edges = np.sort(np.random.default_rng(0).random(3000))
    reports = [
        robfcp.Report.from_scores(f"s{k}", [0.1, 0.4], Grid(edges, "own"), **how) for k in range(9)
    ]
    (found,) = packed(reports, tmp_path / "r")
    found.arrays["sizes"] = np.array([3, 2, 3, 3, 2, 2, 2, 3, 2])
    expected = taken(map(found.json, range(9)))
    read = []
    real = robfcp.Report.from_json
    monkeypatch.setattr(
        robfcp.Report, "from_json", lambda data, *more: (read.append(len(data)), real(data, *more))
    )
    assert taken([found]) == expected
    assert len(read) == 4
    assert max(read) < 400


def test_contexts_that_no_row_has_are_not_built(tmp_path, monkeypatch):
    (found,) = packed([json.dumps(site(k)) for k in range(5)], tmp_path / "r")
    found.contexts.extend(found.contexts * 50)
    built = []
    real = reception.read_context
    monkeypatch.setattr(reception, "read_context", lambda *one: (built.append(1), real(*one))[1])
    assert Federation.from_reports([found]).n_clients == 5
    assert len(built) == 1


def rewritten(path, **changes):
    """The file with another header, digest kept right unless it is changed itself."""
    data = path.read_bytes()
    start = len(container.MAGIC) + 8
    length = int.from_bytes(data[start - 8 : start], "little")
    header = json.loads(data[start : start + length]) | changes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(start + len(text)) % 64)
    path.write_bytes(
        container.MAGIC + len(text).to_bytes(8, "little") + text + data[start + length :]
    )


def cut(path):
    path.write_bytes(path.read_bytes()[:-70])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def header_beyond(path):
    data = path.read_bytes()
    place = len(container.MAGIC)
    path.write_bytes(data[:place] + (2**63).to_bytes(8, "little") + data[place + 8 :])


def spec(path):
    data = path.read_bytes()
    start = len(container.MAGIC) + 8
    length = int.from_bytes(data[start - 8 : start], "little")
    return json.loads(data[start : start + length])["columns"]


def changed_column(**change):
    def damage(path):
        own = spec(path)
        own[3] |= change
        rewritten(path, columns=own)

    return damage


BROKEN = {
    "no such file": (lambda path: path.unlink(), "no such file"),
    "empty": (lambda path: path.write_bytes(b""), "is no file of columns"),
    "something else": (lambda path: path.write_bytes(b"x" * 500), "is no file of columns"),
    "cut off": (cut, "lies outside the file"),
    "one bit": (flipped, "digest does not fit"),
    "header beyond the file": (header_beyond, "header is longer"),
    "other kind": (lambda path: rewritten(path, kind="x"), "is of kind 'x'"),
    "later schema": (lambda path: rewritten(path, schema=2), "update robfcp"),
    "unknown field": (lambda path: rewritten(path, more=1), "header cannot be read"),
    "digest": (lambda path: rewritten(path, digest="0"), "digest does not fit"),
    "far away": (changed_column(offset=2**62), "lies outside the file"),
    "before": (changed_column(offset=-64), "lies outside the file"),
    "odd place": (changed_column(offset=1), "lies outside the file"),
    "long": (changed_column(length=2**62), "lies outside the file"),
    "negative length": (changed_column(length=-1), "lies outside the file"),
    "float": (changed_column(dtype="f8"), "header cannot be read"),
    "object": (changed_column(dtype="O"), "header cannot be read"),
    "twice": (changed_column(name="names"), "comes twice"),
    "other columns": (changed_column(name="more"), "cannot be read|columns of this schema"),
    "short": (changed_column(length=2), "differ in length"),
    "no columns": (lambda path: rewritten(path, columns=[]), "cannot be read"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_fault_and_the_round_goes_on(case, tmp_path):
    path = tmp_path / "r.columns"
    robfcp.pack_reports([json.dumps(site(k)) for k in range(9)], path)
    damage, words = BROKEN[case]
    damage(path)
    with pytest.raises(RobfcpError, match=words) as error:
        robfcp.open_columns(path)
    assert ";" in str(error.value)
    (tmp_path / "a.json").write_text(json.dumps(site(20)))
    federation = robfcp.read_federation([path, tmp_path / "a.json"])
    assert federation.ids == ("s20",)
    assert [fault.client for fault in federation.faulty] == [f"file:{path}"]


def with_columns(path, **changes):
    """The file written again with other columns: consistent for the container, not for us."""
    about, arrays = container.read_columns(path, columns.KIND, columns.SCHEMA)
    arrays = {name: array.copy() for name, array in arrays.items()}
    about = json.loads(about)
    for name, change in changes.items():
        if name == "about":
            about |= change
        else:
            arrays[name] = change(arrays[name])
    container.write_columns(path, columns.KIND, columns.SCHEMA, json.dumps(about).encode(), arrays)


INCONSISTENT = {
    "a context that is not there": {"kinds": lambda v: v + np.uint8(9)},
    "lengths beyond": {"count_lengths": lambda v: v + np.uint8(1)},
    "lengths that wrap": {
        "count_lengths": lambda v: np.append(v[:-1].astype(np.uint64), np.uint64(2**64 - 1))
    },
    "negative lengths": {"count_lengths": lambda v: -v.astype(np.int64)},
    "names beyond": {"name_lengths": lambda v: v + np.uint8(1)},
    "one row less": {"sizes": lambda v: v[:-1]},
    "told rows fall": {
        "told_rows": lambda v: np.array([3, 2], dtype=np.uint8),
        "told_lengths": lambda v: np.array([0, 0], dtype=np.uint8),
    },
    "told row beyond": {
        "told_rows": lambda v: np.array([99], dtype=np.uint8),
        "told_lengths": lambda v: np.array([0], dtype=np.uint8),
    },
    "told rows that wrap": {
        "told_rows": lambda v: np.array([1, -(2**63)], dtype=np.int64),
        "told_lengths": lambda v: np.array([0, 0], dtype=np.uint8),
    },
    "faults that do not fit": {"about": {"items": 12}},
    "more reports than rows": {"about": {"reports": 2**40}},
    "no list of faults": {"faults": lambda v: np.frombuffer(b"{}", dtype=np.uint8)},
    "fault at no place": {
        "faults": lambda v: np.frombuffer(
            b'[{"client":"a","field":"b","reason":"c","position":99999999999999999999}]',
            dtype=np.uint8,
        ),
        "about": {"items": 10},
    },
    "fault beyond": {
        "faults": lambda v: np.frombuffer(
            b'[{"client":"a","field":"b","reason":"c","position":99}]', dtype=np.uint8
        ),
        "about": {"items": 10},
    },
}


@pytest.mark.parametrize("case", INCONSISTENT)
def test_columns_that_do_not_fit_each_other_are_refused(case, tmp_path):
    path = tmp_path / "r.columns"
    robfcp.pack_reports([json.dumps(site(k)) for k in range(9)], path)
    with_columns(path, **INCONSISTENT[case])
    with pytest.raises(RobfcpError, match="make it again with robfcp pack"):
        robfcp.open_columns(path)


def test_faults_in_a_file_stay_printable(tmp_path):
    path = tmp_path / "r.columns"
    robfcp.pack_reports([json.dumps(site(k)) for k in range(3)], path)
    fault = [{"client": "a\nb", "field": "x\n", "reason": "\x1b[2J" * 10**4, "position": 3}]
    text = np.frombuffer(msgspec.json.encode(fault), dtype=np.uint8)
    with_columns(path, faults=lambda _: text, about={"items": 4})
    (found,) = robfcp.read_federation([path]).faulty
    assert (found.client + found.field + found.reason).isprintable()
    assert len(found.reason) < 7000


@pytest.fixture
def signed(tmp_path):
    """Files of five sites, one of them forged, and the registry."""
    keys, paths = {}, []
    for k in range(5):
        public = generate_key(tmp_path / f"{k}.key")
        report = robfcp.Report.from_json(json.dumps(site(k)))
        paths.append(tmp_path / f"{k}.json")
        paths[-1].write_bytes(sign(report, load_key(tmp_path / f"{k}.key")))
        keys[report.client] = public
    forged = json.loads(paths[0].read_bytes())
    forged["report"]["n_samples"] = 31
    paths.append(tmp_path / "forged.json")
    paths[-1].write_text(json.dumps(forged))
    (tmp_path / "stranger.json").write_text(json.dumps(site(9)))
    return [*paths, tmp_path / "stranger.json", tmp_path / "nobody.json"], keys | {
        "s77": keys["s00"]
    }


def test_signatures_are_checked_when_packed_and_the_record_says_so(signed, tmp_path):
    paths, keys = signed
    options = {"keys": keys, "round": "r"}
    direct = robfcp.read_federation(paths, **options)
    shards = robfcp.pack_files(paths[::-1], tmp_path / "r.columns", processes=2, **options)
    merged = robfcp.read_federation(shards, **options)
    assert seen(merged) == seen(direct)
    assert merged.missing == ("s77",)
    assert direct.checked.signatures == "by registered keys"
    assert merged.checked.signatures == "by registered keys, of 5 when packed"
    anyhow = robfcp.read_federation(shards)
    assert anyhow.ids == direct.ids
    assert anyhow.faulty == direct.faulty
    says = "not checked here; the packed files say 5 by registered keys"
    assert anyhow.checked.signatures == says
    twice = robfcp.read_federation([*shards, shards[0]], **options)
    assert twice.checked == merged.checked
    other = robfcp.read_federation([*shards, paths[0]], keys=dict([*keys.items()][:1]), round="r")
    assert other.ids == ("s00",)
    assert all("not checked by these keys" in fault.reason for fault in other.faulty)


def test_without_keys_the_record_believes_no_word_of_a_packed_file(tmp_path):
    path = tmp_path / "r.columns"
    robfcp.pack_reports([json.dumps(site(k)) for k in range(6)], path)
    with_columns(path, about={"keys": "x"})
    says = "not checked here; the packed file says 6 by registered keys"
    assert robfcp.read_federation([path]).checked.signatures == says


def test_unregistered_signatures_are_counted_over_shards(signed, tmp_path):
    paths, _ = signed
    shards = robfcp.pack_files(paths, tmp_path / "r.columns", processes=2)
    merged, direct = robfcp.read_federation(shards), robfcp.read_federation(paths)
    assert seen(merged) == seen(direct)
    assert merged.checked == direct.checked
    assert merged.checked.signatures == "5 of 8 valid, by keys that nobody registered"


def test_what_cannot_be_packed_is_refused(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(site(0)))
    (done,) = robfcp.pack_files([tmp_path / "a.json"], tmp_path / "r.columns")
    with pytest.raises(RobfcpError, match="packed already"):
        robfcp.pack_files([done], tmp_path / "s.columns")
    with pytest.raises(RobfcpError, match="needs --round"):
        robfcp.pack_files([tmp_path / "a.json"], done, keys={})
    with pytest.raises(RobfcpError, match="goes with --keys"):
        robfcp.pack_files([tmp_path / "a.json"], done, revoked="x")
    with pytest.raises(RobfcpError, match="processes"):
        robfcp.pack_files([tmp_path / "a.json"], done, processes=0)
    before = done.read_bytes()
    with pytest.raises(robfcp.QuorumError, match=r"nobody\.json: no such file"):
        robfcp.pack_files([tmp_path / "nobody.json"], done)
    assert done.read_bytes() == before
    with pytest.raises(RobfcpError, match="no report is valid"):
        robfcp.pack_files([tmp_path / "nobody.json"], done, processes=2)
    with pytest.raises(RobfcpError, match="pass a list"):
        Federation.from_reports(robfcp.open_columns(done))


def test_names_of_any_language_survive(tmp_path):
    names = ["Zürich", "東京大学病院 A", "Москва 2", "b"]
    reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in names]
    assert taken(packed(reports, tmp_path / "r")) == taken(reports)


def test_another_grid_is_refused_in_one_wording_packed_or_not(signed, tmp_path):
    paths, keys = signed
    other = robfcp.Report.from_scores("s77", [0.1, 0.2], Grid.uniform(10), score=robfcp.LAC())
    paths[-1].write_bytes(sign(replace(other, round="r"), load_key(tmp_path / "0.key")))
    options = {"keys": keys, "round": "r", "grid": Grid.default()}
    direct = robfcp.read_federation(paths, **options)
    for own in ({}, {"grid": Grid.default()}):
        shards = robfcp.pack_files(paths, tmp_path / "r.columns", keys=keys, round="r", **own)
        assert seen(robfcp.read_federation(shards, **options)) == seen(direct)
    (fault,) = (fault for fault in direct.faulty if fault.client == "s77")
    made = robfcp.Report.from_json(json.dumps(site(0)))
    given = [[made, replace(other, round="r")], [made.to_json(), other.to_json()]]
    for items in given:
        assert Federation.from_reports(items, grid=Grid.default()).faulty == (fault,)


def test_where_nothing_is_valid_pack_says_what_reading_says(signed, tmp_path):
    paths, keys = signed
    for own in ({}, {"keys": keys, "round": "r"}):
        chosen = [*paths[-2:], tmp_path / "nobody.json", paths[5], paths[5]] if own else paths[-1:]
        with pytest.raises(robfcp.QuorumError) as reading:
            robfcp.read_federation(chosen, **own)
        with pytest.raises(robfcp.QuorumError) as packing:
            robfcp.pack_files(chosen, tmp_path / "r.columns", **own)
        assert str(packing.value) == str(reading.value)


def test_a_folder_is_called_a_folder(tmp_path):
    (tmp_path / "r.columns").mkdir()
    with pytest.raises(RobfcpError, match="is a folder; name a file in it"):
        robfcp.open_columns(tmp_path / "r.columns")


@pytest.mark.parametrize("change", ["cut", "overwritten", "replaced"])
def test_a_file_that_changes_while_it_is_open_still_counts_as_it_was(change, tmp_path):
    path, items = tmp_path / "r.columns", [json.dumps(site(k)) for k in range(9)]
    robfcp.pack_reports(items, path)
    found = robfcp.open_columns(path)
    if change == "replaced":
        robfcp.pack_reports(items[:2], path)
    else:
        path.write_bytes(b"" if change == "cut" else b"\xff" * path.stat().st_size)
    assert taken([found]) == taken(items)


def test_a_mapped_file_that_is_overwritten_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "MAPPED", 0)
    path = tmp_path / "r.columns"
    robfcp.pack_reports([json.dumps(site(k)) for k in range(9)], path)
    found = robfcp.open_columns(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"\xff" * size)
    with pytest.raises(robfcp.QuorumError, match="only 0 of 1 "):
        Federation.from_reports([found])
