"""Reports checked many at a time: the same federation and the same words as one by one."""

import json

import numpy as np
import pytest
from effort import cases, thorough

import robfcp
from robfcp.federation import Federation, intake
from robfcp.grid import Grid
from robfcp.privacy import Privacy

LAC = robfcp.LAC()
NAMES = ["cat", "dog", "eel"]


def site(k, kind="plain", n=30):
    """One site's report as what JSON decodes to."""
    rng = np.random.default_rng(k)
    scores, name, labels = rng.beta(0.5, 2, n), f"s{k:02d}", rng.integers(0, 3, n)
    more = {"score": LAC, "round": "r"}
    if kind == "dense":
        report = robfcp.Report.from_scores(name, scores, Grid.uniform(9), **more)
    elif kind == "class":
        report = robfcp.Report.from_scores(name, scores, labels=labels, classes=NAMES, **more)
    elif kind == "other order":
        names = NAMES[::-1]
        report = robfcp.Report.from_scores(name, scores, labels=labels, classes=names, **more)
    elif kind == "sizes":
        report = robfcp.Report.from_scores(name, scores, label_scores=rng.random((n, 4)), **more)
    elif kind == "both":
        more |= {"labels": labels, "classes": 3, "label_scores": rng.random((n, 4))}
        report = robfcp.Report.from_scores(name, scores, **more)
    elif kind == "loss":
        losses = np.sort(rng.random((n, 3)), axis=1)[:, ::-1]
        report = robfcp.Report.from_losses(name, losses, [0.1, 0.5, 0.9], risk="fnr")
    elif kind == "private":
        more |= {"privacy": Privacy(1.0)}
        report = robfcp.Report.from_scores(name, scores, Grid.uniform(9), **more)
    else:
        report = robfcp.Report.from_scores(name, scores, **more)
    return json.loads(report.to_json())


