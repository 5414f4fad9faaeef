"""Loaders of natural federations read the official formats and keep every sample's site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robfcp.errors import RobfcpError
from robfcp.lab import datasets
from robfcp.lab.datasets import people
from robfcp.lab.datasets.files import data_directory

PATIENT = {
    "HOSPNUM": "1", "RDELAY": "17", "RCONSC": "D", "SEX": "M", "AGE": "69", "RSLEEP": "Y",
    "RATRIAL": "", "RCT": "Y", "RVISINF": "n", "RHEP24": "", "RASP3": "", "RSBP": "140",
    **{f"RDEF{k}": "C" if k == 5 else "N" for k in range(1, 9)}, "STYPE": "PACS",
    "RDATE": "pa?-91", "FDEAD": "N", "COUNTRY": "UK", "EXPD6": "0.7", "OCCODE": "2",
}  # fmt: skip


def write_stroke(path: Path, *changes: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**PATIENT, **change} for change in changes]
    lines = [",".join(PATIENT), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")


@pytest.mark.parametrize("place", ["IST.csv", "ist/IST.csv", "natural/ist/IST.csv"])
def test_stroke_is_found_in_every_place_and_keeps_hospital_country_and_syndrome(
    tmp_path: Path, place: str
) -> None:
    changes = ({}, {"HOSPNUM": "7", "COUNTRY": "ITAL", "OCCODE": "4", "RDATE": ""}, {"OCCODE": "9"})
    write_stroke(tmp_path / place, *changes)
    table = datasets.load_sites("stroke", tmp_path, verify=False)
    assert table.y.tolist() == [1, 3]
    assert table.sites.tolist() == ["hospital 1", "hospital 7"]
    assert table.columns["country"].tolist() == ["UK", "ITAL"]
    assert table.columns["group"].tolist() == ["PACS", "PACS"]
    assert table.columns["year"].tolist() == ["1991", ""]
    row = dict(zip(table.features, table.x[0].tolist(), strict=True))
    assert (row["AGE"], row["RSLEEP"], row["RVISINF"], row["SEX=M"]) == (69, 1, 0, 1)
    assert np.isnan([row["RATRIAL"], row["RDEF5"]]).all()


def test_stroke_features_are_known_at_randomisation() -> None:
    """In the trial's table D and F columns are of the follow-up, RX of treatment, EXP fitted."""
    allowed = {"SEX", "AGE", "STYPE"}
    assert all(name in allowed or name.startswith("R") for name in people.STROKE_BASELINE)
    assert not any(name.startswith("RX") for name in people.STROKE_BASELINE)


def test_stroke_refuses_tables_that_are_not_the_trial(tmp_path: Path) -> None:
    with pytest.raises(RobfcpError, match=r"IST\.csv.*10\.7488/ds/104"):
        datasets.load_sites("stroke", tmp_path)
    with pytest.raises(RobfcpError, match=r"get it.*10\.7488/ds/104"):
        datasets.load_sites("stroke", tmp_path, fetch=True)
    path = tmp_path / "IST.csv"
    write_stroke(path, {})
    with pytest.raises(RobfcpError, match=r"1 patients, not the official 19435.*--no-verify"):
        datasets.load_sites("stroke", tmp_path)
    for change, word in (
        ({"OCCODE": "7"}, "OCCODE '7'"),
        ({"AGE": "old"}, "AGE holds 'old', which is no number"),
        ({"RSLEEP": "X"}, "RSLEEP holds 'X'"),
        ({"AGE": "1,2"}, "line 2 has"),
    ):
        write_stroke(path, change)
        with pytest.raises(RobfcpError, match=word):
            datasets.load_sites("stroke", tmp_path, verify=False)
    path.write_text("HOSPNUM,AGE\n1,2\n")
    with pytest.raises(RobfcpError, match="no column RDELAY"):
        datasets.load_sites("stroke", tmp_path, verify=False)
    write_stroke(path)
    with pytest.raises(RobfcpError, match="no rows"):
        datasets.load_sites("stroke", tmp_path, verify=False)


