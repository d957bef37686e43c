"""Batches that start from edges, with their labels and negatives.

The edges need not be edges of the graph. All edges of the graph are known by their positions in the
store, and are never copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, InputError
from gnnstore.formats.packed.manifest import ALL_EDGES
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.sampling.edges import EdgeFinder
from gnnstore.seeds.base import BatchKey, Int64Array, SeedLabels, Seeds
from gnnstore.seeds.negatives import Negatives
from gnnstore.seeds.nodes import checked_positions

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore


@dataclass(frozen=True, eq=False)
class LinkLabels(SeedLabels):
    """Attributes of a batch that describe its seed edges, as PyG's `LinkLoader` writes them."""

    name: ClassVar[str] = "links"
    num_arrays: ClassVar[int] = 2

    values: dict[str, torch.Tensor]  # by the batch's attribute
    # The strict negatives among them that are edges after all (`negatives_kept`); unknown where
    # they come from `arrays` or `metadata`.
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def _is_triplet(self) -> bool:
        return "src_index" in self.values

    def label(self, batch: Any) -> None:
        """Write the values, and the number of the positive as the `batch` of disjoint subgraphs."""
        for name in _HIDDEN[self._is_triplet]:
            if name in batch:
                del batch[name]  # an attribute of the user's, as PyG does
        for name, value in self.values.items():
            batch[name] = value
        if "batch" in batch:
            batch.batch = self._positive_of(batch.batch)

    def _positive_of(self, tree: torch.Tensor) -> torch.Tensor:
        """Return the number of the positive that each tree belongs to: negative j to j mod P."""
        num_positives = len(self.values["input_id"])
        if not self._is_triplet:
            tree = tree % self.values["edge_label_index"].shape[1]
            negative = tree >= num_positives
            tree = torch.where(negative, tree - num_positives, tree)
        return tree % max(1, num_positives)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return a table of contents in JSON, and the values behind one another."""
        contents = [
            [name, str(value.dtype).removeprefix("torch."), list(value.shape)]
            for name, value in self.values.items()
        ]
        parts = [_bytes_of(value) for value in self.values.values()]
        return [np.frombuffer(json.dumps(contents).encode(), np.uint8), np.concatenate(parts)]

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return sum(value.nbytes for value in self.values.values())

    def metadata(self) -> tuple[Any, ...]:
        """Return PyG's tuple; what PyG does not have follows in a dict."""
        values = dict(self.values)
        names = _TRIPLET if self._is_triplet else _BINARY
        shown = [values.pop(name, None) for name in names]
        return (*shown, None, values) if values else (*shown, None)

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> LinkLabels:
        """Return the labels of a table of contents and values."""
        contents, data = arrays
        values, begin = {}, 0
        for name, dtype, shape in json.loads(contents.tobytes()):
            value = torch.empty(shape, dtype=getattr(torch, dtype))
            # Copied: they may lie anywhere, and tensors must be aligned.
            end = begin + value.nbytes
            _bytes_of(value)[:] = data[begin:end]
            values[name], begin = value, end
        return cls(values)

    @classmethod
    def from_metadata(cls, metadata: Any) -> LinkLabels:
        """Return the labels of the tuple that `metadata` gave."""
        shown, more = list(metadata), {}
        if isinstance(shown[-1], Mapping):
            more = dict(shown.pop())
        names = _TRIPLET if len(shown) > len(_BINARY) + 1 else _BINARY
        values = {n: v for n, v in zip(names, shown[:-1], strict=True) if v is not None}
        return cls({**values, **more})


_BINARY = ("input_id", "edge_label_index", "edge_label")
_TRIPLET = ("input_id", "src_index", "dst_pos_index", "dst_neg_index")
# Attributes that PyG deletes from a batch of triplets, and sets to None on others where they have
# no value.
_HIDDEN = {
    True: ("edge_label_index", "edge_label_time", "seed_time"),
    False: ("edge_label", "edge_label_time"),
}


class LinkGraph(NamedTuple):
    """The graph that edges, their negatives and their neighbourhoods lie in."""

    finder: Any  # of its edges; None where none is looked up
    num_nodes: int  # negatives are 0 to num_nodes - 1
    # int32 or int64 [E] or None: in the store, of each of its edges; None: it is the store's graph.
    positions: npt.NDArray[Any] | None = None


