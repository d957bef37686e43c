"""Plain NumPy arrays: one `.npz`, or a directory of `.npy` files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.format import read_array

from gnnstore.converters.datasets.external import ArrayFiles, Paths, open_external, recorded
from gnnstore.converters.edges.buffer import some_targets
from gnnstore.converters.inputs.files import RawLayout, npy_files, open_npy, open_npz
from gnnstore.converters.inputs.kinds import ZIP_MAGIC
from gnnstore.converters.inputs.opening import (
    PathLike,
    describe_files,
    existing_file,
    existing_path,
    open_zip,
    refuse_kind,
)
from gnnstore.converters.inputs.source import (
    ArraySource,
    MemoryArray,
    as_array,
    check_count,
    check_rows,
    read_one_number,
)
from gnnstore.converters.inputs.times import settle_units
from gnnstore.converters.typed.inputs import EdgeInput
from gnnstore.converters.writer.estimates import inspect_inputs
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.converters.writer.options import ConvertOptions, check_features, converter
from gnnstore.errors import InputError, UsageError, check_choice
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE
from gnnstore.progress import Progress

_STRUCTURE = ("edge_index", "indptr", "indices", "num_nodes")

Sources = Mapping[str, ArraySource]


@converter
def from_numpy(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    layout: Literal["csc", "csr"] = "csc",
    features: Paths | None = None,
    features_raw: RawLayout | None = None,
    features_ids: Paths | None = None,
    features_skip_header: bool = False,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert named arrays.

    The graph is either `edge_index` [2, E] (sources above targets) or [E, 2], or `indptr` [N + 1]
    and `indices` [E]. Every other array is recognized by its name:

    - `num_nodes`: N, one integer; else N is the length of `indptr` less one, or of `x`, `y`
      or another node attribute, or one more than the largest id.
    - `train`, `valid` or `val`, and `test`, each also with `_mask` or `_idx` behind: splits,
      as node ids or as masks [N].
    - `edge_...` (`edge_attr`, `edge_weight`): an edge attribute [E, ...].
    - anything else (`x`, `y`): a node attribute [N, ...].

    Parameters
    ----------
    input : path-like
        `.npz`, or a directory of `.npy`, which are read in pieces. Or a matrix of
        `scipy.sparse.save_npz` (csr, csc or coo): entry [i, j] becomes the edge from i to j, with
        its value as `edge_weight`.
    layout : "csc" or "csr"
        The meaning of `indptr`: "csc" counts the in-neighbours of each target, whose ids are in
        `indices`; "csr" counts the out-neighbours of each source (as in `scipy.sparse.csr_array`,
        where row i holds the edges from i).
    features, features_raw, features_ids, features_skip_header
        `x` [N, ...], if it lies elsewhere: see `from_snap`.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If the input is not there.
    InputError
        If an array is damaged, pickled, missing, or disagrees with another.
    """
    check_choice("layout", layout, ("csc", "csr"))
    path = existing_path(input, "the input")
    if path.suffix == ".npy" and not path.is_dir():
        raise InputError(
            f"{path}: is one array (.npy), where edge_index and others are wanted; give the "
            "directory in which they lie, or save them into one file with numpy.savez",
            path=path,
        )
    if not path.is_dir():
        existing_file(path, "the archive")
        refuse_kind(path, ZIP_MAGIC, what="the archive", is_input=True)
    files = npy_files(path) if path.is_dir() else [path]
    x = open_external(
        features, features_raw, features_ids, options, skip_header=features_skip_header
    )
    source: dict[str, Any] = {
        "inputs": describe_files([*files, *(() if x is None else x.files)]),
        "layout": layout,
        **recorded(
            features_raw=features_raw,
            features_ids=features_ids,
            features_skip_header=features_skip_header,
        ),
    }
    work = inspect_inputs(files)
    if x is not None:
        work.add_nodes(x.source)
    with GraphWriter(
        output, kind="numpy", source=source, options=options, progress=progress, workload=work
    ) as writer:
        kind = None if path.is_dir() else matrix_kind(path)
        if kind is not None:
            arrays, shape = open_matrix(path, kind)
            check_square(str(path), shape)
            arrays["num_nodes"] = MemoryArray(f"{path}: shape", np.array(shape[0]))
        else:
            is_one = files == [path]
            arrays = open_npz(path) if is_one else {file.stem: open_npy(file) for file in files}
        if x is not None and "x" in arrays:
            raise InputError(f"{path}: has an array x already; remove it, or the features")
        _copy_arrays(writer, arrays, str(path), kind or layout, x)
        return writer.commit()


