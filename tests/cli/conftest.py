"""A federation in files: whatever the commands, their examples and their tests name."""

import os
import shutil

import numpy as np
import pytest
from makers import LAC, outputs, table

import robfcp
from robfcp.audit import AuditLog, log_calibration
from robfcp.local._feedback import save_feedback

LONG = "the-hospital-with-the-very-long-name"


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A round of twelve sites, most with long names, the sixth of which lies; tables; monitors."""
    here = tmp_path_factory.mktemp("made")
    p, y = outputs(0, 2400, 4, 0.3)
    np.savez(here / "site.npz", probabilities=p[:1200], labels=y[:1200])
    reports = []
    for k, rows in enumerate(np.array_split(np.arange(1200), 12)):
        scores = np.zeros(100) if k == 5 else LAC(p[rows], y[rows])
        name = f"site-{k:02d}" if k in (2, 3) else f"{LONG}-{k}"
        held = {"score": LAC, "labels": y[rows], "classes": 4}
        reports.append(robfcp.Report.from_scores(name, scores, **held))
        for folder, more in (("reports", {}), ("inbox", {"round": "r1"})):
            (here / folder).mkdir(exist_ok=True)
            report = robfcp.Report.from_scores(name, scores, **held, **more)
            report.save(here / folder / f"{name}.json")
    reports[3].save(here / "site-03.json")
    calibration = robfcp.calibrate(reports, defense=robfcp.Consensus(at_most=1))
    calibration.save(here / "calibration.json")
    save_feedback(calibration, here / "letters")
    calibration.feedback("site-03").save(here / "letter.json")
    log_calibration(AuditLog(here / "audit.jsonl"), calibration, {})
    for k in (0, 1, 2):
        watch = robfcp.Monitor(calibration, client=reports[k].client, path=here / f"m-{k}.json")
        watch.update(p[:1200], y[:1200])
        watch.e_value_report("spring", 1).save(here / f"e-{k}.json")
    (here / "round.toml").write_text('round = "r1"\n')
    key = robfcp.reports.signing.generate_key(here / "site-03.key")
    (here / "registry.toml").write_text(f'["site-03"]\nkey = "{key}"\n')
    for start, *names in ((300, "own", "site-3"), (1600, "test"), (1800, "new"), (2000, "monday")):
        for name in names:
            table(here / f"{name}.csv", p[start : start + 100], y[start : start + 100], "abcd")
    fresh = np.column_stack([p[1200:1600], y[1200:1600], np.arange(400) % 2])
    table(here / "fresh.csv", fresh, names=[*"abcd", "label", "night"])
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        drawn = np.random.default_rng(0).integers(0, 5, (60, 14))
        np.savetxt(here / f"processed.{name}.data", drawn, "%d", ",")
    return here


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy whose files a test may replace but not change, as the current folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True, copy_function=os.link)
