"""Reports read for a round: the same federation and the same words as of report objects."""

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
KINDS = ["plain", "dense", "class", "other order", "sizes", "both", "loss", "private"]


def site(k, kind="plain", n=30):
    """One site's report as what JSON decodes to."""
    rng, name = np.random.default_rng(k), f"s{k:02d}"
    scores, labels, told = rng.beta(0.5, 2, n), rng.integers(0, 3, n), rng.random((n, 4))
    more = {
        "dense": {"binning": Binning.uniform(9)},
        "class": {"labels": labels, "classes": NAMES},
        "other order": {"labels": labels, "classes": NAMES[::-1]},
        "sizes": {"all_label_scores": told},
        "both": {"labels": labels, "classes": 3, "all_label_scores": told},
        "private": {"binning": Binning.uniform(9), "privacy": Privacy(1.0)},
    }.get(kind, {})
    report = robfcp.Report.from_scores(name, scores, score=LAC, round="r", **more)
    if kind == "loss":
        losses = np.sort(rng.random((n, 3)), axis=1)[:, ::-1]
        report = robfcp.Report.from_losses(name, losses, [0.1, 0.5, 0.9], risk="fnr")
    return json.loads(report.to_json())


def texts(*sites):
    return [json.dumps(site(*one) if isinstance(one, tuple) else site(one)) for one in sites]


NUMBERS = [-1, 0, 1.0, 1.5, float("nan"), 2**40, 2**40 + 1, 2**63 - 1, 2**63, 2**64, 10**30]
NUMBERS += [-(2**63), True, None, "3", [1], 10**5, 20_000 * 20_000 + 1]
FIELDS = {
    "n_samples": [*NUMBERS, 29, 31],
    "client": ["", " a", "file:x", "report #3", "\u202eabc", "x" * 201, 5, None, "Zürich"],
    "schema": [0, 1, 2, 3, 4, "1", 1.0, None],
    "kind": ["signed-report", "", 5],
    "round": [None, "old", "x" * 300, "a\nb", 5],
    "model": [None, "m", "x" * 300],
    "score": [None, {"name": "aps"}, {"name": "zzz"}, 5],
    "grid": [None, {"name": "default", "digest": "0"}, {"name": "zzz", "digest": "0"}],
    "strata": [None, {"by": "class", "names": 2, "steps": [0], "counts": [30]}],
    "set_sizes": [None, {"bins": [0], "counts": [31]}, {"bins": [0], "counts": [60]}],
    "risk": [None, {"name": "fnr", "bound": 1.0, "resolution": 1}],
    "privacy": [None, {}],
    "counts": [None, {"bins": [0], "counts": [30]}, {"bins": [0, 1], "counts": [30]}],
    "unknown": [1],
}
OF_STRATA = {
    "names": [["a"], 3, ["cat"] * 3, [], 0, ["cat", "dog", "emu"], ["eel", "dog", "cat"]],
    "by": ["group", "zzz"],
}


def lists_of(message):
    """Every list of numbers in it."""
    for field in ("counts", "strata", "set_sizes"):
        part = message.get(field)
        if isinstance(part, list):
            yield part
        elif isinstance(part, dict):
            yield from (part[key] for key in ("bins", "steps", "counts") if key in part)


def lies_about(message):
    """The report with one thing wrong in it (or unusual), in every way we know."""
    changes = [("__setitem__", place, value) for value in NUMBERS for place in (0, -1)]
    changes += [("append", 1), ("pop",), ("clear",), ("reverse",)]
    for number in range(len(list(lists_of(message)))):
        for change, *values in changes:
            lie = deepcopy(message)
            getattr(list(lists_of(lie))[number], change)(*values)
            yield lie
    for field, values in FIELDS.items():
        yield from ({**message, field: value} for value in values)
        yield {key: one for key, one in message.items() if key != field}
    if "strata" in message:
        for field, values in OF_STRATA.items():
            for value in values:
                yield {**message, "strata": {**message["strata"], field: value}}


def seen(federation):
    """All that a federation holds, comparable."""
    parts = [part for part in (federation.strata, federation.all_label_counts) if part is not None]
    tables = [federation.table, *(part.table for part in parts)]
    return (
        federation.clients,
        [one.tolist() for held in tables for one in (held.dense(), *held.entries())],
        [(type(held), [str(one.dtype) for one in held.entries()]) for held in tables],
        federation.sample_sizes.tolist(),
        [(part.by, part.names, part.rows.tolist()) for part in parts],
        (federation.binning, federation.score, federation.round, federation.model, federation.risk),
        (
            federation.rejected_reports,
            federation.missing_clients,
            federation.privacy,
            federation.sizes_known,
        ),
    )


def taken(items, **options):
    try:
        return seen(Federation.from_reports(iter(items), **options))
    except robfcp.RobfcpError as error:
        return type(error), str(error)


def one_by_one(items, binning=None, **options):
    """A round of report objects, each made of its file alone: they are arrays, not lists."""
    read = []
    for number, item in enumerate(items, 1):
        try:
            read.append(robfcp.Report.from_json(item, f"report #{number}", binning))
        except ReportError as error:
            read.append(RejectedReport.of(error))
    return taken(read, binning=binning, **options)


