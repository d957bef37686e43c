"""Packed epochs are a Zarr hierarchy: what is in it can be read without gnnstore's readers."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from gnnstore.features.packed_rows import decode_record
from gnnstore.formats.packed import PackedReader
from gnnstore.testing.graphs import random_graph
from tests.support.packing import pack
from tests.support.twins.packing import piece_crcs

zarr = pytest.importorskip("zarr")

WIDTH = 100


def test_zarr_reads_rows_and_index(tmp_path: Path) -> None:
    graph = random_graph(1000, 8000, seed=5, feature_dim=WIDTH, num_classes=7)
    store = graph.write(tmp_path / "s.gnn")
    packed = pack(store, [4, 4], cache_bytes=0, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(str(packed), mode="r")
        names = {name for name, _ in group.members(max_depth=None)}
        assert {"index", "batches", "rows", "rows/x", "checksums"} <= names
        assert "plans/base/rows/x" in {
            name for name, _ in zarr.open_group(str(store), mode="r").members(max_depth=None)
        }
    index, rows, records = group["index"][...], group["rows/x"][...], group["batches"][...]
    assert np.array_equal(index, PackedReader.open(packed).index)
    piece_bytes = group.attrs["gnnstore_plan"]["piece_bytes"]
    for begin, num_bytes, _, num_missed, run in index:
        arrays = decode_record(records[begin : begin + num_bytes])
        # Of the step, checksums, labels, edge ids, subgraph.
        assert len(arrays) == 7 + 1 + 1 + 1 + 5
        chunk_bytes = int(num_missed) * WIDTH * 4
        assert arrays[7].dtype == np.uint32
        assert arrays[7].tolist() == piece_crcs(
            rows.tobytes(), [int(run)], [chunk_bytes], piece_bytes
        )
        found = rows[run : run + chunk_bytes].view(np.float32).reshape(-1, WIDTH)
        # Without a cache, each distinct node of the batch, in the order of the table.
        matches = (found[:, None, :3] == graph.attributes["x"][None, :, :3]).all(2)
        nodes = matches.argmax(axis=1)
        assert np.array_equal(found, graph.attributes["x"][nodes])
        assert (np.diff(nodes) > 0).all()
