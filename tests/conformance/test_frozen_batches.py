"""Batches stay what they were, to the bit: digests recorded once, compared on every way to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from gnnstore import NeighborLoader
from gnnstore.converters import from_pyg
from gnnstore.strategies.base import Strategy
from gnnstore.strategies.registry import PACKED, auto, find_strategy
from tests.support.batches import digests
from tests.support.effort import choose
from tests.support.loaders import override_sizes
from tests.support.packing import pack

pytestmark = pytest.mark.filterwarnings(
    "ignore:edge_index of these batches is of int32:UserWarning"
)

FROZEN = Path(__file__).parents[1] / "data" / "frozen" / "batches.json"
SEED, EPOCHS = 11, 2
# Batches of the first epoch before the state that is recorded.
TAKEN = 3


# --- graphs: integers from a counter, so that no library's random numbers matter -------------


def _numbers(seed: int, *shape: int) -> npt.NDArray[np.uint64]:
    """Return SplitMix64 of a counter."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed << 32)
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = (x ^ (x >> np.uint64(31))).reshape(shape)
    return mixed


def _below(bound: int, seed: int, *shape: int) -> Tensor:
    return torch.from_numpy((_numbers(seed, *shape) % np.uint64(bound)).astype(np.int64))


def planted() -> Data:
    """Return a graph with communities, labels, masks for splits, and ids of int64."""
    num_nodes, num_edges, communities = 1200, 12_000, 8
    target = _below(num_nodes, 1, num_edges)
    anywhere = _below(num_nodes, 2, num_edges)
    inside = anywhere - anywhere % communities + target % communities
    source = torch.where(_below(10, 3, num_edges) < 7, inside, anywhere)
    split = _below(10, 4, num_nodes)
    return Data(
        x=_below(1000, 5, num_nodes, 40).float() / 8,
        y=torch.arange(num_nodes) % communities,
        edge_index=torch.stack([source, target]),
        train_mask=split < 3,
        val_mask=split == 3,
        test_mask=split > 3,
        name="planted",
    )


def rmat() -> Data:
    """Return an R-MAT graph with parallel edges, edge attributes, whose store has ids of int32."""
    scale, num_edges = 10, 9000
    corner = _below(100, 1, scale, num_edges)
    bits = torch.stack([corner >= 76, (corner >= 57) & (corner < 76) | (corner >= 95)]).long()
    weights = 2 ** torch.arange(scale)
    edge_index = (bits * weights[None, :, None]).sum(dim=1)
    return Data(
        x=_below(2048, 2, 1 << scale, 33).half(),
        edge_index=edge_index,
        edge_attr=_below(1000, 3, num_edges, 19).float(),
        edge_weight=_below(16, 4, num_edges).float() / 16,
    )