@converter
def from_arrays(
    arrays: Any,
    output: PathLike,
    *,
    layout: Literal["csc", "csr"] = "csc",
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert named arrays in memory, such as {"edge_index": ..., "x": ..., "train": ...}.

    Names mean what they mean to `gnnstore.converters.from_numpy`.

    Parameters
    ----------
    arrays : Mapping of str to array, or matrix of scipy.sparse
        Arrays of NumPy, tensors of torch on any device, or lists of numbers. In a matrix, which
        `edge_index` may be too, entry [i, j] is the edge from i to j, with its value as
        `edge_weight`.
    layout : "csc" or "csr"
        The meaning of `indptr`.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    InputError
        If an array is missing, or disagrees with another.
    UsageError
        If an input is not an array of numbers.
    """
    check_choice("layout", layout, ("csc", "csr"))
    given = {"edge_index": arrays} if hasattr(arrays, "tocoo") else arrays
    if not isinstance(given, Mapping):
        raise UsageError(
            f"arrays has the type {type(arrays).__name__}; expected a dict of arrays by name, such "
            'as {"edge_index": ..., "x": ...}, or a matrix of scipy.sparse'
        )
    given = dict(given)
    if hasattr(given.get("edge_index"), "tocoo"):
        given |= _arrays_of(given)
    sources = {name: MemoryArray(name, as_array(values, name)) for name, values in given.items()}
    source = {"attributes": sorted(sources), "layout": layout}
    with GraphWriter(
        output, kind="arrays", source=source, options=options, progress=progress
    ) as writer:
        _copy_arrays(writer, sources, "the arrays", layout)
        return writer.commit()


def _arrays_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a graph whose `edge_index` is a matrix: entry [i, j] is an edge."""
    matrix = given["edge_index"]
    twice = next((name for name in ("edge_weight", "num_nodes") if name in given), None)
    if twice is not None:
        raise UsageError(f"{twice}: the matrix has it already; leave it out")
    check_square("edge_index", matrix.shape)
    entries = matrix.tocoo()
    ends, weights = np.stack([entries.row, entries.col]), entries.data
    if matrix.format == "bsr":  # it fills its blocks with zeros
        ends, weights = ends[:, weights != 0], weights[weights != 0]
    return {"edge_index": ends, "edge_weight": weights, "num_nodes": matrix.shape[0]}


def check_square(label: str, shape: Sequence[int]) -> None:
    """Refuse a matrix that joins two kinds of nodes."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(
            f"{label}: a matrix of {' x '.join(map(str, shape))} joins two kinds of nodes, and row "
            "and column of one number would be one node; convert it as a graph with two node "
            "types ('gnnstore convert typed')"
        )


def matrix_kind(path: Path) -> str | None:
    """Return the format of a matrix of `scipy.sparse.save_npz`; None for other archives."""
    try:
        with open_zip(path) as archive:
            if not set(archive.namelist()) >= {"format.npy", "shape.npy", "data.npy"}:
                return None
            with archive.open("format.npy") as stream:
                kind = read_array(stream, allow_pickle=False).item()
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, ValueError, EOFError):
        return None  # which opening its arrays will name
    return kind.decode() if isinstance(kind, bytes) else str(kind)


def open_matrix(path: Path, kind: str) -> tuple[dict[str, ArraySource], tuple[int, ...]]:
    """Open the arrays of a matrix, whose values are `edge_weight`, and return its shape."""
    members = open_npz(path, leave_out=("format", "_is_array"))
    wanted = ("row", "col") if kind == "coo" else ("indptr", "indices")
    if kind not in ("csr", "csc", "coo") or not members.keys() >= {*wanted, "shape", "data"}:
        raise InputError(
            f"{path}: is a sparse matrix in the format {kind} with {', '.join(members)}; save it "
            "as csr: scipy.sparse.save_npz(path, matrix.tocsr())",
            path=path,
        )
    arrays = {"edge_weight": members["data"], **{name: members[name] for name in wanted}}
    return arrays, tuple(members["shape"].read().reshape(-1).tolist())


def _copy_arrays(
    writer: GraphWriter, arrays: Sources, path: str, layout: str, x: ArrayFiles | None = None
) -> None:
    """Read named arrays into a writer."""
    edges = _open_edges(arrays, path, layout)
    node_attributes, edge_attributes, splits = {}, {}, []
    for name, source in arrays.items():
        if name in _STRUCTURE or (layout == "coo" and name in ("row", "col")):
            continue
        if name in SPLIT_KEYS:
            splits.append((SPLIT_KEYS[name], source))
        elif name.startswith("edge_"):
            check_rows(source, edges.num_edges, "edges")
            edge_attributes[name] = source
        else:
            check_rows(source, None)
            node_attributes[name] = source
    options = writer.options
    check_features(options, {NODE_TYPE: [*node_attributes, *([] if x is None else ["x"])]})
    settle_units(
        {NODE_TYPE: node_attributes, EDGE_TYPE: edge_attributes},
        options.time_attr,
        {name: unit for name, unit in options.time_units.items() if name in arrays},
    )
    if "num_nodes" in arrays:
        count = read_one_number(arrays["num_nodes"], "one non-negative integer")
        writer.set_num_nodes(count)
    if "indptr" in arrays:
        label, count = arrays["indptr"].label, arrays["indptr"].shape[0] - 1
        check_count(label, count, writer.num_nodes, hint="indptr has one more than num_nodes")
        writer.set_num_nodes(count)
    if writer.num_nodes is None:
        rows = {name: source.shape[0] for name, source in node_attributes.items()}
        rows |= {} if x is None else {"x": x.source.shape[0]}
        of_rows = rows.get("x", rows.get("y", next(iter(rows.values()), None)))
        if of_rows is not None:
            writer.set_num_nodes(of_rows)
    for name, source in splits:
        writer.set_split(name, source, where=source.label)
    for name, source in node_attributes.items():
        writer.set_node_attribute(name, source)
    if x is not None:
        x.write(writer, "x", x.row_ids)
    writer.read_edges(
        edges.pairs(),
        edges.num_edges,
        edge_attributes,
        where=edges.label,
        some_targets=None if edges.array is None else some_targets(edges.array),
    )


def _open_edges(arrays: Sources, path: str, layout: str) -> EdgeInput:
    if layout == "coo":
        return EdgeInput.of_ends(arrays["row"], arrays["col"])
    has_pairs, has_columns = "edge_index" in arrays, "indptr" in arrays and "indices" in arrays
    if has_pairs == has_columns or ("indptr" in arrays) != ("indices" in arrays):
        raise InputError(
            f"{path}: expected either edge_index, or indptr and indices, found "
            f"{', '.join(sorted(arrays)) or 'no array'}"
        )
    if has_pairs:
        return EdgeInput.of_array(arrays["edge_index"])
    return EdgeInput.of_columns(arrays["indptr"], arrays["indices"], layout)
