"""Rounds, monitors and looks one after the other through the commands, with everything that goes
wrong in the mail: nothing is counted twice, no traceback, and the alarm rings where it should."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from robfcp.cli import app
from robfcp.errors import RobfcpError
from robfcp.monitoring import AlarmHistory, Chain, chain_path

SITES, LIARS = 10, 2


def samples(rng, n, missed):
    """Three classes; a share of the samples scores high."""
    labels = rng.integers(0, 3, n)
    score = np.where(rng.random(n) < missed, rng.uniform(0.93, 1, n), 0.9 * rng.beta(0.7, 2.2, n))
    p = np.repeat(score[:, None] / 2, 3, axis=1)
    p[np.arange(n), labels] = 1 - score
    return p, labels


def go(*words, ok=True):
    """Run a command: it works, or says why not in one line."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, (RobfcpError, SystemExit))
    assert (result.exit_code == 0) is ok, (words[:6], result.exception)
    if not ok:
        assert str(result.exception).isprintable()
    return result


def broken(path, rng, words):
    """With the file cut short the command refuses; afterwards it is whole again."""
    whole = path.read_bytes()
    path.write_bytes(whole[: rng.randrange(len(whole))])
    go(*words, ok=False)
    path.write_bytes(whole)


class Site:
    """One site of a round: what it has counted, and what it mails."""

    def __init__(self, number, k):
        self.k, self.number, self.seen = k, number, 0
        self.state = Path(f"m-{number}-{k}.json")

    def look(self, step, missed, rng, chance):
        """Count fresh samples and write an e-report, which the mail may spoil."""
        n = int(rng.integers(30, 60))
        p, y = samples(rng, n, missed)
        batch, mail = f"f-{self.k}-{step}.npz", Path(f"e-{self.number}-{self.k}-{step}.json")
        np.savez(batch, probabilities=p, labels=y, id=np.arange(self.seen, self.seen + n))
        words = ["monitor", f"c{self.number}.json", batch, "--id", "id", "--state", self.state,
                 "--own", f"r-{self.number}-{self.k}.json", "-c", f"s{self.k}", "--report", mail,
                 "--round", f"R{self.number}", "--step", step, "--json"]  # fmt: skip
        fault = chance.random()
        if fault < 0.15 and self.state.exists():
            broken(self.state, chance, words)
        for _ in range(2 if fault < 0.3 else 1):  # fed twice, counted once
            assert json.loads(go(*words).stdout)["n"] == self.seen + n
        self.seen += n
        if 0.3 < fault < 0.42:
            mail.write_bytes(mail.read_bytes()[: chance.randrange(300)] + b"\xff" * 9)
        elif self.k >= SITES - LIARS and fault < 0.9:
            told = json.loads(mail.read_bytes())
            told |= {"log_coverage": 2.0 * told["n_samples"], "log_drift": 1e14}
            mail.write_text(json.dumps(told))
        return [] if fault > 0.95 else [mail]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_three_rounds_of_eight_looks(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, chance = np.random.default_rng(seed), random.Random(seed)
    for number in (1, 2, 3):
        for k in range(SITES):
            p, y = samples(rng, 300, 0.09)
            np.savez("own.npz", probabilities=p, labels=y)
            go("sketch", "own.npz", "-c", f"s{k}", "-o", f"r-{number}-{k}.json", "--round",
               f"R{number}")  # fmt: skip
        before = ["--previous", f"c{number - 1}.json", "--alarms", f"alarms-{number - 1}.json"]
        reports = [f"r-{number}-{k}.json" for k in range(SITES)]
        go("calibrate", *reports, "--malicious", LIARS, "-o", f"c{number}.json", "--html", "p.html",
           *(before if number > 1 else []))  # fmt: skip
        record, mailed = Path(f"alarms-{number}.json"), []
        sites = [Site(number, k) for k in range(SITES)]
        for step in range(1, 9):
            drifts = number == 2 and step > 3
            mail = [
                path
                for site in sites
                for path in site.look(step, 0.35 if drifts and site.k < 7 else 0.09, rng, chance)
            ]
            common = ["--history", record, "-m", LIARS, "--sites", SITES]
            again = chance.sample(mailed, min(3, len(mailed)))  # replays of earlier steps
            words = ["alarms", *mail, *again, *common, "--step"]
            if step > 1:
                go(*words, step - 2 if step > 2 else 0, ok=False)  # the clock runs backwards
                broken(record, chance, [*words, step])
                go("alarms", *mail, "--history", record, "-m", LIARS + 1, "--step", step, ok=False)
            go(*words, step, "--html", "h.html")
            go(*words, step)  # looked at again
            mailed += mail
        history = AlarmHistory.load(record)
        assert [look.step for look in history.looks] == list(range(1, 9))
        assert ("coverage" in history.rang) is (number == 2)
        go("page", record, "-o", "h.html")
        go("page", f"c{number}.json", "--history", record, "-o", "p.html")
    links = Chain.from_json(chain_path("c3.json").read_bytes()).links
    assert [bool(link.rang) for link in links] == [False, False, True]
