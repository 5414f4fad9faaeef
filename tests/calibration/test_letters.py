"""A letter tells its site what was done, what is seen and what to check, and nothing of others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from makers import by_class, outputs, refused, said

import robfcp
from robfcp.calibration.letters import Letter, save_letters

SITES = tuple(f"site-{k:02d}" for k in range(10))


def federation(*, copy: bool = False) -> list[robfcp.Report]:
    """Ten sites; the last swaps two classes, or sends the report of the first."""
    rng = np.random.default_rng(0)
    sites = [outputs(rng, 300, 3, 0.2) for _ in SITES]
    sites[-1] = sites[0] if copy else (sites[-1][0], np.array([0, 2, 1])[sites[-1][1]])
    return by_class(sites, ["mild", "grave", "dead"])


@pytest.fixture(scope="module")
def swapped() -> robfcp.Calibration:
    return robfcp.calibrate(federation(), defence=robfcp.Consensus(at_most=2))


def test_a_site_that_was_left_out_reads_the_pages_diagnosis(swapped) -> None:
    letter, one = swapped.letter(SITES[-1]), robfcp.diagnose(swapped)[SITES[-1]]
    again = Letter.from_json(letter.to_json())
    assert (again.verdict, again.diagnosis, again.advice) == ("flagged", one.seen, one.advice)
    assert letter.sentence.startswith("site-09 was left out: ")
    assert 'the labels "grave" and "dead" look swapped' in letter.sentence
    assert letter.sentence.endswith(
        'Check how "grave" and "dead" are coded, in the labels and in the columns.'
    )
    assert str(letter) == letter.sentence == str(one)
    assert str(swapped.certificate) == swapped.certificate.statement
    assert swapped.letter(SITES[0]).sentence == "site-00 was used."


def test_a_letter_names_no_other_site() -> None:
    calibration = robfcp.calibrate(federation(copy=True), defence=robfcp.Consensus(at_most=2))
    said = calibration.letter(SITES[-1])
    assert "its report is the same as that of another site" in said.sentence
    for letter in (said, calibration.letter(SITES[0])):
        others = [name for name in SITES if name != letter.client]
        assert not [name for name in others if name in letter.to_json().decode()]
    assert not [name for name in SITES if name in calibration.to_json().decode()]
    assert "site-00, site-09 send the same report" in calibration.remarks[0]


def test_silent_refused_and_flagged_sites_read_that_too() -> None:
    bad = robfcp.Report.from_scores("odd", np.zeros(5), robfcp.Grid.uniform(3))
    sizes = {**dict.fromkeys(SITES, 300), "odd": 5, "away": 3}
    sent = robfcp.Federation.from_reports([*federation(), bad], sizes=sizes)
    stated = robfcp.calibrate(sent, promise=robfcp.Marginal(liars=2))
    assert stated.letter("away").sentence == "away sent no report."
    assert stated.letter("odd").sentence.startswith("odd sent a report that was refused (")
    assert stated.letter(SITES[-1]).sentence.startswith("site-09 was flagged: ")


@pytest.fixture
def place(swapped, tmp_path, monkeypatch):
    """A folder with the calibration, its letters and outputs."""
    monkeypatch.chdir(tmp_path)
    swapped.save("c.json")
    save_letters(swapped, "letters")
    p, _ = outputs(1, 60, 3, 0.2)
    np.savez("new.npz", probabilities=p, labels=p.argmax(axis=1))


@pytest.mark.usefixtures("place")
def test_commands_say_what_a_letter_says(swapped) -> None:
    own, letter = "letters/site-09.json", swapped.letter(SITES[-1])
    for words in (
        ("verify", own),
        ("predict", own, "new.npz"),
        ("check", own, "new.npz"),
        ("predict", "--letter", own, "--local", "new.npz"),
        ("monitor", own, "new.npz"),
    ):
        assert letter.sentence in " ".join(said(*words, code=None).split()), words
    assert "was used" not in said("predict", "letters/site-00.json", "new.npz")
    told = json.loads(said("verify", own, "--json"))
    assert (told["verdict"], told["advice"]) == ("flagged", letter.advice)
    causes = json.loads(said("verify", "c.json", "--json"))["diagnoses"]
    assert causes[SITES[-1]]["cause"] == "labels swapped"


@pytest.mark.usefixtures("place")
def test_localise_fills_empty_sets_and_says_what_it_did() -> None:
    np.savez("flat.npz", probabilities=np.full((4, 3), 1 / 3))
    np.savez("sharp.npz", probabilities=np.eye(3))
    words = ("predict", "--letter", "letters/site-00.json", "--local", "new.npz")
    for more, told, empty in (
        (["flat.npz", "-o", "sets.csv"], "", True),
        (["flat.npz", "-o", "sets.csv", "--non-empty"], "100.0% of the sets were empty", False),
        (["sharp.npz", "-o", "sets.csv", "--non-empty"], "0.0% of the sets were empty", False),
    ):
        assert told in " ".join(said(*words, *more).split())
        assert (",,0," in Path("sets.csv").read_text(encoding="utf-8")) is empty
    assert "name the outputs to predict from" in refused(*words, "--non-empty")
