"""Files people really have are read by name; wrong ones are refused by row and column."""

from __future__ import annotations

import csv
import io
import json
import re
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import robfcp
from robfcp.cli import app
from robfcp.cli.tables import FileReading, letters, read_csv, read_outputs
from robfcp.errors import RobfcpError

RUNNER = CliRunner(env={"COLUMNS": "80"})
NAMES = ("flu", "cold", "well")
ROOT = Path(__file__).parents[2]


def drawn(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(3, 0.5), n)
    return p, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def invoke(*words: object) -> str:
    result = RUNNER.invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: object) -> str:
    result = RUNNER.invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, RobfcpError), result.output
    return str(result.exception)


def lines(header: str, rows: list[str]) -> str:
    return "\n".join([header, *rows]) + "\n"


def counts(folder: Path, *options: str, name: str = "t.csv") -> tuple[Any, Any]:
    """The classes and counts of the report that a file gives."""
    invoke("report", folder / name, "-c", "a", "-o", folder / "r.json", *options)
    report = robfcp.Report.load(folder / "r.json")
    assert report.strata is not None
    return report.strata.names, report.strata.dense().tolist()


@pytest.fixture
def plain(tmp_path: Path) -> tuple[Any, Any]:
    """What every other way to write the same table must give."""
    p, y = drawn()
    frame = pd.DataFrame(p, columns=list(NAMES))
    frame["label"] = [NAMES[c] for c in y]
    frame.to_csv(tmp_path / "t.csv", index=False)
    return counts(tmp_path)


def written(kind: str, path: Path) -> list[str]:
    """The same table in other people's habits, and the options it needs."""
    p, y = drawn()
    frame = pd.DataFrame(p, columns=list(NAMES))
    frame["label"] = [NAMES[c] for c in y]
    if kind == "shuffled":
        frame[["well", "label", "flu", "cold"]].to_csv(path, index=False)
        return ["--classes", "flu,cold,well"]
    if kind == "prefix":
        frame.columns = [*(f"prob_{name}" for name in NAMES), "label"]
    elif kind == "index":
        frame.to_csv(path)
        return []
    elif kind == "patients":
        frame.insert(0, "patient_id", [f"P{k:03d}" for k in range(300)])
    elif kind == "named patients":
        frame.insert(2, "nr", range(300))
        frame.to_csv(path, index=False)
        return ["--id", "nr"]
    elif kind == "German Excel":
        frame.to_csv(path, index=False, sep=";", decimal=",", encoding="utf-8-sig")
        return []
    elif kind == "Excel's hint":
        path.write_text("sep=;\n" + frame.to_csv(index=False, sep=";", decimal=","))
        return []
    elif kind == "tabs in UTF-16":
        frame.to_csv(path, index=False, sep="\t", encoding="utf-16")
        return []
    elif kind == "blank lines":
        path.write_text(frame.to_csv(index=False).replace("\n", "\n\n"))
        return []
    elif kind == "percent":
        frame[list(NAMES)] *= 100
        frame.to_csv(path, index=False)
        return ["--normalise"]
    elif kind == "logits":
        frame[list(NAMES)] = np.log(frame[list(NAMES)]) + 3
        frame.to_csv(path, index=False)
        return ["--logits"]
    elif kind == "further columns":
        frame.insert(0, "ward", "north")
        frame["age"] = 50
        frame.to_csv(path, index=False)
        return ["--classes", "flu, cold, well"]
    elif kind == "named truth":
        frame = frame.rename(columns={"label": "diagnosis"})
        frame.to_csv(path, index=False)
        return ["--label", "diagnosis"]
    frame.to_csv(path, index=False)
    return []


@pytest.mark.parametrize(
    "kind",
    [
        "shuffled",
        "prefix",
        "index",
        "patients",
        "named patients",
        "German Excel",
        "Excel's hint",
        "tabs in UTF-16",
        "blank lines",
        "percent",
        "logits",
        "further columns",
        "named truth",
    ],
)
def test_the_same_table_in_other_habits_gives_the_same_report(
    plain: tuple[Any, Any], kind: str, tmp_path: Path
) -> None:
    options = written(kind, tmp_path / "t.csv")
    assert counts(tmp_path, *options) == plain


