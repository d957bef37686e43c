"""Batches with `edge_format="csr"`: those with `edge_index`, however they are made."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch_geometric.loader import PrefetchLoader

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader, PartitionPolicy
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import NotFoundError, UsageError
from gnnstore.nn import AdjT
from tests.support.batches import assert_goes_on, assert_same_batches, batches_of
from tests.support.csr import assert_those_of, looped_graph
from tests.support.effort import choose
from tests.support.packing import pack
from tests.support.references import OPTIONS

CSR: dict[str, Any] = OPTIONS | {"edge_format": "csr"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "mmap": {"strategy": "mmap"},
    "direct": {"strategy": "direct", "num_threads": 0},
    "static": {"strategy": "static", "cache_bytes": "4kB"},
    "belady": {"strategy": "belady", "superbatch": 2, "cache_bytes": "2kB"},
    "packed": {"strategy": "packed", "superbatch": 2, "cache_bytes": "2kB"},
    "packed epochs": {"packed": "base"},
    "threads": {"strategy": "memory", "num_threads": 3},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = looped_graph().write(tmp_path_factory.mktemp("csr") / "s.gnn")
    pack(path, [4, 4], cache_bytes="2kB", superbatch=2)
    pack(path, [4, 4], output=path.with_name("packed"))
    partition(path, 4, name="spread", seed=3)
    return path


@pytest.mark.parametrize("adj_value", [None, "edge_weight", "edge_attr"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replace": True},
        {"disjoint": True},
        {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"},
        {"num_neighbors": [3, 0, 2]},
        {"num_neighbors": []},
    ],
    ids=str,
)
def test_edges_are_those_of_edge_index(
    path: Path, options: dict[str, Any], adj_value: str | None
) -> None:
    given: dict[str, Any] = {"num_neighbors": [4, 4], "strategy": "memory"} | options
    coo = NeighborLoader(path, input_nodes="train", **OPTIONS, **given)
    csr = NeighborLoader(path, input_nodes="train", adj_value=adj_value, **CSR, **given)
    assert_those_of(csr, coo, adj_value)


@pytest.mark.parametrize("adj_value", [None, "edge_weight"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_batches_are_the_same_with_every_strategy(
    path: Path, name: str, adj_value: str | None
) -> None:
    def loader(**options: Any) -> NeighborLoader:
        return NeighborLoader(path, [4, 4], "train", adj_value=adj_value, **CSR, **options)

    expected = batches_of(loader(strategy="memory", num_threads=0), 2)
    assert_same_batches(batches_of(loader(**STRATEGIES[name]), 2), expected)


def test_packed_epochs_without_the_store(path: Path) -> None:
    packed = gnnstore.open_packed(path.with_name("packed"))
    csr = packed.loader(edge_format="csr", adj_value="edge_weight")
    assert_those_of(csr, packed.loader(), "edge_weight")
    with pytest.raises(UsageError, match="edge_format='csc'"):
        packed.loader(edge_format="csc")


def test_links(path: Path) -> None:
    options = OPTIONS | {"neg_sampling": "binary", "strategy": "memory"}
    options |= choose({"batch_size": 500}, {})
    coo = LinkNeighborLoader(path, [4, 4], **options)
    csr = LinkNeighborLoader(path, [4, 4], edge_format="csr", adj_value="edge_attr", **options)
    assert_those_of(csr, coo, "edge_attr")


def test_partitions(path: Path) -> None:
    options: dict[str, Any] = OPTIONS | {
        "partitions": PartitionPolicy("dispersed", capacity=2, name="spread")
    }
    coo = NeighborLoader(path, [4, 4], "train", **options)
    csr = NeighborLoader(path, [4, 4], "train", edge_format="csr", **options)
    assert_those_of(csr, coo)


def test_ranks_and_resumed_runs(path: Path) -> None:
    def loader() -> NeighborLoader:
        options: dict[str, Any] = {
            "strategy": "belady",
            "superbatch": 2,
            "rank": 1,
            "world_size": 2,
        }
        return NeighborLoader(path, [4, 4], "train", **CSR, **options)

    assert_goes_on(loader)
    coo = NeighborLoader(path, [4, 4], "train", **OPTIONS, rank=1, world_size=2)
    coo.load_state_dict(loader().state_dict())  # the format is no part of a state
    assert_those_of(loader(), coo)


def test_copies_of_a_loader(path: Path) -> None:
    loader = NeighborLoader(path, [4, 4], "train", adj_value="edge_weight", **CSR)
    expected = batches_of(copy.copy(loader))
    unpickled = pickle.loads(pickle.dumps(loader))  # noqa: S301
    assert_same_batches(batches_of(unpickled), expected)
    assert (unpickled.edge_format, unpickled.adj_value) == ("csr", "edge_weight")


def test_a_batch_for_an_index(path: Path) -> None:
    batch = NeighborLoader(path, [4, 4], "train", **CSR)([0, 1, 2])
    assert isinstance(batch.adj_t, AdjT)


def test_changed_sampler_output(path: Path) -> None:
    """Edges may go; the order by target has to stay."""

    def first_half(output: Any) -> Any:
        half = len(output.row) // 2
        output.row, output.col, output.edge = (
            each[:half] for each in (output.row, output.col, output.edge)
        )
        output.num_sampled_nodes = output.num_sampled_edges = None
        return output

    def reversed_edges(output: Any) -> Any:
        output.row, output.col = output.row.flip(0), output.col.flip(0)
        return output

    def without_positions(output: Any) -> Any:
        output.edge = None
        return output

    def loader(change: Any, **options: Any) -> NeighborLoader:
        return NeighborLoader(
            path, [4, 4], "train", transform_sampler_output=change, **(OPTIONS | options)
        )

    assert_those_of(loader(first_half, edge_format="csr"), loader(first_half))
    with pytest.raises(UsageError, match=r"targets must ascend.*Return sampler output"):
        next(iter(loader(reversed_edges, edge_format="csr")))
    with pytest.raises(UsageError, match="adj_value='edge_weight': the sampler output has no edge"):
        next(iter(loader(without_positions, edge_format="csr", adj_value="edge_weight")))


def test_transforms_pinning_and_prefetching(path: Path) -> None:
    loader = NeighborLoader(path, [4, 4], "train", transform=lambda data: data.clone(), **CSR)
    expected = batches_of(NeighborLoader(path, [4, 4], "train", **CSR))
    assert_same_batches(batches_of(loader), expected)
    loader.set_epoch(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ahead = list(PrefetchLoader(loader, device))
    assert {batch.adj_t.device.type for batch in ahead} == {device.type}
    assert_same_batches([batch.cpu().to_dict() for batch in ahead], expected)
    if torch.cuda.is_available():
        assert pin_memory(next(iter(loader))).adj_t.is_pinned()


WRONG: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "edge_format='CSR' is unknown": (UsageError, {"edge_format": "CSR"}),
    "adj_value='edge_weight': only a matrix": (UsageError, {"adj_value": "edge_weight"}),
    "'nothing': edges have no attribute of this name; they have: edge_attr, edge_weight": (
        NotFoundError,
        {"edge_format": "csr", "adj_value": "nothing"},
    ),
    "float64 of shape [2]": (UsageError, {"edge_format": "csr", "adj_value": "edge_wide"}),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_are_refused_at_construction(path: Path, message: str) -> None:
    kind, options = WRONG[message]
    with pytest.raises(kind, match=re.escape(message)):
        NeighborLoader(path, [4, 4], "train", **(OPTIONS | options))
