"""Tables in many formats are read by column names; invalid ones are refused with row and column."""

import csv
import io
import json
import re
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from makers import command_error, command_output, outputs, peak_memory

import robfcp
from robfcp.cli.model_outputs import ReaderOptions
from robfcp.cli.table_files import read_csv, spreadsheet_column
from robfcp.cli.tables import read_outputs
from robfcp.errors import RobfcpError

NAMES = ("flu", "cold", "well")
COLUMN_ORDER = [2, 0, 1]
PROBABILITIES, LABELS = outputs()
NAMED_LABELS = np.array(NAMES)[LABELS]
REORDERED_LABELS = np.argsort(COLUMN_ORDER)[LABELS]
REORDERED_NAMES = ["well", "flu", "cold"]


def output_frame(probabilities=PROBABILITIES, labels=NAMED_LABELS, names=NAMES, **columns):
    """Return a table of outputs: a column for each class, the labels, and further columns."""
    return pd.DataFrame(
        {**dict(zip(names, np.transpose(probabilities), strict=True)), "label": labels, **columns}
    )


def csv_bytes(frame=None, encoding="utf-8", **options):
    return (
        (output_frame() if frame is None else frame).to_csv(index=False, **options).encode(encoding)
    )


def npz_bytes(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def parquet_bytes(table):
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    return buffer.getvalue()


def read_file(path, expects="classes", **options):
    return read_outputs(path, needs_targets=True, expects=expects, reading=ReaderOptions(**options))


GERMAN_FORMAT = {"sep": ";", "decimal": ","}
RENAMED_LABEL = {"label": "Diagnose"}
NUMBERED_COLUMNS = ["p2", "p0", "p1"]
FILES = {  # the same outputs in many formats, and the options to read them
    "plain": (csv_bytes(), {}),
    "shuffled": (csv_bytes(output_frame()[["well", "label", "flu", "cold"]]), {"classes": NAMES}),
    "prefix": (csv_bytes(output_frame(names=[f"prob_{name}" for name in NAMES])), {}),
    "index": (output_frame().to_csv().encode(), {}),
    "patients": (csv_bytes(output_frame(patient_id=[f"P{k:03d}" for k in range(300)])), {}),
    "named patients": (csv_bytes(output_frame(nr=range(300))), {"ids": "nr"}),
    "German Excel": (csv_bytes(None, "utf-8-sig", **GERMAN_FORMAT), {}),
    "Excel's hint": (b"sep=;\n" + csv_bytes(**GERMAN_FORMAT), {}),
    "pipes": (csv_bytes(None, sep="|"), {}),
    "tabs in UTF-16": (csv_bytes(None, "utf-16", sep="\t"), {}),
    "blanks": (csv_bytes().replace(b",", b", "), {}),
    "blank lines": (csv_bytes().replace(b"\n", b"\n\n"), {}),
    "percent": (csv_bytes(output_frame(100 * PROBABILITIES)), {"normalize": True}),
    "logits": (csv_bytes(output_frame(np.log(PROBABILITIES) + 3)), {"logits": True}),
    "further columns": (csv_bytes(output_frame(ward="north", age=50)), {"classes": NAMES}),
    "named truth": (csv_bytes(output_frame().rename(columns=RENAMED_LABEL)), {"label": "Diagnose"}),
    "numbers count columns": (
        csv_bytes(output_frame(PROBABILITIES[:, COLUMN_ORDER], REORDERED_LABELS, REORDERED_NAMES)),
        {"classes": NAMES},
    ),
    "numbered columns": (
        csv_bytes(output_frame(PROBABILITIES[:, COLUMN_ORDER], LABELS, NUMBERED_COLUMNS)),
        {"classes": NAMES},
    ),
    "parquet": (parquet_bytes(output_frame(labels=pd.Categorical(NAMED_LABELS))), {}),
    "parquet of named rows": (parquet_bytes(output_frame().rename(index="P{}".format)), {}),
    "npz": (npz_bytes(probabilities=PROBABILITIES, labels=NAMED_LABELS, classes=NAMES), {}),
    "npz of logits": (npz_bytes(logits=np.log(PROBABILITIES), labels=LABELS, classes=NAMES), {}),
    "npz turned": (
        npz_bytes(
            probabilities=PROBABILITIES[:, COLUMN_ORDER],
            labels=REORDERED_LABELS,
            classes=REORDERED_NAMES,
        ),
        {"classes": NAMES},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_the_same_outputs_are_read_from_many_formats(name, tmp_path):
    content, options = FILES[name]
    suffix = next((suffix for suffix in ("npz", "parquet") if suffix in name), "csv")
    (tmp_path / f"t.{suffix}").write_bytes(content)
    outputs_ = read_file(tmp_path / f"t.{suffix}", **options)
    assert outputs_.names == NAMES
    np.testing.assert_allclose(outputs_.predictions, PROBABILITIES, atol=1e-12)
    np.testing.assert_array_equal(outputs_.targets, LABELS)
    assert not outputs_.notes


def test_numbered_columns_are_ordered_by_their_numbers(tmp_path):
    for names, first_label, class_names in (
        (NUMBERED_COLUMNS, 0, ()),
        (["c 3", "c 1", "c 2"], 1, ("1", "2", "3")),
    ):
        (tmp_path / "t.csv").write_bytes(
            csv_bytes(output_frame(PROBABILITIES[:, COLUMN_ORDER], LABELS + first_label, names))
        )
        outputs_ = read_file(tmp_path / "t.csv")
        assert outputs_.names == class_names
        np.testing.assert_array_equal(outputs_.predictions, PROBABILITIES)
        np.testing.assert_array_equal(outputs_.targets, LABELS)


GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "files.md").read_text(encoding="utf-8")
INVALID_FILES = re.findall(
    r"^\| [\w ]+ \| `(.+)` \| `(.+)` \|$", GUIDE.split("| what is said |")[1], re.M
)
assert len(INVALID_FILES) == 8


@pytest.mark.parametrize(("content", "message"), INVALID_FILES)
def test_invalid_files_are_refused_with_row_and_column_as_in_the_guide(content, message, tmp_path):
    (tmp_path / "t.csv").write_text(content.replace(" ⏎ ", "\n") + "\n")
    arguments = "report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json"
    assert command_error(*arguments) == f"{tmp_path / 't.csv'}: {message}"


FURTHER_INVALID_FILES = {
    "t.csv": {
        "": "is empty",
        "cat;dog;label\n0,5;0.5;cat\n": "row 2, column A (cat) has a decimal comma, row 2",
        'cat,dog,label\n"0,5","0,5",cat\n': "'0,5' is no number; write decimals with a point",
        "cat,dog,label\n0.5,0.5,\n": "row 2, column C (label): the label is missing",
        "cat,dog,label\n0.5,0.5,2\n": "'2' is none of the classes cat, dog",
        **{
            f"p0,p1,label\n0.5,0.5,{label}\n": f"'{label}' is none of the classes"
            for label in ("inf", "1e+300", "0 # sure?")
        },
        "p1,p2,label\n0.5,0.5,0\n": "'0' is none of the classes 1, 2",
        "p0,p1,label\n0.5,0.5,2\n": "'2' is none of the classes 0 to 1, as the columns are counted",
        "cat,Cat,label\n1,0,cat\n": "columns A and B have the same name 'Cat'",
        "cat,dog,label\n": "holds names and no samples",
        "\ncat,dog,label\n": "row 1 is empty",
        "cat,dog,label\n0.5,x,cat\n0.5,0.5,dog\n": "row 2, column B (dog): 'x' is no number; write",
        "cat,dog\n0.5,0.5\n": "holds no labels; call the column",
        "label\ncat\n": "holds no predictions",
        "cat,dog,label\n0.5,0.5\n": "row 2 has 2 cells, the names in row 1 are 3; write one cell",
        "cat,dog,label\n0.5,nan,cat\n": "row 2, column B (dog): is missing or NaN; fill it in",
        '"' + "x" * 200_000 + '",label\n1,0\n': "a cell is too long or its quotes do not end",
        "\0": "is no text",
        b"a,b\n\x81\xfe,1\n": "is no text; save it as CSV UTF-8",
        csv_bytes(
            output_frame(labels=LABELS + 1)
        ): "labels are 1 to 3, and the 3 columns count from 0; subtract 1",
        csv_bytes(
            output_frame(second=NAMED_LABELS).rename(columns=RENAMED_LABEL)
        ): "--label Diagnose if it is the truth",
        csv_bytes(
            output_frame(100 * PROBABILITIES)
        ): "not 1; divide percentages by 100, or pass --normalize",
        "risk,y\n3,0\n97.5,1\n": "row 2, column A (risk): 3 is above 1 and no probability; divide",
        "risk,y\n0.3,no\n0.9,yes\n": "labels are words beside one column of probabilities, risk;",
    },
    "t.parquet": {"PAR1 no": "t.parquet: is damaged or no parquet file; write it again"},
    "t.npz": {
        npz_bytes(
            probabilities=PROBABILITIES[:2], labels=["flu", "ill"], classes=NAMES
        ): "row 2: 'ill' is none of",
        npz_bytes(
            probabilities=PROBABILITIES[:2], labels=[0, 1], classes=["a", "b"]
        ): "2 classes are named, but",
        npz_bytes(
            probabilities=PROBABILITIES[:3] * 2, labels=[0, 1, 1]
        ): "row 1: the probabilities sum to 2, not 1",
        npz_bytes(
            logits=PROBABILITIES[:3] * np.nan, labels=[0, 1, 1]
        ): "row 1, column 1: is no finite logit",
        npz_bytes(
            probabilities=0.5, labels=[0]
        ): "array 'probabilities' is a single value; save one",
        npz_bytes(
            probabilities=PROBABILITIES[:3], labels=1
        ): "array 'labels' is a single value; save one entry",
        npz_bytes(labels=[0]): "has arrays labels but no 'probabilities'; save it with numpy.savez",
    },
    "t.csv.gz": {"x": "cannot read .gz; unpack it first"},
    "t.xlsx": {"PK": "cannot read .xlsx; save it as CSV UTF-8 in the spreadsheet"},
    "t.pkl": {"x": "cannot read .pkl; save arrays with numpy.savez; pickles are never opened"},
    "t": {"x": "cannot read a file without an ending; use .csv, .npz, .npy or .parquet"},
}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (name, data, message)
        for name, cases in FURTHER_INVALID_FILES.items()
        for data, message in cases.items()
    ],
)
def test_further_broken_files_are_refused_without_foreign_messages(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(RobfcpError, match=re.escape(message)) as error:
        read_file(tmp_path / name)
    assert not re.search(r"Error|invalid|could not|codec|numpy\.core", str(error.value))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("t.csv", {"ids": "nobody"}, "has no column 'nobody'; it has flu, cold, well, label"),
        ("t.csv", {"classes": ("flu", "ill")}, "no column is called 'ill'; the classes are flu"),
        ("t.npz", {"ids": "ward"}, "has no array 'ward'; it has probabilities, labels"),
        ("t.npz", {"classes": ("a", "b", "c")}, "no column is called 'a'; the classes are a, b, c"),
        ("zero.npz", {"normalize": True}, "row 1: sums to 0; it cannot be normalized"),
        ("one.csv", {"classes": NAMES}, "columns p1, p2, p3 count from 1, the classes from 0;"),
        ("one.csv", {"classes": 3}, "columns p1, p2, p3 count from 1, the classes from 0; number"),
        (
            "binary.csv",
            {"guess_task": True},
            "labels go from 1 to 2 beside one column, p1; write 0",
        ),
        (
            "stay.csv",
            {"guess_task": True},
            "or pass --score absolute-residual if it predicts these",
        ),
        (
            "q.csv",
            {"guess_task": True},
            "labels are measured values beside columns q05, q95; keep one",
        ),
        ("ends.csv", {"guess_task": True}, "lower is above upper in most rows; rename the columns"),
    ],
)
def test_options_that_contradict_the_file_are_refused(name, options, message, tmp_path):
    (tmp_path / "t.csv").write_bytes(csv_bytes())
    (tmp_path / "t.npz").write_bytes(
        npz_bytes(probabilities=PROBABILITIES, labels=NAMED_LABELS, classes=NAMES)
    )
    (tmp_path / "zero.npz").write_bytes(npz_bytes(probabilities=0 * PROBABILITIES, labels=LABELS))
    (tmp_path / "one.csv").write_bytes(
        csv_bytes(output_frame(PROBABILITIES, LABELS % 2 + 1, ["p1", "p2", "p3"]))
    )
    (tmp_path / "binary.csv").write_bytes(
        csv_bytes(output_frame(PROBABILITIES[:, :1], LABELS % 2 + 1, ["p1"]))
    )
    for file, columns in (("q.csv", ["q05", "q95"]), ("ends.csv", ["upper", "lower"])):
        (tmp_path / file).write_bytes(
            csv_bytes(output_frame(PROBABILITIES[:, :2] + [0, 1], PROBABILITIES[:, 0], columns))
        )
    (tmp_path / "stay.csv").write_bytes(
        csv_bytes(output_frame(9 * PROBABILITIES[:, :1], np.arange(300), ["days"]))
    )
    with pytest.raises(RobfcpError, match=re.escape(message)):
        read_file(tmp_path / name, **options)


