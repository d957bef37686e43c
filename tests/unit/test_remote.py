"""Stores that lie elsewhere: one verified copy, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    NoSpaceError,
    NotFoundError,
    StorageError,
    StoreExistsError,
    UsageError,
)
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.remote import blocks, objects, staging
from gnnstore.remote.copying import copy
from gnnstore.remote.objects import checked_url, files_at
from gnnstore.remote.staging import stage
from gnnstore.testing.graphs import write_store
from gnnstore.tools import cli
from tests.support.batches import digests
from tests.support.effort import choose
from tests.support.files import flip
from tests.support.forks import check_in_fork
from tests.support.hostile import reseal, rewrite
from tests.support.stores import assert_same_files, write_example_store, write_two_typed_store

obstore = pytest.importorskip("obstore")
from obstore.store import HTTPStore, LocalStore, MemoryStore, S3Store  # noqa: E402

X_FILE = "nodes/node/x/c.0.0"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of several blocks; not to be changed."""
    path = tmp_path_factory.mktemp("store") / "graph.gnn"
    write_example_store(path, num_nodes=40_000, num_edges=50_000)
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "graph.gnn")


def in_memory(path: Path) -> Any:
    """Return a store of obstore with the files of a directory."""
    found = MemoryStore()
    for file in path.rglob("*"):
        if file.is_file():
            found.put(file.relative_to(path).as_posix(), file)
    return found


