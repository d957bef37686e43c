"""One conversion of arrays in a process of its own: what it took, as JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import measure
from gnnstore import _core
from gnnstore.converters import ConvertOptions, from_numpy
from gnnstore.formats.base.files import directory_bytes
from gnnstore.tools.bench.harness import MemoryGroup, ask_process

_CHUNK_EDGES = 2**22
_COPY_BYTES = 2**23
# Graph500's.
_PROBABILITIES = (0.57, 0.19, 0.19, 0.05)


@dataclass(frozen=True)
class Conversion:
    """Time, memory and disk of a conversion.

    Attributes
    ----------
    seconds, cpu_seconds : float
        Elapsed, and spent by all threads.
    peak_bytes : int
        The most memory that was resident.
    spilled_bytes : int
        The most that lay in sorted runs on disk.
    result_bytes : int
        The finished store.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    spilled_bytes: int
    result_bytes: int


def write_edges(directory: Path, scale: int, num_edges: int, threads: int) -> None:
    """Write an R-MAT graph with 2^scale nodes as `edge_index.npy`, int32 [2, E], in any order."""
    levels = np.tile(np.array(_PROBABILITIES), (scale, 1))
    directory.mkdir(parents=True, exist_ok=True)
    np.save(directory / "num_nodes.npy", np.array(1 << scale))
    out = np.lib.format.open_memmap(
        directory / "edge_index.npy", mode="w+", dtype=np.int32, shape=(2, num_edges)
    )
    for first in range(0, num_edges, _CHUNK_EDGES):
        count = min(_CHUNK_EDGES, num_edges - first)
        for row, ids in zip(
            out, _core.rmat_edges(first, count, scale, levels, 0, threads), strict=True
        ):
            row[first : first + count] = _core.permute_ids(ids, scale, 0, num_threads=threads)
    out.flush()


def write_features(directory: Path, num_bytes: int, width: int) -> Path:
    """Write random float32 features `x.npy` [N, width] and two edges; return the file."""
    num_nodes = num_bytes // (4 * width)
    directory.mkdir(parents=True, exist_ok=True)
    np.save(directory / "edge_index.npy", np.zeros((2, 2), np.int32))
    path = directory / "x.npy"
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(num_nodes, width))
    rng = np.random.default_rng(0)
    step = max(1, _COPY_BYTES // (4 * width))
    for first in range(0, num_nodes, step):
        rng.random(dtype=np.float32, out=out[first : first + step])
    out.flush()
    return path


def copy_file(source: Path, output: Path) -> float:
    """Copy a file, durably, as fast as a plain loop can; return the seconds it took.

    Like the converter it has the disk begin early: a copy that leaves all of its writing to the
    last moment would be a yardstick that is too short.
    """
    buffer = memoryview(bytearray(_COPY_BYTES))
    start = time.perf_counter()
    done = 0
    with source.open("rb", buffering=0) as reader, output.open("xb", buffering=0) as writer:
        while count := reader.readinto(buffer):
            if writer.write(buffer[:count]) != count:
                raise SystemExit(f"{output}: a write came short")
            os.posix_fadvise(writer.fileno(), done, count, os.POSIX_FADV_DONTNEED)
            done += count
        os.fsync(writer.fileno())
    return time.perf_counter() - start


def convert(
    source: Path,
    output: Path,
    *,
    memory_bytes: int | None,
    undirected: bool = False,
    edge_ids: bool = True,
    group: MemoryGroup | None = None,
) -> Conversion | str:
    """Convert in a process of its own; return why there is no result, if there is none."""
    options = {
        "memory_bytes": memory_bytes,
        "undirected": undirected,
        "edge_ids": edge_ids,
        "overwrite": True,
    }
    words = ["-m", "benchmarks.parts.conversion", str(source), str(output), json.dumps(options)]
    answer = ask_process(words, group)
    return answer if isinstance(answer, str) else Conversion(**answer)


class _Spilled:
    """Watches how much is recorded as spilled, through the journal's own door."""

    def __init__(self) -> None:
        from gnnstore.formats.arrays.journal import Journal  # noqa: PLC0415

        self.num_bytes = 0
        record_run = Journal.record_run

        def count(journal: Journal, run: dict[str, object]) -> None:
            files = run["files"]
            if isinstance(files, list):
                self.num_bytes += sum(Path(file).stat().st_size for file in files)
            record_run(journal, run)

        Journal.record_run = count  # type: ignore[method-assign, assignment]


def main() -> None:
    """Convert the input that the command line names."""
    source, output, options = sys.argv[1:]
    spilled = _Spilled()

    def work() -> float:
        from_numpy(source, output, options=ConvertOptions(**json.loads(options)))
        return 1.0

    turn = measure(work)
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    found = Conversion(
        turn.seconds,
        turn.cpu_seconds,
        0 if peak is None else 1024 * int(peak[1]),
        spilled.num_bytes,
        directory_bytes(Path(output)),
    )
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
