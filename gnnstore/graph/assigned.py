"""Attributes of nodes that a user has assigned to an open store: tensors in memory."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.errors import UsageError
from gnnstore.graph.lazy import LazyTensor

# Of what a fingerprint says of them.
FINGERPRINT = "crc32c of the assigned "


class Assigned(NamedTuple):
    """A tensor that was assigned."""

    values: Tensor  # [N, ...]
    crc: int  # of the values as they were then

    @classmethod
    def of(cls, values: Tensor, where: str) -> Self:
        """Check that threads can read rows of a tensor."""
        if isinstance(values, LazyTensor):
            values = values.tensor()
        if values.device.type != "cpu" or values.layout != torch.strided or values.requires_grad:
            raise UsageError(
                f"{where}: batches get rows of dense tensors in the memory of the CPU that need no "
                f"gradient; assign values.detach().cpu(), and what is learned is an EmbeddingTable"
            )
        values = values.contiguous()
        bits = values.view(torch.int16) if values.dtype == torch.bfloat16 else values
        return cls(values, _core.crc32c(bits.numpy().reshape(-1).view(np.uint8)))


@dataclass(frozen=True)
class AssignedAttributes:
    """Attributes by node type and name."""

    by_type: dict[str, dict[str, Assigned]]

    def of(self, node_type: str) -> dict[str, Tensor]:
        """Return the attributes of a node type."""
        return {name: each.values for name, each in self.by_type.get(node_type, {}).items()}

    def assign(self, node_type: str, name: str, value: Any, num_nodes: int, where: str) -> bool:
        """Keep a value if it has a row for each node; return whether it has."""
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        is_of_nodes = isinstance(value, Tensor) and value.dim() > 0 and len(value) == num_nodes
        if is_of_nodes:
            self.by_type.setdefault(node_type, {})[name] = Assigned.of(value, where)
        return is_of_nodes

    def remove(self, node_type: str, name: str) -> bool:
        """Forget an attribute; return whether there was one."""
        return self.by_type.get(node_type, {}).pop(name, None) is not None

    def only(self, names: Container[str] | None) -> AssignedAttributes:
        """Return a copy, with some names alone."""
        return AssignedAttributes(
            {
                node_type: {n: each for n, each in own.items() if names is None or n in names}
                for node_type, own in self.by_type.items()
            }
        )

    def __iter__(self) -> Iterator[tuple[str, str, Assigned]]:
        """Yield node types, names and tensors."""
        for node_type, own in self.by_type.items():
            for name, each in own.items():
                yield node_type, name, each

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(each.values.nbytes for _, _, each in self)

    def row_bytes(self, node_type: str) -> int:
        """Bytes that a node of a type brings into a batch."""
        own = self.of(node_type).values()
        return sum(values.nbytes // max(1, len(values)) for values in own)

    def fingerprint(self) -> dict[str, str]:
        """Return a checksum, the type and shape of each."""
        return {
            f"{FINGERPRINT}{node_type}.{name}": (
                f"{each.crc:08x} {str(each.values.dtype).removeprefix('torch.')} "
                f"{list(each.values.shape)}"
            )
            for node_type, name, each in self
        }