def odd() -> Data:
    """Return a tiny graph with rows of odd width, and nodes without in-neighbours."""
    num_nodes, num_edges = 61, 150
    target = 2 * _below(num_nodes // 2, 1, num_edges)
    return Data(
        x=(_below(256, 2, num_nodes, 37) - 128).bfloat16(),
        h=(_below(256, 3, num_nodes, 67) - 128).to(torch.int8),
        edge_index=torch.stack([_below(num_nodes, 4, num_edges), target]),
        edge_mark=_below(2, 5, num_edges).bool(),
    )


GRAPHS: dict[str, Callable[[], Data]] = {"planted": planted, "rmat": rmat, "odd": odd}


def write_store(directory: Path, graph: str) -> Path:
    """Write the store of a graph."""
    index_dtype: Any = "int32" if graph == "rmat" else "int64"
    return from_pyg(GRAPHS[graph](), directory / f"{graph}.gnn", index_dtype=index_dtype)


# --- samplings and ways ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """A graph, and the options that batches depend on."""

    graph: str
    fanouts: tuple[int, ...]
    options: dict[str, Any]

    def __str__(self) -> str:
        """Return the name under which digests are recorded."""
        fanouts = ",".join(map(str, self.fanouts))
        return " ".join([self.graph, fanouts, *(f"{k}={v}" for k, v in self.options.items())])


_TRAIN = {"input_nodes": "train", "batch_size": 32, "shuffle": True}
_MANY = {"batch_size": 100, "shuffle": True}
_ALL = {"batch_size": 7}
SAMPLINGS = (
    Sampling("planted", (4, 4), _TRAIN),
    Sampling("planted", (4, 3), {**_TRAIN, "disjoint": True}),
    Sampling("planted", (3, 3), {**_TRAIN, "replace": True, "drop_last": True}),
    Sampling("planted", (5,), {**_TRAIN, "subgraph_type": "induced"}),
    Sampling("planted", (4, 4), {**_TRAIN, "rank": 1, "world_size": 3}),
    Sampling("rmat", (5, 2), _MANY),
    Sampling("rmat", (3, 3), {**_MANY, "subgraph_type": "bidirectional"}),
    Sampling("rmat", (-1,), {**_MANY, "shuffle": False, "disjoint": True}),
    Sampling("odd", (2, -1, 2), _ALL),
    Sampling("odd", (3, 3), {**_ALL, "shuffle": True, "replace": True, "disjoint": True}),
)

CACHED = {"cache_bytes": "25kB"}
AHEAD = {**CACHED, "superbatch": 4}


def _options(candidate: Strategy) -> dict[str, Any]:
    """Return what a loader is told to read so; nothing of epochs that are packed beforehand."""
    if candidate.is_offline:
        return {}
    score = {"cache": candidate.score} if candidate.score else {}
    return {
        "strategy": candidate.name,
        **score,
        **(AHEAD if candidate.plans else CACHED if candidate.caches else {}),
    }


STRATEGIES: dict[str, dict[str, Any]] = {
    **{candidate.choice: _options(candidate) for candidate in auto().candidates},
    "packed-degree": {"strategy": PACKED.name, "cache": "degree", **AHEAD},
}
# Where a strategy can have the topology, unless anywhere.
MAY_LIE = {"memory": ("auto",), "mmap": ("auto", "mmap")}
THREADS = (0, 1, 2, 4)
ENGINES = ("", "pread", "mmap")
TOPOLOGIES = ("auto", "mmap", "disk")


@dataclass(frozen=True)
class Way:
    """How batches are come by."""

    sampling: Sampling
    strategy: str
    threads: int
    engine: str = ""
    topology: str = "auto"
    is_resumed: bool = False
    spills: bool = False

    def __str__(self) -> str:
        """Return a test's id."""
        flags = ["resumed"] * self.is_resumed + ["spilled"] * self.spills
        number = SAMPLINGS.index(self.sampling)
        words = [self.sampling.graph + str(number), self.strategy, str(self.threads)]
        return "-".join([*words, self.engine or "usual", self.topology, *flags])

    def __hash__(self) -> int:
        """Return the hash of a test's id, which no two ways share."""
        return hash(str(self))

    @property
    def possible(self) -> Way:
        """Return the way, without what its strategy has no use for."""
        options = STRATEGIES[self.strategy]
        mode = find_strategy(options.get("strategy", PACKED.name)).mode
        may_lie = MAY_LIE.get(mode, TOPOLOGIES) if options else ("auto",)
        return replace(
            self,
            engine=self.engine if mode == "disk" else "",
            topology=self.topology if self.topology in may_lie else "auto",
            spills=self.spills and "superbatch" in options,
        )


# Packed epochs are read by one process.
ASKED = [
    (sampling, strategy)
    for sampling, strategy in product(SAMPLINGS, STRATEGIES)
    if (strategy, "rank" in sampling.options) != ("packed-epochs", True)
]


def _pairs(way: Way) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Return each two settings that a way has together."""
    settings = {**vars(way), "sampling": SAMPLINGS.index(way.sampling)}
    return set(combinations(settings.items(), 2))


def _all_of(sampling: Sampling, strategy: str) -> list[Way]:
    """Return every way to the batches of a sampling by a strategy."""
    flags = (False, True)
    settings = product(THREADS, ENGINES, TOPOLOGIES, flags, flags)
    return list(dict.fromkeys(Way(sampling, strategy, *rest).possible for rest in settings))


def _ways() -> list[Way]:
    """Return one way for each sampling and strategy, with pairs of settings that are new."""
    found: list[Way] = []
    seen: set[Any] = set()
    for number, (sampling, strategy) in enumerate(ASKED):
        ways = _all_of(sampling, strategy)
        first = 7 * number % len(ways)  # where none has anything new, not always the same
        found.append(max(ways[first:] + ways[:first], key=lambda way: len(_pairs(way) - seen)))
        seen |= _pairs(found[-1])
    return found


WAYS = _ways()


@pytest.mark.long("only all the ways cover every pair")
def test_ways_cover_every_pair_of_settings() -> None:
    every = {
        pair
        for sampling, strategy in ASKED
        for way in _all_of(sampling, strategy)
        for pair in _pairs(way)
    }
    assert every == set().union(*map(_pairs, WAYS))


# --- digests ---------------------------------------------------------------------------------


def loader_of(store: Path, sampling: Sampling, **options: Any) -> NeighborLoader:
    """Return a loader, with the key that all of them have."""
    return NeighborLoader(store, list(sampling.fanouts), seed=SEED, **sampling.options, **options)


def pack_epochs(store: Path, sampling: Sampling, output: Path) -> Path:
    """Pack the epochs of a sampling."""
    options = {"input_nodes": None, "shuffle": False, **AHEAD, **sampling.options}
    return pack(store, sampling.fanouts, output=output, seed=SEED, epochs=EPOCHS, **options)


def state_of(loader: NeighborLoader) -> dict[str, Any]:
    """Return the state after some batches, without the identity of the store."""
    for _ in islice(loader, TAKEN):
        pass
    state = loader.state_dict()
    return {**state, "fingerprint": {**state["fingerprint"], "store": ""}}


def record(directory: Path) -> dict[str, Any]:
    """Return what is to be recorded, from loaders that have everything in memory."""
    recorded = {}
    stores = {name: write_store(directory, name) for name in GRAPHS}
    for sampling in SAMPLINGS:
        options = {"strategy": "memory", "num_threads": 0}
        loader = loader_of(stores[sampling.graph], sampling, **options)
        epochs = [digests(loader) for _ in range(EPOCHS)]
        loader.set_epoch(0)
        recorded[str(sampling)] = {"epochs": epochs, "state": state_of(loader)}
    return recorded


# --- and now as they were --------------------------------------------------------------------


class Stores:
    """The graphs as stores, and their packed epochs, made when they are first needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._made: dict[str, Path] = {}

    def store(self, graph: str) -> Path:
        """Return the store of a graph."""
        if graph not in self._made:
            self._made[graph] = write_store(self.directory, graph)
        return self._made[graph]

    def packed(self, sampling: Sampling) -> Path:
        """Return the packed epochs of a sampling."""
        name = f"packed-{SAMPLINGS.index(sampling)}"
        return pack_epochs(self.store(sampling.graph), sampling, self.directory / name)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("frozen"))


