"""Orders by time and sums of weights: what conversion writes, what it refuses, what verify sees."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnstore
from gnnstore.converters import ConvertOptions, GraphWriter, from_pyg
from gnnstore.errors import InputError, UsageError
from gnnstore.formats import StoreReader
from gnnstore.formats.store.by_column import integer_weights, sums_by_column
from tests.support.effort import choose
from tests.support.hetero import AT, CITES, TEACHES, WRITES, hetero_store, make_hetero


def twin_order(edge_index: npt.NDArray[Any], times: npt.NDArray[Any]) -> list[list[int]]:
    """Return for each column the places of its edges by (time, edge id), one by one."""
    found = []
    for target in range(int(edge_index[1].max(initial=-1)) + 1):
        ids = [e for e in range(edge_index.shape[1]) if edge_index[1, e] == target]
        column = sorted(ids, key=lambda e: (edge_index[0, e], e))
        by_time = sorted(range(len(column)), key=lambda j: (times[column[j]], column[j]))
        found.append(by_time)
    return found


def by_column(values: npt.NDArray[Any], indptr: npt.NDArray[np.int64]) -> list[list[int]]:
    return [values[a:b].tolist() for a, b in itertools.pairwise(indptr)]


def read(store: gnnstore.GraphStore, edge_type: Any, kind: str, name: str) -> npt.NDArray[Any]:
    return store.reader.read(getattr(store.schema.edge_of(edge_type), kind)[name])


@pytest.mark.parametrize("sort", [False, *choose([], [True])])
def test_orders_of_several_types(tmp_path: Path, sort: bool) -> None:
    data = make_hetero(sort=sort)
    store = hetero_store(tmp_path / "a.gnn", data, time_attr=("time", "edge_time"))
    for edge in store.schema.edge_types:
        edge_index = data[edge.type].edge_index.numpy()
        indptr = store.topology().columns(edge.type).indptr
        assert (edge.edge_id is None) == sort
        for name, times in (
            ("time", data[edge.source].time.numpy()[edge_index[0]]),
            ("edge_time", data[edge.type].edge_time.numpy()),
        ):
            order = read(store, edge.type, "orders", name)
            expected = twin_order(edge_index, times)
            assert by_column(order, indptr)[: len(expected)] == expected
            assert order.dtype == np.uint16
    assert not list(store.reader.meaningless())


def test_only_types_whose_sources_have_times(tmp_path: Path) -> None:
    store = hetero_store(tmp_path / "a.gnn", time_attr=["time"], reverse=["at"])
    orders = {edge.type: list(edge.orders) for edge in store.schema.edge_types}
    assert orders[AT] == orders[CITES] == ["time"]
    assert orders["institution", "rev_at", "author"] == []


def test_orders_of_one_type(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, 9, (2, 60), generator=rng)
    data = Data(edge_index=edge_index, num_nodes=9)
    data.t = torch.randint(0, 5, (60,), generator=rng).int()  # many are equal
    data.w = torch.randint(0, 5, (60,), generator=rng)
    store = gnnstore.open(from_pyg(data, tmp_path / "a.gnn", time_attr="t", weight_attr="w"))
    edge = store.schema.edge
    assert (edge.attributes["t"].dtype, edge.attributes["w"].dtype) == ("int64", "int64")
    indptr = store.topology().columns().indptr
    order = store.reader.read(edge.orders["t"])
    assert by_column(order, indptr) == twin_order(edge_index.numpy(), data.t.numpy())
    sums = store.reader.read(edge.weight_sums["w"])
    for column, weights in zip(
        by_column(sums, indptr), by_column(store.edge_attribute("w").read(), indptr), strict=True
    ):
        total = sum(weights)
        ratios = np.diff(column, prepend=0) / max(1, column[-1] if column else 1)
        assert np.allclose(ratios, np.array(weights) / max(1, total), rtol=1e-12)


def test_times_of_nodes_in_a_store_of_one_type(tmp_path: Path) -> None:
    edge_index = torch.tensor([[0, 1, 2, 0], [0, 0, 0, 1]])
    times = torch.tensor([2**31 + 1, 2**31 - 1, -5])
    data = Data(edge_index=edge_index, time=times, num_nodes=3)
    store = gnnstore.open(from_pyg(data, tmp_path / "a.gnn", time_attr=["time"]))
    assert store.reader.read(store.schema.edge.orders["time"]).tolist() == [2, 1, 0, 0]
    plain = StoreReader.open(from_pyg(data, tmp_path / "b.gnn"))
    assert not plain.schema.edge.orders
    assert "orders" not in (tmp_path / "b.gnn" / "zarr.json").read_text()
    assert "time_attr" not in (tmp_path / "b.gnn" / "zarr.json").read_text()


@pytest.mark.parametrize("seconds", [1_700_000_000, 1_700_000_000_000_000_000])
def test_times_beyond_int32(tmp_path: Path, seconds: int) -> None:
    data = HeteroData()
    data["a"].time = seconds + torch.tensor([1, -1, 0])
    data["a"].num_nodes, data["b"].num_nodes = 3, 1
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2], [0, 0, 0]])
    store = hetero_store(tmp_path / "a.gnn", data, time_attr=["time"], index_dtype="int32")
    assert store.schema.index_dtype == "int32"
    assert read(store, ("a", "to", "b"), "orders", "time").tolist() == [1, 2, 0]


def test_sums_over_twelve_decades() -> None:
    weights = np.array([1e-6, 1e6, 0.0, 1.0, 0.0, 0.0, 5e-324, 1.0, 3.0])
    counts = np.array([4, 2, 0, 1, 2])
    integers = integer_weights(weights, counts)
    assert (integers[weights > 0] > 0).all()
    assert (integers[weights == 0] == 0).all()
    assert integers[:4] / integers[:4].sum() == pytest.approx(weights[:4] / weights[:4].sum())
    sums = sums_by_column(integers, counts)
    assert sums.tolist()[4:6] == [0, 0]
    assert sums[3] == integers[:4].sum() < 2**62
    assert sums[-1] == 4 * sums[-2]


def test_sums_of_many_equal_weights_stay_exact() -> None:
    counts = np.array([100_000])
    sums = sums_by_column(integer_weights(np.full(100_000, 0.1), counts), counts)
    assert len(np.unique(np.diff(sums))) == 1
    assert sums[-1] < 2**63


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8])
def test_weights_of_any_number_type(tmp_path: Path, dtype: torch.dtype) -> None:
    data = Data(edge_index=torch.tensor([[0, 1, 2], [0, 0, 0]]), num_nodes=5)
    data.w = torch.tensor([[1], [2], [1]]).to(dtype)
    store = gnnstore.open(from_pyg(data, tmp_path / "a.gnn", weight_attr="w"))
    sums = store.reader.read(store.schema.edge.weight_sums["w"]).astype(np.int64)
    assert (np.diff(sums, prepend=0) / sums[-1]).tolist() == [0.25, 0.5, 0.25]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.tensor([1.0, float("nan"), 2.0]), r"edges of type .*: the weight of edge 1 is nan"),
        (torch.tensor([1.0, 2.0, float("inf")]), "the weight of edge 2 is inf; weights are finite"),
        (torch.tensor([-1, 2, 3]), r"the weight of edge 0 is -1\.0"),
        (torch.ones(3, 2), r"are float32 \[E, 2\]; expected one number for each edge"),
        (torch.full((3,), 1.7e308, dtype=torch.float64), "of 3 edges into one node add up to inf"),
    ],
)
def test_bad_weights(tmp_path: Path, values: torch.Tensor, message: str) -> None:
    data = make_hetero(counts={"paper": 1}, degrees={CITES: 3}, widths={})
    data[CITES].w = values
    with pytest.raises(InputError, match=message):
        hetero_store(tmp_path / "a.gnn", data, weight_attr=["w"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            torch.tensor([1.0, float("nan"), float("nan")]),
            "'author' are float32 .* decide on a time for rows that have none",
        ),
        (torch.tensor([1, -(2**63), 3]), "'time' of nodes of type 'author': row 1 is NaT"),
        (torch.ones(3, 2, dtype=torch.int64), r"are int64 \[N, 2\]; times are one integer"),
        (torch.tensor([True, False, True]), r"are bool \[N\]; times are one integer"),
    ],
)
def test_bad_times_of_nodes(tmp_path: Path, values: torch.Tensor, message: str) -> None:
    data = make_hetero(counts={"author": 3}, degrees={TEACHES: 2})
    data["author"].time = values
    with pytest.raises(InputError, match=message):
        hetero_store(tmp_path / "a.gnn", data, time_attr=["time"])
    assert not list(tmp_path.iterdir())


def test_bad_times_of_edges(tmp_path: Path) -> None:
    data = make_hetero()
    data[WRITES].edge_time = data[WRITES].edge_time.double()
    message = r"the times 'edge_time' of edges of type \('author', 'writes', 'paper'\) are float64"
    with pytest.raises(InputError, match=message):
        hetero_store(tmp_path / "a.gnn", data, time_attr=["edge_time"])
    data[WRITES].edge_time = torch.full((180,), -(2**63))
    with pytest.raises(InputError, match=r"'writes', 'paper'\): row 0 is NaT"):
        hetero_store(tmp_path / "a.gnn", data, time_attr=["edge_time"])


def test_times_above_int64() -> None:
    edges = np.array([0, 1]), np.array([1, 0])
    options = ConvertOptions(time_attr=("t",))
    with (
        pytest.raises(InputError, match=f"the times 't' of my edges: row 1 is {2**63}, above int"),
        GraphWriter("a.gnn", kind="test", options=options, num_nodes=2) as writer,
    ):
        writer.add_edges(*edges, {"t": np.array([1, 2**63], np.uint64)}, where="my edges")


def test_no_reverse_type_in_a_graph_of_one_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="adds types of edges, and this conversion makes"):
        GraphWriter(tmp_path / "a.gnn", kind="test", options=ConvertOptions(reverse=("all",)))


def test_names_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"time_attr='tiem': there is no such node or edge attri"):
        hetero_store(tmp_path / "a.gnn", time_attr=["tiem"])
    with pytest.raises(UsageError, match=r"weight_attr='x': there is no such edge attribute; the"):
        hetero_store(tmp_path / "a.gnn", weight_attr=["x"])
    data = make_hetero()
    data[CITES].time = data[CITES].edge_time
    with pytest.raises(InputError, match=r"time_attr='time': nodes \(paper, author\) and edges \("):
        hetero_store(tmp_path / "a.gnn", data, time_attr=["time"])


def damage(path: Path, array: str, place: int, value: int) -> None:
    """Write another number into an array of 16- or 64-bit numbers, past all checksums."""
    reader = StoreReader.open(path)
    spec = next(spec for spec in reader.schema.arrays() if spec.path.endswith(array))
    file = reader.paged(spec).file_paths[0]
    with file.open("r+b") as stream:
        stream.seek(place * spec.row_bytes)
        stream.write(int(value).to_bytes(spec.row_bytes, "little"))


def test_verify_sees_damage(tmp_path: Path) -> None:
    sound = hetero_store(tmp_path / "a.gnn", time_attr=["time"], weight_attr=["w"])
    assert not list(sound.reader.meaningless())
    for array, value, message in (
        ("paper__cites__paper/order/time", 9, "the order at edge 0 does not follow the times"),
        ("paper__cites__paper/weight_sums/w", 7, "the sum at edge 0 does not fit the weights"),
    ):
        store = shutil.copytree(sound.path, tmp_path / f"{value}.gnn")
        damage(store, array, 0, value)
        (problem,) = StoreReader.open(store).meaningless()
        assert message in problem.message
        assert array in problem.path
