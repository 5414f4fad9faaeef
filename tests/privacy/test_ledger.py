"""No process, restart, crash or second statement spends more than a site stated first."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from robfcp.errors import RobfcpError
from robfcp.privacy import Ledger, Privacy

TWO = Privacy(epsilon=1.0, rounds=2)


def charge_once(path):
    try:
        Ledger(path).charge(TWO, str(os.getpid()))
    except RobfcpError:
        return False
    return True


def test_eight_processes_with_a_budget_of_two_are_allowed_two(tmp_path):
    with multiprocessing.get_context("fork").Pool(8) as pool:
        allowed = pool.map(charge_once, [tmp_path / "l.json"] * 8, chunksize=1)
    assert sum(allowed) == 2
    assert len(Ledger(tmp_path / "l.json").releases()) == 2


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (Privacy(1.0), [Privacy(1.0)], "1 reports have spent epsilon 1 of 1"),
        (TWO, [TWO, TWO], "2 reports have spent epsilon 1 of 1"),
        (Privacy(1.0), [Privacy(2.0)], "have spent epsilon 1 of 1"),  # stated first, for ever
        (Privacy(1.0), [Privacy(18.0)], "have spent epsilon 1 of 1"),
        (Privacy(4.0, rounds=4), [Privacy(1.0)], "of 1 at delta 0"),  # and a smaller one later
        (Privacy(4.0, rounds=4), [Privacy(4.0, rounds=4, samples_per_patient=2)], "different uni"),
        (TWO, [TWO, Privacy(2.0, neighbours="add-remove")], "different units"),
    ],
)
def test_no_later_statement_spends_more_than_any_budget_stated(first, then, words, tmp_path):
    ledger = Ledger(tmp_path / "l.json")
    ledger.charge(first, "0")
    *fine, last = then
    for number, privacy in enumerate(fine, 1):
        assert ledger.charge(privacy, str(number)).epsilon() == pytest.approx(1)
    with pytest.raises(RobfcpError, match=words):
        ledger.charge(last)
    assert [release.round for release in ledger.releases()] == [str(k) for k in range(len(then))]


def test_a_ledger_belongs_to_one_data_set(tmp_path):
    path = tmp_path / "l.json"
    Ledger(path, "patients of 2025").charge(TWO)
    with pytest.raises(RobfcpError, match="is the ledger of 'patients of 2025', not of 'x'"):
        Ledger(path, "x").charge(TWO)
    assert Ledger(path).charge(TWO).epsilon() == 1.0
    assert json.loads(path.read_bytes())["dataset"] == "patients of 2025"
    for name in ("", "a\nb", "x" * 201, 7):
        with pytest.raises(RobfcpError, match="no short name"):
            Ledger(path, name)


def test_a_ledger_that_is_gone_or_old_refuses(tmp_path):
    path = tmp_path / "l.json"
    ledger = Ledger(path)
    ledger.charge(TWO)
    old = path.read_bytes()
    ledger.charge(TWO)
    path.write_bytes(old)
    with pytest.raises(RobfcpError, match=r"is an old copy: 2 reports were recorded and it holds"):
        ledger.charge(TWO)
    path.unlink()
    with pytest.raises(RobfcpError, match="is gone"):
        ledger.charge(TWO)
    (tmp_path / "l.json.lock").write_bytes(b" what\n")
    with pytest.raises(RobfcpError, match="is damaged"):
        ledger.charge(TWO)
    with pytest.raises(RobfcpError, match="cannot be written"):
        Ledger(tmp_path / "no" / "l.json").charge(TWO)


STEPS = """
import os, signal, sys
from robfcp import files
from robfcp.privacy import Ledger, Privacy
from robfcp.privacy import ledger as module
folder, count = sys.argv[1], 0
def dying(call):
    def wrapped(*args, **kwargs):
        global count
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*args, **kwargs)
        return result
    return wrapped
for name in ("fsync", "replace", "write", "lseek", "fdopen", "chmod"):
    setattr(os, name, dying(getattr(os, name)))
for step in range(1, 40):
    child = os.fork()
    if not child:
        count = 0
        Ledger(f"{folder}/{step}.json").charge(Privacy(epsilon=1.0, rounds=3), "r")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(os.waitstatus_to_exitcode(status), flush=True)
    if status == 0:
        break
"""


def test_killed_between_any_two_writes_nothing_is_lost_and_nothing_is_free(tmp_path):
    killed = 0
    for step in range(1, 40):
        Ledger(tmp_path / f"{step}.json").charge(Privacy(epsilon=1.0, rounds=3), "first")
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(tmp_path)], capture_output=True, text=True, check=True
    )
    for step, ended in enumerate(map(int, done.stdout.split()), 1):
        path = tmp_path / f"{step}.json"
        spent = len(Ledger(path).releases())
        assert spent in (1, 2)
        left = 3 - spent
        for _ in range(left):  # whole, unlocked, and counting on
            Ledger(path).charge(Privacy(epsilon=1.0, rounds=3), "later")
        with pytest.raises(RobfcpError, match="have spent"):
            Ledger(path).charge(Privacy(epsilon=1.0, rounds=3))
        assert ended in (0, -signal.SIGKILL)
        assert ended != 0 or spent == 2
        killed += ended != 0
    assert ended == 0
    assert killed >= 6


def test_who_dies_holding_the_lock_lets_go_of_it(tmp_path):
    code = (
        "import time\nfrom robfcp.files import locked\n"
        f"with locked({str(tmp_path / 'l.json.lock')!r}):\n    print('held', flush=True)\n"
        "    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        process.kill()
        started = time.monotonic()
        Ledger(tmp_path / "l.json").charge(TWO)
        assert time.monotonic() - started < 5
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def test_links_to_a_ledger_share_its_budget(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "elsewhere" / "link.json"
    link.parent.mkdir()
    link.symlink_to(real)
    privacy = Privacy(1.0, rounds=2)
    Ledger(link).charge(privacy)
    assert link.is_symlink()
    assert not link.with_name("link.json.lock").exists()
    Ledger(real).charge(privacy)
    for path in (real, link):
        with pytest.raises(RobfcpError, match="2 reports have spent"):
            Ledger(path).charge(privacy)
