"""The seed edges that batches start from: resolved and checked before any work, with negatives.

The edges need not be edges of the graph. All edges of the graph are known by their positions in the
store, and are never copied.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from gnnstore import _core
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.packed import ALL_EDGES
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec, Schema
from gnnstore.formats.store.store import Csc
from gnnstore.graph.arrays import EdgeSplits, as_tensor
from gnnstore.graph.store import GraphStore
from gnnstore.graph.table_registry import shared_tables
from gnnstore.graph.topology import Topology
from gnnstore.sampling.sampled_graph import EdgeFinder, Fetch, reverse_of
from gnnstore.seeds.base import BatchKey, Int64Array, Seeds
from gnnstore.seeds.labels import LinkLabels, TypedLinkLabels, bytes_of
from gnnstore.seeds.negatives import Negatives
from gnnstore.seeds.nodes import check_range, checked_positions, to_numpy
from gnnstore.units import format_count


class GivenEdges(NamedTuple):
    """The seed edges of a loader, of one edge type."""

    edge: EdgeTypeSpec
    ends: npt.NDArray[Any] | None  # int32 or int64 [2, L]; None: all of the graph
    split: str | None = None  # the edge split that they are


def resolve_edges(store: GraphStore, edge_label_index: Any) -> GivenEdges:
    """Convert what names edges to sources and targets."""
    edge, given = _typed(store, edge_label_index)
    splits = EdgeSplits(store.reader, edge)
    counts = [store.schema.node_of(name).num_nodes for name in (edge.source, edge.target)]
    dtype = id_dtype(max(counts) - 1)
    if isinstance(given, str):
        if splits.has_message_train and given in ("train", "training"):
            return GivenEdges(edge, None)
        return GivenEdges(edge, splits[given].ends(dtype), given)
    if given is None:
        return GivenEdges(edge, None)
    if isinstance(given, Mapping):
        raise UsageError(
            f"edge_label_index has entries for {', '.join(map(repr, given))}; expected edges of "
            "one type, [2, L], or a pair of the type and its edges"
        )
    if isinstance(given, (tuple, list)):  # of two tensors, which NumPy would walk
        given = [to_numpy(ends) for ends in given]
    values = to_numpy(given)
    if values.ndim != 2 or values.shape[0] != 2:
        raise InputError(
            f"edge_label_index has the shape {list(values.shape)}; expected sources and targets, "
            "[2, L]"
        )
    if values.size and values.dtype.kind not in "iu":
        raise InputError(f"edge_label_index has values of {values.dtype}; expected node ids")
    for own, count, what, of in zip(
        values, counts, ("source", "target"), (edge.source, edge.target), strict=True
    ):
        where = "the graph" if store.schema.is_homogeneous else repr(of)
        check_range(own, count, f"edge_label_index: {what}", where, "nodes")
    return GivenEdges(edge, values.astype(dtype, order="C"))


def check_ids_are_dense(store: GraphStore, edge: EdgeTypeSpec) -> None:
    """Raise unless a label for each edge of the graph can be found by the edge's id."""
    if edge.edge_id is None:
        return
    pieces = store.reader.paged(edge.edge_id).pieces()
    largest = max((int(piece.max(initial=0)) for _, piece in pieces), default=0)
    if largest >= edge.num_edges:
        raise InputError(
            f"edge_label and input_id are by edge id, but ids of {store.path} run to {largest} "
            f"and it has {format_count(edge.num_edges, 'edge')}: others were left out of it, such "
            "as edges of "
            "edge splits. Give the edges by their ends [2, L], and labels in their order"
        )


def _typed(store: GraphStore, edge_label_index: Any) -> tuple[EdgeTypeSpec, Any]:
    """Return the edge type that edges are given with, and the edges without it."""
    schema, given = store.schema, edge_label_index
    if _is_edge_type(given):
        return edge_of(schema, given), None
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2
    if is_pair and _is_edge_type(given[0]):
        has_ends = given[1] is not None and not isinstance(given[1], str)
        own = _without_edges(schema, given[0]) if has_ends else None
        return own or edge_of(schema, given[0]), given[1]
    if not schema.is_homogeneous:
        example = next((edge.type for edge in schema.edge_types), "TYPE")
        raise UsageError(
            "edge_label_index does not name an edge type, and the store's types have names; give "
            f"for example edge_label_index=({example}, None). {_edge_types(schema)}"
        )
    if is_pair and given[0] is None:  # PyG's name of a homogeneous graph's edges
        given = given[1]
    return schema.edge, given


