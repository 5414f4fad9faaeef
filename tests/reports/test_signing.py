"""Signed files: only the registered key and this round count, and no client silences another.

Keys that are shared, weak, old or revoked are not accepted.
"""

import base64
import json
import stat
from datetime import date

import numpy as np
import pytest
from makers import LAC

import robfcp
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import Federation
from robfcp.federation._intake import RawReport
from robfcp.fleet._parquet import read_report_files
from robfcp.reports.signing import (
    encode_public_key,
    generate_key,
    load_key,
    sign,
    signature_domain,
    unwrap,
    verify,
)
from robfcp.reports.terms import RegisteredClient, read_keys, read_registered_sizes, read_registry

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
CLIENTS = ("site-0", "site-1", "site-2")
PRIVATE = {client: ed25519.Ed25519PrivateKey.generate() for client in (*CLIENTS, "thief")}
KEYS = {client: encode_public_key(PRIVATE[client]) for client in CLIENTS}
DOMAIN = signature_domain("signed-report")


def report(client, round="r1", seed=0):
    scores = np.random.default_rng([seed, int(client[-1])]).random(40)
    return robfcp.Report.from_scores(client, scores, score=LAC, round=round)


def signed(client="site-1", by=None, **more):
    return sign(report(client, **more), PRIVATE[by or client])


def verified(data):
    return verify(data, robfcp.Report, KEYS, "r1", "file.json")


def test_a_signature_is_of_the_report_byte_for_byte():
    original, data = report("site-1"), signed()
    assert original.to_json() in data
    for wrapped, bare in ((data, original.to_json()), (original.to_json(),) * 2, (b"\xff",) * 2):
        assert unwrap(wrapped) == bare
    assert verified(data) == original
    envelope = json.loads(data)
    public = base64.b64decode(envelope["key"].removeprefix("ed25519:"))
    ed25519.Ed25519PublicKey.from_public_bytes(public).verify(
        base64.b64decode(envelope["signature"]), DOMAIN + original.to_json()
    )
    with pytest.raises(ReportError, match="must name its round"):
        signed(round=None)


def changed(data, **fields):
    """The envelope with other fields, its body as it stands."""
    envelope = json.loads(data) | fields
    body = data[data.index(b'"body":') + 7 : -1]
    head = json.dumps({key: envelope[key] for key in ("kind", "key", "signature")})
    return head[:-1].encode() + b',"body":' + body + b"}"


NEGATIVE = signed().replace(b'"n_samples":40', b'"n_samples":-1')
SIGNATURE_OF_NEGATIVE = base64.b64encode(PRIVATE["site-1"].sign(DOMAIN + unwrap(NEGATIVE))).decode()
OTHER_SIGNATURE = json.loads(signed(seed=1))["signature"]
ANOTHER = "site-1: the signature is not by its registered key"
NOT_GENUINE = {
    "unsigned": (report("site-1").to_json(), "site-1: the report is not signed"),
    "by another key": (signed(by="thief"), ANOTHER),
    "by another registered site": (signed(by="site-2"), ANOTHER),
    "registered key named": (changed(signed(by="thief"), key=KEYS["site-1"]), ANOTHER),
    "altered": (signed().replace(b'"n_samples":40', b'"n_samples":41'), ANOTHER),
    "another report's signature": (changed(signed(), signature=OTHER_SIGNATURE), ANOTHER),
    "no base64": (changed(signed(), signature="%%%"), ANOTHER),
    "reformatted": (json.dumps(json.loads(signed()), indent=1).encode(), ANOTHER),
    "replayed": (signed(round="r0"), "site-1: .*a replay"),
    "genuine, but no histogram": (
        changed(NEGATIVE, signature=SIGNATURE_OF_NEGATIVE),
        "site-1: counts sum to 40",
    ),
    "a stranger's": (signed("thief-9", by="thief"), "thief-9: is not registered"),
}
INCOMPLETE = (b'{"client":"a\\n"}', b'{"kind":"signed-report"}')
for index, data in enumerate((b"", b"[]", b"\xff\xff", b"[" * 100_000, *INCOMPLETE)):
    NOT_GENUINE[f"rubbish {index}"] = (data, r"file\.json: is not registered")


@pytest.mark.parametrize("case", NOT_GENUINE)
def test_a_report_that_is_not_genuine_is_rejected_in_one_line(case):
    data, message = NOT_GENUINE[case]
    verified(changed(signed()))
    with pytest.raises(ReportError, match=f"^{message}") as caught:
        verified(data)
    assert "\n" not in str(caught.value)


def test_no_client_can_silence_another():
    forged, genuine = signed(by="thief", seed=9), {client: signed(client) for client in CLIENTS}
    messages = {"a": forged, **genuine, "copy": genuine["site-2"]}
    files = [RawReport(data, f"file:{name}.json") for name, data in messages.items()]
    federation = Federation.from_reports(files, keys=KEYS, round="r1")
    assert federation.clients == CLIENTS
    assert federation.verification.signatures == "by registered keys"
    (rejected,) = federation.rejected_reports
    assert (rejected.client, rejected.reason[:8]) == ("file:a.json", "a.json: ")
    assert ANOTHER in rejected.reason
    federation = Federation.from_reports(files[:2], keys=KEYS, round="r1")
    assert federation.clients == ("site-0",)
    assert [rejected.client for rejected in federation.rejected_reports] == ["site-1"]
    assert federation.missing_clients == ("site-2",)


