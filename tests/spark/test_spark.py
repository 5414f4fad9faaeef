"""On a real cluster of two executors: the same to the byte, whatever happens to one of them."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from in_process import run
from makers import LAC

import robfcp
from robfcp import Binning, Consensus, Federation, Report
from robfcp.errors import RobfcpError
from robfcp.fleet import _spark as module

sql = pytest.importorskip("pyspark.sql")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]
MASTER = "local-cluster[2,1,1024]"


@pytest.fixture(scope="module")
def cluster():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    own = Path(robfcp.__file__).parents[1]
    paths = f"{own}{os.pathsep}{Path(__file__).parents[1]}"
    builder = sql.SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false")
    builder = builder.config("spark.executorEnv.PYTHONPATH", paths)
    builder = builder.config("spark.sql.files.openCostInBytes", "1")  # a partition a file or two
    session = builder.config("spark.sql.files.maxPartitionBytes", "20000").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def report(k, rng):
    more = {"labels": rng.integers(0, 3, 40), "classes": ["a", "b", "c"][:: 1 if k % 5 else -1]}
    scores = rng.beta(1, 3, 40) if k % 9 else rng.random(40) / 20
    return Report.from_scores(
        f"s{k:03d}", scores, Binning.uniform(40), score=LAC, round="r", **(more if k % 3 else {})
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Eight tables with what two or more of them disagree about: classes' order, names twice."""
    folder = tmp_path_factory.mktemp("tables") / "round.parquet"
    folder.mkdir()
    rng = np.random.default_rng(1)
    reports = [report(k, rng) for k in range(300)]
    for k in range(8):
        Federation.from_reports([*reports[k::8], reports[0]]).save(folder / f"{k}.parquet")
    liar = Report.from_scores("s007", [0.5] * 9, Binning.uniform(40), score=LAC, round="r")
    table = pq.read_table(folder / "3.parquet")
    rows = table.to_pylist()
    rows[5]["counts"][0], rows[6]["n"] = -3, 2**50
    pq.write_table(type(table).from_pylist(rows, table.schema), folder / "3.parquet")
    Federation.from_reports([liar]).save(folder / "8.parquet")
    return folder


def killed_once(flag):
    """A pass whose first task ends the executor it runs in."""

    def below(block):
        if not os.path.exists(flag):
            Path(flag).touch()
            python = int(Path(f"/proc/{os.getppid()}/stat").read_text().split()[3])
            os.kill(python, signal.SIGKILL)
        return block.cumulative_count(7)

    return below


def test_the_calibration_is_the_same_to_the_byte_though_an_executor_dies(cluster, place, tmp_path):
    here = Federation.from_files(place)
    there = Federation.from_files(cluster.read.parquet(str(place)))
    assert there.is_out_of_core
    assert list(there.clients) == list(here.clients)
    assert there.rejected_reports == here.rejected_reports
    assert len(here.rejected_reports) == 3  # two wrong rows, and a name that says two things
    found = there.map_blocks(killed_once(str(tmp_path / "killed")))
    assert (tmp_path / "killed").exists()
    np.testing.assert_array_equal(found, here.cumulative_count(7))
    wanted = robfcp.calibrate(here, defense=Consensus(seed=5))
    assert robfcp.calibrate(there, defense=Consensus(seed=5)).to_json() == wanted.to_json()


def test_the_command_reads_by_spark_and_writes_verdicts_as_a_table(cluster, place, tmp_path):
    out = tmp_path / "c.json"
    done = run("calibrate", place, "--spark", MASTER, "--defence", "none", "-o", out)
    assert done.returncode == 0, done.stderr
    assert robfcp.Calibration.load(out).summary.n_clients == 297
    verdicts = pq.read_table(tmp_path / "c.verdicts.parquet").to_pydict()
    assert verdicts["verdict"].count("trusted") == 297
    assert verdicts["verdict"].count("faulty") == len([r for r in verdicts["reason"] if r]) == 3


def test_what_does_not_fit_is_one_line(cluster, place, tmp_path):
    whole = pq.read_table(place / "1.parquet")
    alone = tmp_path / "alone"
    alone.mkdir()
    pq.write_table(whole.replace_schema_metadata({}), alone / "b.parquet")
    pq.write_table(whole, alone / "a.parquet")
    frame = cluster.read.parquet(str(alone))
    found = Federation.from_files(frame)
    assert found.n_clients == len(whole)
    assert "its metadata do not say what its rows share" in found.rejected_reports[0].reason
    (alone / "a.parquet").unlink()
    assert found.pooled_counts().sum() == found.n_samples  # of what Spark has kept
    with pytest.raises(RobfcpError, match=r"^frame: a file of it is not there; check the path$"):
        Federation.from_files(frame)
    columns = "client string, n long, min_cell_count int, bins array<int>, counts array<bigint>"
    few_columns = ["client", "n", "min_cell_count"]
    for wrong, words in (
        (cluster.createDataFrame([("a", 1, 1)], few_columns), "frame: has no column 'bins'"),
        (cluster.createDataFrame([("a", 1, 1, [0], [1])], columns), "its rows lie in no file"),
    ):
        with pytest.raises(RobfcpError, match=words):
            Federation.from_files(wrong)
    with pytest.raises(RobfcpError, match=r"is not there; check the path"):
        module.read_tables([tmp_path / "nowhere"], MASTER)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("pyspark.sql", r"^--spark: needs pyspark; pip install 'robfcp\[spark\]'$"),
        ("java", "^--spark: needs Java 17 or later; apt-get install openjdk-17-jre-headless"),
    ],
)
def test_what_is_not_installed_is_named(missing, words, monkeypatch):
    if missing == "java":
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RobfcpError, match=words):
        module.read_tables(["round"], MASTER)