def edge_of(schema: Schema, given: Any, option: str = "edge_label_index") -> EdgeTypeSpec:
    """Return an edge type, also by its source and target if no other has them, as in PyG."""
    if not _is_edge_type(given):
        raise UsageError(f"{option}: {given!r} is not an edge type. {_edge_types(schema)}")
    if len(given) == 3:
        return schema.edge_of(tuple(given))
    found = [edge for edge in schema.edge_types if (edge.source, edge.target) == tuple(given)]
    if len(found) != 1:
        raise UsageError(
            f"{option}: {len(found)} edge types lead from {given[0]!r} to {given[1]!r}; "
            f"name one by source, relation and target. {_edge_types(schema)}"
        )
    return found[0]


def _without_edges(schema: Schema, given: Any) -> EdgeTypeSpec | None:
    """Return an edge type between the store's nodes of which it has no edges; None: it has."""
    source, *relations, target = given
    nodes = {node.name for node in schema.node_types}
    is_known = any(
        (edge.source, edge.target) == (source, target) and relations in ([], [edge.relation])
        for edge in schema.edge_types
    )
    if schema.is_homogeneous or is_known or not {source, target} <= nodes:
        return None
    none = AttributeSpec("none", "none", "cold", "int64", (0,))
    (relation,) = relations or ("to",)  # as in PyG
    return EdgeTypeSpec(source, relation, target, num_edges=0, indptr=none, indices=none)


def _edge_types(schema: Schema) -> str:
    return f"There are the edge types {', '.join(str(edge.type) for edge in schema.edge_types)}"


def _is_edge_type(value: Any) -> bool:
    is_tuple = isinstance(value, (tuple, list)) and len(value) in {2, 3}
    return is_tuple and all(isinstance(each, str) for each in value)


def resolve_labels(edge_label: Any, num_edges: int) -> torch.Tensor | None:
    """Check the labels of edges; returns a copy [L, ...]."""
    if edge_label is None:
        return None
    if isinstance(edge_label, np.ma.MaskedArray):
        edge_label = to_numpy(edge_label)
    try:
        labels = torch.as_tensor(edge_label, device="cpu").detach().to_dense().clone()
        if labels.dim() == 0 or len(labels) != num_edges:
            raise ValueError(f"it has the shape {list(labels.shape)}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"edge_label is a {type(edge_label).__name__} ({error}); expected numbers, one for "
            f"each of {format_count(num_edges, 'edge')}"
        ) from None
    return labels


class LinkGraph(NamedTuple):
    """The graph that edges, their negatives and their neighbourhoods lie in."""

    finder: Any  # of its edges; None where none is looked up
    counts: tuple[int, int]  # nodes that negatives are drawn from: as sources, and as targets
    # int32 or int64 [E] or None: in the store, of each of its edges; None: it is the store's graph.
    positions: npt.NDArray[Any] | None = None
    edge_ids: Fetch | None = None  # of the store's edges, by position; None: positions are ids
    finder_of: Callable[[EdgeType], EdgeFinder] | None = None  # of edges of other types
    # By the name of an attribute that labels show: its rows, by the position of the store's edge.
    attributes: Mapping[str, Fetch] = MappingProxyType({})


