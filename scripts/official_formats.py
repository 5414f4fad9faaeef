"""Turn re-encoded data files into the official formats that robfcp.lab.datasets reads.

    python scripts/official_formats.py SOURCE TARGET [cifar10 pathmnist tinyimagenet mnist sleep]

SOURCE holds one folder per data set. `*.d2.npy.xz` files are uint8 RGB images stored as green,
red - green, blue - green planes after a two-dimensional difference (mod 256), xz-compressed;
`*_jpeg.npz` files hold JPEG bytes joined together with offsets, labels and WordNet ids. MNIST (idx)
and sleep tables are copied as they are. What SOURCE lacks is left out and named.
"""

from __future__ import annotations

import argparse
import io
import lzma
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def decode(path: Path) -> NDArray[np.uint8]:
    """The (n, h, w, 3) RGB images of a `.d2.npy.xz` file."""
    planes = np.load(io.BytesIO(lzma.decompress(path.read_bytes())), allow_pickle=False)
    planes = np.cumsum(np.cumsum(planes, -1, dtype=np.uint8), -2, dtype=np.uint8)
    return np.stack([planes[1] + planes[0], planes[0], planes[2] + planes[0]], -1)


def encode(images: NDArray[np.uint8]) -> bytes:
    """The bytes of a `.d2.npy.xz` file; decode() gives the same images back."""
    red, green, blue = (images[..., channel] for channel in range(3))
    planes = np.stack([green, red - green, blue - green])
    for axis in (-2, -1):
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    buffer = io.BytesIO()
    np.save(buffer, planes)
    return lzma.compress(buffer.getvalue())


def decode_all(paths: list[Path]) -> list[NDArray[np.uint8]]:
    """Every file decoded, several at a time (xz releases the interpreter lock)."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(decode, paths))


def cifar10(source: Path, target: Path) -> None:
    """cifar-10-batches-bin: label byte, then the red, green and blue planes, per image."""
    folder = target / "cifar-10-batches-bin"
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(source / "cifar10_labels.npz", allow_pickle=False) as content:
        labels = {"train": content["train"], "test": content["test"]}
    batches = {
        f"data_batch_{number}.bin": (source / f"cifar10_train_{number}.d2.npy.xz", y)
        for number, y in enumerate(np.split(labels["train"], 5), 1)
    }
    batches["test_batch.bin"] = (source / "cifar10_test.d2.npy.xz", labels["test"])
    present = {name: entry for name, entry in batches.items() if entry[0].exists()}
    images = decode_all([path for path, _ in present.values()])
    for (name, (_, y)), x in zip(present.items(), images, strict=True):
        planes = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        np.concatenate([y[:, None].astype(np.uint8), planes], axis=1).tofile(folder / name)
    for name in sorted(set(batches) - set(present)):
        print(f"cifar10: {name} not written, {batches[name][0].name} is absent")


def pathmnist(source: Path, target: Path) -> None:
    """pathmnist.npz; the training images are as many as SOURCE holds."""
    with np.load(source / "pathmnist_labels.npz", allow_pickle=False) as content:
        labels = {part: content[part] for part in ("train", "val", "test")}
    parts = sorted(source.glob("pathmnist_train_*.d2.npy.xz"))
    whole = [source / f"pathmnist_{part}.d2.npy.xz" for part in ("val", "test")]
    images = decode_all([*parts, *whole])
    splits = {"train": np.concatenate(images[:-2]), "val": images[-2], "test": images[-1]}
    arrays = {}
    for part, x in splits.items():
        arrays[f"{part}_images"] = x
        arrays[f"{part}_labels"] = labels[part][: len(x), None]
    target.mkdir(parents=True, exist_ok=True)
    np.savez(target / "pathmnist.npz", **arrays)
    print(f"pathmnist: {len(splits['train'])} of {len(labels['train'])} training images")


def tinyimagenet(source: Path, target: Path) -> None:
    """tiny-imagenet-200: wnids.txt, words.txt, train/ID/images/*.JPEG, val/images/*.JPEG."""
    root = target / "tiny-imagenet-200"
    with np.load(source / "tiny_val_jpeg.npz", allow_pickle=False) as content:
        wnid, words = content["wnid"].tolist(), content["words"].tolist()
        folder = root / "val" / "images"
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for number, (label, jpeg) in enumerate(_jpegs(content)):
            (folder / f"val_{number}.JPEG").write_bytes(jpeg)
            rows.append(f"val_{number}.JPEG\t{wnid[label]}\t0\t0\t62\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (root / "wnids.txt").write_text("\n".join(wnid) + "\n", encoding="utf-8")
    (root / "words.txt").write_text(
        "".join(f"{identity}\t{text}\n" for identity, text in zip(wnid, words, strict=True)),
        encoding="utf-8",
    )
    count = dict.fromkeys(range(len(wnid)), 0)
    for identity in wnid:
        (root / "train" / identity / "images").mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("tiny_train_*_jpeg.npz")):
        with np.load(path, allow_pickle=False) as content:
            for label, jpeg in _jpegs(content):
                name = f"{wnid[label]}_{count[label]}.JPEG"
                (root / "train" / wnid[label] / "images" / name).write_bytes(jpeg)
                count[label] += 1
    print(f"tinyimagenet: {sum(count.values())} of 100000 training images")


def _jpegs(content: np.lib.npyio.NpzFile) -> list[tuple[int, bytes]]:
    data, offset, label = content["jpeg"].tobytes(), content["offset"].tolist(), content["label"]
    return [(int(label[row]), data[offset[row] : offset[row + 1]]) for row in range(len(label))]


def copy(source: Path, target: Path) -> None:
    """The files as they are."""
    shutil.copytree(source, target, dirs_exist_ok=True)


SETS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "mnist": (copy, "mnist"),
    "sleep": (copy, "sleep"),
    "cifar10": (cifar10, "cifar10"),
    "pathmnist": (pathmnist, "medmnist"),
    "tinyimagenet": (tinyimagenet, "tinyimagenet"),
}


def main() -> None:
    """Convert the named sets, or all that SOURCE holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("sets", nargs="*")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.sets) - set(SETS))
    if unknown:
        parser.error(f"unknown data set {unknown[0]}; choose from {', '.join(SETS)}")
    for name in arguments.sets or list(SETS):
        if not (arguments.source / name).is_dir():
            print(f"{name}: {arguments.source / name} is absent, skipped")
            continue
        convert, folder = SETS[name]
        convert(arguments.source / name, arguments.target / folder)
        print(f"{name}: written to {arguments.target / folder}")


if __name__ == "__main__":
    main()
