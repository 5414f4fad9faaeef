"""Loaders give back exactly what official files hold, and name what is missing or wrong."""

import gzip
import struct
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from robfcp import LAC, RobfcpError
from robfcp.experiments import datasets, outputs
from robfcp.experiments.datasets import healthcare


def images(n, size, channels=3, seed=0):
    shape = (n, size, size, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def refuses(message, name, directory, verify=False):
    with pytest.raises(RobfcpError, match=message):
        datasets.load(name, directory, partitioned=name in healthcare.SITE_LOADERS, verify=verify)


def written(path, *lines):
    """A text file of these lines, in folders that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def test_mnist_reads_idx_files_compressed_or_not_and_refuses_others(tmp_path, monkeypatch):
    folder, arrays = tmp_path / "mnist", {}
    folder.mkdir()
    for prefix, n in (("train", 7), ("t10k", 5)):
        arrays[prefix] = x = images(n, 28, 1)[..., 0]
        header = b"\x00\x00\x08\x03" + struct.pack(">3I", *x.shape)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + x.tobytes())
        label = b"\x00\x00\x08\x01" + struct.pack(">I", n) + bytes(range(n))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(label))
    monkeypatch.setenv("ROBFCP_DATA", str(tmp_path))
    data = datasets.load("mnist", verify=False)
    for split, prefix in ((data.train, "train"), (data.test, "t10k")):
        assert np.array_equal(split.x[..., 0], arrays[prefix])
        assert split.y.tolist() == list(range(len(split)))
    refuses(r"train-labels.*MD5.*--no-verify", "mnist", None, verify=True)
    path = folder / "train-images-idx3-ubyte"
    content = path.read_bytes()
    for broken, message in ((content[:-1], "do not fill"), (b"PK" + content, "not an idx file")):
        path.write_bytes(broken)
        refuses(message, "mnist", None)
    monkeypatch.delenv("ROBFCP_DATA")
    refuses("ROBFCP_DATA", "mnist", None)
    refuses("not a directory", "mnist", tmp_path / "nowhere")
    refuses("no such data set", "imagenet", tmp_path)
    missing = {"mnist": "train-images-idx3-ubyte.gz", "sleep": "npz", "stroke": "IST.csv"}
    for name, file in {**missing, "tinyimagenet": "wnids.txt"}.items():
        refuses(f"{file}.*get it from http|{file}.*make one from http", name, Path(__file__).parent)


def test_cifar10_reads_the_binary_batches(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    x, y = {name: images(3, 32, seed=k) for k, name in enumerate(names)}, np.arange(3)[:, None]
    for name, array in x.items():
        records = np.hstack([y, array.transpose(0, 3, 1, 2).reshape(3, -1)]).astype(np.uint8)
        records.tofile(tmp_path / "cifar-10-batches-bin" / f"{name}.bin")
    data = datasets.load("cifar10", tmp_path, verify=False)
    assert np.array_equal(data.train.x, np.concatenate([x[name] for name in names[:5]]))
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([0, 1, 2] * 5, [0, 1, 2])
    assert np.array_equal(data.test.x, x["test_batch"])
    refuses("not the official", "cifar10", tmp_path, verify=True)


def test_pathmnist_trains_on_training_and_validation_images(tmp_path):
    splits = {"train": images(4, 28, seed=1), "val": images(3, 28), "test": images(2, 28)}
    stored = {f"{name}_images": array for name, array in splits.items()}
    stored |= {f"{name}_labels": np.arange(len(x))[:, None] for name, x in splits.items()}
    np.savez(tmp_path / "pathmnist.npz", **stored)
    data = datasets.load("pathmnist", tmp_path, verify=False)
    assert np.array_equal(data.train.x, np.concatenate([splits["train"], splits["val"]]))
    assert (data.train.y.tolist(), data.test.y.tolist()) == ([0, 1, 2, 3, 0, 1, 2], [0, 1])
    refuses("MD5", "pathmnist", tmp_path, verify=True)
    (tmp_path / "pathmnist.npz").write_bytes(b"PK no")
    refuses("damaged or not the official one", "pathmnist", tmp_path)


def test_tiny_imagenet_reads_the_official_tree(tmp_path):
    image, root = pytest.importorskip("PIL.Image"), tmp_path / "tinyimagenet/tiny-imagenet-200"
    written(root / "wnids.txt", "n2", "n1")
    written(root / "words.txt", "n2\tcat", "n1\tdog")
    written(root / "val/val_annotations.txt", "val_0.JPEG\tn1\t0", "val_1.JPEG\tn2\t0")
    paths = [
        f"train/n{k}/images/n{k}_{image_index}.JPEG" for k in (1, 2) for image_index in (2, 10)
    ]
    paths += [f"val/images/val_{image_index}.JPEG" for image_index in (0, 1)]
    for path, array in zip(paths, images(6, 64), strict=True):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(array).save(root / path, "JPEG")
    data = datasets.load("tinyimagenet", tmp_path, verify=False)
    assert (data.classes, data.test.y.tolist()) == (("dog", "cat"), [0, 1])
    assert data.train.y.tolist() == [0, 0, 1, 1]
    read = np.stack([np.asarray(image.open(root / path)) for path in paths])
    assert np.array_equal(np.concatenate([data.train.x, data.test.x]), read)
    refuses("4 images, not the official 1000", "tinyimagenet", tmp_path, verify=True)
    (root / "val/images/val_0.JPEG").write_bytes(b"")
    refuses(r"val_0\.JPEG is missing or broken", "tinyimagenet", tmp_path)


RNG = np.random.default_rng(0)
NIGHTS = {"x": RNG.normal(size=(60, 4)).astype(np.float16), "y": RNG.integers(0, 5, 60)}
NIGHTS |= {"subject": np.repeat(np.arange(6), 10) + 10, "night": np.arange(60)}


def write_sleep(folder, name="a", **changes):
    (folder / "sleep").mkdir(exist_ok=True)
    stored = {key: value for key, value in (NIGHTS | changes).items() if value is not None}
    np.savez(folder / "sleep" / f"{name}.npz", **stored)


def test_sleep_splits_by_subject_scales_by_training_subjects(tmp_path):
    write_sleep(tmp_path, age=np.arange(60) + 20)
    data = datasets.load("sleep", tmp_path)
    assert (set(data.train.groups), set(data.test.groups)) == ({0, 2, 4}, {1, 3, 5})
    assert np.allclose(np.median(data.train.x, axis=0), 0, atol=1e-3)
    assert np.array_equal(data.test.y, NIGHTS["y"][NIGHTS["subject"] % 2 == 1])
    sites = datasets.load("sleep", tmp_path, partitioned=True)
    assert list(dict.fromkeys(sites.sites)) == [f"subject {k:02d}" for k in range(1, 7)]
    assert np.array_equal(sites.x, NIGHTS["x"].astype(np.float32))
    assert sites.columns["age"].tolist() == (np.arange(60) + 20).astype(str).tolist()
    write_sleep(tmp_path, "b")
    assert list(datasets.load("sleep", tmp_path, partitioned=True).columns) == ["site", "night"]


def test_sleep_refuses_tables_it_cannot_use(tmp_path):
    write_sleep(tmp_path, "b", x=np.zeros((60, 2)))
    for changes, message in (
        ({}, "features; fix them"),
        ({"name": "b", "y": np.full(60, 5)}, "do not fit 5 classes"),
        ({"name": "b", "x": np.full((60, 4), np.inf)}, "not finite"),
        ({"name": "b", "y": np.zeros(59, int)}, "120 samples but 119 labels"),
        ({"name": "b", "night": np.arange(9)}, "69 values of night but 120 labels"),
        ({"subject": None}, "needs x, y and subject"),
    ):
        write_sleep(tmp_path, **changes)
        refuses(message, "sleep", tmp_path, verify=True)


# Natural partitions: the official formats, with every sample's site

PATIENT = {
    "HOSPNUM": "1", "RDELAY": "17", "RCONSC": "D", "SEX": "M", "AGE": "69", "RSLEEP": "Y",
    "RATRIAL": "", "RCT": "Y", "RVISINF": "n", "RHEP24": "", "RASP3": "", "RSBP": "140",
    **{f"RDEF{k}": "C" if k == 5 else "N" for k in range(1, 9)}, "STYPE": "PACS",
    "RDATE": "pa?-91", "FDEAD": "N", "COUNTRY": "UK", "EXPD6": "0.7", "OCCODE": "2",
}  # fmt: skip


def write_stroke(path, *changes):
    rows = (",".join({**PATIENT, **change}.values()) for change in changes)
    written(path, ",".join(PATIENT), *rows)


@pytest.mark.parametrize("filename", ["IST.csv", "ist/IST.csv", "natural/ist/IST.csv"])
def test_stroke_is_read_from_every_location_with_hospital_country_and_syndrome(tmp_path, filename):
    other_patient = {"HOSPNUM": "7", "COUNTRY": "ITAL", "OCCODE": "1", "RDATE": ""}
    write_stroke(tmp_path / filename, {}, other_patient, {"OCCODE": "9"})
    table = datasets.load("stroke", tmp_path, partitioned=True, verify=False)
    assert (table.y.tolist(), table.sites.tolist()) == ([1, 0], ["hospital 1", "hospital 7"])
    columns = [table.columns[name].tolist() for name in ("country", "group", "year")]
    assert columns == [["UK", "ITAL"], ["PACS", "PACS"], ["1991", ""]]
    row = dict(zip(table.features, table.x[0].tolist(), strict=True))
    assert (row["AGE"], row["RSLEEP"], row["RVISINF"], row["SEX=M"]) == (69, 1, 0, 1)
    assert np.isnan([row["RATRIAL"], row["RDEF5"]]).all()


def test_stroke_refuses_tables_that_are_not_the_trial(tmp_path):
    path = tmp_path / "IST.csv"
    for changes, message in (
        ([{"OCCODE": "7"}], "OCCODE '7'"),
        ([{"AGE": "old"}], "AGE holds 'old', which is no number"),
        ([{"RSLEEP": "X"}], "RSLEEP holds 'X'"),
        ([{"AGE": "1,2"}], "line 2 has"),
        ([], "no rows"),
    ):
        write_stroke(path, *changes)
        refuses(message, "stroke", tmp_path)
    write_stroke(path, {})
    refuses(r"1 patients, not the official 19435.*--no-verify", "stroke", tmp_path, verify=True)
    written(path, "HOSPNUM,AGE", "1,2")
    refuses("no column RDELAY", "stroke", tmp_path)


def test_heart_reads_four_hospitals_with_missing_values(tmp_path):
    folder = tmp_path / "natural/heart_disease"
    for k, (file, _, _) in enumerate(healthcare.HEART_SITES.values()):
        first = f"{60 + k},1,4,140,260,0,1,112,1,3,2,?,NaN,{k}"
        written(folder / file, first, "50,0,3,?,209,0,0,127,0,0,?,?,?,0")
    table = datasets.load("heart", tmp_path, partitioned=True, verify=False)
    assert table.y.tolist() == [0, 0, 1, 0, 1, 0, 1, 0]
    assert list(dict.fromkeys(table.sites.tolist())) == list(healthcare.HEART_SITES)
    assert table.columns["country"].tolist()[::2] == ["USA", "Hungary", "Switzerland", "USA"]
    assert table.columns["group"].tolist()[:2] == ["male", "female"]
    assert (np.isnan(table.x[1, 3]), table.x[2, 0]) == (True, 61)
    refuses("2 patients, not the official 303", "heart", tmp_path, verify=True)
    for text, message in (("1,2\n", "line 1 has 2"), ("1," * 13 + "?\n", "lacks a diagnosis")):
        (folder / "processed.va.data").write_text(text)
        refuses(message, "heart", tmp_path)


# Shipped outputs


@pytest.mark.parametrize("entry", outputs.entries(), ids=lambda entry: entry["file"])
def test_every_shipped_file_is_what_the_index_says(entry):
    loaded = outputs.load(entry["dataset"], entry["split"], entry["stage"])
    assert loaded.probabilities.shape == (entry["samples"], entry["classes"])
    assert loaded.accuracy == pytest.approx(entry["accuracy"], abs=1e-4)
    assert np.abs(loaded.probabilities.sum(1, dtype=np.float64) - 1).max() < 1e-5
    assert 0 <= loaded.labels.min() <= loaded.labels.max() < entry["classes"]
    scores = LAC()(loaded.probabilities, loaded.labels)
    assert len(np.unique(scores)) > 0.5 * len(scores)
    if entry["split"] == outputs.NATURAL:
        assert len(np.unique(loaded.column("site"))) == entry["sites"]
        assert loaded.accuracy > entry["commonest_class"]
        assert all(entry[field] for field in ("source", "license", "citation", "command"))
        attribution = files("robfcp.experiments.outputs").joinpath("ATTRIBUTION.md").read_text()
        assert f"doi:{entry['doi']}" in attribution


def test_what_ships_is_small_complete_and_keeps_sleepers_apart():
    folder = files("robfcp.experiments.outputs")
    assert sum(len(folder.joinpath(e["file"]).read_bytes()) for e in outputs.entries()) < 8 * 2**20
    assert (
        " ".join(outputs.dataset_names())
        == "mnist cifar10 tinyimagenet pathmnist sleep stroke heart"
    )
    subjects = np.unique(outputs.load("sleep").groups)
    assert (len(subjects), set(subjects % 2)) == (39, {1})  # trained on the even ones


@pytest.mark.parametrize(("bits", "error"), [(16, 0.02), (8, 0.07)])
def test_small_probabilities_survive_storage_relative_to_their_size(tmp_path, bits, error):
    logits, labels = np.random.default_rng(0).normal(size=(500, 10)), [0] * 500
    path = tmp_path / "o"
    logits[:, 0] += 11.0
    exact = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    outputs.write_outputs(path, logits, labels, np.arange(500), bits=bits)
    loaded = outputs.read_outputs(path)
    expected = exact[:, 1:].sum(1)
    assert expected.min() < 1e-4
    assert np.allclose(LAC()(loaded.probabilities, labels), expected, rtol=error, atol=0)
    assert np.array_equal(loaded.groups, np.arange(500))
    outputs.write_outputs(path, np.eye(3), [0, 1, 2], columns={"site": np.array(["b", "a", "b"])})
    assert outputs.read_outputs(path).column("site").tolist() == ["b", "a", "b"]


def test_wrong_requests_and_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(RobfcpError, match="mnist/iid/final"):
        outputs.load("imagenet")
    with pytest.raises(RobfcpError, match="neither 8 nor 16"):
        outputs.write_outputs(tmp_path / "o.npz", np.zeros((2, 2)), [0, 1], bits=4)
    columns = {"depth": np.zeros((1, 2)), "labels": [0], "column:site": [3], "names:site": ["a"]}
    for arrays in ({"other": np.zeros(2)}, columns):
        np.savez(tmp_path / "x.npz", **arrays)
        with pytest.raises(RobfcpError, match="not a file of outputs"):
            outputs.read_outputs(tmp_path / "x.npz")
    entry = {**outputs.entries()[0], "sha256": "0" * 64}
    monkeypatch.setattr(outputs, "entries", lambda: (entry,))
    with pytest.raises(RobfcpError, match="is damaged"):
        outputs.load("mnist")
