"""Subgraphs that are sampled ahead, until their batches are assembled."""

from __future__ import annotations

from gnnstore.disk.spool import FileSpool, Spool
from gnnstore.sampling.compact import CompactSample


class KeptSubgraphs:
    """The subgraphs of a superbatch, shortened. Safe to use from many threads at once.

    Parameters
    ----------
    spool : Spool
        Where they wait. Closed by `close`.
    ids : FileSpool or None
        Holds the node ids of each batch: the file of their trace. Ids are not written twice. Not
        closed.
    """

    def __init__(self, spool: Spool, ids: FileSpool | None) -> None:
        self._spool = spool
        self._ids = ids

    @property
    def has_ids(self) -> bool:
        """Whether node ids are kept here, and not with the trace."""
        return self._ids is None

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""
        return self._spool.num_bytes

    @property
    def num_disk_bytes(self) -> int:
        """Disk that they take, node ids in a trace not included."""
        return self._spool.num_disk_bytes

    def append(self, i: int, subgraph: CompactSample) -> None:
        """Keep the subgraph of batch i, which has none yet.

        Raises
        ------
        NoSpaceError, StorageError, UsageError
            See `Spool.append`.
        """
        self._spool.append(i, subgraph.shortened(with_ids=self.has_ids))

    def read(self, i: int) -> CompactSample:
        """Return the subgraph of batch i.

        Raises
        ------
        CorruptStoreError, KeyError, StorageError, UsageError
            See `Spool.read`.
        """
        n_id = None if self._ids is None else self._ids.read(i)[0]
        return CompactSample.from_shortened(self._spool.read(i), n_id)

    def drop(self, i: int) -> None:
        """Let go of the subgraph of batch i, if there is one."""
        self._spool.drop(i)

    def close(self) -> None:
        """Let go of all of them. Idempotent."""
        self._spool.close()
