"""Subgraphs that have been sampled and wait for their batch, in memory or on disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

from gnnstore.disk.ragged_file import RaggedFile
from gnnstore.sampling.compact import CompactSubgraph


class KeptSubgraphs(Protocol):
    """Subgraphs by the number of their batch. Safe to use from many threads at once."""

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""

    @property
    def num_disk_bytes(self) -> int:
        """Disk that they take."""

    def put(self, i: int, subgraph: CompactSubgraph) -> None:
        """Keep the subgraph of batch i."""

    def get(self, i: int) -> CompactSubgraph:
        """Return the subgraph of batch i, as often as asked for."""

    def drop(self, i: int) -> None:
        """Let go of the subgraph of batch i, if there is one."""

    def close(self) -> None:
        """Let go of all of them. Idempotent."""


class SubgraphsInMemory:
    """Keeps subgraphs in memory."""

    def __init__(self) -> None:
        self._subgraphs: dict[int, CompactSubgraph] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""
        return self._num_bytes

    @property
    def num_disk_bytes(self) -> int:
        """Nothing."""
        return 0

    def put(self, i: int, subgraph: CompactSubgraph) -> None:
        """Keep the subgraph of batch i, instead of an earlier one."""
        with self._lock:
            self._drop(i)
            self._subgraphs[i] = subgraph
            self._num_bytes += subgraph.num_bytes

    def get(self, i: int) -> CompactSubgraph:
        """Return the subgraph of batch i.

        Raises
        ------
        KeyError
            If there is none.
        """
        return self._subgraphs[i]

    def drop(self, i: int) -> None:
        """Let go of the subgraph of batch i, if there is one."""
        with self._lock:
            self._drop(i)

    def _drop(self, i: int) -> None:
        dropped = self._subgraphs.pop(i, None)
        self._num_bytes -= 0 if dropped is None else dropped.num_bytes

    def close(self) -> None:
        """Let go of all of them."""
        with self._lock:
            self._subgraphs.clear()
            self._num_bytes = 0


class SubgraphsOnDisk:
    """Keeps subgraphs in a ragged file, which is gone after `close`.

    Disk is given back when nothing is kept any more, so what is needed for one superbatch
    goes into one object.

    Parameters
    ----------
    path : Path
        Of files to make; see `RaggedFile`.

    Raises
    ------
    StorageError
        If they cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._file = RaggedFile(path)

    @property
    def num_bytes(self) -> int:
        """Nothing: what the page cache keeps may be taken back at any time."""
        return 0

    @property
    def num_disk_bytes(self) -> int:
        """Disk that they take."""
        return self._file.num_bytes

    def put(self, i: int, subgraph: CompactSubgraph) -> None:
        """Write the subgraph of batch i.

        Raises
        ------
        NoSpaceError, StorageError
            If it cannot be written.
        """
        self._file.append(i, subgraph.arrays())

    def get(self, i: int) -> CompactSubgraph:
        """Read the subgraph of batch i.

        Raises
        ------
        KeyError
            If there is none.
        CorruptStoreError
            If it is not what was written.
        StorageError
            If it cannot be read.
        """
        return CompactSubgraph.from_arrays(self._file.read(i))

    def drop(self, i: int) -> None:
        """Let go of the subgraph of batch i, if there is one."""
        self._file.drop(i)

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self._file.close()