@dataclass(eq=False)
class Links:
    """The seed edges of a loader, by position."""

    store: GraphStore
    given: GivenEdges
    ids: Int64Array | None = None
    edge_label: torch.Tensor | None = None
    # Times of the edges: by position, or by id if these are all edges of the graph.
    times: Int64Array | None = None
    negatives: Negatives | None = None
    disjoint: bool = False
    attributes: Sequence[str] = ()
    exclude_edges: str | None = None
    # The edge types in which seed edges are excluded, and whether as their reverses.
    excluded: Sequence[tuple[EdgeType, bool]] = ()

    def __post_init__(self) -> None:
        edge, self.edges, self.split = self.given
        self.edge_type, schema = edge.type, self.store.schema
        # Kind of the labels of its seeds.
        self.labels = LinkLabels if schema.is_homogeneous else TypedLinkLabels
        self._graph: LinkGraph | None = None  # of the store; see `over`

    def __len__(self) -> int:
        """Return the number of seed edges."""
        return self.given.edge.num_edges if self.edges is None else self.edges.shape[1]

    @property
    def name(self) -> str | None:
        """The edge split, or "all" edges; of a graph whose types have names, after the type."""
        name = "all" if self.edges is None else self.split
        if name is None or self.store.schema.is_homogeneous:
            return name
        return f"{'__'.join(self.edge_type)}:{name}"

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that all of it takes."""
        arrays = (self.edges, self.ids, self.edge_label, self.times)
        held = sum(0 if array is None else array.nbytes for array in arrays)
        return held + (0 if self.negatives is None else self.negatives.num_bytes)

    def fingerprint(self) -> dict[str, Any]:
        """Return checksums of edges, labels and ids, and how negatives are drawn."""
        negatives = self.negatives.fingerprint() if self.negatives else {"neg_sampling": None}
        typed = {} if self.store.schema.is_homogeneous else {"edge type": list(self.edge_type)}
        return {
            **typed,
            **self._checksums,
            "edge_label_attrs": list(self.attributes),
            "exclude_edges": self.exclude_edges,
            **self._reverses,
            **negatives,
        }

    @property
    def _reverses(self) -> dict[str, Any]:
        """The types of excluded reverses, where these are not as PyG finds them."""
        types = self.store.edge_types
        found = [of for of, is_reverse in self.excluded if is_reverse]
        usual = [reverse_of(self.edge_type, types)]
        return {} if found in ([], usual) else {"reverse types": [list(of) for of in found]}

    @cached_property
    def _checksums(self) -> dict[str, str | None]:
        times = {} if self.times is None else {"crc32c of edge_label_time": _crc(self.times)}
        return {
            "crc32c of edge_label_index": _crc(self.edges) or ALL_EDGES,
            "crc32c of edge_label": _crc(self.edge_label),
            "crc32c of input_id": _crc(self.ids),
            **times,
        }

    def over(self, topology: Topology) -> Self:
        """Return the same with a topology of the store, in which edges are found."""
        found, schema, edge = copy.copy(self), self.store.schema, self.given.edge
        source, target = (schema.node_of(name).num_nodes for name in (edge.source, edge.target))
        has_edges = edge.type in self.store.edge_types
        none = np.broadcast_to(np.int64(0), target + 1), np.empty(0, np.int64)
        found._graph = LinkGraph(
            topology.finder(edge.type) if has_edges else EdgeFinder(Csc(*none, source)),
            (source, target),
            edge_ids=edge_ids_of(self.store, edge, topology),
            finder_of=topology.finder,
            attributes={
                name: _fetch_of(self.store, edge.attributes[name], topology)
                for name in (self.attributes if edge.num_edges and self.split is None else ())
            },
        )
        return found

    @property
    def graph(self) -> LinkGraph:
        """The graph of the store, of seeds that have a topology."""
        assert self._graph is not None  # noqa: S101 - see `over`
        return self._graph

    def select(self, index: Any, key: BatchKey) -> Seeds[LinkLabels]:
        """Return the seed edges at some positions [P], and the negatives of the batch."""
        positions = checked_positions(index, len(self), "edge_label_index")
        return self.seeds_in(self.graph, positions, self.ends(positions), key)

    def seeds_in(
        self,
        graph: LinkGraph,
        positions: Int64Array,
        ends: tuple[Int64Array, Int64Array],
        key: BatchKey,
    ) -> Seeds[LinkLabels]:
        """Return seed edges and the negatives of the batch, in the ids of a graph.

        Nodes are their ends: of each type each once and ascending, or for disjoint subgraphs as
        they come.
        """
        places = positions if self.edges is None else None
        ids = positions if self.edges is not None else self.edge_ids(positions, graph)
        values: dict[str, torch.Tensor] = {
            "input_id": torch.from_numpy(ids if self.ids is None else self.ids[ids])
        }
        attributes = self._attributes_of(graph, positions, ends, places)
        times = None if self.times is None else self.times[ids]
        if self.negatives is not None and self.negatives.mode == "triplet":
            found, kept = self._triplets(graph, key, ends, times, values)
        else:
            found, kept = self._pairs(graph, key, ends, times, values, ids=ids)
        without = self._excluded(graph, ends) if self.excluded else None
        edge_type = None if self.labels is LinkLabels else self.edge_type
        labels = self.labels({**values, **attributes}, {"negatives_kept": kept}, edge_type)
        return Seeds(found.nodes, labels, without, found.times, found.places)

    def ends(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the sources and targets of the edges at some positions [P]."""
        if self.edges is not None:
            sources, targets = self.edges[:, positions].astype(np.int64)
            return sources, targets
        found: tuple[Int64Array, Int64Array] = self.graph.finder.ends(positions)
        return found

    def edge_ids(self, positions: Int64Array, graph: LinkGraph | None = None) -> Int64Array:
        """Return the ids of the graph's edges at some positions."""
        read = (graph or self.graph).edge_ids
        return positions if read is None else read(positions).astype(np.int64, copy=False)

    def _excluded(self, graph: LinkGraph, ends: tuple[Int64Array, Int64Array]) -> Any:
        """Return the seed edges, and their reverses if asked for, as samplers leave them out."""
        pairs: dict[EdgeType, list[Any]] = {}
        for of, is_reverse in self.excluded:
            pairs.setdefault(of, []).append(ends[::-1] if is_reverse else ends)
        found = {}
        for of, own in pairs.items():
            finder = graph.finder
            if of != self.edge_type:
                assert graph.finder_of is not None  # noqa: S101 - partitions have one edge type
                finder = graph.finder_of(of)
            found[of] = finder.excluding(*np.concatenate(own, axis=1))
        return found[self.edge_type] if self.labels is LinkLabels else found

    def _negatives_in(self, graph: LinkGraph) -> Negatives | None:
        negatives = self.negatives
        if negatives is None or (negatives.num_sources, negatives.num_targets) == graph.counts:
            return negatives
        return replace(negatives, num_sources=graph.counts[0], num_targets=graph.counts[1])

    def _pairs(
        self,
        graph: LinkGraph,
        key: BatchKey,
        ends: tuple[Int64Array, Int64Array],
        times: Int64Array | None,
        values: dict[str, torch.Tensor],
        *,
        ids: Int64Array,
    ) -> tuple[_Numbered, int]:
        """Write the local indices, labels and times of positives and negatives."""
        sources, targets = ends
        num_positives, negatives, kept = len(sources), self._negatives_in(graph), 0
        if negatives is not None:
            *drawn, kept = negatives.pairs(key, num_positives, graph.finder, times)
            sources = np.concatenate([sources, drawn[0]])
            targets = np.concatenate([targets, drawn[1]])
        num_negatives = len(sources) - num_positives
        found = self._numbered([("src", sources), ("dst", targets)], times)
        values["edge_label_index"] = torch.from_numpy(np.stack(found.local))
        label = None if self.edge_label is None else self.edge_label[ids]
        if self.negatives is not None:
            if label is None:
                label = torch.ones(num_positives, device="cpu")
            label = torch.cat([label, label.new_zeros(num_negatives, *label.shape[1:])])
        if label is not None:
            values["edge_label"] = label
        if times is not None:
            values["edge_label_time"] = torch.from_numpy(np.resize(times, len(sources)))
        return found, kept

    def _triplets(
        self,
        graph: LinkGraph,
        key: BatchKey,
        positives: tuple[Int64Array, Int64Array],
        times: Int64Array | None,
        values: dict[str, torch.Tensor],
    ) -> tuple[_Numbered, int]:
        """Write the local indices of positives and of the negatives of each; see `_pairs`."""
        negatives, kept = self._negatives_in(graph), 0
        assert negatives is not None  # noqa: S101 - for the type checker
        num_positives, amount = len(positives[0]), int(negatives.amount)
        parts = [("src", positives[0]), ("dst", positives[1])]
        chunks = {}
        for side in ("src", "dst"):
            if negatives.side in (side, "both"):
                nodes, chunks[side], num_edges = negatives.ends(
                    key, positives, side, graph.finder, times
                )
                kept += num_edges
                # Tree t of disjoint subgraphs belongs to positive t mod P: negative j of all first.
                of_all = nodes[chunks[side]].T.ravel() if self.disjoint else nodes.ravel()
                parts.append((side, of_all))
        found = self._numbered(parts, times)
        values["src_index"] = torch.from_numpy(found.local[0])
        values["dst_pos_index"] = torch.from_numpy(found.local[1])
        # In the order of a sampler's output of PyG, which a user may hand on.
        for (side, chunk), local in reversed([*zip(chunks.items(), found.local[2:], strict=True)]):
            each = local.reshape(amount, -1).T if self.disjoint else local.reshape(-1, amount)
            if len(each) < num_positives:
                each = each[chunk]
            shaped = each[:, 0] if amount == 1 else each
            name = "dst_neg_index" if side == "dst" else "src_neg_index"
            values[name] = torch.from_numpy(np.ascontiguousarray(shaped))
        if times is not None:
            values["seed_time"] = torch.from_numpy(times)
        return found, kept

    def _numbered(
        self, parts: Sequence[tuple[str, Int64Array]], times: Int64Array | None
    ) -> _Numbered:
        """Return the seeds of each node type, and the place of each node among them.

        Node j of a part belongs to positive j mod P, and has its time.
        """
        source, _, target = self.edge_type
        names = [source if side == "src" else target for side, _ in parts]
        lengths = [len(nodes) for _, nodes in parts]
        firsts = np.cumsum([0, *lengths])
        numbered = _Numbered(
            {},
            [np.empty(0, np.int64)] * len(parts),
            None if times is None else {},
            {} if source != target and self.disjoint else None,
        )
        for name in dict.fromkeys(names):
            own = [k for k, of in enumerate(names) if of == name]
            nodes = np.concatenate([parts[k][1] for k in own])
            if self.disjoint:
                local = np.arange(len(nodes), dtype=np.int64)
            else:
                nodes, local = np.unique(nodes, return_inverse=True)
                local = local.astype(np.int64, copy=False)
            numbered.nodes[name] = nodes
            cuts = np.cumsum([lengths[k] for k in own])[:-1]
            for k, indices in zip(own, np.split(local, cuts), strict=True):
                numbered.local[k] = indices
            if numbered.times is not None and times is not None:
                numbered.times[name] = np.concatenate([np.resize(times, lengths[k]) for k in own])
            if numbered.places is not None:  # of trees, which are numbered part after part
                places = [np.arange(firsts[k], firsts[k + 1]) for k in own]
                numbered.places[name] = np.concatenate(places)
        return numbered

    def _attributes_of(
        self,
        graph: LinkGraph,
        positions: Int64Array,
        ends: tuple[Int64Array, Int64Array],
        places: Int64Array | None,
    ) -> dict[str, torch.Tensor]:
        """Return the attributes of the seed edges, by the names that a batch has for them."""
        if not self.attributes:
            return {}
        if self.split is not None:
            found = EdgeSplits(self.store.reader, self.given.edge)[self.split].attributes
            return {f"label_{name}": found[name].tensor(positions) for name in self.attributes}
        if places is None:
            places, lasts = graph.finder.ranges(*ends)
            missing = np.flatnonzero(places == lasts)
            if missing.size:
                first = missing[0]
                source, target = (of[first] for of in self.ends(positions))
                raise InputError(
                    f"edge_label_attrs: edge {source} -> {target} at position "
                    f"{positions[first]} of edge_label_index is not an edge of "
                    f"{self.store.path}, so "
                    "that it has no attributes; give edges of the graph, or leave the option out"
                )
            if graph.positions is not None:
                places = graph.positions[places].astype(np.int64)
        specs, fetch = self.given.edge.attributes, graph.attributes
        return {
            f"label_{name}": as_tensor(fetch[name](places), specs[name].shown_dtype)
            if name in fetch
            else self.store.attribute_of(specs[name]).tensor(places)
            for name in self.attributes
        }


