"""OGB's link-property data sets: the edges to predict, and the negatives to rank them against.

A directory of `split/` holds `train.pt`, `valid.pt` and `test.pt`, each a dict of arrays that
`torch.save` wrote, in one of three forms: `edge` [L, 2] and shared negatives `edge_neg` [K, 2]
(ogbl-collab, ppa, ddi), `source_node` and `target_node` with `target_node_neg` [L, 1000]
(ogbl-citation2), or `head`, `relation` and `tail` with `head_neg` and `tail_neg` [L, 500]
(ogbl-wikikg2). The same arrays may lie in `.npz` files, or all dicts in one `split_dict.pt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.datasets.ogb.splits import SPLITS, open_split_file, split_file
from gnnstore.converters.inputs.source import ArraySource, MappedRows, RowTaker
from gnnstore.converters.typed.inputs import EdgeInput
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import InputError, NotFoundError
from gnnstore.random_words import hash_pairs

_ENDS = (("source_node", "target_node"), ("head", "tail"))
_NEGATIVES = {
    "source_negatives": ("source_node_neg", "head_neg"),
    "target_negatives": ("target_node_neg", "tail_neg"),
}
# Attributes with another name in splits than in the graph; without "edge_".
_WORDS = {"relation": "reltype"}


# A split of edges: the arguments of `GraphWriter.set_edge_split`, and its file as "where".
LinkSplit = dict[str, Any]


def open_link_splits(
    directory: Path, memory_bytes: int | None = None
) -> dict[str, LinkSplit] | None:
    """Open the edges to predict of a directory of `split/`; None if it has splits of nodes."""
    memory = memory_ledger("reading the splits", memory_bytes)
    files = {}
    for name in SPLITS:
        paths = [directory / f"{name}{ending}" for ending in (".pt", ".npz")]
        if found := next(filter(Path.exists, paths), None):
            files[name] = found
    if not files:
        path = split_file(directory)
        dicts: Mapping[str, Any] = {} if path is None else open_split_file(path, memory)
        if path is None or not all(isinstance(value, Mapping) for value in dicts.values()):
            return None
        return {name: _link_split(path, name, arrays) for name, arrays in dicts.items()} or None
    if missing := [name for name in SPLITS if name not in files]:
        raise NotFoundError(
            f"{directory}: {missing[0]}.pt is not there, only "
            f"{', '.join(path.name for path in files.values())}; copy split/ of the data set whole",
            path=directory,
        )
    splits = {}
    for name, path in files.items():
        splits[name] = _link_split(path, name, open_split_file(path, memory))
        memory = memory.add(Reservation(path.name, _bytes_in_memory(path)))
    return splits


def bytes_in_memory(splits: Mapping[str, LinkSplit]) -> int:
    """Return the memory of the splits that are read whole."""
    return sum(_bytes_in_memory(Path(where)) for where in {own["where"] for own in splits.values()})


def _bytes_in_memory(path: Path) -> int:
    return path.stat().st_size if path.suffix == ".pt" else 0


def set_link_splits(
    writer: GraphWriter,
    splits: Mapping[str, LinkSplit],
    edges: EdgeInput,
    *,
    edges_are_as_given: bool,
) -> None:
    """Write the edges to predict into a writer."""
    for name, split in splits.items():
        if name == "train" and edges_are_as_given and _is_graph(split, edges):
            continue
        attributes = {}
        for key, values in split["attributes"].items():
            own = edges.attributes.get(_of_graph(key))
            if own is None:
                attributes[key] = values
            else:
                attributes[_of_graph(key)] = _like(values, own)
        writer.set_edge_split(name, **{**split, "attributes": attributes})


def _link_split(path: Path, name: str, arrays: Mapping[str, Any]) -> LinkSplit:
    rest = dict(arrays)
    for key, value in arrays.items():
        if isinstance(value, Mapping) or not value.shape:
            raise InputError(
                f"{path}: {key} of {name} is no array with a row for each edge", path=path
            )
    ends = next((pair for pair in _ENDS if rest.keys() >= set(pair)), None)
    if ends is not None:
        source, target = (rest.pop(end) for end in ends)
    elif "edge" in rest:
        source, target = _columns(rest.pop("edge"), path)
    else:
        raise InputError(
            f"{path}: expected arrays called edge, source_node and target_node, or head and tail, "
            f"found {', '.join(arrays) or 'none'}",
            path=path,
        )
    split: LinkSplit = {"source": source, "target": target, "where": str(path)}
    for of, names in _NEGATIVES.items():
        split[of] = next((rest.pop(key) for key in names if key in rest), None)
    shared = rest.pop("edge_neg", None)
    split["negative_edges"] = None if shared is None else _columns(shared, path)
    return {**split, "attributes": rest}


def _columns(pairs: ArraySource, path: Path) -> tuple[ArraySource, ArraySource]:
    """Return the columns of pairs of nodes."""
    if len(pairs.shape) != 2 or pairs.shape[1] != 2:
        raise InputError(
            f"{pairs.label}: has shape {list(pairs.shape)}, expected [L, 2]: a source and a target "
            "in a row",
            path=path,
        )
    sources = MappedRows(pairs, lambda rows, _: rows[:, 0], row_shape=())
    return sources, MappedRows(pairs, lambda rows, _: rows[:, 1], row_shape=())


def _of_graph(key: str) -> str:
    """Return the graph's name for an attribute of a split."""
    return f"edge_{_WORDS.get(key, key)}"


