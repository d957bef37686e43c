"""Something else in place of a file: an error at once that says so, and no hang."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_numpy, from_snap
from gnnstore.errors import CorruptStoreError, InputError, NotFoundError, StorageError
from gnnstore.formats import StoreReader
from gnnstore.formats.packed import PackedReader
from gnnstore.pipeline.check import verify
from gnnstore.tools.cli import main
from tests.support.effort import choose
from tests.support.files import flip
from tests.support.stores import write_example_store

# A call that hangs is ended by an exception: an open that waits can be interrupted.
pytestmark = pytest.mark.timeout(60, method="signal")


@contextmanager
def replaced(path: Path, kind: str) -> Iterator[None]:
    """Have something else in the place of a file for a while."""
    original = path.with_name("original")
    path.rename(original)
    os.mkfifo(path) if kind == "FIFO" else path.mkdir()
    try:
        yield
    finally:
        path.unlink() if kind == "FIFO" else path.rmdir()
        original.rename(path)


@pytest.mark.parametrize("kind", ["FIFO", "directory"])
def test_every_file_of_a_store(tmp_path: Path, kind: str) -> None:
    store = write_example_store(tmp_path / "a.gnn").path
    files = sorted(path for path in store.rglob("*") if path.is_file())
    for file in files[:: choose(2, 1)]:
        with replaced(file, kind):
            with pytest.raises((CorruptStoreError, NotFoundError), match=str(file.parent)):
                StoreReader.open(store)
            assert not verify(store, "full").ok
    assert verify(store, "full").ok
    (tmp_path / "link").symlink_to(store)
    assert verify(tmp_path / "link", "full").ok


def test_files_that_are_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `cp -rs` makes, or a shard that was moved to another disk, is refused with a remedy."""
    whole = write_example_store(tmp_path / "a.gnn").path
    store = shutil.copytree(whole, tmp_path / "b.gnn", copy_function=os.symlink)
    advice = f"a symbolic link, which is not followed; .*: cp -rL {store} COPY"
    out = str(tmp_path / "out")
    for words in (
        ("verify",),
        ("inspect",),
        ("reorder", out),
        ("split-edges", out),
        ("partition", "--num-partitions", "2"),
        ("pack", "--output", out),
        ("add-order", "--weight-attr", "w"),
    ):
        assert main([words[0], str(store), *words[1:]]) == (1 if words[0] == "verify" else 5)
        told = "".join(capsys.readouterr())
        assert re.search(advice, told), told
        assert "--resume" not in told
    problems = verify(store).problems
    assert len(problems) == len(StoreReader.open(whole).files)
    array = store / "nodes/node/x"
    shutil.rmtree(store)
    shutil.copytree(whole, store)
    (shard,) = (path for path in array.iterdir() if path.name[0] == "c")
    shard.rename(tmp_path / "moved")
    shard.symlink_to(tmp_path / "moved")
    flip(store / "edges/node__to__node/indices/c.0", 5)
    assert [problem.path for problem in verify(store).problems] == [
        str(shard),
        str(store / "edges/node__to__node/indices/c.0"),
    ]


def test_inputs(tmp_path: Path) -> None:
    """Links among inputs are followed: the user who keeps data on another disk made them."""
    (tmp_path / "in").mkdir()
    edges, x = tmp_path / "edges.txt", tmp_path / "in" / "x.npy"
    edges.write_text("0 1\n")
    np.save(tmp_path / "in" / "edge_index.npy", np.array([[0], [1]]))
    np.save(x, np.zeros((2, 3), np.float32))
    with replaced(edges, "FIFO"), pytest.raises(InputError, match=f"{edges}: not a regular file"):
        from_snap(edges, tmp_path / "out.gnn")
    with replaced(x, "FIFO"), pytest.raises(InputError, match=f"{x}: not a regular file"):
        from_numpy(tmp_path / "in", tmp_path / "out.gnn")
    with pytest.raises(InputError, match="/dev/zero: not a regular file"):
        from_snap("/dev/zero", tmp_path / "out.gnn")
    assert not list(tmp_path.glob("*out.gnn*"))
    expected = StoreReader.open(from_numpy(tmp_path / "in", tmp_path / "files.gnn")).uuid
    x.rename(tmp_path / "x.npy")
    x.symlink_to(tmp_path / "x.npy")
    assert StoreReader.open(from_numpy(tmp_path / "in", tmp_path / "links.gnn")).uuid == expected


def test_a_journal(tmp_path: Path) -> None:
    left = tmp_path / ".g.gnn.tmp-0123abcd"
    left.mkdir()
    os.mkfifo(left / "journal")
    (tmp_path / "edges.txt").write_text("0 1\n")
    from_snap(tmp_path / "edges.txt", tmp_path / "g.gnn", options=ConvertOptions(resume=True))
    assert not left.exists()


def test_no_store_is_a_fifo_or_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gnn")
    for path in (tmp_path / "a.gnn", Path("/dev/zero")):
        for look in (StoreReader.open, PackedReader.open, verify):
            with pytest.raises((NotFoundError, StorageError)):
                look(path)
