"""A kind of sealed directory that one file defines is written, read, verified, resumed, swept."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import gnnstore
from gnnstore.errors import (
    CorruptStoreError,
    InputError,
    NoSpaceError,
    NotFoundError,
    UnsupportedVersionError,
    UsageError,
)
from gnnstore.formats import AttributeSpec
from gnnstore.formats.arrays import paged
from gnnstore.formats.base.files import Problem
from gnnstore.formats.base.strict_json import Fields
from gnnstore.formats.container.manifest import KINDS, Kind, Manifest
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.formats.container.writer import SealedWriter
from tests.support.effort import choose
from tests.support.stores import assert_same_files, write_example_store

# ---- the kind: vectors in parts ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PartsManifest(Manifest):
    """Vectors, and how many of them each part has."""

    FORMAT: ClassVar[str] = "toy-parts"
    VERSION: ClassVar[int] = 2
    OLDEST: ClassVar[int] = 2
    WORD: ClassVar[str] = "collection"
    VERB: ClassVar[str] = "divide"
    MAKE: ClassVar[str] = "make one by dividing"

    vectors: AttributeSpec
    sizes: AttributeSpec

    def fields(self) -> Mapping[str, Any]:
        return {"vectors": asdict(self.vectors), "sizes": asdict(self.sizes)}

    @classmethod
    def parse(cls, own: Fields) -> Mapping[str, Any]:
        return {name: AttributeSpec.from_json(own.fields(name)) for name in ("vectors", "sizes")}

    def arrays(self) -> tuple[AttributeSpec, ...]:
        return (self.vectors, self.sizes)


class PartsReader(SealedReader[PartsManifest]):
    """Opens them."""

    MANIFEST: ClassVar[type[PartsManifest]] = PartsManifest

    def check(self) -> None:
        self.sizes = self.compressed(self.manifest.sizes)
        if self.sizes.sum() != self.manifest.vectors.num_rows:
            raise CorruptStoreError(f"{self.path}: the parts are not all vectors", path=self.path)

    def meaningless(self) -> Iterator[Problem]:
        for first, rows in self.paged(self.manifest.vectors).pieces():
            for row in np.flatnonzero(~np.isfinite(rows).all(1)):
                yield Problem(str(self.path), f"vector {first + row} is not finite")


class PartsWriter(SealedWriter):
    """Writes them."""

    READER: ClassVar[type[PartsReader]] = PartsReader


PARTS = Kind(PartsManifest, PartsReader.open, frozenset({"vectors", "sizes"}))

# ---- what it is used for -------------------------------------------------------------------

# Of three shards, the least that shards can be.
VALUES = np.arange(36_000, dtype=np.float32).reshape(12_000, 3)
SIZES = np.array([7000, 5000])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the kind, and write after a few pages, as a writer of large arrays does."""
    monkeypatch.setattr(paged, "_BUFFER_BYTES", 4096)
    monkeypatch.setattr(KINDS, "_values", {kind.name: kind for kind in (*KINDS, PARTS)})


def write(path: Path, values: Any = VALUES, sizes: Any = SIZES, **options: Any) -> Path:
    default: dict[str, Any] = {"shard_bytes": 4096, "fingerprint": {"what": "parts"}}
    with PartsWriter(path, **default | options) as writer:
        vectors = writer.paged(
            "vectors", name="vectors", row_shape=(3,), dtype="float32", num_rows=len(values)
        )
        for first in range(0, len(values), 1000):
            vectors.append(values[first : first + 1000])
        described = writer.compressed("sizes", sizes, name="sizes")
        return writer.seal(
            PartsManifest(created_by="a test", vectors=vectors.spec, sizes=described)
        )


