"""What most tests begin with: model outputs, reports, files, and calls of the command line."""

import hashlib
import json
import re
import tracemalloc

import numpy as np
from typer.testing import CliRunner

import robfcp
from robfcp.cli import app

LAC = robfcp.LAC()


def outputs(rng=0, n=300, classes=3, concentration=0.5):
    """Return the (n, C) probabilities of a calibrated model, and labels drawn from them."""
    rng = np.random.default_rng(rng)
    p = rng.dirichlet(np.full(classes, concentration), n)
    return p, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def beta_scores(rng=0, n_clients=12, n=200, n_zeros=0):
    """Return (n,) scores of each client; the first `n_zeros` clients have zeros only."""
    rng = np.random.default_rng(rng)
    return [np.zeros(n) if index < n_zeros else rng.beta(0.6, 2.5, n) for index in range(n_clients)]


def reports_of(scores, **options):
    """Return a report of the scores of each client."""
    options = {"score": LAC, **options}
    return [
        robfcp.Report.from_scores(f"site-{client_index:02d}", client_scores, **options)
        for client_index, client_scores in enumerate(scores)
    ]


def reports_by_class(outputs_of_clients, classes=3, **options):
    """Return a report of the probabilities and labels of each client, by class and exact."""
    options = {"score": LAC, "classes": classes, "min_cell_count": 1, **options}
    return [
        robfcp.Report.from_predictions(f"site-{client_index:02d}", probabilities, labels, **options)
        for client_index, (probabilities, labels) in enumerate(outputs_of_clients)
    ]


def peak_memory(function):
    """Return the largest number of bytes allocated during a call."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def save_reports(folder, reports):
    """Save reports as files; return their paths."""
    folder.mkdir(exist_ok=True)
    for report in reports:
        report.save(folder / f"{report.client}.json")
    return sorted(map(str, folder.iterdir()))


def seal(kind, body):
    """Return a sealed file around any body, with its digest."""
    body_as_json = json.dumps(body, separators=(",", ":")).encode()
    digest = hashlib.sha256(body_as_json).hexdigest()
    return (
        f'{{"kind":"{kind}","schema":1,"digest":"{digest}","body":'.encode() + body_as_json + b"}"
    )


def embedded_data(page):
    """Return the data inside an HTML page."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(match.group(1))


def command_output(*arguments, code=0):
    """Return the output of a command that exits with a code; None: with 0, or 3 for an alarm."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(argument) for argument in arguments])
    codes = (0, 3) if code is None else (code,)
    assert result.exit_code in codes, (arguments[:6], result.exception, result.output)
    return result.stdout


def command_error(*arguments):
    """Return the line with which a command refuses."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code != 0, arguments[:6]
    assert isinstance(result.exception, (robfcp.RobfcpError, SystemExit, KeyboardInterrupt))
    assert str(result.exception).isprintable()
    return str(result.exception)


def write_table(path, probabilities, labels=None, names=("p0", "p1"), ids=None):
    """Write a CSV file of outputs, one column for each class; return its path."""
    columns = dict(zip(names, np.transpose(probabilities), strict=True))
    columns |= {} if labels is None else {"label": labels}
    columns |= {} if ids is None else {"id": ids}
    rows = np.column_stack(list(columns.values()))
    np.savetxt(path, rows, "%.17g", ",", header=",".join(columns), comments="")
    return str(path)
