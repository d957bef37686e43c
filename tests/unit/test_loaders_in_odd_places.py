"""Loaders of programs without a terminal, with other default devices, and with odd masks."""

from __future__ import annotations

import errno
import io
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader
from gnnstore.converters import from_pyg
from gnnstore.converters.datasets import pyg
from gnnstore.errors import InputError, StorageError, UsageError
from gnnstore.progress import open_progress
from gnnstore.testing import assert_same_batches
from gnnstore.testing.graphs import random_graph
from gnnstore.tools.session import Session
from tests.support.hetero import CITES, hetero_store, make_hetero

N = 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    graph = random_graph(N, 200, feature_dim=3, num_classes=2)
    return gnnstore.open(graph.write(tmp_path_factory.mktemp("odd") / "s.gnn"))


@pytest.mark.parametrize(
    "flags",
    [
        np.arange(N) % 2,
        (np.arange(N) % 2).astype(np.uint8),
        torch.zeros(N, dtype=torch.int64),
        [1] * N,
    ],
    ids=["int64", "uint8", "tensor", "list"],
)
def test_flags_of_all_nodes_are_no_ids(store: gnnstore.GraphStore, flags: Any) -> None:
    with pytest.raises(InputError, match=rf"{N} zeros and ones.*nodes 0 and 1 alone.*mask.bool()"):
        NeighborLoader(store, [2], flags)


def test_ids_of_the_first_two_nodes(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    """They are ids where they are not one for each node, and in a graph of two nodes."""
    assert len(NeighborLoader(store, [2], [0, 1, 1])) == 3
    two = random_graph(2, 3).write(tmp_path / "two.gnn")
    assert [batch.input_id.item() for batch in NeighborLoader(two, [1], [1, 0])] == [0, 1]


def test_masked_entries_are_not_taken_for_values(store: gnnstore.GraphStore) -> None:
    ids = np.ma.masked_array(np.arange(5), [False, True, False, False, True])
    of_nodes = np.ma.masked_array(np.ones(N, bool), np.arange(N) > 3)
    for given in (ids, of_nodes):
        with pytest.raises(InputError, match=r"(2|36) entries are masked.*compressed"):
            NeighborLoader(store, [2], given)
    assert len(NeighborLoader(store, [2], ids.compressed())) == 3
    assert len(NeighborLoader(store, [2], np.ma.masked_array([3, 4], False))) == 2
    edges = np.arange(10).reshape(2, 5)
    with pytest.raises(InputError, match="2 entries are masked"):
        LinkNeighborLoader(store, [2], edges, ids)


class _Plain:
    """A stream such as some loggers put in place of stderr."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def _closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make", [lambda: None, _closed, _Plain], ids=["none", "closed", "plain"])
@pytest.mark.parametrize("progress", [None, True])
def test_without_a_terminal(
    store: gnnstore.GraphStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make: Any,
    progress: bool | None,
) -> None:
    monkeypatch.setattr(sys, "stderr", make())
    loader = NeighborLoader(store, [2], batch_size=20, num_threads=0, progress=progress)
    assert len(list(loader)) == 2
    logger = logging.getLogger("gnnstore.progress")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    for style in ("auto", "bar", "lines"):
        with open_progress(style=style) as shown:
            shown.note("said")
            with shown.phase("counting", 3) as phase:
                phase.advance()
    assert capsys.readouterr().out == "", "nothing that belongs on stderr is printed on stdout"
    if isinstance(sys.stderr, _Plain):
        assert "said" in sys.stderr.text


@pytest.mark.parametrize("seed", [None, 3])
def test_another_default_device(store: gnnstore.GraphStore, seed: int | None) -> None:
    """What is drawn, and what batches hold, is on the CPU."""
    torch.manual_seed(5)
    options: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": seed, "num_threads": 0}
    expected = list(NeighborLoader(store, [2, 2], **options))
    links = {**options, "seed": 3, "neg_sampling": "binary"}
    of_links = list(LinkNeighborLoader(store, [2], **links))
    torch.manual_seed(5)
    with torch.device("meta"):
        found = list(NeighborLoader(store, [2, 2], **options))
        links_found = list(LinkNeighborLoader(store, [2], **links))
    assert_same_batches(found, expected)
    assert_same_batches(links_found, of_links)


def test_a_batch_that_is_dropped(store: gnnstore.GraphStore) -> None:
    with pytest.warns(UserWarning, match="leaves no batch of 40 seeds: a batch has 41") as found:
        loader = NeighborLoader(store, [2], batch_size=41, drop_last=True)
    assert len(list(loader)) == 0
    assert [Path(each.filename).name for each in found] == [Path(__file__).name]
    NeighborLoader(store, [2], batch_size=40, drop_last=True)


def test_a_round_of_ranks_that_is_dropped(store: gnnstore.GraphStore) -> None:
    ranks: dict[str, Any] = {"rank": 1, "world_size": 3, "seed": 0, "drop_last": True}
    with pytest.warns(UserWarning, match="40 seeds: a batch has 15, one for each of 3 ranks"):
        loader = NeighborLoader(store, [2], batch_size=15, **ranks)
    assert len(list(loader)) == 0
    assert len(NeighborLoader(store, [2], batch_size=13, **ranks)) == 1


@pytest.mark.parametrize("make", [io.StringIO, _Plain], ids=["string", "plain"])
def test_a_result_is_printed_where_stdout_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    stream = make()
    monkeypatch.setattr(sys, "stdout", stream)
    Session("info").emit({"version": "0.1"}, ["it is {version}"])
    text = stream.text if isinstance(stream, _Plain) else stream.getvalue()
    assert text == "it is 0.1\n"


@pytest.mark.parametrize("length", [N - 3, N + 3])
def test_labels_of_a_store_are_as_many_as_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Stores that were converted before this was refused have a value of the graph."""
    lengths = {name: kinds for name, kinds in pyg._WITH_ROWS.items() if name != "y"}
    monkeypatch.setattr(pyg, "_WITH_ROWS", lengths)
    edges = torch.arange(N).repeat(2, 1)
    path = from_pyg(Data(edge_index=edges, num_nodes=N, y=torch.ones(length)), tmp_path / "s.gnn")
    with pytest.raises(InputError, match=rf"y has {length} rows, and there are {N} nodes; convert"):
        NeighborLoader(path, [2])
    of_graph = Data(edge_index=edges, num_nodes=N, y=torch.ones(1))
    batch = next(iter(NeighborLoader(from_pyg(of_graph, tmp_path / "g.gnn"), [2])))
    assert batch.y.tolist() == [1]


def test_fan_outs_by_edge_type_are_lists(tmp_path: Path) -> None:
    path = hetero_store(tmp_path / "s.gnn", make_hetero()).path
    with pytest.raises(UsageError, match=r"num_neighbors.*2 .*cites.*\[2\]"):
        NeighborLoader(path, {CITES: 2}, "paper")


def test_a_directory_without_permission(
    store: gnnstore.GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a user without rights to a directory finds; root has all."""
    stat = Path.stat

    def refuse(path: Path, **options: Any) -> Any:
        if path.name == "zarr.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(StorageError, match=r"cannot open the store: .*s\.gnn.*Permission denied"):
        gnnstore.open(store.path)


def test_seeds_without_values(store: gnnstore.GraphStore) -> None:
    with pytest.raises(InputError, match="meta device, which has no values"):
        NeighborLoader(store, [2], torch.arange(5, device="meta"))
