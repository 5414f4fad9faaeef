"""What decoders say is told in our words."""

import json
import sys

import msgspec
import pytest

from robfcp.errors import RobfcpError
from robfcp.files import what_is_wrong
from robfcp.report import Report
from robfcp.report.agreement import read_sizes


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    share: float | None = None


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    counts: list[int]
    inner: Inner


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"counts": [1]}', "'inner' is missing"),
        (b'{"counts": [1], "inner": {}}', "'name' at inner is missing"),
        (b'{"counts": [1], "inner": {"name": "a"}, "x": 1}', "'x' is not known"),
        (b'{"counts": ["1"], "inner": {"name": "a"}}', "text stands at counts[0] where a whole"),
        (b'{"counts": 1, "inner": {"name": "a"}}', "a whole number stands at counts where a list"),
        (b'{"counts": [], "inner": {"name": "a", "share": "x"}}', "a number or nothing should"),
        (b"{", "it ends too early"),
        (b"{broken", "see byte 1"),
        (b"\xff\xfe", "see byte 0"),
        (b"[]", "a list stands where an object should"),
    ],
)
def test_json_that_does_not_fit(data: bytes, words: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as error:
        msgspec.json.decode(data, type=Outer)
    assert words in what_is_wrong(error.value)


def test_other_decoders() -> None:
    with pytest.raises(json.JSONDecodeError) as error:
        json.loads('{"a": 1,\n oops}')
    assert what_is_wrong(error.value) == "see line 2, column 2"
    assert what_is_wrong(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")) == "it is no UTF-8 text"
    assert what_is_wrong(RecursionError("maximum depth")) == "it nests too deep"
    assert what_is_wrong(ValueError("someone's own words")) == "it cannot be read"
    assert what_is_wrong(ValueError("Expected `int` >= 0 - at `$.n`")) == "n is not allowed"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with 3.11")
def test_toml() -> None:
    import tomllib

    with pytest.raises(tomllib.TOMLDecodeError) as error:
        tomllib.loads("a = \n")
    assert what_is_wrong(error.value) == "see line 1, column 5"


def test_reports_and_registries_are_refused_in_our_words(tmp_path) -> None:
    with pytest.raises(RobfcpError, match=r"'grid' is missing"):
        Report.from_json(b'{"kind": "report", "schema": 1, "client": "a"}')
    (tmp_path / "sizes.json").write_text("{broken")
    with pytest.raises(RobfcpError, match=r"not JSON \(see line 1, column 2\)"):
        read_sizes(tmp_path / "sizes.json")
