"""The decisions of thirty golden cases, against values that stand in a file people can read.

`expected.json` holds thresholds, certificates, exclusions and rejections. `make golden-diff`
compares every byte of all cases with another commit; this test needs no other commit and holds on
any machine. After a change that is meant to change answers: `python tests/golden/test_golden.py`.
"""

import json
from pathlib import Path

import golden_adapter as adapter
import pytest

EXPECTED = Path(__file__).with_name("expected.json")
CASE_NAMES = (
    "default/zeros/exact/0",
    "default/zeros/coarse/0",
    "default/ones/coarse/1",
    "default/smaller/exact/1",
    "default/larger/coarse/0",
    "default/duplicate/exact/0",
    "default/reversed/coarse/1",
    "default/mimic/exact/0",
    "totals/smaller/6",
    "totals/ones/7",
    "pooled/smaller/2",
    "pooled/duplicate/3",
    "heterogeneous/zeros/2",
    "heterogeneous/larger/3",
    "defense/none/zeros",
    "defense/rob-fcp/smaller",
    "defense/rob-fcp-released-estimated/zeros",
    "defense/consensus-exactly/smaller",
    "guarantee/marginal-both/zeros",
    "guarantee/pac-heterogeneity/ones",
    "guarantee/label-shift-several/zeros",
    "by/class/defense",
    "by/cluster/marginal",
    "by/other/pac",
    "by/few-trusted/defense",
    "by/few-holders/marginal",
    "by/group",
    "trusted/defense",
    "private-sizes/pac",
    "risk/marginal",
    "mixed-noise",
    "hostile",
)
# The p-values behind these numbers are kept in single precision.
SINGLE_PRECISION = ("maliciousness",)


def read_case(name):
    """The decisions of a case as JSON values."""
    import golden_cases

    parts = golden_cases.run_case(name)
    return {part: json.loads(text) for part, text in parts.items()}


def only_decisions(calibration, *, everything=True):
    """In place of all texts: the decisions alone, which is faster."""
    return {"decisions": json.dumps(adapter.decisions(calibration)).encode()}


def rounded(value):
    """The same JSON value with floats of nine significant digits."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def assert_equal(differing, expected, path=""):
    """Compare two JSON values; floats to nine digits."""
    if isinstance(expected, dict):
        assert sorted(differing) == sorted(expected), path
        for key, item in expected.items():
            assert_equal(differing[key], item, f"{path}/{key}")
    elif isinstance(expected, list):
        assert len(differing) == len(expected), path
        for number, item in enumerate(expected):
            assert_equal(differing[number], item, f"{path}/{number}")
    elif isinstance(expected, float):
        in_single_precision = any(name in path for name in SINGLE_PRECISION)
        tolerance = 1e-5 if in_single_precision else 1e-8
        assert differing == pytest.approx(expected, rel=tolerance, abs=1e-9), path
    else:
        assert differing == expected, path


@pytest.mark.parametrize("name", CASE_NAMES)
def test_decisions_are_the_expected_ones(name, monkeypatch):
    monkeypatch.setattr(adapter, "texts", only_decisions)
    expected = json.loads(EXPECTED.read_text())
    assert_equal(read_case(name), expected[name])


def main():
    """Write the decisions as they are now."""
    adapter.texts = only_decisions
    differing = {name: rounded(read_case(name)) for name in CASE_NAMES}
    EXPECTED.write_text(json.dumps(differing, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
