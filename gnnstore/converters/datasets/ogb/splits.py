"""OGB's splits of nodes, and the edges to predict with the negatives to rank them against.

Splits of nodes are a CSV file each, `split_dict.pt`, or the same arrays as `.npz`. Splits of edges
are `train.pt`, `valid.pt` and `test.pt`, each a dict of arrays that `torch.save` wrote, in one of
three forms: `edge` [L, 2] and shared negatives `edge_neg` [K, 2] (ogbl-collab, ppa, ddi),
`source_node` and `target_node` with `target_node_neg` [L, 1000] (ogbl-citation2), or `head`,
`relation` and `tail` with `head_neg` and `tail_neg` [L, 500] (ogbl-wikikg2). The same arrays may
lie in `.npz` files, or all dicts in one `split_dict.pt`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.datasets.ogb.layouts import of_type, part_file, read_ids, true_types
from gnnstore.converters.inputs.files import open_npz
from gnnstore.converters.inputs.opening import existing_directory
from gnnstore.converters.inputs.pickled import Arrays, open_pickled
from gnnstore.converters.inputs.source import ArraySource, MappedRows, MemoryArray, RowTaker
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.errors import InputError, NotFoundError
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.progress import Progress
from gnnstore.random_words import hash_pairs

_LOG = logging.getLogger(__name__)

SPLITS = ("train", "valid", "test")
_NAMES = ("split_dict.pt", "split_dict.npz")
# Names of splits in a store; MAG240M's test papers: all, and the parts that contests use.
_KEYS = {
    **SPLIT_KEYS,
    "test-whole": "test",
    "test-dev": "test_dev",
    "test-challenge": "test_challenge",
}
_ENDS = (("source_node", "target_node"), ("head", "tail"))
_NEGATIVES = {
    "source_negatives": ("source_node_neg", "head_neg"),
    "target_negatives": ("target_node_neg", "tail_neg"),
}
# Attributes with another name in splits than in the graph; without "edge_".
_WORDS = {"relation": "reltype"}

# A split of edges: the arguments of `GraphWriter.set_edge_split`, and its file as "where".
LinkSplit = dict[str, Any]


def split_file(directory: Path) -> Path | None:
    """Return the file with all splits in a directory, if there is one."""
    return next((directory / name for name in _NAMES if (directory / name).exists()), None)


def _open_split_file(path: Path, memory: Ledger) -> Arrays:
    """Open the arrays of a file of splits: written by `torch.save`, or as `.npz`."""
    return open_npz(path) if path.suffix == ".npz" else open_pickled(path, "the splits", memory)


# ---- nodes


def add_splits(nodes: Mapping[str, NodeInput], directory: Path, memory_bytes: int | None) -> None:
    """Give nodes the splits in a directory, by type if there are several."""
    only = NODE_TYPE if list(nodes) == [NODE_TYPE] else None
    places = {} if only is None else {only: directory}
    table = None if only else part_file(directory, "nodetype-has-split")
    for name in [] if table is None else true_types(table):
        places[name] = existing_directory(directory / name, "a split")
    for name, place in places.items():
        files = {split: path for split in SPLITS if (path := part_file(place, split))}
        for split, file in files.items():
            of_type(nodes, name, place).splits[split] = MemoryArray(str(file), read_ids(file))
        if table is not None and not files:
            raise _none_there(place)
    if table is not None or any(own.splits for own in nodes.values()):
        return
    path = split_file(directory)
    if path is not None:
        add_split_file(nodes, path, memory_ledger("reading the splits", memory_bytes), only)
    elif only is None and any((directory / f"{name}.pt").exists() for name in SPLITS):
        _LOG.warning("%s: splits of edges of several types are left out", directory)
    else:
        raise _none_there(directory)


def add_split_file(
    nodes: Mapping[str, NodeInput], path: Path, memory: Ledger, only: str | None
) -> None:
    """Give nodes the splits in a file: for one type, or dicts by type."""
    for split, found in _open_split_file(path, memory).items():
        if isinstance(found, Mapping) and only is not None:
            raise InputError(f"{path}: {split} is a dict; expected the ids of nodes", path=path)
        if not isinstance(found, Mapping) and only is None:
            raise InputError(
                f"{path}: {split} is an array; expected a dict of node types", path=path
            )
        by_type = found if isinstance(found, Mapping) else {str(only): found}
        for name, ids in by_type.items():
            of_type(nodes, name, path).splits[_KEYS.get(split, split)] = ids


def _none_there(directory: Path) -> NotFoundError:
    files = ", ".join([*(f"{name}.csv.gz" for name in SPLITS), _NAMES[0]])
    return NotFoundError(f"{directory}: none of {files} is there", path=directory)


def warn_of_missing(directory: Path, nodes: NodeInput, progress: Progress | None) -> None:
    """Tell if features, labels or one of OGB's splits are not there."""
    for name, what in (("x", "features"), ("y", "labels")):
        if name not in nodes.attributes and progress is not None:
            progress.note(f"{directory}: there are no {what}: the store has no {name}")
    sizes = {name: math.prod(ids.shape) for name, ids in nodes.splits.items()}
    missing = [name for name in SPLITS if name not in sizes]
    if missing:
        found = ", ".join(f"{name} has {size}" for name, size in sizes.items()) or "there is none"
        _LOG.warning(
            "%s: the split %s is not there (%s, of %d nodes); copy split/ of the data set too, or "
            "name the nodes to train on yourself",
            *(directory, ", ".join(missing), found, nodes.count),
        )


