"""Something else in place of a file: an error at once that says what it is, and no hang."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import _core
from gnnstore.converters import (
    ConvertOptions,
    from_graphbolt,
    from_igb,
    from_numpy,
    from_ogb,
    from_snap,
)
from gnnstore.disk.profile import load_profile, profile_path, save_profile
from gnnstore.errors import CorruptStoreError, InputError, NotFoundError, StorageError
from gnnstore.features.check import verify
from gnnstore.formats import StoreReader
from gnnstore.formats.container.journal import append_record, read_records
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.formats.packed.reader import PACKED, PackedReader
from gnnstore.formats.store.units import find_unit, find_units, make_units_directory, remove_unit
from gnnstore.graph.neighbor_cache.importance import ListsKey, load_lists, save_lists
from gnnstore.testing.graphs import random_graph
from tests.support import published
from tests.support.disks import usual_profile
from tests.support.packed import pack
from tests.support.stores import write_example_store

# A call that hangs is ended by an exception: an open that waits can be interrupted.
pytestmark = pytest.mark.timeout(60, method="signal")

KINDS = {
    "FIFO": "a FIFO",
    "socket": "a socket",
    "directory": "a directory",
    "device": "a (device|symbolic link)",  # only root makes devices
    "dangling": "a symbolic link",
    "outside": "a symbolic link",
}
SPECIAL = ("FIFO", "socket", "device")


def put(kind: str, path: Path, original: Path) -> None:
    """Make something that is no regular file; `original` is what should have been there."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        # An address has 107 bytes at the most, so a short name by way of a descriptor.
        place = os.open(path.parent, os.O_PATH)
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(f"/proc/self/fd/{place}/{path.name}")
        os.close(place)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
            path.open("rb").close()  # a file system may be mounted without devices
        except PermissionError:
            path.unlink(missing_ok=True)
            path.symlink_to("/dev/zero")
    else:
        path.symlink_to(original if kind == "outside" else path.with_name("nothing"))


@contextmanager
def replaced(path: Path, kind: str, aside: Path) -> Iterator[None]:
    """Have something else in the place of a file or directory for a while."""
    aside.mkdir(exist_ok=True)
    original = aside / path.name
    path.rename(original)
    try:
        put(kind, path, original)
        yield
    finally:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        original.rename(path)


