"""Files alone carry a federation: reports, keys, terms in; calibrations, letters, logs out."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from makers import outputs, refused, said, table

import robfcp
from robfcp._sealed import sha256_of
from robfcp.cli.server import parse_defense, parse_guarantee
from robfcp.monitoring import EValueReport

NAMES = ["p0", "p1", "p2", "p3"]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Seven sites' tables and their reports, made once."""
    folder = tmp_path_factory.mktemp("sites")
    for k in range(7):
        p, y = outputs(k, 300, 4, 0.3)  # the third claims to be certain and always right
        written = table(folder / f"site-{k}.csv", np.eye(4)[y] if k == 2 else p, y, NAMES)
        report = folder / "reports" / f"{k}.json"
        said("report", written, "--client", f"site-{k}", "--model", "m1", "-o", report)
    return folder


@pytest.fixture
def sites(reported, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(reported, tmp_path, dirs_exist_ok=True)


def test_sites_report_the_server_calibrates_a_site_predicts(sites):
    out = said("calibrate", sites / "reports", "-o", sites / "c.json")
    assert "left out  site-2" in out
    p, y = outputs(99, 500, 4, 0.3)
    words = "predict", sites / "c.json", table(sites / "test.csv", p, y, NAMES), "--model", "m1"
    figures = json.loads(said(*words, "-o", sites / "sets.npy", "--json"))
    sets = robfcp.Calibration.load(sites / "c.json").predict_set(p)
    assert figures["coverage"] == robfcp.metrics.coverage(sets, y)
    assert figures["set_size"] == robfcp.metrics.mean_set_size(sets)
    np.testing.assert_array_equal(np.load(sites / "sets.npy"), sets)
    assert "was made for model m1, not m2" in refused(*words[:3], "--model", "m2")
    np.save(sites / "p.npy", np.array([[0.5, 0.25, 0.25, 0.0]]))
    assert "coverage" not in json.loads(said(*words[:2], sites / "p.npy", "--json"))


def test_collected_reports_are_the_valid_ones_and_calibrate_alike(sites):
    reports, clean = sites / "reports", sites / "clean.parquet"
    (reports / "x.json").write_text("{broken")
    (reports / "z.json").write_bytes((reports / "0.json").read_bytes())
    assert "7 valid reports of 9 files" in said("collect", reports, "-o", clean)
    kept = json.loads(said("calibrate", clean, "--json"))
    found = json.loads(said("calibrate", reports, reports / "absent.json", "--json"))
    assert sorted(f["field"] for f in found["faulty"]) == ["file", "report"]
    assert kept["trusted"] == found["trusted"]
    assert kept["levels"][0]["threshold"] == found["levels"][0]["threshold"]
    assert "quorum" in refused("collect", reports, "-o", sites / "none.parquet", "--round", "r9")
    assert not (sites / "none.parquet").exists()


SHIFT = {"promise": "label-shift", "liars": 1, "alike": 0.1, "mix": "any"}


@pytest.mark.parametrize(
    ("words", "promise", "defence"),
    [
        ({}, None, robfcp.Consensus()),
        ({"liars": 3}, None, robfcp.Consensus(at_most=3)),
        ({"exactly": 3}, None, robfcp.Consensus(exactly=3)),
        (
            {"exactly": 3, "liars": 2, "promise": "pac"},
            robfcp.PACGuarantee(2),
            robfcp.Consensus(exactly=3),
        ),
        (
            {"promise": "marginal", "samples": 9},
            robfcp.MarginalGuarantee(samples=9),
            robfcp.Consensus(),
        ),
        (
            {"promise": "pac", "liars": 1, "alike": 0.1},
            robfcp.PACGuarantee(1, 0.1),
            robfcp.Consensus(),
        ),
        (SHIFT, robfcp.LabelShiftGuarantee(1, 0.1, "any"), robfcp.Consensus()),
        ({"defence": "rob-fcp", "liars": 2}, None, robfcp.RobFCP(2)),
        ({"defence": "none", "liars": 2}, None, robfcp.defense.FCP()),
    ],
)
def test_words_are_the_objects_of_python(words, promise, defence):
    told = {name: words.get(name) for name in ("liars", "alike", "samples", "mix")}
    held = parse_guarantee(words.get("promise"), told)
    liars = None if held else words.get("liars")
    assert held == promise
    assert parse_defense(words.get("defence", "consensus"), liars, words.get("exactly")) == defence


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--alike 0.1", "--alike: belongs to a promise"),
        ("--mix a=lot", "is neither uniform, any nor NAME=SHARE"),
        ("--promise marginal", "state how many sites (--liars M), or"),
        ("--promise pac", "state how many sites may lie"),
        ("--defence none --exactly 1", "is of --defence consensus"),
        ("--quorum 9", "the quorum is 9"),
        ("--max-share 0.1", "every site holds more than 0.1"),
        ("--exclude nobody", "no client of this round is called nobody"),
    ],
)
def test_words_that_do_not_fit_are_one_line(reported, words, why):
    assert why in refused("calibrate", reported / "reports", *words.split())


