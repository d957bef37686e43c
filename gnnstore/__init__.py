"""Train graph neural networks on graphs many times larger than RAM.

This module is the public API and nothing else, so that what users may rely on stands in
one place. Names are loaded when they are first used: `import gnnstore` does not import torch,
NumPy or torch_geometric, which keeps the command line quick.

>>> import gnnstore
>>> store = gnnstore.open("papers100M.gnn")                            # doctest: +SKIP
>>> loader = gnnstore.NeighborLoader(store, [10, 10], input_nodes="train")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gnnstore._version import __version__
from gnnstore.errors import (
    BudgetError,
    CorruptStoreError,
    GnnstoreError,
    InputError,
    NoSpaceError,
    NotFoundError,
    ResourceError,
    StorageError,
    StoreExistsError,
    UnsupportedVersionError,
    UsageError,
    did_you_mean,
)

if TYPE_CHECKING:
    from gnnstore import converters, evaluation, nn
    from gnnstore.converters.datasets.numpy import from_arrays
    from gnnstore.converters.datasets.tables import from_tables
    from gnnstore.embeddings.optimizers import SGD, Adagrad, RowwiseAdagrad, SparseAdam
    from gnnstore.embeddings.table import EmbeddingTable
    from gnnstore.evaluation.ranks import link_ranks
    from gnnstore.graph.store import GraphStore, open  # noqa: A004 - gnnstore.open is the point
    from gnnstore.layerwise.api import inference
    from gnnstore.layerwise.result import open_embeddings
    from gnnstore.loaders.link import LinkNeighborLoader
    from gnnstore.loaders.node import NeighborLoader
    from gnnstore.loaders.packed_loader import open_packed
    from gnnstore.partitions.policy import PartitionPolicy
    from gnnstore.pipeline.check import verify
    from gnnstore.sampling.dense import batch_to_dense

# Public name -> the module that defines it; None: the name is a module itself.
_HOMES: dict[str, str | None] = {
    "Adagrad": "gnnstore.embeddings.optimizers",
    "EmbeddingTable": "gnnstore.embeddings.table",
    "GraphStore": "gnnstore.graph.store",
    "LinkNeighborLoader": "gnnstore.loaders.link",
    "NeighborLoader": "gnnstore.loaders.node",
    "PartitionPolicy": "gnnstore.partitions.policy",
    "RowwiseAdagrad": "gnnstore.embeddings.optimizers",
    "SGD": "gnnstore.embeddings.optimizers",
    "SparseAdam": "gnnstore.embeddings.optimizers",
    "batch_to_dense": "gnnstore.sampling.dense",
    "converters": None,
    "evaluation": None,
    "from_arrays": "gnnstore.converters.datasets.numpy",
    "from_tables": "gnnstore.converters.datasets.tables",
    "inference": "gnnstore.layerwise.api",
    "link_ranks": "gnnstore.evaluation.ranks",
    "nn": None,
    "open": "gnnstore.graph.store",
    "open_embeddings": "gnnstore.layerwise.result",
    "open_packed": "gnnstore.loaders.packed_loader",
    "verify": "gnnstore.pipeline.check",
}

__all__ = [
    "SGD",
    "Adagrad",
    "BudgetError",
    "CorruptStoreError",
    "EmbeddingTable",
    "GnnstoreError",
    "GraphStore",
    "InputError",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NoSpaceError",
    "NotFoundError",
    "PartitionPolicy",
    "ResourceError",
    "RowwiseAdagrad",
    "SparseAdam",
    "StorageError",
    "StoreExistsError",
    "UnsupportedVersionError",
    "UsageError",
    "__version__",
    "batch_to_dense",
    "converters",
    "evaluation",
    "from_arrays",
    "from_tables",
    "inference",
    "link_ranks",
    "nn",
    "open",
    "open_embeddings",
    "open_packed",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use, and remember it."""
    if name in _HOMES:
        home = _HOMES[name]
        if home is None:
            value: Any = importlib.import_module(f"{__name__}.{name}")
        else:
            value = getattr(importlib.import_module(home), name)
    elif name == "HGTLoader":
        raise AttributeError(
            "gnnstore has no HGTLoader: its budget for each hop and node type is not a draw for "
            "each node; train an HGTConv with NeighborLoader with fan-outs by edge type"
        )
    else:
        meant = did_you_mean(name, __all__)
        if name.startswith("from_"):  # most are there; it takes long to import for other names
            own = importlib.import_module(f"{__name__}.converters").__all__
            meant = did_you_mean(name, own).replace("'from_", f"'{__name__}.converters.from_")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
