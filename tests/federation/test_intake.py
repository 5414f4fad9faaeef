"""Reports read for a round give the same federation and messages as report objects."""

import json
from copy import deepcopy

import numpy as np
import pytest
from effort import cases, thorough
from makers import LAC

import robfcp
from robfcp.binning import Binning
from robfcp.errors import ReportError
from robfcp.federation import (
    Federation,
    RejectedReport,
    SparseCounts,
    _inbox,
    _strata,
    hash_rows,
)
from robfcp.privacy import Privacy
from robfcp.reports import _row, _wire

NAMES = ["cat", "dog", "eel"]
REPORT_KINDS = ["plain", "dense", "class", "other order", "sizes", "both", "loss", "private"]


def message_of(k, kind="plain", n=30):
    """One client's report as what JSON decodes to."""
    rng, name = np.random.default_rng(k), f"s{k:02d}"
    scores, labels, label_scores = rng.beta(0.5, 2, n), rng.integers(0, 3, n), rng.random((n, 4))
    more = {
        "dense": {"binning": Binning.uniform(9)},
        "class": {"labels": labels, "classes": NAMES},
        "other order": {"labels": labels, "classes": NAMES[::-1]},
        "sizes": {"all_label_scores": label_scores},
        "both": {"labels": labels, "classes": 3, "all_label_scores": label_scores},
        "private": {"binning": Binning.uniform(9), "privacy": Privacy(1.0)},
    }.get(kind, {})
    report = robfcp.Report.from_scores(name, scores, score=LAC, round="r", **more)
    if kind == "loss":
        losses = np.sort(rng.random((n, 3)), axis=1)[:, ::-1]
        report = robfcp.Report.from_losses(name, losses, [0.1, 0.5, 0.9], risk="fnr")
    return json.loads(report.to_json())


def json_reports(*items):
    return [
        json.dumps(message_of(*item) if isinstance(item, tuple) else message_of(item))
        for item in items
    ]


HOSTILE_NUMBERS = [-1, 0, 1.0, 1.5, float("nan"), 2**40, 2**40 + 1, 2**63 - 1, 2**63, 2**64, 10**30]
HOSTILE_NUMBERS += [-(2**63), True, None, "3", [1], 10**5, 20_000 * 20_000 + 1]
FIELDS = {
    "n_samples": [*HOSTILE_NUMBERS, 29, 31],
    "client": ["", " a", "file:x", "report #3", "\u202eabc", "x" * 201, 5, None, "Zürich"],
    "schema": [0, 1, 2, 3, 4, "1", 1.0, None],
    "kind": ["signed-report", "", 5],
    "round": [None, "old", "x" * 300, "a\nb", 5],
    "model": [None, "m", "x" * 300],
    "score": [None, {"name": "aps"}, {"name": "zzz"}, 5],
    "binning": [None, {"name": "default", "digest": "0"}, {"name": "zzz", "digest": "0"}],
    "strata": [None, {"by": "class", "names": 2, "cell_steps": [0], "counts": [30]}],
    "all_label_counts": [None, {"bins": [0], "counts": [31]}, {"bins": [0], "counts": [60]}],
    "risk": [None, {"name": "fnr", "upper_bound": 1.0, "resolution": 1}],
    "privacy": [None, {}],
    "counts": [None, {"bins": [0], "counts": [30]}, {"bins": [0, 1], "counts": [30]}],
    "unknown": [1],
}
STRATA_FIELDS = {
    "names": [["a"], 3, ["cat"] * 3, [], 0, ["cat", "dog", "emu"], ["eel", "dog", "cat"]],
    "by": ["group", "zzz"],
}


def number_lists(message):
    """Yield every list of numbers of a message."""
    for field in ("counts", "strata", "all_label_counts"):
        value = message.get(field)
        if isinstance(value, list):
            yield value
        elif isinstance(value, dict):
            yield from (value[key] for key in ("bins", "cell_steps", "counts") if key in value)


