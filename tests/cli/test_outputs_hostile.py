"""Model outputs of any contents are read or refused in one line, within memory for their size."""

import io
import tracemalloc
import zipfile
from contextlib import suppress

import numpy as np
import pytest

from robfcp.cli._data import read_outputs
from robfcp.errors import RobfcpError


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(path, members, flag=0, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, data in members.items():
            file.writestr(name, data)
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


CASES = {
    "claims a terabyte": claimed("(100000000000, 2)") + b"\0" * 64,
    "claims a negative shape": claimed("(-1, 2)") + b"\0" * 64,
    "claims objects": claimed("(1,)", "|O") + b"\0" * 64,
    "an open bracket": claimed("(((((((((((((") + b"\0" * 64,
    "an unknown version": claimed("(1, 2)", version=9),
    "deep brackets": claimed("(" * 3000 + ")" * 3000),
    "nothing but magic": b"\x93NUMPY",
    "text": b"hello",
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_broken_arrays_are_one_line(tmp_path, case, suffix):
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        path.write_bytes(CASES[case])
    else:
        archive(path, {"probabilities.npy": CASES[case]})
    with pytest.raises(RobfcpError, match=r"^\S+: ") as error:
        read_outputs(path, needs_targets=False)
    assert "\n" not in str(error.value)


def test_a_bomb_is_not_expanded(tmp_path):
    path = tmp_path / "x.npz"
    body = claimed("(1, 2)") + bytes(2**26)
    archive(path, {"probabilities.npy": body}, compression=zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    found = read_outputs(path, needs_targets=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.predictions.shape == (1, 2)
    assert peak < 2**23


def test_encrypted_truncated_and_damaged_archives_are_one_line(tmp_path):
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
def test_good_archives_are_read_as_numpy_reads_them(tmp_path, compressed, dtype):
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 40).astype(dtype)
    labels = np.arange(40) % 3
    compressed(tmp_path / "x.npz", probabilities=np.asfortranarray(rows), labels=labels)
    found = read_outputs(tmp_path / "x.npz", needs_targets=True)
    assert np.array_equal(found.predictions, rows)
    assert np.array_equal(found.targets, labels)
    np.save(tmp_path / "x.npy", rows)
    assert np.array_equal(read_outputs(tmp_path / "x.npy", needs_targets=False).predictions, rows)


def test_an_empty_file_is_one_line(tmp_path):
    (tmp_path / "x.csv").touch()
    with pytest.raises(RobfcpError, match="is empty"):
        read_outputs(tmp_path / "x.csv", needs_targets=False)
