"""A federation in files: all that the commands, their examples and their tests name."""

import os
import shutil

import numpy as np
import pytest
from makers import LAC, outputs, write_table

import robfcp
from robfcp.audit import AuditLog, log_calibration
from robfcp.local._feedback import save_feedback

LONG_NAME = "the-hospital-with-the-very-long-name"


@pytest.fixture(scope="session")
def round_files(tmp_path_factory):
    """Return a folder of a round of twelve clients, the sixth of which is malicious."""
    folder_ = tmp_path_factory.mktemp("made")
    probabilities, labels = outputs(0, 2400, 4, 0.3)
    np.savez(folder_ / "site.npz", probabilities=probabilities[:1200], labels=labels[:1200])
    reports = []
    for k, rows in enumerate(np.array_split(np.arange(1200), 12)):
        scores = np.zeros(100) if k == 5 else LAC(probabilities[rows], labels[rows])
        name = f"site-{k:02d}" if k in (2, 3) else f"{LONG_NAME}-{k}"
        options = {"score": LAC, "labels": labels[rows], "classes": 4}
        reports.append(robfcp.Report.from_scores(name, scores, **options))
        for folder, context in (("reports", {}), ("inbox", {"round": "r1"})):
            (folder_ / folder).mkdir(exist_ok=True)
            report = robfcp.Report.from_scores(name, scores, **options, **context)
            report.save(folder_ / folder / f"{name}.json")
    reports[3].save(folder_ / "site-03.json")
    calibration = robfcp.calibrate(reports, defense=robfcp.Consensus(max_malicious=1))
    calibration.save(folder_ / "calibration.json")
    save_feedback(calibration, folder_ / "feedback")
    calibration.feedback("site-03").save(folder_ / "feedback.json")
    calibration.feedback("site-03").save(folder_ / "f.json")
    log_calibration(AuditLog(folder_ / "audit.jsonl"), calibration, {})
    for k in (0, 1, 2):
        monitor = robfcp.Monitor(
            calibration, client=reports[k].client, path=folder_ / f"m-{k}.json"
        )
        monitor.update(probabilities[:1200], labels[:1200])
        monitor.e_value_report("spring", 1).save(folder_ / f"e-{k}.json")
    (folder_ / "round.toml").write_text('round = "r1"\n')
    key = robfcp.reports.signing.generate_key(folder_ / "site-03.key")
    (folder_ / "registry.toml").write_text(f'["site-03"]\nkey = "{key}"\n')
    for first_row, *names in (
        (300, "own", "local", "site-3"),
        (1600, "test"),
        (1800, "new"),
        (2000, "monday"),
    ):
        for name in names:
            write_table(
                folder_ / f"{name}.csv",
                probabilities[first_row : first_row + 100],
                labels[first_row : first_row + 100],
                "abcd",
            )
    fresh = np.column_stack([probabilities[1200:1600], labels[1200:1600], np.arange(400) % 2])
    write_table(folder_ / "fresh.csv", fresh, names=[*"abcd", "label", "night"])
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        table_ = np.random.default_rng(0).integers(0, 5, (60, 14))
        np.savetxt(folder_ / f"processed.{name}.data", table_, "%d", ",")
    return folder_


@pytest.fixture
def folder(round_files, tmp_path, monkeypatch):
    """Return a copy whose files a test may replace but not change, as the current folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(round_files, tmp_path, dirs_exist_ok=True, copy_function=os.link)