BINARY_PROBABILITIES = np.linspace(0.05, 0.95, 20)
TABLES_WITHOUT_CLASSES = {  # columns, their score, and the beginning of the note
    "a binary model": (
        {"risk": BINARY_PROBABILITIES, "y": LABELS[:20] % 2},
        "",
        "Column risk is taken as the prob",
    ),
    "true or false": (
        {"risk": BINARY_PROBABILITIES, "y": LABELS[:20] % 2 == 1},
        "",
        "Column risk is taken as the",
    ),
    "class 0": (
        {"p0": 1 - BINARY_PROBABILITIES, "y": LABELS[:20] % 2},
        "",
        "Column p0 is taken as the probability",
    ),
    "predictions": (
        {"prediction": BINARY_PROBABILITIES, "y": BINARY_PROBABILITIES + 0.01},
        "absolute-residual",
        "",
    ),
    "quantiles": (
        {
            "upper": BINARY_PROBABILITIES + 1,
            "lower": BINARY_PROBABILITIES,
            "y": BINARY_PROBABILITIES + 0.3,
        },
        "cqr",
        "",
    ),
}


@pytest.mark.parametrize("case", TABLES_WITHOUT_CLASSES)
def test_binary_models_and_regression_are_recognized_by_their_columns(case, tmp_path):
    columns, score, note = TABLES_WITHOUT_CLASSES[case]
    (tmp_path / "t.csv").write_bytes(csv_bytes(pd.DataFrame(columns)))
    outputs_ = read_file(tmp_path / "t.csv", guess_task=True)
    assert (outputs_.score, outputs_.targets.tolist()) == (score, columns["y"].tolist())
    assert "".join(outputs_.notes).startswith(note)
    if not score:
        np.testing.assert_allclose(
            outputs_.predictions, np.column_stack([1 - BINARY_PROBABILITIES, BINARY_PROBABILITIES])
        )
        binary = npz_bytes(probabilities=BINARY_PROBABILITIES, labels=columns["y"])
        (tmp_path / "t.npz").write_bytes(binary)
        np.testing.assert_allclose(read_file(tmp_path / "t.npz").predictions, outputs_.predictions)
    arguments = "report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json"
    assert (f"--score {score}" if score else note) in command_output(*arguments)
    assert robfcp.Report.load(tmp_path / "r.json").score.name == (score or "lac")


