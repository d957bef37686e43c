"""Writing is all or nothing, leaves no rubbish, clobbers nothing, and follows the umask."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import _core
from gnnstore.errors import (
    InputError,
    NoSpaceError,
    NotFoundError,
    StoreExistsError,
    UsageError,
)
from gnnstore.formats import Schema, StoreReader, StoreWriter
from gnnstore.formats.base.names import (
    edge_directory,
    edge_split_directory,
    node_array,
)
from gnnstore.formats.store.store import RESERVED_NAMES
from tests.support.effort import choose
from tests.support.stores import write_example_store

EMPTY = Schema((), ())
FINGERPRINT = {"what": "a test"}


def entries(path: Path) -> list[str]:
    return sorted(os.listdir(path))  # noqa: PTH208


def identity(store: Path) -> int:
    """Return what tells a store from an equal one that replaced it."""
    StoreReader.open(store)
    return store.resolve().stat().st_ino


def leave_half(folder: Path) -> Path:
    """Leave what a writer leaves that ends with some of its work done."""
    with StoreWriter(folder / "a.gnn", fingerprint=FINGERPRINT) as writer:
        with writer.paged("graph/a", name="a", row_shape=(), dtype="int8", num_rows=3) as array:
            array.append(np.zeros(3, np.int8))
        writer.abort(keep=True)
    return folder / entries(folder)[0]


def test_nothing_is_left_without_a_commit(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.gnn") as writer:
        writer.paged("x", name="x", row_shape=(4,), dtype="int8", num_rows=9)
        assert entries(tmp_path) == [writer.temporary_path.name]
    assert entries(tmp_path) == []


def test_nothing_is_left_after_an_exception(tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with StoreWriter(tmp_path / "a.gnn") as writer:
            array = writer.paged("x", name="x", row_shape=(4096,), dtype="int8", num_rows=9)
            array.append(np.zeros((9, 4096), dtype=np.int8))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert entries(tmp_path) == []


def test_existing_output_is_refused_before_any_work(tmp_path: Path) -> None:
    store = write_example_store(tmp_path / "a.gnn").path
    with pytest.raises(StoreExistsError, match=r"a\.gnn exists; choose another .*overwrite=True"):
        StoreWriter(store)


def test_overwrite_keeps_the_old_store_until_the_commit(tmp_path: Path) -> None:
    store = write_example_store(tmp_path / "a.gnn").path
    old = identity(store)
    with StoreWriter(store, overwrite=True):
        assert identity(store) == old
    assert identity(store) == old
    write_example_store(store, overwrite=True)
    assert identity(store) != old
    assert entries(tmp_path) == ["a.gnn"]


def test_overwrite_without_an_atomic_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(_core, "rename_exchange", refuse)
    monkeypatch.setattr(_core, "rename_noreplace", refuse)
    store = write_example_store(tmp_path / "a.gnn").path
    old = identity(store)
    write_example_store(store, overwrite=True)
    assert identity(store) != old
    assert entries(tmp_path) == ["a.gnn"]


def test_store_set_aside_by_an_interrupted_overwrite_comes_back(tmp_path: Path) -> None:
    store = write_example_store(tmp_path / "a.gnn").path
    store.rename(tmp_path / ".a.gnn.old-00000000")
    events: list[str] = []
    with pytest.raises(StoreExistsError):
        StoreWriter(store, on_event=events.append)
    assert events == [f"restored {store}, which an interrupted overwrite had set aside"]
    StoreReader.open(store)


def test_only_stores_are_overwritten(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is not a gnnstore store, so it is not overwritten"):
        StoreWriter(home, overwrite=True)
    assert (home / "thesis.tex").exists()


def test_name_that_is_taken_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.gnn") as writer:
        (tmp_path / "a.gnn").mkdir()
        with pytest.raises(StoreExistsError, match="was created by another process"):
            writer.commit(EMPTY, {})
    assert entries(tmp_path) == ["a.gnn"]
    assert entries(tmp_path / "a.gnn") == []


def test_a_store_that_is_there_is_no_end_of_what_can_be_resumed(tmp_path: Path) -> None:
    """It is kept, and nobody holds it: with another output out of the way it goes on."""
    leave_half(tmp_path)
    write_example_store(tmp_path / "b.gnn").path.rename(tmp_path / "a.gnn")
    before = entries(tmp_path)
    with pytest.raises(StoreExistsError, match=r"a\.gnn exists; choose another output"):
        StoreWriter(tmp_path / "a.gnn", fingerprint=FINGERPRINT, resume=True)
    assert entries(tmp_path) == before
    (tmp_path / "a.gnn").rename(tmp_path / "b.gnn")
    with StoreWriter(tmp_path / "a.gnn", fingerprint=FINGERPRINT, resume=True) as writer:
        assert f"{writer.temporary_path.name}" in before


@pytest.mark.parametrize("at", ["mkdir", "flock"])
def test_an_interrupt_while_the_directory_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    home: Any = Path if at == "mkdir" else fcntl
    real = getattr(home, at)

    def interrupted(*given: Any) -> None:
        real(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(home, at, interrupted)
        with pytest.raises(KeyboardInterrupt):
            StoreWriter(tmp_path / "a.gnn")
    assert entries(tmp_path) == []


def test_missing_parent_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="the directory to write into does not exist"):
        StoreWriter(tmp_path / "no" / "a.gnn")


def test_leftovers_of_a_dead_writer_are_swept_and_reported(tmp_path: Path) -> None:
    dead = tmp_path / ".a.gnn.tmp-deadbeef"
    dead.mkdir()
    (dead / "part").write_bytes(bytes(123_000))
    unrelated = tmp_path / ".b.gnn.tmp-deadbeef"
    unrelated.mkdir()
    events: list[str] = []
    with StoreWriter(tmp_path / "a.gnn", on_event=events.append):
        assert not dead.exists()
    assert events == [f"removed 123 kB that an interrupted attempt had left in {dead}"]
    assert unrelated.exists()


def test_running_writer_is_left_alone(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.gnn") as first:
        with pytest.raises(UsageError, match="another process is writing this store right now"):
            StoreWriter(tmp_path / "a.gnn")
        assert first.temporary_path.exists()
        first.commit(EMPTY, {})
    StoreReader.open(tmp_path / "a.gnn")


def test_lock_dies_with_the_writer(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "a.gnn")
    directory = writer.temporary_path
    descriptor = os.open(directory, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    writer.abort()
    os.close(descriptor)
    assert not directory.exists()


@pytest.mark.parametrize("mask", [*choose([], [0o022]), 0o077, 0o002])
def test_modes_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        store = write_example_store(tmp_path / "a.gnn").path
    finally:
        os.umask(before)
    for path in [store, *store.rglob("*")]:
        wanted = (0o777 if path.is_dir() else 0o666) & ~mask
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


# Arrays -----------------------------------------------------------------------------------


def test_too_few_and_too_many_rows(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.gnn") as writer:
        array = writer.paged("x", name="x", row_shape=(2,), dtype="int8", num_rows=3)
        array.append(np.zeros((2, 2), dtype=np.int8))
        with pytest.raises(InputError, match="declared with 3 rows, but got at least 4"):
            array.append(np.zeros((2, 2), dtype=np.int8))
        with pytest.raises(InputError, match="declared with 3 rows, but only 2 came"):
            writer.commit(EMPTY, {})


def test_rows_of_another_shape_or_type(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.gnn") as writer:
        array = writer.paged("x", name="x", row_shape=(2,), dtype="int8", num_rows=3)
        with pytest.raises(InputError, match=r"rows of shape \[2\] int8, but got \[3\] int8"):
            array.append(np.zeros((1, 3), dtype=np.int8))
        with pytest.raises(InputError, match=r"but got \[2\] float64"):
            array.append(np.zeros((1, 2)))


@pytest.mark.parametrize("page_bytes", [0, 100, 3000, 2**22, -4096])
def test_page_sizes_that_cannot_be(tmp_path: Path, page_bytes: int) -> None:
    with pytest.raises(UsageError, match="a page has a power of two of bytes"):
        StoreWriter(tmp_path / "a.gnn", page_bytes=page_bytes)
    assert entries(tmp_path) == []


def test_names_used_twice_and_types_that_cannot_be(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.gnn") as writer:
        writer.compressed("graph/a", np.zeros(3), name="a")
        with pytest.raises(InputError, match="the name 'a' is used twice"):
            writer.compressed("graph/a", np.zeros(3), name="a")
        with pytest.raises(InputError, match="has the element type 'complex128'"):
            writer.compressed("graph/b", np.zeros(3, dtype=complex), name="b")
        with pytest.raises(InputError, match="which hold nothing"):
            writer.paged("x", name="x", row_shape=(0,), dtype="int8", num_rows=3)


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpaceError, match=r"no space left for .* Free some space"):
        write_example_store(tmp_path / "a.gnn")
    assert entries(tmp_path) == []


@pytest.mark.parametrize("place", ["nodes/node", "edges/node__to__node/attrs"])
@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_names_that_every_batch_has_itself(tmp_path: Path, place: str, name: str) -> None:
    with StoreWriter(tmp_path / "a.gnn") as writer:
        with pytest.raises(InputError, match=rf"'{name}' has the name of something.*rename it"):
            writer.compressed(f"{place}/{name}", np.zeros(3), name=name)
        writer.compressed(f"graph/{name}", np.zeros(3), name=name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", r"the name '' cannot be stored: names have 1 to \d+ bytes after percent-encoding"),
        ("x" * 300, r"the name 'x{40}' cannot be stored: .*; rename it"),
        ("é" * 100, "after percent-encoding; rename it"),
        ("a\ud800", r"the name 'a\\ud800' cannot be stored: it has half of a character"),
    ],
)
def test_names_that_no_path_can_hold(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        node_array("node", name)


@pytest.mark.parametrize(
    ("edge_type", "component"),
    [
        (("node", "to", "node"), "node__to__node"),
        (("author", "rev_writes", "paper"), "author__rev_writes__paper"),
        (("a_", "_b", "c__d"), "a%5F__%5Fb__c%5F%5Fd"),
        (("_", "___", "a_b"), "%5F__%5F%5F%5F__a_b"),
        (("a/b", "100%", "é"), "a%2Fb__100%25__%C3%A9"),
        (("a" * 100, "b" * 100, "c" * 100), "edge-cb340cb70c1e9c23088a491fc6147123"),
    ],
)
def test_directories_of_edge_types(edge_type: tuple[str, str, str], component: str) -> None:
    directory = edge_directory(*edge_type)
    assert directory.startswith(f"edges/{component}")
    assert edge_split_directory(edge_type, "train") == f"edge_splits/{directory[6:]}/train"
    assert len(directory) <= len("edges/") + 200


def test_no_two_edge_types_share_a_directory() -> None:
    names = ["a", "b", "_", "__", "___", "a_", "_a", "a__b", "b__", "a_b", "%5F", "/", "x" * 201]
    types = list(itertools.product(names, repeat=3))
    assert len({edge_directory(*edge_type) for edge_type in types}) == len(types)


def test_an_edge_type_with_an_empty_name() -> None:
    with pytest.raises(
        InputError, match=r"the names \('a', '', 'b'\) cannot be stored: one is emp"
    ):
        edge_directory("a", "", "b")


def test_a_schema_with_arrays_that_were_not_written(tmp_path: Path) -> None:
    store = write_example_store(tmp_path / "a.gnn").path
    schema = StoreReader.open(store).schema
    writer = StoreWriter(tmp_path / "b.gnn")
    with writer, pytest.raises(InputError, match=r"names arrays that were not written: \['edges"):
        writer.commit(schema, {})
    assert entries(tmp_path) == ["a.gnn"]


def test_where_one_type_is_expected(tmp_path: Path) -> None:
    schema = StoreReader.open(write_example_store(tmp_path / "a.gnn").path).schema
    node, edge = schema.node_types[0], schema.edge_types[0]
    several = Schema((node, replace(node, name="more")), (edge, edge))
    for use, message in (
        (lambda: several.node, r"2 node types \(node, more\) where exactly one was expected"),
        (
            lambda: several.edge,
            r"2 edge types \(\('node', 'to', 'node'\), .* name a type, as in",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            use()


def test_metadata_that_is_not_json(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="cannot be written as JSON"),
        StoreWriter(tmp_path / "a.gnn") as writer,
    ):
        writer.commit(Schema((), (), {"loss": float("nan")}), {})
    assert entries(tmp_path) == []


def test_metadata_that_readers_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_example_store(tmp_path / "a.gnn").path
    with monkeypatch.context() as patch:
        patch.setattr("gnnstore.formats.container.reader.MAX_MANIFEST_BYTES", 2**16)
        with (
            pytest.raises(InputError, match=r"would be refused by readers, .*: larger than the"),
            StoreWriter(old, overwrite=True) as writer,
        ):
            writer.commit(Schema((), (), {"long": "a" * 2**16}), {})
    assert StoreReader.open(old).schema.graph_attributes == {"name": "example"}