KINDS = ["plain", "dense", "class", "other order", "sizes", "both", "loss", "private"]
NUMBERS = [-1, 0, 1.0, 1.5, float("nan"), 2**40, 2**40 + 1, 2**63 - 1, 2**63, 2**64, 10**30]
NUMBERS += [-(2**63), True, None, "3", [1], 10**5, 20_000 * 20_000 + 1]


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
    for number in range(len(list(lists_of(message)))):
        for value in NUMBERS:
            for place in (0, -1):
                lie = json.loads(json.dumps(message))
                list(lists_of(lie))[number][place] = value
                yield lie
        for change in ("append", "pop", "clear", "reverse"):
            lie = json.loads(json.dumps(message))
            own = list(lists_of(lie))[number]
            getattr(own, change)(*([1] if change == "append" else []))
            yield lie
    fields = {
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
    for field, values in fields.items():
        for value in values:
            yield {**message, field: value}
        yield {key: one for key, one in message.items() if key != field}
    if "strata" in message:
        for names in (["a"], 3, ["cat"] * 3, [], 0, ["cat", "dog", "emu"], ["eel", "dog", "cat"]):
            yield {**message, "strata": {**message["strata"], "names": names}}
        for by in ("group", "zzz"):
            yield {**message, "strata": {**message["strata"], "by": by}}


def seen(federation):
    """All that a federation holds, comparable."""
    parts = [federation.strata, federation.set_sizes]
    tables = [federation.table, *(part.table for part in parts if part is not None)]
    return (
        federation.ids,
        [one.tolist() for held in tables for one in (held.dense(), *held.entries())],
        [(type(held), [str(one.dtype) for one in held.entries()]) for held in tables],
        federation.sizes.tolist(),
        [(part.by, part.names, part.rows.tolist()) for part in parts if part is not None],
        (federation.grid, federation.score, federation.round, federation.model, federation.risk),
        (federation.faulty, federation.missing, federation.privacy, federation.sizes_known),
    )


def taken(items, **options):
    try:
        return seen(Federation.from_reports(iter(items), **options))
    except robfcp.RobfcpError as error:
        return type(error), str(error)


@pytest.fixture
def one_by_one(monkeypatch):
    """Intake by the rules for a single report alone, which is the independent answer."""

    def take(items, **options):
        with monkeypatch.context() as patch:
            patch.setattr(intake.wire, "fast_report", lambda _: None)
            return taken(items, **options)

    return take


@pytest.mark.parametrize("kind", thorough(KINDS, "plain", "class"))
def test_whatever_is_wrong_is_refused_in_the_words_for_a_single_report(kind, one_by_one):
    honest = [json.dumps(site(k, kind)) for k in range(4)]
    for lie in lies_about(site(9, kind)):
        items = [*honest[:2], json.dumps(lie), *honest[2:]]
        assert taken(items) == one_by_one(items), lie


@pytest.mark.effort
@pytest.mark.parametrize("options", [{}, {"grid": Grid.default()}, {"round": "r"}])
def test_mixed_rounds_with_many_faults_do_not_depend_on_how_they_are_checked(options, one_by_one):
    rng = np.random.default_rng(3)
    lies = [lie for kind in KINDS for lie in lies_about(site(50, kind))]
    for _ in range(cases(2)):
        items = [json.dumps(site(k, rng.choice(KINDS[:1] * 9 + KINDS))) for k in range(40)]
        chosen = rng.choice(len(lies), 12)
        items += [json.dumps({**lies[c], "client": f"x{k}"}) for k, c in enumerate(chosen)]
        items += [items[0], "{broken", b"\xff", json.dumps(site(3)), items[5]]
        items = [items[k] for k in rng.permutation(len(items))]
        assert taken(items, **options) == one_by_one(items, **options)


def test_blocks_of_any_size_give_the_same_federation(monkeypatch, one_by_one):
    items = [
        json.dumps(site(k, kind)) for k in range(30) for kind in ("plain", "class")[k % 2 :][:1]
    ]
    items += [json.dumps(site(40) | {"n_samples": 7}), items[4], json.dumps(site(4, n=20))]
    whole = taken(items)
    assert whole == one_by_one(items)
    for number in (1, 3, 31):
        monkeypatch.setattr(intake, "_REPORTS", number)
        assert taken(items) == whole
    monkeypatch.setattr(intake, "_ENTRIES", 5)
    assert taken(items) == whole


def test_a_usual_report_is_not_read_twice(monkeypatch):
    items = [json.dumps(site(k, kind)) for k, kind in enumerate(KINDS[:6])]
    monkeypatch.setattr(robfcp.Report, "from_json", lambda *_: pytest.fail("was read again"))
    for item in items:
        assert Federation.from_reports([item]).faulty == ()


def test_what_rounds_are_called_costs_no_memory_for_ever(monkeypatch):
    monkeypatch.setattr(intake, "_KEPT_HEADERS", 3)
    own = intake.Intake()
    for k in range(20):
        own.add(json.dumps(site(k) | {"round": f"r{k}"}))
    assert len(own._known_headers) <= 3
    own.finish()
    assert own.valid.sum() == 20


def test_repeats_in_other_blocks_are_one_report_and_conflicts_are_named(monkeypatch):
    monkeypatch.setattr(intake, "_REPORTS", 2)
    items = [json.dumps(site(k)) for k in (0, 1, 2, 0, 3, 1, 1)] + [json.dumps(site(2, n=20))]
    federation = Federation.from_reports(items)
    assert federation.ids == ("s00", "s01", "s03")
    assert [fault.reason for fault in federation.faulty] == [
        "s02: sent 2 different reports for this round; send one"
    ]


REPEATED = [
    ("plain", '"grid"', "7"),
    ("plain", '"gr\\u0069d"', "7"),
    ("plain", '"score"', "[]"),
    ("plain", '"score"', '{"name":"aps"}'),  # the last one counts, as for a single report
    ("loss", '"risk"', "1"),
    ("class", '"names"', "{}"),
    ("class", '"n\\u0061m\\u0065s" ', "{}"),
]


@pytest.mark.parametrize(("kind", "key", "value"), REPEATED)
def test_what_is_said_twice_is_read_as_a_single_report_is(kind, key, value, one_by_one):
    plain_key = json.loads(key)
    text = json.dumps(site(0, kind), separators=(",", ":"))
    twice = text.replace(f'"{plain_key}":', f'{key}:{value},"{plain_key}":', 1)
    assert twice != text
    items = [twice, json.dumps(site(1, kind))]
    assert taken(items) == one_by_one(items)


def test_repeats_by_class_are_found_in_linear_time(monkeypatch):
    items = [json.dumps(site(k, "class")) for k in range(60)]
    found = intake.Intake()
    monkeypatch.setattr(intake, "_REPORTS", 10)
    for item in items * 2:
        found.add(item)
    joined = []
    real = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda *parts: (joined.append(1), real(*parts))[1])
    found.finish()
    assert found.valid.sum() == 60
    assert len(joined) < 30  # not once a report


def test_reports_of_many_bytes_wait_for_few_others(monkeypatch):
    found = intake.Intake()
    monkeypatch.setattr(intake, "_WAITING_BYTES", 5000)
    for k in range(40):
        found.add(json.dumps(site(k, "class")).replace('["cat"', "[" + " " * 2000 + '"cat"'))
        assert sum(len(entry.sent) for entry in found._waiting) < 5000
    found.finish()
    assert found.valid.sum() == 40


def test_long_names_of_classes_are_not_kept(monkeypatch):
    found = intake.Intake()
    monkeypatch.setattr(intake, "_KEPT_BYTES", 1000)
    found.add(json.dumps(site(0, "class")))
    assert len(found._known_headers) == 1
    found.add(json.dumps(site(1, "class")).replace('["cat"', "[" + " " * 2000 + '"cat"'))
    assert len(found._known_headers) == 1
