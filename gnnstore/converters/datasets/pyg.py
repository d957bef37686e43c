"""A `Data` or `HeteroData` of PyG, or a pair of its stores, with all their attributes.

PyG itself decides whether an attribute is one of nodes, of edges or of neither, so that a batch of
the store holds exactly what a batch of the data object would.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.buffer import edge_pairs, warn_of_stray_ids
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.pickled import open_saved_data
from gnnstore.converters.inputs.source import ArraySource, MemoryArray, as_float32
from gnnstore.converters.typed.graph_writer import HeteroGraphWriter
from gnnstore.converters.typed.reverse import reverse_types
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.converters.writer.options import ConvertOptions, check_features, converter
from gnnstore.errors import InputError, UsageError, refuse_unknown
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE
from gnnstore.formats.store.values import decode_value, encode_value
from gnnstore.progress import Progress
from gnnstore.units import format_count

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
    from torch_geometric.data.graph_store import EdgeAttr

_LOG = logging.getLogger(__name__)
_KINDS = "biuf"  # NumPy's kinds of arrays that are numbers

_STRUCTURE = {"edge_index", "num_nodes"}
# Attributes with a row for each node or edge: of another length they are a mistake, not a value of
# the graph.
_WITH_ROWS = {
    "x": ("node",),
    "y": ("node", "edge"),
    "edge_attr": ("edge",),
    "edge_weight": ("edge",),
    **{name: ("node", "edge") for name in SPLIT_KEYS if name.endswith("_mask")},
}


@converter
def from_pyg(
    data: Data | HeteroData | tuple[FeatureStore, GraphStore] | PathLike,
    output: PathLike,
    *,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    **more: Any,
) -> Path:
    """Convert a `Data` or `HeteroData` with any node, edge and graph attributes.

    Tensors, arrays and lists of numbers whose length along `Data.__cat_dim__` is N or E become node
    and edge attributes, as by `Data.is_node_attr` and `is_edge_attr`. Other tensors, numbers,
    strings, and lists, tuples and dicts of such values, are kept as values of the whole graph, or
    of the type that has them, and batches have them whole, but for lists as long as the nodes or
    edges. `x`, `y`, masks, `edge_attr` and `edge_weight` of another length are refused; a `y` of
    one row is a label of the graph. Masks `train_mask`, `val_mask` and `test_mask` of shape [N] are
    node attributes and also the splits train, valid and test.

    Parameters
    ----------
    data : torch_geometric.data.Data, HeteroData, a pair (FeatureStore, GraphStore), or path-like
        On any device; or a file of `torch.save` with one, or the processed file of a data set
        of one graph. Such a file is unpickled with a list of allowed names, and read whole: four
        times the file counts in `options.memory_bytes`. In a pair, one type of nodes or edges after
        the other is read into memory.
    output, options, progress
        See `gnnstore.converters`.
    **more
        Single options, as in `time_attr=("time",)`; see `ConvertOptions`.

    Raises
    ------
    InputError
        If an attribute cannot be stored (the message has its name), or ids are out of range.
    UsageError
        If `data` is something else.
    """
    refuse_unknown("from_pyg", more, [field.name for field in fields(ConvertOptions)])
    if isinstance(data, str | os.PathLike):
        data = open_saved_data(data, None if options is None else options.memory_bytes)
    whole, has_types = _as_data(data)
    # Parts by their types; a `Data`, which has none, is the only part.
    nodes: dict[Any, _Part] = {(): _Part(whole, "data", ("node", "edge"))}
    edges = nodes
    if has_types:
        nodes = {(n,): _Part(whole[n], f"data[{n!r}]", ("node",)) for n in whole.node_types}
        edges = {(e,): _Part(whole[e], f"data[{e}]", ("edge",)) for e in whole.edge_types}
    counts = [part.count_nodes() for part in nodes.values()]
    indices = {of: part.edge_array() for of, part in edges.items()}
    if not has_types and "num_nodes" not in whole and not any(nodes[()].owned_by("node")):
        warn_of_stray_ids(counts[0], indices[()].size, "data.edge_index")
    own_names = {(*of, NODE_TYPE)[0]: dict(own.owned_by("node")) for of, own in nodes.items()}
    check_features(options, own_names)
    how: dict[str, Any] = {"kind": "pyg", "options": options, "progress": progress}
    with (_typed_writer if has_types else _writer)(output, whole, counts, how) as writer:
        for of, part in nodes.items():
            for name, rows, dtype, cat_dim in part.attributes("node"):
                writer.set_node_attribute(*of, name, rows, dtype=dtype, cat_dim=cat_dim)
                if _is_split_mask(name, rows, dtype, part.where):
                    writer.set_split(*of, SPLIT_KEYS[name], rows, where=f"{part.where}.{name}")
            _write_values(writer, part, of[0] if of else NODE_TYPE, "node")
        of_graph = whole._global_store.items() if has_types else nodes[()].owned_by("")
        _write_graph_values(writer, of_graph)
        for of, part in edges.items():
            attributes: dict[str, ArraySource] = {}
            for name, rows, dtype, cat_dim in part.attributes("edge"):
                writer.describe_edge_attribute(*of, name, dtype=dtype, cat_dim=cat_dim)
                attributes[name] = MemoryArray(f"{part.where}.{name}", rows)
            _write_values(writer, part, of[0] if of else EDGE_TYPE, "edge")
            index = MemoryArray(f"{part.where}.edge_index", indices[of])
            pairs, num_edges = edge_pairs(index), index.shape[1]
            writer.read_edges(*of, pairs, num_edges, attributes, where=index.label)
        if has_types:
            for of, part in (nodes | edges).items():
                _write_values(writer, part, of[0], "")
        path: Path = writer.commit()
        return path


def _writer(output: PathLike, data: Data, counts: list[int], how: dict[str, Any]) -> Any:
    source = {"attributes": sorted(data.keys())}
    writer = GraphWriter(output, num_nodes=counts[0], source=source, **how)
    writer.explicit_num_nodes = "num_nodes" in data
    return writer


def _typed_writer(
    output: PathLike, data: HeteroData, counts: list[int], how: dict[str, Any]
) -> Any:
    names, edges = data.node_types, data.edge_types
    source = {"node_types": names, "edge_types": list(map(list, edges))}
    by_type = dict(zip(names, counts, strict=True))
    options = how["options"] or ConvertOptions()
    reverse_types(options.reverse, edges)  # refuses unknown ones
    writer = HeteroGraphWriter(output, by_type, source=source, **how)
    for name in names:
        if "num_nodes" in data[name]:
            writer.show_num_nodes(name)
    return writer


def _as_data(data: Any) -> tuple[Any, bool]:
    """Return the graph as a `Data` or `HeteroData`, and whether it has types."""
    from torch_geometric.data import (  # noqa: PLC0415  (seconds to import)
        Data,
        FeatureStore,
        GraphStore,
        HeteroData,
    )

    if isinstance(data, Data | HeteroData):
        return data, isinstance(data, HeteroData)
    features, graph = data if isinstance(data, tuple | list) and len(data) == 2 else (None, None)
    if not isinstance(features, FeatureStore) or not isinstance(graph, GraphStore):
        raise UsageError(
            "expected a torch_geometric.data.Data or HeteroData, or a pair (FeatureStore, "
            f"GraphStore), got {type(data).__name__}"
        )
    return _joined(features, graph)


def _joined(features: FeatureStore, graph: GraphStore) -> tuple[Any, bool]:
    """Return the graph of a pair of stores, and whether it has types."""
    from torch_geometric.data import Data, HeteroData  # noqa: PLC0415

    tensors = features.get_all_tensor_attrs()
    edges: dict[Any, EdgeAttr] = {}
    for edge_attr in graph.get_all_edge_attrs():  # may have the same edges in several layouts
        edges.setdefault(edge_attr.edge_type, edge_attr)
    groups = {attr.group_name if attr.is_set("group_name") else None for attr in tensors}
    names = {own for own in groups if isinstance(own, str)}
    # A group whose edges have no type belongs to the only type.
    has_types = any(own is not None for own in edges) or len(names) > (1 if edges else 0)
    if has_types and None in (*groups, *edges):
        raise InputError(
            "the stores have edges without a type (edge_type=None), or tensors without a group, "
            f"beside {', '.join(map(repr, sorted(names) or filter(None, edges)))}; give each a type"
        )
    found: Any = HeteroData() if has_types else Data()
    counts = _counts(edges.values(), has_types=has_types)
    is_sized = bool(counts)
    by_type: dict[Any, list[tuple[str, int]]] = {}
    for attr in tensors:
        all_rows = copy.copy(attr)
        all_rows.index = None
        own = attr.group_name if attr.is_set("group_name") else None
        all_rows.group_name = own  # in a Data, there is one group
        values = features.get_tensor(all_rows)
        (found[own] if has_types else found)[attr.attr_name] = values
        if not isinstance(own, tuple) and not attr.attr_name.startswith("edge_"):
            of = own if has_types else None
            num_rows = values.shape[found.__cat_dim__(attr.attr_name, values)]
            by_type.setdefault(of, []).append((attr.attr_name, num_rows))
    for of, lengths in by_type.items():
        # Sizes may count only the nodes that have edges.
        count = max([counts.get(of, 0), *(length for _, length in lengths)])
        for name, length in lengths:
            if length < count:
                raise InputError(
                    f"{'' if of is None else f'{of}.'}{name}: has {format_count(length, 'row')}, "
                    "and there are "
                    f"{format_count(count, 'node')}, by size= of the edges or by another tensor; "
                    "give it a row for each node"
                )
        counts[of] = count
    for edge_type, edge_attr in edges.items():
        part = found[edge_type] if has_types else found
        part.edge_index = _edge_index_of(graph, edge_attr)
    for of, count in counts.items():
        part = found[of] if has_types else found
        if (is_sized and not has_types) or _find_count(part) != count:
            part.num_nodes = count
    return found, has_types


def _counts(edges: Iterable[EdgeAttr], *, has_types: bool) -> dict[Any, int]:
    """Return the numbers of nodes by the sizes of edges, by type (None: without types)."""
    counts: dict[Any, int] = {}
    for own in edges:
        ends = own.edge_type[::2] if has_types else (None, None)
        for name, size in zip(ends, own.size or (None, None), strict=True):
            if size is not None:
                counts[name] = max(counts.get(name, 0), int(size))
    return counts


@dataclass(frozen=True)
class _Part:
    """A `Data`, or what a `HeteroData` has of one type."""

    data: Any
    where: str
    kinds: tuple[str, ...]  # what its attributes can be of: "node", "edge"

    def owned_by(self, kind: str) -> Iterator[tuple[str, Any]]:
        """Yield what has a row for each of the nodes or edges, or ("") for neither."""
        names = list(self.data.keys())
        for name in names if len(self.kinds) == 1 else sorted(names):
            if name not in _STRUCTURE and self._owner(name) == kind:
                yield name, self.data[name]

    def _owner(self, name: str) -> str:
        """Return what PyG takes a value to be of; refuse rows that others have than are there."""
        value = self.data[name]
        if not _is_array(value) and not isinstance(value, list | tuple):
            return ""
        try:
            answers = {"node": self.data.is_node_attr(name), "edge": self.data.is_edge_attr(name)}
        except (NotImplementedError, RuntimeError, TypeError) as error:
            raise InputError(
                f"{self.where}.{name}: PyG cannot decide whether it belongs to nodes or edges "
                f"({error}); rename or remove the attribute num_edges, if there is one, or this one"
            ) from error
        found = next((kind for kind, is_of in answers.items() if is_of), "")
        wanted = _WITH_ROWS.get(name, ())
        shape = list(value.shape if _is_array(value) else (len(value),))
        if wanted and found not in (wanted if len(self.kinds) > 1 else self.kinds):
            if not found and name == "y" and shape[:1] in ([], [1]):
                return ""
            there = " and ".join(
                f"{self.count_nodes() if kind == 'node' else self.edge_array().shape[1]} {kind}s"
                for kind in self.kinds
            )
            raise InputError(
                f"{self.where}.{name}: has shape {shape}, and there are {there}; give it a row for "
                f"each {' or '.join(k for k in wanted if k in self.kinds) or self.kinds[0]}, set "
                f"{self.where}.num_nodes where some nodes have no edges, or rename it if it is "
                "something else"
            )
        return found

    def attributes(self, kind: str) -> Iterator[tuple[str, npt.NDArray[Any], str, int]]:
        """Yield name, rows, type and original axis of the attributes of nodes or edges."""
        for name, value in self.owned_by(kind):
            values = value if _is_array(value) else _numbers(value)
            if values is not None:
                array, dtype = _to_numpy(values, f"{self.where}.{name}", _KINDS + "M")
                parent = self.data if len(self.kinds) > 1 else self.data._parent()
                cat_dim = parent.__cat_dim__(name, values, self.data)
                yield name, np.moveaxis(array, cat_dim, 0), dtype, cat_dim

    def count_nodes(self) -> int:
        """Return the number of nodes."""
        try:
            count = _find_count(self.data)
        except IndexError as error:  # of an attribute that should have a row for each node
            raise InputError(
                f"{self.where}: the number of nodes is unknown ({error}); give x and other "
                f"attributes of nodes rows, or set {self.where}.num_nodes"
            ) from None
        if count is None:
            raise InputError(f"{self.where} has no number of nodes; set {self.where}.num_nodes")
        numbers = np.asarray(count).reshape(-1)
        is_number = len(numbers) == 1 and numbers.dtype.kind in "biuf"
        if not is_number or not numbers[0] >= 0 or numbers[0] % 1:  # NaN is not
            raise InputError(
                f"{self.where}.num_nodes: is {count}, expected one non-negative integer"
            )
        return int(numbers[0])

    def edge_array(self) -> npt.NDArray[Any]:
        """Return the `edge_index` as an array [2, E]."""
        data, where = self.data, f"{self.where}.edge_index"
        if "adj_t" in data:
            raise InputError(
                f"{self.where}.adj_t: adjacency matrices cannot be converted; keep the edges in "
                f"{where} (leave out the ToSparseTensor transform)"
            )
        value = data["edge_index"] if "edge_index" in data else None  # noqa: SIM401 - no dict
        if value is None:
            return np.empty((2, 0), np.int64)
        if not _is_array(value):
            raise InputError(
                f"{where}: expected a tensor of shape [2, E], got a {type(value).__name__}"
            )
        array, _ = _to_numpy(value, where)
        if array.ndim != 2 or array.shape[0] != 2:
            raise InputError(f"{where}: has shape {list(array.shape)}, expected [2, E]")
        return array


def _find_count(data: Any) -> Any:
    """Return the number of nodes; None if it is not known."""
    with warnings.catch_warnings():  # counting nodes by the largest id is intended
        warnings.simplefilter("ignore")
        return data.num_nodes


def _write_graph_values(writer: Any, values: Iterable[tuple[str, Any]]) -> None:
    for name, value in values:
        if _is_array(value):
            array, dtype = _to_numpy(value, f"data.{name}")
            writer.set_graph_array(name, array, dtype=dtype)
        else:
            writer.set_graph_attribute(name, _json_value(value, f"data.{name}"))


def _write_values(writer: Any, part: _Part, of: Any, kind: str) -> None:
    """Write the values of a type without numbers by row: lists of what are none, or others."""
    for name, value in part.owned_by(kind):
        where = f"{part.where}.{name}"
        if _is_array(value):
            if not kind:
                array, dtype = _to_numpy(value, where)
                writer.set_type_value(of, name, array, dtype=dtype)
        elif not kind or _numbers(value) is None:
            options = writer.options
            keeps_all = not (options.undirected or options.add_inverse_edge)
            if kind == "edge" and not (keeps_all and options.self_loops == "keep"):
                raise InputError(
                    f"{where}: a list without numbers cannot follow edges that undirected=, "
                    "add_inverse_edge= and self_loops= add or drop; leave these out, or remove it"
                )
            writer.set_type_value(of, name, _json_value(value, where))


def _numbers(values: list[Any] | tuple[Any, ...]) -> npt.NDArray[Any] | None:
    """Return a list as an array; None if it holds something else than numbers and times."""
    try:
        array = np.array(values)
    except (ValueError, TypeError, OverflowError, RuntimeError):  # rows of several lengths
        return None
    if array.dtype.kind not in _KINDS + "M":
        return None
    return as_float32(array) if array.dtype == np.float64 else array


def _is_array(value: object) -> bool:
    """Whether a value is a tensor or a NumPy array."""
    import torch  # noqa: PLC0415

    return isinstance(value, (torch.Tensor, np.ndarray))


def _to_numpy(value: Any, where: str, kinds: str = _KINDS) -> tuple[npt.NDArray[Any], str]:
    """Return a tensor or array, without a copy if on the CPU, and its type's name in a store."""
    import torch  # noqa: PLC0415

    if isinstance(value, np.ndarray):
        array, dtype = value, value.dtype.newbyteorder("=").name
    else:
        dtype = str(value.dtype).removeprefix("torch.")
        try:
            tensor = value.detach().cpu().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
            if dtype == "bfloat16":  # NumPy has no such type: a store takes the bits
                return tensor.view(torch.int16).numpy().view(np.uint16), dtype
            array = tensor.numpy()
        except (TypeError, RuntimeError, NotImplementedError) as error:  # sparse, nested, meta
            raise InputError(
                f"{where}: a {value.layout} tensor of {dtype} cannot be stored ({error}); "
                "make it dense, convert it, or remove it"
            ) from None
    if array.dtype.kind not in kinds:
        raise InputError(f"{where}: elements of type {dtype} cannot be stored; use numbers")
    return array, "int64" if array.dtype.kind == "M" else dtype


