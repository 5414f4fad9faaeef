"""Reports checked many at a time: the same federation and the same words as one by one."""

import json
from copy import deepcopy

import numpy as np
import pytest
from effort import cases, thorough
from makers import LAC

import robfcp
from robfcp.binning import Binning
from robfcp.federation import Federation, _intake
from robfcp.privacy import Privacy

NAMES = ["cat", "dog", "eel"]
KINDS = ["plain", "dense", "class", "other order", "sizes", "both", "loss", "private"]


def site(k, kind="plain", n=30):
    """One site's report as what JSON decodes to."""
    rng, name = np.random.default_rng(k), f"s{k:02d}"
    scores, labels, told = rng.beta(0.5, 2, n), rng.integers(0, 3, n), rng.random((n, 4))
    more = {
        "dense": {"grid": Binning.uniform(9)},
        "class": {"labels": labels, "classes": NAMES},
        "other order": {"labels": labels, "classes": NAMES[::-1]},
        "sizes": {"label_scores": told},
        "both": {"labels": labels, "classes": 3, "label_scores": told},
        "private": {"grid": Binning.uniform(9), "privacy": Privacy(1.0)},
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
        (federation.rejected_reports, federation.missing_clients, federation.privacy, federation.sizes_known),
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
            patch.setattr(_intake.wire, "fast_report", lambda _: None)
            return taken(items, **options)

    return take


@pytest.mark.parametrize("kind", thorough(KINDS, "plain", "class"))
def test_whatever_is_wrong_is_refused_in_the_words_for_a_single_report(kind, one_by_one):
    honest = texts(*((k, kind) for k in range(4)))
    for lie in lies_about(site(9, kind)):
        items = [*honest[:2], json.dumps(lie), *honest[2:]]
        assert taken(items) == one_by_one(items), lie


@pytest.mark.effort
@pytest.mark.parametrize("options", [{}, {"grid": Binning.default()}, {"round": "r"}])
def test_mixed_rounds_with_many_faults_do_not_depend_on_how_they_are_checked(options, one_by_one):
    rng = np.random.default_rng(3)
    lies = [lie for kind in KINDS for lie in lies_about(site(50, kind))]
    for _ in range(cases(2)):
        items = texts(*((k, rng.choice(KINDS[:1] * 9 + KINDS)) for k in range(40)))
        chosen = rng.choice(len(lies), 12)
        items += [json.dumps({**lies[c], "client": f"x{k}"}) for k, c in enumerate(chosen)]
        items += [items[0], "{broken", b"\xff", *texts(3), items[5]]
        items = [items[k] for k in rng.permutation(len(items))]
        assert taken(items, **options) == one_by_one(items, **options)


def test_blocks_of_any_size_give_the_same_federation(monkeypatch, one_by_one):
    items = texts(*((k, ("plain", "class")[k % 2]) for k in range(30)))
    items += [json.dumps(site(40) | {"n_samples": 7}), items[4], json.dumps(site(4, n=20))]
    whole = taken(items)
    assert whole == one_by_one(items)
    for name, number in (("_REPORTS", 1), ("_REPORTS", 3), ("_REPORTS", 31), ("_ENTRIES", 5)):
        monkeypatch.setattr(_intake, name, number)
        assert taken(items) == whole


def test_a_usual_report_is_not_read_twice(monkeypatch):
    items = texts(*enumerate(KINDS[:6]))
    monkeypatch.setattr(robfcp.Report, "from_json", lambda *_: pytest.fail("was read again"))
    for item in items:
        assert Federation.from_reports([item]).rejected_reports == ()


def test_what_is_kept_of_reports_is_bounded_whatever_they_are_called_and_however_long(monkeypatch):
    for name, most in (("_KEPT_HEADERS", 3), ("_KEPT_BYTES", 1000), ("_WAITING_BYTES", 5000)):
        monkeypatch.setattr(_intake, name, most)
    found = _intake.Intake()
    for k in range(20):
        found.add(json.dumps(site(k) | {"round": f"r{k}"}))
        assert len(found._known_headers) <= 3
    kept = dict(found._known_headers)
    for text in texts(*((k, "class") for k in range(20, 60))):
        found.add(text.replace('["cat"', "[" + " " * 2000 + '"cat"'))
        assert sum(len(entry.sent) for entry in found._waiting) < 5000
    assert found._known_headers == kept
    found.finish()
    assert found.valid.sum() == 60


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
def test_what_is_said_twice_is_read_as_a_single_report_is(kind, key, value, one_by_one):
    plain_key = json.loads(key)
    text = json.dumps(site(0, kind), separators=(",", ":"))
    twice = text.replace(f'"{plain_key}":', f'{key}:{value},"{plain_key}":', 1)
    assert twice != text
    items = [twice, *texts((1, kind))]
    assert taken(items) == one_by_one(items)