def test_written_read_and_verified(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parts")
    reader = PartsReader.open(path)
    assert np.array_equal(reader.read(reader.manifest.vectors), VALUES)
    assert np.array_equal(reader.sizes, SIZES)
    assert repr(reader) == f"PartsReader({str(path)!r})"
    assert reader.uuid == PartsReader.open(write(tmp_path / "b.parts")).uuid
    assert gnnstore.verify(path, "full").ok
    shard = path / "vectors" / "c.0.0"
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    (problem,) = gnnstore.verify(path).problems
    assert (problem.path, problem.first_byte) == (str(shard), 0)
    (path / "more").touch()
    (path / "sizes" / "c.0").unlink()
    missing, stray, altered = gnnstore.verify(path).problems
    assert "divide again" in missing.message
    assert (stray.path, altered.path) == (str(path / "more"), str(shard))


def test_numbers_that_mean_nothing_are_found(tmp_path: Path) -> None:
    values = VALUES.copy()
    values[77, 1] = np.nan
    path = write(tmp_path / "a.parts", values)
    assert gnnstore.verify(path).ok
    (problem,) = gnnstore.verify(path, "full").problems
    assert problem.message == "vector 77 is not finite"


def test_what_readers_refuse_gets_no_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"collection would be refused by readers.*not all vec"):
        write(tmp_path / "a.parts", sizes=np.array([1, 2]))
    assert list(tmp_path.iterdir()) == []


def test_only_its_kind_is_opened_and_replaced(tmp_path: Path) -> None:
    store = write_example_store(tmp_path / "s.gnn").path
    with pytest.raises(CorruptStoreError, match=r"not a gnnstore collection .*by dividing"):
        PartsReader.open(store)
    with pytest.raises(UsageError, match="is not a gnnstore collection, so it is not overwritten"):
        write(store, overwrite=True)
    with pytest.raises(NotFoundError, match="no such collection; make one by dividing"):
        PartsReader.open(tmp_path / "a.parts")
    path = write(tmp_path / "a.parts")
    write(path, VALUES + 1, overwrite=True)
    reader = PartsReader.open(path)
    assert reader.read(reader.manifest.vectors)[0, 0] == 1


def test_versions_that_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parts")
    monkeypatch.setattr(PartsManifest, "VERSION", 1)
    with pytest.raises(UnsupportedVersionError, match=r"version 2; .* up to 1\. Upgrade"):
        PartsReader.open(path)
    monkeypatch.setattr(PartsManifest, "OLDEST", 3)
    with pytest.raises(UnsupportedVersionError, match=r"version 2; .*reads 3.* Divide again"):
        PartsReader.open(path)


def test_a_full_disk_and_going_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write(tmp_path / "whole.parts")
    path = tmp_path / "a.parts"
    with monkeypatch.context() as patch:
        patch.setattr("gnnstore.formats.container.writer.write_compressed_files", _no_space)
        with pytest.raises(
            NoSpaceError, match=r"\. What was finished .*is kept in .*\.a\.parts\.tmp-"
        ):
            write(path)
    (left,) = find_leftovers(tmp_path)
    assert (left.final, left.state) == (path, "resumable")
    with pytest.raises(UsageError, match="the interrupted attempt there cannot be continued"):
        write(path, fingerprint={"what": "others"}, resume=True)
    told: list[str] = []
    # Rows that are in finished shards are passed over, whatever comes in their place.
    write(path, np.vstack([np.zeros((9000, 3), np.float32), VALUES[9000:]]), resume=True,
          on_event=told.append)  # fmt: skip
    assert "an interrupted attempt finished" in told[0]
    assert_same_files(path, whole)


def _no_space(*_: Any) -> Any:
    raise OSError(28, "No space left on device")


def test_killed_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at each fsync in turn: nothing or all has the name; what is left is gone on with."""
    whole = write(tmp_path / "whole.parts")
    fsync = os.fsync
    states = set()
    for point in range(1, 100, choose(4, 1)):
        folder = tmp_path / str(point)
        folder.mkdir()
        path = folder / "a.parts"
        if not (child := os.fork()):
            left = [point]

            def fsync_or_die(file: int, left: list[int] = left) -> None:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                fsync(file)

            try:
                monkeypatch.setattr(os, "fsync", fsync_or_die)
                write(path)
            finally:
                os._exit(0)
        was_killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        if path.exists():
            assert_same_files(path, whole)
            assert not list(find_leftovers(folder)) or was_killed
        else:
            (found,) = find_leftovers(folder)
            states.add(found.state)
            write(path, resume=True)
            assert_same_files(path, whole)
            assert [entry.name for entry in folder.iterdir()] == ["a.parts"]
        if not was_killed:
            break
    assert states == {"resumable", "unfinished"}
    assert point > 10
