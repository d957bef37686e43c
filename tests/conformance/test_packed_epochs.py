"""Packed epochs: the batches of every other loader, read back, with the store or without."""

from __future__ import annotations

import itertools
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.converters import ConvertOptions
from gnnstore.errors import BudgetError, NotFoundError, UsageError
from gnnstore.pipeline.check import LEVELS, verify
from gnnstore.strategies import placement
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.graphs import E, N, graph_of_three_tables
from tests.support.packing import pack
from tests.support.references import (
    BATCHES,
    EPOCHS,
    OPTIONS,
    add_one,
    batches_in_memory,
    keep_half,
    loader_of_packed,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store with packed epochs named "base"."""
    path = graph_of_three_tables().write(tmp_path_factory.mktemp("plans") / "s.gnn")
    pack(path, [4, 4])
    return path


@pytest.fixture(scope="module", params=[None, 3], ids=["batches", "segments"])
def base(
    path: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return packed epochs whose batches have rows of their own, or share those on disk."""
    if request.param is None:
        return path / "plans" / "base"
    return pack(path, [4, 4], output=tmp_path_factory.mktemp("s") / "base", segment=request.param)


# --- equal batches -------------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", choose([0, 3], [0, 1, 3]))
def test_batches_are_the_same(path: Path, base: Path, expected: Batches, num_threads: int) -> None:
    loader = loader_of_packed(path, base, num_threads=num_threads)
    assert_same_batches(batches_of(loader, EPOCHS), expected)
    stats = loader.stats()
    assert (stats.strategy, stats.cache, stats.topology_reads) == ("packed", "belady", 0)
    assert stats.rows_read > 0
    assert stats.rows_cached > 0
    if path in base.parents:
        assert stats.bytes_read < 1.3 * stats.bytes_useful + BATCHES * EPOCHS * 2 * 4096
    alone = gnnstore.open_packed(base).loader(num_threads=num_threads)
    assert len(alone) == BATCHES
    assert_same_batches(batches_of(alone, EPOCHS), expected)


def test_engines(path: Path, base: Path, expected: Batches, engine: str) -> None:
    loader = loader_of_packed(path, base, io_engine=engine)
    assert loader.stats().io_engine == engine
    assert_same_batches(batches_of(loader), expected[:BATCHES])


WAYS: list[tuple[list[int], dict[str, Any]]] = choose(
    [
        ([5, -1], {"replace": True, "disjoint": True}),
        ([4, 2], {"subgraph_type": "bidirectional"}),
        ([4, 2], {"subgraph_type": "induced", "drop_last": True, "batch_size": 70}),
    ],
    [
        ([5, -1], {}),
        ([3, 3, 3], {"replace": True}),
        ([4, 2], {"disjoint": True}),
        ([4, 2], {"subgraph_type": "bidirectional"}),
        ([4, 2], {"subgraph_type": "induced"}),
        ([4], {"drop_last": True, "batch_size": 70}),
        ([-1], {}),
        ([4], {"shuffle": False}),
        ([], {}),
    ],
)


@pytest.mark.parametrize(("way", "segment"), paired(WAYS, [None, 3], 1), ids=str)
def test_ways_of_sampling(
    path: Path, tmp_path: Path, way: tuple[list[int], dict[str, Any]], segment: int | None
) -> None:
    fanouts, sampling = way
    seeds = np.arange(0, N, 5)
    packed = pack(path, fanouts, seeds, output=tmp_path / "packed", segment=segment, **sampling)
    options = OPTIONS | sampling
    plain = batches_of(NeighborLoader(path, fanouts, seeds, strategy="memory", **options), 2)
    found = NeighborLoader(path, fanouts, seeds, packed=packed, **options)
    assert_same_batches(batches_of(found, 2), plain)
    moved = packed.rename(tmp_path / "moved")
    assert_same_batches(batches_of(gnnstore.open_packed(moved).loader(), 2), plain)


@pytest.mark.parametrize(
    ("width", "dtype", "segment"),
    [
        (100, "int8", 4),
        *choose((), ((768, "bfloat16", None), (100, "float16", None), (1100, "float32", 4))),
    ],
)
def test_element_types_and_widths(
    tmp_path: Path, width: int, dtype: str, segment: int | None
) -> None:
    rows = np.random.default_rng(1).standard_normal((N, width)).astype(np.float32)
    options = ConvertOptions(
        feature_dtype=dtype, feature_scale="column" if dtype == "int8" else None
    )
    path = graph_of_three_tables(x=rows).write(tmp_path / "s.gnn", options=options)
    seeds = np.arange(0, N, 5)
    packed = pack(path, [4, 4], seeds, segment=segment)
    plain = batches_of(NeighborLoader(path, [4, 4], seeds, strategy="memory", **OPTIONS), 2)
    assert str(plain[0]["x"].dtype) == f"torch.{'float32' if dtype == 'int8' else dtype}"
    assert_same_batches(batches_of(loader_of_packed(path, input_nodes=seeds), 2), plain)
    moved = packed.rename(tmp_path / "moved")
    shutil.rmtree(path)
    assert_same_batches(batches_of(gnnstore.open_packed(moved).loader(), 2), plain)


@pytest.mark.parametrize(
    "graph",
    [
        GraphArrays(N, random_graph(N, E, seed=1).edge_index),
        random_graph(N, E, seed=1, num_classes=3),
        random_graph(N, 0, seed=1, feature_dim=100),
    ],
    ids=["no attributes", "labels only", "no edges"],
)
def test_graphs_with_little(tmp_path: Path, graph: GraphArrays) -> None:
    path = graph.write(tmp_path / "s.gnn")
    pack(path, [3], None, batch_size=200)
    options = OPTIONS | {"batch_size": 200}
    plain = batches_of(NeighborLoader(path, [3], strategy="memory", **options), 2)
    assert_same_batches(batches_of(NeighborLoader(path, [3], packed="base", **options), 2), plain)


@pytest.mark.filterwarnings("ignore:edge_index of these batches is of int32:UserWarning")
def test_attributes_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow rows are packed or held, compressed ones stand in the records; ids may be int32."""
    rng = np.random.default_rng(2)
    graph = graph_of_three_tables(
        year=rng.integers(1990, 2020, (N, 2)),
        flag=rng.random(N) < 0.5,
        edge_weight=rng.random(E),
        cube=rng.random((N, 3, 7)),
    )
    options = ConvertOptions(index_dtype="int32")
    path = graph.write(tmp_path / "s.gnn", options=options)
    plain = batches_in_memory(path)
    for held_bytes in choose((0,), (placement.HELD_ROW_BYTES, 0)):
        monkeypatch.setattr(placement, "HELD_ROW_BYTES", held_bytes)
        packed = pack(path, [4, 4], output=tmp_path / f"plan-{held_bytes}")
        manifest = gnnstore.open_packed(packed).reader.manifest
        assert ("nodes/node/year" in manifest.cached) == (held_bytes == 0)
        assert_same_batches(batches_of(loader_of_packed(path, packed=packed), 2), plain)
    with pytest.warns(UserWarning, match='Convert with index_dtype="int64"') as found:
        gnnstore.open_packed(packed).loader()
    assert [each.filename for each in found] == [__file__]


@pytest.mark.parametrize(
    ("superbatch", "cache_bytes"),
    paired(choose([BATCHES, 100], [1, BATCHES, 100]), [0, "1GB", "20kB"], 1),
)
def test_sizes(
    path: Path, tmp_path: Path, expected: Batches, superbatch: int, cache_bytes: Any
) -> None:
    packed = pack(
        path, [4, 4], output=tmp_path / "p", superbatch=superbatch, cache_bytes=cache_bytes
    )
    manifest = gnnstore.open_packed(packed).reader.manifest
    assert manifest.superbatch == min(superbatch, BATCHES)
    assert (manifest.num_slots == 0) == (cache_bytes == 0)
    loader = loader_of_packed(path, packed=packed)
    assert_same_batches(batches_of(loader, EPOCHS), expected)
    loader.set_epoch(1)
    assert_same_batches(batches_of(loader), expected[BATCHES:])


@pytest.mark.parametrize("num_threads", choose([3], [1, 3]))
def test_topology_on_disk(path: Path, tmp_path: Path, expected: Batches, num_threads: int) -> None:
    """Where the graph lies while it is packed, and what subgraphs wait in, makes no difference."""
    packed = pack(
        path,
        [4, 4],
        output=tmp_path / "packed",
        topology="disk",
        memory="90MB",
        num_threads=num_threads,
    )
    assert_same_batches(batches_of(loader_of_packed(path, packed=packed), EPOCHS), expected)


def test_the_number_of_files_is_bounded(path: Path, tmp_path: Path) -> None:
    def num_files(**settings: Any) -> int:
        packed = pack(path, [2], output=tmp_path / str(settings["epochs"]), **settings)
        return sum(1 for file in packed.rglob("*") if file.is_file())

    assert num_files(epochs=1, superbatch=12) == num_files(epochs=2, superbatch=choose(4, 1)) <= 14


# --- where an iteration begins and ends ----------------------------------------------------


@pytest.mark.parametrize("num_taken", choose([5, BATCHES], [0, 5, BATCHES - 1, BATCHES]))
def test_states(path: Path, base: Path, expected: Batches, num_taken: int) -> None:
    """A state of any loader is one of any other, and an iteration may begin in the middle."""
    makers: list[Any] = [
        lambda: loader_of_packed(path, base, num_threads=0),
        lambda: gnnstore.open_packed(base).loader(num_threads=2),
        lambda: NeighborLoader(path, [4, 4], "train", strategy="mmap", **OPTIONS),
    ]
    for first, second in paired(makers, makers[:2], 1):
        loader = first()
        taken = [batch.to_dict() for batch in itertools.islice(loader, num_taken)]
        assert_same_batches(taken, expected[:num_taken])
        other = second()
        other.load_state_dict(loader.state_dict())
        assert_same_batches(batches_of(other), expected[num_taken:BATCHES])
        if num_taken in {5, BATCHES}:
            assert_same_batches(batches_of(other), expected[BATCHES:])


@pytest.mark.parametrize("num_threads", [0, 2])
def test_iterations_side_by_side_and_left(path: Path, expected: Batches, num_threads: int) -> None:
    loader = loader_of_packed(path, num_threads=num_threads)
    pairs = [(a.to_dict(), b.to_dict()) for a, b in zip(loader, loader, strict=True)]
    assert_same_batches([a for a, _ in pairs], expected[:BATCHES])
    assert_same_batches([b for _, b in pairs], expected[BATCHES:])
    loader.set_epoch(0)
    for _ in itertools.islice(loader, 3):
        pass
    assert_same_batches(batches_of(loader), expected[BATCHES:])


def test_epochs_that_are_not_packed(path: Path, expected: Batches) -> None:
    loader = loader_of_packed(path)
    batches_of(loader, EPOCHS)
    with pytest.raises(
        UsageError, match=r"2 epochs are packed, 0 to 1, and this is epoch 2.*set_epoch\(0\)"
    ):
        next(iter(loader))
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), expected[:BATCHES])


def test_a_loader_crosses_into_a_process(path: Path, expected: Batches) -> None:
    copied = pickle.loads(pickle.dumps(loader_of_packed(path)))  # noqa: S301 - our own bytes
    assert_same_batches(batches_of(copied), expected[:BATCHES])
    packed = pickle.loads(pickle.dumps(gnnstore.open_packed(path / "plans" / "base")))  # noqa: S301
    assert_same_batches(batches_of(packed.loader(memory="40MB", num_threads=1)), expected[:BATCHES])


def test_a_state_of_another_seed_is_refused(path: Path) -> None:
    """The batches that follow would not be those of the run."""
    other = loader_of_packed(path, seed=4, packed=None)
    with pytest.raises(UsageError, match="seed: expected 3, found 4"):
        loader_of_packed(path, seed=None).load_state_dict(other.state_dict())


def test_the_seed_is_that_of_packing(path: Path, expected: Batches) -> None:
    torch.manual_seed(99)
    loader = loader_of_packed(path, seed=None)
    assert loader.seed == 3
    assert_same_batches(batches_of(loader), expected[:BATCHES])


def test_transforms(path: Path) -> None:
    def note(data: Any) -> Any:
        data.sum = data.x.sum()
        return data

    options: dict[str, Any] = {"transform_sampler_output": keep_half, "transform": note}
    assert_same_batches(
        batches_of(loader_of_packed(path, **options), 2), batches_in_memory(path, **options)
    )
    with pytest.raises(UsageError, match="no nodes for transform_sampler_output to add"):
        next(iter(loader_of_packed(path, transform_sampler_output=add_one)))


# --- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_neighbors": [4, 5]}, "num_neighbors: expected [4, 5], found [4, 4]"),
        ({"num_neighbors": [4]}, "num_neighbors: expected [4], found [4, 4]"),
        ({"seed": 4}, "seed: expected 4, found 3"),
        ({"batch_size": 40}, "batch_size: expected 40, found 50"),
        ({"shuffle": False}, "shuffle: expected False, found True"),
        ({"drop_last": True}, "drop_last: expected True, found False"),
        ({"replace": True}, "replace: expected True, found False"),
        ({"disjoint": True}, "disjoint: expected True, found False"),
        ({"subgraph_type": "induced"}, "subgraph_type: expected 'induced', found 'directional'"),
        ({"input_nodes": "valid"}, "number of input_nodes: expected 200, found 600"),
        ({"input_nodes": np.arange(600)}, "crc32c of input_nodes"),
        ({"input_id": torch.arange(600) * 2}, "crc32c of input_id"),
        ({"sampler": range(600), "shuffle": False}, "sampler: expected"),
    ],
)
def test_packed_epochs_of_another_loader(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        loader_of_packed(path, **options)


def test_every_difference_is_named(path: Path) -> None:
    with pytest.raises(UsageError, match=r"num_neighbors: .*batch_size: .*seed: .*'gnnstore pack'"):
        loader_of_packed(path, num_neighbors=[1], batch_size=7, seed=8)


def test_packed_epochs_that_were_copied_from_another_store_are_found(
    path: Path, tmp_path: Path
) -> None:
    other = graph_of_three_tables(h=np.zeros((N, 30), np.float32)).write(tmp_path / "other.gnn")
    (other / "plans").mkdir()
    shutil.copy(path / "plans" / "zarr.json", other / "plans")
    packed = shutil.copytree(path / "plans" / "base", other / "plans" / "copied")
    for level in LEVELS:
        (problem,) = verify(other, level).problems
        assert problem.path == str(packed)
        assert "it belongs to the store" in problem.message


def test_packed_epochs_of_another_store(path: Path, tmp_path: Path) -> None:
    other = graph_of_three_tables(h=np.zeros((N, 30), np.float32)).write(tmp_path / "other.gnn")
    with pytest.raises(UsageError, match=r"store: expected '.*', found '"):
        loader_of_packed(other, packed=path / "plans" / "base")


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "memory"},
        {"topology": "mmap"},
        {"cache": "degree"},
        {"cache_bytes": "1MB"},
        {"superbatch": 4},
        {"spill_dir": "/tmp"},  # noqa: S108 - not used
        {"disk": "1GB"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_packing_has_decided(path: Path, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(UsageError, match=f"packed= has no use for {name}="):
        loader_of_packed(path, **options)


def test_packed_epochs_that_are_not_there(path: Path, tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"no directory of packed epochs 'other'.*'base'.*gnnstore pack"
    ):
        loader_of_packed(path, packed="other")
    with pytest.raises(NotFoundError, match="no such directory of packed epochs"):
        gnnstore.open_packed(tmp_path / "none")
    with pytest.raises(NotFoundError, match="not a gnnstore directory of packed epochs"):
        gnnstore.open_packed(tmp_path)
    with pytest.raises(gnnstore.CorruptStoreError, match="not a gnnstore directory of packed"):
        gnnstore.open_packed(path)


def test_what_packed_epochs_do_not_hold(path: Path) -> None:
    loader = loader_of_packed(path)
    with pytest.raises(UsageError, match="hold their batches and nothing else"):
        loader([0, 1])
    sampled: Any = NeighborLoader(path, [4, 4], "train", filter_per_worker=False, **OPTIONS)
    with pytest.raises(UsageError, match="no rows of 'x' by id"):
        loader.filter_fn(sampled.collate_fn([0, 1]))
    alone = gnnstore.open_packed(path / "plans" / "base").loader()
    with pytest.raises(UsageError, match="hold their batches and nothing else"):
        alone.collate_fn([0])


@pytest.mark.parametrize("memory", choose(["60MB"], ["60MB", "80MB", "200MB"]))
def test_one_budget_for_packing_and_training(
    path: Path, tmp_path: Path, expected: Batches, memory: str
) -> None:
    sizes: dict[str, Any] = {"memory": memory, "cache_bytes": None, "superbatch": None}
    packed = pack(path, [4, 4], output=tmp_path / "packed", num_threads=1, **sizes)
    assert gnnstore.open_packed(packed).reader.manifest.num_slots > 0
    loader = loader_of_packed(path, packed=packed, memory=memory)
    assert_same_batches(batches_of(loader, EPOCHS), expected)


def test_budgets(path: Path, expected: Batches) -> None:
    loader = loader_of_packed(path, memory="30MB")
    assert_same_batches(batches_of(loader, 2), expected)
    assert loader._spare_bytes is not None
    with pytest.raises(BudgetError, match=r"(?s)of cached rows.*raise memory= by at least"):
        loader_of_packed(path, memory="8.6MB", num_threads=1)
    with pytest.raises(BudgetError, match=r"(?s)of cached rows.*raise memory= by at least"):
        gnnstore.open_packed(path / "plans" / "base").loader(memory="1MB")


@pytest.mark.parametrize("is_sorted", [True, False])
def test_the_order_is_reserved_with_the_store_and_without(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_sorted: bool
) -> None:
    if not is_sorted:
        monkeypatch.setattr("gnnstore.pipeline.shuffle.MAX_SORTED", 10)

    def reserved(loader: Any) -> int:
        parts = loader._sources.placement.ledger.reservations
        return next(int(part.fixed) for part in parts if part.what == "seeds and their order")

    beside = loader_of_packed(path)
    num_seeds = len(beside._seeds)
    # Two epochs' orders and the keys of one, unless each position is computed when it is needed.
    found = reserved(gnnstore.open_packed(path / "plans" / "base").loader())
    assert found == (3 * 8 * num_seeds if is_sorted else 0)
    assert reserved(beside) == found + beside._seeds.num_bytes