def test_a_single_column_is_that_of_the_class_in_its_name(tmp_path):
    probabilities = np.column_stack([1 - BINARY_PROBABILITIES, BINARY_PROBABILITIES])
    labels = LABELS[:20] % 2
    class_names = ("no", "yes")
    for name, class_index in (("p_no", 0), ("P_YES", 1), ("p0", 0), ("risk", 1)):
        (tmp_path / "t.csv").write_bytes(
            csv_bytes(
                output_frame(probabilities[:, [class_index]], np.array(class_names)[labels], [name])
            )
        )
        outputs_ = read_file(tmp_path / "t.csv", classes=class_names)
        np.testing.assert_allclose(outputs_.predictions, probabilities)
        assert (outputs_.targets == labels).all()
    with pytest.raises(RobfcpError, match=r"write 0 and 1, .* these are the calibration's classes"):
        read_file(tmp_path / "t.csv", classes=2)
    logits = np.log(probabilities[:, [1]] / probabilities[:, [0]])
    (tmp_path / "t.csv").write_bytes(csv_bytes(output_frame(logits, labels, ["z"])))
    (tmp_path / "t.npz").write_bytes(npz_bytes(logits=logits, labels=labels))
    for name in ("t.csv", "t.npz"):
        np.testing.assert_allclose(
            read_file(tmp_path / name, logits=True).predictions, probabilities
        )


