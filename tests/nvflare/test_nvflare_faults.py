"""Whatever sites do, the round ends by its deadline and says of everyone what it did."""

from importlib.util import find_spec

import numpy as np
import pytest

import robfcp

pytest.importorskip("nvflare.apis")
pytestmark = pytest.mark.nvflare

from engine_data import core_reports  # noqa: E402
from nvflare_faults import (  # noqa: E402
    altered,
    beside,
    empty,
    forged,
    huge,
    late,
    nested,
    odd_code,
    once,
    play,
    raised,
    raw,
    record,
    silent,
    slow,
    stolen,
    twice,
)
from nvflare_sites import DATA  # noqa: E402

CASES = {
    "an honest site": (None, "ok", "", 1),
    "NaN for a count": (
        raw(b'{"schema":1,"kind":"report","client":"site-3","counts":[NaN]}'),
        "faulty",
        "not a valid report",
        1,
    ),
    "not JSON": (raw(b"\xff\xfe"), "faulty", "not a valid report", 1),
    "another round's report": (
        altered(lambda report: report.update(round="yesterday")),
        "faulty",
        "round is yesterday",
        1,
    ),
    "another model's report": (
        altered(lambda report: report.update(model="abc")),
        "faulty",
        "model is abc",
        1,
    ),
    "another client's name": (
        altered(lambda report: report.update(client="site-5")),
        "faulty",
        "another name",
        1,
    ),
    "a broken report in another's name": (
        raw(b'{"schema":1,"kind":"report","client":"site-5"}'),
        "faulty",
        "not a valid report",
        1,
    ),
    "a size of its own": (
        altered(lambda report: report.update(n_samples=61)),
        "faulty",
        "n_samples says 61",
        1,
    ),
    "50 MB": (huge, "rejected", "52428800 bytes", 2),
    "a model beside the reply": (beside, "rejected", "not of this protocol", 2),
    "an odd record": (record(nonce=7, body=b""), "rejected", "not of this protocol", 2),
    "an unknown code": (record(nonce="x", code=99), "rejected", "not of this protocol", 2),
    "an empty result": (empty, "rejected", "cannot be read", 2),
    "fields that are none": (nested, "rejected", "cannot be read", 2),
    "a forged nonce": (forged, "rejected", "nonce", 2),
    "a forged nonce, then its own": (once(forged), "ok", "", 2),
    "a forged nonce, then silence": (once(forged, silent), "rejected", "nonce", 2),
    "two replies": (twice, "ok", "", 1),
    "another client answers first": (stolen, "ok", "", 1),
    "silence": (silent, "missing", "no answer within", 1),
    "an answer after the deadline": (late, "late", "after the deadline", 1),
    "an answer just in time": (slow, "ok", "", 1),
    "code that raised": (raised, "faulty", "NVFlare says EXECUTION_EXCEPTION", 2),
    "code that raised once": (once(raised), "ok", "", 2),
    "a code nobody knows": (odd_code, "faulty", "an unknown code", 2),
}


def status(calibration):
    return {c: entry["status"] for c, entry in calibration.provenance["clients"].items()}


@pytest.mark.parametrize("case", CASES)
def test_every_site_is_classified_and_the_rest_calibrates(case, tmp_path):
    fault, expected, reason, attempts = CASES[case]
    deadline = 1.5 if "silence" in case or case == "an answer after the deadline" else 20.0
    calibration, sites, seconds = play(
        tmp_path,
        {} if fault is None else {"site-3": fault},
        deadline=deadline,
    )
    entry = calibration.provenance["clients"]["site-3"]
    assert (entry["status"], entry["attempts"]) == (expected, attempts)
    assert reason in entry["reason"]
    assert len(sites["site-3"].asked) == len(set(sites["site-3"].asked)) == attempts
    assert {c: s for c, s in status(calibration).items() if c != "site-3"} == {
        f"site-{k}": "ok" for k in range(8) if k != 3
    }
    assert seconds < 2 * deadline + 8  # reports, then the sites' own check
    kept = {name: pair for name, pair in DATA.items() if expected == "ok" or name != "site-3"}
    core = robfcp.calibrate(core_reports(kept), malicious=1)
    assert calibration.threshold == core.threshold
    assert np.array_equal(calibration.federation.counts, core.federation.counts)
    assert calibration.certificate.n_outside == (0 if expected == "ok" else 1)
    assert "patient" not in calibration.to_json().decode() + str(calibration.provenance)
    assert calibration.provenance["engine"].startswith("nvflare 2.")
    assert calibration.provenance["run_id"] == "job"


OPTIONS = {
    "the default": {"malicious": 2},
    "the paper's": {"defence": "rob-fcp", "malicious": 3},
    "a guarantee": {"malicious": 2, "guarantee": "marginal"},
    "three levels": {"defence": "none", "malicious": 0, "confidence_level": [0.8, 0.9, 0.95]},
}


@pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")  # flwr on a newer click
@pytest.mark.parametrize("case", OPTIONS)
def test_files_flower_and_nvflare_end_alike_to_the_bit(case, tmp_path):
    options = OPTIONS[case]
    nvflare, _, _ = play(tmp_path, **options)
    folder = tmp_path / "files"
    folder.mkdir()
    for report in core_reports(DATA):
        report.save(folder / f"{report.client}.json")
    others = [robfcp.calibrate(robfcp.read_federation(sorted(folder.iterdir())), **options)]
    if find_spec("flwr") is not None:
        from robfcp.engines.flower import calibrate_in_process

        others.append(calibrate_in_process(DATA, sizes=None, **options))
    for other in others:
        assert other.threshold == nvflare.threshold
        assert other.trusted == nvflare.trusted
        assert np.array_equal(other.maliciousness, nvflare.maliciousness)
        assert np.array_equal(other.federation.counts, nvflare.federation.counts)
        for ours, theirs in zip(nvflare.levels, other.levels, strict=True):
            assert ours.curve == theirs.curve
            assert ours.certificate.statement == theirs.certificate.statement
