"""Names of scales: what else has one is kept apart, or refused, and is never taken for scales."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnstore
from gnnstore.converters import ConvertOptions, from_pyg, quantize, reorder
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.store.schema import Schema
from tests.support.effort import choose
from tests.support.packing import pack


def test_integers_and_factors_of_the_input_stay_apart(tmp_path: Path) -> None:
    """A graph may have rows of int8, and numbers that would be scales in the first stores."""
    rows = torch.tensor([[1, -128, 0], [3, 4, 5]], dtype=torch.int8)
    edge_index = torch.tensor([[0], [1]])
    for number, value in enumerate(choose((np.nan,), (0.5, np.nan))):
        own = torch.tensor([2.0, 1.0, value])
        graph = Data(edge_index=edge_index, x=rows, x_scale=own, num_nodes=2)
        store = gnnstore.open(from_pyg(graph, tmp_path / f"{number}.gnn"))
        loader = gnnstore.NeighborLoader(store, [1], torch.arange(2), batch_size=2)
        packed = gnnstore.open_packed(pack(store.path, (1,), torch.arange(2), epochs=1))
        for found in (store.to_pyg(), *loader, *packed.loader()):
            assert torch.equal(found.x, rows[found.get("n_id", [0, 1])])
            assert torch.allclose(found.x_scale, own, equal_nan=True)
        again = gnnstore.open(reorder(store.path, tmp_path / f"{number}-again.gnn"))
        assert again.x.dtype == torch.int8
        assert list(again.schema.graph_arrays) == ["x_scale"]


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(torch.ones(4), id="of columns"),
        pytest.param("mine", id="of the graph"),
        pytest.param(torch.ones(3), id="of nodes"),
        pytest.param(torch.ones(3, 2), id="of nodes, in rows"),
    ],
)
def test_names_of_scales_are_refused_in_conversions_and_quantize(tmp_path: Path, own: Any) -> None:
    message = "'x_scale' is what batches call the scales of 'x'.*renamed, as 'own_x_scale'"
    rows = torch.eye(3, 4) + 1  # columns that int8 holds well
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), x=rows, num_nodes=3)
    data.x_scale = own
    with pytest.raises(InputError, match=message):
        from_pyg(data, tmp_path / "s.gnn", feature_dtype="int8", feature_scale="column")
    plain = from_pyg(data, tmp_path / "plain.gnn")
    with pytest.raises(InputError, match=message):
        quantize(plain, tmp_path / "s.gnn")
    assert [path.name for path in tmp_path.iterdir()] == ["plain.gnn"]


def test_names_of_scales_in_stores_with_types(tmp_path: Path) -> None:
    data = HeteroData({"x_scale": torch.ones(2)})  # of the graph: batches show it apart
    data["a"].x = data["b"].x = torch.eye(3, 2)
    data["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
    int8 = ConvertOptions(feature_dtype="int8", feature_scale="column")
    from_pyg(data, tmp_path / "s.gnn", options=int8)
    data["b"].x_scale = "mine"
    plain = from_pyg(data, tmp_path / "plain.gnn")
    with pytest.raises(InputError, match=r"'b'.*'x_scale' is what batches call the scales"):
        from_pyg(data, tmp_path / "t.gnn", options=int8)
    with pytest.raises(InputError, match=r"'b'.*'x_scale' is what batches call the scales"):
        quantize(plain, tmp_path / "t.gnn")


@pytest.mark.parametrize("own", ["mine", torch.ones(3), torch.ones(2)])
def test_types_without_features_keep_what_would_be_scales(tmp_path: Path, own: Any) -> None:
    data = HeteroData()
    data["a"].x = torch.tensor([[0.0, 1.0], [2.0, 4.0]])
    data["b"].num_nodes = 3
    data["b"].x_scale = own
    data["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
    path = from_pyg(data, tmp_path / "s.gnn", feature_dtype="int8", feature_scale="column")
    found = gnnstore.open(path).to_pyg()["b"].x_scale
    assert torch.equal(found, own) if isinstance(own, torch.Tensor) else found == own


def test_scales_that_share_their_name_stay_the_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such stores were written once; copies of them are refused before any work."""
    rows, own = torch.eye(3, 4), torch.tensor([5.0, 7.0, 6.0, 8.0])
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), x=rows, x_scale=own, num_nodes=3)
    plain = from_pyg(data, tmp_path / "plain.gnn")
    with monkeypatch.context() as patched:
        patched.setattr(Schema, "refuse_taken_names", lambda *_: None)
        store = gnnstore.open(quantize(plain, tmp_path / "q.gnn"))
    assert torch.allclose(store.x.tensor(), rows, atol=0.01)
    assert torch.equal(store.to_pyg().x_scale, own)
    with pytest.raises(UsageError, match="would be 'x_scale', and there is something of the graph"):
        gnnstore.open(store.path, decode=None)
    monkeypatch.setattr("gnnstore.converters.writer.base.open_store", pytest.fail)
    with pytest.raises(InputError, match="'x_scale' is what batches call the scales"):
        reorder(store.path, tmp_path / "again.gnn")
