"""Options that all converters have in common, as one value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from gnnstore.budget.limits import parse_memory
from gnnstore.errors import UsageError, check_choice
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, MAX_PAGE_BYTES, MIN_PAGE_BYTES
from gnnstore.formats.store.schema import EdgeTypeSpec
from gnnstore.units import parse_size

SelfLoops = Literal["keep", "drop", "add"]
IndexDtype = Literal["int64", "int32"]
FeatureScale = Literal["column"]


# Options of earlier versions -> the function to use.
GONE = {
    "node_order": "reorder",
    "edge_split": "split_edges",
    "edge_split_seed": "split_edges",
    "edge_negatives": "split_edges",
    "strict_negatives": "split_edges",
}


@dataclass(frozen=True)
class ConvertOptions:
    """Options common to all converters.

    Attributes
    ----------
    undirected : bool
        Add the reverse of every edge, then keep one of each set of equal edges: the one
        that comes first in the input, with its attributes. Reverse edges come after all
        edges of the input: the reverse of edge e of E has id E + e and e's attributes.
    self_loops : "keep", "drop" or "add"
        "drop" removes every edge from a node to itself. "add" gives one to each node that
        has none, in ascending order of node, with ids after those of all other edges; their
        `edge_weight` is 1 and their other attributes are 0.
    page_bytes : int, optional
        Page size of the arrays that are read by row; a power of two. None: for each array the
        smallest from 4 to 64 KiB that leaves at most 3 % of it empty, or else the least.
    feature_dtype : str, optional
        Store the node attribute `x` as this type, such as "float16" or "bfloat16". A value
        that would overflow, or that an integer type cannot hold exactly, is an error.
    overwrite : bool
        Replace the output if it is a store already; the old one stays until the new one is
        complete.
    memory_bytes : int, optional
        The most memory to use for building the adjacency, as a number or as text ("4GB"); edges
        that it cannot hold are sorted on disk. None: all that is available.
    edge_ids : bool, optional
        Whether to store for each edge its position in the input. None: as the converter
        thinks fit (all but `from_rmat` do).
    index_dtype : "int64" or "int32", optional
        Type of `edge_index` and `n_id` in batches. None: that of the input where it has
        one (`from_pyg`), else int64.
    resume : bool
        Go on with what an interrupted conversion to this output left: the same data, with
        the same options but `memory_bytes`, `spill_dir` and `overwrite`. The result is
        that of an uninterrupted one, byte for byte. If nothing was left, start.
    feature_scale : "column", optional
        With feature_dtype "int8": divide every column of `x` by a scale of its own, so that its
        largest magnitude is 127, and round. The scales are the graph-level array `x_scale`, and
        `batch.x * batch.x_scale` is the features. Takes one more pass over them.
    time_attr : sequence of str
        Attributes of nodes or edges with int64 times. For each, edges get an order by time, which
        loaders with this `time_attr` need; other integers become int64.
    weight_attr : sequence of str
        Attributes of edges with weights, [E] or [E, 1]: finite and not negative. For each, edges
        get the sums that loaders with this `weight_attr` need.
    reverse : sequence of str
        Of graphs of several types: edge types that also get a reverse type `rev_RELATION`, with the
        same ids and attributes: "all", relations, or types as in "author__writes__paper". Rows of
        more than 64 bytes are shared by both types, narrower ones are copied.
    spill_dir : str, optional
        An existing directory for temporary files while edges are sorted on disk. None:
        next to the output.
    """

    undirected: bool = False
    self_loops: SelfLoops = "keep"
    page_bytes: int | None = None
    feature_dtype: str | None = None
    overwrite: bool = False
    memory_bytes: int | None = None
    edge_ids: bool | None = None
    index_dtype: IndexDtype | None = None
    resume: bool = False
    spill_dir: str | None = None
    feature_scale: FeatureScale | None = None
    time_attr: tuple[str, ...] = ()
    weight_attr: tuple[str, ...] = ()
    reverse: tuple[str, ...] = ()

    def __new__(cls, *_args: Any, **options: Any) -> ConvertOptions:
        """Name the function to use in place of options that are gone."""
        for name in options.keys() & GONE.keys():
            raise UsageError(
                f"{name} is no option of conversions any more; convert first, and give the store "
                f"to gnnstore.converters.{GONE[name]}"
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("time_attr", "weight_attr", "reverse"):
            given = getattr(self, name)
            names = (given,) if isinstance(given, str) else tuple(given)
            object.__setattr__(self, name, tuple(dict.fromkeys(names)))
        if self.page_bytes is not None:
            object.__setattr__(self, "page_bytes", parse_size(self.page_bytes, name="page_bytes"))
        if self.memory_bytes is not None:
            budget = parse_memory(self.memory_bytes, name="memory_bytes")
            object.__setattr__(self, "memory_bytes", budget)
        check_choice("self_loops", self.self_loops, get_args(SelfLoops))
        size = DEFAULT_PAGE_BYTES if self.page_bytes is None else self.page_bytes
        if not MIN_PAGE_BYTES <= size <= MAX_PAGE_BYTES or size & (size - 1):
            raise UsageError(
                f"page_bytes={size} is not a power of two from {MIN_PAGE_BYTES} to "
                f"{MAX_PAGE_BYTES}; by default the best for each array"
            )
        if self.feature_dtype is not None:
            check_choice("feature_dtype", self.feature_dtype, tuple(STORAGE_DTYPES))
        if self.feature_scale is not None:
            check_choice("feature_scale", self.feature_scale, get_args(FeatureScale))
            if self.feature_dtype != "int8":
                raise UsageError(
                    f"feature_scale={self.feature_scale!r} goes with feature_dtype='int8', not "
                    f"{self.feature_dtype!r}: floats need no scale"
                )
        if self.index_dtype is not None:
            check_choice("index_dtype", self.index_dtype, get_args(IndexDtype))

    def to_json(self) -> dict[str, Any]:
        """Return the options that affect the store's contents, for its provenance."""
        document = asdict(self)
        # None of these changes a byte of the result.
        for name in ("overwrite", "memory_bytes", "resume", "spill_dir"):
            del document[name]
        for name in ("time_attr", "weight_attr", "reverse"):
            if not document[name]:
                del document[name]
        return document


def check_features(options: ConvertOptions | None, *, has_features: bool, remedy: str) -> None:
    """Refuse the type of features where there are none."""
    if options is not None and options.feature_dtype is not None and not has_features:
        raise UsageError(
            f"feature_dtype={options.feature_dtype!r}: there are no features to store; {remedy}"
        )


def with_orders(options: ConvertOptions, edges: EdgeTypeSpec) -> ConvertOptions:
    """Return options by which a store that is made from a store keeps orders and sums."""
    return replace(options, time_attr=tuple(edges.orders), weight_attr=tuple(edges.weight_sums))


def refuse_rules(options: ConvertOptions, doing: str) -> None:
    """Refuse the rules for edges and features where a store is made from a store."""
    defaults = ConvertOptions()
    for name in (
        *("undirected", "self_loops", "feature_dtype"),
        *("time_attr", "weight_attr", "reverse"),
    ):
        if getattr(options, name) != getattr(defaults, name):
            raise UsageError(f"{name} is not for {doing}; convert with it")
