"""Converters into the format: one for each kind of input, all writing through `GraphWriter`.

`partition` and `add_order` write into a store instead. Every other converter takes, with its own
parameters,

- `output` : path-like, the store to write;
- `options` : ConvertOptions, optional; single options may be arguments: `overwrite=True`;
- `progress` : Progress, optional, which reports how far the work is,

and returns the path of the store. With its own errors it raises `StoreExistsError`,
`UsageError`, `BudgetError` and `StorageError` as `GraphWriter` does, most before any work.

Examples
--------
>>> from gnnstore.converters import from_numpy
>>> path = from_numpy("graph.npz", "graph.gnn")  # doctest: +SKIP
"""

from gnnstore.converters.datasets.graphbolt import from_graphbolt
from gnnstore.converters.datasets.igb import from_igb, from_igbh
from gnnstore.converters.datasets.numpy import from_arrays, from_numpy
from gnnstore.converters.datasets.ogb.convert import from_mag240m, from_ogb
from gnnstore.converters.datasets.pyg import from_pyg
from gnnstore.converters.datasets.snap import from_snap
from gnnstore.converters.datasets.tables import from_tables
from gnnstore.converters.datasets.triples import from_triples
from gnnstore.converters.datasets.typed import from_typed
from gnnstore.converters.stores.partition import partition
from gnnstore.converters.stores.quantize import quantize
from gnnstore.converters.stores.reorder import reorder
from gnnstore.converters.stores.split import split_edges
from gnnstore.converters.synthetic.kronecker import from_kronecker
from gnnstore.converters.synthetic.planted_types import from_planted_types
from gnnstore.converters.synthetic.rmat import from_rmat
from gnnstore.converters.typed.graph_writer import HeteroGraphWriter
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import RowSink
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.converters.writer.orders import add_order

__all__ = [
    "ConvertOptions",
    "GraphWriter",
    "HeteroGraphWriter",
    "RowSink",
    "add_order",
    "from_arrays",
    "from_graphbolt",
    "from_igb",
    "from_igbh",
    "from_kronecker",
    "from_mag240m",
    "from_numpy",
    "from_ogb",
    "from_planted_types",
    "from_pyg",
    "from_rmat",
    "from_snap",
    "from_tables",
    "from_triples",
    "from_typed",
    "partition",
    "quantize",
    "reorder",
    "split_edges",
]
