"""What batches that start from edges show of these, and the kinds of labels there are."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.errors import UnsupportedVersionError
from gnnstore.formats.packed import KIND
from gnnstore.formats.store.schema import EdgeType
from gnnstore.seeds.base import SeedLabels
from gnnstore.seeds.nodes import NodeLabels, TimedNodeLabels, TypedNodeLabels
from gnnstore.units import Registry


@dataclass(frozen=True, eq=False)
class LinkLabels(SeedLabels):
    """Attributes of a batch that describe its seed edges, as PyG's `LinkLoader` writes them."""

    name: ClassVar[str] = "links"
    num_arrays: ClassVar[int] = 2

    values: dict[str, torch.Tensor]  # by the batch's attribute
    # The strict negatives among them that are edges after all (`negatives_kept`); unknown where
    # they come from `arrays` or `metadata`.
    counts: Mapping[str, int] = field(default_factory=dict)
    # Written on the parts of this type; for triplets, on the parts of its ends.
    edge_type: EdgeType | None = None

    @property
    def node_types(self) -> Collection[str]:
        """Types of the ends of the seed edges."""
        return () if self.edge_type is None else self.edge_type[::2]

    @property
    def is_triplet(self) -> bool:
        """Whether negatives take the place of an end of a positive."""
        return "src_index" in self.values

    def label(self, batch: Any) -> None:
        """Write the values, and the number of the positive as the `batch` of disjoint subgraphs."""
        of_edges = batch if self.edge_type is None else batch[self.edge_type]
        for name in _HIDDEN[self.is_triplet]:
            if name in of_edges:  # an attribute of the user's, which PyG deletes as well
                del of_edges[name]
        for name, value in self.values.items():
            places = [of_edges]
            if self.edge_type is not None and self.is_triplet and name in _OF_ENDS:
                source, _, target = self.edge_type
                ends = {"src": [source], "dst": [target]}.get(name[:3], [source, target])
                places = [batch[end] for end in ends]
            for place in places:
                place[name] = value
        for store in (
            [batch] if self.edge_type is None else map(batch.__getitem__, batch.node_types)
        ):
            if "batch" in store:
                store.batch = self.positive_of(store.batch)

    def positive_of(self, tree: torch.Tensor) -> torch.Tensor:
        """Return the number of the positive that each tree belongs to: negative j to j mod P."""
        num_positives = len(self.values["input_id"])
        if not self.is_triplet:
            tree = tree % self.values["edge_label_index"].shape[1]
            negative = tree >= num_positives
            tree = torch.where(negative, tree - num_positives, tree)
        return tree % max(1, num_positives)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return the edge type if any, a table of contents, in JSON, and the values in a row."""
        contents = [
            [name, str(value.dtype).removeprefix("torch."), list(value.shape)]
            for name, value in self.values.items()
        ]
        documents = [contents] if self.edge_type is None else [self.edge_type, contents]
        parts = [bytes_of(value) for value in self.values.values()]
        texts = [np.frombuffer(json.dumps(each).encode(), np.uint8) for each in documents]
        return [*texts, np.concatenate(parts)]

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return sum(value.nbytes for value in self.values.values())

    def metadata(self) -> tuple[Any, ...]:
        """Return PyG's tuple; what PyG does not have follows in a dict."""
        values: dict[str, Any] = dict(self.values)
        if self.edge_type is not None:
            values[_TYPE] = self.edge_type
        names = _TRIPLET if self.is_triplet else _BINARY
        shown = [values.pop(name, None) for name in names]
        return (*shown, values) if values else tuple(shown)

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> Self:
        """Return the labels that `arrays` gave as these."""
        *documents, data = arrays
        *edge_type, contents = (json.loads(each.tobytes()) for each in documents)
        values, begin = {}, 0
        for name, dtype, shape in contents:
            size = math.prod(shape) * getattr(torch, dtype).itemsize
            if min(shape, default=0) < 0 or size > len(data) - begin:
                raise ValueError(f"{name!r} is {dtype} {shape}, in {len(data)} bytes")
            value = torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
            # Copied: they may lie anywhere, and tensors must be aligned.
            end = begin + value.nbytes
            bytes_of(value)[:] = data[begin:end]
            values[name], begin = value, end
        needed = _TRIPLET[:3] if "src_index" in values else _BINARY[:2]
        if begin < len(data) or not values.keys() >= {*needed}:
            raise ValueError(f"seeds show {', '.join(values)} in {begin} of {len(data)} bytes")
        return cls(values, edge_type=tuple(edge_type[0]) if edge_type else None)

    @classmethod
    def from_metadata(cls, metadata: Any) -> Self:
        """Return the labels of the tuple that `metadata` gave."""
        shown, more = list(metadata), {}
        if isinstance(shown[-1], Mapping):
            more = dict(shown.pop())
        names = _TRIPLET if len(shown) > len(_BINARY) else _BINARY
        values = {n: v for n, v in zip(names, shown, strict=True) if v is not None}
        edge_type = more.pop(_TYPE, None)
        return cls({**values, **more}, edge_type=edge_type)


class TypedLinkLabels(LinkLabels):
    """The same with an edge type."""

    name: ClassVar[str] = "typed links"
    num_arrays: ClassVar[int] = 3


_BINARY = ("input_id", "edge_label_index", "edge_label", "edge_label_time")
_TRIPLET = ("input_id", "src_index", "dst_pos_index", "dst_neg_index", "seed_time")
# Attributes that PyG deletes from a batch of triplets, and sets to None on others where they have
# no value.
_HIDDEN = {
    True: ("edge_label_index", "edge_label_time", "seed_time"),
    False: ("edge_label", "edge_label_time"),
}
# Attributes of triplets that the node types of the ends have.
_OF_ENDS = ("src_index", "src_neg_index", "dst_pos_index", "dst_neg_index", "seed_time")
_TYPE = "edge type"


def bytes_of(values: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a tensor of any element type, or of a copy."""
    if not values.numel():  # its strides may be 0, for which torch views no bytes
        return np.empty(0, np.uint8)
    return values.contiguous().view(-1).view(torch.uint8).numpy()


# The kinds of seeds that packed epochs may hold. A new one is registered here.
SEED_KINDS: Registry[type[SeedLabels]] = Registry(
    (NodeLabels, TimedNodeLabels, TypedNodeLabels, LinkLabels, TypedLinkLabels)
)


def labels_of(fingerprint: Mapping[str, Any]) -> type[SeedLabels]:
    """Return the kind of labels of the loader that has a fingerprint."""
    name = fingerprint.get(KIND, NodeLabels.name)
    if not isinstance(name, str) or name not in SEED_KINDS:
        raise UnsupportedVersionError(
            f"batches start from seeds of the kind {name!r}, and this gnnstore has "
            f"{', '.join(SEED_KINDS.names)}; use the gnnstore that packed them"
        )
    return SEED_KINDS[name]
