"""What batches that start from edges show of these: labels, local ids and times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.formats.store.schema import EDGE_TYPE, EdgeType
from gnnstore.seeds.base import SeedLabels


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
    def is_triplet(self) -> bool:
        """Whether negatives take the place of an end of a positive."""
        return "src_index" in self.values

    def label(self, batch: Any) -> None:
        """Write the values, and the number of the positive as the `batch` of disjoint subgraphs."""
        forget_others(batch, self)
        for name, value in self.values.items():
            batch[name] = value
        if "batch" in batch:
            batch.batch = self.positive_of(batch.batch)

    def positive_of(self, tree: torch.Tensor) -> torch.Tensor:
        """Return the number of the positive that each tree belongs to: negative j to j mod P."""
        num_positives = len(self.values["input_id"])
        if not self.is_triplet:
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
        parts = [bytes_of(value) for value in self.values.values()]
        return [np.frombuffer(json.dumps(contents).encode(), np.uint8), np.concatenate(parts)]

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return sum(value.nbytes for value in self.values.values())

    def metadata(self) -> tuple[Any, ...]:
        """Return PyG's tuple; what PyG does not have follows in a dict."""
        values = dict(self.values)
        names = _TRIPLET if self.is_triplet else _BINARY
        shown = [values.pop(name, None) for name in names]
        return (*shown, values) if values else tuple(shown)

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> LinkLabels:
        """Return the labels of a table of contents and values."""
        contents, data = arrays
        values, begin = {}, 0
        for name, dtype, shape in json.loads(contents.tobytes()):
            value = torch.empty(shape, dtype=getattr(torch, dtype))
            # Copied: they may lie anywhere, and tensors must be aligned.
            end = begin + value.nbytes
            bytes_of(value)[:] = data[begin:end]
            values[name], begin = value, end
        return cls(values)

    @classmethod
    def from_metadata(cls, metadata: Any) -> LinkLabels:
        """Return the labels of the tuple that `metadata` gave."""
        shown, more = list(metadata), {}
        if isinstance(shown[-1], Mapping):
            more = dict(shown.pop())
        names = _TRIPLET if len(shown) > len(_BINARY) else _BINARY
        values = {n: v for n, v in zip(names, shown, strict=True) if v is not None}
        return cls({**values, **more})


_BINARY = ("input_id", "edge_label_index", "edge_label", "edge_label_time")
_TRIPLET = ("input_id", "src_index", "dst_pos_index", "dst_neg_index", "seed_time")
# Attributes that PyG deletes from a batch of triplets, and sets to None on others where they have
# no value.
_HIDDEN = {
    True: ("edge_label_index", "edge_label_time", "seed_time"),
    False: ("edge_label", "edge_label_time"),
}


def forget_others(store: Any, labels: LinkLabels) -> None:
    """Delete attributes of the user's that PyG deletes from what shows the seed edges."""
    for name in _HIDDEN[labels.is_triplet]:
        if name in store:
            del store[name]


@dataclass(frozen=True, eq=False)
class TypedLinkLabels(LinkLabels):
    """The same on the parts of the edge type, and of triplets on those of its ends."""

    name: ClassVar[str] = "typed links"
    num_arrays: ClassVar[int] = 3

    edge_type: EdgeType = EDGE_TYPE

    def label(self, batch: Any) -> None:
        """Write the values, and the number of the positive as the `batch` of disjoint subgraphs."""
        source, _, target = self.edge_type
        forget_others(batch[self.edge_type], self)
        for name, value in self.values.items():
            places: list[Any] = [self.edge_type]
            if self.is_triplet and name in _OF_ENDS:
                places = {"src": [source], "dst": [target]}.get(name[:3], [source, target])
            for place in places:
                batch[place][name] = value
        for node_type in batch.node_types:
            store = batch[node_type]
            if "batch" in store:
                store.batch = self.positive_of(store.batch)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return the edge type in JSON, and the arrays of the values."""
        edge_type = np.frombuffer(json.dumps(self.edge_type).encode(), np.uint8)
        return [edge_type, *super().arrays()]

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> TypedLinkLabels:
        """Return the labels of an edge type and of the arrays of values."""
        source, relation, target = json.loads(arrays[0].tobytes())
        values = LinkLabels.from_arrays(arrays[1:]).values
        return cls(values, edge_type=(source, relation, target))

    def metadata(self) -> tuple[Any, ...]:
        """Return PyG's tuple; the edge type follows, with what PyG does not have."""
        *shown, more = LinkLabels({**self.values, _TYPE: self.edge_type}).metadata()  # type: ignore[dict-item]
        return (*shown, more)

    @classmethod
    def from_metadata(cls, metadata: Any) -> TypedLinkLabels:
        """Return the labels of the tuple that `metadata` gave."""
        values: dict[str, Any] = LinkLabels.from_metadata(metadata).values
        return cls(values, edge_type=values.pop(_TYPE))


# Attributes of triplets that the node types of the ends have.
_OF_ENDS = ("src_index", "src_neg_index", "dst_pos_index", "dst_neg_index", "seed_time")
_TYPE = "edge type"


def bytes_of(values: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a tensor of any element type, or of a copy."""
    if not values.numel():  # its strides may be 0, for which torch views no bytes
        return np.empty(0, np.uint8)
    return values.contiguous().view(-1).view(torch.uint8).numpy()