def files_below(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def said_of(path: Path, kind: str) -> str:
    return f"^{path}: not a regular file but {KINDS[kind]}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example_store(tmp_path_factory.mktemp("stores") / "a.gnn").path


@pytest.fixture(scope="module")
def packed(store: Path) -> Path:
    return pack(store, [3, 2], output=store.parent / "packed", epochs=1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's cache directory, which is a link."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to("elsewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ---- stores and packed epochs


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_a_store_and_of_packed_epochs(
    tmp_path: Path, store: Path, packed: Path, kind: str
) -> None:
    for directory, reopen in ((store, StoreReader.open), (packed, PackedReader.open)):
        for file in files_below(directory):
            with replaced(file, kind, tmp_path):
                with pytest.raises(CorruptStoreError, match=said_of(file, kind)):
                    reopen(directory)
                with suppress(NotFoundError):  # of a root that cannot be read
                    assert not verify(directory, "full").ok
        reopen(directory)
        assert verify(directory, "full").ok


def test_every_directory_of_a_store_and_of_packed_epochs(
    tmp_path: Path, store: Path, packed: Path
) -> None:
    """A link to the store itself is none of its files; one in it leads out."""
    for directory, reopen in ((store, StoreReader.open), (packed, PackedReader.open)):
        (tmp_path / directory.name).symlink_to(directory)
        reopen(tmp_path / directory.name)
        assert verify(tmp_path / directory.name, "full").ok
        below = {file.parent for file in files_below(directory)} - {directory}
        for place in sorted({*below, *(path.parent for path in below)} - {directory}):
            with replaced(place, "outside", tmp_path / "aside"):
                with pytest.raises(CorruptStoreError, match=said_of(place, "outside")):
                    reopen(directory)
                assert verify(directory, "full").problems[0].path == str(place)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_replaced_while_a_store_is_open(tmp_path: Path, store: Path, kind: str) -> None:
    reader = StoreReader.open(store)
    array = reader.paged(reader.schema.node.attributes["x"])
    file = array.file_paths[0]
    with replaced(file, kind, tmp_path):
        for read in (array.load, array.map, partial(_core.crc32c_file, file, 4096)):
            with pytest.raises(OSError, match=f"found {KINDS[kind]}"):
                read()
        for direct in (False, True):
            with pytest.raises(OSError, match=f"found {KINDS[kind]}"):
                _core.FileSet([file], [1], direct=direct)


@pytest.mark.parametrize("name", [".zarray", ".zattrs", ".zgroup", "c.9", "notes"])
def test_a_stray_fifo_is_not_opened(store: Path, name: str) -> None:
    reader = StoreReader.open(store)
    spec = reader.schema.node.attributes["y"]
    stray = store / spec.path / name
    os.mkfifo(stray)
    try:
        with suppress(CorruptStoreError):
            reader.compressed(spec)
        assert [problem.path for problem in verify(store).problems] == [str(stray)]
    finally:
        stray.unlink()


def test_links_in_place_of_plans(tmp_path: Path, store: Path) -> None:
    """Packed epochs elsewhere are given by their path; a link to them in the store is refused."""
    own = shutil.copytree(store, tmp_path / "own.gnn")
    elsewhere = pack(own, [2], output=tmp_path / "elsewhere", epochs=1)
    make_units_directory(PACKED, own)
    link = own / "plans" / "base"
    link.symlink_to(elsewhere)
    for call in (
        partial(find_unit, PACKED, own, "base"),
        partial(remove_unit, PACKED, own, "base"),
    ):
        with pytest.raises(CorruptStoreError, match=said_of(link, "outside")):
            call()
    assert find_units(PACKED, own) == []
    assert [problem.path for problem in verify(own).problems] == [str(link)]
    assert (
        find_unit(PACKED, own, link) == link
    )  # asked for as a path: a link to the epochs themselves
    shutil.rmtree(own / "plans")
    (tmp_path / "plans").mkdir()
    (own / "plans").symlink_to(tmp_path / "plans")
    with pytest.raises(CorruptStoreError, match=said_of(own / "plans", "outside")):
        make_units_directory(PACKED, own)
    assert list((tmp_path / "plans").iterdir()) == []
    assert PackedReader.open(elsewhere).path == elsewhere


def test_a_group_is_not_written_through_a_link(tmp_path: Path, store: Path) -> None:
    own = shutil.copytree(store, tmp_path / "own.gnn")
    (own / "plans").mkdir()
    (own / "plans" / "zarr.json").symlink_to(tmp_path / "outside.json")
    make_units_directory(PACKED, own)
    assert not (tmp_path / "outside.json").exists()


# ---- what an interrupted conversion leaves


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal(tmp_path: Path, kind: str) -> None:
    left = tmp_path / ".g.gnn.tmp-0123abcd"
    left.mkdir()
    (tmp_path / "original").write_bytes(b"untouched")
    journal = left / "journal"
    put(kind, journal, tmp_path / "original")
    assert read_records(journal) == ([], 0)
    with pytest.raises(CorruptStoreError, match=said_of(journal, kind)):
        append_record(journal, {})
    assert [found.state for found in find_leftovers(tmp_path)] == ["unfinished"]
    edges = tmp_path / "edges.txt"
    edges.write_text("0 1\n")
    convert = partial(from_snap, edges, tmp_path / "g.gnn")
    if kind != "directory":  # which leads nowhere else
        with pytest.raises(CorruptStoreError, match=said_of(journal, kind)):
            convert(options=ConvertOptions(resume=True))
    convert()
    assert not left.exists()
    assert (tmp_path / "original").read_bytes() == b"untouched"


def test_a_link_in_place_of_what_was_left_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    append_record(precious / "journal", {"kind": "header", "version": 1, "fingerprint": {"a": 1}})
    before = files_below(precious)
    (tmp_path / ".g.gnn.tmp-0123abcd").symlink_to(precious)
    (tmp_path / "edges.txt").write_text("0 1\n")
    for resume in (True, False):
        options = ConvertOptions(resume=resume, overwrite=True)
        from_snap(tmp_path / "edges.txt", tmp_path / "g.gnn", options=options)
    assert files_below(precious) == before


# ---- the user's cache


@pytest.mark.parametrize("kind", KINDS)
def test_the_cache(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    profile = usual_profile(tmp_path)
    save_profile(profile)
    key = ListsKey("00000000-0000-8000-8000-000000000000", "edges/e/indices", 64, 8)
    save_lists(key, np.array([5], np.uint64))
    files: dict[Path, Callable[[], object]] = {
        profile_path(profile.filesystem_id): lambda: load_profile(tmp_path),
        key.file(): lambda: load_lists(key),
    }
    for file, load in files.items():
        assert load() is not None  # though the directory is a link
        caplog.clear()
        with replaced(file, kind, tmp_path / "aside"):
            assert load() is None
        assert f"{file}: not a regular file but" in caplog.text
        assert file.is_relative_to(cache)
        assert load() is not None


# ---- inputs

Convert = Callable[[Path], Any]


def write_inputs(root: Path, layout: str) -> Convert:
    """Write a data set into a directory, and return how it is converted, told the output."""
    dim = 1024 if layout == "igb" else 6
    graph = random_graph(50, 300, seed=3, feature_dim=dim, num_classes=4, edge_feature_dim=2)
    graph.attributes["year"] = np.arange(1970, 2020)
    if layout == "snap":
        published.write_snap(root / "soc-LiveJournal1.txt.gz", graph)
        np.save(root / "x.npy", graph.attributes["x"])
        np.savetxt(root / "y.csv", graph.attributes["y"], "%d")
        np.savez(root / "splits.npz", **graph.splits)  # type: ignore[arg-type]
        return partial(
            from_snap,
            root / "soc-LiveJournal1.txt.gz",
            features=root / "x.npy",
            labels=root / "y.csv",
            splits=root / "splits.npz",
        )
    if layout == "numpy":
        np.save(root / "edge_index.npy", graph.edge_index)
        np.save(root / "x.npy", graph.attributes["x"])
        return partial(from_numpy, root)
    if layout == "npz":
        np.savez(root / "all.npz", edge_index=graph.edge_index, x=graph.attributes["x"])
        return partial(from_numpy, root / "all.npz")
    if layout == "graphbolt":
        return partial(from_graphbolt, published.write_graphbolt(root, graph, edge_format="csv"))
    if layout == "igb":
        return partial(from_igb, published.write_igb(root, graph, raw=True))
    write = getattr(published, f"write_{layout}")
    return partial(from_ogb, write(root, graph))


WAYS = ("writes___paper", "affiliated_with___institution")
# Files of a data set that are not read, or whose absence says nothing: a directory is looked for.
UNREAD = {
    "igb": {"node_label_2K.npy"},
    "mag240m": {"RELEASE_v1.txt", "meta.pt", *(f"author___{way}/edge_index.npy" for way in WAYS)},
}


@pytest.mark.parametrize(
    "layout", ["snap", "numpy", "npz", "graphbolt", "igb", "papers100m", "products", "mag240m"]
)
def test_every_input(tmp_path: Path, layout: str) -> None:
    root = tmp_path / "in"
    root.mkdir()
    convert = write_inputs(root, layout)
    expected = StoreReader.open(convert(tmp_path / "files.gnn")).uuid
    for number, file in enumerate(files_below(root)):
        is_read = not any(str(file).endswith(name) for name in UNREAD.get(layout, ()))
        for kind in SPECIAL if number == 0 else ("FIFO",):
            with replaced(file, kind, tmp_path / "aside"):
                if is_read:
                    kinds = KINDS[kind].replace("symbolic link", "device")
                    with pytest.raises(InputError, match=f"{file}: not a regular file but {kinds}"):
                        convert(tmp_path / "out.gnn")
                else:
                    shutil.rmtree(convert(tmp_path / "out.gnn"))
                assert not list(tmp_path.glob("*out.gnn*"))
    # Links among inputs are theirs who keep data on another disk.
    (tmp_path / "aside").mkdir(exist_ok=True)
    for number, file in enumerate(files_below(root)):
        file.rename(tmp_path / "aside" / str(number))
        file.symlink_to(tmp_path / "aside" / str(number))
    assert StoreReader.open(convert(tmp_path / "links.gnn")).uuid == expected


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/dev/stdin"])
def test_devices_by_name(tmp_path: Path, name: str) -> None:
    if not stat.S_ISREG(Path(name).stat().st_mode):
        with pytest.raises(InputError, match=rf"{name}: not a regular file but"):
            from_snap(name, tmp_path / "g.gnn")
    assert not list(tmp_path.iterdir())


def test_no_store_is_a_fifo_or_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gnn")
    for path in (tmp_path / "a.gnn", Path("/dev/zero")):
        for look in (StoreReader.open, PackedReader.open, verify):
            with pytest.raises((NotFoundError, StorageError)):
                look(path)