def test_excluded_clients_are_set_aside_and_listed_with_the_reason(sites):
    exclusions = "--exclude", "site-2", "--exclude", "site-4"
    found = json.loads(said("calibrate", sites / "reports", *exclusions, "--json"))

    assert found["n_clients"] == 5
    assert found["outside"] == ["site-2", "site-4"]
    assert [fault["client"] for fault in found["faulty"]] == ["site-2", "site-4"]
    printed = " ".join(said("calibrate", sites / "reports", *exclusions).split())
    assert "faulty site-2: was excluded by the operator; ask the operator why" in printed

    for client in (2, 4):
        (sites / "reports" / f"{client}.json").unlink()
    without_their_reports = json.loads(said("calibrate", sites / "reports", "--json"))
    assert found["levels"][0]["threshold"] == without_their_reports["levels"][0]["threshold"]
    assert found["trusted"] == without_their_reports["trusted"]


# Keys, signatures and the log


@pytest.fixture
def signed(sites):
    pytest.importorskip("cryptography")
    said("keygen", "server", "-o", sites / "server.key")
    words = "--sign", sites / "server.key", "--letters", sites / "letters"
    said("calibrate", sites / "reports", "--liars", 1, "-o", sites / "c.json", *words)
    return sites


def forge(path):
    envelope = msgspec.json.decode(path.read_bytes())
    envelope["body"]["levels"][0]["threshold"] = float(robfcp.Binning.default().upper_edges[3])
    envelope["digest"] = sha256_of(msgspec.json.encode(envelope["body"]))
    path.write_bytes(msgspec.json.encode(envelope))


def test_readers_with_a_pinned_key_refuse_a_forgery(signed):
    pinned = "--server-key", signed / "server.key.pub"
    letter = signed / "letters" / "site-0.json"
    readers = [
        ("predict", signed / "c.json", signed / "site-0.csv"),
        ("show", signed / "c.json"),
        ("verify", signed / "c.json", *signed.glob("c.*.record.json")),
    ]
    for words in (*readers, ("predict", letter, signed / "site-0.csv"), ("verify", letter)):
        said(*words, *pinned)
    own = "--report", signed / "reports/2.json"
    assert "as the 7 reports" in said("verify", signed / "c.json", *own)
    forge(signed / "c.json")
    for words in readers:
        assert "not signed by the pinned key" in refused(*words, *pinned)
    assert "threshold is stated as" in refused("verify", signed / "c.json")


def test_calibrate_and_verify_write_a_log_that_verify_checks(signed):
    log = signed / "audit.jsonl"
    words = "-o", signed / "d.json", "--audit", log, "--sign", signed / "server.key"
    said("calibrate", signed / "reports", *words)
    digest = json.loads(said("verify", signed / "d.json", "--audit", log, "--json"))["digest"]
    bare = re.sub(rb',"key":"[^"]*","signature":"[^"]*"', b"", (signed / "d.json").read_bytes())
    assert digest == sha256_of(bare)  # as the page has it
    events = json.loads(said("verify", log, "--json"))
    assert [event["event"] for event in events][-2:] == ["calibration written", "file verified"]
    assert [event["digest"] for event in events[-2:]] == [digest, digest]
    assert "the chain holds" in said("verify", log)


def test_signatures_and_sizes_are_checked_when_collecting(sites):
    pytest.importorskip("cryptography")
    lines, sent = [], sites / "in"
    for k in range(3):
        lines.append(said("keygen", f"site-{k}", "-o", sites / f"{k}.key"))
        signs = ("--sign", sites / f"{min(k, 1)}.key") if k else ()
        words = "--round", "r", *signs, "-o", sent / f"{k}.json"
        said("report", sites / f"site-{k}.csv", "-c", f"site-{k}", *words)
    (sites / "registry.toml").write_text("".join(lines))
    (sites / "sizes.json").write_text(json.dumps({"site-2": 300, "site-1": 9, "site-3": 9}))
    clean = sites / "clean.parquet"
    words = "collect", sent, "-o", clean, "--round", "r", "--json"
    for option, file, kept, missing in (
        ("--sizes", "sizes.json", "site-2", ["site-3"]),
        ("--keys", "registry.toml", "site-1", []),
    ):
        found = json.loads(said(*words, option, sites / file))
        assert (found["clients"], found["missing"]) == ([kept], missing)
        assert len(found["faulty"]) == 2
    words = clean, "--round", "r", "--keys", sites / "registry.toml"
    assert "a collected table has no signatures; calibrate it without --keys" in refused(
        "calibrate", *words
    )


