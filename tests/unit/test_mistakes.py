"""What a newcomer gets wrong: each message says what is wrong, where, and what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv

import gnnstore
from gnnstore.converters import from_pyg
from gnnstore.errors import BudgetError, GnnstoreError, UnknownOptionError, UsageError

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


class Model(torch.nn.Module):
    """A whole model, as users have it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(4, 3), SAGEConv(3, 2)])

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return a store without types, one with, and what is converted to the first."""
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("mistakes")
    data = Data(x=torch.rand(20, 4), y=torch.arange(20), edge_index=torch.randint(0, 20, (2, 60)))
    data.train_mask, data.val_mask = torch.arange(20) < 10, torch.arange(20) > 15
    typed = HeteroData()
    typed["paper"].x, typed["author"].x = torch.rand(9, 4), torch.rand(5, 4)
    typed[WRITES].edge_index = torch.randint(0, 5, (2, 12))
    typed[CITES].edge_index = torch.randint(0, 9, (2, 12))
    store = gnnstore.open(from_pyg(data, directory / "a.gnn"))
    return SimpleNamespace(
        data=data,
        store=store,
        typed=gnnstore.open(from_pyg(typed, directory / "typed.gnn")),
        new=directory / "new.gnn",
        layers=[SAGEConv(4, 2)],
        missing=directory / "none",
        state=gnnstore.NeighborLoader(store, [2], batch_size=5).state_dict(),
    )


# What takes anything, also what type checkers refuse.
Nodes: Any = gnnstore.NeighborLoader
Links: Any = gnnstore.LinkNeighborLoader
infer: Any = gnnstore.inference
pyg: Any = from_pyg
arrays: Any = gnnstore.from_arrays
tables: Any = gnnstore.from_tables
verify: Any = gnnstore.verify
embeddings: Any = gnnstore.open_embeddings

LISTED = (
    "If it is a whole model, give its layers in a list ... "
    "inference([model.convs[0], torch.relu, model.convs[1]], store)"
)


def with_memory(size: Any) -> Callable[[Any], Any]:
    return lambda at: Nodes(at.store, [2], memory=size)


def by_key(key: Any) -> Callable[[Any], Any]:
    return lambda at: at.store[key]


# By a name: what is done, and the message, " ... " standing for anything.
MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    # --- loaders
    "an option": (
        lambda at: Nodes(at.store, [2], stategy="static"),
        "NeighborLoader has no option 'stategy' (did you mean 'strategy'?)",
    ),
    "an option of torch's": (
        lambda at: Nodes(at.store, [2], shufle=True),
        "NeighborLoader has no option 'shufle' (did you mean 'shuffle'?)",
    ),
    "an option that none is like": (
        lambda at: Nodes(at.store, [2], qqqq=1),
        "NeighborLoader has no option 'qqqq'",
    ),
    "no seeds a batch": (
        lambda at: Nodes(at.store, [2], batch_size=0),
        "batch_size=0: expected a number of seeds, at least 1",
    ),
    "text as a size": (
        lambda at: Nodes(at.store, [2], batch_size="64"),
        "batch_size='64' is not a whole number",
    ),
    "a transform": (
        lambda at: Nodes(at.store, [2], transform=5),
        "transform=5: expected a function that takes a batch",
    ),
    "a split": (
        lambda at: Nodes(at.store, [2], "trian"),
        "there is no split 'trian' (did you mean 'train'?); the store's splits: train, valid",
    ),
    "two splits": (
        lambda at: Nodes(at.store, [2], ["train", "val"]),
        "expected one name of a split; join several with torch.cat([store.splits['train']",
    ),
    "types where there are none": (
        lambda at: Nodes(at.store, [2], {"paper": None}),
        "input_nodes has entries for 'paper', and the store's nodes have no types",
    ),
    "a node type": (
        lambda at: Nodes(at.typed, [2], ("papr", None)),
        "no node type 'papr' (did you mean 'paper'?); there are: 'paper', 'author'",
    ),
    "fan-outs of a type": (
        lambda at: Nodes(at.typed, {("paper", "cite", "paper"): [2]}, "paper"),
        "num_neighbors: ... (did you mean ('paper', 'cites', 'paper')?); there are the edge",
    ),
    "attributes": (
        lambda at: Nodes(at.store, [2], attributes=["yy"]),
        "an attribute 'yy' (did you mean 'y'?); there are: ",
    ),
    "an attribute of edges": (
        lambda at: Nodes(at.store, [2], time_attr="yy"),
        "no such attribute of nodes or edges (did you mean 'y'?); there are: ",
    ),
    "a strategy": (
        lambda at: Nodes(at.store, [2], strategy="statik"),
        "strategy='statik' is unknown; choose one of auto ... packed (did you mean 'static'?)",
    ),
    "a choice": (
        lambda at: Nodes(at.store, [2], subgraph_type="induce"),
        "subgraph_type='induce' is unknown; choose one of ... (did you mean 'induced'?)",
    ),
    "a number that has lost its unit": (
        lambda at: Nodes(at.store, [2], memory=8),
        "memory='8' is 8 bytes, and a budget is at least 1 MB; did you mean 8GB?",
    ),
    **{
        f"memory as {type(size).__name__}": (
            with_memory(size),
            "is not a size; write a number of bytes or a number with a suffix, such as '8GB'",
        )
        for size in (np.array([1, 2]), torch.tensor([1, 2]), [8], {"all": 8})
    },
    "superbatches of an array": (
        lambda at: Nodes(at.store, [2], strategy="belady", superbatch=np.array([1, 2])),
        "superbatch=array([1, 2]): expected a number of batches, at least 1, or 'auto'",
    ),
    "several attributes of times": (
        lambda at: Nodes(at.store, [2], time_attr=["y"]),
        "time_attr=['y']: expected the name of an attribute",
    ),
    "whether to shuffle": (
        lambda at: Nodes(at.store, [2], shuffle="yes"),
        "shuffle='yes' is neither True nor False",
    ),
    "workers": (
        lambda at: Nodes(at.store, [2], num_workers="2"),
        "num_workers='2' is not a whole number",
    ),
    "too few workers": (
        lambda at: Nodes(at.store, [2], num_workers=-1),
        "torch's DataLoader refuses its options: num_workers option should be non-negative",
    ),
    "a number as a sampler": (
        lambda at: Nodes(at.store, [2], sampler=1),
        "sampler=1: expected an iterable over positions in input_nodes",
    ),
    "a seed as a generator": (
        lambda at: Nodes(at.store, [2], generator=1),
        "generator=1: expected a torch.Generator",
    ),
    "a name of the module": (
        lambda _: gnnstore.NeighbourLoader,
        "module 'gnnstore' has no attribute 'NeighbourLoader' (did you mean 'NeighborLoader'?)",
    ),
    "an error of the module": (
        lambda _: gnnstore.StoreExistError,
        "module 'gnnstore' has no attribute 'StoreExistError' (did you mean 'StoreExistsError'?)",
    ),
    "a converter": (
        lambda _: gnnstore.from_pyg,
        "has no attribute 'from_pyg' (did you mean 'gnnstore.converters.from_pyg'?)",
    ),
    # --- links
    "nodes to start from": (
        lambda at: Links(at.store, [2], input_nodes="train"),
        "input_nodes is an option of NeighborLoader ... start from edges: edge_label_index",
    ),
    "edges by type": (
        lambda at: Links(at.store, [2], {"cites": 1}),
        "edge_label_index has entries for 'cites'; expected edges of one type, [2, L]",
    ),
    "an edge type": (
        lambda at: Links(at.typed, [2], ("paper", "cite", "paper")),
        "(did you mean ('paper', 'cites', 'paper')?); there are: ",
    ),
    "an amount": (
        lambda at: Links(at.store, [2], neg_sampling_ratio="a"),
        "neg_sampling=('binary', 'a') is not a kind of negatives; expected a mode",
    ),
    "a kind of negatives": (
        lambda at: Links(at.store, [2], neg_sampling={"mod": "binary"}),
        "is not a kind of negatives; ... a dict such as {'mode': 'binary', 'amount': 1}",
    ),
    "amounts": (
        lambda at: Links(at.store, [2], neg_sampling_ratio=torch.rand(2)),
        "neg_sampling=('binary', tensor( ... is not a kind of negatives; expected a mode",
    ),
    "a number as attributes of links": (
        lambda at: Links(at.store, [2], edge_label_attrs=1),
        "edge_label_attrs=1: expected a list of names, such as ['time']",
    ),
    "a fraction": (
        lambda at: Links(at.store, [2], neg_sampling="triplet", degree_fraction="a"),
        "degree_fraction='a': expected a share, 0 to 1",
    ),
    "reverse types": (
        lambda at: Links(at.typed, [2], CITES, exclude_edges="reverse", reverse_types="cites"),
        "reverse_types='cites': expected a dict of edge types, such as {'follows': 'followed_by'}",
    ),
    "attributes of links": (
        lambda at: Links(at.store, [2], edge_label_attrs=["yy"]),
        "has no attribute 'yy'; there are: none",
    ),
    # --- stores
    **{
        f"a key, {key!r}": (
            by_key(key),
            f"takes the name of a type or of an attribute, ... , 'x'][ids], and not {key!r}",
        )
        for key in (None, 0, slice(3), [1, 2], (), (1, "x"), {"name": "x"}, ("node", "x", 0, 1))
    },
    "an array as a key": (
        lambda at: at.store[np.arange(3)],
        "as in store['node', 'x'][ids], and not array([0, 1, 2])",
    ),
    "splits in a list": (
        lambda at: at.store.splits[["train"]],
        "there is no split ['train'] (did you mean 'train'?); the store's splits: train, valid",
    ),
    "edge splits in a list": (
        lambda at: at.store.edge_splits[["train"]],
        "there is no edge split ['train']; it has no edge splits; make a store that has",
    ),
    "attributes in a list": (
        lambda at: at.store.node_attribute(["x"]),
        "no node attribute ['x']; there are: train_mask, val_mask, x, y",
    ),
    "a place of the edges": (
        lambda at: at.store.topology("ram"),
        "mode='ram' is unknown; choose one of memory, mmap, disk",
    ),
    "a store to verify": (
        lambda at: verify(at.store),
        "path has the type GraphStore; expected a path",
    ),
    "a path with a null byte": (
        lambda _: verify("a\0b"),
        r"path='a\x00b' has a null byte, which paths do not have",
    ),
    "packed epochs by a null byte": (
        lambda _: gnnstore.open_packed("a\0b"),
        "no such directory of packed epochs",
    ),
    # --- inference
    # --- inference
    "a whole model": (lambda at: infer(Model(), at.store), LISTED),
    "a whole model in a list": (lambda at: infer([Model()], at.store), LISTED),
    "a class": (
        lambda at: infer([SAGEConv], at.store),
        "layers[0] is the class SAGEConv; give a layer made of it ... SAGEConv(...)",
    ),
    "the store first": (
        lambda at: infer(at.store, at.layers),
        "layers is a GraphStore; the layers come first, and then the store",
    ),
    "data in the store's place": (
        lambda at: infer(at.layers, at.data),
        "store is a torch_geometric.data.data.Data; expected a gnnstore.GraphStore or the path",
    ),
    "a layer without a tensor": (
        lambda at: infer([lambda x, edge_index: (x, edge_index)], at.store),
        "it gives a tuple, and not a tensor of rows",
    ),
    "an output": (
        lambda at: infer(at.layers, at.store, 5),
        "output has the type int; expected a path",
    ),
    "whether to overwrite": (
        lambda at: infer(at.layers, at.store, at.new, overwrite="no"),
        "overwrite='no' is neither True nor False",
    ),
    "progress": (
        lambda at: infer(at.layers, at.store, progress=True),
        "progress=True: expected an object with the methods of gnnstore.progress.Progress",
    ),
    "embeddings": (
        lambda at: embeddings(at.missing),
        "none: there are no embeddings; write some with gnnstore.inference",
    ),
    "embeddings of nowhere": (
        lambda _: embeddings(None),
        "path has the type NoneType; expected a path",
    ),
    "an option of inference": (
        lambda at: infer(at.layers, at.store, devise="cpu"),
        "inference has no option 'devise' (did you mean 'device'?)",
    ),
    "devices": (
        lambda at: infer(at.layers, at.store, device=["cpu"]),
        "device=['cpu']: expected the name of a device, such as 'cuda', or a torch.device",
    ),
    # --- states
    "a path as a state": (
        lambda at: Nodes(at.store, [2], batch_size=5).load_state_dict("state.pt"),
        "the state is a str; expected the dict that state_dict() of a loader returned",
    ),
    "another batch size": (
        lambda at: Nodes(at.store, [2], batch_size=6).load_state_dict(at.state),
        "batch_size: expected 6, found 5. Make the loader as it was",
    ),
    # --- conversions
    "options in a dict": (
        lambda at: pyg(at.data, at.new, options={"seed": 1}),
        "options has the type dict; ... give each option by its name, as in from_pyg(..., over",
    ),
    "no arrays": (
        lambda at: arrays(None, at.new),
        'arrays has the type NoneType; expected a dict of arrays by name, such as {"edge_index"',
    ),
    "numbers in place of columns": (
        lambda at: tables({"src": 1}, at.new),
        'the edges: ... expected columns of one length by name, such as {"src": [...], "dst"',
    ),
    "a type of torch": (
        lambda at: pyg(at.data, at.new, feature_dtype=torch.float16),
        "feature_dtype=torch.float16 is unknown; choose one of ... (did you mean 'float16'?)",
    ),
    "numbers as names": (
        lambda at: pyg(at.data, at.new, time_attr=3),
        "time_attr=3: expected a name, or a list of names",
    ),
    "data and path swapped": (
        lambda at: pyg(at.new, at.data),
        "output has the type Data; ... the input comes first, as in from_pyg(data, output)",
    ),
    "arrays and path swapped": (
        lambda at: arrays(at.new, {"edge_index": [[0], [1]]}),
        "output has the type dict; ... the input comes first, as in from_arrays(arrays, output)",
    ),
    "no path": (
        lambda at: pyg(at.data, None),
        "output has the type NoneType; expected the path of the new store, such as 'graph.gnn'",
    ),
    "an option of a conversion": (
        lambda at: pyg(at.data, at.new, overwite=True),
        "from_pyg has no option 'overwite' (did you mean 'overwrite'?)",
    ),
    "an option of another conversion": (
        lambda at: arrays({}, at.new, lay_out="csc"),
        "from_arrays has no option 'lay_out' (did you mean 'layout'?)",
    ),
    "whether to replace a store": (
        lambda at: pyg(at.data, at.new, overwrite="no"),
        "overwrite='no' is neither True nor False",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message(place: SimpleNamespace, mistake: str) -> None:
    do, message = MISTAKES[mistake]
    with pytest.raises((GnnstoreError, AttributeError)) as refused:
        do(place)
    pattern = ".*".join(map(re.escape, message.split(" ... ")))
    assert re.search(pattern, str(refused.value)), str(refused.value)
    assert not place.new.exists()


def test_unknown_options_are_errors_of_types_too(place: SimpleNamespace) -> None:
    with pytest.raises(TypeError) as refused:
        Nodes(place.store, [2], stategy="static")
    assert isinstance(refused.value, UnknownOptionError)
    assert isinstance(refused.value, UsageError)


def test_numbers_of_numpy_are_sizes_of_batches(place: SimpleNamespace) -> None:
    assert Nodes(place.store, [2], batch_size=torch.tensor(7)).batch_size == 7


def test_none_is_as_no_name(place: SimpleNamespace, tmp_path: Path) -> None:
    found = gnnstore.open(pyg(place.data, tmp_path / "a.gnn", weight_attr=None, time_unit=None))
    assert found.num_nodes == 20


def test_a_model_that_is_a_layer_runs(place: SimpleNamespace) -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv(4, 2)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.conv(x, edge_index).relu()

    assert infer(Wrapped(), place.store).shape == (20, 2)


def test_a_small_budget_in_bytes_is_a_budget(place: SimpleNamespace) -> None:
    with pytest.raises(BudgetError, match=r"has 5000 bytes \(5 kB\) of the memory= budget"):
        infer(place.layers, place.store, memory=5000)


def test_missing_stores_say_where(tmp_path: Path) -> None:
    with pytest.raises(GnnstoreError, match=f"{tmp_path / 'a.gnn'}: no such store; make one"):
        Nodes(tmp_path / "a.gnn", [2])
