"""Attributes of nodes that a user has assigned to an open store: tensors in memory."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.errors import UsageError
from gnnstore.graph.arrays import as_tensor
from gnnstore.graph.lazy import LazySource, LazyTensor, Rows

# Of what a fingerprint says of them.
FINGERPRINT = "crc32c of the assigned "


@dataclass(frozen=True, eq=False)
class Assigned(LazySource):
    """A copy of a tensor that was assigned."""

    # [N, ...], bfloat16 as its bits. NumPy's memory: when a tensor is sent to another process,
    # torch moves its memory, and frees that which an array would go on showing.
    array: npt.NDArray[Any]
    dtype: torch.dtype
    crc: int  # of the values
    name: str

    @classmethod
    def of(cls, values: Tensor, where: str) -> Self:
        """Copy a tensor; refuse one of which threads cannot read rows."""
        if isinstance(values, LazyTensor):
            values = values.tensor()
        if values.device.type != "cpu" or values.layout != torch.strided or values.requires_grad:
            raise UsageError(
                f"{where}: batches get rows of dense tensors in the memory of the CPU that need no "
                f"gradient; assign values.detach().cpu(), and what is learned is an EmbeddingTable"
            )
        bits = values.view(torch.int16) if values.dtype == torch.bfloat16 else values
        array = np.array(bits.resolve_conj().resolve_neg().numpy(), order="C")
        return cls(array, values.dtype, _core.crc32c(array.reshape(-1).view(np.uint8)), where)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.array, self.dtype, self.crc, self.name)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of the tensor."""
        return self.array.shape

    def read(self) -> Tensor:
        """Return a copy of all values."""
        return as_tensor(self.array.copy(), str(self.dtype).removeprefix("torch."))

    def take(self, rows: Rows) -> Tensor:
        """Return a copy of some rows."""
        return as_tensor(self.array[np.asarray(rows)], str(self.dtype).removeprefix("torch."))


def as_rows(value: Any) -> Tensor | None:
    """Return a tensor with rows; None of other values, and of texts, objects and dates."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        native = value.dtype.newbyteorder("=")
        value = torch.from_numpy(np.require(value, native, ["C_CONTIGUOUS", "WRITEABLE"]))
    return value if isinstance(value, Tensor) and value.dim() else None


@dataclass(frozen=True)
class AssignedAttributes:
    """Attributes by node type and name."""

    by_type: dict[str, dict[str, Assigned]]

    def of(self, node_type: str) -> dict[str, Assigned]:
        """Return the attributes of a node type."""
        return self.by_type.get(node_type, {})

    def assign(self, node_type: str, name: str, value: Any, num_nodes: int, where: str) -> bool:
        """Keep a value if it has a row for each node; return whether it has."""
        if (rows := as_rows(value)) is None or len(rows) != num_nodes:
            return False
        self.by_type.setdefault(node_type, {})[name] = Assigned.of(rows, where)
        return True

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
        return sum(each.array.nbytes for _, _, each in self)

    def row_bytes(self, node_type: str) -> int:
        """Bytes that a node of a type brings into a batch."""
        own = [each.array for each in self.of(node_type).values()]
        return sum(array.nbytes // max(1, len(array)) for array in own)

    def fingerprint(self) -> dict[str, str]:
        """Return a checksum, the type and shape of each."""
        return {
            f"{FINGERPRINT}{node_type}.{name}": (
                f"{each.crc:08x} {str(each.dtype).removeprefix('torch.')} {list(each.shape)}"
            )
            for node_type, name, each in self
        }
