"""What batches that start from nodes show of these: `input_id`, `batch_size` and times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.formats.packed.manifest import KIND, SEED_ARRAYS
from gnnstore.seeds.base import SeedLabels


@dataclass(frozen=True, eq=False)
class NodeLabels(SeedLabels):
    """Attributes of a batch that describe its seed nodes, as PyG's `NodeLoader` writes them."""

    name: ClassVar[str] = "nodes"
    num_arrays: ClassVar[int] = 1

    input_id: torch.Tensor
    seed_time: torch.Tensor | None = None

    @classmethod
    def fingerprint(cls) -> dict[str, Any]:
        """Return nothing: seeds are nodes where a fingerprint does not say otherwise."""
        return {}

    def label(self, batch: Any) -> None:
        """Write `input_id` and `batch_size`, and `seed_time` if there is one."""
        write_labels(batch, self.input_id, self.seed_time)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return `input_id`."""
        return [self.input_id.numpy()]

    def metadata(self) -> tuple[Any, ...]:
        """Return (input_id, seed_time)."""
        return self.input_id, self.seed_time

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> NodeLabels:
        """Return the labels of an array of input ids."""
        return cls(torch.from_numpy(arrays[0]))

    @classmethod
    def from_metadata(cls, metadata: Any) -> NodeLabels:
        """Return the labels of a pair of input ids and times."""
        input_id, seed_time = metadata
        return cls(input_id, seed_time)


@dataclass(frozen=True, eq=False)
class TimedNodeLabels(NodeLabels):
    """The same with times of the seed nodes, `seed_time`."""

    name: ClassVar[str] = "timed nodes"
    num_arrays: ClassVar[int] = 2

    @classmethod
    def fingerprint(cls) -> dict[str, Any]:
        """Return the kind, for the fingerprint of a loader."""
        return {KIND: cls.name, SEED_ARRAYS: cls.num_arrays}

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return `input_id` and `seed_time`."""
        assert self.seed_time is not None  # noqa: S101 - of this kind all have times
        return [self.input_id.numpy(), self.seed_time.numpy()]

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> TimedNodeLabels:
        """Return the labels of arrays of input ids and times."""
        return cls(torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]))


def write_labels(store: Any, input_id: torch.Tensor, seed_time: torch.Tensor | None = None) -> None:
    """Write the labels of seed nodes on a batch, or on the part of their type."""
    written = (("input_id", input_id), ("seed_time", seed_time), ("batch_size", len(input_id)))
    for name, value in written:
        if value is not None:
            store[name] = value
        elif name in store:  # an attribute of the user's, which PyG overwrites as well
            del store[name]


@dataclass(frozen=True, eq=False)
class TypedNodeLabels(SeedLabels):
    """Attributes of a batch that describe its seed nodes, on the parts of their types."""

    name: ClassVar[str] = "typed nodes"
    num_arrays: ClassVar[int] = 2

    of: Mapping[str, NodeLabels]  # by node type

    def label(self, batch: Any) -> None:
        """Write `input_id` and `batch_size` on each type, and `seed_time` if there is one."""
        for node_type, labels in self.of.items():
            write_labels(batch[node_type], labels.input_id, labels.seed_time)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return a table of contents in JSON, and all ids and times behind one another."""
        contents, parts = [], [np.empty(0, np.int64)]
        for node_type, labels in self.of.items():
            contents.append([node_type, len(labels.input_id), labels.seed_time is not None])
            parts.append(labels.input_id.numpy())
            if labels.seed_time is not None:
                parts.append(labels.seed_time.numpy())
        return [np.frombuffer(json.dumps(contents).encode(), np.uint8), np.concatenate(parts)]

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> TypedNodeLabels:
        """Return the labels of a table of contents and values."""
        contents, values = arrays
        rest, found = torch.from_numpy(values), {}
        for node_type, count, has_times in json.loads(contents.tobytes()):
            ids, rest = rest[:count], rest[count:]
            times = None
            if has_times:
                times, rest = rest[:count], rest[count:]
            found[node_type] = NodeLabels(ids, times)
        return cls(found)

    def metadata(self) -> tuple[Any, ...]:
        """Return PyG's (input_id, seed_time), by type if there are several; and the types."""
        ids = {name: labels.input_id for name, labels in self.of.items()}
        times = {
            name: labels.seed_time
            for name, labels in self.of.items()
            if labels.seed_time is not None
        }
        types = tuple(self.of)
        if len(types) == 1:
            return ids[types[0]], times.get(types[0]), types
        return ids, times or None, types

    @classmethod
    def from_metadata(cls, metadata: Any) -> TypedNodeLabels:
        """Return the labels of the tuple that `metadata` gave."""
        ids, times, types = metadata
        if not isinstance(ids, Mapping):
            return cls({types[0]: NodeLabels(ids, times)})
        return cls({name: NodeLabels(ids[name], (times or {}).get(name)) for name in types})
