"""One stray, repeated, forged or huge file never removes a genuine site, nor costs the others."""

import json
import os

import numpy as np
import pytest
from makers import LAC, peak

import robfcp
from robfcp.arguments import check_client
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.report import wire


def site(name, seed=0, **context):
    scores = np.random.default_rng(seed).random(40)
    return robfcp.Report.from_scores(name, scores, score=LAC, **context)


def test_a_file_called_like_a_client_takes_nothing_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for client, name in (("a", "a"), ("b", "b"), ("site-3", "real")):
        site(client).save(name)
    (tmp_path / "site-3").write_text("{broken")
    federation = Federation.read(["site-3", "nobody", "real", "a", "b"])
    assert federation.ids == ("a", "b", "site-3")
    assert [fault.client for fault in federation.faulty] == ["file:nobody", "file:site-3"]


def test_a_report_of_another_round_is_set_aside_before_duplicates_are_judged():
    reports = [site(f"s{k}", k, round="now") for k in range(4)]
    old = site("s1", 9, round="before")
    for mixed in ([old, *reports], [*reports, old]):
        federation = Federation.from_reports(mixed)
        assert federation.ids == ("s0", "s1", "s2", "s3")
        assert "round is before" in federation.faulty[0].reason
        assert federation.faulty[0].client.startswith("report #")
    strays = [site("x", k, round="before") for k in range(9)]  # who sends many has no vote
    assert Federation.from_reports([*strays, *reports]).round == "now"


def big(name, bins):
    parameters = {"bins": bins, "low": 0.0, "high": 1.0}
    grid = {"name": "uniform", "digest": Grid.uniform(bins).digest, "parameters": parameters}
    counts = {"bins": [1], "counts": [40]}
    return json.dumps(json.loads(site(name).to_json()) | {"grid": grid, "counts": counts})


@pytest.mark.parametrize("bins", [9_000, 19_000])
def test_of_grids_only_digests_are_kept_until_the_vote(bins):
    sent = [big(f"x{k}", bins + k) for k in range(180)]
    sent += [site(f"s{k}", k).to_json() for k in range(70)]
    assert peak(lambda: Federation.from_reports(sent)) < 10e6
    assert Federation.from_reports(sent).n_clients == 70


def test_a_fine_grid_may_be_the_rounds_own_for_few_clients():
    reports = [big(f"s{k}", 20_000) for k in range(3)]
    assert Federation.from_reports(reports).grid == Grid.uniform(20_000)
    with pytest.raises(RobfcpError, match="more than 20000 bins"):
        robfcp.Report.from_json(big("x", 20_001))
    many = Federation.from_counts(np.eye(900, 20_000, dtype=np.int8), Grid.uniform(20_000))
    with pytest.raises(RobfcpError, match="20000 bins are too many for 900 sites"):
        Federation.from_reports(iter(many))


def test_where_the_grid_is_stated_no_other_is_built(monkeypatch):
    hostile, honest = big("x", 19_000), site("s").to_json()
    monkeypatch.setattr(wire, "named", lambda *_: pytest.fail("was built"))
    federation = Federation.from_reports([hostile, honest], grid=Grid.default())
    assert federation.ids == ("s",)
    assert "grid is uniform" in federation.faulty[0].reason


LOOKALIKES = [" a", "a ", "a\u00a0", "sit\u0435-3", "ѕite", "si\u3164te", "ｓite", "a\ufe0f"]
LOOKALIKES += ["file:x", "report #3", "\u2800", "e\u0301"]


@pytest.mark.parametrize("name", LOOKALIKES, ids=ascii)
def test_names_that_look_like_others_are_refused(name):
    for plain in ("site-3", "Zürich", "Αθήνα", "Москва 2", "東京大学病院 A", "a/b c"):
        check_client(plain)
    with pytest.raises(robfcp.ReportError) as error:
        check_client(name)
    assert str(error.value).isascii() or "letters" in str(error.value)


def test_files_have_the_umasks_mode_and_keep_their_own(tmp_path):
    before = os.umask(0o027)
    try:
        site("a").save(tmp_path / "new")
        (tmp_path / "old").touch(mode=0o600)
        site("a").save(tmp_path / "old")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "old")]
    assert modes == [0o640, 0o600]


@pytest.mark.parametrize("special", ["pipe", "/dev/zero", "/proc/self/status"])
def test_specials_never_hang(tmp_path, special):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x").symlink_to(special)
    site("a").save(tmp_path / "a")
    federation = Federation.read([tmp_path / "x", tmp_path / "a"])
    assert (federation.ids, len(federation.faulty)) == (("a",), 1)
