"""Attributes of int8 whose columns have scales: batches have their numbers, whatever the way."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnnstore
from gnnstore import PartitionPolicy
from gnnstore.converters import ConvertOptions, GraphWriter
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import UsageError
from gnnstore.formats import StoreReader
from gnnstore.plugins import ReadCounts, Tier, shared_tables
from gnnstore.threads import Lookahead
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.every_loader import CASES, NODES, WAYS, OpenStores, make, open_stores
from tests.support.packing import pack

N, WIDTH = 600, 12
INT8 = ConvertOptions(feature_dtype="int8", feature_scale="column")


def write(path: Path, dtype: str = "float32", *, width: int = WIDTH, cat_dim: int = 0) -> Path:
    """Write a graph whose x is int8 with scales, with labels and a second table."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, width)) * np.exp2(np.arange(width) - 5)
    with GraphWriter(path, kind="test", num_nodes=N, options=INT8) as out:
        if dtype == "bfloat16":
            values = torch.from_numpy(x).to(torch.bfloat16).view(torch.uint16).numpy()
        else:
            values = x.astype(dtype)
        out.set_node_attribute("x", values, dtype=dtype, cat_dim=cat_dim)
        out.set_node_attribute("y", rng.integers(0, 7, N))
        out.set_node_attribute("z", rng.standard_normal((N, 3)).astype(np.float32))
        out.set_split("train", np.arange(0, N, 3))
        out.add_edges(*rng.integers(0, N, (2, 5000)))
        return out.commit()


