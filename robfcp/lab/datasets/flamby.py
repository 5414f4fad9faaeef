"""Two federations of FLamby in its layouts: Fed-Heart-Disease and Fed-ISIC2019.

Ogier du Terrail et al. (2022), "FLamby: datasets and benchmarks for cross-silo federated learning
in realistic healthcare settings", NeurIPS datasets and benchmarks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.lab.datasets import heart
from robfcp.lab.datasets.columns import read_columns
from robfcp.lab.datasets.files import Source, locate
from robfcp.lab.datasets.table import SiteTable

HEART = Source(
    name="fed-heart",
    home="https://github.com/owkin/FLamby (fed_heart_disease)",
    folder="fed_heart_disease",
)
ISIC = Source(
    name="fed-isic2019",
    home="https://github.com/owkin/FLamby (fed_isic2019)",
    folder="fed_isic2019",
)
ISIC_CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
IMAGES = "ISIC_2019_Training_Input_preprocessed"
SIDE = 64  # pixels: the images are made small enough to be held in memory together


def load_heart(directory: Path, verify: bool) -> SiteTable:
    """Fed-Heart-Disease: ten features, patients with any missing left out, cp and restecg as
    indicators of all but their least value; site: the centre, 0 to 3."""
    tables = [heart.read_site(directory, HEART, name, verify) for name in heart.SITES]
    whole = [table[~np.isnan(table[:, :10]).any(axis=1)] for table in tables]
    table = np.concatenate(whole)
    plain = [k for k in range(10) if heart.FEATURES[k] not in ("cp", "restecg")]
    x = {heart.FEATURES[k]: table[:, k] for k in plain}
    for name in ("cp", "restecg"):
        column = table[:, heart.FEATURES.index(name)]
        x |= {f"{name}={value:g}": column == value for value in np.unique(column)[1:]}
    return SiteTable(
        name="fed-heart",
        x=np.column_stack(list(x.values())).astype(np.float32),
        y=(table[:, -1] > 0).astype(np.int64),
        classes=heart.CLASSES,
        columns={"site": np.repeat([f"centre {k}" for k in range(4)], [len(t) for t in whole])},
        features=tuple(x),
    )


def load_isic(directory: Path, verify: bool) -> SiteTable:
    """Fed-ISIC2019: dermoscopic images made 64 x 64 pixels; site: the centre, 0 to 5; group:
    FLamby's fold, train or test.

    Read from FLamby's table `train_test_split` (with or without .csv) and the folder
    ISIC_2019_Training_Input_preprocessed beside it.
    """
    path = locate(directory, ISIC, ("train_test_split", "train_test_split.csv"))
    table = read_columns(path, ISIC, ("image", "target", "center", "fold"))
    folder = locate(directory, ISIC, (IMAGES,))
    files = [folder / f"{name}.jpg" for name in table["image"]]
    if verify:
        missing = [file for file in files if not file.is_file()]
        if missing:
            raise RobfcpError(
                f"fed-isic2019: {missing[0]} and {len(missing) - 1} more images are missing; make "
                f"them by the scripts of {ISIC.home}, or pass --no-verify to leave them out"
            )
    kept = np.array([file.is_file() for file in files])
    with ThreadPoolExecutor() as pool:
        images = list(pool.map(_image, (file for file in files if file.is_file())))
    if not images:
        raise RobfcpError(f"fed-isic2019: {folder} holds no image; see {ISIC.home}")
    return SiteTable(
        name="fed-isic2019",
        x=np.stack(images),
        y=np.array(table["target"])[kept].astype(np.int64),
        classes=ISIC_CLASSES,
        columns={
            "site": np.array([f"centre {name}" for name in table["center"]])[kept],
            "group": np.array(table["fold"])[kept],
        },
    )


def _image(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((SIDE, SIDE)))
    except OSError as error:
        raise RobfcpError(f"fed-isic2019: {path} is broken; make it again") from error
