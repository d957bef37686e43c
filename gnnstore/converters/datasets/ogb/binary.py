"""OGB's binary layout: `data.npz` with the graph, `node-label.npz` with the labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from gnnstore.converters.datasets.ogb.csv import attribute_name
from gnnstore.converters.inputs.derived import FloatLabels
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.source import ArraySource, check_rows, read_one_number
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput
from gnnstore.errors import InputError

_LISTS = ("num_nodes_list", "num_edges_list")


def open_binary(raw: Path) -> tuple[NodeInput, EdgeInput]:
    """Open the nodes and edges of `raw/` of the binary layout."""
    path = raw / "data.npz"
    members = open_npz(path)
    num_nodes = _read_count(members, path, "num_nodes_list")
    num_edges = _read_count(members, path, "num_edges_list")
    edge_index = _member(members, path, "edge_index")
    if edge_index.shape != (2, num_edges):
        raise InputError(
            f"{edge_index.label}: has shape {list(edge_index.shape)}, but num_edges_list says "
            f"[2, {num_edges}]",
            path=path,
        )
    nodes, edges = NodeInput(num_nodes), EdgeInput.of_array(edge_index)
    for name, source in members.items():
        if name in ("edge_index", *_LISTS):
            continue
        if name.startswith("edge_"):
            check_rows(source, num_edges, "edges")
            edges.attributes[attribute_name(name)] = source
        elif name.startswith("node_"):
            nodes.attributes[attribute_name(name)] = source
        else:
            raise InputError(
                f"{source.label}: expected members called edge_index, num_nodes_list, "
                "num_edges_list, node_... and edge_...; remove or rename this one",
                path=path,
            )
    labels = raw / "node-label.npz"
    if labels.exists():
        nodes.attributes["y"] = FloatLabels(_member(open_npz(labels), labels, "node_label"))
    return nodes, edges


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
