"""Adds orders by time and sums of weights to a store: what is there is linked, not copied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.typed.orders import Orders
from gnnstore.converters.typed.reading import ReadArray
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import UsageError, limits_named
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES
from gnnstore.formats.container.manifest import KINDS
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.units import find_units
from gnnstore.formats.store.writer import StoreWriter
from gnnstore.progress import NullProgress, Progress


@limits_named("add an order")
def add_order(
    store: PathLike,
    time_attr: str | Sequence[str] = (),
    weight_attr: str | Sequence[str] = (),
    *,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Give a store what loaders with `time_attr=` and `weight_attr=` need; return its path.

    The store is replaced in one step by one that has more arrays, and shares all other files with
    it. It has another uuid, so that packed epochs and partitions would not belong to it.

    Parameters
    ----------
    store : path-like
        The store.
    time_attr, weight_attr : str or sequence of str
        Attributes with times, of nodes or edges, and with weights of edges; see `ConvertOptions`.
        Those that have their order or sums already are passed over.
    memory_bytes : int, optional
        The most memory to use. None: all that is available.
    progress : Progress, optional
        Reports how far the work is.

    Raises
    ------
    UsageError
        If no attribute has such a name, or the store has packed epochs or partitions.
    InputError
        If times are no int64, or weights negative, NaN or infinite.
    BudgetError
        If the edges into one node, or the times of nodes, do not fit.
    NotFoundError, CorruptStoreError, StorageError
        If the store cannot be read, or replaced.
    """
    names = ConvertOptions(time_attr=time_attr, weight_attr=weight_attr)  # type: ignore[arg-type]
    if not names.time_attr and not names.weight_attr:
        raise UsageError("name what to add: time_attr (--time-attr) or weight_attr (--weight-attr)")
    reader = StoreReader.open(store)
    schema = reader.schema
    orders = Orders(
        names.time_attr,
        names.weight_attr,
        lambda spec: ReadArray(reader.paged(spec)),
        reader.read,
        memory_bytes=memory_bytes,
    )
    orders.check(schema)
    if orders.are_in(schema):
        return reader.path
    _refuse_units(reader)
    arrays = (reader.paged(spec) for spec in schema.arrays() if spec.layout == "paged")
    page_bytes = next((array.geometry.page_bytes for array in arrays), DEFAULT_PAGE_BYTES)
    with StoreWriter(reader.path, overwrite=True, page_bytes=page_bytes) as writer:
        writer.link_files(reader)
        schema = orders.add(writer, schema, progress or NullProgress())
        return writer.commit(schema, reader.manifest.provenance)


def _refuse_units(reader: StoreReader) -> None:
    for kind in KINDS:
        if kind.directory and (found := find_units(kind, reader.path)):
            raise UsageError(
                f"{reader.path}: the {kind.name} {', '.join(unit.name for unit in found)} would "
                "not belong to the store with an order; remove what it is with 'gnnstore rm', and "
                "make it again afterwards"
            )
