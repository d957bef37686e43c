"""Packs rows of tables, and epochs of small graphs, into files that tests look at."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnstore.caching.plan import CachePlan, Trace
from gnnstore.disk.engines import open_engine
from gnnstore.features.chunks import PackedSuperbatch
from gnnstore.features.file_rows import FileRows
from gnnstore.features.pack import pack as pack_rows
from gnnstore.features.source import RowRequest, of_one_type
from gnnstore.formats.packed import PACKED
from gnnstore.formats.store.units import make_units_directory, unit_path
from gnnstore.graph.store import open as open_store
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.parts import PartPacker
from gnnstore.packing.sampling import PackSettings
from gnnstore.sampling.neighbor import SamplingConfig
from tests.support.twins.reads import write_array

MEMORY_BYTES = 1 << 25


class PackingCase:
    """Tables of random rows, and an empty directory for what is packed of them."""

    def __init__(
        self,
        directory: Path,
        num_rows: int,
        row_bytes: Mapping[str, int],
        *,
        engine: str | None = "pread",
        shard_bytes: int | None = None,
    ) -> None:
        self.rng = np.random.default_rng(0)
        self.directory = directory / "run"
        self.directory.mkdir()
        self.rows: dict[str, NDArray[np.uint8]] = {}
        tables: dict[str, FileRows] = {}
        for name, width in row_bytes.items():
            self.rows[name] = self.rng.integers(0, 256, (num_rows, width), np.uint8)
            array = write_array(directory / name, self.rows[name], shard_bytes=shard_bytes)
            tables[name] = FileRows.open(array, open_engine(array.file_paths[0], engine))
        self.tables = of_one_type(tables)

    def packed(
        self, trace: Trace, plan: CachePlan | NDArray[np.int32], **options: Any
    ) -> PackedSuperbatch:
        """Pack a superbatch by a plan or by its slots, with memory to spare."""
        if not isinstance(plan, CachePlan):
            plan = plan_of(trace, plan)
        given: dict[str, Any] = {"memory_bytes": MEMORY_BYTES, "num_threads": 2} | options
        return pack_rows(self.tables, trace, plan, self.directory, **given)

    def check_batch(
        self, packed: PackedSuperbatch, i: int, ids: NDArray[Any], slots: NDArray[np.int32]
    ) -> None:
        """Read a batch back: the rows that it misses come, and nothing is written elsewhere."""
        for name, rows in self.rows.items():
            out = np.full((len(ids), rows.shape[1]), 7, np.uint8)
            counts = packed.rows(i)[name].read_into(RowRequest(ids, slots), out)
            np.testing.assert_array_equal(out[slots < 0], rows[ids[slots < 0]])
            assert np.all(out[slots >= 0] == 7)
            assert counts.rows_read == len(np.unique(ids[slots < 0]))

    def left(self) -> list[str]:
        """Return the names of files and directories that packing has made and not removed."""
        return sorted(str(p.relative_to(self.directory)) for p in self.directory.rglob("*"))


def plan_of(trace: Trace, slots: NDArray[np.int32]) -> CachePlan:
    """Return a plan that reads rows from these slots (negative: missed), which never change."""
    ids = zip(trace.offsets[:-1], trace.offsets[1:], strict=True)
    misses = [len(np.unique(trace.ids[a:b][slots[a:b] < 0])) for a, b in ids]
    none = np.empty(0, np.int32)
    changes = np.zeros(len(trace.offsets), np.int64)
    return CachePlan(trace.offsets, slots, np.array(misses, np.int64), changes, none, none)


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """Yield a list of one number: the bytes of memory, no file's, taken meanwhile at most."""
    before, most, is_over = _anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(1e-4):
            most[0] = max(most[0], _anonymous_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        is_over.set()
        watcher.join()


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def pack(
    store: Path,
    fanouts: Iterable[int],
    input_nodes: Any = "train",
    *,
    output: Path | None = None,
    resume: bool = False,
    seed: int = 3,
    epochs: int = 2,
    batch_size: int = 50,
    replace: bool = False,
    subgraph_type: Any = "directional",
    disjoint: bool = False,
    cache_bytes: int | str | None = "100kB",
    superbatch: int | None = 5,
    num_threads: int = 2,
    **settings: Any,
) -> Path:
    """Pack epochs and return their path: `output`, or "base" in the store."""
    if output is None:
        make_units_directory(PACKED, store)
    packer = EpochPacker(
        open_store(store),
        PackSettings(
            SamplingConfig(tuple(fanouts), replace, subgraph_type, disjoint, seed),
            input_nodes,
            batch_size,
            epochs,
            cache_bytes=cache_bytes,
            superbatch=superbatch,
            num_threads=num_threads,
            **settings,
        ),
    )
    try:
        return packer.pack(output or unit_path(PACKED, store, "base"), resume=resume)
    finally:
        packer.close()


_AGAIN = ("overwrite", "resume", "on_event")  # of packing, and no settings


def pack_part(
    store: Path, directory: Path, number: int, of: int, fanouts: Iterable[int] = (4, 4), **more: Any
) -> Path:
    """Pack a part of the epochs that `pack` packs by default, and return its path."""
    again = {name: more.pop(name) for name in _AGAIN if name in more}
    sampling = {"replace": False, "subgraph_type": "directional", "disjoint": False, "seed": 3}
    config = SamplingConfig(tuple(fanouts), **{k: more.pop(k, v) for k, v in sampling.items()})
    given: dict[str, Any] = {"input_nodes": "train", "batch_size": 50, "epochs": 2}
    given |= {"cache": "frequency", "cache_bytes": "100kB", "num_threads": 2, **more}
    settings = PackSettings(config, part=(number, of), **given)
    return PartPacker(open_store(store), settings).pack(directory, **again)
