"""Beside the round: letters to the nodes, signed reports, and a deadline that must be one."""

import numpy as np
import pytest

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower

from engine_data import client_data  # noqa: E402

import robfcp  # noqa: E402
from robfcp.calibration import Letter, load_letter  # noqa: E402
from robfcp.engines import SizeRequest, read_size  # noqa: E402
from robfcp.engines.flower import (  # noqa: E402
    calibration_round,
    client_app,
    register_sizes,
    send_letters,
)
from robfcp.engines.flower_network import InProcessNetwork, collect, participants  # noqa: E402
from robfcp.report import generate_key, load_key  # noqa: E402

DATA = client_data(6)
QUICK = {"deadline": 20.0, "poll": 0.01}


def network(**configs):
    """Nodes with configurations of their own."""
    names = list(DATA)
    app = client_app(lambda part, arrays, context: DATA[names[context.node_config["number"]]])
    own = [{"number": k, **configs.get(name.replace("-", "_"), {})} for k, name in enumerate(names)]
    return InProcessNetwork(app, own, names=names)


def test_every_node_keeps_the_letter_that_was_written_to_it(tmp_path):
    found = network(**{f"site_{k}": {"letter-folder": str(tmp_path / str(k))} for k in range(5)})
    calibration = calibration_round(found, malicious=1, check=False, **QUICK)
    key = tmp_path / "server.key"
    public = generate_key(key)
    outcomes = send_letters(found, calibration, key=load_key(key), **QUICK)
    assert [outcome.status for outcome in outcomes] == ["ok"] * 5 + ["faulty"]  # one has no place
    (file,) = (tmp_path / "3").iterdir()
    letter = load_letter(file, public)
    assert (letter.client, letter.verdict) == ("site-3", "trusted")
    assert letter.calibration == calibration
    local = letter.at_site(*DATA["site-3"])
    assert np.isfinite(local.levels[0].own)
    assert Letter.load(file).others is not None


def test_reports_are_signed_with_the_nodes_own_key_where_it_has_one(tmp_path):
    keys = {f"site-{k}": generate_key(tmp_path / f"site-{k}") for k in range(6)}
    own = {f"site_{k}": {"signing-key": str(tmp_path / f"site-{k}")} for k in range(6)}
    options = {"malicious": 1, "round": "r", "check": False, **QUICK}
    signed = calibration_round(network(**own), keys=keys, **options)
    assert signed.federation.n_clients == 6
    assert "registered keys" in signed.federation.checked.signatures
    unkeyed = calibration_round(network(**own), **options)
    assert (
        unkeyed.threshold == signed.threshold == calibration_round(network(), **options).threshold
    )
    own["site_1"] = {}
    own["site_2"] = own["site_3"]
    found = calibration_round(network(**own), keys=keys, **options).provenance["clients"]
    assert "not signed" in found["site-1"]["reason"]
    assert "not by its registered key" in found["site-2"]["reason"]
    assert [found[f"site-{k}"]["status"] for k in (0, 3, 4, 5)] == ["ok"] * 4


@pytest.mark.parametrize("deadline", [0, -1.0, float("inf"), float("nan")])
def test_a_deadline_that_is_none_is_refused(deadline):
    with pytest.raises(robfcp.RobfcpError, match="no time to wait"):
        register_sizes(network(), deadline=deadline)


def test_a_question_of_ones_own_goes_the_same_way():
    found = network()
    asked = participants(found)
    replies = collect(found, asked, "query.size", SizeRequest, read_size, **QUICK)
    assert [outcome.answer for outcome in replies.outcomes] == [60] * 6
