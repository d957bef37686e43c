"""Splits into training, validation and test nodes: their names and forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.converters.edges.node_ids import check_ids
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.memory import memory_ledger
from gnnstore.errors import InputError

# Every name that public data sets use -> the name in a store.
_SUFFIXES = ("", "_mask", "_idx")
_NAMES = {"train": "train", "valid": "valid", "val": "valid", "test": "test"}
SPLIT_KEYS = {name + suffix: split for name, split in _NAMES.items() for suffix in _SUFFIXES}


# The array, its ids as int64, and these sorted to find repeated ids.
_BYTES_PER_ENTRY = 3 * 8


def split_name(name: str) -> str:
    """Return a split's name in a store: "val" is called "valid" there."""
    return _NAMES.get(name, name)


def read_split(
    source: ArraySource, num_nodes: int | None, memory_bytes: int | None
) -> npt.NDArray[Any]:
    """Return the array of a split; refuse one that is longer than N or than memory allows."""
    num_entries = math.prod(source.shape)
    if num_nodes is not None and num_entries > num_nodes:
        raise InputError(
            f"{source.label}: has {num_entries} entries, but the graph has {num_nodes} nodes"
        )
    if memory_bytes is not None:
        entries = Reservation(f"a split of {num_entries} entries", _BYTES_PER_ENTRY * num_entries)
        memory_ledger(f"{source.label}: reading it", memory_bytes).add(entries).check()
    return source.read()


def split_ids(values: npt.NDArray[Any], num_nodes: int, where: str) -> npt.NDArray[np.int64]:
    """Return the node ids of a split."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(
            f"{where}: has shape {list(values.shape)}; a split is a list of node ids, or a mask "
            f"over the {num_nodes} nodes"
        )
    if values.dtype == np.bool_:
        if len(values) != num_nodes:
            raise InputError(
                f"{where}: the mask has {len(values)} entries, but the graph has {num_nodes} nodes"
            )
        return np.flatnonzero(values)
    check_ids(values, num_nodes, f"{where}: node id")
    ids = values.astype(np.int64)
    ordered = np.sort(ids)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise InputError(
            f"{where}: {len(repeated)} node ids are repeated, the first is {int(repeated[0])}; "
            "a split names each node once"
            + ("; a mask must be of the type bool" if len(ids) == num_nodes else "")
        )
    return ids


def split_ranges(
    num_nodes: int, fractions: tuple[float, float]
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the node ids of train, valid and test."""
    train, valid = (int(num_nodes * fraction) for fraction in fractions)
    bounds = {"train": (0, train), "valid": (train, train + valid)}
    bounds["test"] = (train + valid, num_nodes)
    return {name: np.arange(*bound, dtype=np.int64) for name, bound in bounds.items()}
