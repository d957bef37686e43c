"""What an interrupted conversion had finished is not done again: edges, and rows of features."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_kronecker, from_numpy, from_rmat, from_snap
from gnnstore.converters.edges.builder import EdgeBuilder
from gnnstore.converters.edges.merge import SpilledEdges
from gnnstore.formats.arrays import pages
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.formats.store.store import StoreWriter
from gnnstore.progress import NullProgress, Phase
from tests.support.effort import choose
from tests.support.graphs import pair_weights
from tests.support.stores import assert_same_files

NUM_NODES, NUM_EDGES = 5000, 15_000
SHARD_BYTES = 2**16

Convert = Callable[..., Path]


class Watcher(NullProgress):
    """Remembers how far each phase came, and interrupts one of them."""

    def __init__(self, phase: str = "", done: int = 0) -> None:
        self.done: Counter[str] = Counter()
        self._phase = phase
        self._limit = done

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        del total, unit
        self.done[name] += 0

        def advance(n: int = 1) -> None:
            self.done[name] += n
            if name == self._phase and self.done[name] >= self._limit:
                raise KeyboardInterrupt

        counter = NullProgress.phase(self, name)
        with counter as phase:
            phase.advance = advance  # type: ignore[method-assign]
            yield phase


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut arrays of test size into several shards, so that some of an array may be finished."""
    monkeypatch.setattr(pages, "MIN_DEFAULT_SHARD_BYTES", SHARD_BYTES)
    monkeypatch.setattr("gnnstore.formats.arrays.paged._BUFFER_BYTES", 2**13)
    monkeypatch.setattr("gnnstore.converters.inputs.source._PIECE_BYTES", 2**14)
    monkeypatch.setattr("gnnstore.converters.edges.builder.MIN_SPILL_BYTES", 2**12)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one graph in the forms that the converters take."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    edges = rng.integers(0, NUM_NODES, (2, NUM_EDGES))
    edges[:, 0] = NUM_NODES - 1
    np.savez(
        folder / "graph.npz",
        edge_index=edges,
        edge_weight=pair_weights(edges),
        x=rng.standard_normal((NUM_NODES, 16), dtype=np.float32),
        train=np.arange(9),
    )
    np.savetxt(folder / "edges.txt", 3 * edges.T, "%d")
    nodes = np.unique(edges)
    np.save(folder / "x.npy", rng.standard_normal((len(nodes), 40), dtype=np.float32))
    np.save(folder / "ids.npy", rng.permutation(3 * nodes))
    return folder


@pytest.fixture
def folder(inputs: Path, tmp_path: Path) -> Path:
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    (tmp_path / "out").mkdir()
    return tmp_path


def numpy(folder: Path, output: Path, **common: Any) -> Path:
    return from_numpy(folder / "graph.npz", output, **common)


def snap(folder: Path, output: Path, **common: Any) -> Path:
    return from_snap(folder / "edges.txt", output, **common)


def rmat(folder: Path, output: Path, **common: Any) -> Path:
    del folder
    return from_rmat(output, scale=11, edge_factor=8, feature_dim=8, **common)


