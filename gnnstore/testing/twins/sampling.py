"""Reference of the sampling kernels, in plain Python and slow.

Every draw comes from `numpy.random.Philox`, so that the kernel's generator is held against
an independent one. The kernels' tests compare element by element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DrawKey:
    """Key of all draws of a batch: three words in [0, 2^64)."""

    seed: int
    epoch: int
    batch: int


@dataclass
class ReferenceBatch:
    """A batch as lists; the attributes of `gnnstore.sampling.Sample`."""

    n_id: list[int]
    batch: list[int]
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    edge_pos: list[int] = field(default_factory=list)
    num_sampled_nodes: list[int] = field(default_factory=list)
    num_sampled_edges: list[int] = field(default_factory=list)

    def add_edge(self, source: int, target: int, position: int) -> None:
        """Append an edge between two local ids."""
        self.sources.append(source)
        self.targets.append(target)
        self.edge_pos.append(position)


def draws(key: DrawKey, *, hop: int, node: int, tree: int = 0) -> Iterator[int]:
    """Yield the 64-bit draws of a node in a hop, without end."""
    generator = np.random.Philox(
        key=np.array([key.seed, key.epoch], dtype=np.uint64),
        counter=np.array([0, node, hop | tree << 32, key.batch], dtype=np.uint64),
    )
    while True:
        yield int(generator.random_raw())


def choose_positions(
    degree: int, k: int, replace: bool, key: DrawKey, *, hop: int, node: int, tree: int = 0
) -> list[int]:
    """Return the positions in a list of `degree` in-neighbours that a fan-out of k takes.

    All, in order, if k is -1 or not below the degree; else k draws, distinct by Floyd's
    method (CACM 30(9), 1987) unless `replace`.
    """
    if degree == 0 or k < 0 or (not replace and k >= degree):
        return list(range(degree))
    words = draws(key, hop=hop, node=node, tree=tree)
    if replace:
        return [next(words) * degree >> 64 for _ in range(k)]
    chosen: list[int] = []
    for last in range(degree - k, degree):
        position = next(words) * (last + 1) >> 64  # uniform in [0, last]
        chosen.append(last if position in chosen else position)
    return chosen


def sample_neighbors(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    seeds: Sequence[int],
    fanouts: Sequence[int],
    *,
    seed: int,
    epoch: int,
    batch: int,
    replace: bool = False,
    disjoint: bool = False,
    induced: bool = False,
) -> ReferenceBatch:
    """Sample the in-neighbourhood of some seeds, hop by hop.

    The in-neighbours of node v are `indices[indptr[v]:indptr[v + 1]]`.
    """
    key = DrawKey(seed, epoch, batch)
    result = ReferenceBatch(n_id=[int(s) for s in seeds], batch=list(range(len(seeds))))
    result.num_sampled_nodes.append(len(seeds))

    def tree_of(local_id: int) -> int:
        return result.batch[local_id] if disjoint else 0

    local_ids: dict[tuple[int, int], int] = {}
    for local_id, node in enumerate(result.n_id):
        local_ids.setdefault((tree_of(local_id), node), local_id)

    begin = 0
    for hop, fanout in enumerate(fanouts):
        end, num_edges_before = len(result.n_id), len(result.edge_pos)
        for target in range(begin, end):
            node, tree = result.n_id[target], tree_of(target)
            start, stop = int(indptr[node]), int(indptr[node + 1])
            for offset in choose_positions(
                stop - start, fanout, replace, key, hop=hop, node=node, tree=tree
            ):
                neighbor = int(indices[start + offset])
                source = local_ids.setdefault((tree, neighbor), len(result.n_id))
                if source == len(result.n_id):
                    result.n_id.append(neighbor)
                    result.batch.append(tree)
                result.add_edge(source, target, start + offset)
        result.num_sampled_nodes.append(len(result.n_id) - end)
        result.num_sampled_edges.append(len(result.edge_pos) - num_edges_before)
        begin = end

    if induced:
        result.sources, result.targets, result.edge_pos = [], [], []
        for target, node in enumerate(result.n_id):
            for position in range(int(indptr[node]), int(indptr[node + 1])):
                found = local_ids.get((0, int(indices[position])))
                if found is not None:
                    result.add_edge(found, target, position)
    return result


def add_reverse_edges(
    edge_index: npt.NDArray[Any], edge_pos: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the edges and their reverses, each pair once, by target, then source.

    Of equal edges the first stays, and the reverses stand behind all given edges: an edge
    keeps its own position if it has one.
    """
    both = np.concatenate([edge_index, edge_index[::-1]], axis=1)
    _, kept = np.unique(both[::-1], axis=1, return_index=True)
    return both[:, kept], np.concatenate([edge_pos, edge_pos])[kept]


def edges_by_node(
    edge_index: npt.NDArray[Any],
    num_targets: int,
    num_sources: int,  # noqa: ARG001 - the kernel's signature
    layers: Sequence[tuple[int, int]],
    values: npt.NDArray[np.float32] | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], list[tuple[Any, ...]]]:
    """Return pointers and sources by target, and pointers, targets, values by source of layers."""
    sources, targets = edge_index
    transposes = []
    for num_edges, layer_sources in layers:
        order = np.argsort(sources[:num_edges], kind="stable")
        ptr = np.searchsorted(sources[order], np.arange(layer_sources + 1)).astype(np.int32)
        weights = None if values is None else values[order]
        transposes.append((ptr, targets[order].astype(np.int32), weights))
    crow = np.searchsorted(targets, np.arange(num_targets + 1)).astype(np.int32)
    return crow, sources.astype(np.int32), transposes