def reload(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - our own


def other_store(path: Path) -> Path:
    return write_example_store(path, seed=1).path


@pytest.mark.parametrize("kind", ["path", *choose([], ["local"]), "memory"])
def test_a_copy_has_the_same_files(made: Path, tmp_path: Path, kind: str) -> None:
    places: dict[str, Any] = {
        "path": lambda: made,
        "local": lambda: LocalStore(str(made)),
        "memory": lambda: in_memory(made),
    }
    found = gnnstore.open(places[kind](), cache_dir=tmp_path / "a" / "cache")
    assert found.path == tmp_path / "a" / "cache" / found.reader.uuid
    assert_same_files(made, found.path)
    assert found.num_nodes == 40_000
    assert list(find_leftovers(found.path.parent)) == []


def test_names_with_special_characters_are_copied(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    odd: Any = {"a b/%?#": rng.random((9, 2))}
    path = write_store(tmp_path / "g.gnn", rng.integers(0, 9, (2, 20)), **odd)
    out = LocalStore(str(tmp_path / "out"), mkdir=True)
    copy(path, out)
    assert_same_files(path, tmp_path / "out")
    assert_same_files(path, stage(in_memory(path), tmp_path / "c"))
    assert_same_files(path, stage(out, tmp_path / "d"))


def test_a_copy_is_made_once(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = gnnstore.open(made, cache_dir=tmp_path)
    monkeypatch.setattr(staging, "copy_in", None)
    assert gnnstore.open(made, cache_dir=tmp_path).path == first.path
    assert gnnstore.open(LocalStore(str(made)), cache_dir=tmp_path).path == first.path


def test_a_path_is_read_where_it_is_without_a_cache(made: Path) -> None:
    assert gnnstore.open(made).path == made


def test_the_default_directory_is_private(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = gnnstore.open(LocalStore(str(made)))
    directory = tmp_path / f"gnnstore-{os.getuid()}"
    assert found.path.parent == directory
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o777)
    with pytest.raises(UsageError, match="not a directory that only you can write to"):
        gnnstore.open(LocalStore(str(made)))
    directory.chmod(0o700)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    directory.rename(tmp_path / f"gnnstore-{os.getuid()}")
    with pytest.raises(UsageError, match=r"owner \d+, mode 700.*cache_dir="):
        gnnstore.open(LocalStore(str(made)))


def test_several_threads_copy_once(made: Path, tmp_path: Path) -> None:
    counting = _Counting(LocalStore(str(made)))
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(stage(counting, tmp_path))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 3
    assert len(set(paths)) == 1
    assert counting.reads.count((X_FILE, 0)) == 1


class _Counting:
    """A store that notes what is read from it; with a change of its bytes, if one is given."""

    def __init__(self, store: Any, change: Any = lambda _name, data: data) -> None:
        self._store, self._change = store, change
        self.reads: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, name: str, *, options: Any = None) -> Any:
        found = self._store.get(name, options=options)
        if options is None:
            return found
        self.reads.append((name, options["range"][0]))
        return _Answer(self._change(name, bytes(found.bytes())))


class _Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self, *, min_chunk_size: int) -> list[bytes]:
        size = max(1, min(min_chunk_size, len(self._data) // 2))
        return [self._data[i : i + size] for i in range(0, len(self._data), size)]


def test_an_interrupted_copy_is_gone_on_with(made: Path, tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(name: str, data: bytes) -> bytes:
        if name.startswith("nodes/node/y"):
            raise StoppedError
        return data

    with pytest.raises(StorageError, match="cannot read"):
        stage(_Counting(in_memory(made), stop), tmp_path)
    [leftover] = find_leftovers(tmp_path)
    assert leftover.state == "unfinished"
    # A block that is not there yet, or damaged since, is read again, with no other of its file.
    whole = leftover.path / X_FILE
    if not whole.exists() or whole.read_bytes() != (made / X_FILE).read_bytes():
        shutil.copyfile(made / X_FILE, whole)
    flip(whole, 2**20 + 5)
    (leftover.path / "nodes" / "stray").write_text("of somebody else")
    (leftover.path / "splits").mkdir(exist_ok=True)
    counting = _Counting(in_memory(made))
    path = stage(counting, tmp_path)
    assert [start for name, start in counting.reads if name == X_FILE] == [2**20]
    assert_same_files(made, path)
    assert list(find_leftovers(tmp_path)) == []


def test_an_attempt_that_may_be_at_work_elsewhere_is_left_alone(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a mount that hides the locks of other machines."""
    uuid = gnnstore.open(made).reader.uuid
    monkeypatch.setattr(staging, "find_mount", lambda _: type("Mount", (), {"kind": "nfs4"}))
    theirs = tmp_path / f".{uuid}.tmp-0123abcd"
    theirs.mkdir()
    (theirs / "nodes").write_text("at work")

    def faster(name: str, data: bytes) -> bytes:
        """Let the other machine end first."""
        final = tmp_path / uuid
        if not final.exists():
            shutil.copytree(made, final)
        return data

    def fail(name: str, data: bytes) -> bytes:
        raise ValueError(name)

    with pytest.raises(StorageError, match="cannot read"):
        stage(_Counting(in_memory(made), fail), tmp_path)
    assert list(tmp_path.glob(f".{uuid}.tmp-*")) == [theirs]
    for rename in (_core.rename_noreplace, _without_flags):
        monkeypatch.setattr(_core, "rename_noreplace", rename)
        assert stage(_Counting(in_memory(made), faster), tmp_path) == tmp_path / uuid
        assert list(tmp_path.glob(f".{uuid}.tmp-*")) == [theirs]
        shutil.rmtree(tmp_path / uuid)
    assert (theirs / "nodes").read_text() == "at work"


def _without_flags(_old: str, _new: str) -> None:
    """As renaming a directory ends on NFS, where somebody has made the other meanwhile."""
    raise OSError(errno.ENOTEMPTY, "Directory not empty")


@pytest.mark.parametrize("often", [1, 2])
def test_damaged_bytes_are_read_once_more(made: Path, tmp_path: Path, often: int) -> None:
    left = [often]

    def damage(name: str, data: bytes) -> bytes:
        if name == X_FILE and left[0]:
            left[0] -= 1
            return data[: 2**20 + 9] + bytes([data[2**20 + 9] ^ 1]) + data[2**20 + 10 :]
        return data

    source = _Counting(LocalStore(str(made)), damage)
    if often == 1:
        assert_same_files(made, stage(source, tmp_path))
        return
    with pytest.raises(
        CorruptStoreError, match=r"x/c\.0\.0: bytes 1048576-2097152 are not"
    ) as info:
        stage(source, tmp_path)
    assert info.value.offset == 2**20
    assert not (tmp_path / gnnstore.open(made).reader.uuid).exists()


@pytest.mark.parametrize("place", choose(["object"], ["path", "object"]))
def test_replaced_missing_and_short_files_are_found(
    made: Path, store: Path, tmp_path: Path, place: str
) -> None:
    def open_it() -> Any:
        return gnnstore.open(
            store if place == "path" else LocalStore(str(store)), cache_dir=tmp_path / "cache"
        )

    damages: tuple[tuple[Callable[[Path], object], str], ...] = (
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "ends at byte"),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), "are not those that were"),
        (lambda file: file.write_bytes(b""), "ends at byte 0"),
        (lambda file: file.unlink(), "the file is missing, but the manifest lists it"),
    )
    for damage, words in damages:
        damage(store / X_FILE)
        with pytest.raises(CorruptStoreError, match=f"x/c.0.0.*{words}"):
            open_it()
        shutil.copyfile(made / X_FILE, store / X_FILE)
    table = next((store / "checksums").glob("c*"))
    flip(table, 3)
    with pytest.raises(CorruptStoreError, match=r"checksums/c.0: bytes 0-"):
        open_it()
    shutil.copyfile(made / table.relative_to(store), table)
    assert_same_files(store, open_it().path)


def test_a_hostile_manifest_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MAX_FILES", 1000)

    def refused(change: Any, words: str, kind: type[GnnstoreError] = CorruptStoreError) -> None:
        hostile = tmp_path / "hostile"
        shutil.rmtree(hostile, ignore_errors=True)
        shutil.copytree(store, hostile)
        rewrite(hostile, change)
        for place in (hostile, LocalStore(str(hostile))):
            with pytest.raises(kind, match=words):
                gnnstore.open(place, cache_dir=tmp_path / "cache")
        assert not (tmp_path / "cache").exists() or kind is NoSpaceError

    refused(lambda own: own["files"][0].__setitem__(0, "../x"), "does not stay inside")
    refused(lambda own: own.update(uuid="../x"), "expected a UUID")
    refused(lambda own: own.update(uuid="A" * 36), "expected a UUID")
    many = [[f"f/{i}", 0] for i in range(1001)]
    refused(lambda own: own.update(files=many), "lists 1,0.. files")
    refused(lambda own: own["files"][0].__setitem__(1, 2**60), "no space left", NoSpaceError)
    rewrite(store, lambda own: own["checksum_files"][1].__setitem__(1, 2**60))
    with pytest.raises(CorruptStoreError, match="checksums are said to take"):
        copy(store, MemoryStore())


def test_another_store_under_the_same_identity_is_refused(store: Path, tmp_path: Path) -> None:
    found = gnnstore.open(store, cache_dir=tmp_path / "cache")
    reseal(store, lambda own: own.update(created_by="somebody else"))
    with pytest.raises(CorruptStoreError, match="both have the identity"):
        gnnstore.open(store, cache_dir=tmp_path / "cache")
    shutil.rmtree(found.path / "nodes")
    with pytest.raises(CorruptStoreError, match=r"is damaged.*remove the directory"):
        gnnstore.open(store, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://", "names no bucket"),
        ("s3:///graph.gnn", "names no bucket"),
        ("s3:/bucket/graph.gnn", "one slash after s3:"),
        ("s3://a_b!/graph.gnn", "not the name of a bucket"),
        ("s3://key:secret@bucket/graph.gnn", "a user or a password"),
        ("https://me:secret@host/graph.gnn", "a user or a password"),
        ("https://host/graph.gnn?X-Amz-Signature=secret", "more after '\\?'"),
        ("https://host/graph.gnn?X-Amz-Signature=a@secret", "more after '\\?'"),
        ("s3://the-secret:abc/secret@bucket/x", "a user or a password"),
        ("s3://key:the-secret?abc@bucket/x", "a user or a password|more after"),
        ("https://the-secret:sec/ret@host", "a user or a password"),
        ("s3:/the-secret:abc@bucket/x", "one slash after s3:"),
        ("ftp://key:sec/secret@host/x", "write s3://BUCKET/PATH"),
        ("https://host/graph.gnn#secret", "more after '\\?'"),
        ("s3://bucket/a/../b", "an empty part"),
        ("s3://bucket//b", "an empty part"),
        ("http://host/graph.gnn", "not encrypted.*HTTPStore.from_url"),
        ("file:///graph.gnn", "pass the path itself"),
        ("ftp://host/graph.gnn", "write s3://BUCKET/PATH"),
    ],
)
def test_urls_are_refused_in_words(url: str, words: str, tmp_path: Path) -> None:
    for call in (
        lambda: checked_url(url),
        lambda: gnnstore.open(url, cache_dir=tmp_path),
        lambda: copy(url, tmp_path / "x"),
    ):
        with pytest.raises(UsageError, match=words) as info:
            call()
        assert "secret" not in str(info.value)
    if url != "s3://":
        with pytest.raises(UsageError) as info:
            gnnstore.open(Path(url), cache_dir=tmp_path)
        assert "secret" not in str(info.value)


def test_what_a_store_came_from_has_no_slash_at_its_end() -> None:
    for text in ("s3://bucket/a/graph.gnn", "https://host"):
        origin = staging.origin_of(f"{text}/", None)
        assert origin is not None
        assert files_at(f"{origin.place}/plans/base").label == f"{text}/plans/base"


def test_a_place_of_another_kind_is_refused(tmp_path: Path) -> None:
    for place in (7, None, b"x", object()):
        with pytest.raises(UsageError, match="neither a path, nor a URL, nor a store of obstore"):
            gnnstore.open(place, cache_dir=tmp_path)  # type: ignore[arg-type]
    for place in (tmp_path, MemoryStore(), LocalStore(str(tmp_path))):
        with pytest.raises(NotFoundError, match="there is no gnnstore store here"):
            gnnstore.open(place, cache_dir=tmp_path / "cache")
    (tmp_path / "zarr.json").write_text("{}")
    with pytest.raises(CorruptStoreError, match="not a gnnstore store"):
        gnnstore.open(LocalStore(str(tmp_path)), cache_dir=tmp_path / "cache")


def test_a_url_needs_obstore(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UsageError, match=r"pip install 'gnnstore\[remote\]'"):
        gnnstore.open("s3://bucket/graph.gnn", cache_dir=tmp_path)


def test_azure_needs_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(UsageError, match=r"Account must be.*AZURE_STORAGE_ACCOUNT_NAME"):
        files_at("az://container/graph.gnn")


def test_cache_directories_are_refused_in_words(
    made: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(cache_dir: Path, words: str, kind: type[GnnstoreError] = UsageError) -> None:
        with pytest.raises(kind, match=words):
            gnnstore.open(store, cache_dir=cache_dir)

    refused(store / "cache", "inside .*graph.gnn, a store")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", r"directory of copies \(give another cache_dir=\)", StorageError)
    monkeypatch.setattr(staging, "find_mount", lambda _: type("Mount", (), {"kind": "tmpfs"}))
    with monkeypatch.context() as patch:
        patch.setattr(staging, "_IN_MEMORY", ("tmpfs",))
        refused(tmp_path / "memory", "is on tmpfs, which is memory")
    assert not (tmp_path / "memory").exists()
    free = "gnnstore.formats.base.files.free_bytes"
    with monkeypatch.context() as patch:
        patch.setattr(free, lambda _: 1000)
        refused(tmp_path / "full", "no space left.*cache_dir=.*packed epochs", NoSpaceError)
    assert [path.name[-5:] for path in (tmp_path / "full").iterdir()] == [".lock"]

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    real_open = os.open

    def open_others(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(".lock"):
            return refuse()
        return real_open(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_others)
        refused(tmp_path / "locked", "cannot make a copy.*Permission denied", StorageError)
    # A copy in a directory that cannot be written to is opened.
    found = gnnstore.open(store, cache_dir=tmp_path / "cache")
    lock = os.open
    with monkeypatch.context() as patch:
        patch.setattr(
            os,
            "open",
            lambda p, *a, **k: refuse() if "lock" in str(p) else lock(p, *a, **k),
        )
        assert gnnstore.open(made, cache_dir=tmp_path / "cache").path == found.path
    # One that another user made in a directory that many can write to is not.
    real = Path.lstat

    def foreign(path: Path) -> Any:
        status = list(real(path))
        if path == found.path:
            status[4] = 12345
        return os.stat_result(status)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", foreign)
        refused(tmp_path / "cache", r"made by another user \(12345\)")


def test_stores_pickle_without_secrets(made: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    store = gnnstore.open(made, cache_dir=cache)
    data = pickle.dumps(store)
    shutil.rmtree(cache)
    again = reload(data)  # on another machine: copied there
    assert again.path == store.path
    assert reload(pickle.dumps(again.select(["x"]))).path == store.path

    keys: Any = {"access_key_id": "the-key", "secret_access_key": "the-secret"}
    secret = S3Store("bucket", config=keys)
    assert "the-" not in files_at(secret).label
    web = HTTPStore.from_url("https://me:the-secret@host.org/a/graph.gnn")
    assert files_at(web).label == "https://host.org/a/graph.gnn"
    by_object = pickle.dumps(gnnstore.open(LocalStore(str(made)), cache_dir=cache))
    assert b"obstore" not in by_object
    assert reload(by_object).path == store.path
    shutil.rmtree(cache)
    with pytest.raises(NotFoundError):
        reload(by_object)


def test_a_pickled_store_that_was_replaced_is_refused(store: Path, tmp_path: Path) -> None:
    data = pickle.dumps(gnnstore.open(store, cache_dir=tmp_path / "cache"))
    shutil.rmtree(store)
    other_store(store)
    again = reload(data)
    assert again.num_nodes == 40_000  # the copy is still there
    shutil.rmtree(again.path)
    shutil.copytree(store, again.path)
    with pytest.raises(StorageError, match="another store was put in place"):
        reload(data)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(StorageError, match="another store was put in place"):
        reload(data)


def test_a_fork_is_refused(made: Path, tmp_path: Path) -> None:
    pickled = pickle.dumps(gnnstore.open(made, cache_dir=tmp_path))
    gnnstore.open(LocalStore(str(made)), cache_dir=tmp_path)

    def check() -> None:
        assert reload(pickled).num_nodes == 40_000
        for place in (LocalStore(str(made)), "s3://bucket/graph.gnn"):
            with pytest.raises(UsageError, match=r"forked after its parent.*'spawn'"):
                gnnstore.open(place, cache_dir=tmp_path)

    check_in_fork(check, 20)


def test_copying_out(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", 2**20)  # so that one file is put in parts
    bucket = MemoryStore()
    copied = copy(made, bucket, verify=True)
    assert (copied.kind, copied.is_verified) == ("store", True)
    assert copied.num_files == sum(file.is_file() for file in made.rglob("*"))
    assert_same_files(made, stage(bucket, tmp_path / "c"))
    # Once more copies what is not there; nothing else.
    bucket.delete(X_FILE)
    assert copy(made, bucket).copied_bytes == (made / X_FILE).stat().st_size
    assert copy(made, bucket).copied_bytes == 0
    # Sizes do not show damage.
    damaged = bytes((made / X_FILE).stat().st_size)
    table = next((made / "checksums").glob("c*")).relative_to(made).as_posix()
    bucket.put(X_FILE, damaged)
    bucket.put(table, bytes((made / table).stat().st_size))
    assert copy(made, bucket).copied_bytes == 0
    put = sum((made / name).stat().st_size for name in (X_FILE, table))
    assert copy(made, bucket, verify=True).copied_bytes == put
    assert copy(made, bucket, verify=True).copied_bytes == 0
    bucket.put(X_FILE, damaged)
    assert copy(made, bucket, overwrite=True).copied_bytes == copied.copied_bytes
    assert_same_files(made, stage(bucket, tmp_path / "overwritten"))
    other = other_store(tmp_path / "other.gnn")
    with pytest.raises(StoreExistsError, match=r"has another store.*--overwrite"):
        copy(other, bucket)
    copy(other, bucket, overwrite=True, verify=True)
    assert_same_files(other, stage(bucket, tmp_path / "c"))
    names = {found["path"] for page in bucket.list() for found in page}
    assert names == {str(f.relative_to(other)) for f in other.rglob("*") if f.is_file()}
    bucket.put("zarr.json", b"{}")
    with pytest.raises(UsageError, match="not a whole gnnstore store, and is not replaced"):
        copy(made, bucket, overwrite=True)


def test_a_store_that_is_damaged_is_not_put_whole(store: Path) -> None:
    flip(store / X_FILE, 2**20 + 5)
    bucket = MemoryStore()
    with pytest.raises(CorruptStoreError, match="bytes 1048576-2097152"):
        copy(store, bucket)
    with pytest.raises(FileNotFoundError):
        bucket.head("zarr.json")


def test_copies_into_themselves_are_refused(made: Path, tmp_path: Path) -> None:
    other = other_store(tmp_path / "other.gnn")
    (tmp_path / "link").symlink_to(other)
    for source, destination in (
        (other, other),
        (other, tmp_path / "link"),
        (other, other / "inside"),
        (other / "plans" / "base", other),
        ("s3://bucket/a", "s3://bucket/a/b"),
        ("s3://bucket/a/", "s3://bucket/a"),
    ):
        with pytest.raises(UsageError, match="inside the other"):
            copy(source, destination, overwrite=True)
    with pytest.raises(UsageError, match="inside"):
        copy(made, other / "inside")
    for to in ("https://host/graph.gnn", HTTPStore.from_url("https://host/graph.gnn")):
        with pytest.raises(UsageError, match="https:// is for reading only"):
            copy(made, to)


def test_the_command_copies(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: object) -> tuple[int, str, str]:
        status = cli.main([str(word) for word in words])
        return status, *capsys.readouterr()

    status, out, _ = run("copy", made, tmp_path / "c.gnn", "--verify", "--json")
    found = json.loads(out)
    assert (status, found["is_verified"], found["destination"]) == (
        0,
        True,
        str(tmp_path / "c.gnn"),
    )
    assert found["copied_bytes"] < found["num_bytes"]
    assert_same_files(made, tmp_path / "c.gnn")
    status, _, err = run("copy", made, tmp_path / "c.gnn")
    assert (status, "pass --overwrite" in err) == (2, True)
    assert run("copy", made, tmp_path / "c.gnn", "--overwrite")[0] == 0
    status, out, _ = run("verify", made, "--cache-dir", tmp_path / "cache", "--json")
    assert json.loads(out)["store"] == str(tmp_path / "cache" / gnnstore.open(made).reader.uuid)
    status, _, err = run("inspect", "s3:/bucket/graph.gnn")
    assert (status, "one slash after s3:" in err) == (2, True)
    status, _, err = run("inspect", made, "--cache-dir", made / "x")
    assert (status, "inside" in err) == (2, True)
    for command, *options in (("add-order", "--time-attr", "t"), ("rm", "--packed", "base")):
        status, _, err = run(command, "s3://bucket/graph.gnn", *options)
        assert (status, "gnnstore copy URL PATH" in err) == (2, True)


def test_what_is_made_of_a_store_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_example_store(tmp_path / "graph.gnn", num_nodes=400, num_edges=500).path
    options: Any = {"batch_size": 50, "seed": 3, "shuffle": True}
    words = ["--batch-size", "50", "--seed", "3", "--num-neighbors", "2", "--memory", "200MB"]
    assert cli.main(["pack", str(store), "--name", "base", *words, "-q"]) == 0
    assert cli.main(["partition", str(store), "-p", "4", "--name", "four", "-q"]) == 0
    expected = digests(gnnstore.NeighborLoader(store, [2], "train", packed="base", **options))
    opened = gnnstore.open(store, cache_dir=tmp_path / "cache")
    again = reload(pickle.dumps(opened))
    loader = gnnstore.NeighborLoader(opened, [2], "train", packed="base", **options)
    assert digests(loader) == expected
    assert_same_files(store / "plans", opened.path / "plans")
    with monkeypatch.context() as patch:
        patch.setattr(staging, "copy_in", None)
        loader = gnnstore.NeighborLoader(again, [2], "train", packed="base", **options)
        assert digests(loader) == expected
    with pytest.raises(NotFoundError, match="'other'"):
        gnnstore.NeighborLoader(opened, [2], "train", packed="other", **options)
    policy = gnnstore.PartitionPolicy(capacity=2)  # the only partitions there are
    gnnstore.NeighborLoader(opened, [2], "train", partitions=policy, **options)
    assert_same_files(store / "partitions", opened.path / "partitions")
    assert cli.main(["assign", str(store), "--parts", "2", "--hops", "1", "-q"]) == 0
    expected = digests(gnnstore.NeighborLoader(store, [2], "train", seeds_of="parts-2", **options))
    loader = gnnstore.NeighborLoader(again, [2], "train", seeds_of="parts-2", **options)
    assert digests(loader) == expected
    unit = opened.path / "assignments" / "parts-2"
    assert_same_files(store / "assignments" / "parts-2", unit)
    assert cli.main(["copy", str(unit), str(tmp_path / "copied"), "-q"]) == 0
    assert_same_files(unit, tmp_path / "copied")


def test_types_are_copied(tmp_path: Path) -> None:
    path = write_two_typed_store(tmp_path / "typed.gnn").path
    found = gnnstore.open(LocalStore(str(path)), cache_dir=tmp_path / "c")
    assert_same_files(path, found.path)
    assert found.node_types == gnnstore.open(path).node_types
