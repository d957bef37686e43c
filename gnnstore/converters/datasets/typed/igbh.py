"""The heterogeneous graphs of the Illinois Graph Benchmark (IGBH), as they are published.

Below SIZE/processed/ lies a directory `S__R__T` with `edge_index.npy` [E, 2] for each edge type,
and for each node type one with `node_feat.npy` [N, 1024] float32. In the two largest sizes features
and labels are raw float32 without a header, in spite of their names.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import get_args

from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.igb import (
    FEATURE_DIM,
    Classes,
    check_labels,
    open_array,
    open_edges,
    split_papers,
)
from gnnstore.converters.inputs.derived import FloatLabels
from gnnstore.converters.inputs.opening import PathLike, describe_files, existing_directory
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, largest_ids, write_graph
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import NotFoundError, check_choice
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

# The types in the order of IGB's own loader; others follow in the order of their names.
_ORDER = ("paper", "author", "institute", "fos", "journal", "conference")
_RELATIONS = ("cites", "written_by", "affiliated_to", "topic", "published", "venue")


@converter
def from_igbh(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    classes: Classes = "19",
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert a heterogeneous graph of the Illinois Graph Benchmark (IGBH).

    Features of each node type become `x`, labels of papers `y` (int64 [N]). Splits are IGB's: by
    position, 60, 20 and 20 % of the labelled papers. Nodes of a type without features are counted
    by the largest id of an edge, which takes a pass over these edges.

    Parameters
    ----------
    input : path-like
        The directory with `paper/` and `paper__cites__paper/` in it, or one with `processed/`.
    classes : "19" or "2K"
        Which labels to take.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If the directory or a file that must be there is not.
    InputError
        If an array is damaged or disagrees with another.
    """
    check_choice("classes", classes, get_args(Classes))
    root = _find(existing_directory(input, "the IGBH data set"))
    labels = root / "paper" / f"node_label_{classes}.npy"
    check_labels(labels, classes)
    files = [labels] if labels.exists() else []
    edges: dict[EdgeType, EdgeInput] = {}
    for edge_type in _edge_types(root):
        path = root / "__".join(edge_type) / "edge_index.npy"
        edges[edge_type] = open_edges(path)
        files.append(path)
    nodes = {}
    names = dict.fromkeys(name for edge_type in edges for name in (edge_type[0], edge_type[2]))
    for name in sorted(names, key=_place):
        arrays: dict[str, ArraySource] = {}
        path = root / name / "node_feat.npy"
        if path.exists():
            arrays["x"] = open_array(path, (FEATURE_DIM,))
            files.append(path)
        if name == "paper" and labels.exists():
            arrays["y"] = FloatLabels(open_array(labels, ()))
        count = next((own.shape[0] for own in arrays.values()), None)
        if count is None:
            count = largest_ids(edges, name) + 1
            _LOG.warning(
                "%s: nodes of type %s have no features; the edges name %d", root, name, count
            )
        nodes[name] = NodeInput(count, arrays)
    if "paper" in nodes and "y" in nodes["paper"].attributes:
        split_papers(nodes["paper"], classes)
    return write_graph(
        output,
        nodes,
        edges,
        kind="igbh",
        source={"inputs": describe_files(files), "classes": classes},
        options=options,
        progress=progress,
    )


def _find(directory: Path) -> Path:
    for root in (directory, directory / "processed"):
        if len(_edge_types(root)) > 1:
            return root
    below = sorted(path.parent for path in directory.glob("*/processed") if _edge_types(path))
    hint = f"; give {' or '.join(map(str, below))}" if below else ""
    raise NotFoundError(
        f"{directory}: there are not several directories as paper__written_by__author with "
        f"edge_index.npy{hint} (gnnstore convert igb is for the homogeneous graphs)",
        path=directory,
    )


def _edge_types(root: Path) -> list[EdgeType]:
    found: list[EdgeType] = []
    for path in root.glob("*__*__*/edge_index.npy"):
        source, relation, target = path.parent.name.split("__", 2)
        found.append((source, relation, target))
    known = {name: place for place, name in enumerate(_RELATIONS)}
    return sorted(found, key=lambda own: (known.get(own[1], len(known)), own))


def _place(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)
