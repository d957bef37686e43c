"""Chooses the in-neighbour lists of a neighbour cache (Ginex, section 3.2), and saves the choice.

The importance of a node is its out-degree over its in-degree: the number of lists that it can be
drawn from, and so how often its own is needed, over the length of its own. The most important lists
are cached until the cache is full, of equally important ones those of the lowest ids.

Choosing them takes a pass over the graph to count out-degrees, and 4 bytes of memory a node;
reading the choice back takes a bit a node. It is in the user's cache directory, by the store's
uuid, which is derived from its content, and by the size of the cache.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.thresholds import highest_that_overflows
from gnnstore.disk.user_cache import user_cache_directory, write_whole
from gnnstore.errors import CorruptStoreError, StorageError
from gnnstore.formats.container.regular_files import open_binary
from gnnstore.formats.container.strict_json import Fields, parse_object
from gnnstore.formats.store.csc import Csc

# Nodes are processed in pieces, so that choosing takes only a few MB more than the out-degrees.
# A multiple of 64: pieces fill whole words of a bitmap.
_CHUNK = 1 << 18


def choose_lists(
    csc: Csc, out_degrees: npt.NDArray[np.uint32], max_neighbors: int
) -> npt.NDArray[np.uint64]:
    """Choose the most important lists that hold at most `max_neighbors` in-neighbours."""
    threshold, left = highest_that_overflows(
        lambda: ((keys, degrees * (keys > 0)) for _, degrees, keys in _keys(csc, out_degrees)),
        max_neighbors,
    )
    bits = np.zeros(num_words(csc.num_nodes), np.uint64)
    for first, degrees, keys in _keys(csc, out_degrees):
        chosen = keys > threshold
        # Of equally important lists the first ones, up to the first that does not fit.
        ties = np.flatnonzero((keys == threshold) & (keys > 0))
        fitting = np.cumsum(degrees[ties]) <= left
        chosen[ties[fitting]] = True
        left = left - int(degrees[ties].sum()) if fitting.all() else 0
        _set_bits(bits, first, chosen)
    return bits


def all_lists(csc: Csc) -> npt.NDArray[np.uint64]:
    """Choose all lists that are not empty: uint64 [ceil(N / 64)]."""
    bits = np.zeros(num_words(csc.num_nodes), np.uint64)
    for first, degrees in in_degrees(csc):
        _set_bits(bits, first, degrees > 0)
    return bits


def num_words(num_nodes: int) -> int:
    """Return the number of elements in a bitmap of nodes."""
    return -(-num_nodes // 64)


def unpack_bits(bits: npt.NDArray[np.uint64], first: int, count: int) -> npt.NDArray[np.bool_]:
    """Return the bits of `count` nodes from `first`, a multiple of 64, as bool [count]."""
    words = bits[first // 64 : num_words(first + count)].astype("<u8", copy=False)
    return np.unpackbits(words.view(np.uint8), count=count, bitorder="little").view(bool)


def _set_bits(bits: npt.NDArray[np.uint64], first: int, chosen: npt.NDArray[np.bool_]) -> None:
    words = np.zeros(num_words(len(chosen)) * 8, np.uint8)
    packed = np.packbits(chosen, bitorder="little")
    words[: len(packed)] = packed
    bits[first // 64 : first // 64 + len(words) // 8] = words.view("<u8")


def in_degrees(csc: Csc) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the first node of a piece and the lengths of its lists, for all nodes."""
    expected = 0
    for first in range(0, csc.num_nodes, _CHUNK):
        part = csc.indptr[first : first + _CHUNK + 1]
        degrees = np.diff(part)
        if part[0] != expected or (degrees < 0).any():
            raise _damaged(csc)
        expected = int(part[-1])
        yield first, degrees
    if expected != csc.num_edges:
        raise _damaged(csc)


def _keys(
    csc: Csc, out_degrees: npt.NDArray[np.uint32]
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.uint32]]]:
    """Yield first node, lengths of lists, and importance as integers in its order; 0: none."""
    for first, degrees in in_degrees(csc):
        uses = np.zeros(len(degrees), np.float32)
        found = out_degrees[first : first + len(degrees)]
        uses[: len(found)] = found
        # Positive floats are ordered as their bits are.
        keys = (uses / np.maximum(degrees, 1).astype(np.float32)).view(np.uint32)
        keys[degrees == 0] = 0
        yield first, degrees, keys


def _damaged(csc: Csc) -> CorruptStoreError:
    return CorruptStoreError(
        f"cannot choose the in-neighbour lists to cache of {csc.label}: indptr does not ascend "
        f"from 0 to {csc.num_edges}, the number of edges. Its topology is damaged; run 'gnnstore "
        "verify' on it, or convert the graph again",
        path=csc.label,
    )


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
        with open_binary(file, error=StorageError) as opened:
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
    for name, expected in asdict(key).items():
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


def save_lists(key: ListsKey, bits: npt.NDArray[np.uint64]) -> None:
    """Save a choice; a failure is a log message."""
    body = bits.astype("<u8", copy=False).view(np.uint8)
    header = {"format_version": _FORMAT_VERSION, **asdict(key), "crc32c": _core.crc32c(body)}
    try:
        write_whole(key.file(), [json.dumps(header).encode() + b"\n", body])
        for path in key.others()[_MAX_KEPT - 1 :]:
            path.unlink(missing_ok=True)
    except (OSError, StorageError, ValueError) as error:
        _log.warning("the choice of in-neighbour lists to cache is not kept: %s", error)
