"""The graphs of the Illinois Graph Benchmark, as their downloader leaves them: IGB and IGBH.

Below SIZE/processed/, or without that, lies a directory `S__R__T` with `edge_index.npy` (int64
[E, 2], an edge a row) for each edge type, and for each node type one with `node_feat.npy` (float32
[N, 1024]); papers also have `node_label_19.npy` and `node_label_2K.npy` ([N]). In the two largest
sizes features and labels are raw float32 without a header, in spite of their names. No size has
files of splits: IGB's own loader takes the first 60 % of the nodes for training, 20 % for
validation and the rest for testing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from gnnstore.converters.inputs.files import RawLayout, open_npy, open_raw
from gnnstore.converters.inputs.opening import (
    PathLike,
    describe_files,
    existing_directory,
    open_input,
)
from gnnstore.converters.inputs.source import ArraySource, FloatLabels
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, largest_ids, write_graph
from gnnstore.converters.writer.node_arrays import split_ranges
from gnnstore.converters.writer.options import ConvertOptions, converter
from gnnstore.errors import InputError, NotFoundError, check_choice
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeType
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

Classes = Literal["19", "2K"]

_NPY_MAGIC = b"\x93NUMPY"
_EDGES, _FEATURES = "edge_index.npy", "node_feat.npy"
_CITES: EdgeType = ("paper", "cites", "paper")
_FEATURE_DIM = 1024  # columns of features, in every size of the benchmark
# Papers of the full graph, and the number of first papers that have a label.
_FULL_NODES = 269_346_174
_FULL_LABELLED = {"19": 227_130_858, "2K": 157_675_969}
# The types in the order of IGB's own loader; others follow in the order of their names.
_ORDER = ("paper", "author", "institute", "fos", "journal", "conference")
_RELATIONS = ("cites", "written_by", "affiliated_to", "topic", "published", "venue")


@converter
def from_igb(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    classes: Classes = "19",
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert a homogeneous graph of the Illinois Graph Benchmark (IGB).

    Features become `x`, labels `y` (int64 [N]). Splits are IGB's: by position, 60, 20 and
    20 % of the labelled papers. IGB's loader also gives every node exactly one self-loop:
    `options.self_loops` "add" is the same but for nodes that have several.

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
    root = _find(input, lambda root: (root / "__".join(_CITES) / _EDGES).exists())
    if root is None:
        path = Path(input, "__".join(_CITES), _EDGES)
        raise NotFoundError(f"{path} is not there; give the directory of one size", path=path)
    return _convert(root, output, [_CITES], classes, kind="igb", options=options, progress=progress)


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
    input, output, classes, options, progress
        See `from_igb`.

    Raises
    ------
    NotFoundError, InputError
        See `from_igb`.
    """
    root = _find(input, lambda root: len(_edge_types(root)) > 1)
    if root is None:
        below = sorted(own.parent for own in Path(input).glob("*/processed") if _edge_types(own))
        hint = f"; give {' or '.join(map(str, below))}" if below else ""
        raise NotFoundError(
            f"{input}: there are not several directories as paper__written_by__author with "
            f"edge_index.npy{hint} (gnnstore convert igb is for the homogeneous graphs)",
            path=Path(input),
        )
    how: dict[str, Any] = {"kind": "igbh", "options": options, "progress": progress}
    return _convert(root, output, _edge_types(root), classes, **how)


def _find(directory: PathLike, is_there: Callable[[Path], bool]) -> Path | None:
    root = existing_directory(directory, "the IGB data set")
    return next(filter(is_there, (root, root / "processed")), None)


def _convert(
    root: Path, output: PathLike, edge_types: list[EdgeType], classes: Classes, **how: Any
) -> Path:
    """Convert some edge types, and the node types at their ends."""
    check_choice("classes", classes, get_args(Classes))
    places = {own: root / "__".join(own) / _EDGES for own in edge_types}
    arrays = {own: open_npy(path) for own, path in places.items()}
    edges = {  # each may be a row
        own: EdgeInput.of_array(array, by_row=array.shape[1:] == (2,))
        for own, array in arrays.items()
    }
    names = sorted({name for own in edges for name in own[::2]}, key=_rank)
    nodes = {name: _open_nodes(root, name, edges, classes) for name in names}
    features = (root / name / _FEATURES for name in names)
    files = (root / "paper" / f"node_label_{classes}.npy", *places.values(), *features)
    source = {
        "inputs": describe_files(path for path in files if path.exists()),
        "classes": classes,
    }
    if edge_types == [_CITES]:  # the only type needs no name
        nodes, edges = {NODE_TYPE: nodes["paper"]}, {EDGE_TYPE: edges[_CITES]}
    return write_graph(output, nodes, edges, source=source, **how)


def _open_nodes(
    root: Path, name: str, edges: Mapping[EdgeType, EdgeInput], classes: str
) -> NodeInput:
    """Open what is there of a node type; without arrays, nodes are counted by the largest id."""
    features, labels = root / name / _FEATURES, root / name / f"node_label_{classes}.npy"
    arrays: dict[str, ArraySource] = {}
    if features.exists():
        arrays["x"] = _open_array(features, (_FEATURE_DIM,))
    if name == "paper" and _has_labels(labels, classes):
        arrays["y"] = FloatLabels(_open_array(labels, ()))
    count = next((own.shape[0] for own in arrays.values()), None)
    if count is None:
        count = largest_ids(edges, name) + 1
    if "x" not in arrays:
        _LOG.warning("%s: nodes of type %s have no features; there are %d", root, name, count)
    node = NodeInput(count, arrays)
    if "y" in arrays:  # the first papers have a label
        labelled = _FULL_LABELLED[classes] if count == _FULL_NODES else count
        node.splits = dict(split_ranges(labelled, (0.6, 0.2)))
    return node


def _has_labels(labels: Path, classes: str) -> bool:
    if not labels.exists():
        other = "2K" if classes == "19" else "19"
        if labels.with_name(f"node_label_{other}.npy").exists():
            raise NotFoundError(
                f"{labels} is not there, but labels of {other} classes are: take them with "
                f"classes={other}, or download the others",
                path=labels,
            )
        _LOG.warning("%s is not there: the store has neither labels nor splits", labels)
    return labels.exists()


def _edge_types(root: Path) -> list[EdgeType]:
    found: list[EdgeType] = []
    for path in root.glob(f"*__*__*/{_EDGES}"):
        source, relation, target = path.parent.name.split("__", 2)
        found.append((source, relation, target))
    known = {name: place for place, name in enumerate(_RELATIONS)}
    return sorted(found, key=lambda own: (known.get(own[1], len(known)), own))


def _rank(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def _open_array(path: Path, row_shape: tuple[int, ...]) -> ArraySource:
    """Open a file called `.npy`, which may be raw float32."""
    with open_input(path) as file:
        has_header = file.read(len(_NPY_MAGIC)) == _NPY_MAGIC
    layout = RawLayout("float32", (-1, *row_shape))
    source = open_npy(path) if has_header else open_raw(path, layout)
    if len(source.shape) != 1 + len(row_shape):
        raise InputError(
            f"{source.label}: has shape {list(source.shape)}, expected "
            f"{'[N, F]' if row_shape else '[N]'}"
        )
    return source