def test_parquet_and_npz_give_the_same_report(plain: tuple[Any, Any], tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    p, y = drawn()
    frame = pd.DataFrame(p, columns=list(NAMES))
    frame["label"] = pd.Categorical([NAMES[c] for c in y])
    frame.to_parquet(tmp_path / "t.parquet")
    assert counts(tmp_path, name="t.parquet") == plain
    frame.index = [f"P{k}" for k in range(300)]
    frame.to_parquet(tmp_path / "t.parquet")
    assert counts(tmp_path, name="t.parquet") == plain
    words = np.array([NAMES[c] for c in y])
    np.savez(tmp_path / "t.npz", probabilities=p, labels=words, classes=NAMES)
    assert counts(tmp_path, name="t.npz") == plain
    np.savez(tmp_path / "t.npz", logits=np.log(p), labels=y, classes=NAMES)
    assert counts(tmp_path, name="t.npz") == plain
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    assert refused("report", tmp_path / "bad.parquet", "-c", "a", "-o", tmp_path / "r.json") == (
        f"{tmp_path / 'bad.parquet'}: is damaged or no parquet file; write it again"
    )


def test_numbered_columns_are_taken_by_their_numbers(tmp_path: Path) -> None:
    p, y = drawn()
    frame = pd.DataFrame({"p2": p[:, 2], "p1": p[:, 1], "label": y, "p0": p[:, 0]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    names, table = counts(tmp_path)
    assert names == 3
    score = robfcp.LAC()
    exact = robfcp.Report.from_scores("a", score(p, y), score=score, labels=y, classes=3)
    assert exact.strata is not None
    assert table == exact.strata.dense().tolist()
    frame = pd.DataFrame({"class 3": p[:, 2], "class 1": p[:, 0], "class 2": p[:, 1]})
    frame["label"] = y + 1
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert counts(tmp_path) == (("1", "2", "3"), table)


def test_a_column_of_class_names_is_the_truth_and_that_is_said(
    plain: tuple[Any, Any], tmp_path: Path
) -> None:
    frame = pd.read_csv(tmp_path / "t.csv").rename(columns={"label": "Diagnose"})
    frame.insert(0, "ward", ["north", "south", "east"] * 100)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert counts(tmp_path, "--id", "ward") == plain
    out = invoke("report", tmp_path / "t.csv", "-c", "a", "--id", "ward", "-o", tmp_path / "r.json")
    assert "Column Diagnose was taken as the truth" in " ".join(out.split())
    frame["second"] = frame["Diagnose"]
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = ["report", tmp_path / "t.csv", "-c", "a", "--id", "ward", "-o", tmp_path / "r.json"]
    assert "--label Diagnose if it is the truth" in refused(*words)


def test_numbers_beside_names_count_the_columns_of_the_file(federation: Path) -> None:
    p, y = drawn(50, 9)
    calibration, new = federation / "new/c.json", federation / "new.csv"
    frame = pd.DataFrame(p[:, [2, 0, 1]], columns=["well", "flu", "cold"])
    frame["label"] = [[2, 0, 1].index(c) for c in y]
    frame.to_csv(new, index=False)
    turned = invoke("predict", calibration, new, "--json")
    frame = pd.DataFrame(p[:, [2, 0, 1]], columns=["p2", "p0", "p1"])
    frame["label"] = y
    frame.to_csv(new, index=False)
    assert invoke("predict", calibration, new, "--json") == turned
    np.savez(federation / "new.npz", probabilities=p, labels=y)
    assert invoke("predict", calibration, federation / "new.npz", "--json") == turned


# The eight wrong files of the documentation, with what is said of them.
WRONG = {
    "an index column": (
        "nr,cat,dog,label\n1,0.5,0.5,cat\n2,0.9,0.1,dog\n",
        "row 2: the probabilities sum to 2, not 1, but do without column nr; pass --id nr if it is "
        "an index, else the others as --classes",
    ),
    "two decimals": (
        "cat,dog,bird,label\n0.33,0.33,0.33,cat\n",
        "row 2: the probabilities sum to 0.99, not 1; if they were rounded, pass --normalise",
    ),
    "logits": (
        "cat,dog,label\n2.5,-1.25,cat\n",
        "row 2, column B (dog): -1.25 is negative and no probability; pass --logits for logits",
    ),
    "decimal commas between commas": (
        "cat,dog,label\n0,5,0,5,cat\n",
        "row 2 has 5 cells, the names in row 1 are 3; numbers with decimal commas need semicolons "
        "between columns",
    ),
    "an unknown label": (
        "cat,dog,label\n0.5,0.5,cat\n0.4,0.6,bird\n",
        "row 3, column C (label): 'bird' is none of the classes cat, dog; fix it or rename a "
        "column",
    ),
    "a missing number": (
        "cat,dog,label\n0.5,0.5,cat\n\n0.4,,dog\n",
        "row 4, column B (dog): is missing; fill it in or drop the row",
    ),
    "no header": (
        "0.5,0.5,0\n0.25,0.75,1\n",
        "row 1 holds numbers; write the columns' names there",
    ),
    "text among the classes": (
        "ward,cat,dog,label\nnorth,0.5,0.5,cat\n",
        "row 2, column A (ward): 'north' is no number; pass --id ward if it names samples, --label "
        "ward if it is the truth, or the probabilities' names as --classes",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_refused_by_row_and_column(case: str, tmp_path: Path) -> None:
    text, message = WRONG[case]
    (tmp_path / "t.csv").write_text(text)
    said = refused("report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json")
    assert said == f"{tmp_path / 't.csv'}: {message}"


def test_the_guide_shows_the_wrong_files_as_they_are_refused() -> None:
    guide = (ROOT / "docs" / "guides" / "files.md").read_text()
    for case, (_, message) in WRONG.items():
        assert f"| {case} |" in guide, case
        assert f"`{message}`" in guide, case


FURTHER = {
    "t.csv": {
        "": "is empty",
        "cat;dog;label\n0,5;0.5;cat\n": "row 2, column A (cat) has a decimal comma, row 2",
        'cat,dog,label\n"0,5","0,5",cat\n': "'0,5' is no number; write decimals with a point",
        "cat,dog,label\n0.5,0.5,\n": "row 2, column C (label): the label is missing",
        "cat,dog,label\n0.5,0.5,2\n": "'2' is none of the classes cat, dog",
        "p1,p2,label\n0.5,0.5,0\n": "'0' is none of the classes 1, 2",
        "p0,p1,label\n0.5,0.5,2\n": "'2' is none of the classes 0 to 1, as the columns are counted",
        "cat,Cat,label\n1,0,cat\n": "columns A and B have the same name 'Cat'",
        "cat,dog,label\n": "holds names and no samples",
        "\ncat,dog,label\n": "row 1 is empty",
        "cat,dog,label\n0.5,x,cat\n0.5,0.5,dog\n": "row 2, column B (dog): 'x' is no number; write",
        "cat,dog\n0.5,0.5\n": "holds no labels; call the column",
        "label\ncat\n": "holds no predictions",
        "cat,dog,label\n0.5,0.5\n": "row 2 has 2 cells, the names in row 1 are 3; write one cell",
        "cat,dog,label\n0,0,cat\n": "sum to 0, not 1; pass --logits if",
        "cat,dog,label\n40,60,cat\n": "sum to 100, not 1; if these are percentages",
        '"' + "x" * 200_000 + '",label\n1,0\n': "a cell is too long or its quotes do not end",
        "\0": "is no text",
    },
    "t.xlsx": {"PK": "cannot read .xlsx; save it as CSV UTF-8 in the spreadsheet"},
    "t.pkl": {"x": "cannot read .pkl; save arrays with numpy.savez; pickles are never opened"},
    "t": {"x": "cannot read a file without an ending; use .csv, .npz, .npy or .parquet"},
}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [(name, text, said) for name, cases in FURTHER.items() for text, said in cases.items()],
)
def test_further_wrong_files_are_refused_in_our_words(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    said = refused("report", tmp_path / name, "-c", "a", "-o", tmp_path / "r.json")
    assert message in said
    assert not re.search(r"Error|invalid|could not|codec|numpy\.core", said)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,b\n\x81\xfe,1\n")
    assert "is no text; save it as CSV UTF-8" in refused(
        "report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json"
    )


def test_old_windows_files_are_read_and_said_to_be(tmp_path: Path) -> None:
    text = "p_Übelkeit;p_gut;label\n0,75;0,25;Übelkeit\n"
    (tmp_path / "t.csv").write_bytes(text.encode("cp1252"))
    out = invoke("report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json")
    assert "was read as Windows-1252" in " ".join(out.split())
    strata = robfcp.Report.load(tmp_path / "r.json").strata
    assert strata is not None
    assert strata.names == ("Übelkeit", "gut")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--id", "nobody"], "has no column 'nobody'; it has flu, cold, well, label"),
        (["--label", "nobody"], "has no column 'nobody'"),
        (["--classes", "flu,cold,ill"], "no column is called 'ill'; the classes are flu, cold"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    plain: tuple[Any, Any], options: list[str], message: str, tmp_path: Path
) -> None:
    said = refused("report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json", *options)
    assert message in said


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    """Reports of five sites in a folder, and a calibration of them at two levels."""
    (tmp_path / "reports").mkdir()
    for k in range(5):
        p, y = drawn(seed=k)
        frame = pd.DataFrame(p, columns=list(NAMES))
        frame["label"] = [NAMES[c] for c in y]
        frame.to_csv(tmp_path / f"{k}.csv", index=False)
        invoke("report", tmp_path / f"{k}.csv", "-c", f"s{k}", "-o", tmp_path / f"reports/{k}.json")
    levels = ["--coverage", "0.8", "--coverage", "0.95"]
    invoke("calibrate", tmp_path / "reports", *levels, "-o", tmp_path / "new/c.json")
    return tmp_path


def test_folders_and_patterns_are_the_files_they_stand_for(federation: Path) -> None:
    (federation / "reports" / ".hidden.json").write_text("{}")
    (federation / "reports" / "readme.txt").write_text("not a report")
    files = sorted((federation / "reports").glob("[0-9].json"))
    wanted = json.loads(invoke("calibrate", *files, "--json"))
    assert json.loads(invoke("calibrate", federation / "reports", "--json")) == wanted
    assert json.loads(invoke("calibrate", federation / "reports" / "?.json", "--json")) == wanted
    assert "matches no file" in refused("calibrate", federation / "*.nothing")
    (federation / "empty").mkdir()
    assert "holds no .json" in refused("calibrate", federation / "empty")


def test_sets_come_back_with_ids_and_class_names(federation: Path) -> None:
    p, y = drawn(40, 9)
    frame = pd.DataFrame({"patient_id": [f"P{k}" for k in range(40)], "p_well": p[:, 2]})
    frame["p_flu"], frame["age"], frame["p_cold"] = p[:, 0], 50, p[:, 1]
    frame["label"] = [NAMES[c] for c in y]
    frame.to_csv(federation / "new.csv", index=False)
    calibration = robfcp.Calibration.load(federation / "new/c.json")
    sets = calibration.predict_set(p)
    for place, asked in enumerate(("0.8", "0.95")):
        if True:
            out = invoke(
                "predict", federation / "new/c.json", federation / "new.csv", "--level", asked,
                "-o", federation / "out/sets.csv", "--json",
            )  # fmt: skip
            assert json.loads(out)["coverage"] == robfcp.metrics.coverage(sets[:, :, place], y)
            with (federation / "out/sets.csv").open() as stream:
                rows = list(csv.DictReader(stream))
            assert list(rows[0]) == ["id", "set", "size", *NAMES]
            assert [row["id"] for row in rows] == frame["patient_id"].tolist()
            for row, members in zip(rows, sets[:, :, place], strict=True):
                held = [NAMES[c] for c in np.flatnonzero(members)]
                assert row["set"] == " | ".join(held)
                assert int(row["size"]) == len(held)
                assert [row[name] for name in NAMES] == [str(int(one)) for one in members]
    said = refused("predict", federation / "new/c.json", federation / "new.csv", "--level", "0.9")
    assert said.startswith("--level: '0.9' is none of the calibration's levels 0.8, 0.95; take one")


def test_other_commands_read_the_same_files(federation: Path) -> None:
    p, y = drawn(60, 9)
    frame = pd.DataFrame(np.round(p[:, [2, 0, 1]], 2), columns=["well", "flu", "cold"])
    frame["truth"] = [NAMES[c] for c in y]
    frame["nr"] = range(60)
    frame.to_csv(federation / "new.csv", index=False, sep=";", decimal=",")
    calibration, new = federation / "new/c.json", federation / "new.csv"
    options = ["--normalise", "--level", "0.95"]
    checked = json.loads(invoke("check", calibration, new, *options, "--id", "nr", "--json"))
    predicted = json.loads(invoke("predict", calibration, new, *options, "--json"))
    assert checked["coverage"] == predicted["coverage"]
    assert [part["name"] for part in checked["classes"]] == list(NAMES)
    state = federation / "deep/state.json"
    watched = invoke("monitor", calibration, new, *options, "--id", "nr", "-s", state, "--json")
    assert json.loads(watched)["new"] == 60
    invoke("calibrate", federation / "reports", "--letters", federation / "letters", "-q")
    letter = federation / "letters/s1.json"
    new, local = federation / "2.csv", ("--local", federation / "1.csv")
    invoke("predict", new, "--letter", letter, *local, "-o", federation / "own.csv")
    assert (federation / "own.csv").read_text().startswith("id,set,size,flu,cold,well\n2,")


def test_a_site_with_other_classes_is_refused_by_name(federation: Path) -> None:
    p, y = drawn()
    frame = pd.DataFrame(p, columns=["flu", "cold", "ill"])
    frame["label"] = [("flu", "cold", "ill")[c] for c in y]
    frame.to_csv(federation / "odd.csv", index=False)
    invoke("report", federation / "odd.csv", "-c", "odd", "-o", federation / "reports/odd.json")
    found = json.loads(invoke("calibrate", federation / "reports", "--json"))
    assert [fault["client"] for fault in found["faulty"]] == ["odd"]
    assert "classes" in found["faulty"][0]["reason"]
    frame = pd.DataFrame(p[:, [2, 0, 1]], columns=["well", "flu", "cold"])
    frame["label"] = [NAMES[c] for c in y]
    frame.to_csv(federation / "odd.csv", index=False)
    invoke("report", federation / "odd.csv", "-c", "odd", "-o", federation / "reports/odd.json")
    found = json.loads(invoke("calibrate", federation / "reports", "--json"))
    assert found["faulty"] == []
    assert "odd" in found["trusted"]


def test_no_set_is_empty_when_asked_and_the_cost_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(6, 1.5), 2000)
    y = (p.cumsum(axis=1) > rng.random((2000, 1))).argmax(axis=1)
    np.savez(tmp_path / "a.npz", probabilities=p, labels=y)
    invoke("report", tmp_path / "a.npz", "-c", "a", "-o", tmp_path / "r.json", "--score", "aps")
    calibrate = ["calibrate", tmp_path / "r.json", "--coverage", "0.3", "-o", tmp_path / "c.json"]
    invoke(*calibrate, "-q")
    bare = json.loads(invoke("predict", tmp_path / "c.json", tmp_path / "a.npz", "--json"))
    words = ["predict", tmp_path / "c.json", tmp_path / "a.npz", "--non-empty"]
    full = json.loads(invoke(*words, "--json"))
    assert bare["empty"] == full["filled"] > 0
    assert full["empty"] == 0
    assert bare["coverage"] <= full["coverage"] <= bare["coverage"] + bare["empty"]
    assert full["set_size"] == pytest.approx(bare["set_size"] + bare["empty"])
    assert "were empty and hold their likeliest label now" in " ".join(invoke(*words).split())


def test_sites_and_uses_draw_numbers_of_their_own(tmp_path: Path) -> None:
    p, y = drawn()
    np.savez(tmp_path / "a.npz", probabilities=p, labels=y)
    found = []
    for client in ("a", "b", "a"):
        words = ["-c", client, "--score", "aps", "-o", tmp_path / "r.json"]
        invoke("report", tmp_path / "a.npz", *words)
        report = robfcp.Report.load(tmp_path / "r.json")
        assert report.score == robfcp.APS()
        found.append(report.counts.tolist())
    assert found[0] == found[2] != found[1]


def test_names_are_no_formulas_in_a_spreadsheet(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,=1+1,size,label\n@x,0.5,0.5,size\n-3,0.5,0.5,size\n")
    invoke("report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json")
    invoke("calibrate", tmp_path / "r.json", "-o", tmp_path / "c.json", "-q")
    invoke("predict", tmp_path / "c.json", tmp_path / "t.csv", "-o", tmp_path / "s.csv", "-q")
    rows = list(csv.reader((tmp_path / "s.csv").read_text().splitlines()))
    assert rows[0] == ["id", "set", "size", "'=1+1", "class size"]
    assert [row[0] for row in rows[1:]] == ["'@x", "-3"]


def test_private_reports_do_not_fail_for_one_bad_sample(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    text = lines("cat,dog,label", ["0.5,0.5,cat"] * 40 + ["x,0.5,dog", "0.5,0.9,bird", "1,,"])
    (tmp_path / "t.csv").write_text(text)
    ledger = ["--epsilon", "1", "--ledger", str(tmp_path / "l.json")]
    invoke("report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json", *ledger)
    for option in ("--logits", "--normalise"):
        ledger = ["--epsilon", "1", "--ledger", str(tmp_path / f"l{option}.json")]
        invoke("report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json", option, *ledger)


def test_npz_arrays_are_refused_by_name(tmp_path: Path) -> None:
    p, _ = drawn(3)
    path = tmp_path / "t.npz"
    words = ["report", path, "-c", "a", "-o", tmp_path / "r.json"]
    np.savez(path, probabilities=p, labels=["flu", "ill", "flu"], classes=NAMES)
    assert "row 2: 'ill' is none of the classes flu, cold, well" in refused(*words)
    np.savez(path, probabilities=p, labels=[0, 1, 1], classes=["a", "b"])
    assert "2 classes are named, but there are 3 columns" in refused(*words)
    np.savez(path, probabilities=p * 2, labels=[0, 1, 1])
    assert "row 1: the probabilities sum to 2, not 1" in refused(*words)
    np.savez(path, logits=np.full((3, 2), np.nan), labels=[0, 1, 1])
    assert "row 1, column 1: is no finite logit" in refused(*words)
    np.savez(path, probabilities=np.zeros((3, 2)), labels=[0, 1, 1])
    assert "row 1: sums to 0; it cannot be normalised" in refused(*words, "--normalise")
    np.savez(path, probabilities=p, labels=[0, 1, 1])
    assert "has no array 'ward'; it has probabilities, labels" in refused(*words, "--id", "ward")
    order = FileReading(classes=("well", "flu", "cold"))
    np.savez(path, probabilities=p, labels=["flu"] * 3, classes=NAMES, ids=["x", "y", "z"])
    found = read_outputs(path, needs_targets=True, expects="classes", reading=order)
    np.testing.assert_array_equal(found.predictions, p[:, [2, 0, 1]])
    np.testing.assert_array_equal(found.targets, [1, 1, 1])
    assert found.sample_ids == ["x", "y", "z"]
    with pytest.raises(RobfcpError, match="no column is called"):
        read_outputs(
            path,
            needs_targets=True,
            expects="classes",
            reading=FileReading(classes=("a", "b", "c")),
        )


def test_quantiles_are_taken_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("high,target,low\n2.0,1.5,1.0\n4.0,9.0,3.0\n")
    found = read_outputs(tmp_path / "t.csv", needs_targets=True, expects="values")
    assert found.predictions.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_columns_are_called_as_a_spreadsheet_does() -> None:
    assert [letters(k) for k in (0, 25, 26, 51, 52, 701, 702)] == [
        "A", "Z", "AA", "AZ", "BA", "ZZ", "AAA",
    ]  # fmt: skip


def test_rows_are_counted_as_a_spreadsheet_does(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('note,x\n"two\nlines",1\n\nb,2\n')
    assert list(read_csv(tmp_path / "t.csv").rows) == [2, 4]


# Arrays of any contents are read or refused in one line, within memory for their size.


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(path: Path, members: dict[str, bytes], flag: int = 0, **options: Any) -> None:
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, data in members.items():
            file.writestr(name, data)
    if flag:
        data = bytearray(path.read_bytes())
        for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            at = data.find(mark)
            data[at + place] |= flag
        path.write_bytes(data)


def claimed(shape: str, dtype: str = "<f8", version: int = 1) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header


ARRAYS = {
    "claims a terabyte": claimed("(100000000000, 2)") + b"\0" * 64,
    "claims a negative shape": claimed("(-1, 2)") + b"\0" * 64,
    "claims objects": claimed("(1,)", "|O") + b"\0" * 64,
    "an open bracket": claimed("(((((((((((((") + b"\0" * 64,
    "an unknown version": claimed("(1, 2)", version=9),
    "deep brackets": claimed("(" * 3000 + ")" * 3000),
    "nothing but magic": b"\x93NUMPY",
    "text": b"hello",
}


@pytest.mark.parametrize("case", ARRAYS)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_broken_arrays_are_one_line(tmp_path: Path, case: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        path.write_bytes(ARRAYS[case])
    else:
        archive(path, {"probabilities.npy": ARRAYS[case]})
    with pytest.raises(RobfcpError, match=r"^\S+: ") as error:
        read_outputs(path, needs_targets=False)
    assert "\n" not in str(error.value)


def test_a_bomb_is_not_expanded(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    body = claimed("(1, 2)") + bytes(2**26)
    archive(path, {"probabilities.npy": body}, compression=zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    found = read_outputs(path, needs_targets=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.predictions.shape == (1, 2)
    assert peak < 2**23


def test_encrypted_truncated_and_damaged_archives_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    good = {"probabilities.npy": npy(np.ones((50, 2)) / 2)}
    archive(path, good, flag=1)
    with pytest.raises(RobfcpError, match="encrypted"):
        read_outputs(path, needs_targets=False)
    archive(path, good, compression=zipfile.ZIP_DEFLATED)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 4):
            broken[place] = rng.integers(256)
        path.write_bytes(bytes(broken[: rng.integers(1, len(data) + 1)]))
        with suppress(RobfcpError):
            read_outputs(path, needs_targets=False)


@pytest.mark.parametrize("compressed", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_good_archives_are_read_as_numpy_reads_them(
    tmp_path: Path, compressed: Any, dtype: Any
) -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 40).astype(dtype)
    labels = np.arange(40) % 3
    compressed(tmp_path / "x.npz", probabilities=np.asfortranarray(rows), labels=labels)
    found = read_outputs(tmp_path / "x.npz", needs_targets=True)
    assert np.array_equal(found.predictions, rows)
    assert np.array_equal(found.targets, labels)
    np.save(tmp_path / "x.npy", rows)
    assert np.array_equal(read_outputs(tmp_path / "x.npy", needs_targets=False).predictions, rows)
