"""Errors of decoders, temporary files, and permissions of private keys."""

import json
import os

import msgspec
import pytest

from robfcp._files import decode_error_reason, write_atomically
from robfcp.errors import RobfcpError
from robfcp.reports.signing import generate_key, load_key


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    fraction: float | None = None


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    counts: list[int]
    inner: Inner


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"counts": [1]}', "'inner' is missing"),
        (b'{"counts": [1], "inner": {}}', "'name' at inner is missing"),
        (b'{"counts": [1], "inner": {"name": "a"}, "x": 1}', "'x' is not known"),
        (b'{"counts": ["1"], "inner": {"name": "a"}}', "text stands at counts[0] where a whole"),
        (b'{"counts": [], "inner": {"name": "a", "fraction": "x"}}', "a number or nothing should"),
        (b"{", "it ends too early"),
        (b"{broken", "see byte 1"),
        (b"[]", "a list stands where an object should"),
        (json.JSONDecodeError("", '{"a": 1,\n oops}', 10), "see line 2, column 2"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "it is no UTF-8 text"),
        (RecursionError("maximum depth"), "it nests too deep"),
        (ValueError("a message of some library"), "it cannot be read"),
        (ValueError("Expected `int` >= 0 - at `$.n`"), "n is not allowed"),
        (ValueError("Invalid value (at line 1, column 5)"), "see line 1, column 5"),  # TOML
    ],
)
def test_errors_of_decoders_are_rephrased(data, message):
    if isinstance(data, bytes):
        with pytest.raises(msgspec.MsgspecError) as error:
            msgspec.json.decode(data, type=Outer)
        data = error.value
    assert message in decode_error_reason(data)


def test_old_temporary_files_are_removed_and_recent_ones_kept(tmp_path):
    outdated, fresh, unrelated = (
        tmp_path / f".robfcp-{name}" for name in ("a" * 16, "b" * 16, "notes")
    )
    for path in (outdated, fresh, unrelated):
        path.write_text("half")
    for path in (outdated, unrelated):
        os.utime(path, (1, 1))
    write_atomically(tmp_path / "x.json", "{}")
    assert {path.name for path in tmp_path.iterdir()} == {fresh.name, unrelated.name, "x.json"}


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no modes")
def test_a_private_key_that_others_can_read_is_refused_with_a_remedy(tmp_path):
    pytest.importorskip("cryptography")
    generate_key(tmp_path / "k.key")
    (tmp_path / "k.key").chmod(0o640)
    with pytest.raises(RobfcpError, match=r"read this private key; run chmod 600 .*k.key"):
        load_key(tmp_path / "k.key")
    (tmp_path / "k.key").chmod(0o400)
    assert load_key(tmp_path / "k.key")
