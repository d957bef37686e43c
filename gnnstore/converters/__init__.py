"""Into the format: one converter per kind of input, all writing through one streaming writer.

>>> from gnnstore.converters import from_numpy
>>> path = from_numpy("graph.npz", "graph.gnn")  # doctest: +SKIP
"""

from gnnstore.converters.graphbolt import from_graphbolt
from gnnstore.converters.igb import from_igb
from gnnstore.converters.kronecker import from_kronecker
from gnnstore.converters.numpy_arrays import from_numpy
from gnnstore.converters.ogb import from_ogb
from gnnstore.converters.options import ConvertOptions
from gnnstore.converters.pyg import from_pyg
from gnnstore.converters.rmat import from_rmat
from gnnstore.converters.snap import from_snap
from gnnstore.converters.writer import GraphWriter

__all__ = [
    "ConvertOptions",
    "GraphWriter",
    "from_graphbolt",
    "from_igb",
    "from_kronecker",
    "from_numpy",
    "from_ogb",
    "from_pyg",
    "from_rmat",
    "from_snap",
]
