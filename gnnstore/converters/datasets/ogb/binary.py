"""OGB's binary layout: `data.npz` with the graph, `node-label.npz` with the labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from gnnstore.converters.datasets.ogb.links import RawEdges
from gnnstore.converters.edges.node_ids import edge_pairs
from gnnstore.converters.inputs.derived import FloatLabels
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.source import ArraySource, check_rows, read_one_number
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import InputError

_LISTS = ("num_nodes_list", "num_edges_list")


def convert_binary(writer: GraphWriter, raw: Path, *, add_inverse_edge: bool) -> RawEdges:
    """Read `raw/` of the binary layout into a writer, and return its edges."""
    path = raw / "data.npz"
    members = open_npz(path)
    num_nodes = _read_count(members, path, "num_nodes_list")
    num_edges = _read_count(members, path, "num_edges_list")
    writer.set_num_nodes(num_nodes)
    edge_index = _member(members, path, "edge_index")
    if edge_index.shape != (2, num_edges):
        raise InputError(
            f"{edge_index.label}: has shape {list(edge_index.shape)}, but num_edges_list says "
            f"[2, {num_edges}]",
            path=path,
        )
    writer.expect_edges(num_edges * (2 if add_inverse_edge else 1))
    attributes = {}
    for name, source in members.items():
        if name in ("edge_index", *_LISTS):
            continue
        if name.startswith("edge_"):
            check_rows(source, num_edges, "edges")
            attributes["edge_attr" if name == "edge_feat" else name] = source
        elif name.startswith("node_"):
            writer.set_node_attribute("x" if name == "node_feat" else name, source)
        else:
            raise InputError(
                f"{source.label}: expected members called edge_index, num_nodes_list, "
                "num_edges_list, node_... and edge_...; remove or rename this one",
                path=path,
            )
    if "node_feat" not in members:
        writer.progress.note(f"{path}: there is no node_feat: the store has no x")
    _read_labels(writer, raw / "node-label.npz")
    writer.read_edges(
        edge_pairs(edge_index),
        num_edges,
        attributes,
        where=edge_index.label,
        add_inverse_edge=add_inverse_edge,
    )
    return RawEdges(num_edges, lambda: edge_pairs(edge_index), attributes)


def _member(members: Mapping[str, ArraySource], path: Path, name: str) -> ArraySource:
    if name not in members:
        raise InputError(
            f"{path}: has no member {name!r}; found {', '.join(sorted(members)) or 'none'}",
            path=path,
        )
    return members[name]


def _read_count(members: Mapping[str, ArraySource], path: Path, name: str) -> int:
    source = _member(members, path, name)
    if math.prod(source.shape) > 1:
        raise InputError(
            f"{source.label}: lists {math.prod(source.shape)} graphs; a node-property or "
            "link-property data set has exactly one",
            path=path,
        )
    return read_one_number(source, "one count")


def _read_labels(writer: GraphWriter, path: Path) -> None:
    if not path.exists():
        writer.progress.note(f"{path} is not there: the store has no y")
        return
    source = _member(open_npz(path), path, "node_label")
    writer.set_node_attribute("y", FloatLabels(source))
