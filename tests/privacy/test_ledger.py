"""No process, restart, crash or second statement spends more than a client declared first."""

import itertools
import multiprocessing
import os
import signal
from contextlib import suppress

import pytest

from robfcp.errors import RobfcpError
from robfcp.privacy import Privacy, PrivacyLedger

TWO_ROUNDS, THREE_ROUNDS, FOUR_ROUNDS = (
    Privacy(1.0, n_rounds=2),
    Privacy(1.0, n_rounds=3),
    Privacy(4.0, n_rounds=4),
)
FORK = multiprocessing.get_context("fork")


def charge_once(path):
    with suppress(RobfcpError):
        return PrivacyLedger(path).charge(TWO_ROUNDS, str(os.getpid()))


def test_eight_processes_with_a_budget_of_two_are_allowed_two(tmp_path):
    with FORK.Pool(8) as pool:
        allowed = pool.map(charge_once, [tmp_path / "l.json"] * 8, chunksize=1)
    assert sum(map(bool, allowed)) == len(PrivacyLedger(tmp_path / "l.json").releases()) == 2


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (TWO_ROUNDS, [TWO_ROUNDS, TWO_ROUNDS], "2 reports have spent epsilon 1 of 1"),
        (Privacy(1.0), [Privacy(2.0)], "have spent epsilon 1 of 1"),  # stated first, for ever
        (FOUR_ROUNDS, [Privacy(1.0)], "of 1 at delta 0"),  # and a smaller one later
        (FOUR_ROUNDS, [Privacy(4.0, n_rounds=4, max_samples_per_patient=2)], "different uni"),
        (TWO_ROUNDS, [TWO_ROUNDS, Privacy(2.0, neighbors="add-remove")], "different units"),
    ],
)
def test_no_later_statement_spends_more_than_any_budget_stated(first, then, message, tmp_path):
    ledger = PrivacyLedger(tmp_path / "l.json")
    ledger.charge(first, "0")
    *accepted, last = then
    for round_index, privacy in enumerate(accepted, 1):
        assert ledger.charge(privacy, str(round_index)).epsilon() == pytest.approx(1)
    with pytest.raises(RobfcpError, match=message):
        ledger.charge(last)
    assert [release.round for release in ledger.releases()] == [str(k) for k in range(len(then))]


def test_a_ledger_belongs_to_one_data_set(tmp_path):
    path = tmp_path / "l.json"
    PrivacyLedger(path, "patients of 2025").charge(TWO_ROUNDS)
    with pytest.raises(RobfcpError, match="is the ledger of 'patients of 2025', not of 'x'"):
        PrivacyLedger(path, "x").charge(TWO_ROUNDS)
    assert PrivacyLedger(path).charge(TWO_ROUNDS).epsilon() == 1.0
    for name in ("", "a\nb", "x" * 201, 7):
        with pytest.raises(RobfcpError, match="no short name"):
            PrivacyLedger(path, name)


def test_a_ledger_that_is_gone_or_old_refuses(tmp_path):
    path, lock = tmp_path / "l.json", tmp_path / "l.json.lock"
    PrivacyLedger(path).charge(TWO_ROUNDS)
    old = path.read_bytes()
    PrivacyLedger(path).charge(TWO_ROUNDS)
    for spoil, message in (
        (lambda: path.write_bytes(old), "is an old copy: 2 reports were recorded and it holds"),
        (path.unlink, "is gone"),
        (lambda: lock.write_bytes(b" what\n"), "is damaged"),
    ):
        spoil()
        with pytest.raises(RobfcpError, match=message):
            PrivacyLedger(path).charge(TWO_ROUNDS)
    with pytest.raises(RobfcpError, match="cannot be written"):
        PrivacyLedger(tmp_path / "no" / "l.json").charge(TWO_ROUNDS)


def charge_and_die(path, step):
    """Killed before its so many-th call of the file system."""
    calls = itertools.count(1)

    def dying(call):
        def wrapped(*args, **kwargs):
            if next(calls) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapped

    for name in ("fsync", "replace", "write", "lseek", "fdopen", "chmod"):
        setattr(os, name, dying(getattr(os, name)))
    PrivacyLedger(path).charge(THREE_ROUNDS, "r")


def test_killed_between_any_two_writes_nothing_is_lost_and_nothing_is_free(tmp_path):
    for step in range(1, 40):
        path = tmp_path / f"{step}.json"
        PrivacyLedger(path).charge(THREE_ROUNDS, "first")
        child = FORK.Process(target=charge_and_die, args=(path, step))
        child.start()
        child.join()
        spent = len(PrivacyLedger(path).releases())
        for _ in range(3 - spent):  # whole, unlocked, and counting on
            PrivacyLedger(path).charge(THREE_ROUNDS, "later")
        with pytest.raises(RobfcpError, match="have spent"):
            PrivacyLedger(path).charge(THREE_ROUNDS)
        if child.exitcode == 0:
            break
        assert (child.exitcode, spent in (1, 2)) == (-signal.SIGKILL, True)
    assert (child.exitcode, spent) == (0, 2)
    assert step > 6


def test_links_to_a_ledger_share_its_budget(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    for path in (link, real):
        PrivacyLedger(path).charge(TWO_ROUNDS)
    assert not (tmp_path / "link.json.lock").exists()
    assert link.is_symlink()
    with pytest.raises(RobfcpError, match="2 reports have spent"):
        PrivacyLedger(link).charge(TWO_ROUNDS)
