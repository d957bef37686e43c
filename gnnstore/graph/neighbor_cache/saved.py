"""Saves the choice of a neighbour cache's lists for the next start.

Choosing them takes a pass over the graph to count out-degrees, and 4 bytes of memory a node;
reading the choice back takes a bit a node. It is in the user's cache directory, by the store's
uuid, which is derived from its content, and by the size of the cache.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.disk.user_cache import user_cache_directory, write_whole
from gnnstore.errors import CorruptStoreError, StorageError
from gnnstore.formats.container.regular_files import open_binary
from gnnstore.formats.container.strict_json import Fields, parse_object
from gnnstore.graph.neighbor_cache.importance import num_words

_FORMAT_VERSION = 1
_MAX_HEADER_BYTES = 4096
# Budgets that are tried and dropped leave files behind: the latest of a store are kept.
_MAX_KEPT = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListsKey:
    """The settings that a choice depends on."""

    uuid: str
    array: str  # path of `indices` in the store
    num_nodes: int
    max_neighbors: int  # the cache's capacity

    def file(self) -> Path:
        """Return the path of the saved choice."""
        return user_cache_directory("neighbors") / f"{self._prefix()}-{self.max_neighbors}"

    def _prefix(self) -> str:
        array = _core.crc32c(np.frombuffer(self.array.encode(), np.uint8))
        return f"{UUID(self.uuid)}-{array:08x}"

    def others(self) -> list[Path]:
        """Return the other choices for this array, the latest first."""
        own = self.file()
        found = (path for path in own.parent.glob(f"{self._prefix()}-*") if path != own)
        return sorted(found, key=_modified, reverse=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def load_lists(key: ListsKey) -> npt.NDArray[np.uint64] | None:
    """Return the bitmap of the chosen nodes, uint64 [ceil(N / 64)]; None if none is saved."""
    try:
        file = key.file()
        with open_binary(file, error=StorageError, root=file.parent) as opened:
            header = opened.readline(_MAX_HEADER_BYTES)
            body = opened.read(8 * num_words(key.num_nodes) + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _log.warning("the choice of in-neighbour lists to cache is made again: %s", error)
        return None
    try:
        return _parse(key, header, body, str(file))
    except CorruptStoreError as error:
        _log.warning("%s; the choice of in-neighbour lists to cache is made again", error)
        return None


def _parse(key: ListsKey, header: bytes, body: bytes, file: str) -> npt.NDArray[np.uint64]:
    fields = Fields(parse_object(header, path=file), file)
    if fields.integer("format_version") != _FORMAT_VERSION:
        raise fields.fail("format_version", str(_FORMAT_VERSION))
    for name, expected in _header(key).items():
        if fields.document.get(name) != expected:
            raise fields.fail(name, repr(expected))
    found = _core.crc32c(np.frombuffer(body, np.uint8))
    if fields.integer("crc32c") != found:
        raise fields.fail("crc32c", f"that of {len(body)} bytes of bitmap, {found}")
    expected = 8 * num_words(key.num_nodes)
    bits = np.frombuffer(body[: len(body) // 8 * 8], "<u8").astype(np.uint64)
    used = key.num_nodes % 64
    if len(body) != expected or (used and int(bits[-1]) >> used):
        raise CorruptStoreError(
            f"{file}: expected {expected} bytes with a bit for each of {key.num_nodes} nodes, "
            f"found {len(body)} bytes, or bits of other nodes",
            path=file,
        )
    return bits


def _header(key: ListsKey) -> dict[str, str | int]:
    return {
        "uuid": key.uuid,
        "array": key.array,
        "num_nodes": key.num_nodes,
        "max_neighbors": key.max_neighbors,
    }


def save_lists(key: ListsKey, bits: npt.NDArray[np.uint64]) -> None:
    """Save a choice; a failure is a log message."""
    body = bits.astype("<u8", copy=False).view(np.uint8)
    header = {"format_version": _FORMAT_VERSION, **_header(key), "crc32c": _core.crc32c(body)}
    try:
        write_whole(key.file(), [json.dumps(header).encode() + b"\n", body])
        for path in key.others()[_MAX_KEPT - 1 :]:
            path.unlink(missing_ok=True)
    except (OSError, StorageError, ValueError) as error:
        _log.warning("the choice of in-neighbour lists to cache is not kept: %s", error)