@pytest.fixture(scope="module")
def frozen() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FROZEN.read_text())
    assert list(found) == [str(sampling) for sampling in SAMPLINGS]
    return found


# Every eighth one has each sampling and each strategy.
@pytest.mark.parametrize("way", choose(WAYS[::8], WAYS), ids=str)
def test_batches_are_as_recorded(stores: Stores, frozen: dict[str, Any], way: Way) -> None:
    store, recorded = stores.store(way.sampling.graph), frozen[str(way.sampling)]
    options = dict(STRATEGIES[way.strategy])
    if way.strategy == "packed-epochs":
        options["packed"] = stores.packed(way.sampling)
    options |= {"io_engine": way.engine} if way.engine else {}
    loader = loader_of(
        store, way.sampling, num_threads=way.threads, topology=way.topology, **options
    )
    if way.spills:
        override_sizes(loader, in_memory=False, table_bytes=256)
    expected: list[list[str]] = recorded["epochs"]
    if way.is_resumed:
        identity = {"store": loader.state_dict()["fingerprint"]["store"]}
        fingerprint = {**recorded["state"]["fingerprint"], **identity}
        loader.load_state_dict({**recorded["state"], "fingerprint": fingerprint})
        expected = [expected[0][TAKEN:], *expected[1:]]
    assert [digests(loader) for _ in range(EPOCHS)] == expected
    stats = loader.stats()
    assert stats.strategy == options.get("strategy", "packed")
    assert way.topology in {"auto", stats.topology}
    assert stats.bytes_spilled > 0 or not way.spills


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_states_are_as_recorded(stores: Stores, frozen: dict[str, Any], sampling: Sampling) -> None:
    loader = loader_of(stores.store(sampling.graph), sampling, strategy="memory", num_threads=2)
    assert state_of(loader) == frozen[str(sampling)]["state"]
