"""Loaders give back exactly what official files hold, and name what is missing or wrong."""

from __future__ import annotations

import gzip
import importlib.util
import struct
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from robfcp.errors import RobfcpError
from robfcp.lab import datasets
from robfcp.lab.datasets.files import Remote, Source


def script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "official_formats.py"
    spec = importlib.util.spec_from_file_location("official_formats", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def images(n: int, size: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (n, size, size, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_mnist(folder: Path) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    arrays = {}
    for prefix, n in (("train", 7), ("t10k", 5)):
        x, y = images(n, 28, 1)[..., 0], np.arange(n, dtype=np.uint8)
        header = b"\x00\x00\x08\x03" + struct.pack(">3I", *x.shape)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + x.tobytes())
        label = b"\x00\x00\x08\x01" + struct.pack(">I", n) + y.tobytes()
        with gzip.open(folder / f"{prefix}-labels-idx1-ubyte.gz", "wb") as stream:
            stream.write(label)
        arrays[prefix] = x
    return arrays


def test_mnist_reads_idx_files_compressed_or_not(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path / "mnist")
    data = datasets.load("mnist", tmp_path, verify=False)
    assert np.array_equal(data.train.x[..., 0], arrays["train"])
    assert np.array_equal(data.test.x[..., 0], arrays["t10k"])
    assert data.test.y.tolist() == [0, 1, 2, 3, 4]


def test_mnist_refuses_a_file_that_is_not_the_official_one(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    with pytest.raises(RobfcpError, match=r"train-labels.*MD5.*--no-verify"):
        datasets.load("mnist", tmp_path)


def test_mnist_refuses_truncated_files(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RobfcpError, match="do not fill"):
        datasets.load("mnist", tmp_path, verify=False)


def test_missing_files_are_named_with_their_home(tmp_path: Path) -> None:
    for name, what in (
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("cifar10", "data_batch_1.bin"),
        ("pathmnist", "pathmnist.npz"),
        ("tinyimagenet", "wnids.txt"),
        ("sleep", "parquet"),
    ):
        with pytest.raises(RobfcpError, match=what) as error:
            datasets.load(name, tmp_path)
        assert datasets.source(name).home in str(error.value)


def test_the_data_directory_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("ROBFCP_DATA", str(tmp_path))
    assert len(datasets.load("mnist", verify=False).train) == 7
    monkeypatch.delenv("ROBFCP_DATA")
    with pytest.raises(RobfcpError, match="ROBFCP_DATA"):
        datasets.load("mnist")
    with pytest.raises(RobfcpError, match="not a directory"):
        datasets.load("mnist", tmp_path / "nowhere")
    with pytest.raises(RobfcpError, match="no such data set"):
        datasets.load("imagenet", tmp_path)


def test_re_encoded_images_become_the_official_cifar10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = script()
    x = {f"train_{number}": images(3, 32, seed=number) for number in range(1, 6)}
    x["test"] = images(4, 32, seed=9)
    folder = tmp_path / "source" / "cifar10"
    folder.mkdir(parents=True)
    for name, array in x.items():
        (folder / f"cifar10_{name}.d2.npy.xz").write_bytes(tool.encode(array))
    y = np.arange(15) % 10
    np.savez(folder / "cifar10_labels.npz", train=y, test=y[:4])
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path / "source"), str(tmp_path / "target")])
    tool.main()
    data = datasets.load("cifar10", tmp_path / "target", verify=False)
    assert np.array_equal(data.train.x, np.concatenate([x[f"train_{k}"] for k in range(1, 6)]))
    assert np.array_equal(data.train.y, y)
    assert np.array_equal(data.test.x, x["test"])
    with pytest.raises(RobfcpError, match="not the official"):
        datasets.load("cifar10", tmp_path / "target")


def test_pathmnist_trains_on_training_and_validation_images(tmp_path: Path) -> None:
    tool = script()
    folder = tmp_path / "source"
    folder.mkdir()
    parts = {
        "train_00000_00004": images(4, 28, seed=1),
        "val": images(3, 28),
        "test": images(2, 28),
    }
    for name, array in parts.items():
        (folder / f"pathmnist_{name}.d2.npy.xz").write_bytes(tool.encode(array))
    y = np.arange(9, dtype=np.uint8)
    np.savez(folder / "pathmnist_labels.npz", train=y, val=y[:3], test=y[5:7])
    tool.pathmnist(folder, tmp_path / "target" / "medmnist")
    data = datasets.load("pathmnist", tmp_path / "target", verify=False)
    assert np.array_equal(data.train.x, np.concatenate([parts["train_00000_00004"], parts["val"]]))
    assert data.train.y.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert data.test.y.tolist() == [5, 6]
    with pytest.raises(RobfcpError, match="MD5"):
        datasets.load("pathmnist", tmp_path / "target")
    (tmp_path / "target" / "medmnist" / "pathmnist.npz").write_bytes(b"PK no")
    with pytest.raises(RobfcpError, match="damaged or not the official one"):
        datasets.load("pathmnist", tmp_path / "target", verify=False)


def test_grey_medmnist_images_get_a_channel(tmp_path: Path) -> None:
    arrays = {f"{part}_images": images(3, 28, 1)[..., 0] for part in ("train", "val", "test")}
    arrays |= {f"{part}_labels": np.array([[0], [1], [1]]) for part in ("train", "val", "test")}
    np.savez(tmp_path / "breastmnist.npz", **arrays)
    data = datasets.load("breastmnist", tmp_path, verify=False)
    assert data.test.x.shape == (3, 28, 28, 1)
    assert data.classes == ("0", "1")


