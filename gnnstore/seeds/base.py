"""Seeds as the pipeline sees them: positions in, seeds and their labels out.

A loader of another kind is another `SeedSource`. Strategies, packed epochs and resuming use
nothing else of it: they pass on start nodes to sample from, and labels to be written on the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore.formats.packed import KIND, SEED_ARRAYS
from gnnstore.formats.store.schema import EdgeType
from gnnstore.sampling.sampled_graph import Excluded

if TYPE_CHECKING:
    from gnnstore.graph.topology import Topology

Int64Array = npt.NDArray[np.int64]

# Numbers of epochs that no run reaches, for batches that are drawn beforehand, and on demand.
FIRST_EPOCH_OF_NO_RUN = 2**63 - 2
ON_DEMAND_EPOCH = 2**63 - 1


class BatchKey(NamedTuple):
    """The key of a batch: with the store and the options it determines the batch."""

    seed: int  # of the run
    epoch: int  # its number
    batch: int  # its number in the epoch


class SeedLabels(ABC):
    """Attributes of a batch that describe its seeds.

    Attributes
    ----------
    name : str
        Kind of the labels, as packed epochs note it.
    num_arrays : int
        Length of `arrays()`.
    counts : Mapping of str to int
        Counts by their names in `LoaderStats`, added once the batch is handed out.
    """

    name: ClassVar[str]
    num_arrays: ClassVar[int]
    counts: Mapping[str, int] = MappingProxyType({})

    @property
    def node_types(self) -> Collection[str]:
        """Node types that the attributes name."""
        return ()

    @classmethod
    def fingerprint(cls) -> dict[str, Any]:
        """Return the kind, for the fingerprint of a loader."""
        return {KIND: cls.name, SEED_ARRAYS: cls.num_arrays}

    @abstractmethod
    def label(self, batch: Any) -> None:
        """Write the attributes that describe the seeds on a `Data`."""

    @abstractmethod
    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return the labels as arrays, for packed epochs."""

    def metadata(self) -> tuple[Any, ...]:
        """Return PyG's `SamplerOutput.metadata`: the arrays, unless PyG has such seeds."""
        return tuple(self.arrays())

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> Self:
        """Return the labels that `arrays` gave as these; they keep them."""

    @classmethod
    def from_metadata(cls, metadata: Any) -> Self:
        """Return the labels of a `SamplerOutput`, which the user may have changed."""
        return cls.from_arrays(metadata)


L_co = TypeVar("L_co", bound=SeedLabels, covariant=True)


class Seeds(NamedTuple, Generic[L_co]):
    """The seeds of one batch."""

    nodes: Mapping[str, Int64Array]  # nodes to sample from, by node type
    labels: L_co  # attributes that describe the seeds; kept until the batch is assembled
    # Edges that are not sampled; with several types by edge type.
    excluded: Excluded | Mapping[EdgeType, Excluded] | None = None
    times: Mapping[str, Int64Array] | None = None  # of the nodes, by node type
    # Places of the nodes in the batch, by node type, where seeds of several types are mixed.
    places: Mapping[str, Int64Array] | None = None


class SeedSource(Protocol):
    """The seeds that batches of a loader can start from, by position. Used by several threads."""

    @property
    def labels(self) -> type[SeedLabels]:
        """The class of the labels of its seeds."""

    @property
    def name(self) -> str | None:
        """The name of all seeds in `gnnstore pack`, such as a split; None: they have no name."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that ids, labels and what else is kept of all positions take."""

    def __len__(self) -> int:
        """Return the number of positions."""

    def over(self, topology: Topology) -> SeedSource:  # noqa: ARG002 - most do not look at edges
        """Return the seeds of batches that are sampled from a topology, by which edges are found.

        Called once when a loader is opened, and for samples that are drawn beforehand.
        """
        return self

    def select(self, index: Any, key: BatchKey) -> Seeds[SeedLabels]:
        """Return the seeds at some positions [B].

        Parameters
        ----------
        index : ndarray of int64, or what names positions in `loader(index)`
        key : BatchKey
            The key of the batch, by which negatives, for example, are drawn.

        Raises
        ------
        InputError
            If a position is out of range.
        """

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the values that the seeds depend on, plain and by name, such as checksums.

        A loader adds the kind of the labels and the number of positions.
        """