def test_duplicate_rows_and_labels_that_may_count_from_1_are_noted(tmp_path):
    for frame, note in (
        (pd.concat([output_frame(), output_frame()]), "every row comes twice; drop the copies"),
        (
            output_frame(id=np.arange(300) % 290),
            "10 rows repeat an id; rows of one person count as if",
        ),
        (
            output_frame(labels=np.maximum(LABELS, 1)),
            "Labels begin at 1, taken as class cold; subtract 1 if",
        ),
    ):
        (tmp_path / "t.csv").write_bytes(csv_bytes(frame))
        assert note in read_file(tmp_path / "t.csv").notes[0]


def test_windows_1252_files_are_read_and_noted(tmp_path):
    content = "p_Übelkeit;p_gut;label\n0,75;0,25;Übelkeit\n"
    (tmp_path / "t.csv").write_text(content, encoding="cp1252")
    outputs_ = read_file(tmp_path / "t.csv")
    assert (outputs_.names, outputs_.predictions.tolist()) == (("Übelkeit", "gut"), [[0.75, 0.25]])
    assert "was read as Windows-1252" in outputs_.notes[0]


def test_rows_and_columns_are_named_as_in_a_spreadsheet(tmp_path):
    names = "A Z AA AZ BA ZZ AAA".split()  # noqa: SIM905
    assert [spreadsheet_column(k) for k in (0, 25, 26, 51, 52, 701, 702)] == names
    (tmp_path / "t.csv").write_text('note,x\n"two\nlines",1\n\nb,2\n')
    assert list(read_csv(tmp_path / "t.csv").rows) == [2, 4]
    (tmp_path / "t.csv").write_text("high,target,low\n2.0,1.5,1.0\n4.0,9.0,3.0\n")
    assert read_file(tmp_path / "t.csv", "values").predictions.tolist() == [[1.0, 2.0], [3.0, 4.0]]


