"""`robfcp redteam`: every attack against every defence, the worst marked, the same every time."""

import json

import numpy as np
import pytest
from effort import EFFORT
from typer.testing import CliRunner

from robfcp import RobfcpError
from robfcp.cli import app
from robfcp.defence import DEFAULT
from robfcp.lab import outputs
from robfcp.lab.redteam import DEFENCES, plot_redteam, records, redteam, worst

SHARES = (0.4,) if EFFORT == 1 else (0.2, 0.4)
SMALL = {"n_clients": 8, "seeds": 1, "trials": 1, "shares": SHARES}
ATTACKED = ("coverage", "label-poisoning", "malformed", "adaptive")


@pytest.fixture(scope="module")
def data():
    shipped = outputs.load("mnist")
    return shipped.probabilities[:800], shipped.labels[:800]


@pytest.fixture(scope="module")
def cells(data):
    return redteam(*data, **SMALL, attacks=ATTACKED)


@pytest.mark.effort
def test_there_is_a_cell_for_every_attack_share_and_defence(cells):
    assert len(cells) == 4 * len(SHARES) * len(DEFENCES)
    assert len({(cell.attack, cell.share, cell.defence) for cell in cells}) == len(cells)
    assert all(cell.runs == 1 for cell in cells)


@pytest.mark.effort
def test_the_default_holds_where_others_break(cells):
    found = {(cell.attack, cell.share, cell.defence): cell for cell in cells}
    assert abs(found["coverage", 0.4, DEFAULT].error) <= 0.01
    assert found["coverage", 0.4, "none"].error < -0.04
    assert found["coverage", 0.4, "rob-fcp"].error < -0.1
    assert found["malformed", 0.4, "none"].error == pytest.approx(0, abs=0.02)
    for share in SHARES:
        adaptive = found["adaptive", share, "none"]
        assert adaptive.error <= found["coverage", share, "none"].error + 1e-12


@pytest.mark.effort
def test_the_worst_cell_of_each_defence_is_the_greatest_error(cells):
    for defence, cell in worst(cells).items():
        errors = [abs(other.error) for other in cells if other.defence == defence]
        assert abs(cell.error) == max(errors)
    assert sum(record["worst"] for record in records(cells)) == len(DEFENCES)


@pytest.mark.effort
def test_the_same_seed_gives_the_same_cells(data, cells):
    again = redteam(*data, **SMALL, attacks=ATTACKED[:3])
    assert again == tuple(cell for cell in cells if cell.attack != "adaptive")


@pytest.mark.effort
def test_the_heat_map_frames_each_defences_worst(cells):
    axes = plot_redteam(cells)
    assert [label.get_text() for label in axes[0].get_xticklabels()] == list(DEFENCES)
    for axis in axes:
        assert sum(patch.get_edgecolor()[0] > 0.8 for patch in axis.patches) == len(DEFENCES)


def test_wrong_requests_are_refused(data):
    with pytest.raises(RobfcpError, match="attack"):
        redteam(*data, attacks=("bribery",))
    with pytest.raises(RobfcpError, match="at least one"):
        redteam(*data, shares=())


def command(*arguments):
    return CliRunner().invoke(
        app, ["lab", "redteam", "mnist", "--seeds", "1", "--trials", "1", *arguments]
    )


@pytest.mark.slow
def test_the_command_prints_a_table_writes_json_and_draws(tmp_path):
    out, figure = tmp_path / "cells.json", tmp_path / "map.png"
    result = command(
        "--attack", "coverage", "--attack", "adaptive-up", "--share", "0.4", "--clients", "10",
        "-o", str(out), "--plot", str(figure),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "worst under" in result.output
    saved = json.loads(out.read_text())
    assert {cell["attack"] for cell in saved} == {"coverage", "adaptive-up"}
    assert sum(cell["worst"] for cell in saved) == len(DEFENCES)
    assert figure.read_bytes()[:4] == b"\x89PNG"


def test_the_command_prints_json_only_when_asked():
    result = command("--attack", "coverage", "--share", "0.4", "--defence", "rob-fcp", "--json")
    (cell,) = json.loads(result.stdout)
    assert cell["defence"] == "rob-fcp"
    assert np.isclose(cell["error"], cell["coverage"] - cell["honest_coverage"])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--liars", "many"), "--liars"), (("--score", "absolute-residual"), "--score")],
)
def test_the_command_refuses_in_one_line(arguments, word):
    result = command(*arguments)
    assert result.exit_code == 1
    assert word in str(result.exception)