def write_heart(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k, (file, _, _) in enumerate(people.HEART_SITES.values()):
        rows = [f"{60 + k},1,4,140,260,0,1,112,1,3,2,?,NaN,{k}", "50,0,3,?,209,0,0,127,0,0,?,?,?,0"]
        (folder / file).write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("place", ["", "heart_disease", "natural/heart_disease"])
def test_heart_reads_four_hospitals_with_missing_values(tmp_path: Path, place: str) -> None:
    write_heart(tmp_path / place)
    table = datasets.load_sites("heart", tmp_path, verify=False)
    assert table.y.tolist() == [0, 0, 1, 0, 1, 0, 1, 0]
    assert list(dict.fromkeys(table.sites.tolist())) == list(people.HEART_SITES)
    assert table.columns["country"].tolist()[::2] == ["USA", "Hungary", "Switzerland", "USA"]
    assert table.columns["group"].tolist()[:2] == ["male", "female"]
    assert np.isnan(table.x[1, 3])
    assert table.x[2, 0] == 61


def test_heart_refuses_files_that_are_not_the_official_ones(tmp_path: Path) -> None:
    with pytest.raises(RobfcpError, match=r"processed\.cleveland\.data.*C52P4X"):
        datasets.load_sites("heart", tmp_path)
    write_heart(tmp_path)
    with pytest.raises(RobfcpError, match="2 patients, not the official 303"):
        datasets.load_sites("heart", tmp_path)
    path = tmp_path / "processed.va.data"
    for text, word in (("1,2\n", "line 1 has 2"), ("1," * 13 + "?\n", "lacks a diagnosis")):
        path.write_text(text)
        with pytest.raises(RobfcpError, match=word):
            datasets.load_sites("heart", tmp_path, verify=False)


def test_fed_heart_drops_what_flamby_drops(tmp_path: Path) -> None:
    write_heart(tmp_path / "fed_heart_disease")
    table = datasets.load_sites("fed-heart", tmp_path, verify=False)
    assert table.sites.tolist() == [f"centre {k}" for k in range(4)]
    assert len(table) == 4
    assert not np.isnan(table.x).any()
    assert {"slope", "ca", "thal"}.isdisjoint(table.features)


def test_fed_isic_reads_images_centres_and_folds(tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "fed_isic2019"
    (folder / people.ISIC_IMAGES).mkdir(parents=True)
    rows = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"]
    for k, fold in enumerate(("train", "test", "train")):
        rows.append(f"ISIC_{k},0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,{k},{k % 2},{fold},{fold}_0")
        Image.new("RGB", (90, 70), (10 * k, 0, 0)).save(
            folder / people.ISIC_IMAGES / f"ISIC_{k}.jpg"
        )
    (folder / "train_test_split").write_text("\n".join(rows) + "\n")
    table = datasets.load_sites("fed-isic2019", tmp_path)
    assert table.x.shape == (3, 64, 64, 3)
    assert table.sites.tolist() == ["centre 0", "centre 1", "centre 0"]
    assert table.columns["group"].tolist() == ["train", "test", "train"]
    assert table.y.tolist() == [0, 1, 2]
    (folder / people.ISIC_IMAGES / "ISIC_1.jpg").unlink()
    with pytest.raises(RobfcpError, match=r"ISIC_1\.jpg and 0 more"):
        datasets.load_sites("fed-isic2019", tmp_path)
    assert datasets.load_sites("fed-isic2019", tmp_path, verify=False).y.tolist() == [0, 2]
    (folder / people.ISIC_IMAGES / "ISIC_0.jpg").write_bytes(b"")
    with pytest.raises(RobfcpError, match=r"ISIC_0\.jpg is missing or broken"):
        datasets.load_sites("fed-isic2019", tmp_path, verify=False)


def test_wisdm_makes_windows_of_one_user_and_activity(tmp_path: Path) -> None:
    reading = "{user},{activity},49105962326000,{x},12.68,0.5;"
    lines = [reading.format(user=33, activity="Jogging", x=k % 2) for k in range(450)]
    lines += [reading.format(user=7, activity="Walking", x=1.5) for _ in range(200)]
    lines[10] += lines[10].rstrip(";") + ",;"  # two readings on a line, as in the official file
    lines[20] = "33,Jogging,49105962326000,0.1,;"
    (tmp_path / people.WISDM_FILE).write_text("\n".join(lines) + "\n")
    table = datasets.load_sites("wisdm", tmp_path)
    assert table.sites.tolist() == ["user 33", "user 33", "user 07"]
    assert [table.classes[k] for k in table.y] == ["Jogging", "Jogging", "Walking"]
    walk = dict(zip(table.features, table.x[2].tolist(), strict=True))
    assert walk["mean x"] == walk["least x"] == walk["most x"] == 1.5
    assert walk["sd x"] == walk["step x"] == 0
    (tmp_path / people.WISDM_FILE).write_text("no readings")
    with pytest.raises(RobfcpError, match="no 200 readings"):
        datasets.load_sites("wisdm", tmp_path)


def test_ptbxl_keeps_the_site_and_the_likeliest_superclass(tmp_path: Path) -> None:
    header = "ecg_id,patient_id,age,sex,height,weight,nurse,site,device,scp_codes,filename_lr"
    rows = [
        "1,9,56.0,1,,63.0,2.0,0.0,CS-12,\"{'NORM': 100.0, 'SR': 0.0}\",records100/00001_lr",
        "2,8,19.0,0,170,70.0,2.0,12.0,AT-6,\"{'NDT': 50.0, 'IMI': 100.0}\",records100/00002_lr",
        "3,7,37.0,1,,,2.0,,CS-12,\"{'NORM': 100.0}\",records100/00003_lr",
        "4,6,24.0,0,,,2.0,1.0,CS-12,\"{'SR': 0.0}\",records100/00004_lr",
    ]
    folder = tmp_path / "ptb-xl"
    folder.mkdir()
    (folder / "ptbxl_database.csv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "scp_statements.csv").write_text(
        ",description,diagnostic,diagnostic_class\nNORM,normal ECG,1.0,NORM\n"
        "IMI,inferior infarction,1.0,MI\nNDT,non-diagnostic T,1.0,STTC\nSR,sinus rhythm,,\n"
    )
    table = datasets.load_sites("ptbxl", tmp_path, verify=False)
    assert table.sites.tolist() == ["site 0", "site 12"]
    assert [table.classes[k] for k in table.y] == ["NORM", "MI"]
    assert table.columns["record"].tolist() == ["records100/00001_lr", "records100/00002_lr"]
    with pytest.raises(RobfcpError, match="4 records, not the official 21799"):
        datasets.load_sites("ptbxl", tmp_path)
    (folder / "ptbxl_database.csv").write_text(f"{header}\n1,9,5,1,,6,2,0,CS,NORM,r\n")
    with pytest.raises(RobfcpError, match="scp_codes 'NORM'"):
        datasets.load_sites("ptbxl", tmp_path, verify=False)


def test_sleep_by_subject_keeps_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "sleep").mkdir()
    x, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 5
    np.savez(tmp_path / "sleep" / "a.npz", x=x, y=y, subject=np.repeat([4, 9, 11], 4))
    table = datasets.load_sites("sleep", tmp_path)
    assert list(dict.fromkeys(table.sites.tolist())) == ["subject 01", "subject 02", "subject 03"]
    assert np.array_equal(table.x, x)
    assert list(table.columns) == ["site"]


def test_sleep_keeps_nights_and_ages_that_all_tables_have(tmp_path: Path) -> None:
    (tmp_path / "sleep").mkdir()
    rows = {"x": np.zeros((4, 2)), "y": np.arange(4), "subject": np.repeat([4, 9], 2)}
    night, age = np.array([1, 2, 1, 2]), np.repeat([27, 101], 2)
    np.savez(tmp_path / "sleep" / "a.npz", **rows, night=night, age=age)
    columns = datasets.load_sites("sleep", tmp_path).columns
    assert columns["night"].tolist() == ["1", "2", "1", "2"]
    assert columns["age"].tolist() == ["27", "27", "101", "101"]
    np.savez(tmp_path / "sleep" / "b.npz", **rows, night=night)
    assert list(datasets.load_sites("sleep", tmp_path).columns) == ["site", "night"]


def test_columns_must_be_as_long_as_the_labels() -> None:
    with pytest.raises(RobfcpError, match="1 values of site but 2 labels"):
        datasets.SiteTable(
            "x", np.zeros((2, 1)), np.zeros(2, np.int64), ("a",), {"site": np.array(["one"])}
        )
    with pytest.raises(RobfcpError, match="no such data set; choose one of stroke"):
        datasets.load_sites("mnist", ".")


@pytest.mark.parametrize(
    ("name", "samples", "sites"), [("stroke", 19285, 464), ("heart", 920, 4), ("sleep", 195469, 78)]
)
def test_the_official_files_hold_what_is_stated(name: str, samples: int, sites: int) -> None:
    try:
        directory = data_directory()
        table = datasets.load_sites(name, directory)
    except RobfcpError as error:
        pytest.skip(f"set ROBFCP_DATA to a directory with the data: {error}")
    assert len(table) == samples
    assert len(set(table.sites.tolist())) == sites
