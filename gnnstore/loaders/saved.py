"""`open_packed`: packed epochs, to train on without a graph and features."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from gnnstore.errors import limits_named
from gnnstore.formats.container.reader import reopened
from gnnstore.formats.packed.manifest import NUM_POSITIONS
from gnnstore.formats.packed.reader import PackedReader
from gnnstore.formats.store.schema import Schema
from gnnstore.graph.arrays import as_tensor
from gnnstore.graph.assigned import AssignedAttributes
from gnnstore.loaders.adjacency import CsrEdges
from gnnstore.loaders.assemble import Assembler
from gnnstore.loaders.base import BatchLoader
from gnnstore.loaders.options import checked_edge_ids
from gnnstore.pipeline.order.epoch import order_bytes
from gnnstore.pipeline.order.state import OrderFields, checked
from gnnstore.seeds.labels import labels_of
from gnnstore.strategies.loader_spec import EdgeIds
from gnnstore.strategies.saved import PackedSources


class PackedEpochs:
    """Packed epochs: their batches, with all attributes. Pickles as its path.

    Parameters
    ----------
    path : path-like
        The directory.

    Attributes
    ----------
    reader : PackedReader
        Manifest and files.

    Raises
    ------
    NotFoundError, UnsupportedVersionError, CorruptStoreError, StorageError
        See `PackedReader.open`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.reader = PackedReader.open(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (reopened, (PackedEpochs, str(self.path), self.reader.uuid))

    def __repr__(self) -> str:
        return (
            f"PackedEpochs({str(self.path)!r}, epochs={self.epochs}, "
            f"batches_per_epoch={self.reader.manifest.batches_per_epoch})"
        )

    @property
    def path(self) -> Path:
        """The directory."""
        return self.reader.path

    @property
    def epochs(self) -> int:
        """Number of packed epochs."""
        return self.reader.manifest.epochs

    @property
    def assigned(self) -> AssignedAttributes:
        """Nothing: attributes are assigned to stores."""
        return AssignedAttributes({})

    @property
    def schema(self) -> Schema:
        """Description of the store from which they were packed."""
        return self.reader.manifest.schema

    def graph_attributes(self) -> dict[str, Any]:
        """Return the graph-level attributes: JSON values, and tensors."""
        arrays = {}
        for name, spec in self.schema.graph_arrays.items():
            self.reader.check_array(spec.path)
            arrays[name] = as_tensor(self.reader.compressed(spec), spec.dtype)
        return {**self.schema.graph_attributes, **arrays}

    def loader(
        self,
        *,
        num_threads: int | None = None,
        prefetch_batches: int | None = None,
        memory: int | str | None = None,
        io_engine: str | None = None,
        transform: Callable[[Data], Any] | None = None,
        custom_cls: type[Data] | None = None,
        edge_format: str = "coo",
        adj_value: str | None = None,
        edge_ids: EdgeIds | None = "input",
        **kwargs: Any,
    ) -> PackedLoader:
        """Return a loader of the packed batches.

        Parameters
        ----------
        num_threads, prefetch_batches, memory, io_engine, transform, custom_cls, edge_format, \
adj_value, edge_ids
            As in `NeighborLoader`.
        **kwargs
            As in `torch.utils.data.DataLoader`, such as `pin_memory`; packing has fixed the options
            of the batches.

        Raises
        ------
        BudgetError, UsageError, StorageError
            As in `NeighborLoader` with `packed=`.
        """
        given = {name: value for name, value in locals().items() if name not in {"self", "kwargs"}}
        return PackedLoader(self, given, kwargs)


class PackedLoader(BatchLoader):
    """The batches of packed epochs, in their order; made by `PackedEpochs.loader`.

    Attributes
    ----------
    packed : PackedEpochs
    epoch : int
        Number of the epoch that the next iteration will be; counts up by itself.
    """

    @limits_named("prepare to load batches")
    def __init__(
        self, packed: PackedEpochs, given: Mapping[str, Any], options: dict[str, Any]
    ) -> None:
        self.packed = packed
        manifest = packed.reader.manifest
        found = manifest.fingerprint
        subgraph_type = checked(found, "subgraph_type", str)
        csr = CsrEdges.of(packed.schema, given["edge_format"], given["adj_value"], subgraph_type)
        num_seeds = checked(found, NUM_POSITIONS, int)
        order = {
            "batch_size": checked(found, "batch_size", int),
            "shuffle": checked(found, "shuffle", bool),
            "drop_last": checked(found, "drop_last", bool),
        }
        super().__init__(
            num_seeds,
            labels=labels_of(found),
            fingerprint=partial(_fingerprint, found),
            seed=manifest.seed,
            transform=given["transform"],
            transform_sampler_output=None,
            num_threads=given["num_threads"],
            prefetch_batches=given["prefetch_batches"],
            options={**options, **order},
        )
        opened = PackedSources(
            packed.reader,
            given["memory"],
            given["io_engine"],
            seeds_bytes=order_bytes(num_seeds, shuffles=order["shuffle"]),
            num_threads=max(1, self._most_threads()),
            may_use_fewer=self._num_threads_given is None,
            edge_ids=checked_edge_ids(given["edge_ids"]),
        )
        assembler = Assembler(packed, opened, given["custom_cls"], csr, subgraph_type)
        self._read_from(opened, opened.batches(), assembler)

    def _origin(self) -> tuple[Path, Schema, str | None]:
        return self.packed.path, self.packed.schema, None


def _fingerprint(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that packed batches depend on, except seed and order."""
    return {name: value for name, value in found.items() if name not in OrderFields._fields}


@limits_named("open packed epochs")
def open_packed(path: str | os.PathLike[str]) -> PackedEpochs:
    """Open packed epochs; public as `gnnstore.open_packed`.

    Parameters
    ----------
    path : path-like
        The directory that `gnnstore pack` made, or a copy of it on any machine.

    Raises
    ------
    NotFoundError, UnsupportedVersionError, CorruptStoreError, StorageError
        See `PackedReader.open`.
    """
    return PackedEpochs(path)
