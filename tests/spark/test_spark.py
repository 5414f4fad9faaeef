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
    package_parent = Path(robfcp.__file__).parents[1]
    paths = f"{package_parent}{os.pathsep}{Path(__file__).parents[1]}"
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
def folder_of_tables(tmp_path_factory):
    """Eight tables that disagree: about the order of the classes, and with names twice."""
    folder = tmp_path_factory.mktemp("tables") / "round.parquet"
    folder.mkdir()
    rng = np.random.default_rng(1)
    reports = [report(k, rng) for k in range(300)]
    for k in range(8):
        Federation.from_reports([*reports[k::8], reports[0]]).save(folder / f"{k}.parquet")
    malicious = Report.from_scores("s007", [0.5] * 9, Binning.uniform(40), score=LAC, round="r")
    table = pq.read_table(folder / "3.parquet")
    rows = table.to_pylist()
    rows[5]["counts"][0], rows[6]["n_samples"] = -3, 2**50
    pq.write_table(type(table).from_pylist(rows, table.schema), folder / "3.parquet")
    Federation.from_reports([malicious]).save(folder / "8.parquet")
    return folder


def killed_once(flag):
    """A pass whose first task ends the executor it runs in."""

    def count_then_die(block):
        if not os.path.exists(flag):
            Path(flag).touch()
            python = int(Path(f"/proc/{os.getppid()}/stat").read_text().split()[3])
            os.kill(python, signal.SIGKILL)
        return block.cumulative_count(7)

    return count_then_die


def test_the_calibration_is_the_same_to_the_byte_though_an_executor_dies(
    cluster, folder_of_tables, tmp_path
):
    local_federation = Federation.from_files(folder_of_tables)
    spark_federation = Federation.from_files(cluster.read.parquet(str(folder_of_tables)))
    assert spark_federation.is_out_of_core
    assert list(spark_federation.clients) == list(local_federation.clients)
    assert spark_federation.rejected_reports == local_federation.rejected_reports
    assert (
        len(local_federation.rejected_reports) == 3
    )  # two wrong rows, and a name that says two things
    cumulative = spark_federation.map_blocks(killed_once(str(tmp_path / "killed")))
    assert (tmp_path / "killed").exists()
    np.testing.assert_array_equal(cumulative, local_federation.cumulative_count(7))
    expected = robfcp.calibrate(local_federation, defense=Consensus(random_state=5))
    assert (
        robfcp.calibrate(spark_federation, defense=Consensus(random_state=5)).to_json()
        == expected.to_json()
    )


def test_the_command_reads_by_spark_and_writes_verdicts_as_a_table(
    cluster, folder_of_tables, tmp_path
):
    output = tmp_path / "c.json"
    result = run(
        "calibrate", folder_of_tables, "--spark", MASTER, "--defense", "none", "-o", output
    )
    assert result.returncode == 0, result.stderr
    assert robfcp.Calibration.load(output).summary.n_clients == 297
    verdicts = pq.read_table(tmp_path / "c.verdicts.parquet").to_pydict()
    assert verdicts["verdict"].count("benign") == 297
    assert verdicts["verdict"].count("rejected") == len([r for r in verdicts["reason"] if r]) == 3


def test_what_does_not_fit_is_one_line(cluster, folder_of_tables, tmp_path):
    table = pq.read_table(folder_of_tables / "1.parquet")
    folder = tmp_path / "alone"
    folder.mkdir()
    pq.write_table(table.replace_schema_metadata({}), folder / "b.parquet")
    pq.write_table(table, folder / "a.parquet")
    frame = cluster.read.parquet(str(folder))
    federation = Federation.from_files(frame)
    assert federation.n_clients == len(table)
    assert "its metadata do not say what its rows share" in federation.rejected_reports[0].reason
    (folder / "a.parquet").unlink()
    assert federation.pooled_counts().sum() == federation.n_samples  # of what Spark has kept
    with pytest.raises(RobfcpError, match=r"^frame: a file of it is not there; check the path$"):
        Federation.from_files(frame)
    columns = (
        "client string, n_samples long, min_cell_count int, bins array<int>, counts array<bigint>"
    )
    few_columns = ["client", "n_samples", "min_cell_count"]
    for invalid, message in (
        (cluster.createDataFrame([("a", 1, 1)], few_columns), "frame: has no column 'bins'"),
        (cluster.createDataFrame([("a", 1, 1, [0], [1])], columns), "its rows lie in no file"),
    ):
        with pytest.raises(RobfcpError, match=message):
            Federation.from_files(invalid)
    with pytest.raises(RobfcpError, match=r"is not there; check the path"):
        module.read_tables([tmp_path / "nowhere"], MASTER)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("pyspark.sql", r"^--spark: needs pyspark; pip install 'robfcp\[spark\]'$"),
        ("java", "^--spark: needs Java 17 or later; apt-get install openjdk-17-jre-headless"),
    ],
)
def test_what_is_not_installed_is_named(missing, message, monkeypatch):
    if missing == "java":
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RobfcpError, match=message):
        module.read_tables(["round"], MASTER)
