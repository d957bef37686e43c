"""OGB's splits of nodes: a CSV file each, `split_dict.pt`, or the same arrays as `.npz`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

from gnnstore.budget.ledger import Ledger
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.datasets.ogb.text import of_type, part_file, read_ids, types_with_split
from gnnstore.converters.inputs.files import open_npz
from gnnstore.converters.inputs.opening import existing_directory
from gnnstore.converters.inputs.pickled import Arrays, open_pickled
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.converters.typed.inputs import NodeInput
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError, NotFoundError
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

SPLITS = ("train", "valid", "test")
_NAMES = ("split_dict.pt", "split_dict.npz")
# The test papers of MAG240M: all papers, and the two parts that contests use.
PARTS = {"test-whole": "test", "test-dev": "test_dev", "test-challenge": "test_challenge"}


def split_file(directory: Path) -> Path | None:
    """Return the file with all splits in a directory, if there is one."""
    return next((directory / name for name in _NAMES if (directory / name).exists()), None)


def open_split_file(path: Path, memory: Ledger) -> Arrays:
    """Open the arrays of a file of splits: written by `torch.save`, or as `.npz`."""
    return open_npz(path) if path.suffix == ".npz" else open_pickled(path, "the splits", memory)


def open_splits(path: Path, memory: Ledger) -> dict[str, ArraySource]:
    """Open the splits of the nodes in a file, by their names in a store."""
    found = {}
    for name, ids in open_split_file(path, memory).items():
        if isinstance(ids, Mapping):
            raise InputError(f"{path}: {name} is a dict; expected the ids of nodes", path=path)
        found[SPLIT_KEYS.get(name, PARTS.get(name, name))] = ids
    return found


def add_splits(nodes: Mapping[str, NodeInput], directory: Path, options: ConvertOptions) -> None:
    """Give nodes the splits in a directory, by type if there are several."""
    by_type = list(nodes) != [NODE_TYPE]
    table = part_file(directory, "nodetype-has-split") if by_type else None
    if table is not None:
        for name in types_with_split(table):
            place = existing_directory(directory / name, "a split")
            if not _add_files(of_type(nodes, name, table), place):
                raise _none_there(place)
        return
    if not by_type and _add_files(nodes[NODE_TYPE], directory):
        return
    path = split_file(directory)
    if path is None and by_type and any((directory / f"{name}.pt").exists() for name in SPLITS):
        _LOG.warning("%s: splits of edges of several types are left out", directory)
        return
    if path is None:
        raise _none_there(directory)
    memory = memory_ledger("reading the splits", options.memory_bytes)
    if not by_type:
        nodes[NODE_TYPE].splits.update(open_splits(path, memory))
        return
    for split, found in open_split_file(path, memory).items():
        if not isinstance(found, Mapping):
            raise InputError(
                f"{path}: {split} is an array; expected a dict of node types", path=path
            )
        for name, ids in found.items():
            of_type(nodes, name, path).splits[SPLIT_KEYS.get(split, split)] = ids


def _add_files(node: NodeInput, directory: Path) -> bool:
    files = {name: part_file(directory, name) for name in SPLITS}
    for name, path in files.items():
        if path is not None:
            node.splits[name] = MemoryArray(str(path), read_ids(path))
    return any(files.values())


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