def kronecker(folder: Path, output: Path, **common: Any) -> Path:
    seed = folder / "seed.gnn"
    if not seed.exists():
        from_numpy(folder / "graph.npz", seed)
    return from_kronecker(seed, output, factor=2, edge_factor=2, **common)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what is done with edges."""
    calls: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("add", "build"):
            patch.setattr(EdgeBuilder, name, _counting(calls, name, getattr(EdgeBuilder, name)))
        yield calls


def _counting(calls: Counter[str], name: str, function: Callable[..., Any]) -> Any:
    def call(*arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    return call


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("convert", "memory_bytes"),
    [
        *((numpy, 150_000), (kronecker, None)),
        *choose([], [(numpy, None), (snap, None), (rmat, None)]),
        *choose([], [(rmat, 150_000), (kronecker, 150_000)]),
    ],
)
def test_finished_edges_are_neither_read_nor_sorted_again(
    folder: Path, convert: Convert, memory_bytes: int | None
) -> None:
    whole = convert(folder, folder / "whole.gnn", options=ConvertOptions(undirected=True))
    output = folder / "out" / "g.gnn"
    options = ConvertOptions(undirected=True, memory_bytes=memory_bytes, resume=True)
    with counted() as calls, pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreWriter, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert(folder, output, options=options)
    assert calls["add"] > 0  # so that what follows counts something
    assert calls["build"] > 0
    watcher = Watcher()
    with counted() as calls:
        convert(folder, output, options=options, progress=watcher)
    assert calls == Counter()
    assert not watcher.done.keys() & {"read edges", "draw edges", "sort edges", "write edges"}
    assert_same_files(output, whole)
    assert list(output.parent.iterdir()) == [output]


def test_runs_that_a_crash_left_beside_finished_edges_go(folder: Path) -> None:
    """The adjacency is recorded before its runs are deleted, and a crash may come between."""
    whole = numpy(folder, folder / "whole.gnn")
    output, spill = folder / "out" / "g.gnn", folder / "spill"
    spill.mkdir()
    options = ConvertOptions(memory_bytes=300_000, resume=True, spill_dir=str(spill))

    def crash(*_: Any) -> None:
        shutil.copytree(spill, folder / "left")
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpilledEdges, "close", crash)
        with pytest.raises(KeyboardInterrupt):
            numpy(folder, output, options=options)
    # An interrupt removes runs that nobody needs any more; a crash does not.
    assert not [path for path in spill.rglob("*") if path.is_file()]
    shutil.copytree(folder / "left", spill, dirs_exist_ok=True)
    assert [path for path in spill.rglob("*") if path.is_file()]
    with counted() as calls, pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreWriter, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            numpy(folder, output, options=options)
        assert not [path for path in spill.rglob("*") if path.is_file()]  # before the commit
    numpy(folder, output, options=options)
    assert calls == Counter()
    assert_same_files(output, whole)
    assert list(spill.iterdir()) == []


@pytest.mark.parametrize("array", ["indices", *choose([], ["indptr", "attrs"])])
def test_edges_that_were_damaged_since_are_sorted_again(folder: Path, array: str) -> None:
    options = ConvertOptions(undirected=True)
    whole = numpy(folder, folder / "whole.gnn", options=options)
    output = folder / "out" / "g.gnn"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreWriter, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            numpy(folder, output, options=options)
    (left,) = find_leftovers(output.parent)
    shards = [p for p in left.path.rglob("*") if p.is_file() and f"/{array}/" in str(p)]
    shard = max(shards, key=lambda path: path.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with counted() as calls:
        numpy(folder, output, options=ConvertOptions(undirected=True, resume=True))
    assert calls["build"] > 0
    assert_same_files(output, whole)


@pytest.mark.parametrize("scale", choose(["column"], ["column", None]))
@pytest.mark.parametrize("ids", choose(["ids.npy"], ["ids.npy", None]))
@pytest.mark.parametrize("share", choose([0.9], [0.5, 0.9]))
def test_features_go_on_where_they_stopped(
    folder: Path, scale: Any, ids: str | None, share: float
) -> None:
    """Stop in the middle of features: with a scale per column, and with rows in any order."""
    shape: dict[str, Any] = {}
    if scale is not None:
        shape = {"feature_dtype": "int8", "feature_scale": scale}
    arguments: dict[str, Any] = {"features": folder / "x.npy"}
    if ids is not None:
        arguments["features_ids"] = folder / ids
    whole = snap(folder, folder / "whole.gnn", **arguments, options=ConvertOptions(**shape))
    num_rows = len(np.load(folder / "x.npy"))
    output = folder / "out" / "g.gnn"
    options = ConvertOptions(**shape, resume=True)
    stopped = Watcher("write x", int(share * num_rows))
    with pytest.raises(KeyboardInterrupt):
        snap(folder, output, **arguments, options=options, progress=stopped)
    assert stopped.done["write x"] < num_rows
    (left,) = find_leftovers(output.parent)
    finished = len([path for path in left.path.rglob("*") if "/x/" in str(path)])
    resumed = Watcher()
    snap(folder, output, **arguments, options=options, progress=resumed)
    assert resumed.done["write x"] == num_rows
    assert_same_files(output, whole)
    assert list(output.parent.iterdir()) == [output]
    if share > 0.6:
        assert finished > 1  # it did go on: shards were there
