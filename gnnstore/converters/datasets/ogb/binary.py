"""OGB's binary layouts: one type in `data.npz` and `node-label.npz`, several as members by type."""

from __future__ import annotations

from pathlib import Path

from gnnstore.converters.datasets.ogb.text import Graph, attribute_name, of_type, triplet
from gnnstore.converters.inputs.files import open_npz
from gnnstore.converters.inputs.source import ArraySource, FloatLabels, check_rows, read_one_number
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput
from gnnstore.errors import InputError, NotFoundError
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE

ONE_TYPE, COUNTS, EDGES = "data.npz", "num_nodes_dict.npz", "edge_index_dict.npz"


def open_binary(raw: Path) -> Graph:
    """Open the nodes and edges of `raw/`."""
    return _open_one_type(raw) if (raw / ONE_TYPE).exists() else _open_types(raw)


def _open_one_type(raw: Path) -> Graph:
    path = raw / ONE_TYPE
    members = dict(open_npz(path))
    count, num_edges = (
        read_one_number(_member(members, path, name), "one count, of the one graph in a data set")
        for name in ("num_nodes_list", "num_edges_list")
    )
    edge_index = _member(members, path, "edge_index")
    if edge_index.shape != (2, num_edges):
        raise InputError(
            f"{edge_index.label}: has shape {list(edge_index.shape)}, but num_edges_list says "
            f"[2, {num_edges}]",
            path=path,
        )
    nodes, edges = NodeInput(count), EdgeInput.of_array(edge_index)
    for name, source in members.items():
        if name.startswith("edge_"):
            check_rows(source, num_edges, "edges")
            edges.attributes[attribute_name(name)] = source
        elif name.startswith("node_"):
            nodes.attributes[attribute_name(name)] = source
        else:
            raise _unknown(source.label, "members called edge_index, num_nodes_list, num_", path)
    labels = raw / "node-label.npz"
    if labels.exists():
        found = _member(dict(open_npz(labels)), labels, "node_label")
        nodes.attributes["y"] = FloatLabels(found)
    return {NODE_TYPE: nodes}, {EDGE_TYPE: edges}


def _member(members: dict[str, ArraySource], path: Path, name: str) -> ArraySource:
    if name not in members:
        raise InputError(
            f"{path}: has no member {name!r}; found {', '.join(sorted(members)) or 'none'}",
            path=path,
        )
    return members.pop(name)


def _unknown(label: str, expected: str, path: Path) -> InputError:
    return InputError(
        f"{label}: expected {expected}edges_list, node_... and edge_...; remove or rename this one",
        path=path,
    )


def _open_types(raw: Path) -> Graph:
    for name in (COUNTS, EDGES):
        if not (raw / name).exists():
            raise NotFoundError(f"{raw}: has several types, but {name} is not there", path=raw)
    counts = {name: _count(own) for name, own in sorted(open_npz(raw / COUNTS).items())}
    nodes = {name: NodeInput(count) for name, count in counts.items()}
    ends = {triplet(key, raw / EDGES): own for key, own in open_npz(raw / EDGES).items()}
    edges = {edge_type: EdgeInput.of_array(ends[edge_type]) for edge_type in sorted(ends)}
    for path in sorted(raw.glob("*.npz")):
        if path.name in (COUNTS, EDGES):
            continue
        name = attribute_name(path.stem.removesuffix("_dict"))
        if not path.stem.startswith(("node", "edge", "num_edges")):
            raise _unknown(str(path), "archives called edge_index_dict, num_nodes_dict, num_", path)
        for key, source in open_npz(path).items():
            if path.stem.startswith("node"):
                own = of_type(nodes, key, path)
                own.attributes[name] = FloatLabels(source) if name == "y" else source
                continue
            edge = of_type(edges, triplet(key, path), path)
            if path.stem.startswith("edge"):
                edge.attributes[name] = source
            elif edge.num_edges != _count(source):
                raise InputError(
                    f"{edge.label}: has {edge.num_edges} edges, but {source.label} says "
                    f"{_count(source)}"
                )
    return nodes, edges


def _count(source: ArraySource) -> int:
    return read_one_number(source, "one count")
