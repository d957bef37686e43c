"""Seeds as the pipeline sees them: positions in, seeds and their labels out.

A loader of another kind is another `SeedSource`. Strategies, packed epochs and resuming know
nothing else of it: they pass on start nodes to sample from, and labels to be written on the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from gnnstore.formats.packed.manifest import KIND, SEED_ARRAYS
from gnnstore.sampling.neighbor import Excluded

Int64Array = npt.NDArray[np.int64]

# Epochs from here on are no loader's, for no run counts so far: of batches drawn beforehand, and of
# those on demand.
FIRST_EPOCH_OF_NO_RUN = 2**63 - 2
ON_DEMAND_EPOCH = 2**63 - 1


class BatchKey(NamedTuple):
    """The key of a batch: with the store and the options it determines the batch."""

    seed: int  # seed of the run, number of the epoch, and of the batch in it
    epoch: int  # seed of the run, number of the epoch, and of the batch in it
    batch: int  # seed of the run, number of the epoch, and of the batch in it


class SeedLabels(ABC):
    """Attributes of a batch that describe its seeds."""

    name: ClassVar[str]  # kind of labels, as packed epochs note it
    num_arrays: ClassVar[int]  # length of `arrays()`
    # Counts by their names in `LoaderStats`, added once the batch is handed out.
    counts: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def fingerprint(cls) -> dict[str, Any]:
        """Return the kind, for the fingerprint of a source whose seeds are no nodes."""
        return {KIND: cls.name, SEED_ARRAYS: cls.num_arrays}

    @abstractmethod
    def label(self, batch: Any) -> None:
        """Write the attributes that describe the seeds on a `Data`."""

    @abstractmethod
    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return all of it as arrays, for what waits on disk."""

    @abstractmethod
    def metadata(self) -> tuple[Any, ...]:
        """Return it as PyG's `SamplerOutput.metadata`."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> Self:
        """Return the labels of which `arrays` gave these; it keeps them."""

    @classmethod
    @abstractmethod
    def from_metadata(cls, metadata: Any) -> Self:
        """Return the labels of a `SamplerOutput`, which the user may have changed."""


class Seeds(Protocol):
    """The seeds of one batch."""

    @property
    def labels(self) -> SeedLabels:
        """The attributes that describe the seeds; kept until the batch is assembled."""

    def start_nodes(self) -> Mapping[str, Int64Array]:
        """Return the nodes to sample from, by node type."""

    def excluded(self) -> Excluded | None:
        """Return the edges that are not sampled."""


class SeedSource(Protocol):
    """The seeds that batches of a loader can start from, by position."""

    @property
    def labels(self) -> type[SeedLabels]:
        """Kind of the labels of its seeds."""

    @property
    def name(self) -> str | None:
        """The name of all seeds in `gnnstore pack`, such as a split; None: they have no name."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that ids, labels and what else is kept of all positions take."""

    def __len__(self) -> int:
        """Return the number of positions."""

    def select(self, index: Any, key: BatchKey) -> Seeds:
        """Return the seeds at some positions [B].

        Parameters
        ----------
        key : BatchKey
            Of the batch. It keys random draws, such as those of negatives.

        Raises
        ------
        InputError
            If a position is out of range.
        """

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the values that the seeds depend on, plain and by name; `NUM_POSITIONS` is one."""
