"""Stores of parts, `gnnstore assign --closure full`: batches are those of the whole store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gnnstore
from gnnstore import GraphStore, NeighborLoader, UsageError
from gnnstore.converters import ConvertOptions, reorder
from gnnstore.formats import StoreReader
from gnnstore.formats.assignments import AssignmentReader
from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig
from gnnstore.testing.graphs import random_graph, write_store
from gnnstore.tools.cli import main
from tests.support.effort import choose

K, HOPS = 3, 2


def parts_of(path: Path, num_parts: int, num_hops: int) -> list[GraphStore]:
    """Write the parts of a store next to it, and open them."""
    output = path.parent / f"parts-{num_parts}-{num_hops}"
    sizes = ("--parts", str(num_parts), "--hops", str(num_hops), "--name", output.name)
    words = ("assign", str(path), *sizes, "--closure", "full", "--output", str(output), "-q")
    assert main(list(words)) == 0
    return [gnnstore.open(output / f"part-{part}.gnn") for part in range(num_parts)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """Write a graph with parallel edges, loops and hubs, times and weights, and names."""
    rng = np.random.default_rng(7)
    graph = random_graph(200, 900, seed=6, feature_dim=3, num_classes=4, skew=1.6)
    path = write_store(
        tmp_path_factory.mktemp("parts") / "s.gnn",
        graph.edge_index,
        num_nodes=200,
        splits={"train": rng.permutation(200)[:80], "valid": np.arange(9)},
        options=ConvertOptions(time_attr=("time", "edge_time"), weight_attr=("edge_w",)),
        **graph.attributes,
        time=rng.integers(0, 50, 200),
        edge_time=rng.integers(0, 50, 900),
        edge_w=rng.random(900) * (rng.random(900) < 0.8),
        edge_attr=rng.random((900, 2), np.float32),
    )
    return gnnstore.open(path)


@pytest.fixture(scope="module")
def parts(whole: GraphStore) -> list[GraphStore]:
    return parts_of(whole.path, K, HOPS)


def in_lists(store: GraphStore) -> list[list[tuple[int, int]]]:
    """Return the in-neighbours of each node, with the edges' ids."""
    csc, edge = store.topology().columns(), store.schema.edge
    ids = range(csc.num_edges) if edge.edge_id is None else store.reader.read(edge.edge_id).tolist()
    edges = list(zip(csc.indices.tolist(), ids, strict=True))
    return [edges[begin:end] for begin, end in pairwise(csc.indptr.tolist())]


def check_lists(whole: GraphStore, own: GraphStore, seeds: set[int], num_hops: int) -> None:
    """P2: lists within L - 1 hops are whole and in order, others empty, and no node is missing."""
    lists, ids = in_lists(whole), own.whole_ids
    assert ids is not None
    whole_lists, nodes = set[int](), set(seeds)
    for _ in range(num_hops):
        whole_lists = set(nodes)
        nodes |= {source for node in whole_lists for source, _ in lists[node]}
    assert ids.tolist() == sorted(nodes)
    found = [[(int(ids[source]), edge) for source, edge in each] for each in in_lists(own)]
    assert found == [lists[node] if node in whole_lists else [] for node in ids.tolist()]


def assert_same(
    part: GraphStore, whole: GraphStore, fanouts: list[int], way: Any = None, **options: Any
) -> None:
    """P3: a loader on a part has the batches of one on the whole store with the same seeds."""
    ids = part.whole_ids
    assert ids is not None
    given: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 5, "num_threads": 0}
    given |= {"strategy": "memory"} | options
    seeds = torch.from_numpy(ids[part.splits["train"].numpy()])
    if "time_attr" in options:
        given["input_time"] = torch.arange(len(seeds)) % 50
    of_part = NeighborLoader(part, fanouts, "train", **given | (way or {}))
    of_whole = NeighborLoader(whole, fanouts, seeds, **given)
    for epoch in range(2):
        for found, expected in zip(of_part, of_whole, strict=True):
            found.n_id = torch.from_numpy(ids[found.n_id.numpy()])
            assert found.keys() == expected.keys(), epoch
            for name, value in expected.to_dict().items():
                if isinstance(value, torch.Tensor):
                    assert value.dtype == found[name].dtype or name == "n_id", name
                    assert torch.equal(value.to(found[name].dtype), found[name]), name
                else:
                    assert value == found[name], name


ON_DISK = {"strategy": "direct", "topology": "disk"}


@pytest.mark.parametrize(
    ("options", "way"),
    [
        ({}, {"strategy": "mmap"}),
        ({"replace": True}, {"num_threads": 3}),
        ({"disjoint": True}, ON_DISK),
        ({"subgraph_type": "bidirectional"}, {}),
        ({"time_attr": "time"}, {"strategy": "belady", "cache_bytes": "1kB", "superbatch": 2}),
        ({"time_attr": "edge_time", "temporal_strategy": "last"}, ON_DISK),
        ({"weight_attr": "edge_w"}, ON_DISK),
    ],
    ids=str,
)
def test_batches_of_a_part_are_those_of_the_whole_store(
    whole: GraphStore, parts: list[GraphStore], options: dict[str, Any], way: dict[str, Any]
) -> None:
    for part in parts[-choose(1, K) :]:
        assert_same(part, whole, [3, 2], way, **options)
    assert_same(parts[0], whole, [2], **options)


