"""What lies on disk, one layout a module: no I/O policy, no sampling.

Start with `pages` (where a row lies), `manifest` (what makes a directory a store),
`writer` and `reader`. `docs/format.md` is the normative description.
"""

from gnnstore.formats.csc import Csc, load_csc
from gnnstore.formats.manifest import FORMAT_VERSION, FileEntry, Manifest
from gnnstore.formats.paged_array import PagedArray
from gnnstore.formats.paged_writer import PagedArrayWriter
from gnnstore.formats.pages import PageGeometry, ShardLayout, plan_shards
from gnnstore.formats.reader import StoreReader
from gnnstore.formats.schema import (
    EDGE_TYPE,
    NODE_TYPE,
    AttributeSpec,
    EdgeTypeSpec,
    NodeTypeSpec,
    Schema,
)
from gnnstore.formats.writer import StoreWriter

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
