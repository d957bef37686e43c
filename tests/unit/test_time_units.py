"""Units of times: one for each name, the finest, which stores record and seeds obey."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch_geometric.data import Data

import gnnstore
from gnnstore.converters import (
    ConvertOptions,
    add_order,
    from_arrays,
    from_kronecker,
    from_numpy,
    from_pyg,
    from_tables,
    from_typed,
    partition,
    reorder,
    split_edges,
)
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.sampling.sampled_graph import columns_needed
from gnnstore.tools.cli import main

DAY_US = 86_400 * 10**6
SINCE = dt.date(1970, 1, 1)


def write(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def days(*values: dt.date | None) -> pa.Array:
    return pa.array(values, pa.date32())


def stamps(unit: str, *values: str, zone: str | None = None) -> pa.Array:
    return pa.array(np.array(values, f"M8[{unit}]"), pa.timestamp(unit, zone))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a graph in which both users buy both items; one signs up after the first is there."""
    root = tmp_path / "shop"
    write(root / "nodes" / "user.parquet", time=days(dt.date(2020, 12, 31), dt.date(2021, 1, 2)))
    times = stamps("us", "2021-01-01", "2021-01-03")
    write(root / "nodes" / "item.parquet", time=times, seen=times)
    ends = {"source": [0, 1, 0, 1], "target": [0, 0, 1, 1]}
    write(root / "edges" / "user__buys__item.parquet", **ends)
    return root


def units(store: gnnstore.GraphStore, name: str = "time") -> list[str | None]:
    specs = [*store.schema.node_attributes(), *store.schema.edge_attributes()]
    return [spec.time_unit for spec in specs if spec.name == name]


def test_a_seed_sees_what_was_there(tmp_path: Path, shop: Path) -> None:
    """Days and microseconds are compared as times: item 0 of 2021-01-01 sees user 0 alone."""
    options = ConvertOptions(time_attr=("time",))
    store = gnnstore.open(from_typed(shop, tmp_path / "o.gnn", options=options))
    first = (dt.date(2020, 12, 31) - SINCE).days * DAY_US
    assert store["user"].time[:].tolist() == [first, first + 2 * DAY_US]
    assert store["item"].time[:].tolist() == [first + DAY_US, first + 3 * DAY_US]
    assert (units(store), units(store, "seen")) == (["us", "us"], ["us"])
    loader = gnnstore.NeighborLoader(store, [-1], ("item", None), time_attr="time")
    assert [batch["user"].n_id.tolist() for batch in loader] == [[0], [0, 1]]


@pytest.mark.parametrize("are_named", [False, True])
def test_units_of_files(tmp_path: Path, are_named: bool) -> None:
    """Parts of a table may have any unit; edges of one name have that of nodes, too."""
    parts = (days(dt.date(1969, 12, 31)), stamps("s", "2021-01-01"), stamps("ms", "2021-01-01"))
    for i, times in enumerate((*parts, stamps("ns", "2021-01-01T00:00:00.000000001"))):
        ends = [f"v{i}"] if are_named else [i]
        write(tmp_path / "e" / f"{i}.parquet", source=ends, target=ends, when=times)
    names = ["v0", "v1", "v2", "v3"] if are_named else [0, 1, 2, 3]
    write(tmp_path / "n.parquet", id=names, when=stamps("s", *4 * ["2021-01-01"]))
    out = from_tables(
        tmp_path / "e",
        tmp_path / "o.gnn",
        edge_columns=["when"],
        nodes=tmp_path / "n.parquet",
        node_id="id",
        node_columns=["when"],
    )
    store = gnnstore.open(out)
    year = (dt.date(2021, 1, 1) - SINCE).days * DAY_US * 1000
    (edge,), (node,) = store.schema.edge_types, store.schema.node_types
    assert store.reader.read(node.attributes["when"]).tolist() == 4 * [year]
    found = store.reader.paged(edge.attributes["when"]).load()
    assert sorted(found.tolist()) == [-DAY_US * 1000, year, year, year + 1]
    assert units(store, "when") == ["ns", "ns"]