def test_a_part_has_what_its_seeds_need(whole: GraphStore, parts: list[GraphStore]) -> None:
    """P5: its seeds alone are a split, in their order; rows, ids and names are those of nodes."""
    numbers = AssignmentReader.open(whole.path / "assignments" / f"parts-{K}-{HOPS}").parts()
    train = whole.splits["train"].numpy()
    for number, part in enumerate(parts):
        ids, own = part.whole_ids, train[numbers == number]
        assert ids is not None
        assert list(part.splits) == ["train"]
        assert ids[part.splits["train"].numpy()].tolist() == own.tolist()
        check_lists(whole, part, set(own.tolist()), HOPS)
        assert part.original_ids is not None
        assert part.original_ids.tolist() == ids.tolist()
        assert part.ids_of(own).tolist() == part.splits["train"].tolist()
        about = part.schema.part
        assert about is not None
        assert (about.store_uuid, about.num_nodes) == (whole.reader.uuid, 200)
        assert (about.part, about.num_parts, about.num_hops, about.split) == (number, K, 2, "train")
        assert part.reader.manifest.reader_features == ("whole-ids",)


def test_local_ids_give_other_batches(whole: GraphStore, parts: list[GraphStore]) -> None:
    """The map is needed: without it draws would follow the part's own ids."""
    part = parts[0]
    config, seeds = SamplingConfig((2, 2), seed=5), part.splits["train"].numpy()
    ids = part.whole_ids
    assert ids is not None
    mapped = part.topology().sampler(config, "int64").sample(seeds, epoch=0, batch=0)
    plain = NeighborSampler(part.topology().columns(), config).sample(seeds, epoch=0, batch=0)
    expected = whole.topology().sampler(config, "int64").sample(ids[seeds], epoch=0, batch=0)
    assert ids[mapped.n_id].tolist() == expected.n_id.tolist()
    assert ids[plain.n_id].tolist() != expected.n_id.tolist()


def test_what_a_part_cannot_do_is_refused(parts: list[GraphStore], tmp_path: Path) -> None:
    part = parts[1]
    seeds = part.splits["train"]
    assert len(NeighborLoader(part, [2], seeds[:5])) == 5

    def refused(match: str, *given: Any, **options: Any) -> None:
        with pytest.raises(UsageError, match=match):
            NeighborLoader(part, *given, **options)

    mirror = next(n for n in range(part.num_nodes) if n not in seeds.tolist())
    refused("within 2 hops, and these are 3 fan-outs: give at most 2", [2, 2, 2], "train")
    refused("subgraph_type='induced' would miss edges", [2], "train", subgraph_type="induced")
    refused("of the input_nodes, such as node", [2], None)
    refused(f"1 of the input_nodes, such as node {mirror}, are not among its seeds", [2], [mirror])
    with pytest.raises(UsageError, match="while LinkNeighborLoader needs a graph of its own"):
        gnnstore.LinkNeighborLoader(part, [2])
    with pytest.raises(UsageError, match="while layer-wise inference needs a graph of its own"):
        gnnstore.inference(torch.nn.Sequential(), part)
    for words in (
        ("reorder", str(tmp_path / "r.gnn")),
        ("split-edges", str(tmp_path / "r.gnn")),
        ("partition", "-p", "2"),
        ("convert", "kronecker"),
        ("assign", "--parts", "2", "--hops", "1", "--closure", "full", "--output", str(tmp_path)),
    ):
        place = [str(part.path), *(["r.gnn", "--factor", "2"] if words[0] == "convert" else [])]
        if words[0] == "convert":
            place[1] = str(tmp_path / "r.gnn")
            assert main([*words, *place, "-q"]) == 2
        else:
            assert main([words[0], *place, *words[1:], "-q"]) == 2, words
    assert not list(tmp_path.iterdir())


def test_ids_of_a_reordered_store_are_kept(whole: GraphStore, tmp_path: Path) -> None:
    """`e_id` is that of the whole store, and ids lead on to the original data."""
    path = reorder(whole.path, tmp_path / "r.gnn")
    changed = gnnstore.open(path)
    (part,) = parts_of(path, 1, 2)
    assert_same(part, changed, [3, 2])
    ids, edges = part.whole_ids, part.schema.edge
    assert ids is not None
    assert edges.edge_id is not None
    assert changed.original_ids is not None
    assert part.original_ids is not None
    assert changed.original_edge_ids is not None
    assert part.original_edge_ids is not None
    assert part.original_ids.tolist() == changed.original_ids[ids].tolist()
    positions = torch.from_numpy(part.reader.read(edges.edge_id).astype(np.int64))
    expected = changed.original_edge_ids[positions]
    assert part.original_edge_ids[torch.arange(part.num_edges)].tolist() == expected.tolist()


def graphs(draw: Any) -> tuple[int, npt.NDArray[np.int64], list[int]]:
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=30))
    seeds = draw(st.lists(node, min_size=1, unique=True))
    return num_nodes, np.array(edges, np.int64).reshape(-1, 2).T, seeds


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("drawn")
    return (base / f"{number}" / "s.gnn" for number in range(10**6))


@settings(
    max_examples=choose(1, 6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_graph(data: st.DataObject, places: Iterator[Path]) -> None:
    """P2, P3 and P8: loops, parallel edges, isolated seeds, one part, one hop."""
    num_nodes, edges, seeds = graphs(data.draw)
    num_parts, num_hops = data.draw(st.integers(1, len(seeds))), data.draw(st.integers(1, 3))
    path = next(places)
    path.parent.mkdir()
    store = write_store(path, edges, num_nodes=num_nodes, splits={"train": np.array(seeds)})
    whole = gnnstore.open(store)
    found: list[int] = []
    for part in parts_of(path, num_parts, num_hops):
        ids = part.whole_ids
        assert ids is not None
        own = ids[part.splits["train"].numpy()].tolist()
        check_lists(whole, part, set(own), num_hops)
        assert_same(part, whole, [2] * num_hops, replace=data.draw(st.booleans()))
        found += own
    assert sorted(found) == sorted(seeds)
    assert not list(StoreReader.open(path).path.glob("part-*"))