# ---- edges


def open_link_splits(
    directory: Path, memory_bytes: int | None = None
) -> tuple[dict[str, LinkSplit], int]:
    """Open the edges to predict, if a directory has them; return them, and what they take."""
    memory, taken = memory_ledger("reading the splits", memory_bytes), 0
    files = {}
    for name in SPLITS:
        paths = [directory / f"{name}{ending}" for ending in (".pt", ".npz")]
        if found := next(filter(Path.exists, paths), None):
            files[name] = found
    splits: dict[str, LinkSplit] = {}
    if not files and (whole := split_file(directory)):
        dicts: Mapping[str, Any] = _open_split_file(whole, memory)
        if all(isinstance(value, Mapping) for value in dicts.values()):
            splits = {name: _link_split(whole, name, own) for name, own in dicts.items()}
            taken = _bytes_in_memory(whole)
    elif missing := [name for name in SPLITS if files and name not in files]:
        raise NotFoundError(
            f"{directory}: {missing[0]}.pt is not there, only "
            f"{', '.join(path.name for path in files.values())}; copy split/ of the data set whole",
            path=directory,
        )
    for name, path in files.items():
        splits[name] = _link_split(path, name, _open_split_file(path, memory))
        memory = memory.add(Reservation(path.name, _bytes_in_memory(path)))
        taken += _bytes_in_memory(path)
    return splits, taken


def _bytes_in_memory(path: Path) -> int:
    return path.stat().st_size if path.suffix == ".pt" else 0


def set_link_splits(
    writer: GraphWriter, splits: Mapping[str, LinkSplit], edges: EdgeInput, *, is_as_given: bool
) -> None:
    """Write the edges to predict; without those to train on, if all edges `is_as_given` are."""
    for name, split in splits.items():
        attributes = {}
        for key, values in split["attributes"].items():
            of_graph = f"edge_{_WORDS.get(key, key)}"
            own = edges.attributes.get(of_graph)
            if own is None:
                attributes[key] = values
            elif own.shape[1:] == (1,) and not values.shape[1:]:  # [L], as [E, 1] of the graph
                attributes[of_graph] = MappedRows(
                    values, lambda rows, _: rows.reshape(-1, 1), row_shape=(1,)
                )
            else:
                attributes[of_graph] = values
        own_split = {**split, "attributes": attributes}
        if name != "train" or not is_as_given or not _is_graph(own_split, edges):
            writer.set_edge_split(name, **own_split)


def _link_split(path: Path, name: str, arrays: Mapping[str, Any]) -> LinkSplit:
    rest = dict(arrays)
    for key, value in arrays.items():
        if isinstance(value, Mapping) or not value.shape:
            raise InputError(
                f"{path}: {key} of {name} is not an array with a row for each edge", path=path
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


def _is_graph(split: LinkSplit, edges: EdgeInput) -> bool:
    """Whether a split has the edges of the graph, in any order, with the same attributes."""
    ends, theirs = (split["source"], split["target"]), split["attributes"]
    if any(split[key] for key in (*_NEGATIVES, "negative_edges")) or any(
        end.shape != (edges.num_edges,) for end in ends
    ):
        return False
    own = {name: edges.attributes[name] for name in theirs if name in edges.attributes}
    if any(name not in own or values.shape != own[name].shape for name, values in theirs.items()):
        return False
    # Numbers of a split are rounded like the graph's, but never to integers.
    dtypes = [to.dtype if to.dtype.kind == "f" else np.dtype(np.float64) for to in own.values()]
    pairs = zip(*(end.rows(2**16) for end in ends), strict=True)
    of_split = _sum_of_hashes(pairs, [theirs[name] for name in own], dtypes)
    return of_split == _sum_of_hashes(edges.pairs(), own.values(), dtypes)


def _sum_of_hashes(
    pairs: Iterable[tuple[Any, ...]],
    attributes: Iterable[ArraySource],
    dtypes: Sequence[np.dtype[Any]],
) -> int:
    """Return a sum that is equal for equal edges with equal attributes, in any order."""
    takers = [RowTaker(source) for source in attributes]
    total = 0
    for sources, targets in pairs:
        words = hash_pairs(0, sources, targets)
        for taker, dtype in zip(takers, dtypes, strict=True):
            rows = taker.take(len(words)).astype(dtype).reshape(len(words), -1)
            rows = rows.astype(np.float64) + 0.0  # equal numbers have equal bits, but for zeros
            for column in rows.view(np.uint64).T:
                words = hash_pairs(0, words, column)
        total += int(words.sum())
    return total % 2**64
