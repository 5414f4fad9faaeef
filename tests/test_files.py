"""What decoders say is told in our words."""

import json
import os

import msgspec
import pytest

from robfcp._files import decode_error_reason, write_atomically
from robfcp.errors import RobfcpError
from robfcp.reports.signing import generate_key, load_key


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
        (b'{"counts": [], "inner": {"name": "a", "share": "x"}}', "a number or nothing should"),
        (b"{", "it ends too early"),
        (b"{broken", "see byte 1"),
        (b"[]", "a list stands where an object should"),
        (json.JSONDecodeError("", '{"a": 1,\n oops}', 10), "see line 2, column 2"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "it is no UTF-8 text"),
        (RecursionError("maximum depth"), "it nests too deep"),
        (ValueError("someone's own words"), "it cannot be read"),
        (ValueError("Expected `int` >= 0 - at `$.n`"), "n is not allowed"),
        (ValueError("Invalid value (at line 1, column 5)"), "see line 1, column 5"),  # TOML
    ],
)
def test_what_decoders_find_wrong_is_told_in_our_words(data, words):
    if isinstance(data, bytes):
        with pytest.raises(msgspec.MsgspecError) as error:
            msgspec.json.decode(data, type=Outer)
        data = error.value
    assert words in decode_error_reason(data)


def test_what_killed_writers_left_is_removed_and_what_is_still_written_stays(tmp_path):
    left, fresh, other = (tmp_path / f".robfcp-{name}" for name in ("a" * 16, "b" * 16, "notes"))
    for path in (left, fresh, other):
        path.write_text("half")
    for path in (left, other):
        os.utime(path, (1, 1))
    write_atomically(tmp_path / "x.json", "{}")
    assert {path.name for path in tmp_path.iterdir()} == {fresh.name, other.name, "x.json"}


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no modes")
def test_a_private_key_that_others_can_read_is_refused_with_the_command_that_mends_it(tmp_path):
    pytest.importorskip("cryptography")
    generate_key(tmp_path / "k.key")
    (tmp_path / "k.key").chmod(0o640)
    with pytest.raises(RobfcpError, match=r"read this private key; run chmod 600 .*k.key"):
        load_key(tmp_path / "k.key")
    (tmp_path / "k.key").chmod(0o400)
    assert load_key(tmp_path / "k.key")
