"""Signed report files: only the registered key, only this round, and nobody silences another."""

import base64
import builtins
import json
import stat

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import robfcp
from robfcp.cli import app
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation.intake import Sent
from robfcp.federation.reading import verified
from robfcp.report.agreement import Registered, read_keys, read_registry, read_sizes
from robfcp.report.signing import (
    Signed,
    domain,
    generate_key,
    load_key,
    public_text,
    sign,
    unwrap,
)
from robfcp.report.signing import verify as verify_any

pytest.importorskip("cryptography")
SITES = ("site-0", "site-1", "site-2")
DOMAIN = domain("signed-report")


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return {site: _load(folder / f"{site}.key") for site in (*SITES, "thief")}


def _load(path):
    generate_key(path)
    return load_key(path)


@pytest.fixture(scope="module")
def keys(private):
    return {site: public_text(private[site]) for site in SITES}


def verify(data, keys, round, source="report"):
    return verify_any(data, robfcp.Report, keys, round, source)


def report(site, round="r1", seed=0):
    scores = np.random.default_rng([seed, int(site[-1])]).random(40)
    return robfcp.Report.from_scores(site, scores, score=robfcp.LAC(), round=round)


def test_what_is_signed_is_the_report_as_it_stands(private, keys):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    original = report("site-1")
    data = sign(original, private["site-1"])
    assert original.to_json() in data
    assert unwrap(data) == original.to_json()
    assert unwrap(original.to_json()) == original.to_json()
    assert unwrap(b"\xff") == b"\xff"
    assert verify(data, keys, "r1") == original
    envelope = json.loads(data)
    public = base64.b64decode(envelope["key"].removeprefix("ed25519:"))
    Ed25519PublicKey.from_public_bytes(public).verify(
        base64.b64decode(envelope["signature"]), DOMAIN + original.to_json()
    )


def test_a_report_without_a_round_is_not_signed(private):
    with pytest.raises(ReportError, match="must name its round"):
        sign(report("site-1", round=None), private["site-1"])


def _cases(private):
    honest = sign(report("site-1"), private["site-1"])
    other = json.loads(sign(report("site-1", seed=1), private["site-1"]))
    envelope = json.loads(honest)
    flipped = honest.replace(b'"n_samples":40', b'"n_samples":41')
    assert flipped != honest
    return {
        "unsigned": (report("site-1").to_json(), "not signed"),
        "by another key": (sign(report("site-1"), private["thief"]), "not by its registered key"),
        "by another registered site": (
            sign(report("site-1"), private["site-2"]),
            "not by its registered key",
        ),
        "registered key named, signed by another": (
            json.dumps(
                {
                    **json.loads(sign(report("site-1"), private["thief"])),
                    "key": public_text(private["site-1"]),
                }
            ).encode(),
            "not by its registered key",
        ),
        "altered": (flipped, "not by its registered key"),
        "another report's signature": (
            json.dumps({**envelope, "signature": other["signature"]}).encode(),
            "not by its registered key",
        ),
        "no base64": (
            json.dumps({**envelope, "signature": "%%%"}).encode(),
            "not by its registered key",
        ),
        "reformatted": (json.dumps(envelope, indent=1).encode(), "not by its registered key"),
        "replayed": (sign(report("site-1", round="r0"), private["site-1"]), "a replay"),
    }


@pytest.mark.parametrize(
    "case",
    [
        "unsigned",
        "by another key",
        "by another registered site",
        "registered key named, signed by another",
        "altered",
        "another report's signature",
        "no base64",
        "reformatted",
        "replayed",
    ],
)
def test_what_is_not_genuine_is_faulty_with_one_line(case, private, keys):
    data, reason = _cases(private)[case]
    with pytest.raises(ReportError, match=reason) as caught:
        verify(data, keys, "r1", "file.json")
    assert str(caught.value).startswith("site-1: ")
    assert "\n" not in str(caught.value)


def test_strangers_and_rubbish_are_refused(private, keys):
    stranger = robfcp.Report.from_scores("thief-9", [0.5], round="r1")
    with pytest.raises(ReportError, match="thief-9: is not registered"):
        verify(sign(stranger, private["thief"]), keys, "r1")
    for data in (
        b"",
        b"[]",
        b"\xff\xff",
        b"[" * 100_000,
        b'{"client":"a\\n"}',
        b'{"kind":"signed-report"}',
    ):
        with pytest.raises(ReportError, match=r"x\.json: is not registered"):
            verify(data, keys, "r1", "x.json")


