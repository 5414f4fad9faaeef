"""`robfcp lab redteam`: every attack against every defence, the worst marked, worlds searched."""

import json
from dataclasses import replace
from itertools import product

import pytest
from effort import EFFORT
from makers import outputs as calibrated
from makers import refused, said

from robfcp import RobfcpError
from robfcp.defence import Consensus
from robfcp.lab import outputs
from robfcp.lab.redteam import DEFENCES, plot_redteam, records, redteam, search, worst

SHARES = (0.4,) if EFFORT == 1 else (0.2, 0.4)
SMALL = {"n_clients": 8, "seeds": 1, "trials": 1, "shares": SHARES}
ATTACKED = ("coverage", "label-poisoning", "malformed", "adaptive")
COMMAND = ("lab", "redteam", "mnist", "--seeds", "1", "--trials", "1")


@pytest.fixture(scope="module")
def data():
    shipped = outputs.load("mnist")
    return shipped.probabilities[:800], shipped.labels[:800]


@pytest.fixture(scope="module")
def cells(data):
    return redteam(*data, **SMALL, attacks=ATTACKED)


@pytest.mark.effort
def test_there_is_a_cell_for_every_attack_and_the_default_holds_where_others_break(data, cells):
    found = {(cell.attack, cell.share, cell.defence): cell.error for cell in cells}
    assert len(found) == len(cells) == 4 * len(SHARES) * len(DEFENCES)
    again = redteam(*data, **SMALL, attacks=ATTACKED[:3])
    assert again == tuple(cell for cell in cells if cell.attack != "adaptive")
    assert abs(found["coverage", 0.4, Consensus.name]) <= 0.01
    assert found["coverage", 0.4, "none"] < -0.04
    assert found["coverage", 0.4, "rob-fcp"] < -0.1
    assert abs(found["malformed", 0.4, "none"]) < 0.02
    for share, rule in product(SHARES, ("none", "fedcp-qq")):
        assert found["adaptive", share, rule] <= found["coverage", share, rule] + 1e-12


@pytest.mark.effort
def test_the_worst_cell_of_each_defence_is_the_greatest_error_and_framed(cells):
    for defence, cell in worst(cells).items():
        errors = [abs(other.error) for other in cells if other.defence == defence]
        assert abs(cell.error) == max(errors)
    bigger = replace(cells[0], attack="bigger", set_size=99.0)  # of equals, the larger sets
    assert worst((bigger, cells[0])) == worst((cells[0], bigger)) == {cells[0].defence: bigger}
    assert sum(record["worst"] for record in records(cells)) == len(DEFENCES)
    for axis in plot_redteam(cells):
        assert sum(patch.get_edgecolor()[0] > 0.8 for patch in axis.patches) == len(DEFENCES)


def test_a_search_tells_the_worst_worlds_first_and_by_its_seed():
    data = calibrated(0, 1500, 5)
    options = {"n_clients": 10, "seeds": 2, "trials": 20, "shares": (0.2, 0.4), "beta": 0.3}
    found = search(*data, defences=("rob-fcp", "none"), **options)
    assert len(found) == 8
    harms = [one["harm"] for one in found]
    assert harms == sorted(harms)
    assert harms[0] == found[0]["error"] - min(found[0]["undefended"], 0) < -0.01
    assert all(one["harm"] >= 0 for one in found if one["defence"] == "none")
    again = search(*data, defences=("rob-fcp",), **{**options, "shares": (found[0]["share"],)})
    assert found[0] in again


def test_the_command_searches_and_prints_and_writes_what_it_found(tmp_path):
    words = ("--search", 3, "--share", 0.4, "--clients", 8)
    (one,) = json.loads(said(*COMMAND, *words, "--json", "-o", tmp_path / "worlds.json"))
    assert [one] == json.loads((tmp_path / "worlds.json").read_text())
    assert "--search" in refused(*COMMAND, *words, "--attack", "coverage")
    words = ("--attack", "class-capture", "--share", 0.4, "--clients", 10, "--by", "class")
    assert "* worst" in said(*COMMAND, *words, "--plot", tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"


def test_wrong_requests_are_refused(data):
    for wrong, word in (({"attacks": ("bribery",)}, "attack"), ({"shares": ()}, "at least one")):
        with pytest.raises(RobfcpError, match=word):
            redteam(*data, **wrong)
    for option, value in (("--liars", "many"), ("--score", "absolute-residual"), ("--by", "group")):
        assert option in refused(*COMMAND, option, value)