def altered_messages(message):
    """Yield the report with one invalid or unusual value, in every way we know."""
    changes = [
        ("__setitem__", position, value) for value in HOSTILE_NUMBERS for position in (0, -1)
    ]
    changes += [("append", 1), ("pop",), ("clear",), ("reverse",)]
    for list_index in range(len(list(number_lists(message)))):
        for change, *values in changes:
            changed = deepcopy(message)
            getattr(list(number_lists(changed))[list_index], change)(*values)
            yield changed
    for field, values in FIELDS.items():
        yield from ({**message, field: value} for value in values)
        yield {key: value for key, value in message.items() if key != field}
    if "strata" in message:
        for field, values in STRATA_FIELDS.items():
            for value in values:
                yield {**message, "strata": {**message["strata"], field: value}}


def contents(federation):
    """All contents of a federation, comparable."""
    blocks = [
        block for block in (federation.strata, federation.all_label_counts) if block is not None
    ]
    tables = [federation.table, *(block.table for block in blocks)]
    return (
        federation.clients,
        [column.tolist() for table in tables for column in (table.dense(), *table.entries())],
        [(type(table), [str(column.dtype) for column in table.entries()]) for table in tables],
        federation.sample_sizes.tolist(),
        [(block.by, block.names, block.rows.tolist()) for block in blocks],
        (federation.binning, federation.score, federation.round, federation.model, federation.risk),
        (
            federation.rejected_reports,
            federation.missing_clients,
            federation.privacy,
            federation.sizes_known,
        ),
    )


def read_round(items, **options):
    try:
        return contents(Federation.from_reports(iter(items), **options))
    except robfcp.RobfcpError as error:
        return type(error), str(error)


def one_by_one(items, binning=None, **options):
    """A round of report objects, each made of its file alone: they are arrays, not lists."""
    read = []
    for position, item in enumerate(items, 1):
        try:
            read.append(robfcp.Report.from_json(item, f"report #{position}", binning))
        except ReportError as error:
            read.append(RejectedReport.of(error))
    return read_round(read, binning=binning, **options)


@pytest.mark.parametrize("kind", thorough(REPORT_KINDS, "plain", "class"))
def test_an_invalid_report_of_a_round_is_rejected_as_a_single_report_is(kind):
    benign = json_reports(*((k, kind) for k in range(4)))
    for message in altered_messages(message_of(9, kind)):
        items = [*benign[:2], json.dumps(message), *benign[2:]]
        assert read_round(items) == one_by_one(items), message


@pytest.mark.effort
@pytest.mark.parametrize("options", [{}, {"binning": Binning.default()}, {"round": "r"}])
def test_mixed_rounds_with_many_faults_do_not_depend_on_how_they_are_checked(options):
    rng = np.random.default_rng(3)
    messages = [
        message for kind in REPORT_KINDS for message in altered_messages(message_of(50, kind))
    ]
    for _ in range(cases(2)):
        items = json_reports(
            *((k, rng.choice(REPORT_KINDS[:1] * 9 + REPORT_KINDS)) for k in range(40))
        )
        message_index = rng.choice(len(messages), 12)
        items += [
            json.dumps({**messages[c], "client": f"x{k}"}) for k, c in enumerate(message_index)
        ]
        items += [items[0], "{broken", b"\xff", *json_reports(3), items[5]]
        items = [items[k] for k in rng.permutation(len(items))]
        assert read_round(items, **options) == one_by_one(items, **options)


def test_columns_of_any_size_give_the_same_federation(monkeypatch):
    items = json_reports(*((k, ("plain", "class")[k % 2]) for k in range(30)))
    items += [
        json.dumps(message_of(40) | {"n_samples": 7}),
        items[4],
        json.dumps(message_of(4, n=20)),
    ]
    expected = read_round(items)
    assert expected == one_by_one(items)
    settings = ((_inbox, "_MAX_RECENT", 1), (_inbox, "_MAX_RECENT", 31))
    for module, name, value in (*settings, (_strata, "_MAX_POOLED_ENTRIES", 5)):
        monkeypatch.setattr(module, name, value)
        assert read_round(items) == expected


def test_a_usual_report_is_not_read_twice(monkeypatch):
    items = json_reports(*enumerate(REPORT_KINDS[:6]))
    monkeypatch.setattr(_wire, "decode_message", lambda *_: pytest.fail("was read again"))
    for item in items:
        assert Federation.from_reports([item]).rejected_reports == ()