class Links:
    """The seed edges of a loader, by position."""

    labels = LinkLabels

    def __init__(
        self,
        store: GraphStore,
        edges: npt.NDArray[Any] | None,
        *,
        ids: Int64Array | None = None,
        edge_label: torch.Tensor | None = None,
        negatives: Negatives | None = None,
        disjoint: bool = False,
        attributes: Sequence[str] = (),
        split: str | None = None,
        exclude_edges: str | None = None,
    ) -> None:
        self.store = store
        self.edges = edges
        self.ids = ids
        self.edge_label = edge_label
        self.negatives = negatives
        self.disjoint = disjoint
        self.attributes = tuple(attributes)
        self.split = split
        self.exclude_edges = exclude_edges

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = {
            "ids": self.ids,
            "edge_label": self.edge_label,
            "negatives": self.negatives,
            "disjoint": self.disjoint,
            "attributes": self.attributes,
            "split": self.split,
            "exclude_edges": self.exclude_edges,
        }
        return (_restored, (self.store, self.edges, arguments))

    def __len__(self) -> int:
        """Return the number of seed edges."""
        return self.store.num_edges if self.edges is None else self.edges.shape[1]

    @property
    def name(self) -> str | None:
        """The edge split, or "all" edges."""
        return "all" if self.edges is None else self.split

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that all of it takes."""
        arrays = (self.edges, self.ids, self.edge_label)
        held = sum(0 if array is None else array.nbytes for array in arrays)
        return held + (0 if self.negatives is None else self.negatives.num_bytes)

    def fingerprint(self) -> dict[str, Any]:
        """Return checksums of edges, labels and ids, and how negatives are drawn."""
        negatives = None if self.negatives is None else self.negatives.fingerprint()
        return {
            **self._checksums,
            "edge_label_attrs": list(self.attributes),
            "exclude_edges": self.exclude_edges,
            **(negatives or {"neg_sampling": None}),
        }

    @cached_property
    def _checksums(self) -> dict[str, str | None]:
        return {
            "crc32c of edge_label_index": ALL_EDGES if self.edges is None else _crc(self.edges),
            "crc32c of edge_label": None if self.edge_label is None else _crc(self.edge_label),
            "crc32c of input_id": None if self.ids is None else _crc(self.ids),
        }

    @property
    def _finder(self) -> EdgeFinder:
        return EdgeFinder(self.store.topology_at_hand().columns())

    def select(self, index: Any, key: BatchKey) -> Seeds[LinkLabels]:
        """Return the seed edges at some positions [P], and the negatives of the batch."""
        positions = checked_positions(index, len(self), "edge_label_index")
        graph = LinkGraph(self._finder, self.store.num_nodes)
        return self.seeds_in(graph, positions, self.ends(positions), key)

    def seeds_in(
        self,
        graph: LinkGraph,
        positions: Int64Array,
        ends: tuple[Int64Array, Int64Array],
        key: BatchKey,
    ) -> Seeds[LinkLabels]:
        """Return seed edges and the negatives of the batch, in the ids of a graph.

        Nodes are their ends: each once and ascending, or for disjoint subgraphs as they come.
        """
        sources, targets = ends
        places = positions if self.edges is None else None
        ids = positions if self.edges is not None else self.edge_ids(positions)
        values: dict[str, torch.Tensor] = {
            "input_id": torch.from_numpy(ids if self.ids is None else self.ids[ids])
        }
        attributes = self._attributes_of(graph, positions, ends, places)
        if self.negatives is not None and self.negatives.mode == "triplet":
            nodes, kept = self._triplets(graph, key, ends, values)
        else:
            nodes, kept = self._pairs(graph, key, ends, ids, values)
        without = None
        if self.exclude_edges is not None:
            both = [(sources, targets), (targets, sources)]
            pairs = both if self.exclude_edges == "reverse" else both[:1]
            without = graph.finder.excluding(*np.concatenate(pairs, axis=1))
        labels = LinkLabels({**values, **attributes}, {"negatives_kept": kept})
        return Seeds({NODE_TYPE: nodes}, labels, without)

    def ends(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the sources and targets of the edges at some positions [P]."""
        if self.edges is not None:
            sources, targets = self.edges[:, positions].astype(np.int64)
            return sources, targets
        csc = self.store.topology_at_hand().columns()
        csc.check_mapped_files()
        sources = csc.indices[positions].astype(np.int64)
        if sources.size and (sources.min() < 0 or sources.max() >= self.store.num_nodes):
            raise CorruptStoreError(
                f"{self.store.path}: an edge among positions {positions.min()} to "
                f"{positions.max()} of its topology leads from no node (found {sources.min()} to "
                f"{sources.max()}, "
                f"expected 0 to {self.store.num_nodes - 1}); run 'gnnstore verify' on it",
                path=self.store.path,
            )
        return sources, self._finder.targets_of(positions)

    def edge_ids(self, positions: Int64Array) -> Int64Array:
        """Return the ids of the graph's edges at some positions."""
        ids = self.store.topology_at_hand().columns().edge_id
        return positions if ids is None else ids[positions].astype(np.int64)

    def _negatives_in(self, graph: LinkGraph) -> Negatives | None:
        negatives = self.negatives
        if negatives is None or negatives.num_nodes == graph.num_nodes:
            return negatives
        return replace(negatives, num_nodes=graph.num_nodes)

    def _pairs(
        self,
        graph: LinkGraph,
        key: BatchKey,
        ends: tuple[Int64Array, Int64Array],
        ids: Int64Array,
        values: dict[str, torch.Tensor],
    ) -> tuple[Int64Array, int]:
        """Write the local indices and labels of positives and negatives."""
        sources, targets = ends
        num_positives, negatives, kept = len(sources), self._negatives_in(graph), 0
        if negatives is not None:
            *drawn, kept = negatives.pairs(key, num_positives, graph.finder)
            sources = np.concatenate([sources, drawn[0]])
            targets = np.concatenate([targets, drawn[1]])
        num_negatives = len(sources) - num_positives
        seeds, local = self._numbered(np.concatenate([sources, targets]))
        values["edge_label_index"] = torch.from_numpy(local.reshape(2, -1))
        label = None if self.edge_label is None else self.edge_label[ids]
        if self.negatives is not None:
            if label is None:
                label = torch.ones(num_positives)
            label = torch.cat([label, label.new_zeros(num_negatives, *label.shape[1:])])
        if label is not None:
            values["edge_label"] = label
        return seeds, kept

    def _triplets(
        self,
        graph: LinkGraph,
        key: BatchKey,
        positives: tuple[Int64Array, Int64Array],
        values: dict[str, torch.Tensor],
    ) -> tuple[Int64Array, int]:
        """Write the local indices of positives and of the negatives of each; see `_pairs`."""
        negatives, kept = self._negatives_in(graph), 0
        assert negatives is not None  # noqa: S101 - for the type checker
        num_positives, amount = len(positives[0]), int(negatives.amount)
        parts, chunks = [*positives], {}
        for side in ("src", "dst"):
            if negatives.side in (side, "both"):
                nodes, chunks[side], num_edges = negatives.ends(key, positives, side, graph.finder)
                kept += num_edges
                # Of disjoint subgraphs tree t belongs to positive t mod P: negative j of all first.
                parts.append(nodes[chunks[side]].T.ravel() if self.disjoint else nodes.ravel())
        seeds, local = self._numbered(np.concatenate(parts))
        indices = np.split(local, np.cumsum([len(part) for part in parts])[:-1])
        values["src_index"] = torch.from_numpy(indices[0])
        values["dst_pos_index"] = torch.from_numpy(indices[1])
        # In the order in which a sampler's output of PyG has them, whoever hands them on.
        for (side, chunk), found in reversed([*zip(chunks.items(), indices[2:], strict=True)]):
            each = found.reshape(amount, -1).T if self.disjoint else found.reshape(-1, amount)
            if len(each) < num_positives:
                each = each[chunk]
            shaped = each[:, 0] if amount == 1 else each
            name = "dst_neg_index" if side == "dst" else "src_neg_index"
            values[name] = torch.from_numpy(np.ascontiguousarray(shaped))
        return seeds, kept

    def _numbered(self, nodes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the seeds, and the place of each node among them."""
        if self.disjoint:
            return nodes, np.arange(len(nodes), dtype=np.int64)
        seeds, local = np.unique(nodes, return_inverse=True)
        return seeds, local.astype(np.int64, copy=False)

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
            found = self.store.edge_splits[self.split].attributes
            return {f"label_{name}": found[name].tensor(positions) for name in self.attributes}
        if places is None:
            places, lasts = graph.finder.ranges(*ends)
            missing = np.flatnonzero(places == lasts)
            if missing.size:
                first = missing[0]
                source, target = (of[first] for of in self.ends(positions))
                raise InputError(
                    f"edge_label_attrs: edge {source} -> {target} at position "
                    f"{positions[first]} of edge_label_index is no edge of {self.store.path}, so "
                    "that it has no attributes; give edges of the graph, or leave the option out"
                )
            if graph.positions is not None:
                places = graph.positions[places].astype(np.int64)
        return {
            f"label_{name}": self.store.edge_attribute(name).tensor(places)
            for name in self.attributes
        }


def _restored(store: GraphStore, edges: Any, arguments: dict[str, Any]) -> Links:
    return Links(store, edges, **arguments)


def _bytes_of(values: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a tensor of any element type, or of a copy."""
    if not values.numel():  # its strides may be 0, for which torch views no bytes
        return np.empty(0, np.uint8)
    return values.contiguous().view(-1).view(torch.uint8).numpy()


def _crc(values: Any) -> str:
    data = _bytes_of(values if isinstance(values, torch.Tensor) else torch.from_numpy(values))
    return f"{_core.crc32c(data):08x}"
