"""Loaders with `seeds_of=`: batches by part, on every strategy, by ranks, and resumed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader, UsageError, shared_memory
from gnnstore.converters import ConvertOptions
from gnnstore.formats.assignments import AssignmentReader
from gnnstore.testing.graphs import random_graph
from gnnstore.tools.cli import main
from tests.support.batches import digests
from tests.support.effort import choose, paired
from tests.support.hetero import hetero_store

K = 3


def assign(path: Path, *words: str) -> None:
    assert main(["assign", str(path), "--hops", "2", "-q", *words]) == 0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph, rng = random_graph(500, 2500, seed=2, feature_dim=8, num_classes=3), np.random
    drawn = {"time": rng.default_rng(3).integers(0, 90, 500)}
    graph.attributes.update(drawn, edge_w=rng.default_rng(4).random(2500))
    options = ConvertOptions(time_attr=("time",), weight_attr=("edge_w",))
    made = graph.write(tmp_path_factory.mktemp("seeds_of") / "s.gnn", options=options)
    for words in (("--parts", "3"), ("--parts", "4"), ("--parts", "2", "--split", "valid")):
        assign(made, *words)
    return made


def make(path: Path, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {
        "input_nodes": "train",
        "batch_size": 16,
        "shuffle": True,
        "seed": 5,
        "seeds_of": "parts-3",
        "num_threads": 0,
        "strategy": "memory",
    }
    return NeighborLoader(path, [4, 3], **defaults | options)


def test_batch_n_is_of_part_n_mod_k(path: Path) -> None:
    parts = AssignmentReader.open(path / "assignments" / "parts-3").parts()
    loader = make(path)
    assert len(parts) == 300
    for epoch in range(2):
        found = [batch.input_id for batch in loader]
        assert len(found) == len(loader) == 3 * 7 == loader.stats().epoch_batches
        for number, own in enumerate(found):
            assert set(parts[own].tolist()) == {number % K}
        assert sorted(i for own in found for i in own.tolist()) == list(range(300)), epoch
    assert len(make(path, drop_last=True)) == 3 * 6
    first = [own.tolist() for own in found]
    assert [b.input_id.tolist() for b in make(path, shuffle=False)] != first
    with pytest.warns(UserWarning, match="leaves no batch"):
        assert len(make(path, batch_size=101, drop_last=True)) == 0


STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "mmap", "num_threads": 2},
    {"strategy": "static", "cache_bytes": "3kB"},
    {"strategy": "belady", "cache_bytes": "3kB", "superbatch": 4},
    {"strategy": "packed", "cache_bytes": "3kB", "superbatch": 30, "num_threads": 1},
]


@pytest.mark.parametrize(
    ("options", "drawn"),
    paired(
        choose(STRATEGIES[2:], STRATEGIES),
        [{"time_attr": "time"}, {"weight_attr": "edge_w"}, {}],
        1,
    ),
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_strategies_change_nothing(
    path: Path, options: dict[str, Any], drawn: dict[str, Any], shares_all: None
) -> None:
    """P7: nor do ranks of one machine, which share what they load; by times and weights too."""
    whole = digests(make(path, **drawn), 2)
    assert digests(make(path, **drawn, **options), 2) == whole
    check_ranks(make, path, whole, **drawn, **options)


def check_ranks(
    make_loader: Callable[..., NeighborLoader], path: Path, whole: list[str], **options: Any
) -> None:
    """Compare two ranks of one machine with two epochs of one process."""
    given = {"world_size": 2, "local_world_size": 2}
    of_epoch = len(whole) // 2
    ranks = [make_loader(path, rank=rank, **given, **options) for rank in range(2)]
    for rank, loader in enumerate(ranks):
        numbers = range(rank, of_epoch + of_epoch % 2, 2)
        expected = [whole[epoch * of_epoch + n % of_epoch] for epoch in (0, 1) for n in numbers]
        assert digests(loader, 2) == expected
    assert shared_memory.server.num_handed_on > 0


def test_types(tmp_path: Path, shares_all: None) -> None:
    store = hetero_store(tmp_path / "typed.gnn")
    assign(store.path, "--parts", "2", "--split", "paper:train,author:all")
    parts = AssignmentReader.open(store.path / "assignments" / "parts-2").parts()
    loader = make(store.path, input_nodes={"paper": "train", "author": None}, seeds_of="parts-2")
    offsets, seen = loader.input_offsets, []
    for number, batch in enumerate(loader):
        for name, (first, _) in offsets.items():
            own = batch[name].input_id
            seen += (own + first).tolist()
            assert set(parts[(own + first).numpy()].tolist()) <= {number % 2}
    assert sorted(seen) == list(range(len(parts)))
    given: dict[str, Any] = {"input_nodes": {"paper": "train", "author": None}}
    given |= {"seeds_of": "parts-2", "strategy": "static", "cache_bytes": "1kB"}
    check_ranks(make, store.path, digests(make(store.path, **given), 2), **given)


@pytest.mark.parametrize("world_size", choose([2, 3], [2, 3, 6]))
def test_ranks_share_the_epoch(
    path: Path, world_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = digests(make(path))
    with caplog.at_level(logging.WARNING):
        ranks = [make(path, rank=r, world_size=world_size) for r in range(world_size)]
    assert ("neither number divides the other" in caplog.text) == (world_size == 2)
    found = [digests(rank) for rank in ranks]
    rounds = -(-len(whole) // world_size)
    for rank, own in enumerate(found):
        assert len(own) == len(ranks[rank]) == rounds
        assert own == [whole[(rank + k * world_size) % len(whole)] for k in range(rounds)]


def test_a_run_goes_on_with_other_ranks(path: Path) -> None:
    whole = digests(make(path))
    ranks = [make(path, rank=r, world_size=3) for r in range(3)]
    for rank in ranks:
        for number, _ in enumerate(rank):
            if number == 1:
                break
    state = ranks[0].state_dict()
    assert state == ranks[2].state_dict()
    assert state["batches"] == 6
    resumed = [make(path, rank=r, world_size=2) for r in range(2)]
    for rank in resumed:
        rank.load_state_dict(state)
    left = [digests(rank) for rank in resumed]
    assert left[0] == whole[6::2]
    assert left[1][:7] == whole[7::2]


def test_states_of_other_parts_are_refused(path: Path, tmp_path: Path) -> None:
    """Also of an assignment made anew under the same name; another name of the same is none."""
    copy = shutil.copytree(path, tmp_path / "s.gnn")
    loader = make(copy)
    next(iter(loader))
    state = loader.state_dict()
    for other in (None, "parts-4"):
        with pytest.raises(UsageError, match=r"seeds_of: expected .*, found \{'uuid"):
            make(copy, seeds_of=other).load_state_dict(state)
        with pytest.raises(UsageError, match=r"seeds_of: expected .*, found"):
            make(copy).load_state_dict(make(copy, seeds_of=other).state_dict())
    unit = copy / "assignments" / "parts-3"
    renamed = shutil.copytree(unit, unit.with_name("renamed"))
    make(copy, seeds_of="renamed").load_state_dict(state)
    make(copy, seeds_of=renamed).load_state_dict(state)
    assign(copy, "--parts", "3", "--hops", "1", "--overwrite")
    with pytest.raises(UsageError, match="seeds_of: expected"):
        make(copy).load_state_dict(state)


def refused(make_it: Callable[[], object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make_it()


def test_what_is_refused(path: Path, tmp_path: Path) -> None:
    other = random_graph(500, 100, seed=3, num_classes=2).write(tmp_path / "other.gnn")
    unit = path / "assignments" / "parts-3"
    refused(lambda: make(other, seeds_of=str(unit)), "an assignment of another store")
    refused(lambda: make(path, seeds_of="parts-2"), "parts of the 100 seeds 'valid'.*300 others")
    refused(lambda: make(path, input_nodes=list(range(300))), "names 300 others; give these")
    refused(lambda: make(path, input_nodes=None), "names 500 others, 'all'; give")
    refused(lambda: make(path, seeds_of=3), "expected the name of an assignment")
    refused(lambda: make(path, sampler=[1, 2], shuffle=False), "leave out sampler= and batch")
    batches: Any = {"batch_sampler": [[1], [2]], "batch_size": 1, "shuffle": False}
    refused(lambda: make(path, **batches), "leave out sampler= and batch_sampler=")
    refused(lambda: make(path, batch_size=None), "batch_size=None makes none")
    policy = gnnstore.PartitionPolicy("dispersed", capacity=2)
    refused(lambda: make(path, partitions=policy, strategy="auto"), "no use for seeds_of='parts-3'")
    refused(lambda: make(path, packed="x", strategy="auto"), "no use for seeds_of='parts-3'")
    links: Any = {"seeds_of": "parts-3"}
    refused(lambda: LinkNeighborLoader(path, [2], **links), "LinkNeighborLoader's batches start")
    with pytest.raises(gnnstore.NotFoundError, match="no seed assignment 'parts-9'"):
        make(path, seeds_of="parts-9")