def _json_value(value: Any, where: str) -> Any:
    """Return a value as JSON has it; refuse one that JSON would change."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        stored = json.loads(json.dumps(encode_value(value), allow_nan=False))
        if decode_value(stored) == value:
            return stored
    except (TypeError, ValueError, RecursionError):
        pass
    kind = type(value).__name__
    if isinstance(value, list | tuple):
        known = ("str", "int", "float", "bool", "list", "tuple", "dict", "NoneType")
        odd = next((own for own in (type(of).__name__ for of in value) if own not in known), "")
        kind += odd and f" with {odd}"
    raise InputError(
        f"{where}: a {kind} like this cannot be stored as JSON, which has no NaN, infinity or "
        "times; use a tensor, a finite number, a string, or a list, tuple or dict of them, for "
        "times of nodes or edges an array of datetime64, or remove it"
    )


def _edge_index_of(graph: GraphStore, edges: EdgeAttr) -> torch.Tensor:
    """Return sources and targets of the edges, in the order of the store."""
    import torch  # noqa: PLC0415

    rows, columns = graph.get_edge_index(edges)
    if edges.layout.value == "csr":  # pointers to the edges of each source
        rows = torch.repeat_interleave(torch.arange(len(rows) - 1), rows.diff())
    elif edges.layout.value == "csc":
        columns = torch.repeat_interleave(torch.arange(len(columns) - 1), columns.diff())
    return torch.stack([rows, columns.to(rows.dtype)])


def _is_split_mask(name: str, rows: npt.NDArray[Any], dtype: str, where: str) -> bool:
    """Whether a node attribute is the mask of a split; warn if it has only the name of a mask."""
    if not name.endswith("_mask") or name not in SPLIT_KEYS:
        return False
    is_mask = dtype == "bool" and (rows.ndim == 1 or rows.shape[1:] == (1,))
    if not is_mask:
        found = (f"{where}.{name}", dtype, list(rows.shape))
        _LOG.warning("%s is %s %s, and no mask of a split; for a split, make it bool [N]", *found)
    return is_mask
