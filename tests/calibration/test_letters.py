"""A letter tells its site what was done, what is seen and what to check, and nothing of others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from makers import by_class, outputs, refused, said

import robfcp
from robfcp.calibration import Letter
from robfcp.calibration.letters import save_letters

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


def test_a_site_that_was_left_out_reads_the_pages_diagnosis(swapped: robfcp.Calibration) -> None:
    letter = swapped.letter(SITES[-1])
    one = robfcp.diagnose(swapped)[SITES[-1]]
    assert (letter.verdict, letter.diagnosis, letter.advice) == ("flagged", one.seen, one.advice)
    assert 'the labels "grave" and "dead" look swapped' in letter.diagnosis
    assert letter.sentence.startswith("site-09 was left out: ")
    assert letter.sentence.endswith(
        'Check how "grave" and "dead" are coded, in the labels and in the columns.'
    )
    again = Letter.from_json(letter.to_json())
    assert (again.diagnosis, again.advice) == (letter.diagnosis, letter.advice)
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
    calibration = robfcp.calibrate(
        robfcp.Federation.from_reports([*federation(), bad], sizes=sizes),
        defence=robfcp.Consensus(at_most=2),
    )
    assert calibration.letter("away").sentence == "away sent no report."
    assert calibration.letter("odd").sentence.startswith("odd sent a report that was refused (")
    stated = robfcp.calibrate(federation(), promise=robfcp.Marginal(liars=2))
    assert stated.letter(SITES[-1]).sentence.startswith("site-09 was flagged: ")


def test_commands_say_what_a_letter_says(
    swapped: robfcp.Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swapped.save("c.json")
    save_letters(swapped, "letters")
    p, _ = outputs(1, 60, 3, 0.2)
    np.savez("new.npz", probabilities=p, labels=p.argmax(axis=1))
    sentence = swapped.letter(SITES[-1]).sentence

    def words_of(*words: str) -> str:
        return " ".join(said(*words, code=None).split())

    for words in (
        ("verify", "letters/site-09.json"),
        ("predict", "letters/site-09.json", "new.npz"),
        ("check", "letters/site-09.json", "new.npz"),
        ("predict", "--letter", "letters/site-09.json", "--local", "new.npz"),
        ("monitor", "letters/site-09.json", "new.npz"),
    ):
        assert sentence in words_of(*words), words
    assert "was used" not in words_of("predict", "letters/site-00.json", "new.npz")
    assert "site-00 was used." in words_of("verify", "letters/site-00.json")
    told = json.loads(words_of("verify", "letters/site-09.json", "--json"))
    assert (told["verdict"], told["advice"]) == ("flagged", swapped.letter(SITES[-1]).advice)
    whole = words_of("verify", "c.json")
    assert "left out site-09: only" in whole
    assert "look swapped" in whole
    assert json.loads(words_of("verify", "c.json", "--json"))["diagnoses"][SITES[-1]]["cause"] == (
        "labels swapped"
    )


def test_localise_fills_empty_sets_and_says_what_it_did(
    swapped: robfcp.Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_letters(swapped, ".")
    p, _ = outputs(2, 300, 3, 0.2)
    np.savez("own.npz", probabilities=p, labels=p.argmax(axis=1))  # easy: its own threshold is low
    np.savez("flat.npz", probabilities=np.full((4, 3), 1 / 3))
    np.savez("sharp.npz", probabilities=np.eye(3))
    words = ("predict", "--letter", "site-00.json", "--local", "own.npz")
    for more, told, empty in (
        (["flat.npz", "-o", "sets.csv"], "", True),
        (["flat.npz", "-o", "sets.csv", "--non-empty"], "100.0% of the sets were empty", False),
        (["sharp.npz", "-o", "sets.csv", "--non-empty"], "--non-empty changed nothing.", False),
    ):
        assert told in " ".join(said(*words, *more).split())
        assert (",,0," in Path("sets.csv").read_text(encoding="utf-8")) is empty
    assert "name the outputs to predict from" in refused(*words, "--non-empty")


def test_what_is_printed_is_a_sentence(swapped: robfcp.Calibration) -> None:
    assert str(swapped.certificate) == swapped.certificate.statement
    letter, one = swapped.letter(SITES[-1]), robfcp.diagnose(swapped)[SITES[-1]]
    assert str(letter) == letter.sentence == str(one)
    p, _ = outputs(3, 50, 3, 0.2)
    reading = robfcp.Monitor(swapped).update(p, p.argmax(axis=1))
    assert str(reading) == reading.line
    assert reading.line.startswith("no alarm: 50 samples")