def test_a_signed_report_that_is_no_histogram_is_still_refused(private, keys):
    raw = report("site-1").to_json().replace(b'"n_samples":40', b'"n_samples":-1')
    signature = base64.b64encode(private["site-1"].sign(DOMAIN + raw)).decode()
    signed = Signed("signed-report", keys["site-1"], signature, msgspec.Raw(raw))
    with pytest.raises(ReportError, match="site-1: "):
        verify(msgspec.json.encode(signed), keys, "r1")


def sent(**files):
    return [Sent(data, f"file:{name}.json") for name, data in files.items()]


def test_nobody_can_silence_another(private, keys):
    genuine = {site: sign(report(site), private[site]) for site in SITES}
    forged = sign(report("site-1", seed=9), private["thief"])
    files = sent(a=forged, **genuine, copy=genuine["site-2"])
    federation = robfcp.Federation.from_reports(files, keys=keys, round="r1")
    assert federation.ids == SITES
    assert federation.checked.signatures == "by registered keys"
    assert [fault.client for fault in federation.faulty] == ["file:a.json"]
    assert "a.json: site-1: the signature is not by its registered" in federation.faulty[0].reason
    federation = robfcp.Federation.from_reports(files[:2], keys=keys, round="r1")
    assert federation.ids == ("site-0",)
    assert [fault.client for fault in federation.faulty] == ["site-1"]
    assert set(federation.missing) == set(keys) - {"site-0", "site-1"}


def test_a_forged_report_is_its_files_fault_also_where_the_genuine_one_is_refused(private, keys):
    forged, genuine = (sign(report("site-1"), private[name]) for name in ("thief", "site-1"))
    reports, faults = verified(sent(a=forged, b=genuine), keys, "r1")
    assert [(len(reports), fault.client) for fault in faults] == [(1, "file:a.json")]


def test_two_different_genuine_reports_contradict_each_other(private, keys):
    files = [sign(report("site-1", seed=seed), private["site-1"]) for seed in (0, 1)]
    federation = robfcp.Federation.from_reports(
        [*files, sign(report("site-0"), private["site-0"])], keys=keys, round="r1"
    )
    assert federation.ids == ("site-0",)
    assert "2 different reports" in federation.faulty[0].reason


def test_reports_that_are_not_signed_are_refused_where_keys_are_registered(private, keys):
    items = [report("site-1"), report("site-2").to_json().decode(), 17, {"client": "site-3"}]
    items.append(sign(report("site-0"), private["site-0"]))
    federation = robfcp.Federation.from_reports(items, keys=keys, round="r1")
    assert federation.ids == ("site-0",)
    reasons = {fault.client: fault.reason for fault in federation.faulty}
    assert reasons["site-1"].startswith("site-1: the report is not signed")
    assert reasons["site-2"].startswith("site-2: the report is not signed")
    assert reasons["report #3"].startswith("report #3: is not registered")


def test_files_that_cannot_be_read_are_faults_of_their_own(private, keys, tmp_path):
    report("site-0").save(tmp_path / "a.json", private["site-0"])
    paths = [tmp_path / "a.json", tmp_path / "none.json"]
    federation = robfcp.Federation.read(paths, keys=keys, round="r1")
    assert list(federation) == [report("site-0")]
    assert "no such file" in federation.faulty[0].reason


def test_private_keys_are_private_and_never_overwritten(tmp_path):
    path = tmp_path / "site.key"
    public = generate_key(path)
    assert public_text(load_key(path)) == public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(RobfcpError, match="exists already"):
        generate_key(path)
    with pytest.raises(RobfcpError, match="cannot be written"):
        generate_key(tmp_path / "nowhere" / "site.key")
    assert public_text(load_key(path)) == public