def _like(values: ArraySource, own: ArraySource) -> ArraySource:
    """Return an attribute [L] of a split in the row shape of the graph's [E, 1]."""
    row_shape = own.shape[1:]
    if values.shape[1:] == row_shape or row_shape != (1,):
        return values
    return MappedRows(values, lambda rows, _: rows.reshape(-1, 1), row_shape=row_shape)


def _is_graph(split: LinkSplit, edges: EdgeInput) -> bool:
    """Whether a split has the edges of the graph, in any order, with the same attributes."""
    if any(split[key] for key in (*_NEGATIVES, "negative_edges")):
        return False
    ends, attributes = [split["source"], split["target"]], split["attributes"]
    if any(end.shape != (edges.num_edges,) for end in ends):
        return False
    if any(_of_graph(key) not in edges.attributes for key in attributes):
        return False
    own = [edges.attributes[_of_graph(key)] for key in attributes]
    theirs = [_like(values, to) for values, to in zip(attributes.values(), own, strict=True)]
    if any(values.shape != to.shape for values, to in zip(theirs, own, strict=True)):
        return False
    # Numbers of a split are rounded like the graph's, but never to integers.
    dtypes = [
        np.dtype(np.int64)
        if to.dtype.kind in "biu" and values.dtype.kind in "biu"
        else to.dtype
        if to.dtype.kind == values.dtype.kind
        else np.dtype(np.float64)
        for values, to in zip(theirs, own, strict=True)
    ]
    pairs = zip(*(end.rows(2**16) for end in ends), strict=True)
    return _sum_of_hashes(pairs, theirs, dtypes) == _sum_of_hashes(edges.pairs(), own, dtypes)


def _sum_of_hashes(
    pairs: Iterable[tuple[Any, ...]],
    attributes: Iterable[ArraySource],
    dtypes: Sequence[np.dtype[Any]],
) -> int:
    """Return a sum that is equal for equal edges with equal attributes, in any order."""
    takers = [RowTaker(source) for source in attributes]
    total = 0
    for sources, targets in pairs:
        words = hash_pairs(0, sources, targets, None)
        for taker, dtype in zip(takers, dtypes, strict=True):
            rows = taker.take(len(words)).astype(dtype).reshape(len(words), -1)
            if dtype != np.int64:
                rows = rows.astype(np.float64) + 0.0  # equal numbers have equal bits, but for zeros
            for column in rows.view(np.uint64).T:
                words = hash_pairs(0, words, column, None)
        total += int(words.sum())
    return total % 2**64
