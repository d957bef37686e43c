"""Reference of sampling from graphs of several types, with times or weights: plain and slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from gnnstore.testing.twins.sampling import DrawKey, choose_positions, draws

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
        assert choice.time is not None  # noqa: S101 - seeds have times if edges do
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