def test_no_command_replaces_its_inputs(sites):
    reports, one = sites / "reports", next((sites / "reports").iterdir())
    before = one.read_bytes()
    for words in (
        ("calibrate", reports, "-o", one),
        ("calibrate", one, "--letters", reports),
        ("calibrate", one, "--html", sites / "reports" / ".." / "reports" / one.name),
    ):
        assert "would replace the inputs; choose another place" in refused(*words)
    assert one.read_bytes() == before


def test_a_folder_keeps_what_is_watched_so_that_a_week_is_one_file(folder):
    own = robfcp.Report.from_predictions("site-03", *outputs(0, 200, 4, 0.3), min_cell_count=1)
    own.save("own.json")
    Path("bad.csv").write_text("a,b\n1,x\n")
    words = "monitor", "calibration.json", "bad.csv", "-s", "watch/"
    assert "the classes are 0 to 3, the columns a, b; rename the columns" in refused(*words)
    assert not Path("watch").exists()
    first = said("monitor", "calibration.json", "own.csv", "--own", "own.json", "-s", "watch/")
    assert re.search(r"100 new samples, 0\.\d{4} of them covered", first)
    assert "own 200 samples prove" in " ".join(first.split())
    later = json.loads(said("monitor", "test.csv", "--state", "watch", "--json"))
    assert (later["n"], later["log_drift"] is not None) == (200, True)
    later = json.loads(said("monitor", "test.csv", "--state", "watch", "--json"))
    assert (later["new"], later["counted_before"], later["new_covered"]) == (0, 100, None)
    assert f"200 samples, {later['covered']:.4f} covered" in later["line"]
    for words in (("monitor", "--state", "watch"), ("show", "watch")):
        assert "no alarm: 200 samples" in said(*words)
    assert "only a folder keeps a calibration" in refused("monitor")
    p, y = outputs(3, 400, 4, 0.3)
    table("shuffled.csv", p, y[::-1], "abcd")
    for command in ("check", "monitor"):  # above a stated floor, below what was wanted
        words = command, "calibration.json", "shuffled.csv", "--floor", "0.2"
        assert "the wanted 0.9000 is missed" in " ".join(said(*words).split())
        said(*words, "--strict", code=3)
    assert "watches nothing yet; name the calibration" in refused("monitor", "test.csv", "-s", "w")
    robfcp.Report.from_predictions("site-03", *outputs(0, 200, 4, 0.3)).save("coarse.json")
    words = "monitor", "calibration.json", "own.csv", "-s", "m.json", "--own", "coarse.json"
    assert "drift cannot be told by coarsened counts" in refused(*words)


def test_alarms_name_who_drifts_and_who_is_silent(tmp_path):
    digest, words = "ab" * 32, ("alarms", tmp_path, "-m", 1, "--history", tmp_path / "../h.json")
    for step in (1, 2):
        for path in tmp_path.glob("*.json"):
            path.unlink()
        for k in range(6 - step):
            log = 30.0 if k < 3 else 0.0
            sent = EValueReport(f"s{k}", digest, 0.9, 9 * step, 0.1, "r", step, log)
            sent.save(tmp_path / f"{k}.json")
        found = json.loads(said(*words, "--sites", 6, "--step", step, "--json", code=3))
        assert found["drifting"] == ["s0", "s1", "s2"]
        assert found["silent"] == ([] if step == 1 else ["s4"])
    EValueReport("s4", digest, 0.9, 9, 0.1, "r", 1, 0.0).save(tmp_path / "late.json")
    found = json.loads(said(*words, "--step", 2, "--json", code=3))
    assert (found["silent"], [one["client"] for one in found["faulty"]]) == ([], ["s4"])
    (tmp_path / "late.json").unlink()
    told = said("alarms", tmp_path, "-m", 1, "--sites", 6, code=3)
    assert "silent  2 of 6 sites, not heard of; --keys would name them" in told
