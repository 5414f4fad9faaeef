"""Signed files: only the registered key, only this round, and nobody silences another. Keys that
are shared, weak, old or revoked do not speak for anybody."""

import base64
import builtins
import json
import stat
from datetime import date

import msgspec
import numpy as np
import pytest
from makers import refused, said

import robfcp
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import Federation
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
    verify,
)

pytest.importorskip("cryptography")
SITES = ("site-0", "site-1", "site-2")
DOMAIN = domain("signed-report")


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("keys"), {}
    for site in (*SITES, "thief"):
        generate_key(folder / site)
        found[site] = load_key(folder / site)
    return found


@pytest.fixture(scope="module")
def keys(private):
    return {site: public_text(private[site]) for site in SITES}


def verify_report(data, keys, round="r1", source="file.json"):
    return verify(data, robfcp.Report, keys, round, source)


def report(site, round="r1", seed=0):
    scores = np.random.default_rng([seed, int(site[-1])]).random(40)
    return robfcp.Report.from_scores(site, scores, score=robfcp.LAC(), round=round)


def test_what_is_signed_is_the_report_as_it_stands(private, keys):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    original = report("site-1")
    data = sign(original, private["site-1"])
    assert original.to_json() in data
    for wrapped, bare in ((data, original.to_json()), (original.to_json(),) * 2, (b"\xff",) * 2):
        assert unwrap(wrapped) == bare
    assert verify_report(data, keys) == original
    envelope = json.loads(data)
    public = base64.b64decode(envelope["key"].removeprefix("ed25519:"))
    Ed25519PublicKey.from_public_bytes(public).verify(
        base64.b64decode(envelope["signature"]), DOMAIN + original.to_json()
    )
    with pytest.raises(ReportError, match="must name its round"):
        sign(report("site-1", round=None), private["site-1"])


NOT_GENUINE = {
    "unsigned": "not signed",
    "by another key": "not by its registered key",
    "by another registered site": "not by its registered key",
    "registered key named, signed by another": "not by its registered key",
    "altered": "not by its registered key",
    "another report's signature": "not by its registered key",
    "no base64": "not by its registered key",
    "reformatted": "not by its registered key",
    "replayed": "a replay",
    "genuine, but no histogram": "site-1: ",
}


@pytest.mark.parametrize("case", NOT_GENUINE)
def test_what_is_not_genuine_is_faulty_with_one_line(case, private, keys):
    honest = sign(report("site-1"), private["site-1"])
    stolen = sign(report("site-1"), private["thief"])
    envelope, other = (
        json.loads(sign(report("site-1", seed=seed), private["site-1"])) for seed in (0, 1)
    )
    raw = report("site-1").to_json().replace(b'"n_samples":40', b'"n_samples":-1')
    broken = base64.b64encode(private["site-1"].sign(DOMAIN + raw)).decode()
    data = {
        "unsigned": report("site-1").to_json(),
        "by another key": stolen,
        "by another registered site": sign(report("site-1"), private["site-2"]),
        "registered key named, signed by another": json.dumps(
            {**json.loads(stolen), "key": keys["site-1"]}
        ).encode(),
        "altered": honest.replace(b'"n_samples":40', b'"n_samples":41'),
        "another report's signature": json.dumps(
            {**envelope, "signature": other["signature"]}
        ).encode(),
        "no base64": json.dumps({**envelope, "signature": "%%%"}).encode(),
        "reformatted": json.dumps(envelope, indent=1).encode(),
        "replayed": sign(report("site-1", round="r0"), private["site-1"]),
        "genuine, but no histogram": msgspec.json.encode(
            Signed("signed-report", keys["site-1"], broken, msgspec.Raw(raw))
        ),
    }[case]
    assert data != honest
    with pytest.raises(ReportError, match=NOT_GENUINE[case]) as caught:
        verify_report(data, keys)
    assert str(caught.value).startswith("site-1: ")
    assert "\n" not in str(caught.value)


