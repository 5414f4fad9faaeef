"""Reports one by one and rows of tables: the same ones are valid."""

import json

import numpy as np
import pytest
from effort import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robfcp import Binning
from robfcp._validation import MAX_SAMPLES, are_client_names
from robfcp.errors import ReportError
from robfcp.federation import Block, SparseCounts
from robfcp.fleet._validation import validate_block
from robfcp.reports import (
    BinningDigest,
    Header,
    HeaderReader,
    parse_report,
    to_wire_binning,
    validate_report,
)
from robfcp.scores import Risk

BINNING = Binning.uniform(6)
CLASSES = ("a", "b", "c")
RISK = Risk("fnr", resolution=4)

# Each report keeps counts, counts by class, counts of losses, or coarsened counts: with class
# totals, by class, or of losses.
EXACT = [
    Header(BinningDigest.of(BINNING), None, None, None, None),
    Header(BinningDigest.of(BINNING), None, None, None, None, None, ("class", CLASSES)),
    Header(BinningDigest.of(BINNING), None, None, None, RISK),
]
COARSE = [header._replace(min_cell_count=3) for header in EXACT]
COARSE[0] = COARSE[0]._replace(class_names=CLASSES)
HEADERS = [*EXACT, *COARSE]
N_CELLS = [6, 18, 6] * 2
NAMES = ["s1", "Z\u00fcrich", "", " a", "file:x", "x" * 201, "a\nb"]

# Mostly what is valid: else nearly all examples would be refused for the same reason.
unusual_counts = st.sampled_from([0, -1, MAX_SAMPLES, MAX_SAMPLES + 1, 2**60])
counts = st.one_of(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), unusual_counts)


@st.composite
def cells_and_counts(draw, n_cells):
    """Cells that rise, and as many counts; or something near."""
    cells = sorted(draw(st.sets(st.integers(0, n_cells - 1), min_size=1, max_size=5)))
    if draw(st.integers(0, 9)) == 0:
        cells[draw(st.integers(0, len(cells) - 1))] = draw(st.integers(-1, n_cells + 1))
    values = [draw(st.integers(1, 9)) for _ in cells]
    if draw(st.integers(0, 9)) == 0:
        values[draw(st.integers(0, len(cells) - 1))] = draw(counts)
    return cells, values


@st.composite
def rows(draw):
    """Name, n_k, the kind of report, its counts, perhaps the scores of all labels, and totals."""
    kind = draw(st.integers(0, 5))
    cells, values = draw(cells_and_counts(N_CELLS[kind]))
    counts_per_sample = HEADERS[kind].counts_per_sample
    if kind > 2 and draw(st.booleans()):
        values = [3 * value if value < 2**50 else value for value in values]
    if kind % 3 == 2 and draw(st.booleans()):
        values = [counts_per_sample * v if v < 2**50 else v for v in values]
    n_samples = sum(values) // counts_per_sample
    if draw(st.integers(0, 9)) == 0:
        n_samples = draw(st.sampled_from([-1, 0, 1, n_samples + 1, MAX_SAMPLES + 1]))
    labels = None
    if kind % 3 != 2 and draw(st.booleans()):
        bins, label_counts = draw(cells_and_counts(6))
        if draw(st.booleans()):
            label_counts[0] += n_samples - sum(label_counts) % max(n_samples, 1)
        labels = bins, label_counts
    name = draw(st.sampled_from(NAMES)) if draw(st.integers(0, 9)) == 0 else "s0"
    totals = [3 * draw(st.integers(0, 4)) for _ in CLASSES]
    totals[0] += max(0, n_samples - sum(totals)) // 3 * 3
    if draw(st.integers(0, 9)) == 0:
        totals[1] += draw(st.sampled_from([-9, 1, 3, MAX_SAMPLES]))
    return name, n_samples, kind, (cells, values), labels, totals


def is_valid_report(row):
    """Whether the row is valid as a file."""
    name, n_samples, kind, (cells, values), labels, totals = row
    header = HEADERS[kind]
    report = {"kind": "report", "schema": 2, "client": name, "n_samples": n_samples}
    binning = to_wire_binning(BINNING)
    report["binning"] = {
        "name": binning.name,
        "digest": binning.digest,
        "parameters": binning.parameters,
    }
    if header.strata is None:
        report["counts"] = {"bins": cells, "counts": values}
    else:
        steps = np.diff(cells, prepend=0).tolist()
        report["strata"] = {"by": "class", "names": CLASSES, "cell_steps": steps, "counts": values}
    report["min_cell_count"] = header.min_cell_count
    if header.class_names is not None:
        report["class_totals"] = {"names": CLASSES, "totals": totals}
    if header.risk is not None:
        report["risk"] = {"name": "fnr", "upper_bound": 1.0, "resolution": 4}
    if labels is not None:
        report["all_label_counts"] = dict(zip(("bins", "counts"), labels, strict=True))
    try:
        validate_report(parse_report(json.dumps(report), "x"), HeaderReader())
    except ReportError:
        return False
    return True


def table_of(rows_given):
    """Rows of cells and counts; empty where there are none."""
    lengths = [0 if row is None else len(row[0]) for row in rows_given]
    columns = [
        [value for row in rows_given if row is not None for value in row[column_index]]
        for column_index in (0, 1)
    ]
    cells, values = (np.array(column, dtype=np.int64) for column in columns)
    return SparseCounts.from_lengths(np.array(lengths), cells, values)


def block_of(sampled_rows):
    """The rows as a table holds them."""
    return Block(
        names=[row[0] for row in sampled_rows],
        sizes=np.array([row[1] for row in sampled_rows], dtype=np.int64),
        headers=HEADERS,
        header_index=np.array([row[2] for row in sampled_rows], dtype=np.intp),
        counts=table_of([None if row[2] % 3 == 1 else row[3] for row in sampled_rows]),
        strata=table_of([row[3] if row[2] % 3 == 1 else None for row in sampled_rows]),
        all_label_counts=table_of([row[4] for row in sampled_rows]),
        class_totals=table_of(
            [(range(3), row[5]) if row[2] == 3 else None for row in sampled_rows]
        ),
    )


@pytest.mark.effort
@settings(max_examples=cases(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows(), min_size=1, max_size=8))
def test_a_row_of_a_table_is_valid_where_the_report_it_should_be_is(sampled_rows):
    block = block_of(sampled_rows)
    is_valid = validate_block(block, are_client_names(block.names))
    assert is_valid.tolist() == [is_valid_report(row) for row in sampled_rows]