class _Numbered(NamedTuple):
    """The seeds of a batch of edges."""

    nodes: dict[str, Int64Array]  # by node type
    local: list[Int64Array]  # of each part: places of its nodes among the nodes of their type
    times: dict[str, Int64Array] | None = None
    places: dict[str, Int64Array] | None = None


def edge_ids_of(
    store: GraphStore, edge: EdgeTypeSpec, topology: Topology | None = None
) -> Fetch | None:
    """Return what reads the ids of edges by position; None: positions are ids."""
    return None if edge.edge_id is None else _fetch_of(store, edge.edge_id, topology)


def _fetch_of(store: GraphStore, spec: AttributeSpec, topology: Topology | None) -> Fetch:
    """Return what reads the rows of an array along edges by position.

    They come from memory if it has them, else from disk as the topology does, else from a mapping.
    """
    if (other := store.schema.shared_rows().get(spec.path)) is not None:
        numbers, array = (_fetch_of(store, each, topology) for each in (other.rows, other.array))
        return lambda positions: array(numbers(positions).astype(np.int64, copy=False))
    shared = shared_tables(store)
    is_read = topology is not None and topology.is_read and spec.layout == "paged"
    if topology is not None and is_read and spec.path not in shared.tables_in_memory:
        return topology.rows_of(spec).fetch
    rows = shared.rows_at_hand(store, spec)
    return lambda positions: rows.gather(positions).values


def _crc(values: Any) -> str | None:
    if values is None:
        return None
    data = bytes_of(values if isinstance(values, torch.Tensor) else torch.from_numpy(values))
    return f"{_core.crc32c(data):08x}"
