"""Seeds by part: `gnnstore assign` and loaders with `seeds_of=`, against a plain reference."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.disk.engines import open_engine
from gnnstore.errors import InputError
from gnnstore.formats.assignments import part_sizes
from gnnstore.graph.store import open as open_store
from gnnstore.partitions.assign import Assigning, Neighbourhoods, PartsBuilder
from gnnstore.partitions.parts import PartsOrder
from gnnstore.pipeline.order import Position
from gnnstore.pipeline.ranks import RankShard
from gnnstore.progress import NullProgress
from gnnstore.seeds.nodes import resolve_input_nodes
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.effort import examples
from tests.support.hetero import hetero_store

Around = dict[int, set[int]]


def assign_reference(seeds: list[int], around: Around, num_parts: int) -> list[set[int]]:
    """Return the seeds of each part, by the words of the rule: sets, and fractions by floats."""
    count = len(seeds)
    members: list[set[int]] = [set() for _ in range(num_parts)]
    nodes: list[set[int]] = [set() for _ in range(num_parts)]
    for seed in seeds:
        larger = sum(len(own) > count // num_parts for own in members)

        def is_open(own: set[int], larger: int = larger) -> bool:
            full = count // num_parts
            return len(own) < full or (len(own) == full and larger < count % num_parts)

        def key(part: int, seed: int = seed) -> tuple[float, int, int, int]:
            own, size = members[part], len(nodes[part])
            left = count - num_parts * len(own)
            score = (len(own & around[seed]) + 1) * left / (size + 1)
            return (-score, len(own), size, part)

        best = min((part for part in range(num_parts) if is_open(members[part])), key=key)
        members[best].add(seed)
        nodes[best] |= around[seed]
    return sorted(members, key=lambda own: -len(own))


def parts_of(seeds: list[int], parts: npt.NDArray[Any], num_parts: int) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(num_parts)]
    for seed, part in zip(seeds, parts.tolist(), strict=True):
        found[part].add(seed)
    return found


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), num_nodes=st.integers(1, 40))
def test_every_seed_is_in_one_part_of_equal_size(data: st.DataObject, num_nodes: int) -> None:
    """P1: any order, number of parts and neighbourhoods; isolated seeds and loops among them."""
    nodes = st.integers(0, num_nodes - 1)
    seeds = data.draw(st.lists(nodes, min_size=1, unique=True))
    around = {seed: data.draw(st.sets(nodes, max_size=9)) | {seed} for seed in seeds}
    num_parts = data.draw(st.integers(1, len(seeds)))
    rows = [np.array(sorted(around[seed]), np.int64) for seed in seeds]
    bounds = np.cumsum([0, *map(len, rows)])

    builder = PartsBuilder(num_parts, len(seeds), num_nodes)
    joined = builder.join(Neighbourhoods(np.concatenate(rows), bounds), np.array(seeds))
    numbers, part_nodes = builder.larger_first()

    found = parts_of(seeds, numbers[joined], num_parts)
    assert found == assign_reference(seeds, around, num_parts)
    assert [len(own) for own in found] == part_sizes(len(seeds), num_parts).tolist()
    reached = [set[int]().union(*(around[seed] for seed in own)) for own in found]
    assert part_nodes == [len(own) for own in reached]


@pytest.fixture(scope="module")
def graph() -> GraphArrays:
    return random_graph(300, 900, seed=4, num_classes=2, feature_dim=3, skew=2.0)


@pytest.fixture(scope="module")
def path(graph: GraphArrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph.write(tmp_path_factory.mktemp("parts") / "s.gnn")


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hetero_store(tmp_path_factory.mktemp("typed") / "s.gnn").path


def work_on(path: Path, named: Any, num_parts: int, num_hops: int, **options: Any) -> Assigning:
    store = open_store(path)
    return Assigning(store, resolve_input_nodes(store, named), num_parts, num_hops, **options)


def run(work: Assigning, *, on_disk: bool = False) -> tuple[bytes, list[int]]:
    topology, bulk_bytes = work.open()
    if on_disk:
        edges = [edge for edge in work.store.schema.edge_types if edge.num_edges]
        file = work.store.reader.paged(edges[0].indices).file_paths[0]
        topology = topology.on_disk(work.store.reader, open_engine(file, "pread"))
        bulk_bytes = 2**20
    parts, part_nodes = work.run(topology, bulk_bytes, NullProgress())
    return parts.tobytes(), part_nodes


@pytest.mark.parametrize("num_hops", [1, 2])
def test_neighbourhoods_are_all_in_neighbours(
    graph: GraphArrays, path: Path, num_hops: int
) -> None:
    """Of nodes with up to 64 in-neighbours; the parts are those of the rule."""
    assert np.bincount(graph.edge_index[1]).max() <= 64
    seeds = graph.splits["train"].tolist()
    around: Around = {}
    for seed in seeds:
        reached, last = {seed}, {seed}
        for _ in range(num_hops):
            last = {int(n) for node in last for n in graph.in_neighbors(node)} - reached
            reached |= last
        around[seed] = reached
    parts, _ = run(work_on(path, "train", 7, num_hops))
    found = parts_of(seeds, np.frombuffer(parts, np.uint16), 7)
    assert found == assign_reference(seeds, around, 7)


@pytest.mark.parametrize("named", ["train", {"paper": "train", "author": None}])
def test_parts_are_the_same_on_every_machine(path: Path, typed: Path, named: Any) -> None:
    """P6: threads, and the topology in memory or on disk, with types and without."""
    where = path if named == "train" else typed
    first = run(work_on(where, named, 3, 2, seed=5))
    for num_threads, on_disk in ((8, False), (1, True), (3, True)):
        work = work_on(where, named, 3, 2, seed=5, num_threads=num_threads)
        assert run(work, on_disk=on_disk) == first


def test_a_seed_that_is_listed_twice_is_refused(path: Path) -> None:
    """A split of a store that another program wrote may have one."""
    with pytest.raises(InputError, match="list node 7 2 times, at positions 1 and 3, and a seed"):
        work_on(path, [9, 7, 3, 7], 2, 1)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_an_epoch_has_each_batch_once(data: st.DataObject) -> None:
    """P4: over all ranks, but for repeats at the end; resumed on another number of ranks."""
    num_seeds = data.draw(st.integers(1, 60))
    num_parts = data.draw(st.integers(1, min(9, num_seeds)))
    batch_size = data.draw(st.integers(1, 12))
    drop_last, shuffles = data.draw(st.booleans()), data.draw(st.booleans())
    ends = np.cumsum(part_sizes(num_seeds, num_parts))
    positions = np.random.default_rng(num_seeds).permutation(num_seeds)
    members = tuple(np.sort(own) for own in np.split(positions, ends[:-1]))

    def order(shard: RankShard) -> PartsOrder:
        return PartsOrder(num_seeds, batch_size, shuffles, drop_last, shard, members=members)

    whole = list(order(RankShard()).batches(Position(2), 11))
    assert [number for number, *_ in whole] == list(range(len(whole)))
    seen = Counter[int]()
    for number, index, _ in whole:
        assert set(index.tolist()) <= set(members[number % num_parts].tolist())
        seen.update(index.tolist())
    assert max(seen.values(), default=1) == 1
    assert drop_last or len(seen) == num_seeds
    rest = 0 if drop_last else batch_size - 1
    assert len(whole) == sum((len(own) + rest) // batch_size for own in members)
    if shuffles:
        again = list(order(RankShard()).batches(Position(3), 11))
        assert sorted(len(index) for _, index, _ in again) == sorted(
            len(index) for _, index, _ in whole
        )

    world_sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    position, taken = Position(2), Counter[int]()
    for turn, world_size in enumerate(world_sizes):
        ranks = [order(RankShard(rank, world_size)) for rank in range(world_size)]
        left = {rank.num_left(position, 11) for rank in ranks}
        (steps,) = left
        # All but the last of these runs are stopped half-way.
        count = steps if turn == len(world_sizes) - 1 else steps // 2
        done = position
        for rank in ranks:
            runs = rank.batches(position, 11)
            for _ in range(count):
                number, index, done = next(runs)
                assert index.tolist() == whole[number][1].tolist()
                taken[number] += 1
        position = done
    last = world_sizes[-1]
    missing = len(whole) - len(taken)
    assert 0 <= missing < last if drop_last else not missing
    assert sum(taken.values()) - len(taken) < (last if not drop_last else 1)
