"""The released code's rule, against a plain reading of its description on single scores."""

import numpy as np
import pytest

import robfcp
from robfcp.defence import RobFCP, RobFCPReleased
from robfcp.defence.rob_fcp import wrapped
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.lab.paper.runs import edge_of
from robfcp.lab.paper.trials import PaperWorld, make_trial


def plain_vector(scores, bins=100):
    """`int(score / width) - 1` of conformity scores; index -1 is the last bin."""
    vector = [0] * bins
    for score in scores:
        vector[int((1 - score) * bins) - 1] += 1
    return np.array(vector) / len(scores)


def plain_number(vectors, n_benign):
    distances = [[np.linalg.norm(v - w) for w in vectors] for v in vectors]
    return np.array([np.mean(sorted(row)[::-1][: n_benign - 1]) for row in distances])


def plain_estimate(vectors):
    n_clients = len(vectors)
    number = plain_number(vectors, -(-n_clients // 2))
    ranked = vectors[np.argsort(np.round(number, 12), kind="stable")]
    best = {}
    for z in range(n_clients // 2 + 1, n_clients):
        squared = ((ranked - ranked[:z].mean(axis=0)) ** 2).sum(axis=1)
        best[z] = squared[z:].mean() - squared[:z].mean()
    return n_clients - max(best, key=best.get)


def a_federation(rng, n_clients):
    """Scores away from the edges of bins, where rounding would decide, and exact zeros."""
    n_samples = rng.integers(5, 40, n_clients)
    scores = [(rng.integers(0, 100, n) + rng.uniform(0.1, 0.9, n)) / 100 for n in n_samples]
    for part in scores[: n_clients // 3]:
        part[rng.random(len(part)) < 0.5] = 0.0
    reports = [
        robfcp.Report.from_scores(f"c{k:02d}", part, Grid.default())
        for k, part in enumerate(scores)
    ]
    return scores, Federation.from_reports(reports)


def test_equals_a_plain_reading_of_the_description():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n_clients = int(rng.integers(4, 14))
        n_malicious = int(rng.integers(0, (n_clients - 1) // 2 + 1))
        scores, federation = a_federation(rng, n_clients)
        vectors = np.array([plain_vector(part) for part in scores])
        np.testing.assert_allclose(
            np.sort(wrapped(federation), axis=1), np.sort(vectors, axis=1), atol=1e-12
        )
        number = plain_number(vectors, n_clients - n_malicious)
        found = RobFCPReleased(n_malicious)(federation)
        np.testing.assert_allclose(found.oddness, number, atol=1e-12)
        order = np.argsort(np.round(number, 12), kind="stable")
        assert set(np.flatnonzero(~found.trusted)) == set(order[n_clients - n_malicious :])
        assert RobFCPReleased().estimate(federation) == plain_estimate(vectors)


def test_calibrations_name_estimate_and_repeat_it():
    _, federation = a_federation(np.random.default_rng(1), 12)
    calibration = robfcp.calibrate(federation, defence="rob-fcp-released")
    assert calibration.settings.defence == "rob-fcp-released"
    assert calibration.liars == RobFCPReleased().estimate(federation)
    again = robfcp.defence.defence_again(
        calibration.settings.defence, calibration.settings.parameters
    )
    assert again == RobFCPReleased()
    assert set(calibration.reasons.values()) == {
        f"among the {calibration.liars} sites farthest from the others"
    }


def test_what_it_cannot_do_is_refused():
    with pytest.raises(RobfcpError, match="needs at least 3"):
        RobFCPReleased().estimate(Federation.from_counts([[1, 2], [3, 4]]))
    alone = RobFCPReleased(0)(Federation.from_counts([[1, 2]]))
    assert alone.trusted.tolist() == [True]
    assert alone.oddness.tolist() == [0.0]


def test_a_grid_no_finer_than_the_view_tells_no_zeros_apart():
    federation = Federation.from_counts([[5] + [0] * 99, [1] * 100], Grid.uniform())
    assert wrapped(federation)[0, 0] == 1


@pytest.mark.parametrize(
    ("dataset", "text", "released"),
    [("mnist", 0.68, 0.900), ("cifar10", 0.81, 0.898), ("pathmnist", 0.69, 0.895)],
)
def test_the_text_fails_where_the_code_does_not(dataset, text, released):
    """40 of 100 report zeros, Dirichlet(0.5), the shipped outputs."""
    found = []
    for seed in range(5):
        trial = make_trial(PaperWorld(dataset, "beta0.5", "final", 0.5), seed)
        federation = trial.attacked("coverage", 40, np.random.default_rng(seed))
        found.append(
            [
                trial.measure(edge_of(federation, rule(federation).trusted), trial.benign(40))[0]
                for rule in (RobFCP(40), RobFCPReleased(40))
            ]
        )
    means = np.mean(found, axis=0)
    assert means[0] == pytest.approx(text, abs=0.02)
    assert means[1] == pytest.approx(released, abs=0.01)
