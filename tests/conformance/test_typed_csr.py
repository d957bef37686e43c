"""Batches of several types with `edge_format="csr"`: those with `edge_index`, a matrix a type."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader
from gnnstore.errors import NotFoundError, UsageError
from gnnstore.nn import AdjT, trim
from tests.support.batches import assert_goes_on, assert_same_batches, batches_of
from tests.support.csr import assert_those_of
from tests.support.effort import choose, paired
from tests.support.hetero import AT, CITES, TEACHES, WRITES, WRITTEN_BY, hetero_store, make_hetero
from tests.support.packing import pack

DATA = make_hetero()
# HeteroConv takes features of every type.
DATA["institution"].x = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))
del DATA["institution"].num_nodes
del DATA[AT].w  # a type without the attribute that others have as values
TRAIN = ("paper", "train")
SEVERAL: dict[str, Any] = {"paper": "train", "author": [3, 3, 9], "institution": [0, 4]}
ONLY_PAPERS = {CITES: [3, 2], WRITES: [0, 0], WRITTEN_BY: [0, 0], TEACHES: [0, 0], AT: [0, 0]}
AGGRS = ["mean", "sum", "max"]
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "strategy": "memory"}
CASES: dict[str, dict[str, Any]] = {
    "one seed type": {},
    "several seed types": {"input_nodes": SEVERAL},
    "empty types": {"num_neighbors": ONLY_PAPERS},
    "a hop without edges": {"num_neighbors": [3, 0, 2], "input_nodes": SEVERAL},
    "no hops": {"num_neighbors": []},
    "disjoint": {"disjoint": True, "input_nodes": SEVERAL},
    "repeated edges": {"replace": True},
    "induced": {"subgraph_type": "induced"},
    "by time": {"time_attr": "time", "input_time": torch.full((60,), 150), "input_nodes": "paper"},
    "by weight": {"weight_attr": "w"},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    store = hetero_store(tmp_path_factory.mktemp("csr") / "s.gnn", DATA, time_attr=["time"])
    pack(store.path, [3, 2], TRAIN, batch_size=8, cache_bytes="2kB", superbatch=2)
    return store


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    return hetero_store(tmp_path_factory.mktemp("csr") / "w.gnn", make_hetero(), weight_attr=["w"])


def loader_of(store: gnnstore.GraphStore, **options: Any) -> NeighborLoader:
    arguments = {"num_neighbors": [3, 2], "input_nodes": TRAIN} | OPTIONS | options
    return NeighborLoader(store, **arguments)


@pytest.mark.parametrize("adj_value", [None, "w"])
@pytest.mark.parametrize("case", [*CASES][choose(1, 0) :: choose(2, 1)])
def test_edges_are_those_of_edge_index(
    store: gnnstore.GraphStore, weighted: gnnstore.GraphStore, case: str, adj_value: str | None
) -> None:
    where = weighted if case == "by weight" else store
    coo = loader_of(where, **CASES[case])
    csr = loader_of(where, edge_format="csr", adj_value=adj_value, **CASES[case])
    assert_those_of(csr, coo, adj_value)


@pytest.mark.parametrize(
    "options", [{"neg_sampling": "triplet"}, *choose((), ({}, {"disjoint": True}))], ids=str
)
def test_links(store: gnnstore.GraphStore, options: dict[str, Any]) -> None:
    def loader(**more: Any) -> LinkNeighborLoader:
        given = OPTIONS | {"batch_size": choose(30, 8)} | options | more
        return LinkNeighborLoader(store, [2, 2], WRITES, **given)

    assert_those_of(loader(edge_format="csr", adj_value="w"), loader(), "w")


@pytest.mark.parametrize("adj_value", [None, "w"])
@pytest.mark.parametrize(
    "way",
    [
        {"strategy": "mmap", "num_threads": 2},
        {"strategy": "direct", "topology": "disk", "num_threads": 0},
        {"strategy": "belady", "superbatch": 3, "cache_bytes": "1kB"},
        {"strategy": "packed", "superbatch": 2, "cache_bytes": "1kB"},
        {"strategy": "auto", "packed": "base"},
    ],
    ids=str,
)
def test_batches_are_the_same_with_every_strategy(
    store: gnnstore.GraphStore, way: dict[str, Any], adj_value: str | None
) -> None:
    csr: dict[str, Any] = {"edge_format": "csr", "adj_value": adj_value}
    expected = batches_of(loader_of(store, **csr, num_threads=0), 2)
    assert_same_batches(batches_of(loader_of(store, **csr, **way), 2), expected)


def test_packed_epochs_without_the_store(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    packed = gnnstore.open_packed(
        pack(store.path, [3, 2], TRAIN, output=tmp_path / "one", batch_size=8)
    )
    csr = packed.loader(edge_format="csr", adj_value="w")
    assert_those_of(csr, packed.loader(), "w")


@pytest.mark.filterwarnings("ignore:.*is the reverse of")
def test_edges_in_both_directions_are_refused(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    message = re.escape('edge_format="csr" and subgraph_type="bidirectional": edges of a type')
    with pytest.raises(UsageError, match=message):
        loader_of(store, subgraph_type="bidirectional", edge_format="csr")
    options: dict[str, Any] = {"subgraph_type": "bidirectional", "batch_size": 8}
    packed = gnnstore.open_packed(pack(store.path, [2], TRAIN, output=tmp_path / "both", **options))
    with pytest.raises(UsageError, match=message):
        packed.loader(edge_format="csr")


def test_values_that_are_no_numbers_are_refused(store: gnnstore.GraphStore) -> None:
    wide = re.escape(f"attribute of {CITES} has float32 of shape [2]")
    with pytest.raises(UsageError, match=wide):
        loader_of(store, edge_format="csr", adj_value="edge_attr")
    with pytest.raises(NotFoundError, match="they have: edge_attr, edge_time, w"):
        loader_of(store, edge_format="csr", adj_value="nothing")


def test_resuming_and_changed_output(store: gnnstore.GraphStore) -> None:
    assert_goes_on(lambda: loader_of(store, edge_format="csr", adj_value="w"))

    def without_a_type(output: Any) -> Any:
        for each in (output.row, output.col, output.edge):
            del each[WRITES]
        output.num_sampled_nodes = output.num_sampled_edges = None
        return output

    def reversed_edges(output: Any) -> Any:
        output.row[CITES], output.col[CITES] = output.row[CITES].flip(0), output.col[CITES].flip(0)
        return output

    def loader(change: Callable[[Any], Any], **options: Any) -> NeighborLoader:
        return loader_of(store, transform_sampler_output=change, **options)

    csr = loader(without_a_type, edge_format="csr", adj_value="w")
    assert_those_of(csr, loader(without_a_type), "w")
    with pytest.raises(UsageError, match=r"edges of \('paper', 'cites', 'paper'\): .* ascend"):
        next(iter(loader(reversed_edges, edge_format="csr")))


class Layers(torch.nn.Module):
    """Layers by type on edges in either format, trimmed or not."""

    def __init__(self, depth: int, aggr: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(
            HeteroConv({kind: SAGEConv((-1, -1), 8, aggr=aggr) for kind in DATA.edge_types})
            for _ in range(depth)
        )

    def forward(
        self, batch: Any, x: dict[str, Tensor], edges: Any, cut: Callable[..., Any] | None
    ) -> dict[str, Tensor]:
        for number, layer in enumerate(self.layers):
            if cut is not None:
                hops = (batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict)
                x, edges, _ = cut(number, *hops, x, edges)
            x = layer(x, edges)
        return x


def results(model: Layers, batch: Any, edges: Any, cut: Any) -> list[Tensor]:
    """Return the outputs of the seeds, and the gradients of features and parameters."""
    model.zero_grad(set_to_none=True)
    x = {name: rows.clone().requires_grad_() for name, rows in batch.x_dict.items()}
    found = model(batch, x, edges, cut)
    out = [found[name][: batch[name].get("batch_size", 0)] for name in sorted(found)]
    loss = sum((each * torch.linspace(-1, 1, 8)).square().sum() for each in out)
    assert isinstance(loss, Tensor)
    loss.backward()
    of_x = [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in x.values()]
    of_parameters = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return [*out, *of_x, *of_parameters]


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize(
    ("case", "aggr"),
    paired(
        choose(
            ["several seed types", "empty types", "induced"],
            ["one seed type", "several seed types", "empty types", "disjoint", "induced"],
        ),
        AGGRS,
    ),
)
def test_layers_by_type_equal_those_of_edge_index(
    store: gnnstore.GraphStore, case: str, aggr: str, trims: bool
) -> None:
    if trims and case == "induced":
        pytest.skip("there are no hops to trim")
    coo = next(iter(loader_of(store, **CASES[case])))
    csr = next(iter(loader_of(store, edge_format="csr", **CASES[case])))
    model = Layers(2, aggr)
    with torch.no_grad():  # the widths of lazy layers
        model(coo, coo.x_dict, coo.edge_index_dict, None)
    expected = results(model, coo, coo.edge_index_dict, None)
    assert sum(each.abs().sum() for each in expected) > 0
    ways = [(csr, csr.adj_t_dict, trim if trims else None)]
    ways += [(coo, coo.edge_index_dict, trim_to_layer)] if trims else []
    for way in ways:
        for ours, theirs in zip(results(model, *way), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_trimming_knows_types_without_features(store: gnnstore.GraphStore) -> None:
    batch = next(iter(loader_of(store, edge_format="csr", input_nodes=SEVERAL)))
    hops = (batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict)
    _, adj_t, _ = trim(1, *hops, {"author": batch["author"].x}, {AT: batch[AT].adj_t})
    assert isinstance(adj_t[AT], AdjT)
    assert adj_t[AT].size(0) == sum(batch["institution"].num_sampled_nodes[:2])