@pytest.mark.parametrize("kind", thorough(KINDS, "plain", "class"))
def test_whatever_is_wrong_is_refused_in_the_words_for_a_single_report(kind):
    honest = texts(*((k, kind) for k in range(4)))
    for lie in lies_about(site(9, kind)):
        items = [*honest[:2], json.dumps(lie), *honest[2:]]
        assert taken(items) == one_by_one(items), lie


@pytest.mark.effort
@pytest.mark.parametrize("options", [{}, {"binning": Binning.default()}, {"round": "r"}])
def test_mixed_rounds_with_many_faults_do_not_depend_on_how_they_are_checked(options):
    rng = np.random.default_rng(3)
    lies = [lie for kind in KINDS for lie in lies_about(site(50, kind))]
    for _ in range(cases(2)):
        items = texts(*((k, rng.choice(KINDS[:1] * 9 + KINDS)) for k in range(40)))
        chosen = rng.choice(len(lies), 12)
        items += [json.dumps({**lies[c], "client": f"x{k}"}) for k, c in enumerate(chosen)]
        items += [items[0], "{broken", b"\xff", *texts(3), items[5]]
        items = [items[k] for k in rng.permutation(len(items))]
        assert taken(items, **options) == one_by_one(items, **options)


def test_columns_of_any_size_give_the_same_federation(monkeypatch):
    items = texts(*((k, ("plain", "class")[k % 2]) for k in range(30)))
    items += [json.dumps(site(40) | {"n_samples": 7}), items[4], json.dumps(site(4, n=20))]
    whole = taken(items)
    assert whole == one_by_one(items)
    limits = ((_inbox, "_MAX_RECENT", 1), (_inbox, "_MAX_RECENT", 31))
    for module, name, number in (*limits, (_strata, "_MAX_POOLED_ENTRIES", 5)):
        monkeypatch.setattr(module, name, number)
        assert taken(items) == whole


def test_a_usual_report_is_not_read_twice(monkeypatch):
    items = texts(*enumerate(KINDS[:6]))
    monkeypatch.setattr(_wire, "decode_message", lambda *_: pytest.fail("was read again"))
    for item in items:
        assert Federation.from_reports([item]).rejected_reports == ()


def test_what_is_kept_of_headers_is_bounded_however_many_and_long_they_are(monkeypatch):
    monkeypatch.setattr(_row, "_MAX_HEADERS", 3)
    monkeypatch.setattr(_row, "_MAX_HEADER_BYTES", 1000)
    inbox = _inbox.Inbox()
    for k in range(20):
        inbox.add(json.dumps(site(k) | {"round": f"r{k}"}))
        assert len(inbox._header_reader._headers) <= 3
    kept = dict(inbox._header_reader._headers)
    for text in texts(*((k, "class") for k in range(20, 60))):
        inbox.add(text.replace('["cat"', "[" + " " * 2000 + '"cat"'))
    assert inbox._header_reader._headers == kept
    assert len(inbox.finish().clients) == 60


def test_the_same_report_is_one_and_another_of_the_same_size_is_not():
    """Whatever differs: a count that moved, a class, or the labels."""
    for kind in ("plain", "dense", "class", "sizes", "both", "loss"):
        first, *others = (site(k, kind) | {"client": "a"} for k in (0, 1, 2))
        reports = [json.dumps(one) for one in (first, *others, site(9, kind))]
        assert taken([reports[0], reports[0], reports[-1]])[0] == ("a", "s09")
        found = Federation.from_reports(reports)
        assert found.clients == ("s09",)
        assert "sent 3 different reports" in found.rejected_reports[0].reason


def test_columns_hold_what_lists_hold(monkeypatch):
    monkeypatch.setattr(_inbox, "_MAX_RECENT", 7)
    rng = np.random.default_rng(1)
    column = _inbox.GrowingColumn()
    expected = []
    for _ in range(300):
        numbers = rng.integers(-1 if rng.random() < 0.01 else 0, 10 ** rng.integers(1, 13), 5)
        parts = [numbers, numbers.tolist(), numbers.astype(np.uint32) % 9, np.tile(numbers, 4)]
        part = parts[rng.integers(len(parts))]
        if rng.random() < 0.3:
            column.append(3)
            expected.append(3)
        column.extend(part)
        expected.extend(int(number) for number in part)
    assert column.whole().tolist() == expected


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
        str([(part.bins.tolist(), part.values.tolist()) for part in parts])
        for parts in ([table.select(np.array([row])) for table in tables] for row in range(2000))
    ]
    assert len(set(contents)) == len(set(digests)) == len(set(zip(contents, digests, strict=True)))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("plain", '"grid"', "7"),
        ("plain", '"gr\\u0069d"', "7"),
        ("plain", '"score"', "[]"),
        ("plain", '"score"', '{"name":"aps"}'),  # the last one counts, as for a single report
        ("loss", '"risk"', "1"),
        ("class", '"names"', "{}"),
        ("class", '"n\\u0061m\\u0065s" ', "{}"),
    ],
)
def test_what_is_said_twice_is_read_as_a_single_report_is(kind, key, value):
    plain_key = json.loads(key)
    text = json.dumps(site(0, kind), separators=(",", ":"))
    twice = text.replace(f'"{plain_key}":', f'{key}:{value},"{plain_key}":', 1)
    assert twice != text
    items = [twice, *texts((1, kind))]
    assert taken(items) == one_by_one(items)
