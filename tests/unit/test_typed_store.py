"""A store of several node types and edge types: what reads all of them, and what refuses them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore.caching.belady import BeladyPlanner
from gnnstore.caching.plan import Trace
from gnnstore.disk.engines import open_engine
from gnnstore.errors import UsageError
from gnnstore.features.file_rows import files_of
from gnnstore.features.pack import pack
from gnnstore.features.planned import PlanStep, SlotCache
from gnnstore.features.source import RowSource, TypedRows
from gnnstore.formats.base.names import edge_directory, node_array
from gnnstore.formats.store.store import StoreReader
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.table_registry import shared_tables
from gnnstore.sampling.compact import CompactSample, Types
from gnnstore.sampling.neighbor import EdgeSample, NeighborSampler, Sample, SamplingConfig
from gnnstore.sampling.row_space import RowSpace
from tests.support.stores import (
    CITES,
    WRITES,
    ExampleStore,
    arrays_of,
    write_example_store,
    write_two_typed_store,
)

NODES = r"3 node types \(paper, author, institution\) where exactly one was expected"
EDGES = r"2 edge types \(\('paper', 'cites', 'paper'\), \('author', .* where exactly one was expect"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ExampleStore:
    return write_two_typed_store(tmp_path_factory.mktemp("typed") / "s.gnn")


@pytest.fixture
def store(written: ExampleStore) -> gnnstore.GraphStore:
    return gnnstore.open(written.path)


def test_it_holds_what_was_written(written: ExampleStore) -> None:
    found = arrays_of(written.path)
    assert found.keys() == written.arrays.keys()
    for path, values in written.arrays.items():
        np.testing.assert_array_equal(found[path], values)
    assert not list(StoreReader.open(written.path).meaningless())


def test_types_by_name(store: gnnstore.GraphStore) -> None:
    schema = store.schema
    assert {name: schema.node_of(name).num_nodes for name in ("institution", "paper")} == {
        "institution": 20,
        "paper": 300,
    }
    assert list(schema.node_of("paper").attributes) == ["x", "y"]
    assert schema.node_of("author").attributes["x"].shape == (170, 9)
    assert schema.edge_of(WRITES).type == WRITES
    assert schema.edge_of(CITES).edge_id is not None
    x = [node_array(name, "x") for name in ("paper", "author")]
    paths = [spec.path for spec in schema.node_attributes()]
    assert paths == [x[0], node_array("paper", "y"), x[1]]
    assert [spec.name for spec in schema.edge_attributes()] == ["edge_attr"]


def test_types_that_are_not_there(store: gnnstore.GraphStore) -> None:
    there = "there are: 'paper', 'author', 'institution'"
    with pytest.raises(UsageError, match=f"no node type 'venue'; {there}"):
        store.schema.node_of("venue")
    there = r"there are: \('paper', 'cites', 'paper'\), \('author', 'writes', 'paper'\)"
    with pytest.raises(
        UsageError, match=rf"no edge type \('paper', 'writes', 'paper'\).*; {there}"
    ):
        store.schema.edge_of(("paper", "writes", "paper"))


@pytest.mark.parametrize("mode", ["memory", "mmap", "disk"])
def test_columns_of_each_type(written: ExampleStore, store: gnnstore.GraphStore, mode: Any) -> None:
    topology = store.topology(mode)
    assert tuple(topology.csc) == (CITES, WRITES)
    for edge_type, num_src in ((CITES, 300), (WRITES, 170)):
        columns, directory = topology.columns(edge_type), edge_directory(*edge_type)
        for name in ("indptr", "indices"):
            expected = written.arrays[f"{directory}/{name}"]
            np.testing.assert_array_equal(getattr(columns, name), expected)
        ids = store[edge_type].original_edge_ids
        assert (ids is None) == (edge_type == WRITES)
        if ids is not None:
            np.testing.assert_array_equal(ids[:], written.arrays[f"{directory}/edge_id"])
        assert (columns.num_nodes, columns.num_src, columns.num_edges) == (300, num_src, 1500)
    assert topology.is_slow == (mode != "memory")


def test_columns_on_disk(written: ExampleStore, store: gnnstore.GraphStore) -> None:
    topology = store.topology("disk").on_disk(store.reader, open_engine(written.path / "zarr.json"))
    assert topology.is_read
    positions = np.array([1499, 3, 3, 700])
    for edge_type in (CITES, WRITES):
        expected = written.arrays[f"{edge_directory(*edge_type)}/indices"][positions]
        np.testing.assert_array_equal(topology.rows[edge_type].fetch(positions), expected)
    assert topology.counts.rows_read == 2 * 3


def test_a_topology_of_several_types_needs_one_named(store: gnnstore.GraphStore) -> None:
    topology = store.topology("mmap")
    with pytest.raises(UsageError, match=EDGES):
        topology.columns()
    with pytest.raises(UsageError, match=r"no edge type \('a', 'b', 'c'\); there are: "):
        topology.columns(("a", "b", "c"))


def test_the_only_type_needs_no_name(tmp_path: Path) -> None:
    topology = gnnstore.open(write_example_store(tmp_path / "s.gnn").path).topology()
    assert topology.columns() is topology.columns(("node", "to", "node"))


def test_sizes_are_of_all_types(written: ExampleStore, store: gnnstore.GraphStore) -> None:
    sizes = StoreSizes.from_schema(store.schema)
    structure = ("indptr", "indices")
    expected = sum(
        values.nbytes for path, values in written.arrays.items() if path.endswith(structure)
    )
    assert sizes.topology_bytes == expected
    assert [(table.row_bytes, table.num_rows, table.of_nodes) for table in sizes.tables] == [
        *((100, 300, True), (36, 170, True), (12, 1500, False))
    ]
    assert sizes.compressed_bytes == 300 * 8


def test_protocols_of_pyg_by_type(written: ExampleStore, store: gnnstore.GraphStore) -> None:
    for name in ("paper", "author"):
        rows = store.get_tensor(group_name=name, attr_name="x", index=None)
        np.testing.assert_array_equal(rows.numpy(), written.arrays[node_array(name, "x")])
    with pytest.raises(KeyError, match="no tensor 'x' of 'institution'"):
        store.get_tensor(group_name="institution", attr_name="x", index=None)
    sources, begins = store.get_edge_index(edge_type=WRITES, layout="csc")
    indices = torch.from_numpy(written.arrays[f"{edge_directory(*WRITES)}/indices"])
    assert torch.equal(sources, indices.long())
    assert begins[-1] == 1500


def test_rows_of_an_opened_store_by_type(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    """Typed samples give a trace over the row space, which Belady plans and one pass packs."""
    schema = store.schema
    features = store.reader.paged(schema.node_of("paper").attributes["x"])
    engine = open_engine(features.file_paths[0], "pread")
    disk = {node_array(name, "x"): name for name in ("paper", "author")}
    space = RowSpace.of_schema(schema, disk)
    assert {name: tuple(own) for name, own in space.ranges.items()} == {
        "paper": (0, 300),
        "author": (300, 170),
    }
    tables: dict[str, TypedRows[RowSource]] = {
        path: TypedRows(
            shared_tables(store).rows_on_disk(store, schema.node_of(name).attributes["x"], engine),
            space.range_of(name),
        )
        for path, name in disk.items()
    }
    topology, draws = store.topology(), np.random.default_rng(0)
    samples: list[CompactSample] = []
    for _ in range(6):
        seeds = draws.permutation(300)[:20]
        edges = {
            kind: NeighborSampler(
                replace(topology.columns(kind), edge_type=CITES), SamplingConfig((3,))
            ).sample(seeds, epoch=0, batch=len(samples))
            for kind in (CITES, WRITES)
        }
        authors = np.unique(topology.columns(WRITES).indices[edges[WRITES].edge_pos])
        nodes = {"paper": edges[CITES].n_id, "author": authors, "institution": np.arange(20)}
        typed = Sample(
            nodes,
            {kind: EdgeSample(np.empty((2, 0), np.int64), np.empty(0, np.int64)) for kind in edges},
            None,
            None,
            None,
            len(seeds),
        )
        compact = CompactSample.from_sample(typed, np.dtype(np.int32), np.dtype(np.int32))
        types = Types.from_schema(schema)
        samples.append(CompactSample.from_shortened(compact.shortened(), types=types))
        np.testing.assert_array_equal(samples[-1].rows(space), space.rows(typed.nodes))
    trace = Trace.of([sample.rows(space) for sample in samples])
    num_slots = 40
    plan = BeladyPlanner(num_slots).plan(trace)
    assert 0 < plan.num_misses < trace.num_accesses
    slots = SlotCache(tables, num_slots, num_rows=space.num_rows)
    options: dict[str, Any] = {"memory_bytes": 1 << 25}
    with pack(files_of(tables), trace, plan, tmp_path, **options) as packed:
        for source in ("packed", "tables"):
            slots.close()
            slots = SlotCache(tables, num_slots, num_rows=space.num_rows)
            turns = slots.begin()
            for i, sample in enumerate(samples):
                step = PlanStep(trace.batch(i), plan.batch_slots(i), *plan.batch_changes(i))
                missed = packed.rows(i) if source == "packed" else None
                found = slots.gather(turns, i, step, missed)
                assert found.keys() == disk.keys()
                for path, name in disk.items():
                    expected = arrays_of(store.path)[path][sample.nodes[name]]
                    np.testing.assert_array_equal(found[path].values, expected)