def test_tiny_imagenet_reads_the_official_tree(tmp_path: Path) -> None:
    import io

    from PIL import Image

    tool = script()
    folder = tmp_path / "source"
    folder.mkdir()
    x = images(4, 64)
    files = []
    for array in x:
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, "JPEG")
        files.append(buffer.getvalue())
    stored = {
        "jpeg": np.frombuffer(b"".join(files), np.uint8),
        "offset": np.concatenate([[0], np.cumsum([len(file) for file in files])]),
        "label": np.array([1, 0, 1, 1], np.uint8),
        "wnid": np.array(["n2", "n1"]),
        "words": np.array(["cat", "dog"]),
    }
    np.savez(folder / "tiny_val_jpeg.npz", **stored)
    np.savez(folder / "tiny_train_part1of5_jpeg.npz", **stored)
    tool.tinyimagenet(folder, tmp_path / "tinyimagenet")
    data = datasets.load("tinyimagenet", tmp_path, verify=False)
    expected = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
    assert data.classes == ("dog", "cat")
    assert data.test.y.tolist() == [0, 1, 0, 0]
    assert np.array_equal(data.test.x, np.stack(expected))
    assert data.train.y.tolist() == [0, 0, 0, 1]
    assert np.array_equal(data.train.x, np.stack(expected)[[0, 2, 3, 1]])
    with pytest.raises(RobfcpError, match="4 images, not the official 1000"):
        datasets.load("tinyimagenet", tmp_path)
    (tmp_path / "tinyimagenet/tiny-imagenet-200/val/images/val_0.JPEG").write_bytes(b"")
    with pytest.raises(RobfcpError, match=r"val_0\.JPEG is missing or broken"):
        datasets.load("tinyimagenet", tmp_path, verify=False)


def sleep_table(n: int = 60) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(n, 4)).astype(np.float16),
        "y": rng.integers(0, 5, n),
        "subject": np.repeat(np.arange(6), n // 6) + 10,
    }


def test_sleep_splits_by_subject_and_scales_by_the_training_subjects(tmp_path: Path) -> None:
    (tmp_path / "sleep").mkdir()
    table = sleep_table()
    np.savez(tmp_path / "sleep" / "a.npz", **table)
    data = datasets.load("sleep", tmp_path)
    assert data.train.groups is not None
    assert data.test.groups is not None
    assert set(data.train.groups) == {0, 2, 4}
    assert set(data.test.groups) == {1, 3, 5}
    assert np.allclose(np.median(data.train.x, axis=0), 0, atol=1e-3)
    assert np.array_equal(data.test.y, table["y"][table["subject"] % 2 == 1])


def test_sleep_reads_parquet_as_it_reads_npz(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = sleep_table()
    for folder in ("one", "two"):
        (tmp_path / folder / "sleep").mkdir(parents=True)
    np.savez(tmp_path / "one" / "sleep" / "a.npz", **table)
    columns = {f"f{k}": table["x"][:, k].astype(np.float32) for k in range(4)}
    columns |= {"subject": table["subject"], "stage": table["y"], "night": table["y"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "two" / "sleep" / "a.parquet")
    first = datasets.load("sleep", tmp_path / "one")
    second = datasets.load("sleep", tmp_path / "two")
    assert np.allclose(first.train.x, second.train.x)
    assert np.array_equal(first.test.y, second.test.y)
    by_subject = datasets.load_sites("sleep", tmp_path / "two")
    assert by_subject.columns["night"].tolist() == table["y"].astype(str).tolist()


def test_sleep_refuses_tables_it_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "sleep").mkdir()
    table = sleep_table()
    np.savez(tmp_path / "sleep" / "a.npz", x=table["x"])
    with pytest.raises(RobfcpError, match="needs x, y and subject"):
        datasets.load("sleep", tmp_path)
    np.savez(tmp_path / "sleep" / "a.npz", **{**table, "y": table["y"] + 3})
    with pytest.raises(RobfcpError, match="do not fit 5 classes"):
        datasets.load("sleep", tmp_path)
    np.savez(tmp_path / "sleep" / "a.npz", **{**table, "x": table["x"] * np.inf})
    with pytest.raises(RobfcpError, match="not finite"):
        datasets.load("sleep", tmp_path)
    np.savez(tmp_path / "sleep" / "a.npz", **table)
    np.savez(tmp_path / "sleep" / "b.npz", **{**table, "x": table["x"][:, :2]})
    with pytest.raises(RobfcpError, match="make them agree"):
        datasets.load("sleep", tmp_path)


def test_samples_and_labels_must_belong_together() -> None:
    with pytest.raises(RobfcpError, match="3 samples but 2 labels"):
        datasets.Split(images(3, 28), np.zeros(2, np.int64))


def archive_source(folder: Path, md5: str | None) -> Source:
    path = folder / "set.zip"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("set/list.txt", "one")
    remote = Remote(path.as_uri(), md5, unpack=True)
    return Source("set", "https://example.org", "set", (remote,), present="set/list.txt")


def test_download_fetches_checks_and_unpacks_once(tmp_path: Path) -> None:
    source = archive_source(tmp_path, None)
    target = tmp_path / "data"
    target.mkdir()
    source.download(target)
    assert (target / "set" / "set" / "list.txt").read_text() == "one"
    (tmp_path / "set.zip").unlink()
    source.download(target)  # nothing is missing, so nothing is fetched


def test_download_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    source = archive_source(tmp_path, "0" * 32)
    target = tmp_path / "data"
    target.mkdir()
    with pytest.raises(RobfcpError, match="not the official"):
        source.download(target)
    assert list((target / "set").iterdir()) == []
    (tmp_path / "set.zip").unlink()
    with pytest.raises(RobfcpError, match=r"cannot be fetched; .* put it at"):
        source.download(target)
    with pytest.raises(RobfcpError, match="ask for access"):
        datasets.source("sleep").download(target)
