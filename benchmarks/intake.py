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
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from measure import Row, in_turns, peak, peak_mib
from numpy.typing import NDArray

import robfcp
from robfcp.federation import Federation
from robfcp.fleet import _parquet, read_tables

CLASSES = 10
SAMPLES = 50  # a client
CHUNK = 2**15  # clients of SAMPLES that are drawn at a time
WORKERS = "local-cluster[2,1,1024]"  # of Spark

# Names, numbers of cells, cells and their counts of some clients.
Chunk = tuple[list[str], NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]


def chunks(
    n_clients: int,
    n_classes: int = 0,
    malicious_fraction: float = 0.3,
    binning: robfcp.Binning | None = None,
    n_samples: int = SAMPLES,
) -> Iterator[Chunk]:
    """Yield clients with Beta(0.4, 2) scores; the first ones are malicious and report zeros.

    A cell is a bin; with classes, that of bin h of class c is c H + h.
    """
    if binning is None:
        binning = robfcp.Binning.default()
    rng = np.random.default_rng([n_clients, n_classes])
    n_cells = binning.n_bins * max(1, n_classes)
    n_malicious = int(malicious_fraction * n_clients)
    name_width = len(str(n_clients))
    step = max(1, CHUNK * SAMPLES // n_samples)
    for first in range(0, n_clients, step):
        size = min(step, n_clients - first)
        scores = rng.beta(0.4, 2, (size, n_samples))
        scores[: max(0, n_malicious - first)] = 0

        client = np.repeat(np.arange(size), n_samples)
        keys = binning.bin_indices(scores.ravel()) + client * n_cells
        if n_classes:
            keys += binning.n_bins * rng.integers(0, n_classes, keys.size)
        occurring_keys, counts = np.unique(keys, return_counts=True)
        names = [f"{first + k:0{name_width}d}" for k in range(size)]
        lengths = np.bincount(occurring_keys // n_cells)
        yield names, lengths, occurring_keys % n_cells, counts


def lines(n_clients: int, n_classes: int = 0) -> Iterator[bytes]:
    """Yield these reports as JSON."""
    options: dict[str, Any] = {}
    cell_field = "bins"
    if n_classes:
        options = {"labels": np.zeros(1, dtype=int), "classes": n_classes}
        cell_field = "cell_steps"
    template = robfcp.Report.from_scores(
        "NAME", np.zeros(1), score=robfcp.LAC(), min_class_count=1, **options
    )
    text = template.to_json().decode().replace('"n_samples":1', f'"n_samples":{SAMPLES}')
    head, tail = text.split(f'"{cell_field}":[0],"counts":[1]')

    for names, lengths, cells, counts in chunks(n_clients, n_classes):
        boundaries = np.cumsum(lengths)[:-1]
        client_cells = np.split(cells, boundaries)
        client_counts = np.split(counts, boundaries)
        for name, cells_of_client, counts_of_client in zip(
            names, client_cells, client_counts, strict=True
        ):
            values = np.diff(cells_of_client, prepend=0) if n_classes else cells_of_client
            body = f'"{cell_field}":{values.tolist()},"counts":{counts_of_client.tolist()}'
            yield f"{head.replace('NAME', name)}{body.replace(' ', '')}{tail}".encode()


def write_table(path: Path, n_clients: int, n_classes: int = 0) -> None:
    """Write these reports as a table."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter, read_schema

    # The schema and its metadata are those of a small federation.
    template = Federation.from_reports(list(lines(2, n_classes)))
    template.save(path)
    schema = read_schema(path)
    n_bins = template.binning.n_bins

    with ParquetWriter(path, schema, compression="zstd") as writer:
        for names, lengths, cells, counts in chunks(n_clients, n_classes):
            starts = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
            lists = {"bins": cells % n_bins, "counts": counts}
            if n_classes:
                lists["classes"] = cells // n_bins
            columns: dict[str, Any] = {
                "client": names,
                "n_samples": np.full(len(names), SAMPLES),
                "min_cell_count": np.ones(len(names), dtype=int),
            }
            for name, cell_values in lists.items():
                values = pa.array(cell_values, schema.field(name).type.value_type)
                columns[name] = pa.ListArray.from_arrays(starts, values)
            nulls = [None] * len(names)
            arrays = [pa.array(columns.get(field.name, nulls), field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def from_json(sizes: list[int]) -> Iterator[Row]:
    """Yield intake of JSON; lower bound: decoding it."""
    for n_classes in (0, CLASSES):
        stage = "validate, ten classes" if n_classes else "validate"
        for n_clients in sizes:
            data = list(lines(n_clients, n_classes))
            take_in = partial(take_in_lines, data)
            seconds, lower_bound = in_turns(take_in, partial(decode_lines, data))
            yield Row(stage, n_clients, SAMPLES, seconds, peak(take_in), lower_bound)


def take_in_lines(data: Sequence[bytes]) -> Federation:
    """Return the federation of JSON reports."""
    return Federation.from_reports(iter(data))


def decode_lines(data: Sequence[bytes]) -> list[Any]:
    """Return what the JSON of reports holds, unchecked."""
    return [msgspec.json.decode(line) for line in data]


def serve(path: Path, by_class: bool) -> dict[str, Any]:
    """Return seconds and peak memory of a whole round in this process, from lines or a table."""
    table: Any = path
    if "--spark" in sys.argv:
        table = read_tables([path], WORKERS)
    if "--stream" in sys.argv:
        _parquet.MAX_VALUES_IN_MEMORY = 0

    start = time.perf_counter()
    cpu_start = time.process_time()
    if path.suffix == ".jsonl":
        federation = Federation.from_reports(path.open("rb"))
    else:
        federation = Federation.from_files(table)
    intake_end = time.perf_counter()
    calibration = robfcp.calibrate(federation, by="class" if by_class else None)
    return {
        "n_clients": federation.n_clients,
        "by_class": by_class,
        "bytes_a_report": round(path.stat().st_size / federation.n_clients, 1),
        "intake_seconds": round(intake_end - start, 2),
        "calibrate_seconds": round(time.perf_counter() - intake_end, 2),
        "cpu_seconds": round(time.process_time() - cpu_start, 2),
        "peak_mib": peak_mib(),
        "n_flagged": calibration.summary.n_flagged,
    }


def rounds(
    n_clients: int, suffixes: tuple[str, ...] = ("jsonl", "parquet")
) -> Iterator[dict[str, Any]]:
    """Yield whole rounds from JSON lines and from a table, without classes and with ten."""
    with tempfile.TemporaryDirectory() as folder:
        for n_classes in (0, CLASSES):
            for suffix in suffixes:
                path = Path(folder) / f"reports.{suffix}"
                if suffix == "parquet":
                    write_table(path, n_clients, n_classes)
                else:
                    path.write_bytes(b"\n".join(lines(n_clients, n_classes)))
                command = [sys.executable, __file__, str(path)]
                if n_classes:
                    command.append("--by-class")
                result = subprocess.run(command, check=True, capture_output=True, text=True)
                yield {"from": suffix, **json.loads(result.stdout)}
                path.unlink()


def main() -> None:
    """Write a table of so many reports, or serve one round."""
    path = Path(sys.argv[1])
    by_class = "--by-class" in sys.argv
    sizes = [int(argument) for argument in sys.argv[2:] if argument.isdigit()]
    if sizes:
        write_table(path, sizes[0], CLASSES if by_class else 0)
    else:
        print(json.dumps(serve(path, by_class)))


if __name__ == "__main__":
    main()
