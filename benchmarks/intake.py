"""Taking reports in, and whole rounds.

Every round runs in a process of its own, whose memory is that of the round alone:
`python benchmarks/intake.py FILE [--by-class] [--stream] [--spark]` serves one: from JSON lines, or
from a table (*.parquet) that is held if it is small, streamed, or read by two Spark workers;
`python benchmarks/intake.py FILE NUMBER [--by-class]` writes a table of so many reports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from measure import Row, in_turns, peak, peak_mib

import robfcp
from robfcp.federation import Federation
from robfcp.fleet import _parquet, read_tables

CLASSES, SAMPLES, CHUNK, WORKERS = 10, 50, 2**15, "local-cluster[2,1,1024]"


def chunks(
    n_clients: int, n_classes: int = 0, liars: float = 0.3, grid: Any = None, n: int = SAMPLES
) -> Iterator[tuple[list[str], Any, Any, Any]]:
    """Names, lengths, cells and counts of Beta(0.4, 2) scores; the first clients send zeros."""
    grid, width, step = grid or robfcp.Binning.default(), len(str(n_clients)), CHUNK * SAMPLES // n
    rng, n_cells = np.random.default_rng([n_clients, n_classes]), grid.n_bins * max(1, n_classes)
    for first in range(0, n_clients, max(1, step)):
        size = min(max(1, step), n_clients - first)
        scores = rng.beta(0.4, 2, (size, n))
        scores[: max(0, int(liars * n_clients) - first)] = 0
        cells = grid.bin_indices(scores.ravel()) + np.repeat(np.arange(size), n) * n_cells
        if n_classes:
            cells += grid.n_bins * rng.integers(0, n_classes, cells.size)
        used, counts = np.unique(cells, return_counts=True)
        names = [f"{first + k:0{width}d}" for k in range(size)]
        yield names, np.bincount(used // n_cells), used % n_cells, counts


def lines(n_clients: int, n_classes: int = 0) -> Iterator[bytes]:
    """These reports as JSON."""
    more = {"labels": np.zeros(1, dtype=int), "classes": n_classes} if n_classes else {}
    model = robfcp.Report.from_scores(
        "NAME", np.zeros(1), score=robfcp.LAC(), min_class_count=1, **more
    )
    text = model.to_json().decode().replace('"n_samples":1', f'"n_samples":{SAMPLES}')
    word = "steps" if n_classes else "bins"
    head, tail = text.split(f'"{word}":[0],"counts":[1]')
    for names, lengths, cells, counts in chunks(n_clients, n_classes):
        for name, last, size in zip(names, np.cumsum(lengths), lengths, strict=True):
            own = cells[last - size : last]
            own = np.diff(own, prepend=0) if n_classes else own
            body = f'"{word}":{own.tolist()},"counts":{counts[last - size : last].tolist()}'
            yield f"{head.replace('NAME', name)}{body.replace(' ', '')}{tail}".encode()


def write_table(path: Path, n_clients: int, n_classes: int = 0) -> None:
    """These reports as a table."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter, read_schema

    some = Federation.from_reports(list(lines(2, n_classes)))
    some.save(path)
    columns, n_bins = read_schema(path), some.binning.n_bins
    with ParquetWriter(path, columns, compression="zstd") as writer:
        for names, lengths, cells, counts in chunks(n_clients, n_classes):
            starts = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
            held = {"classes": cells // n_bins if n_classes else None, "bins": cells % n_bins}
            found = {"client": names, "n": np.full(len(names), SAMPLES)}
            for name, numbers in {**held, "counts": counts}.items():
                if numbers is not None:
                    values = pa.array(numbers, columns.field(name).type.value_type)
                    found[name] = pa.ListArray.from_arrays(starts, values)
            arrays = [pa.array(found.get(f.name, [None] * len(names)), f.type) for f in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=columns))


def from_json(sizes: list[int]) -> Iterator[Row]:
    """Intake of JSON; floor: decoding it."""
    for n_classes in (0, CLASSES):
        stage = "validate, ten classes" if n_classes else "validate"
        for n_clients in sizes:
            data = list(lines(n_clients, n_classes))
            ours, floor = in_turns(
                lambda data=data: Federation.from_reports(iter(data)),
                lambda data=data: [msgspec.json.decode(line) for line in data],
            )
            memory = peak(lambda data=data: Federation.from_reports(iter(data)))
            yield Row(stage, n_clients, SAMPLES, ours, memory, floor)


def serve(path: Path, by_class: bool) -> dict[str, Any]:
    """A whole round from a file of lines or a table; seconds and peak memory of this process."""
    table: Any = read_tables([path], WORKERS) if "--spark" in sys.argv else path
    if "--stream" in sys.argv:
        _parquet.MAX_VALUES_IN_MEMORY = 0
    start, began = time.perf_counter(), time.process_time()
    lines = path.suffix == ".jsonl"
    federation = Federation.from_reports(path.open("rb")) if lines else Federation.from_files(table)
    taken_in = time.perf_counter()
    calibration = robfcp.calibrate(federation, by="class" if by_class else None)
    return {
        "clients": federation.n_clients,
        "by_class": by_class,
        "bytes_a_report": round(path.stat().st_size / federation.n_clients, 1),
        "intake_seconds": round(taken_in - start, 2),
        "calibrate_seconds": round(time.perf_counter() - taken_in, 2),
        "cpu_seconds": round(time.process_time() - began, 2),
        "peak_mib": peak_mib(),
        "flagged": calibration.summary.n_flagged,
    }


def rounds(n_clients: int, endings: tuple[str, ...] = ("jsonl", "parquet")) -> Iterator[Any]:
    """Whole rounds from JSON lines and from a table, without classes and with ten."""
    with tempfile.TemporaryDirectory() as folder:
        for n_classes in (0, CLASSES):
            for ending in endings:
                path = Path(folder) / f"reports.{ending}"
                if ending == "parquet":
                    write_table(path, n_clients, n_classes)
                else:
                    path.write_bytes(b"\n".join(lines(n_clients, n_classes)))
                command = [sys.executable, __file__, str(path), *["--by-class"][:n_classes]]
                answer = subprocess.run(command, check=True, capture_output=True, text=True)
                yield {"from": ending, **json.loads(answer.stdout)}
                path.unlink()


if __name__ == "__main__":
    file, split = Path(sys.argv[1]), "--by-class" in sys.argv
    if numbers := [int(one) for one in sys.argv[2:] if one.isdigit()]:
        write_table(file, numbers[0], CLASSES * split)
    else:
        print(json.dumps(serve(file, split)))