@pytest.mark.parametrize("text", [b"", b"rubbish", b"-----BEGIN PRIVATE KEY-----\n"])
def test_what_is_not_a_key_is_refused(text, tmp_path):
    (tmp_path / "k").write_bytes(text)
    with pytest.raises(RobfcpError, match="not an Ed25519 private key"):
        load_key(tmp_path / "k")
    with pytest.raises(RobfcpError, match="no such file"):
        load_key(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('["site 1"]\nkey = "ed25519:AAAA"', "not an Ed25519 public key"),
        ('[a]\nkey = "AAAA"', "not an Ed25519 public key"),
        ("[a]\nkey = 3", "a: a whole number stands at key where text"),
        ("[a]\nsamples = 3", "a has no key"),
        ("[a]\nsamples = -3", "whole numbers of samples"),
        ("[a]\nsize = 3", "a: 'size' is not known"),
        ("[a", "not TOML"),
        ("", "registers nobody"),
    ],
)
def test_registries_say_what_is_wrong(text, problem, tmp_path):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(RobfcpError, match=problem):
        read_keys(tmp_path / "r.toml")


def test_registries_hold_samples_in_json_or_toml(tmp_path):
    (tmp_path / "r.json").write_text('{"site-1": 40, "site-2": {"samples": 50}}')
    assert read_sizes(tmp_path / "r.json") == {"site-1": 40, "site-2": 50}
    (tmp_path / "r.toml").write_text('site-1 = 40\n["site 2"]\nsamples = 50\nkey = "k"\n')
    assert read_sizes(tmp_path / "r.toml") == {"site-1": 40, "site 2": 50}
    (tmp_path / "r.toml").write_text('[site-1]\nkey = "k"\n')
    assert read_registry(tmp_path / "r.toml") == {"site-1": Registered(key="k")}
    with pytest.raises(RobfcpError, match="no number of samples"):
        read_sizes(tmp_path / "r.toml")
    for text in ('{"a": true}', '{"a": 0}', '{"a": 1.5}'):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(RobfcpError, match="whole numbers of samples"):
            read_sizes(tmp_path / "r.json")
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(RobfcpError, match="not JSON"):
        read_sizes(tmp_path / "r.json")


def test_missing_libraries_are_named_in_one_line(monkeypatch, tmp_path):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RobfcpError, match=r"pip install .robfcp\[signatures\]"):
        generate_key(tmp_path / "k")


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_keygen_sketch_and_calibrate_make_a_signed_federation(tmp_path):
    rng = np.random.default_rng(0)
    registry = ""
    for k in range(6):
        key = tmp_path / f"{k}.key"
        printed = run("keygen", f"site-{k}", "-o", key)
        registry += printed[printed.index("[") :]
        p = rng.dirichlet([1, 1, 1], 50)
        np.savez(tmp_path / f"{k}.npz", probabilities=p, labels=rng.integers(0, 3, 50))
        common = ["-c", f"site-{k}", "--round", "r1", "-o", tmp_path / f"{k}.json"]
        run("sketch", tmp_path / f"{k}.npz", *common, "--sign", key)
    (tmp_path / "registry.toml").write_text(registry)
    signed = (tmp_path / "5.json").read_bytes()
    (tmp_path / "5.json").write_bytes(unwrap(signed))  # somebody drops the signature
    files = sorted(tmp_path.glob("[0-5].json"))
    signing = ["--keys", tmp_path / "registry.toml", "--round", "r1"]
    output = json.loads(run("calibrate", *files, *signing, "--malicious", 1, "--json"))
    assert output["n_clients"] == 5
    (fault,) = output["faulty"]
    assert fault["client"] == "site-5"
    assert "not signed" in fault["reason"]
    output = json.loads(run("calibrate", *files[:4], *signing, "--malicious", 1, "--json"))
    assert output["missing"] == ["site-4", "site-5"]
    assert output["levels"][0]["certificate"]["outside"] == ["site-4", "site-5"]
    unchecked = json.loads(run("calibrate", *files, "--malicious", 1, "--json"))
    assert unchecked["n_clients"] == 6
    with pytest.raises(RobfcpError, match="only 0 of"):
        run("calibrate", *files, "--keys", tmp_path / "registry.toml", "--round", "r2")
    with pytest.raises(RobfcpError, match="needs --round"):
        run("calibrate", *files, "--keys", tmp_path / "registry.toml")