def numbers(path: Path, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return x by its definition: one product in float32, and one rounding."""
    reader = StoreReader.open(path)
    rows = torch.from_numpy(reader.read(reader.schema.node.attributes["x"]))
    (scales,) = reader.scales.values()
    return (rows.to(torch.float32) * torch.from_numpy(scales)).to(dtype)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("decoded") / "s.gnn")


def loader_of(data: Any, **options: Any) -> gnnstore.NeighborLoader:
    given: dict[str, Any] = {"batch_size": 40, "shuffle": True, "seed": 3, **options}
    return gnnstore.NeighborLoader(data, [4, 3], "train", **given)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - its own


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize(
    "decode", choose(["bfloat16", None], ["input", "float16", "bfloat16", None])
)
def test_every_strategy_has_the_numbers(path: Path, decode: Any) -> None:
    store = gnnstore.open(path, decode=decode)
    expected = batches_of(loader_of(store, strategy="memory", num_threads=0), 2)
    dtype = {"input": torch.float32, None: torch.int8}.get(decode) or getattr(torch, decode)
    whole = numbers(path, dtype) if decode else torch.from_numpy(stored(path))
    for batch in expected:
        assert same(batch["x"], whole[batch["n_id"]])
        assert ("x_scale" in batch) == (decode is None)
    for strategy in ("mmap", "direct", "static", "belady", "packed"):
        options = {"strategy": strategy, "num_threads": 2}
        options |= {"cache_bytes": 1500} if strategy in ("static", "belady", "packed") else {}
        assert_same_batches(batches_of(loader_of(store, **options), 2), expected)
    assert_same_batches(batches_of(loader_of(path, decode=decode), 2), expected)


def stored(path: Path) -> Any:
    reader = StoreReader.open(path)
    return reader.read(reader.schema.node.attributes["x"])


@pytest.mark.parametrize(
    "dtype", choose(["bfloat16", "float64"], ["float16", "bfloat16", "float64"])
)
def test_the_type_of_the_input(tmp_path: Path, dtype: str) -> None:
    path = write(tmp_path / "s.gnn", dtype)
    wanted = torch.float32 if dtype == "float64" else getattr(torch, dtype)
    store, whole = gnnstore.open(path), numbers(path, wanted)
    assert store.x.dtype == wanted
    assert same(store.x.tensor(), whole)
    assert same(store.x[[5, 3, 5]], whole[[5, 3, 5]])
    assert same(store.x[10:14], whole[10:14])
    assert same(store.x[7], whole[7])
    assert same(store.to_pyg().x, whole)
    assert same(store.get_tensor(attr_name="x", group_name=None, index=None), whole)
    for batch in loader_of(store):
        assert same(batch.x, whole[batch.n_id])


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> OpenStores:
    return open_stores(
        tmp_path_factory.mktemp("types"),
        feature_dtype={"x": "int8"},
        feature_scale="column",
        allow_error=True,
    )


@pytest.mark.filterwarnings("ignore:edge_label_time of some seed edges")
@pytest.mark.parametrize(
    # In `make test` three strategies that read rows from disk, each in a loader of its own kind.
    ("case", "way"),
    paired(choose(["nodes", "links", "plain, weights"], CASES), choose(WAYS[2::4], WAYS)),
)
def test_every_loader_has_them(stores: OpenStores, case: str, way: dict[str, Any]) -> None:
    options = {"batch_size": choose(14, 6)} if case in NODES else {}
    plain = batches_of(make(stores, case, strategy="memory", decode=None, **options))
    found = batches_of(make(stores, case, **options, **way))
    for coded, batch in zip(plain, found, strict=True):
        for own, shown in zip(parts_of(coded), parts_of(batch), strict=True):
            assert same(own["x"] * own.pop("x_scale"), shown["x"])
            own["x"] = shown["x"]
    assert_same_batches(found, plain)


def parts_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the batch, or the parts of node types, that have scaled features."""
    parts = [part for part in (batch, *batch.values()) if isinstance(part, dict)]
    return [part for part in parts if "x" in part]


class Plain(Tier):
    """A tier that has the least methods."""

    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        return self.below.read_rows(ids, out)


def test_other_ways_to_a_batch(tmp_path: Path) -> None:
    """Partitions, a tier of a plug-in, and a changed output of the sampler."""
    path = write(tmp_path / "s.gnn")
    store, whole = gnnstore.open(path, decode="float16"), numbers(path, torch.float16)
    plain = batches_of(loader_of(store))
    for strategy in choose(("packed",), ("memory", "belady", "packed")):
        options = {"strategy": strategy, "transform_sampler_output": lambda output: output}
        assert_same_batches(batches_of(loader_of(store, **options)), plain)
    shared_tables(other := gnnstore.open(path, decode="float16")).add_tier(Plain)
    for strategy in choose(("static",), ("memory", "mmap", "static", "belady")):
        assert_same_batches(batches_of(loader_of(other, strategy=strategy)), plain)
    partition(path, num_partitions=4, name="p", seed=1)
    policy = PartitionPolicy("dispersed", capacity=2, name="p")
    for batch in loader_of(store, partitions=policy):
        assert same(batch.x, whole[batch.n_id])


@pytest.mark.parametrize("cat_dim", [0, 1])
def test_a_device_decodes_what_is_moved_as_int8(tmp_path: Path, cat_dim: int) -> None:
    """Rows of the host, and those that stay on the device, joined."""
    path = write(tmp_path / "s.gnn", cat_dim=cat_dim)
    ways: list[tuple[Any, str]]
    ways = [*choose((), (("input", "memory"), ("float16", "static"))), ("bfloat16", "packed")]
    for decode, strategy in ways:
        store = gnnstore.open(path, decode=decode)
        expected = batches_of(loader_of(store), 2)
        assert expected[0]["x"].shape[cat_dim] == len(expected[0]["n_id"])
        for size in choose(("1.5kB",), ("1.5kB", "1MB")):
            loader = loader_of(store, strategy=strategy, device="cpu", device_cache=size)
            found = batches_of(loader, 2)
            assert_same_batches(found, expected)
            values = [each for batch in found for each in batch.values()]
            shown = sum(each.nbytes for each in values if isinstance(each, torch.Tensor))
            decoded = sum(batch["x"].nbytes for batch in found)
            assert 0 < loader.stats().bytes_to_device < shown - decoded * 0.45
    (batch, *_) = loader_of(store, device="cpu", device_cache="1kB")
    with pytest.raises(AttributeError, match="comes decoded"):
        _ = batch.x_scale


def test_packed_epochs_are_decoded_where_they_are_read(path: Path, tmp_path: Path) -> None:
    packed = pack(path, [4, 3], epochs=1, output=tmp_path / "packed")
    plain = batches_of(gnnstore.open_packed(packed).loader(), 1)
    whole = numbers(path)
    assert all(same(batch["x"], whole[batch["n_id"]]) for batch in plain)
    half = gnnstore.open_packed(packed, decode="float16")
    for batch in (*batches_of(half.loader()), *batches_of(pickled(half).loader())):
        assert same(batch["x"], numbers(path, torch.float16)[batch["n_id"]])
    for batch in batches_of(half.loader(decode=None), 1):
        assert batch["x"].dtype == torch.int8
        assert same(batch["x"] * batch["x_scale"], whole[batch["n_id"]])


@pytest.mark.parametrize(("decode", "each"), [("input", WIDTH), (None, 0)])
def test_rows_as_stored_count_while_a_batch_is_prepared(
    path: Path, decode: Any, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = []

    def observe(_: object, num_bytes: int, sample_bytes: int, working_bytes: int) -> None:
        observed.append((num_bytes - sample_bytes, working_bytes))

    monkeypatch.setattr(Lookahead, "observe", observe)
    batches = list(loader_of(gnnstore.open(path), strategy="direct", decode=decode))
    assert [working for _, working in observed] == [each * batch.num_nodes for batch in batches]
    assert all(gathered > working for gathered, working in observed)


def test_scales_are_there_only_for_those_who_ask(path: Path, tmp_path: Path) -> None:
    (batch, *_) = loader_of(path)
    decoded = gnnstore.open(path)
    assert type(batch) is Data
    for data in (batch, batch.clone(), pickled(batch), decoded, decoded.to_pyg()):
        with pytest.raises(AttributeError, match=r"no 'x_scale': 'x' comes decoded.*decode=None"):
            _ = data.x_scale
        with pytest.raises(AttributeError, match="z_scales"):
            _ = data.z_scales
    with pytest.raises(KeyError, match=r"no 'x_scale': 'x' comes decoded.*decode=None"):
        decoded.get_tensor(None, "x_scale", index=None)
    raw = gnnstore.open(path, decode=None)
    for data in (next(iter(loader_of(raw))), raw, raw.to_pyg(), pickled(raw)):
        assert data.x.dtype == torch.int8
        assert data.x_scale.dtype == torch.float32
    assert same(raw.x.tensor() * raw.x_scale, decoded.x.tensor())
    assert same(raw.get_tensor(None, "x_scale", index=None), raw.x_scale)
    on_disk = [repr(store.x).rpartition("],")[2] for store in (raw, decoded)]
    assert on_disk[0] == on_disk[1]
    for key in ("x", "node:x"):
        assert gnnstore.open(path, decode={key: "bfloat16"}).x.dtype == torch.bfloat16
    assert raw.decoded({"x": "input"}).x.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["input", "bfloat16"])
def test_layers_of_float64_compute_from_decoded_rows(path: Path, dtype: Any) -> None:
    store, conv = gnnstore.open(path, decode=dtype), SAGEConv(WIDTH, 3).double()
    x = numbers(path, torch.float32 if dtype == "input" else torch.bfloat16).double()
    with torch.no_grad():
        expected = conv(x, store.edge_index.tensor())
    found = gnnstore.inference([conv], store)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_states_do_not_depend_on_it(path: Path) -> None:
    first = loader_of(path, decode="float16")
    batches = iter(first)
    seen = [next(batches) for _ in range(2)]
    state = first.state_dict()
    rest = [batch.x for batch in batches]
    other = loader_of(gnnstore.open(path, decode=None))
    other.load_state_dict(state)
    found = [batch.x * batch.x_scale for batch in other]
    assert len(found) == len(rest)
    assert all(same(a.half(), b) for a, b in zip(found, rest, strict=True))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ("int8", r"decode='int8': 'int8' is unknown; choose 'input', 'float16', .* or None"),
        (16, "decode=16: 16 is unknown"),
        ({"v": None}, r"no node attribute 'v'; give one of these: 'x', 'y', 'z'"),
        ({"z": "float16"}, "the columns of 'z' have no scales, so that it comes as it is stored"),
        ({"x": "half"}, "decode, 'x': 'half' is unknown"),
    ],
)
def test_what_cannot_be_decoded_is_refused(path: Path, decode: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gnnstore.open(path, decode=decode)
    with pytest.raises(UsageError, match=message):
        loader_of(path, decode=decode)


def test_what_bfloat16_cannot_hold(tmp_path: Path) -> None:
    large = np.array([[1.5, 3.394e38], [-1.5, 3.4e38], [0, -1e38]], np.float32)
    for number, columns in enumerate((large[:2].T, large[[0, 2]].T)):
        with GraphWriter(tmp_path / f"{number}.gnn", kind="t", num_nodes=2, options=INT8) as out:
            out.set_node_attribute("x", columns)
            path = out.commit()
        if number:
            assert gnnstore.open(path, decode="bfloat16").x.tensor().isfinite().all()
            continue
        for dtype in ("bfloat16", "float16"):
            with pytest.raises(UsageError, match=f"column . has.*{dtype} cannot.*choose 'float32'"):
                gnnstore.open(path, decode={"x": cast(Any, dtype)})


def test_large_values_and_stores_without_scales(tmp_path: Path) -> None:
    for largest, fits in ((65504, True), (65600, False)):
        with GraphWriter(tmp_path / f"{largest}.gnn", kind="t", num_nodes=2, options=INT8) as out:
            out.set_node_attribute("x", np.array([[1, 2], [0, largest]], np.float32))
            path = out.commit()
        if fits:
            assert gnnstore.open(path, decode="float16").x[1, 1] == largest
            continue
        with pytest.raises(UsageError, match=r"x: column 1 has values up to 65600.*'bfloat16' or"):
            gnnstore.open(path, decode="float16")
    with GraphWriter(tmp_path / "plain.gnn", kind="t", num_nodes=2) as out:
        out.set_node_attribute("x", np.ones((2, 2), np.float32))
        path = out.commit()
    refused: list[Any] = ["float16", None]
    for decode in refused:
        with pytest.raises(UsageError, match="has no attribute of int8 whose columns have scales"):
            gnnstore.open(path, decode=decode)