def test_what_is_refused_where_keys_are_registered_leaves_the_rest(tmp_path):
    (tmp_path / "a.json").write_bytes(signed("site-0"))
    read = read_report_files([tmp_path / "a.json", tmp_path / "none.json"])
    items = [signed(), signed(seed=1), report("site-2"), 17, report("site-3").to_json().decode()]
    federation = Federation.from_reports([*items, *read], keys=KEYS, round="r1")
    assert list(federation) == [report("site-0")]
    assert [rejected.reason.split(";")[0] for rejected in federation.rejected_reports] == [
        f"{tmp_path}/none.json: no such file",
        "report #4: is not registered",
        "site-1: sent 2 different reports for this round",
        "site-2: the report is not signed",
        "site-3: is not registered",
    ]


def test_without_keys_a_signature_must_be_by_the_key_it_names(tmp_path):
    files = [tmp_path / f"{client}.json" for client in CLIENTS[:2]]
    for path in files:
        report(path.stem).save(path, PRIVATE["thief"])
    federation = Federation.from_files(files)
    assert federation.verification.signatures == "2 of 2 valid, by keys that nobody registered"
    files[1].write_bytes(files[1].read_bytes().replace(b'"site-1"', b'"site-2"'))
    federation = Federation.from_files(files)
    assert federation.clients == ("site-0",)
    assert "not by the key the report names" in federation.rejected_reports[0].reason
    assert Federation.from_reports([report("a-2")]).verification.signatures == "not checked"


# Keys


def test_private_keys_are_private_and_never_overwritten(tmp_path):
    path = tmp_path / "site.key"
    public = generate_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for target, message in ((path, "exists already"), (tmp_path / "no" / "k", "cannot be written")):
        with pytest.raises(RobfcpError, match=message):
            generate_key(target)
    assert encode_public_key(load_key(path)) == public


def test_what_is_not_a_key_is_refused(tmp_path):
    for text in (b"", b"rubbish", b"\xff" * 100, b"-----BEGIN PRIVATE KEY-----\nAAAA\n"):
        (tmp_path / "k").write_bytes(text)
        with pytest.raises(RobfcpError, match="not an Ed25519 private key"):
            load_key(tmp_path / "k")


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
WEAK = ["ed25519:" + base64.b64encode(bytes.fromhex(key)).decode() for key in SMALL]
GOOD = KEYS["site-0"]
DATES = ('"soon"', "7", "2026-01-31T00:00:00")


def registry(folder, **entries):
    """A file of keys; of a pair the second is what follows the key."""
    lines = ""
    for client, entry in entries.items():
        key, more = entry if isinstance(entry, tuple) else (entry, "")
        lines += f'["{client}"]\nkey = "{key}"\n{more}\n'
    (folder / "r.toml").write_text(lines)
    return folder / "r.toml"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        *(({"a": key}, "not an Ed25519 public key") for key in WEAK),
        ({"a": GOOD, "b": GOOD}, "b has the key of a"),
        *(({"a": (GOOD, f"not-after = {invalid}")}, "not-after") for invalid in DATES),
    ],
)
def test_small_order_and_shared_keys_and_invalid_dates_are_refused(entries, message, tmp_path):
    with pytest.raises(RobfcpError, match=message):
        read_keys(registry(tmp_path, **entries))


def test_keys_expire_and_are_revoked(tmp_path):
    dates = {"site-0": 'not-after = "2027-01-31"', "site-1": "not-after = 2026-01-31", "site-2": ""}
    path = registry(tmp_path, **{client: (KEYS[client], dates[client]) for client in CLIENTS})
    assert read_keys(path, today=date(2026, 1, 31)) == KEYS
    assert read_keys(path, today=date(2026, 2, 1)) == {**KEYS, "site-1": ""}
    revoked = tmp_path / "revoked"
    revoked.write_text(f"# lost in May\n{KEYS['site-2']}  # site c\n")
    assert read_keys(path, revoked, date(2026, 1, 1)) == {**KEYS, "site-2": ""}
    files = [tmp_path / f"{client}.json" for client in ("site-0", "site-2")]
    for file in files:
        report(file.stem).save(file, PRIVATE[file.stem])
    federation = Federation.from_files(files, keys=path, round="r1", revoked=revoked)
    assert federation.clients == ("site-0",)
    assert "expired or was revoked" in federation.rejected_reports[0].reason
    by_mapping = Federation.from_files(files, keys=KEYS, round="r1", revoked=revoked)
    assert "site-2" not in by_mapping.clients


def test_registries_hold_samples_in_json_or_toml(tmp_path):
    (tmp_path / "r.json").write_text('{"site-1": 40, "site 2": {"n-samples": 50, "key": "k"}}')
    (tmp_path / "r.toml").write_text('site-1 = 40\n["site 2"]\nn-samples = 50\nkey = "k"\n')
    for path in tmp_path.iterdir():
        assert read_registered_sizes(path) == {"site-1": 40, "site 2": 50}
        assert read_registry(path)["site 2"] == RegisteredClient(n_samples=50, key="k")
