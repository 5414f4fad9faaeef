"""Files people really have are read by name; wrong ones are refused by row and column."""

import csv
import io
import json
import re
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from makers import outputs, peak, refused, said

import robfcp
from robfcp.cli.model_outputs import ReaderOptions
from robfcp.cli.table_files import read_csv, spreadsheet_column
from robfcp.cli.tables import read_outputs
from robfcp.errors import RobfcpError

NAMES = ("flu", "cold", "well")
TURNED = [2, 0, 1]
P, Y = outputs()
WORDS = np.array(NAMES)[Y]
BACK, OTHERWISE = np.argsort(TURNED)[Y], ["well", "flu", "cold"]


def frame(p=P, truth=WORDS, names=NAMES, **more):
    """A table of outputs: a column a class, the truth, and further columns."""
    return pd.DataFrame({**dict(zip(names, np.transpose(p), strict=True)), "label": truth, **more})


def text(table=None, encoding="utf-8", **options):
    return (frame() if table is None else table).to_csv(index=False, **options).encode(encoding)


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def parquet(table):
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    return buffer.getvalue()


def read(path, expects="classes", **how):
    return read_outputs(path, needs_targets=True, expects=expects, reading=ReaderOptions(**how))


GERMAN = {"sep": ";", "decimal": ","}
TRUTH = {"label": "Diagnose"}
NUMBERED = ["p2", "p0", "p1"]
HABITS = {  # the same outputs in other people's habits, and what has to be said of them
    "plain": (text(), {}),
    "shuffled": (text(frame()[["well", "label", "flu", "cold"]]), {"classes": NAMES}),
    "prefix": (text(frame(names=[f"prob_{name}" for name in NAMES])), {}),
    "index": (frame().to_csv().encode(), {}),
    "patients": (text(frame(patient_id=[f"P{k:03d}" for k in range(300)])), {}),
    "named patients": (text(frame(nr=range(300))), {"ids": "nr"}),
    "German Excel": (text(None, "utf-8-sig", **GERMAN), {}),
    "Excel's hint": (b"sep=;\n" + text(**GERMAN), {}),
    "pipes": (text(None, sep="|"), {}),
    "tabs in UTF-16": (text(None, "utf-16", sep="\t"), {}),
    "blanks": (text().replace(b",", b", "), {}),
    "blank lines": (text().replace(b"\n", b"\n\n"), {}),
    "percent": (text(frame(100 * P)), {"normalise": True}),
    "logits": (text(frame(np.log(P) + 3)), {"logits": True}),
    "further columns": (text(frame(ward="north", age=50)), {"classes": NAMES}),
    "named truth": (text(frame().rename(columns=TRUTH)), {"label": "Diagnose"}),
    "numbers count columns": (text(frame(P[:, TURNED], BACK, OTHERWISE)), {"classes": NAMES}),
    "numbered columns": (text(frame(P[:, TURNED], Y, NUMBERED)), {"classes": NAMES}),
    "parquet": (parquet(frame(truth=pd.Categorical(WORDS))), {}),
    "parquet of named rows": (parquet(frame().rename(index="P{}".format)), {}),
    "npz": (npz(probabilities=P, labels=WORDS, classes=NAMES), {}),
    "npz of logits": (npz(logits=np.log(P), labels=Y, classes=NAMES), {}),
    "npz turned": (
        npz(probabilities=P[:, TURNED], labels=BACK, classes=OTHERWISE),
        {"classes": NAMES},
    ),
}


@pytest.mark.parametrize("habit", HABITS)
def test_the_same_outputs_are_read_from_every_habit(habit, tmp_path):
    data, how = HABITS[habit]
    kind = next((one for one in ("npz", "parquet") if one in habit), "csv")
    (tmp_path / f"t.{kind}").write_bytes(data)
    found = read(tmp_path / f"t.{kind}", **how)
    assert found.names == NAMES
    np.testing.assert_allclose(found.predictions, P, atol=1e-12)
    np.testing.assert_array_equal(found.targets, Y)
    assert not found.notes


def test_numbered_columns_are_taken_by_their_numbers(tmp_path):
    for names, first, called in ((NUMBERED, 0, ()), (["c 3", "c 1", "c 2"], 1, ("1", "2", "3"))):
        (tmp_path / "t.csv").write_bytes(text(frame(P[:, TURNED], Y + first, names)))
        found = read(tmp_path / "t.csv")
        assert found.names == called
        np.testing.assert_array_equal(found.predictions, P)
        np.testing.assert_array_equal(found.targets, Y)


GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "files.md").read_text(encoding="utf-8")
WRONG = re.findall(r"^\| [\w ]+ \| `(.+)` \| `(.+)` \|$", GUIDE.split("| what is said |")[1], re.M)
assert len(WRONG) == 8


@pytest.mark.parametrize(("written", "message"), WRONG)
def test_wrong_files_are_refused_by_row_and_column_as_the_guide_shows(written, message, tmp_path):
    (tmp_path / "t.csv").write_text(written.replace(" ⏎ ", "\n") + "\n")
    words = "report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json"
    assert refused(*words) == f"{tmp_path / 't.csv'}: {message}"


FURTHER = {
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
        text(frame(truth=Y + 1)): "labels are 1 to 3, and the 3 columns count from 0; subtract 1",
        text(frame(second=WORDS).rename(columns=TRUTH)): "--label Diagnose if it is the truth",
        text(frame(100 * P)): "not 1; divide percentages by 100, or pass --normalise",
        "risk,y\n3,0\n97.5,1\n": "row 2, column A (risk): 3 is above 1 and no probability; divide",
        "risk,y\n0.3,no\n0.9,yes\n": "labels are words beside one column of probabilities, risk;",
    },
    "t.parquet": {"PAR1 no": "t.parquet: is damaged or no parquet file; write it again"},
    "t.npz": {
        npz(probabilities=P[:2], labels=["flu", "ill"], classes=NAMES): "row 2: 'ill' is none of",
        npz(probabilities=P[:2], labels=[0, 1], classes=["a", "b"]): "2 classes are named, but",
        npz(probabilities=P[:3] * 2, labels=[0, 1, 1]): "row 1: the probabilities sum to 2, not 1",
        npz(logits=P[:3] * np.nan, labels=[0, 1, 1]): "row 1, column 1: is no finite logit",
        npz(probabilities=0.5, labels=[0]): "array 'probabilities' is a single value; save one",
        npz(probabilities=P[:3], labels=1): "array 'labels' is a single value; save one entry",
        npz(labels=[0]): "has arrays labels but no 'probabilities'; save it with numpy.savez",
    },
    "t.csv.gz": {"x": "cannot read .gz; unpack it first"},
    "t.xlsx": {"PK": "cannot read .xlsx; save it as CSV UTF-8 in the spreadsheet"},
    "t.pkl": {"x": "cannot read .pkl; save arrays with numpy.savez; pickles are never opened"},
    "t": {"x": "cannot read a file without an ending; use .csv, .npz, .npy or .parquet"},
}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [(name, text, said) for name, cases in FURTHER.items() for text, said in cases.items()],
)
def test_further_wrong_files_are_refused_in_our_words(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(RobfcpError, match=re.escape(message)) as found:
        read(tmp_path / name)
    assert not re.search(r"Error|invalid|could not|codec|numpy\.core", str(found.value))


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("t.csv", {"ids": "nobody"}, "has no column 'nobody'; it has flu, cold, well, label"),
        ("t.csv", {"classes": ("flu", "ill")}, "no column is called 'ill'; the classes are flu"),
        ("t.npz", {"ids": "ward"}, "has no array 'ward'; it has probabilities, labels"),
        ("t.npz", {"classes": ("a", "b", "c")}, "no column is called 'a'; the classes are a, b, c"),
        ("zero.npz", {"normalise": True}, "row 1: sums to 0; it cannot be normalised"),
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
def test_options_that_do_not_fit_are_refused(name, how, message, tmp_path):
    (tmp_path / "t.csv").write_bytes(text())
    (tmp_path / "t.npz").write_bytes(npz(probabilities=P, labels=WORDS, classes=NAMES))
    (tmp_path / "zero.npz").write_bytes(npz(probabilities=0 * P, labels=Y))
    (tmp_path / "one.csv").write_bytes(text(frame(P, Y % 2 + 1, ["p1", "p2", "p3"])))
    (tmp_path / "binary.csv").write_bytes(text(frame(P[:, :1], Y % 2 + 1, ["p1"])))
    for file, columns in (("q.csv", ["q05", "q95"]), ("ends.csv", ["upper", "lower"])):
        (tmp_path / file).write_bytes(text(frame(P[:, :2] + [0, 1], P[:, 0], columns)))
    (tmp_path / "stay.csv").write_bytes(text(frame(9 * P[:, :1], np.arange(300), ["days"])))
    with pytest.raises(RobfcpError, match=re.escape(message)):
        read(tmp_path / name, **how)


HALVES = np.linspace(0.05, 0.95, 20)
MEASURED = {  # columns without a class each, what they are taken for, and what is said
    "a binary model": ({"risk": HALVES, "y": Y[:20] % 2}, "", "Column risk is taken as the prob"),
    "true or false": ({"risk": HALVES, "y": Y[:20] % 2 == 1}, "", "Column risk is taken as the"),
    "class 0": ({"p0": 1 - HALVES, "y": Y[:20] % 2}, "", "Column p0 is taken as the probability"),
    "predictions": ({"prediction": HALVES, "y": HALVES + 0.01}, "absolute-residual", ""),
    "quantiles": ({"upper": HALVES + 1, "lower": HALVES, "y": HALVES + 0.3}, "cqr", ""),
}


@pytest.mark.parametrize("case", MEASURED)
def test_binary_models_and_measured_values_are_known_by_their_columns(case, tmp_path):
    columns, score, note = MEASURED[case]
    (tmp_path / "t.csv").write_bytes(text(pd.DataFrame(columns)))
    found = read(tmp_path / "t.csv", guess_task=True)
    assert (found.score, found.targets.tolist()) == (score, columns["y"].tolist())
    assert "".join(found.notes).startswith(note)
    if not score:
        np.testing.assert_allclose(found.predictions, np.column_stack([1 - HALVES, HALVES]))
        binary = npz(probabilities=HALVES, labels=columns["y"])
        (tmp_path / "t.npz").write_bytes(binary)
        np.testing.assert_allclose(read(tmp_path / "t.npz").predictions, found.predictions)
    words = "report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json"
    assert (f"--score {score}" if score else note) in said(*words)
    assert robfcp.Report.load(tmp_path / "r.json").score.name == (score or "lac")


def test_one_column_is_that_of_the_class_its_name_tells(tmp_path):
    both, y, binary = np.column_stack([1 - HALVES, HALVES]), Y[:20] % 2, ("no", "yes")
    for name, of in (("p_no", 0), ("P_YES", 1), ("p0", 0), ("risk", 1)):
        (tmp_path / "t.csv").write_bytes(text(frame(both[:, [of]], np.array(binary)[y], [name])))
        found = read(tmp_path / "t.csv", classes=binary)
        np.testing.assert_allclose(found.predictions, both)
        assert (found.targets == y).all()
    with pytest.raises(RobfcpError, match=r"write 0 and 1, .* these are the calibration's classes"):
        read(tmp_path / "t.csv", classes=2)
    z = np.log(both[:, [1]] / both[:, [0]])
    (tmp_path / "t.csv").write_bytes(text(frame(z, y, ["z"])))
    (tmp_path / "t.npz").write_bytes(npz(logits=z, labels=y))
    for name in ("t.csv", "t.npz"):
        np.testing.assert_allclose(read(tmp_path / name, logits=True).predictions, both)


def test_rows_that_come_twice_and_labels_that_may_count_from_1_are_said(tmp_path):
    for table, note in (
        (pd.concat([frame(), frame()]), "every row comes twice; drop the copies"),
        (frame(id=np.arange(300) % 290), "10 rows repeat an id; rows of one person count as if"),
        (frame(truth=np.maximum(Y, 1)), "Labels begin at 1, taken as class cold; subtract 1 if"),
    ):
        (tmp_path / "t.csv").write_bytes(text(table))
        assert note in read(tmp_path / "t.csv").notes[0]


def test_old_windows_files_are_read_and_said_to_be(tmp_path):
    written = "p_Übelkeit;p_gut;label\n0,75;0,25;Übelkeit\n"
    (tmp_path / "t.csv").write_text(written, encoding="cp1252")
    found = read(tmp_path / "t.csv")
    assert (found.names, found.predictions.tolist()) == (("Übelkeit", "gut"), [[0.75, 0.25]])
    assert "was read as Windows-1252" in found.notes[0]


def test_rows_columns_and_quantiles_are_called_as_a_spreadsheet_does(tmp_path):
    places = "A Z AA AZ BA ZZ AAA".split()  # noqa: SIM905
    assert [spreadsheet_column(k) for k in (0, 25, 26, 51, 52, 701, 702)] == places
    (tmp_path / "t.csv").write_text('note,x\n"two\nlines",1\n\nb,2\n')
    assert list(read_csv(tmp_path / "t.csv").rows) == [2, 4]
    (tmp_path / "t.csv").write_text("high,target,low\n2.0,1.5,1.0\n4.0,9.0,3.0\n")
    assert read(tmp_path / "t.csv", "values").predictions.tolist() == [[1.0, 2.0], [3.0, 4.0]]


# What the commands make of them


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Reports of five sites in a folder, and a calibration of them at two levels."""
    folder = tmp_path_factory.mktemp("federation")
    for k in range(5):
        p, y = outputs(k)
        (folder / f"{k}.csv").write_bytes(text(frame(p, np.array(NAMES)[y])))
        words = "-c", f"s{k}", "-o", folder / f"reports/{k}.json", "--min-cell-count", 1
        said("report", folder / f"{k}.csv", *words)
    levels = "--coverage", "0.8", "--coverage", "0.95"
    said("calibrate", folder / "reports", *levels, "-o", folder / "new/c.json")
    return folder


def test_folders_and_patterns_are_the_files_they_stand_for(federation, tmp_path):
    (federation / "reports" / ".hidden.json").write_text("{}")
    (federation / "reports" / "readme.txt").write_text("not a report")
    for place in (federation / "reports", federation / "reports" / "?.json"):
        assert json.loads(said("calibrate", place, "--json"))["n_clients"] == 5
    shutil.copy(federation / "new/c.json", federation / "reports/c.json")
    printed = " ".join(said("calibrate", federation / "reports").split())
    assert "c.json: is a calibration, not a report; it was left aside." in printed
    assert "c.json" not in printed.replace("c.json: is a", "")
    (federation / "reports/c.json").unlink()
    assert "matches no file" in refused("calibrate", federation / "*.nothing")
    assert "holds no .json" in refused("calibrate", tmp_path)


def test_sets_come_back_with_ids_and_class_names(federation, tmp_path):
    p, y = outputs(9, 40)
    ids = [f"P{k}" for k in range(40)]
    new = frame(p, np.array(NAMES)[y], [f"p_{name}" for name in NAMES], patient_id=ids, age=50)
    (tmp_path / "new.csv").write_bytes(text(new[["age", *reversed(new.columns[:4]), "patient_id"]]))
    words = "predict", federation / "new/c.json", tmp_path / "new.csv"
    sets = robfcp.Calibration.load(federation / "new/c.json").predict_set(p)
    for place, level in enumerate(("0.8", "0.95")):
        out = said(*words, "--level", level, "-o", tmp_path / "out/sets.csv", "--json")
        assert json.loads(out)["coverage"] == robfcp.metrics.coverage(sets[:, :, place], y)
        header, *rows = csv.reader((tmp_path / "out/sets.csv").read_text().splitlines())
        assert header == ["id", "set", "size", *NAMES]
        for name, row, members in zip(ids, rows, sets[:, :, place], strict=True):
            held = [NAMES[c] for c in np.flatnonzero(members)]
            assert row == [name, " | ".join(held), str(len(held)), *map(str, members.astype(int))]
    assert "is none of the calibration's levels 0.8, 0.95; take" in refused(*words, "--level", 0.9)


def test_other_commands_read_the_same_files(federation, tmp_path):
    p, y = outputs(9, 60)
    new = frame(p.round(2), np.array(NAMES)[y], nr=range(60)).rename(columns={"label": "truth"})
    (tmp_path / "new.csv").write_bytes(text(new[["truth", *NAMES[::-1], "nr"]], **GERMAN))
    words = federation / "new/c.json", tmp_path / "new.csv", "--normalise", "--level", "0.95"
    checked = json.loads(said("check", *words, "--id", "nr", "--json"))
    assert checked["coverage"] == json.loads(said("predict", *words, "--json"))["coverage"]
    assert [part["name"] for part in checked["classes"]] == list(NAMES)
    said("check", *words, "--floor", "0.9999", code=3)
    state = "--id", "nr", "-s", tmp_path / "deep/state.json", "--json"
    assert json.loads(said("monitor", *words, *state))["new"] == 60
    for file, name, first in ((tmp_path / "new.csv", "id", "0"), (federation / "2.csv", "row", 0)):
        more = ("--id", "nr", "--normalise") if name == "id" else ()
        said("predict", federation / "new/c.json", file, *more, "-o", tmp_path / "s.parquet")
        sets = pd.read_parquet(tmp_path / "s.parquet")
        assert list(sets) == [name, "set", "size", *NAMES]
        assert sets[name][0] == first


def test_no_set_is_empty_when_asked_and_the_cost_is_said(tmp_path, federation):
    said("calibrate", federation / "reports", "--coverage", "0.3", "-o", tmp_path / "c.json")
    words = "predict", tmp_path / "c.json", federation / "0.csv", "--json"
    bare, full = (json.loads(said(*words, *more)) for more in ((), ("--non-empty",)))
    assert bare["empty"] == full["filled"] > full["empty"] == 0


def test_sites_and_uses_draw_numbers_of_their_own(tmp_path):
    np.savez(tmp_path / "a.npz", probabilities=P, labels=Y)
    found = []
    for client in "aba":
        words = "report", tmp_path / "a.npz", "--score", "aps", "-o", tmp_path / "r.json"
        said(*words, "-c", client)
        found.append(robfcp.Report.load(tmp_path / "r.json").counts.tolist())
    assert found[0] == found[2] != found[1]


def test_names_are_no_formulas_in_a_spreadsheet(tmp_path):
    (tmp_path / "t.csv").write_text("id,=1+1,size,label\n@x,0.5,0.5,size\n-3,0.5,0.5,size\n")
    said("report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json")
    said("calibrate", tmp_path / "r.json", "-o", tmp_path / "c.json")
    said("predict", tmp_path / "c.json", tmp_path / "t.csv", "-o", tmp_path / "s.csv")
    rows = list(csv.reader((tmp_path / "s.csv").read_text().splitlines()))
    assert rows[0] == ["id", "set", "size", "'=1+1", "class size"]
    assert [row[0] for row in rows[1:]] == ["'@x", "-3"]


@pytest.mark.parametrize("option", [(), ("--logits",), ("--normalise",)])
def test_private_reports_do_not_fail_for_one_bad_sample(option, tmp_path):
    pytest.importorskip("opendp")
    rows = ["cat,dog,label", *["0.5,0.5,cat"] * 20, "x,0.5,dog", "0.5,0.9,bird", "1,,"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    private = "--epsilon", "1", "--ledger", tmp_path / "ledger.json"
    words = "report", tmp_path / "t.csv", "-c", "a", "-o", tmp_path / "r.json"
    assert "More than a tenth of the samples have no score" in said(*words, *option, *private)


# Arrays of any contents are read or refused in one line, within memory for their size.


def archive(path, data, flag=0, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr("probabilities.npy", data)
    if flag:
        data = bytearray(path.read_bytes())
        for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            at = data.find(mark)
            data[at + place] |= flag
        path.write_bytes(data)


def claimed(shape, dtype="<f8", version=1):
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
def test_broken_arrays_are_one_line(tmp_path, case, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(ARRAYS[case])
    if suffix == ".npz":
        archive(path, ARRAYS[case])
    with pytest.raises(RobfcpError, match=r"^\S+: [^\n]*$"):
        read_outputs(path, needs_targets=False)


def test_a_bomb_is_not_expanded(tmp_path):
    path = tmp_path / "x.npz"
    body = claimed("(1, 2)") + bytes(2**26)
    archive(path, body, compression=zipfile.ZIP_DEFLATED)
    found = []
    assert peak(lambda: found.append(read_outputs(path, needs_targets=False))) < 2**23
    assert found[0].predictions.shape == (1, 2)


def test_encrypted_truncated_and_damaged_archives_are_one_line(tmp_path):
    path, member = tmp_path / "x.npz", claimed("(50, 2)") + bytes(800)
    archive(path, member, flag=1)
    with pytest.raises(RobfcpError, match="encrypted"):
        read_outputs(path, needs_targets=False)
    archive(path, member, compression=zipfile.ZIP_DEFLATED)
    data, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 4):
            broken[place] = rng.integers(256)
        path.write_bytes(bytes(broken[: rng.integers(1, len(data) + 1)]))
        with suppress(RobfcpError):
            read_outputs(path, needs_targets=False)