# Commands


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Return a folder of reports of five clients, and a calibration of them at two levels."""
    folder = tmp_path_factory.mktemp("federation")
    for k in range(5):
        probabilities, labels = outputs(k)
        (folder / f"{k}.csv").write_bytes(
            csv_bytes(output_frame(probabilities, np.array(NAMES)[labels]))
        )
        options = "-c", f"s{k}", "-o", folder / f"reports/{k}.json", "--min-cell-count", 1
        command_output("report", folder / f"{k}.csv", *options)
    levels = "--coverage", "0.8", "--coverage", "0.95"
    command_output("calibrate", folder / "reports", *levels, "-o", folder / "new/c.json")
    return folder


def test_folders_and_patterns_are_expanded(federation, tmp_path):
    (federation / "reports" / ".hidden.json").write_text("{}")
    (federation / "reports" / "readme.txt").write_text("not a report")
    for path in (federation / "reports", federation / "reports" / "?.json"):
        assert json.loads(command_output("calibrate", path, "--json"))["n_clients"] == 5
    assert "matches no file" in command_error("calibrate", federation / "*.nothing")
    assert "holds no .json" in command_error("calibrate", tmp_path)


def test_files_of_the_server_among_reports_are_skipped(federation):
    calibration = robfcp.Calibration.load(federation / "new/c.json", record=True)
    feedback = calibration.feedback("s0")
    for kind, file in (("calibration", calibration), ("client-feedback", feedback)):
        (federation / "reports/c.json").write_bytes(file.to_json())
        printed = " ".join(command_output("calibrate", federation / "reports").split())
        (federation / "reports/c.json").unlink()
        assert f"c.json: is a {kind}, not a report; it was" in printed
        assert "c.json" not in printed.replace("c.json: is a", "")


def test_sets_are_written_with_ids_and_class_names(federation, tmp_path):
    p, y = outputs(9, 40)
    ids = [f"P{k}" for k in range(40)]
    table = output_frame(
        p, np.array(NAMES)[y], [f"p_{name}" for name in NAMES], patient_id=ids, age=50
    )
    (tmp_path / "new.csv").write_bytes(
        csv_bytes(table[["age", *reversed(table.columns[:4]), "patient_id"]])
    )
    arguments = "predict", federation / "new/c.json", tmp_path / "new.csv"
    sets = robfcp.Calibration.load(federation / "new/c.json").predict_set(p)
    for level_index, level in enumerate(("0.8", "0.95")):
        printed = command_output(
            *arguments, "--level", level, "-o", tmp_path / "out/sets.csv", "--json"
        )
        assert json.loads(printed)["coverage"] == robfcp.metrics.coverage(
            sets[:, :, level_index], y
        )
        header, *rows = csv.reader((tmp_path / "out/sets.csv").read_text().splitlines())
        assert header == ["id", "set", "size", *NAMES]
        for name, row, members in zip(ids, rows, sets[:, :, level_index], strict=True):
            class_names = [NAMES[c] for c in np.flatnonzero(members)]
            assert row == [
                name,
                " | ".join(class_names),
                str(len(class_names)),
                *map(str, members.astype(int)),
            ]
    assert "is none of the calibration's levels 0.8, 0.95; take" in command_error(
        *arguments, "--level", 0.9
    )


def test_other_commands_read_the_same_files(federation, tmp_path):
    p, y = outputs(9, 60)
    table = output_frame(p.round(2), np.array(NAMES)[y], nr=range(60)).rename(
        columns={"label": "truth"}
    )
    (tmp_path / "new.csv").write_bytes(
        csv_bytes(table[["truth", *NAMES[::-1], "nr"]], **GERMAN_FORMAT)
    )
    arguments = federation / "new/c.json", tmp_path / "new.csv", "--normalize", "--level", "0.95"
    evaluation = json.loads(command_output("evaluate", *arguments, "--id", "nr", "--json"))
    assert (
        evaluation["coverage"]
        == json.loads(command_output("predict", *arguments, "--json"))["coverage"]
    )
    assert [interval["name"] for interval in evaluation["classes"]] == list(NAMES)
    command_output("evaluate", *arguments, "--min-coverage", "0.9999", code=3)
    state = "--id", "nr", "-s", tmp_path / "deep/state.json", "--json"
    assert json.loads(command_output("monitor", *arguments, *state))["n_new"] == 60
    for file, name, expected_name in (
        (tmp_path / "new.csv", "id", "0"),
        (federation / "2.csv", "row", 0),
    ):
        options = ("--id", "nr", "--normalize") if name == "id" else ()
        command_output(
            "predict", federation / "new/c.json", file, *options, "-o", tmp_path / "s.parquet"
        )
        sets = pd.read_parquet(tmp_path / "s.parquet")
        assert list(sets) == [name, "set", "size", *NAMES]
        assert sets[name][0] == expected_name


def test_empty_sets_are_filled_on_request_and_their_fraction_is_stated(tmp_path, federation):
    command_output(
        "calibrate", federation / "reports", "--coverage", "0.5", "-o", tmp_path / "c.json"
    )
    arguments = "predict", tmp_path / "c.json", federation / "0.csv", "--json"
    unfilled, filled = (
        json.loads(command_output(*arguments, *options)) for options in ((), ("--non-empty",))
    )
    assert unfilled["empty_set_rate"] == filled["filled"] > filled["empty_set_rate"] == 0


def test_random_numbers_depend_on_the_client(tmp_path):
    np.savez(tmp_path / "a.npz", probabilities=PROBABILITIES, labels=LABELS)
    counts = []
    for client in "aba":
        arguments = "report", tmp_path / "a.npz", "--score", "aps", "-o", tmp_path / "r.json"
        command_output(*arguments, "-c", client)
        counts.append(robfcp.Report.load(tmp_path / "r.json").counts.tolist())
    assert counts[0] == counts[2] != counts[1]


def test_names_are_escaped_in_spreadsheets(tmp_path):
    (tmp_path / "t.csv").write_text("id,=1+1,size,label\n@x,0.5,0.5,size\n-3,0.5,0.5,size\n")
    command_output("report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json")
    command_output("calibrate", tmp_path / "r.json", "-o", tmp_path / "c.json")
    command_output("predict", tmp_path / "c.json", tmp_path / "t.csv", "-o", tmp_path / "s.csv")
    rows = list(csv.reader((tmp_path / "s.csv").read_text().splitlines()))
    assert rows[0] == ["id", "set", "size", "'=1+1", "class size"]
    assert [row[0] for row in rows[1:]] == ["'@x", "-3"]


@pytest.mark.parametrize("option", [(), ("--logits",), ("--normalize",)])
def test_private_reports_do_not_fail_for_one_invalid_sample(option, tmp_path):
    pytest.importorskip("opendp")
    rows = ["cat,dog,label", *["0.5,0.5,cat"] * 20, "x,0.5,dog", "0.5,0.9,bird", "1,,"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    private = "--dp-epsilon", "1", "--ledger", tmp_path / "ledger.json"
    arguments = "report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json"
    assert "More than a tenth of the samples have no score" in command_output(
        *arguments, *option, *private
    )


# Arrays are read or refused in one line, within memory for their size.


def archive(path, data, flag=0, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr("probabilities.npy", data)
    if flag:
        data = bytearray(path.read_bytes())
        for signature, flag_offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            header_offset = data.find(signature)
            data[header_offset + flag_offset] |= flag
        path.write_bytes(data)


def array_bytes(shape, dtype="<f8", version=1):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header


ARRAYS = {
    "claims a terabyte": array_bytes("(100000000000, 2)") + b"\0" * 64,
    "claims a negative shape": array_bytes("(-1, 2)") + b"\0" * 64,
    "claims objects": array_bytes("(1,)", "|O") + b"\0" * 64,
    "an open bracket": array_bytes("(((((((((((((") + b"\0" * 64,
    "an unknown version": array_bytes("(1, 2)", version=9),
    "deep brackets": array_bytes("(" * 3000 + ")" * 3000),
    "nothing but magic": b"\x93NUMPY",
    "text": b"hello",
}


@pytest.mark.parametrize("case", ARRAYS)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_broken_arrays_are_errors_of_one_line(tmp_path, case, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(ARRAYS[case])
    if suffix == ".npz":
        archive(path, ARRAYS[case])
    with pytest.raises(RobfcpError, match=r"^\S+: [^\n]*$"):
        read_outputs(path, needs_targets=False)


def test_a_zip_bomb_is_not_expanded(tmp_path):
    path = tmp_path / "x.npz"
    body = array_bytes("(1, 2)") + bytes(2**26)
    archive(path, body, compression=zipfile.ZIP_DEFLATED)
    results = []
    assert peak_memory(lambda: results.append(read_outputs(path, needs_targets=False))) < 2**23
    assert results[0].predictions.shape == (1, 2)


def test_encrypted_truncated_and_damaged_archives_are_errors_of_one_line(tmp_path):
    path, member = tmp_path / "x.npz", array_bytes("(50, 2)") + bytes(800)
    archive(path, member, flag=1)
    with pytest.raises(RobfcpError, match="encrypted"):
        read_outputs(path, needs_targets=False)
    archive(path, member, compression=zipfile.ZIP_DEFLATED)
    data, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data)
        for position in rng.integers(0, len(data), 4):
            damaged[position] = rng.integers(256)
        path.write_bytes(bytes(damaged[: rng.integers(1, len(data) + 1)]))
        with suppress(RobfcpError):
            read_outputs(path, needs_targets=False)
