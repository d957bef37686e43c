"""The arrays that GraphBolt's metadata name: features by name, seeds of tasks and their labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.converters.datasets.graphbolt.metadata import DataFile
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.memory import memory_ledger
from gnnstore.converters.writer.casting import Caster
from gnnstore.converters.writer.splits import split_ids
from gnnstore.errors import InputError

_SEEDS = ("seeds", "seed_nodes", "")  # GraphBolt's name, its earlier one, and none


def node_name(name: str) -> str:
    """Return a store's name of a node feature."""
    return "x" if name == "feat" else name


def by_name(files: Iterable[DataFile], rename: Callable[[str], str]) -> dict[str, ArraySource]:
    """Open features, by their names in a store."""
    arrays: dict[str, ArraySource] = {}
    for file in files:
        name = rename(file.name)
        if name in arrays:
            raise InputError(
                f"{file.place}: {file.name!r} becomes {name!r}, which is there already"
            )
        arrays[name] = open_file(file)
    return arrays


def edge_name(name: str) -> str:
    """Return a store's name of an edge feature."""
    if name == "feat":
        return "edge_attr"
    return name if name.startswith("edge_") else f"edge_{name}"


def open_file(file: DataFile) -> ArraySource:
    """Open an array; only `.npy` files are read."""
    if file.format != "numpy":
        hint = "a pickle, which is never loaded; " if file.format == "torch" else ""
        raise InputError(
            f"{file.place}: has the format {file.format!r}, {hint}save {file.path} with "
            "numpy.save and the format numpy",
            path=file.path,
        )
    return open_npy(file.path)


class Labels:
    """Labels of the seeds of all sets, by node."""

    def __init__(self, num_nodes: int, memory_bytes: int | None) -> None:
        self.values: npt.NDArray[Any] | None = None
        self.num_nodes = num_nodes
        self._has_label = np.zeros(0, np.bool_)
        self._memory = memory_ledger("reading the labels", memory_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the labels, and of a mark for each node."""
        return 0 if self.values is None else self.values.nbytes + self._has_label.nbytes

    def set(self, nodes: npt.NDArray[Any], labels: npt.NDArray[Any], where: str) -> None:
        """Take the labels of the seeds of a set."""
        if labels.shape[:1] != nodes.shape or labels.dtype.kind not in "biuf":
            raise InputError(
                f"{where}: has labels of shape {list(labels.shape)} {labels.dtype} for "
                f"{len(nodes)} seeds"
            )
        is_float = labels.dtype.kind == "f"
        dtype = np.float32 if is_float else np.int64
        shape = (self.num_nodes, *labels.shape[1:])
        if self.values is None:
            row_bytes = 1 + np.dtype(dtype).itemsize * math.prod(labels.shape[1:])
            whole = Reservation(f"labels of {self.num_nodes} nodes", row_bytes * self.num_nodes)
            self._memory.add(whole).check(None, "check the number of nodes")
            self._has_label = np.zeros(self.num_nodes, np.bool_)
            self.values = np.full(shape, np.nan if is_float else -1, dtype)
        if self.values.shape != shape or self.values.dtype != dtype:
            raise InputError(
                f"{where}: has labels of shape {list(labels.shape[1:])} {labels.dtype}, unlike "
                "those of the sets before"
            )
        given = Caster("y", labels.dtype.name, np.dtype(dtype).name)(labels)
        known = np.flatnonzero(self._has_label[nodes])
        before, now = self.values[nodes[known]], given[known]
        same = (before == now) | ((before != before) & (now != now))  # noqa: PLR0124 - NaN
        other = known[~same.all(axis=tuple(range(1, same.ndim)))]
        if len(other):
            raise InputError(
                f"{where}: node {int(nodes[other[0]])} has another label here than in a set before"
            )
        self.values[nodes], self._has_label[nodes] = given, True


def read_set(
    split: str,
    files: tuple[DataFile, ...],
    labels: Labels,
    set_split: Callable[[npt.NDArray[Any], str], None],
) -> None:
    """Read the seeds of a set, hand them over with the name of their file, and keep the labels."""
    seeds = next((file for name in _SEEDS for file in files if file.name == name), None)
    if seeds is None:
        found = ", ".join(repr(file.name) for file in files)
        raise InputError(
            f"{files[0].place}: the {split} set has no 'seeds', which name its nodes: {found}"
        )
    nodes = open_file(seeds).read()
    if nodes.ndim == 2 and nodes.shape[1] == 1:
        nodes = nodes[:, 0]
    if nodes.dtype == np.bool_:
        raise InputError(
            f"{seeds.path}: seeds are node ids, found a mask of {len(nodes)} truth values; store "
            "numpy.flatnonzero(mask)",
            path=seeds.path,
        )
    if nodes.ndim != 1:
        raise InputError(
            f"{seeds.path}: has shape {list(nodes.shape)}: these are seeds of a link task; only "
            "nodes can be a split",
            path=seeds.path,
        )
    nodes = split_ids(nodes, labels.num_nodes, str(seeds.path))
    set_split(nodes, str(seeds.path))
    named = next((file for file in files if file.name == "labels"), None)
    if named is None and seeds.name == "" and len(files) > 1:
        named = files[1]  # without names, labels follow the seeds
    if named is not None:
        labels.set(nodes, open_file(named).read(), str(named.path))
