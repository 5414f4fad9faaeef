"""Mistyped commands and options, and those of other tools, are answered with what was meant."""

import pytest
from in_process import run
from makers import beta_scores, reports_of, save_reports

from robfcp.cli import COMMANDS, EXPERIMENTS


def usage_error(arguments):
    """The line that refuses a wrong call, out of its frame."""
    completed = run(*arguments.split(), COLUMNS="120")
    assert completed.returncode == 2
    assert completed.stdout == ""
    (line,) = (line for line in completed.stderr.splitlines() if "No such" in line)
    return line.strip("│ ")


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("calibrat", "calibrate"),
        ("predcit", "predict"),
        ("merge-alarm", "merge-alarms"),
        ("check", "evaluate"),
        ("test", "evaluate"),
        ("alarms", "merge-alarms"),
        ("lab", "experiments"),
        ("conformalize", "calibrate"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_closest_one(typed, command):
    line = usage_error(f"{typed} reports")
    assert line == f"No such command: {typed}. Did you mean {command}?"


def test_commands_of_experiments_are_suggested_among_their_own():
    line = usage_error("experiments simulat mnist")
    assert line == "No such command: simulat. Did you mean simulate?"
    assert usage_error("experiments calibrat") == "No such command: calibrat."


def test_a_command_that_resembles_none_is_refused_without_a_suggestion():
    assert usage_error("unknown") == "No such command: unknown."


@pytest.mark.parametrize(
    ("call", "option", "suggestion"),
    [
        ("calibrate reports", "--guarante", "--guarantee"),
        ("calibrate reports", "--defence", "--defense"),
        ("calibrate reports", "--liars", "--max-malicious or --n-malicious"),
        ("calibrate reports", "--promise", "--guarantee"),
        ("calibrate reports", "--anchor", "--trusted-data"),
        ("calibrate reports", "--confidence", "--certificate-confidence or --coverage"),
        ("calibrate reports", "--confidence-level", "--coverage or --certificate-confidence"),
        ("evaluate c.json t.csv", "--confidence", "--interval-confidence"),
        ("merge-alarms e.json", "--liars", "--max-malicious"),
        ("report t.csv -c a", "--epsilon", "--dp-epsilon"),
        ("report t.csv -c a", "--normalise", "--normalize"),
        ("report t.csv -c a", "--grid", "--binning"),
        ("experiments simulate mnist", "--seeds", "--n-runs"),
        ("experiments simulate mnist", "--clients", "--n-clients"),
    ],
)
def test_a_mistyped_option_is_answered_with_those_of_the_command(call, option, suggestion):
    line = usage_error(f"{call} {option} 1")
    assert line == f"No such option: {option}. Did you mean {suggestion}?"


@pytest.mark.parametrize("command", [*COMMANDS, *(f"experiments {name}" for name in EXPERIMENTS)])
def test_every_command_names_the_option_that_it_does_not_have(command):
    line = usage_error(f"{command} --qqqq-xxxx")
    assert line == "No such option: --qqqq-xxxx."


@pytest.fixture
def reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_reports(tmp_path / "reports", reports_of(beta_scores(0, 8, 60)))


def test_alpha_is_one_minus_coverage(reports):
    for level in ("--coverage 0.8", "--alpha 0.2"):
        output = f"{level[2:7]}.json"
        assert run(*f"calibrate reports {level} -o {output}".split()).returncode == 0
    with open("cover.json", "rb") as of_coverage, open("alpha.json", "rb") as of_alpha:
        assert of_coverage.read() == of_alpha.read()


def test_alpha_beside_coverage_is_refused_in_one_line(reports):
    completed = run("calibrate", "reports", "--coverage", 0.9, "--alpha", 0.1)
    assert completed.returncode == 1
    assert completed.stderr == (
        "robfcp: --alpha: means --coverage 1 - ALPHA; give one of them, not both\n"
    )