def test_strangers_and_rubbish_are_refused(private, keys):
    stranger = robfcp.Report.from_scores("thief-9", [0.5], round="r1")
    with pytest.raises(ReportError, match="thief-9: is not registered"):
        verify_report(sign(stranger, private["thief"]), keys)
    rubbish = (b"", b"[]", b"\xff\xff", b"[" * 100_000, b'{"client":"a\\n"}')
    for data in (*rubbish, b'{"kind":"signed-report"}'):
        with pytest.raises(ReportError, match=r"file\.json: is not registered"):
            verify_report(data, keys)


def sent(**files):
    return [Sent(data, f"file:{name}.json") for name, data in files.items()]


def test_nobody_can_silence_another(private, keys):
    genuine = {site: sign(report(site), private[site]) for site in SITES}
    forged = sign(report("site-1", seed=9), private["thief"])
    files = sent(a=forged, **genuine, copy=genuine["site-2"])
    federation = Federation.from_reports(files, keys=keys, round="r1")
    assert federation.ids == SITES
    assert federation.checked.signatures == "by registered keys"
    assert [fault.client for fault in federation.faulty] == ["file:a.json"]
    assert "a.json: site-1: the signature is not by its registered" in federation.faulty[0].reason
    federation = Federation.from_reports(files[:2], keys=keys, round="r1")
    assert federation.ids == ("site-0",)
    assert [fault.client for fault in federation.faulty] == ["site-1"]
    assert set(federation.missing) == set(keys) - {"site-0", "site-1"}
    reports, faults = verified(sent(a=forged, b=genuine["site-1"]), keys, "r1")
    assert [(len(reports), fault.client) for fault in faults] == [(1, "file:a.json")]


def test_what_is_refused_where_keys_are_registered_leaves_the_rest(private, keys, tmp_path):
    good = sign(report("site-0"), private["site-0"])
    twice = [sign(report("site-1", seed=seed), private["site-1"]) for seed in (0, 1)]
    unsigned = [report("site-1"), report("site-2").to_json().decode(), 17, {"client": "site-3"}]
    for items, words in (
        (twice, {"site-1": "2 different reports"}),
        (
            unsigned,
            {
                "site-1": "site-1: the report is not signed",
                "site-2": "site-2: the report is not signed",
                "report #3": "report #3: is not registered",
            },
        ),
    ):
        federation = Federation.from_reports([*items, good], keys=keys, round="r1")
        assert list(federation) == [report("site-0")]
        reasons = {fault.client: fault.reason for fault in federation.faulty}
        assert all(text in reasons[client] for client, text in words.items())
    (tmp_path / "a.json").write_bytes(good)
    paths = [tmp_path / "a.json", tmp_path / "none.json"]
    federation = Federation.read(paths, keys=keys, round="r1")
    assert list(federation) == [report("site-0")]
    assert "no such file" in federation.faulty[0].reason


def test_without_keys_a_signature_must_be_by_the_key_it_names(private, tmp_path):
    files = [tmp_path / f"{site}.json" for site in SITES[:2]]
    for site, path in zip(SITES, files, strict=False):
        report(site).save(path, private["thief"])
    federation = Federation.read(files)
    assert federation.checked.signatures == "2 of 2 valid, by keys that nobody registered"
    files[1].write_bytes(files[1].read_bytes().replace(b'"site-1"', b'"site-2"'))
    federation = Federation.read(files)
    assert federation.ids == ("site-0",)
    assert "not by the key the report names" in federation.faulty[0].reason
    report("site-2").save(tmp_path / "d.json")
    assert Federation.read([tmp_path / "d.json"]).checked.signatures == "not checked"


# Keys


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


@pytest.mark.parametrize(
    "text", [b"", b"rubbish", b"\xff" * 100, b"-----BEGIN PRIVATE KEY-----\nAAAA\n"]
)
def test_what_is_not_a_key_is_refused(text, tmp_path):
    (tmp_path / "k").write_bytes(text)
    with pytest.raises(RobfcpError, match="not an Ed25519 private key"):
        load_key(tmp_path / "k")
    with pytest.raises(RobfcpError, match="no such file"):
        load_key(tmp_path / "none")


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
    path.write_text(
        "\n".join(f'["{client}"]\nkey = {words}\n' for client, words in entries.items())
    )
    return path


