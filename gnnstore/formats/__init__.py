"""Layouts on disk, one in each module: no I/O policy, no sampling.

`container` is a directory that is written whole or not at all and lists its files; `arrays` lie in
such a directory; `store`, `packed`, `partitions` and `assignments` are its kinds, each with a
schema. Start with `arrays.pages` (where a row lies) and `container.manifest`. `docs/format.md` is
the normative description.
"""

from gnnstore.formats.arrays.paged import PagedArray, PagedArrayWriter
from gnnstore.formats.arrays.pages import PageGeometry, plan_shards
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.assignments import AssignmentReader
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.formats.store.schema import (
    EDGE_TYPE,
    FORMAT_VERSION,
    NODE_TYPE,
    EdgeTypeSpec,
    NodeTypeSpec,
    Schema,
    StoreManifest,
)
from gnnstore.formats.store.store import StoreReader, StoreWriter, load_csc
from gnnstore.formats.tables import TableManifest

__all__ = [
    "EDGE_TYPE",
    "FORMAT_VERSION",
    "NODE_TYPE",
    "AssignmentReader",
    "AttributeSpec",
    "EdgeTypeSpec",
    "NodeTypeSpec",
    "PageGeometry",
    "PagedArray",
    "PagedArrayWriter",
    "PartitionsReader",
    "Schema",
    "StoreManifest",
    "StoreReader",
    "StoreWriter",
    "TableManifest",
    "load_csc",
    "plan_shards",
]
