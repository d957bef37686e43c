"""What lies on disk, one layout a module: no I/O policy, no sampling.

Start with `pages` (where a row lies), `manifest` (what makes a directory a store),
`writer` and `reader`. `docs/format.md` is the normative description.
"""

from gnnstore.formats.arrays.csc import Csc, load_csc
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.paged_writer import PagedArrayWriter
from gnnstore.formats.arrays.pages import PageGeometry, ShardLayout, plan_shards
from gnnstore.formats.store.manifest import FORMAT_VERSION, FileEntry, Manifest
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import (
    EDGE_TYPE,
    NODE_TYPE,
    AttributeSpec,
    EdgeTypeSpec,
    NodeTypeSpec,
    Schema,
)
from gnnstore.formats.store.writer import StoreWriter

__all__ = [
    "EDGE_TYPE",
    "FORMAT_VERSION",
    "NODE_TYPE",
    "AttributeSpec",
    "Csc",
    "EdgeTypeSpec",
    "FileEntry",
    "Manifest",
    "NodeTypeSpec",
    "PageGeometry",
    "PagedArray",
    "PagedArrayWriter",
    "Schema",
    "ShardLayout",
    "StoreReader",
    "StoreWriter",
    "load_csc",
    "plan_shards",
]
