"""A letter tells its site what was done, what is seen and what to check, and nothing of others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from in_process import run

import robfcp
from robfcp.calibration import Letter
from robfcp.calibration.letters import letter_to, save_letters

SITES = tuple(f"site-{k:02d}" for k in range(10))


def federation(*, copy: bool = False) -> list[robfcp.Report]:
    """Ten sites; the last swaps two classes, or sends the report of the first."""
    rng, score = np.random.default_rng(0), robfcp.LAC()
    reports = []
    for name in SITES:
        p = rng.dirichlet(np.full(3, 0.2), 300)
        y = (p.cumsum(axis=1) > rng.random((300, 1))).argmax(axis=1)
        if name == SITES[-1]:
            y = np.array([0, 2, 1])[y]
        names = ["mild", "grave", "dead"]
        reports.append(
            robfcp.Report.from_scores(name, score(p, y), score=score, labels=y, classes=names)
        )
    if copy:
        first = json.loads(reports[0].to_json())
        reports[-1] = robfcp.Report.from_json(json.dumps({**first, "client": SITES[-1]}))
    return reports


@pytest.fixture(scope="module")
def swapped() -> robfcp.Calibration:
    return robfcp.calibrate(federation(), defence=robfcp.Consensus(at_most=2))


def test_a_site_that_was_left_out_reads_the_pages_diagnosis(swapped: robfcp.Calibration) -> None:
    letter = letter_to(swapped, SITES[-1])
    one = robfcp.diagnose(swapped)[SITES[-1]]
    assert (letter.verdict, letter.diagnosis, letter.advice) == ("flagged", one.seen, one.advice)
    assert 'the labels "grave" and "dead" look swapped' in letter.diagnosis
    assert letter.sentence.startswith("site-09 was left out: ")
    assert letter.sentence.endswith(
        'Check how "grave" and "dead" are coded, in the labels and in the columns.'
    )
    again = Letter.from_json(letter.to_json())
    assert (again.diagnosis, again.advice) == (letter.diagnosis, letter.advice)
    assert letter_to(swapped, SITES[0]).sentence == "site-00 was used."


def test_a_letter_names_no_other_site() -> None:
    calibration = robfcp.calibrate(federation(copy=True), defence=robfcp.Consensus(at_most=2))
    said = letter_to(calibration, SITES[-1])
    assert "its report is the same as that of another site" in said.sentence
    for letter in (said, letter_to(calibration, SITES[0])):
        others = [name for name in SITES if name != letter.client]
        assert not [name for name in others if name in letter.to_json().decode()]
    assert not [name for name in SITES if name in calibration.to_json().decode()]
    assert "site-00, site-09 send the same report" in calibration.remarks[0]


def test_silent_and_refused_sites_read_that_too(swapped: robfcp.Calibration) -> None:
    bad = robfcp.Report.from_scores("odd", np.zeros(5), robfcp.Grid.uniform(3))
    sizes = {**dict.fromkeys(SITES, 300), "odd": 5, "away": 3}
    calibration = robfcp.calibrate(
        robfcp.Federation.from_reports([*federation(), bad], sizes=sizes),
        defence=robfcp.Consensus(at_most=2),
    )
    assert letter_to(calibration, "away").sentence == "away sent no report."
    assert letter_to(calibration, "odd").sentence.startswith("odd sent a report that was refused (")


def test_under_a_guarantee_nobody_is_said_to_be_left_out() -> None:
    stated = robfcp.calibrate(federation(), promise=robfcp.Marginal(liars=2))
    assert letter_to(stated, SITES[-1]).sentence.startswith("site-09 was flagged: ")


def test_commands_say_what_a_letter_says(
    swapped: robfcp.Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swapped.save("c.json")
    save_letters(swapped, "letters")
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.full(3, 0.2), 60)
    np.savez("new.npz", probabilities=p, labels=p.argmax(axis=1))
    sentence = letter_to(swapped, SITES[-1]).sentence

    def said(*words: str) -> str:
        done = run(*words)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    for words in (
        ("verify", "letters/site-09.json"),
        ("predict", "letters/site-09.json", "new.npz"),
        ("check", "letters/site-09.json", "new.npz"),
        ("predict", "letters/site-09.json", "--local", "new.npz"),
        ("monitor", "letters/site-09.json", "new.npz"),
    ):
        assert sentence in said(*words), words
    assert "was used" not in said("predict", "letters/site-00.json", "new.npz")
    assert "site-00 was used." in said("verify", "letters/site-00.json")
    told = json.loads(said("verify", "letters/site-09.json", "--json"))
    assert (told["verdict"], told["advice"]) == ("flagged", letter_to(swapped, SITES[-1]).advice)
    whole = said("verify", "c.json")
    assert "left out site-09: only" in whole
    assert "look swapped" in whole
    assert json.loads(said("verify", "c.json", "--json"))["diagnoses"][SITES[-1]]["cause"] == (
        "labels swapped"
    )


def test_localise_fills_empty_sets_and_says_what_it_did(
    swapped: robfcp.Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_letters(swapped, ".")
    p = np.random.default_rng(2).dirichlet(np.full(3, 0.2), 300)
    np.savez("own.npz", probabilities=p, labels=p.argmax(axis=1))  # easy: its own threshold is low
    np.savez("flat.npz", probabilities=np.full((4, 3), 1 / 3))
    np.savez("sharp.npz", probabilities=np.eye(3))
    words = ("predict", "site-00.json", "--local", "own.npz")
    bare = run(*words, "flat.npz", "-o", "bare.csv")
    assert bare.returncode == 0, bare.stderr
    assert ",,0," in Path("bare.csv").read_text(encoding="utf-8")
    filled = run(*words, "flat.npz", "-o", "full.csv", "--non-empty")
    assert "100.0% of the sets were empty" in filled.stdout
    assert ",,0," not in Path("full.csv").read_text(encoding="utf-8")
    calm = run(*words, "sharp.npz", "-o", "same.csv", "--non-empty")
    assert "No set was empty: --non-empty changed nothing." in calm.stdout
    refused = run(*words, "--non-empty")
    assert refused.returncode == 1
    assert "name the outputs to predict from" in refused.stderr


def test_what_a_notebook_shows_is_a_line(swapped: robfcp.Calibration) -> None:
    assert repr(swapped) == ("Calibration(threshold 0.7087 for coverage 0.9; 9 of 10 sites used)")
    assert repr(swapped.federation) == "Federation(10 sites, 3000 samples)"
    report = repr(federation()[0])
    assert report.startswith("Report('site-00', 300 samples, Grid(default, 1000 bins")
    assert report.endswith("by class)")
    several = robfcp.calibrate(
        federation(), [0.8, 0.9], by="class", defence=robfcp.Consensus(at_most=0)
    )
    assert repr(several).startswith(
        "Calibration(3 thresholds for coverage 0.8, 3 thresholds for coverage 0.9; "
    )


def test_what_is_printed_is_a_sentence(swapped: robfcp.Calibration) -> None:
    assert str(swapped.certificate) == swapped.certificate.statement
    letter, one = letter_to(swapped, SITES[-1]), robfcp.diagnose(swapped)[SITES[-1]]
    assert str(letter) == letter.sentence == str(one)
    p = np.random.default_rng(3).dirichlet(np.full(3, 0.2), 50)
    reading = robfcp.Monitor(swapped).update(p, p.argmax(axis=1))
    assert str(reading) == reading.line
    assert reading.line.startswith("no alarm: 50 samples")
