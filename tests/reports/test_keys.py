"""Keys that are shared, weak, old or revoked do not speak for anybody."""

import base64
from datetime import date

import numpy as np
import pytest

import robfcp
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

pytest.importorskip("cryptography")
from robfcp.report import generate_key, load_key
from robfcp.report.agreement import read_keys

SMALL = [
    "00" * 32,
    "01" + "00" * 31,
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def registry(path, **entries):
    lines = [f'["{client}"]\n{lines}\n' for client, lines in entries.items()]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("key", SMALL)
def test_small_order_keys_are_refused(tmp_path, key):
    text = "ed25519:" + base64.b64encode(bytes.fromhex(key)).decode()
    with pytest.raises(RobfcpError, match="not an Ed25519 public key"):
        read_keys(registry(tmp_path / "r.toml", a=f'key = "{text}"'))


def test_one_key_for_two_clients_is_refused(tmp_path):
    key = generate_key(tmp_path / "k")
    lines = f'key = "{key}"'
    with pytest.raises(RobfcpError, match="b has the key of a"):
        read_keys(registry(tmp_path / "r.toml", a=lines, b=lines))


def test_keys_expire_and_are_revoked(tmp_path):
    keys = {name: generate_key(tmp_path / name) for name in ("a", "b", "c")}
    path = registry(
        tmp_path / "r.toml",
        a=f'key = "{keys["a"]}"\nnot-after = "2027-01-31"',
        b=f'key = "{keys["b"]}"\nnot-after = 2026-01-31',
        c=f'key = "{keys["c"]}"',
    )
    assert read_keys(path, today=date(2026, 1, 31)) == keys
    assert read_keys(path, today=date(2026, 2, 1)) == {**keys, "b": ""}
    (tmp_path / "revoked").write_text(f"# lost in May\n{keys['c']}  # site c\n")
    assert read_keys(path, tmp_path / "revoked", date(2026, 1, 1)) == {**keys, "c": ""}
    files = []
    for name in ("a", "c"):
        report = robfcp.Report.from_scores(name, np.linspace(0, 1, 9), round="r")
        report.save(tmp_path / f"{name}.json", load_key(tmp_path / name))
        files.append(tmp_path / f"{name}.json")
    federation = Federation.read(files, keys=path, round="r", revoked=tmp_path / "revoked")
    assert federation.ids == ("a",)
    assert "expired or was revoked" in federation.faulty[0].reason
    for wrong in ('"soon"', "7", "2026-01-31T00:00:00"):
        with pytest.raises(RobfcpError, match="not-after"):
            read_keys(registry(tmp_path / "w.toml", a=f'key = "{keys["a"]}"\nnot-after = {wrong}'))


def test_without_keys_a_signature_must_be_by_the_key_it_names(tmp_path):
    generate_key(tmp_path / "k")
    files = []
    for name in ("a", "b"):
        report = robfcp.Report.from_scores(name, np.linspace(0, 1, 9), round="r")
        report.save(tmp_path / f"{name}.json", load_key(tmp_path / "k"))
        files.append(tmp_path / f"{name}.json")
    federation = Federation.read(files)
    assert federation.checked.signatures == "2 of 2 valid, by keys that nobody registered"
    files[1].write_bytes(files[1].read_bytes().replace(b'"b"', b'"c"'))
    federation = Federation.read(files)
    assert federation.ids == ("a",)
    assert "not by the key the report names" in federation.faulty[0].reason
    robfcp.Report.from_scores("d", [0.5]).save(tmp_path / "d.json")
    assert Federation.read([tmp_path / "d.json"]).checked.signatures == "not checked"


def test_a_key_file_of_any_contents_is_one_line(tmp_path):
    for contents in (b"", b"\xff" * 100, b"-----BEGIN PRIVATE KEY-----\nAAAA\n"):
        (tmp_path / "k").write_bytes(contents)
        with pytest.raises(RobfcpError, match="not an Ed25519 private key"):
            load_key(tmp_path / "k")
