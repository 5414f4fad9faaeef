"""A report may tell how large sets are at every threshold; a private one never does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import robfcp
from robfcp import LAC, Calibration, Federation, Grid, Privacy, Report
from robfcp.cli import app
from robfcp.page import render


def outputs(seed: int, n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.4, 0.6, 0.3], n)
    return p, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def site(k: int, told: bool = True) -> Report:
    (p, y), score = outputs(k), LAC()
    sizes = score.all_labels(p) if told else None
    return Report.from_scores(
        f"s{k}", score(p, y), score=score, labels=y, classes=3, label_scores=sizes
    )


def embedded(page: str) -> dict:
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def test_sizes_survive_files_federations_and_evidence(tmp_path: Path) -> None:
    reports = [site(k, told=k != 2) for k in range(6)]
    for report in reports:
        assert Report.from_json(report.to_json()) == report
    assert reports[0] != site(0, told=False)
    federation = Federation.from_reports(reports)
    assert list(federation) == reports
    assert federation.set_sizes is not None
    assert federation.set_sizes.rows.tolist() == [0, 1, 3, 4, 5]
    part = federation.subset(np.array([False, True, True, True, False, False]))
    assert list(part) == reports[1:4]
    assert federation.stratum(0).set_sizes is None
    calibration = robfcp.calibrate(reports, defence=robfcp.Consensus(at_most=1))
    calibration.save(tmp_path / "c.json")
    assert list(Calibration.load(tmp_path / "c.json").federation) == reports


def test_the_page_shows_the_size_that_sets_have() -> None:
    reports = [site(k) for k in range(8)]
    calibration = robfcp.calibrate(reports, [0.9, 0.8], defence=robfcp.Consensus(at_most=1))
    tables = embedded(render(calibration))["whatif"]["tables"]
    table, thresholds = tables["defence"], calibration.federation.grid.upper
    kept = [k for k in range(8) if f"s{k}" in calibration.trusted]
    scores = np.concatenate([LAC().all_labels(outputs(k)[0]) for k in kept])
    row = table["liars"].index(1)
    for level in (0.9, 0.8):
        column = table["levels"].index(level)
        limit = thresholds[table["index"][row][column]]
        wanted = (scores <= limit).sum(axis=1).mean()
        assert table["size"][row][column] == pytest.approx(wanted, abs=1e-5)
    plain = robfcp.calibrate(
        [site(k, told=False) for k in range(8)], defence=robfcp.Consensus(at_most=1)
    )
    assert embedded(render(plain))["whatif"]["tables"]["defence"]["size"] is None


def test_an_infinite_threshold_takes_every_label() -> None:
    reports = [site(k) for k in range(3)]
    calibration = robfcp.calibrate(reports, 0.999, defence="none")
    assert calibration.threshold == np.inf
    table = embedded(render(calibration))["whatif"]["tables"]["defence"]
    row, column = table["liars"].index(1), table["levels"].index(0.999)
    assert table["index"][row][column] == -1
    assert table["size"][row][column] == 3


def test_private_reports_and_losses_never_hold_sizes() -> None:
    scores = np.linspace(0, 1, 40)
    labels = np.column_stack([scores, scores])
    with pytest.raises(robfcp.RobfcpError, match="leave them out of private reports"):
        Report.from_scores("a", scores, Grid.uniform(8), privacy=Privacy(1.0), label_scores=labels)
    counts = np.full(4, 10)
    with pytest.raises(robfcp.ReportError, match="sizes of sets"):
        Report("a", counts, Grid.uniform(4), n_samples=40, privacy=Privacy(1.0), set_sizes=counts)
    loss = Report.from_losses("a", [[1.0, 0.0]] * 3, [0.1, 0.5], risk="fnr")
    with pytest.raises(robfcp.ReportError, match="not with losses"):
        Report("a", loss.counts, loss.grid, n_samples=3, risk=loss.risk, set_sizes=loss.counts)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([1, 2, 3], "3 counts do not fit"),
        ([-1, 5, 4, 0], "negative"),
        ([3, 3, 3, 4], "do not make as many for each"),
        ([1, 1, 0, 0], "do not make as many for each"),
        ([2**62, 2**62, 0, 0], "exceed"),
        (["a", 1, 1, 1], "integers"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_one_line(sizes, words) -> None:
    with pytest.raises(robfcp.ReportError, match=words) as error:
        Report("a", [1, 1, 1, 1], Grid.uniform(4), set_sizes=sizes)
    assert error.value.client == "a"
    assert error.value.field == "set_sizes"
    assert "\n" not in str(error.value)


def test_scores_of_labels_need_their_shape() -> None:
    with pytest.raises(robfcp.RobfcpError, match=r"need \(n, C\) scores of 3 samples"):
        Report.from_scores("a", [0.1, 0.2, 0.3], label_scores=[0.1, 0.2, 0.3])
    with pytest.raises(robfcp.RobfcpError, match="a: label_scores"):
        Report.from_scores("a", [0.1], label_scores=[[0.1, np.nan]])


def test_hostile_evidence_of_sizes_is_refused(tmp_path: Path) -> None:
    from robfcp.calibration.record import WireStratified, _read_set_sizes

    grid = Grid.uniform(4)
    for wire in (
        WireStratified("class", 2, [0], [0, 1], [0], [3]),
        WireStratified("class", 1, [0], [0, 1], [0], [-3]),
        WireStratified("class", 1, [7], [0, 1], [0], [3]),
    ):
        with pytest.raises(robfcp.RobfcpError):
            _read_set_sizes(wire, 2, grid)


def test_the_command_tells_sizes_when_asked(tmp_path: Path) -> None:
    p, y = outputs(0)
    np.savez(tmp_path / "o.npz", probabilities=p, labels=y)
    words = ["sketch", str(tmp_path / "o.npz"), "-c", "a", "-o", str(tmp_path / "a.json")]
    for score in ("lac", "aps"):
        result = CliRunner().invoke(app, [*words, "--score", score, "--set-sizes"])
        assert result.exit_code == 0, result.exception
        report = Report.load(tmp_path / "a.json")
        assert report.set_sizes is not None
        assert report.set_sizes.sum() == 3 * len(y)
        assert (report.set_sizes >= report.counts).all()
    result = CliRunner().invoke(app, [*words, "--set-sizes", "--risk", "fnr"])
    assert result.exit_code == 1
    private = [*words, "--set-sizes", "--epsilon", "1", "--ledger", str(tmp_path / "l.json")]
    assert "leave them out of private" in str(CliRunner().invoke(app, private).exception)
    assert not (tmp_path / "l.json").exists()
