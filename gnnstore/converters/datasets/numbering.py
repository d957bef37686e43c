"""Numbers the nodes of a text, and records their ids or names in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy.typing as npt

from gnnstore.converters.edges.numbering import (
    IdCollector,
    IdMap,
    NameBlock,
    NameNumbering,
    OneBasedIds,
)
from gnnstore.converters.writer.graph_writer import GraphWriter


def number_ids(writer: GraphWriter, ids: Iterable[npt.NDArray[Any]]) -> IdMap:
    """Assign numbers to the nodes of a text by ascending ids, which are given in pieces."""
    collector = IdCollector(memory_bytes=writer.options.memory_bytes)
    for some in ids:
        collector.add(some)
    found = collector.finish()
    writer.reserve_memory(found.num_bytes)
    writer.set_num_nodes(found.num_nodes)
    if not found.is_identity:
        writer.set_original_ids(found.original_ids())
    return found


def number_from_one(writer: GraphWriter, num_nodes: int) -> IdMap:
    """Assign numbers to nodes whose ids are 1, ..., N."""
    writer.set_num_nodes(num_nodes)
    found = OneBasedIds(num_nodes)
    writer.set_original_ids(found.source)
    return found


def number_names(writer: GraphWriter, read: Callable[[], Iterable[NameBlock]]) -> NameNumbering:
    """Assign numbers to the nodes of a text by first appearance; each `read()` starts anew."""
    names = collect_names(writer, read)
    record_names(writer, names)
    return names


def collect_names(writer: GraphWriter, read: Callable[[], Iterable[NameBlock]]) -> NameNumbering:
    """Assign numbers to names by first appearance; each `read()` starts anew."""
    names = NameNumbering(writer.spill_directory / "names", writer.options.memory_bytes)
    names.collect(read)
    return names


def record_names(writer: GraphWriter, names: NameNumbering) -> None:
    """Record the names of all nodes, and their number."""
    writer.reserve_memory(names.memory_bytes)
    writer.set_num_nodes(names.num_nodes)
    writer.set_original_names(names.names(), names.num_nodes, names.name_bytes)
