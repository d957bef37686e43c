"""`gnnstore add-order`, and `--time-attr`, `--weight-attr` and `--reverse` of `convert`."""

from __future__ import annotations

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnnstore
from gnnstore.converters import add_order, from_pyg
from gnnstore.converters.writer.orders import Orders
from gnnstore.errors import InputError, StorageError, UsageError
from gnnstore.formats import StoreReader
from gnnstore.formats.container import workdir
from gnnstore.formats.container.manifest import Kind
from gnnstore.formats.container.workdir import take_lock
from gnnstore.formats.packed import PACKED
from gnnstore.formats.partitions import PARTITIONS, PartitionsManifest
from gnnstore.formats.store.units import make_units_directory
from tests.cli.conftest import Run
from tests.support.hetero import CITES, hetero_store, make_hetero
from tests.support.stores import arrays_of

NAMES: dict[str, Any] = {"time_attr": ("time", "edge_time"), "weight_attr": ("w",)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hetero_store(tmp_path_factory.mktemp("typed") / "a.gnn").path


@pytest.fixture
def typed(shared: Path, tmp_path: Path) -> Path:
    """Return a store of a graph with types, alone in its directory."""
    return shutil.copytree(shared, tmp_path / "a.gnn")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the arrays of a store that was converted with its orders."""
    return arrays_of(hetero_store(tmp_path_factory.mktemp("whole") / "b.gnn", **NAMES).path)


@pytest.mark.parametrize("links", [True, False])
def test_it_adds_what_conversion_writes(
    typed: Path,
    tmp_path: Path,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    links: bool,
) -> None:
    if not links:

        def refuse(*_: Any) -> None:
            raise OSError(95, "no links here")

        monkeypatch.setattr(os, "link", refuse)
    path = typed
    before = {p: p.stat().st_ino for p in path.rglob("c.*")}
    add_order(path, **NAMES)
    found = arrays_of(path)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    same = [p for p, inode in before.items() if "checksums" not in p.parts]
    assert all((p.stat().st_ino == before[p]) == links for p in same)
    assert not list(StoreReader.open(path).problems())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gnn"]


def test_from_the_shell(run: Run, typed: Path) -> None:
    path = typed
    uuid = StoreReader.open(path).uuid
    done = run("add-order", path, "--time-attr", "time", "--weight-attr", "w", "--json")
    assert done.status == 0
    found = json.loads(done.stdout)["edge_types"]
    assert found[0] == {"type": list(CITES), "orders": ["time"], "weight_sums": ["w"]}
    reader = StoreReader.open(path)
    assert reader.uuid != uuid
    assert run("verify", path, "--level", "full").status == 0
    # What is there already is passed over.
    done = run("add-order", path, "--time-attr", "time", "-q")
    assert ["author", "->", "paper", "writes", "time", "w"] in map(
        str.split, done.stdout.splitlines()
    )
    assert f"\nNext\n  gnnstore inspect {path}\n" in done.stdout
    assert StoreReader.open(path).uuid == reader.uuid


def test_a_store_of_one_type(tmp_path: Path) -> None:
    data = Data(edge_index=torch.tensor([[0, 1, 2, 0], [0, 0, 0, 1]]), num_nodes=3)
    data.time = torch.tensor([7, 5, 6])
    path = from_pyg(data, tmp_path / "a.gnn")
    reader = StoreReader.open(add_order(path, "time"))
    assert reader.read(reader.schema.edge.orders["time"]).tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--time-attr", "year"), 2, "--time-attr 'year': there is no such node or edge attribute"),
        (("--weight-attr", "x"), 2, "--weight-attr 'x': there is no such edge attribute"),
        ((), 2, "name what to add: --time-attr or --weight-attr"),
        (
            ("--time-attr", "x"),
            1,
            "--time-attr 'x': in 'paper' it is float32 [60, 8]; times are",
        ),
        (("--weight-attr", "edge_time"), 1, "of ('paper', 'cites', 'paper'): the weight of edge"),
    ],
)
def test_what_cannot_be_added(
    run: Run, shared: Path, words: tuple[str, ...], status: int, message: str
) -> None:
    path = shared
    before = (path / "zarr.json").read_bytes()
    done = run("add-order", path, *words, "-q")
    assert done.status == status
    assert message in done.stderr
    assert (path / "zarr.json").read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["a.gnn"]


def test_nat_in_a_store_that_exists(tmp_path: Path) -> None:
    data = make_hetero()
    data["paper"].time[3] = -(2**63)
    store = hetero_store(tmp_path / "a.gnn", data)
    with pytest.raises(InputError, match=r"the times in nodes/paper/time: row 3 is NaT"):
        add_order(store.path, "time")


def test_packed_epochs_would_not_belong(run: Run, tmp_path: Path) -> None:
    data = Data(x=torch.rand(9, 2), edge_index=torch.randint(0, 9, (2, 30)))
    data.t = torch.arange(30)
    path = from_pyg(data, tmp_path / "a.gnn")
    assert (
        run("pack", path, "--name", "base", "--epochs", "1", "-q", "--input-nodes", "all").status
        == 0
    )
    with pytest.raises(UsageError, match=r"the .* base would not belong to the store with an orde"):
        add_order(path, "t")
    assert run("rm", path, "--packed", "base").status == 0
    add_order(path, "t")


def test_options_of_convert(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "g.npz",
        edge_index=rng.integers(0, 9, (2, 40)),
        edge_time=rng.integers(0, 99, 40),
        edge_w=rng.random(40),
        x=rng.random((9, 3)),
    )
    words = ("--time-attr", "edge_time", "--weight-attr", "edge_w")
    done = run("convert", "numpy", tmp_path / "g.npz", tmp_path / "a.gnn", *words, "-q")
    assert done.status == 0, done.stderr
    edge = StoreReader.open(tmp_path / "a.gnn").schema.edge
    assert (list(edge.orders), list(edge.weight_sums)) == (["edge_time"], ["edge_w"])
    for command in (("reorder",), ("split-edges", "--fractions", "0.8,0.1,0.1")):
        out = tmp_path / f"{command[0]}.gnn"
        done = run(command[0], tmp_path / "a.gnn", out, *command[1:], "-q")
        assert done.status == 0, done.stderr
        reader = StoreReader.open(out)
        assert (list(reader.schema.edge.orders), list(reader.schema.edge.weight_sums)) == (
            ["edge_time"],
            ["edge_w"],
        )
        assert not list(reader.meaningless())


TYPES = (
    "the store has node types (paper, author, institution) and edge types (paper__cites__paper, "
    "author__writes__paper, "
)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("partition", "STORE", "--num-partitions", "4"), "gnnstore partition"),
        (("reorder", "STORE", "OUT"), "gnnstore reorder"),
        (("reorder", "STORE", "--estimate"), "gnnstore reorder"),
        (("reorder", "STORE", "OUT", "--order", "frequency"), "gnnstore reorder"),
        (("split-edges", "STORE", "OUT"), "gnnstore split-edges"),
        (("convert", "kronecker", "STORE", "OUT", "--factor", "2"), "gnnstore convert kronecker"),
    ],
)
def test_commands_that_need_a_graph_without_types(
    run: Run, shared: Path, tmp_path: Path, words: tuple[str, ...], what: str
) -> None:
    places = {"STORE": shared, "OUT": tmp_path / "b.gnn"}
    done = run(*(places.get(word, word) for word in words), "-q")
    assert done.status == 2
    assert TYPES in done.stderr
    assert f"and {what} works on graphs without types only" in done.stderr
    assert not list(tmp_path.iterdir())
    assert [p.name for p in shared.parent.iterdir()] == ["a.gnn"]


def test_functions_that_need_a_graph_without_types(typed: Path, tmp_path: Path) -> None:
    store = gnnstore.open(typed)
    table = torch.rand(60, 4)

    def score(known: torch.Tensor, rows: torch.Tensor, _: Any) -> torch.Tensor:
        return known @ rows.T

    for call, what in (
        (
            lambda: gnnstore.link_ranks(score, torch.zeros(2, 1).long(), table, filter=store),
            "link_ranks",
        ),
        (
            lambda: gnnstore.inference(torch.nn.Linear(8, 2), store, tmp_path / "out"),
            "layer-wise inference",
        ),
        (
            lambda: gnnstore.EmbeddingTable.create(tmp_path / "t.emb", store, dim=4),
            "EmbeddingTable",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert TYPES in str(caught.value)
        assert f"and {what} works on graphs without types only" in str(caught.value)


@pytest.mark.parametrize("kind", [PACKED, PARTITIONS])
@pytest.mark.parametrize("state", ["made", "at work"])
def test_a_unit_that_another_command_makes_meanwhile_stays(
    typed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, state: str
) -> None:
    """Of the two commands, the second one is refused, and leaves nothing."""
    store = typed
    before = StoreReader.open(store).uuid
    unit = store / kind.directory / ("base" if state == "made" else ".base.tmp-01234567")
    add, locks = Orders.add, []

    def add_slowly(*arguments: Any) -> Any:
        """Let another process write a unit while orders are added."""
        unit.mkdir(parents=True)
        (unit / "batches").mkdir()
        locks.append(take_lock(unit))
        return add(*arguments)

    monkeypatch.setattr(Orders, "add", add_slowly)
    with pytest.raises(StorageError, match=f"{kind.directory}/base (was|is being) made"):
        add_order(store, "time")
    monkeypatch.undo()
    assert (unit / "batches").is_dir()
    assert StoreReader.open(store).uuid == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.gnn"]
    if state == "at work":
        with pytest.raises(UsageError, match="base is being made"):
            add_order(store, "time")
    assert locks[0] is not None
    os.close(locks[0])


def test_a_unit_waits_for_the_store_to_have_its_name(
    typed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory and its name are made while no other process replaces the store."""
    store = typed
    make_units_directory(PARTITIONS, store)
    held, waits = take_lock(store), threading.Event()
    assert held is not None

    def note(path: Path, attempts: int = 1) -> int | None:
        waits.set()
        return take_lock(path, attempts)

    monkeypatch.setattr(workdir, "take_lock", note)
    with ThreadPoolExecutor(1) as pool:
        unit = store / "partitions/p"
        made = pool.submit(workdir.DirectoryTransaction, unit, PartitionsManifest, False, print)
        assert waits.wait(20)
        assert [path.name for path in unit.parent.iterdir()] == ["zarr.json"]
        os.close(held)
        transaction = made.result()
    assert transaction.path.is_dir()
    transaction.abort()
