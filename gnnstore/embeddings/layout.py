"""The row of each node in a table, the nodes of a partition, and initial values of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import UsageError, check_choice
from gnnstore.formats.partitions.reader import PartitionsReader
from gnnstore.formats.tables.commit import INITIAL, MAX_PARTITIONS, TableManifest

# Bytes of a partition of a table in the order of nodes: a commit writes whole partitions.
_PARTITION_BYTES = 64 << 20
FLOAT_BYTES = 4

_Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]


def rows_in_order(num_nodes: int, row_bytes: int) -> int:
    """Return the rows of each partition of a table whose rows are in the order of nodes."""
    fitting = max(1, _PARTITION_BYTES // row_bytes)
    return min(num_nodes, max(fitting, -(-num_nodes // MAX_PARTITIONS)))


class RowLayout:
    """The rows of a table, in the order of nodes or in that of partitions of the store."""

    def __init__(self, manifest: TableManifest, unit: PartitionsReader | None) -> None:
        self._manifest, self._unit = manifest, unit
        # int32 or int64 [N], or None: row of each node; None: node i is in row i.
        self.place: _Ids | None = None if unit is None else unit.new_ids()

    @property
    def place_bytes(self) -> int:
        """Bytes of the array of nodes' rows."""
        return 0 if self.place is None else self.place.nbytes

    def rows_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the row of each node."""
        return ids if self.place is None else self.place[ids].astype(np.int64, copy=False)

    def nodes_of(self, partition: int) -> _Ids:
        """Return the nodes of a partition's rows."""
        if self._unit is None:
            rows = self._manifest.rows(partition)
            return np.arange(rows.start, rows.stop)
        return self._unit.nodes_of(partition)


@dataclass(frozen=True)
class InitialRows:
    """Initial values of rows: a function of the seed, the node and the column."""

    kind: str  # a key of `INITIAL`
    # Of "uniform", values are in [-scale, scale); of "normal", it is the standard deviation; the
    # values of the others are multiplied by it.
    scale: float
    seed: int
    num_nodes: int
    dim: int

    def __post_init__(self) -> None:
        check_choice("init", self.kind, INITIAL)
        if not 0 <= self.scale < math.inf:
            raise UsageError(f"scale={self.scale}: expected a number of at least 0")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise UsageError(f"seed={self.seed!r}: expected an integer in [0, 2**64)")

    def fill(self, ids: _Ids, out: npt.NDArray[np.float32], num_threads: int = 1) -> None:
        """Fill an array [n * dim] with the rows of nodes."""
        distribution, variance = INITIAL[self.kind]
        if distribution is None:
            out[:] = 0
            return
        # As in a torch.nn.Embedding of this shape.
        spread = math.sqrt(variance / (self.num_nodes + self.dim)) if variance else 1.0
        _core.initial_rows(
            ids,
            out,
            dim=self.dim,
            distribution=distribution,
            scale=self.scale * spread,
            seed=self.seed,
            num_threads=num_threads,
        )
