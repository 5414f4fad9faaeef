"""Makers of what most tests begin with: outputs, reports, calibrations, files, keys, commands."""

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
    """Probabilities of a model that knows how sure it is, and labels."""
    rng = np.random.default_rng(rng)
    p = rng.dirichlet(np.full(classes, concentration), n)
    return p, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def beta_scores(rng=0, sites=12, n=200, zeros=0):
    """The scores of each site; the first few report zeros only."""
    rng = np.random.default_rng(rng)
    return [np.zeros(n) if k < zeros else rng.beta(0.6, 2.5, n) for k in range(sites)]


def reports_of(scores, **more):
    """A report of each site's scores."""
    more = {"score": LAC, **more}
    return [robfcp.Report.from_scores(f"site-{k:02d}", s, **more) for k, s in enumerate(scores)]


def by_class(sites, classes=3, **more):
    """A report by class of each site's probabilities and labels, exact unless stated."""
    more = {"score": LAC, "classes": classes, "min_cell_count": 1, **more}
    return [
        robfcp.Report.from_predictions(f"site-{k:02d}", p, y, **more)
        for k, (p, y) in enumerate(sites)
    ]


def peak(work):
    """Bytes allocated at most while the work is done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def saved(folder, reports):
    """The reports as files."""
    folder.mkdir(exist_ok=True)
    for report in reports:
        report.save(folder / f"{report.client}.json")
    return sorted(map(str, folder.iterdir()))


def sealed(kind, body):
    """A file around any body, with the digest that fits."""
    raw = json.dumps(body, separators=(",", ":")).encode()
    digest = hashlib.sha256(raw).hexdigest()
    return f'{{"kind":"{kind}","schema":1,"digest":"{digest}","body":'.encode() + raw + b"}"


def embedded(page):
    """The data inside a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found.group(1))


def said(*words, code=0):
    """What a command that works prints; 3 is the exit code of an alarm, None: either."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(word) for word in words])
    codes = (0, 3) if code is None else (code,)
    assert result.exit_code in codes, (words[:6], result.exception, result.output)
    return result.stdout


def refused(*words):
    """The one line with which a command refuses."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code != 0, words[:6]
    assert isinstance(result.exception, (robfcp.RobfcpError, SystemExit, KeyboardInterrupt))
    assert str(result.exception).isprintable()
    return str(result.exception)


def table(path, p, y=None, names=("p0", "p1"), ids=None):
    """A CSV file of outputs, a column a class."""
    columns = dict(zip(names, np.transpose(p), strict=True))
    columns |= {} if y is None else {"label": y}
    columns |= {} if ids is None else {"id": ids}
    rows = np.column_stack(list(columns.values()))
    np.savetxt(path, rows, "%.17g", ",", header=",".join(columns), comments="")
    return str(path)