def test_integers_of_a_stated_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times with a unit and times without are refused, unless the unit is stated."""
    write(tmp_path / "nodes" / "user.parquet", time=days(dt.date(1970, 1, 2)))
    write(tmp_path / "nodes" / "item.parquet", time=[86_399, 86_400])
    write(tmp_path / "edges" / "user__buys__item.parquet", source=[0, 0], target=[0, 1])
    words = ["convert", "typed", str(tmp_path), str(tmp_path / "o.gnn"), "-q"]
    times = ["--time-attr", "time"]
    assert main([*words, *times]) == 1
    said = capsys.readouterr().err
    assert "user.parquet: time is in the unit D" in said
    assert "--time-unit time=s" in said
    assert main([*words, *times, "--time-unit", "time=s"]) == 0
    store = gnnstore.open(tmp_path / "o.gnn")
    assert store["user"].time[:].tolist() == [86_400]
    assert store["item"].time[:].tolist() == [86_399, 86_400]
    assert units(store) == ["s", "s"]
    loader = gnnstore.NeighborLoader(store, [-1], ("item", None), time_attr="time")
    assert [batch["user"].num_nodes for batch in loader] == [0, 1]


def stated(units: dict[str, str]) -> ConvertOptions:
    return ConvertOptions(time_unit=units)  # type: ignore[arg-type]


def test_units_that_are_stated_wrongly(tmp_path: Path, shop: Path) -> None:
    edges = {"edge_index": [[0, 1], [1, 0]], "time": np.arange(2), "x": np.ones((2, 1))}
    store = gnnstore.open(from_arrays(edges, tmp_path / "a.gnn", options=stated({"time": "ms"})))
    assert units(store) == ["ms"]
    for given, message in (
        ({"tiem": "s"}, "time_unit='tiem': there is no such node or edge attribute"),
        ({"x": "s"}, "x: is float64, and times in a unit are integers"),
        ({"time": "h"}, "time_unit='time=h': expected NAME=UNIT, with one of D, s, ms, us, ns"),
    ):
        with pytest.raises((UsageError, InputError), match=message):
            from_arrays(edges, tmp_path / "b.gnn", options=stated(given))
    options = stated({"time": "s"})
    with pytest.raises(UsageError, match="all columns of this name state their unit"):
        from_typed(shop, tmp_path / "b.gnn", options=options)
    assert not (tmp_path / "b.gnn").exists()


def test_times_that_are_refused(tmp_path: Path) -> None:
    edges = pa.table({"source": [0], "target": [0]})
    early = stamps("us", "2021-01-01")

    def convert(nodes: pa.Array, times: pa.Array) -> None:
        from_tables(
            edges.append_column("time", times),
            tmp_path / "o.gnn",
            edge_columns=["time"],
            nodes=pa.table({"time": nodes}),
            node_columns=["time"],
        )

    with pytest.raises(InputError, match=r"row 0: 9999999999999 s does not fit int64 in us, the"):
        convert(pa.array([9_999_999_999_999], pa.timestamp("s")), early)
    with pytest.raises(InputError, match="row 0 has no value"):
        convert(stamps("s", "NaT"), early)
    with pytest.raises(InputError, match="row 0 is NaT; decide on a time"):
        convert(early, pa.array([-(2**63)], pa.int64()).view(pa.timestamp("us")))
    for i, zone in enumerate((None, "UTC")):
        write(
            tmp_path / "z" / f"{i}.parquet",
            source=[0],
            target=[0],
            t=stamps("s", "2021", zone=zone),
        )
    with pytest.raises(InputError, match="files of one table need the same columns"):
        from_tables(tmp_path / "z", tmp_path / "o.gnn", edge_columns=["t"])


def test_units_stay_with_what_is_made_of_a_store(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 30, (2, 200))
    times = pa.array(np.arange(200), pa.timestamp("ms"))
    path = from_tables(
        pa.table({"source": ends[0], "target": ends[1], "at": times}),
        tmp_path / "a.gnn",
        edge_columns=["at"],
        nodes=pa.table({"born": times.slice(0, 30), "x": rng.random((30, 2)).tolist()}),
        node_columns=["born"],
        features="x",
    )
    made = [
        path,
        reorder(path, tmp_path / "b.gnn"),
        split_edges(path, tmp_path / "c.gnn", (0.8, 0.1, 0.1)),
        from_kronecker(path, tmp_path / "d.gnn", factor=2, features=False),
    ]
    parts = partition(path, 2)
    add_order(tmp_path / "b.gnn", "at")
    for store in map(gnnstore.open, made):
        assert units(store, "born") == ["ms"], store.path
        (edge,) = store.schema.edge_types
        assert edge.attributes["at"].time_unit == "ms"
        assert {own.attributes["at"].time_unit for own in edge.splits.values()} <= {"ms"}
    assert PartitionsReader.open(parts).nodes["born"].time_unit == "ms"


def test_reverse_types_share_units(tmp_path: Path) -> None:
    rows = pa.array(np.arange(24).reshape(2, 12).tolist(), pa.list_(pa.timestamp("ms"), 12))
    columns = {"source": [0, 1], "target": [1, 0], "at": days(SINCE, SINCE), "wide": rows}
    write(tmp_path / "edges" / "a__to__b.parquet", **columns)
    options = ConvertOptions(reverse=("all",), time_attr=("at",))
    store = gnnstore.open(from_typed(tmp_path, tmp_path / "o.gnn", options=options))
    assert (units(store, "at"), units(store, "wide")) == (["D", "D"], ["ms", "ms"])


def test_orders_and_loaders_refuse_other_units(tmp_path: Path, shop: Path) -> None:
    write(shop / "nodes" / "user.parquet", time=[1, 2])
    store = gnnstore.open(from_typed(shop, tmp_path / "o.gnn"))
    assert units(store) == ["us", None]
    with pytest.raises(InputError, match=r"its units differ \(item: us, user: none\)"):
        add_order(store.path, "time")
    write(shop / "nodes" / "user.parquet", time=days(SINCE, SINCE))
    options = ConvertOptions(time_attr=("time",))
    schema = gnnstore.open(from_typed(shop, tmp_path / "p.gnn", options=options)).schema
    item, user = schema.node_types
    other = replace(schema, node_types=(item, user.with_time_units({"time": "D"})))
    with pytest.raises(UsageError, match="in item it is in us, in user it is in D; times"):
        columns_needed(other, tmp_path, "time", None)


def seed_times(*values: str, unit: str = "s") -> Any:
    return np.array(values, f"M8[{unit}]")


def test_seed_times_are_in_the_unit_of_the_store(tmp_path: Path) -> None:
    """A finer unit rounds down, before 1970 too; a coarser one is exact."""

    def convert(name: str, times: Any) -> Path:
        edges = pa.table({"source": [1, 1], "target": [0, 0], "at": times})
        how: dict[str, Any] = {"edge_columns": ["at"], "time_attr": "at", "num_nodes": 2}
        return from_tables(edges, tmp_path / name, **how)

    path = convert("days.gnn", days(dt.date(1969, 12, 30), SINCE))
    how: dict[str, Any] = {"time_attr": "at", "batch_size": 3}
    given = seed_times("1969-12-31T23:59:59", "1970-01-01", "1969-12-29T00:00:01")
    loader = gnnstore.NeighborLoader(path, [-1], torch.tensor([0, 0, 0]), input_time=given, **how)
    (batch,) = loader
    assert batch.seed_time.tolist() == [-1, 0, -3]
    assert sorted(batch.batch[batch.edge_index[1]].tolist()) == [0, 1, 1]
    pairs = torch.tensor([[0, 0], [0, 0]])
    links = gnnstore.LinkNeighborLoader(path, [-1], pairs, edge_label_time=given[:2], **how)
    (batch,) = links
    assert batch.edge_label_time.tolist() == [-1, 0]
    fine, plain = convert("ns.gnn", stamps("ns", "1970", "1970")), convert("int.gnn", [1, 2])
    for store, wrong, message in (
        (path, seed_times("NaT", "1970", "1970"), "input_time: entry 0 is NaT"),
        (path, np.zeros(3), "give whole numbers of 64 bits"),
        (fine, seed_times("9999", "1970", "1970"), "9999-01-01T00:00:00 does not fit int64 in ns"),
        (plain, given, "the store records no unit of 'at'; give whole numbers in its unit"),
    ):
        with pytest.raises((InputError, UsageError), match=message):
            gnnstore.NeighborLoader(store, [-1], [0, 0, 0], input_time=wrong, **how)


def test_arrays_of_times_have_units(tmp_path: Path, shop: Path) -> None:
    """Arrays of datetime64 are columns of time, whatever way they come."""
    there = np.array(["2020-01-01", "1969-12-31", "2020-01-03"], "M8[D]")
    of_edges, ends = there.astype(">M8[h]"), np.array([[0, 1, 2], [1, 2, 0]])
    arrays: dict[str, Any] = {"edge_index": ends, "time": there, "edge_time": of_edges}
    np.savez(tmp_path / "a.npz", **arrays)
    data = Data(edge_index=torch.from_numpy(ends), num_nodes=3, time=there, edge_time=of_edges)
    lists = Data(**{**data.to_dict(), "time": list(there), "edge_time": list(of_edges)})
    for path in (
        from_numpy(tmp_path / "a.npz", tmp_path / "a.gnn"),
        from_arrays(arrays, tmp_path / "b.gnn", options=ConvertOptions(time_attr=("time",))),
        from_pyg(data, tmp_path / "c.gnn", options=ConvertOptions(time_attr=("edge_time",))),
        from_pyg(lists, tmp_path / "l.gnn", options=ConvertOptions(time_attr=("edge_time",))),
    ):
        store = gnnstore.open(path)
        assert (units(store), units(store, "edge_time")) == (["D"], ["s"])
        assert store.time[:].tolist() == [18262, -1, 18264]
        hours = torch.from_numpy(of_edges.astype("M8[s]").astype(np.int64))
        assert torch.equal(store.edge_time[:], hours[store.edge_index[0]])
    (shop / "nodes" / "user.parquet").unlink()
    (shop / "nodes" / "user").mkdir()
    np.save(shop / "nodes" / "user" / "time.npy", seed_times("2020-12-31", "2021-01-02"))
    options = ConvertOptions(time_attr=("time",))
    store = gnnstore.open(from_typed(shop, tmp_path / "d.gnn", options=options))
    assert units(store) == ["us", "us"]
    loader = gnnstore.NeighborLoader(store, [-1], ("item", None), time_attr="time")
    assert [batch["user"].n_id.tolist() for batch in loader] == [[0], [0, 1]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"time": np.array(["2020", "NaT"], "M8[Y]")}, "time: row 1 is NaT; decide on a time"),
        ({"time": np.array([1, 2], "M8[ps]")}, r"datetime64\[ps\], and units of times are D, s,"),
        ({"time": np.array([0, 2**62], "M8[h]")}, "time: row 1: .* does not fit int64 in s"),
        ({"time": np.array([1, 2], "m8[s]")}, "'timedelta64.*', which a store cannot hold"),
        ({"train": seed_times("1970", "1970")}, "ids are integers"),
        ({"edge_index": seed_times("1970", "1970").reshape(2, 1)}, "expected integers: node ids"),
        ({"num_nodes": seed_times("1970")}, "expected one non-negative integer"),
    ],
)
def test_times_that_cannot_be(tmp_path: Path, given: Any, message: str) -> None:
    arrays = {"edge_index": np.zeros((2, 1), np.int64), **given}
    with pytest.raises(InputError, match=message):
        from_arrays({"num_nodes": 2, **arrays}, tmp_path / "o.gnn")
    assert not list(tmp_path.iterdir())


def test_packed_epochs_keep_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of datetime64 has times of seeds, in the unit of the store, which epochs record."""
    arrays = {"edge_index": [[0, 1], [1, 0]], "time": np.array(["2020", "2021"], "M8[D]")}
    options = ConvertOptions(time_attr=("time",))
    path = from_arrays(arrays, tmp_path / "a.gnn", options=options)
    np.save(tmp_path / "at.npy", seed_times("2020-06-01T23:00", "1969-12-31T23:00"))
    asked = ["--input-nodes", "all", "--time-attr", "time", "--num-neighbors", "2"]
    words = ["--input-time", str(tmp_path / "at.npy"), "--no-shuffle", "--quiet"]
    assert main(["pack", str(path), "--output", str(tmp_path / "p"), *asked, *words]) == 0
    packed = gnnstore.open_packed(tmp_path / "p")
    (batch,) = packed.loader()
    assert batch.seed_time.tolist() == [18414, -1]
    assert batch.n_id.tolist() == [0, 1]
    assert packed.reader.manifest.schema.node.attributes["time"].time_unit == "D"
    capsys.readouterr()
    assert main(["inspect", str(path), "--json"]) == 0
    found = {own["name"]: own["time_unit"] for own in json.loads(capsys.readouterr().out)["arrays"]}
    assert (found["time"], found["indices"]) == ("D", None)
    assert main(["inspect", str(path)]) == 0
    assert "int64 2 in D" in capsys.readouterr().out
