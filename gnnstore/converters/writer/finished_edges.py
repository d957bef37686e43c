"""An adjacency that an interrupted conversion had finished: taken as it is.

Sorting the edges is most of a conversion's work, and features, splits and the commit may
still be interrupted after it. So the journal knows when the adjacency is whole, and a later
attempt neither reads the edges nor sorts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.pages import PageGeometry, ShardLayout, plan_shards
from gnnstore.formats.arrays.zarr_metadata import shard_name
from gnnstore.formats.container.regular_files import open_binary
from gnnstore.formats.store.schema import AttributeSpec, EdgeTypeSpec
from gnnstore.formats.store.writer import StoreWriter

_STEP_NODES = 2**20  # degrees that are told at a time: 8 MiB of pointers


@dataclass(frozen=True)
class FinishedEdges:
    """An adjacency that lies in the store already.

    Attributes
    ----------
    spec : EdgeTypeSpec
        What was written.
    num_nodes : int
        N.
    """

    spec: EdgeTypeSpec
    num_nodes: int
    _pointers: _Pointers

    def degrees(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the number of in-neighbours of the next nodes, int64 [k], until all N came."""
        latest = np.empty(0, np.int64)
        for pointers in self._pointers.pieces():
            latest = np.concatenate([latest[-1:], pointers])
            yield np.diff(latest)


@dataclass(frozen=True)
class _Pointers:
    """`indptr` in its shards, whose bodies are plain int64: 8 bytes fill any page."""

    layout: ShardLayout
    files: tuple[Path, ...]

    def pieces(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the pointers in order; read, since what is mapped would count as memory."""
        for number, path in enumerate(self.files):
            left = self.layout.shard_num_rows(number)
            with open_binary(path, error=CorruptStoreError, root=path.parent) as file:
                while left:
                    pointers = np.fromfile(file, "<i8", min(left, _STEP_NODES))
                    yield pointers
                    left -= len(pointers)


def record_edges(store: StoreWriter, spec: EdgeTypeSpec, num_nodes: int) -> None:
    """Write down that an adjacency is whole and durable."""
    store.journal.record_edges({"num_nodes": num_nodes, "spec": asdict(spec)})


def take_up_edges(store: StoreWriter) -> FinishedEdges | None:
    """Take an adjacency into the store that an earlier attempt finished; None if none did.

    Its shards are compared with their checksums. If one is damaged, the adjacency is to be
    built again.
    """
    record = store.journal.edges()
    if record is None:
        return None
    spec = _decode(record["spec"])
    arrays = [spec.indptr, spec.indices, *spec.attributes.values()]
    if spec.edge_id is not None:
        arrays.append(spec.edge_id)
    if not all(_is_whole(store, array) for array in arrays):
        return None
    for array in arrays:
        writer = store.paged(
            array.path,
            name=array.name,
            row_shape=array.shape[1:],
            dtype=array.dtype,
            num_rows=array.num_rows,
            cat_dim=array.cat_dim,
        )
        writer.skip(array.num_rows)
        writer.close()
    _remove_runs(store)
    layout = _layout(store, spec.indptr)
    directory = store.temporary_path / spec.indptr.path
    files = tuple(directory / shard_name(number, 0) for number in range(layout.num_shards))
    return FinishedEdges(spec, record["num_nodes"], _Pointers(layout, files))


def _layout(store: StoreWriter, spec: AttributeSpec) -> ShardLayout:
    row_bytes = STORAGE_DTYPES[spec.dtype].itemsize * math.prod(spec.shape[1:])
    geometry = PageGeometry(row_bytes, store.page_bytes)
    return plan_shards(geometry, spec.num_rows, store.shard_bytes)


def _is_whole(store: StoreWriter, spec: AttributeSpec) -> bool:
    layout = _layout(store, spec)
    return len(store.journal.committed_shards(spec, layout)) == layout.num_shards


def _remove_runs(store: StoreWriter) -> None:
    """Delete the runs that the adjacency was made of, if a crash came before that."""
    runs = store.journal.runs()
    store.journal.forget_runs()
    for run in runs:
        for file in run["files"]:
            Path(file).unlink(missing_ok=True)


def _decode(document: Mapping[str, Any]) -> EdgeTypeSpec:
    attributes = {name: _decode_array(array) for name, array in document["attributes"].items()}
    edge_id = document["edge_id"]
    return EdgeTypeSpec(
        source=document["source"],
        relation=document["relation"],
        target=document["target"],
        num_edges=document["num_edges"],
        indptr=_decode_array(document["indptr"]),
        indices=_decode_array(document["indices"]),
        edge_id=None if edge_id is None else _decode_array(edge_id),
        attributes=attributes,
    )


def _decode_array(document: Mapping[str, Any]) -> AttributeSpec:
    return AttributeSpec(**{**document, "shape": tuple(document["shape"])})
