"""Wide attributes of edges and of their reverse lie in one array, on disk and in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import gnnstore
from gnnstore import GraphStore, NeighborLoader
from gnnstore.converters import ConvertOptions, HeteroGraphWriter, add_order
from gnnstore.converters.inputs.source import MemoryArray
from gnnstore.converters.typed.reverse import ReversedEdges
from gnnstore.converters.writer import base as graph_writer
from gnnstore.errors import CorruptStoreError
from gnnstore.features.shared_rows import SharedRows
from gnnstore.formats.base.strict_json import Fields, to_json
from gnnstore.graph.sizes import StoreSizes
from gnnstore.tools.cli import main
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.hetero import AT, CITES, TEACHES, hetero_store, make_hetero
from tests.support.stores import assert_same_files

REVERSE = ("paper", "rev_cites", "paper")
OPTIONS: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 3}
WAYS: list[dict[str, Any]] = [
    {"strategy": "memory"},
    {"strategy": "mmap"},
    {"strategy": "direct", "io_engine": "pread", "edge_ids": "store"},
    {"strategy": "belady", "cache_bytes": "1kB", "superbatch": 3, "topology": "disk"},
    {"strategy": "packed", "cache_bytes": "1kB", "superbatch": 2},
]


def wide_data(*, sort: bool) -> HeteroData:
    data = make_hetero(sort=sort, degrees={CITES: 5, TEACHES: 2, AT: 4})
    rng = torch.Generator().manual_seed(1)
    data[CITES].wide = torch.rand(data[CITES].num_edges, 40, generator=rng)
    return data


# If edges come in the order of columns, ids are positions, and need not be kept twice.
@pytest.fixture(scope="module", params=choose([False], [False, True]), ids=str)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    data = wide_data(sort=request.param)
    path = tmp_path_factory.mktemp("shared") / "s.gnn"
    edge_ids: dict[str, Any] = {"edge_ids": False} if request.param else {}
    return data, hetero_store(path, data, reverse="all", time_attr=["edge_time"], **edge_ids)


def test_rows_lie_once(made: tuple[HeteroData, GraphStore]) -> None:
    data, store = made
    edge = store.schema.edge_of(REVERSE)
    assert edge.shared == {"wide": "edges/paper__cites__paper/attrs/wide"}
    assert edge.shared_row is not None
    assert (edge.shared_row == edge.edge_id) == (store.schema.edge_of(CITES).edge_id is None)
    files = {path.name for path in (store.path / "edges/paper__rev_cites__paper/attrs").iterdir()}
    assert {"w", "edge_attr", "edge_time"} <= files
    assert "wide" not in files
    sizes = StoreSizes.from_schema(store.schema)
    assert sum(table.row_bytes == 160 for table in sizes.tables) == 1
    document = json.loads((store.path / "zarr.json").read_text())["attributes"]["gnnstore"]
    assert document["reader_features"] == ["shared-attributes"]
    # What reads whole arrays, or some rows, finds the reverse's own order.
    found = store.to_pyg()
    by_position = store.schema.edge_of(CITES).edge_id is None
    if not by_position:
        for name in ("wide", "w", "edge_attr", "edge_time"):
            assert torch.equal(found[REVERSE][name], data[CITES][name])
        assert torch.equal(store[REVERSE].wide[torch.arange(9)], data[CITES].wide[:9])
    assert torch.equal(found[REVERSE].wide, found[CITES].wide)
    assert torch.equal(found[REVERSE].edge_index.flip(0), found[CITES].edge_index)
    assert not list(store.reader.meaningless())
    assert main(["verify", str(store.path), "--level", "full"]) == 0
    assert main(["inspect", str(store.path), "--stats"]) == 0


@pytest.mark.parametrize("made", choose([False], [False, True]), indirect=True)
def test_every_way_gives_the_same_batches(
    made: tuple[HeteroData, GraphStore], tmp_path: Path
) -> None:
    _, store = made
    wide = store.to_pyg()[REVERSE].wide
    num_compared = 0
    expected: list[Any] = []
    for way in WAYS[:: choose(2, 1)]:
        loader = NeighborLoader(store.path, [3, 2], ("paper", "train"), **way, **OPTIONS)
        batches: list[Any] = batches_of(loader, 2)
        if way.get("edge_ids"):
            for batch, other in zip(batches, expected, strict=True):
                assert torch.equal(batch[REVERSE]["wide"], other[REVERSE]["wide"])
            continue
        for batch in batches:
            assert torch.equal(batch[REVERSE]["wide"], wide[batch[REVERSE]["e_id"]])
            num_compared += len(batch[REVERSE]["e_id"])
        expected = expected or batches
        assert_same_batches(batches, expected)
        tables = loader._sources.tables
        shared = tables["edges/paper__rev_cites__paper/attrs/wide"]
        assert isinstance(shared, SharedRows)
        assert shared.table is tables["edges/paper__cites__paper/attrs/wide"]
    assert num_compared > 1000
    words = ["--output", str(tmp_path / "p"), "--num-neighbors", "3,2", "--batch-size", "7"]
    words += ["--seed", "3", "--epochs", "2", "--input-nodes", "paper:train", "--quiet"]
    assert main(["pack", str(store.path), *words]) == 0
    assert_same_batches(batches_of(gnnstore.open_packed(tmp_path / "p").loader(), 2), expected)


def test_an_order_can_be_added(tmp_path: Path) -> None:
    store = hetero_store(tmp_path / "s.gnn", wide_data(sort=False), reverse="cites")
    wide, shared = store[REVERSE].wide.tensor(), store.schema.edge_of(REVERSE).shared
    more = gnnstore.open(add_order(store.path, time_attr="edge_time", weight_attr="w"))
    assert more.schema.edge_of(REVERSE).shared == shared
    assert torch.equal(more[REVERSE].wide.tensor(), wide)


def test_damaged_places_are_found(tmp_path: Path) -> None:
    store = hetero_store(tmp_path / "s.gnn", wide_data(sort=False), reverse="cites")
    edge = store.schema.edge_of(REVERSE)
    assert edge.shared_row is not None
    (file,) = store.reader.paged(edge.shared_row).file_paths
    content = bytearray(file.read_bytes())
    content[4:8] = np.int32(edge.num_edges).tobytes()
    file.write_bytes(content)
    problems = [str(found) for found in gnnstore.open(store.path).reader.meaningless()]
    assert any(f"entry 1 is row {edge.num_edges}, outside" in text for text in problems)


def test_a_schema_that_shares_what_is_not_alike(tmp_path: Path) -> None:
    store = hetero_store(tmp_path / "s.gnn", wide_data(sort=False), reverse="cites")
    document = json.loads(json.dumps(to_json(store.schema)))
    edge = next(own for own in document["edge_types"] if own["relation"] == "rev_cites")
    edge["shared"]["wide"] = "edges/paper__cites__paper/attrs/edge_attr"
    with pytest.raises(CorruptStoreError, match=r"'wide' of .* shares the rows of"):
        type(store.schema).from_json(Fields(document, "zarr.json"))


def test_an_interrupted_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reverse type was finished: it is taken as it is, with what it shares."""
    data = wide_data(sort=False)

    def convert(name: str, **options: Any) -> Path:
        with HeteroGraphWriter(
            tmp_path / name,
            {"paper": data["paper"].num_nodes},
            kind="test",
            source={"parameters": {}},
            options=ConvertOptions(reverse=("cites",), **options),
        ) as writer:
            wide = MemoryArray("wide", data[CITES].wide.numpy())
            pairs = [tuple(data[CITES].edge_index.numpy())]
            writer.read_edges(CITES, pairs, attributes={"wide": wide}, where="edges")
            return writer.commit()

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    whole = convert("whole.gnn")
    with monkeypatch.context() as patched:
        patched.setattr(graph_writer, "add_orders", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert("a.gnn")
    monkeypatch.setattr(ReversedEdges, "chunks", interrupt)
    assert_same_files(convert("a.gnn", resume=True), whole)
