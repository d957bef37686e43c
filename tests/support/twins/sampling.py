"""Reference of the sampling kernels, with types, times and weights: plain Python, and slow.

Every draw comes from `numpy.random.Philox`, so that the kernel's generator is held against
an independent one. The kernels' tests compare element by element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class DrawKey:
    """Key of all draws of a batch: three words in [0, 2^64)."""

    seed: int
    epoch: int
    batch: int


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


Ends = tuple[str, str, str]


@dataclass
class TypedColumns:
    """One edge type: in-neighbours by column, and what restricts or weighs them."""

    indptr: Any  # [N + 1]
    indices: Any  # [E]
    excluded: frozenset[int] = frozenset()  # positions
    times: Any = None  # of the edges [E]
    edge_ids: Any = None  # [E]: of edges of one time the lower is first
    weights: Any = None  # integers [E]


class KeyWords(NamedTuple):
    """The key of the draws of a node in a hop."""

    key: DrawKey
    word: int  # the hop and the edge type
    node: int
    tree: int


@dataclass
class TypedBatch:
    """A batch as lists by type."""

    nodes: dict[str, list[int]]
    trees: dict[str, list[int]]
    hop_nodes: dict[str, list[int]]
    sources: dict[Ends, list[int]] = field(default_factory=dict)
    targets: dict[Ends, list[int]] = field(default_factory=dict)
    positions: dict[Ends, list[int]] = field(default_factory=dict)
    hop_edges: dict[Ends, list[int]] = field(default_factory=dict)


def sample_types(
    node_types: Sequence[str],
    edges: Mapping[Ends, TypedColumns],
    seeds: Mapping[str, Any],
    fanouts: Mapping[Ends, Sequence[int]],
    key: DrawKey,
    *,
    replace: bool = False,
    disjoint: bool = False,
    induced: bool = False,
    places: Mapping[str, Sequence[int]] | None = None,
    times: Mapping[str, Sequence[int]] | None = None,
    latest: bool = False,
    window: int | None = None,
) -> TypedBatch:
    """Sample the in-neighbourhood of seeds of several types, hop by hop.

    Edge types are numbered, and searched, in the order of `edges`; trees in the order of `seeds`
    unless places are given.
    """
    nodes: dict[str, list[int]] = {name: [] for name in node_types}
    trees: dict[str, list[int]] = {name: [] for name in node_types}
    first = 0
    seed_times: dict[int, int] = {}
    for name, ids in seeds.items():
        nodes[name] += [int(node) for node in ids]
        own = range(first, first + len(ids)) if places is None else places[name]
        trees[name] += own if disjoint else [0] * len(ids)
        first += len(ids)
        if times is not None:
            seed_times |= dict(zip(trees[name], map(int, times[name]), strict=True))
    local: dict[str, dict[tuple[int, int], int]] = {name: {} for name in node_types}
    for name in node_types:
        for place, found in enumerate(zip(trees[name], nodes[name], strict=True)):
            local[name].setdefault(found, place)
    batch = TypedBatch(nodes, trees, {name: [len(nodes[name])] for name in node_types})
    for edge_type in edges:
        batch.sources[edge_type], batch.targets[edge_type] = [], []
        batch.positions[edge_type], batch.hop_edges[edge_type] = [], []
    begins = dict.fromkeys(node_types, 0)
    for hop in range(len(next(iter(fanouts.values()), ()))):
        ends = {name: len(nodes[name]) for name in node_types}
        for number, (edge_type, columns) in enumerate(edges.items()):
            source, _, target = edge_type
            positions = batch.positions[edge_type]
            before = len(positions)
            for of in range(begins[target], ends[target]):
                tree = trees[target][of]
                choice = Choice(
                    fanouts[edge_type][hop], replace, latest, seed_times.get(tree), window
                )
                words = KeyWords(key, hop | number << 8, nodes[target][of], tree)
                for position in _chosen(columns, nodes[target][of], choice, words):
                    neighbor = int(columns.indices[position])
                    found_at = local[source].setdefault((tree, neighbor), len(nodes[source]))
                    if found_at == len(nodes[source]):
                        nodes[source].append(neighbor)
                        trees[source].append(tree)
                    batch.sources[edge_type].append(found_at)
                    batch.targets[edge_type].append(of)
                    positions.append(position)
            batch.hop_edges[edge_type].append(len(positions) - before)
        for name in node_types:
            batch.hop_nodes[name].append(len(nodes[name]) - ends[name])
        begins = ends
    if induced:
        _connect(batch, edges, local)
    return batch


@dataclass(frozen=True)
class Choice:
    """What to choose of a list."""

    k: int
    replace: bool
    latest: bool = False
    time: int | None = None  # of the seed
    window: int | None = None


def _chosen(columns: TypedColumns, node: int, choice: Choice, key: KeyWords) -> list[int]:
    """Return the positions that a fan-out of k takes of a node's list."""
    begin, end = int(columns.indptr[node]), int(columns.indptr[node + 1])
    eligible = [at for at in range(begin, end) if at not in columns.excluded]
    k, replace = choice.k, choice.replace
    if columns.weights is not None and k > 0:
        weights = [int(columns.weights[at]) for at in eligible]
        return [eligible[place] for place in choose_weighted(weights, k, replace, key)]
    if columns.times is not None:
        assert choice.time is not None
        since = None if choice.window is None else max(choice.time - choice.window, -(2**63))
        eligible = [
            at
            for at in eligible
            if columns.times[at] <= choice.time and (since is None or columns.times[at] > since)
        ]
        ids = range(end) if columns.edge_ids is None else columns.edge_ids
        eligible.sort(key=lambda at: (int(columns.times[at]), int(ids[at])))
        if choice.latest and k >= 0:
            eligible = eligible[max(0, len(eligible) - k) :]
    places = choose_positions(
        len(eligible), k, replace, key.key, hop=key.word, node=key.node, tree=key.tree
    )
    return [eligible[place] for place in places]


def choose_weighted(weights: Sequence[int], k: int, replace: bool, key: KeyWords) -> list[int]:
    """Draw k of some edges in proportion to integer weights, one after the other."""
    if not replace and k >= len(weights):
        return [place for place, weight in enumerate(weights) if weight]
    words = draws(key.key, hop=key.word, node=key.node, tree=key.tree)
    left, chosen = list(weights), []
    for _ in range(k):
        if not (total := sum(left)):
            break
        drawn = next(words) * total >> 64
        place = next(at for at, end in enumerate(accumulate(left)) if end > drawn)
        chosen.append(place)
        if not replace:
            left[place] = 0
    return chosen


def _connect(
    batch: TypedBatch,
    edges: Mapping[Ends, TypedColumns],
    local: Mapping[str, Mapping[tuple[int, int], int]],
) -> None:
    """Replace the edges by all between the nodes."""
    for edge_type, columns in edges.items():
        sources, targets, positions = [], [], []
        for of, node in enumerate(batch.nodes[edge_type[2]]):
            for position in range(int(columns.indptr[node]), int(columns.indptr[node + 1])):
                found = local[edge_type[0]].get((0, int(columns.indices[position])))
                if found is not None and position not in columns.excluded:
                    sources.append(found)
                    targets.append(of)
                    positions.append(position)
        batch.sources[edge_type], batch.targets[edge_type] = sources, targets
        batch.positions[edge_type] = positions


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
    num_sources: int,
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