def test_what_is_kept_of_headers_is_bounded_however_many_and_long_they_are(monkeypatch):
    monkeypatch.setattr(_row, "_MAX_HEADERS", 3)
    monkeypatch.setattr(_row, "_MAX_HEADER_BYTES", 1000)
    inbox = _inbox.Inbox()
    for k in range(20):
        inbox.add(json.dumps(message_of(k) | {"round": f"r{k}"}))
        assert len(inbox._header_reader._headers) <= 3
    headers = dict(inbox._header_reader._headers)
    for text in json_reports(*((k, "class") for k in range(20, 60))):
        inbox.add(text.replace('["cat"', "[" + " " * 2000 + '"cat"'))
    assert inbox._header_reader._headers == headers
    assert len(inbox.finish().clients) == 60


def test_the_same_report_is_one_and_another_of_the_same_size_is_not():
    """Whatever differs: a count that moved, a class, or the labels."""
    for kind in ("plain", "dense", "class", "sizes", "both", "loss"):
        first, *other_messages = (message_of(k, kind) | {"client": "a"} for k in (0, 1, 2))
        reports = [json.dumps(message) for message in (first, *other_messages, message_of(9, kind))]
        assert read_round([reports[0], reports[0], reports[-1]])[0] == ("a", "s09")
        federation = Federation.from_reports(reports)
        assert federation.clients == ("s09",)
        assert "sent 3 different reports" in federation.rejected_reports[0].reason


def test_columns_hold_what_lists_hold(monkeypatch):
    monkeypatch.setattr(_inbox, "_MAX_RECENT", 7)
    rng = np.random.default_rng(1)
    column = _inbox.GrowingColumn()
    expected = []
    for _ in range(300):
        values = rng.integers(-1 if rng.random() < 0.01 else 0, 10 ** rng.integers(1, 13), 5)
        variants = [values, values.tolist(), values.astype(np.uint32) % 9, np.tile(values, 4)]
        values_given = variants[rng.integers(len(variants))]
        if rng.random() < 0.3:
            column.append(3)
            expected.append(3)
        column.extend(values_given)
        expected.extend(int(value) for value in values_given)
    assert column.concatenated().tolist() == expected


def test_runs_tell_where_each_row_stood():
    rng = np.random.default_rng(2)
    runs = _inbox.RunsOfPositions()
    expected = []
    position = 0
    for _ in range(200):
        if rng.random() < 0.5:
            runs.append(position)
            expected.append(position)
            position += int(rng.integers(1, 3))
        else:
            is_row = rng.random(6) < 0.7
            runs.extend(position, is_row)
            expected += (position + np.flatnonzero(is_row)).tolist()
            position += 6
    assert [runs.position_of(row) for row in range(len(expected))] == expected


def test_only_equal_rows_have_equal_digests():
    rng = np.random.default_rng(3)
    tables = [
        SparseCounts.from_lengths(
            lengths := rng.integers(0, 3, 2000),
            rng.integers(0, 3, lengths.sum()),
            rng.integers(1, 3, lengths.sum()),
        )
        for _ in range(3)
    ]
    digests = [digest.tobytes() for digest in hash_rows(tables)]
    contents = [
        str([(block.bins.tolist(), block.values.tolist()) for block in blocks])
        for blocks in ([table.select(np.array([row])) for table in tables] for row in range(2000))
    ]
    assert len(set(contents)) == len(set(digests)) == len(set(zip(contents, digests, strict=True)))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("plain", '"binning"', "7"),
        ("plain", '"b\\u0069nning"', "7"),
        ("plain", '"score"', "[]"),
        ("plain", '"score"', '{"name":"aps"}'),  # the last one counts, as for a single report
        ("loss", '"risk"', "1"),
        ("class", '"names"', "{}"),
        ("class", '"n\\u0061m\\u0065s" ', "{}"),
    ],
)
def test_a_key_that_comes_twice_is_read_as_in_a_single_report(kind, key, value):
    plain_key = json.loads(key)
    text = json.dumps(message_of(0, kind), separators=(",", ":"))
    twice = text.replace(f'"{plain_key}":', f'{key}:{value},"{plain_key}":', 1)
    assert twice != text
    items = [twice, *json_reports((1, kind))]
    assert read_round(items) == one_by_one(items)