def test_small_order_and_shared_keys_and_odd_dates_are_refused(keys, tmp_path):
    good = f'"{keys["site-0"]}"'
    small = [base64.b64encode(bytes.fromhex(key)).decode() for key in SMALL]
    for entries, words in (
        *(({"a": f'"ed25519:{key}"'}, "not an Ed25519 public key") for key in small),
        ({"a": good, "b": good}, "b has the key of a"),
        *(
            ({"a": f"{good}\nnot-after = {wrong}"}, "not-after")
            for wrong in ('"soon"', "7", "2026-01-31T00:00:00")
        ),
    ):
        with pytest.raises(RobfcpError, match=words):
            read_keys(registry(tmp_path / "r.toml", **entries))


def test_keys_expire_and_are_revoked(private, keys, tmp_path):
    a, b, c = keys.values()
    path = registry(
        tmp_path / "r.toml",
        **{
            "site-0": f'"{a}"\nnot-after = "2027-01-31"',
            "site-1": f'"{b}"\nnot-after = 2026-01-31',
            "site-2": f'"{c}"',
        },
    )
    assert read_keys(path, today=date(2026, 1, 31)) == keys
    assert read_keys(path, today=date(2026, 2, 1)) == {**keys, "site-1": ""}
    revoked = tmp_path / "revoked"
    revoked.write_text(f"# lost in May\n{c}  # site c\n")
    assert read_keys(path, revoked, date(2026, 1, 1)) == {**keys, "site-2": ""}
    files = [tmp_path / f"{site}.json" for site in ("site-0", "site-2")]
    for file in files:
        report(file.stem).save(file, private[file.stem])
    federation = Federation.read(files, keys=path, round="r1", revoked=revoked)
    assert federation.ids == ("site-0",)
    assert "expired or was revoked" in federation.faulty[0].reason


@pytest.mark.parametrize(
    ("name", "text", "sizes"),
    [
        ("r.json", '{"site-1": 40, "site-2": {"samples": 50}}', {"site-1": 40, "site-2": 50}),
        (
            "r.toml",
            'site-1 = 40\n["site 2"]\nsamples = 50\nkey = "k"\n',
            {"site-1": 40, "site 2": 50},
        ),
    ],
)
def test_registries_hold_samples_in_json_or_toml(name, text, sizes, tmp_path):
    (tmp_path / name).write_text(text)
    assert read_sizes(tmp_path / name) == sizes
    (tmp_path / "k.toml").write_text('[site-1]\nkey = "k"\n')
    assert read_registry(tmp_path / "k.toml") == {"site-1": Registered(key="k")}


def test_missing_libraries_are_named_in_one_line(monkeypatch, tmp_path):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RobfcpError, match=r"pip install .robfcp\[signatures\]"):
        generate_key(tmp_path / "k")


def test_the_commands_make_a_signed_federation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, lines = np.random.default_rng(0), ""
    for k in range(6):
        printed = said("keygen", f"site-{k}", "-o", f"{k}.key")
        lines += printed[printed.index("[") :]
        p = rng.dirichlet([1, 1, 1], 50)
        np.savez(f"{k}.npz", probabilities=p, labels=rng.integers(0, 3, 50))
        common = ["-c", f"site-{k}", "--round", "r1", "-o", f"{k}.json"]
        said("report", f"{k}.npz", *common, "--sign", f"{k}.key")
    (tmp_path / "registry.toml").write_text(lines)
    signed = tmp_path / "5.json"
    signed.write_bytes(unwrap(signed.read_bytes()))  # somebody drops the signature
    files = [f"{k}.json" for k in range(6)]
    signing = ["--keys", "registry.toml", "--round", "r1"]

    def calibrated(*words):
        return json.loads(said("calibrate", *words, "--liars", 1, "--json"))

    output = calibrated(*files, *signing)
    assert (output["n_clients"], output["faulty"][0]["client"]) == (5, "site-5")
    assert "not signed" in output["faulty"][0]["reason"]
    output = calibrated(*files[:4], *signing)
    assert output["missing"] == ["site-4", "site-5"]
    assert output["outside"] == ["site-4", "site-5"]
    assert calibrated(*files)["n_clients"] == 6
    keyed = ["calibrate", *files, "--keys", "registry.toml"]
    assert "only 0 of" in refused(*keyed, "--round", "r2")
    assert "needs --round" in refused(*keyed)
