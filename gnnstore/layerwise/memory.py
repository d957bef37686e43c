"""Measures the memory that a layer takes on a block, before any block is made.

The tensors that a layer makes grow with the edges, nodes and targets of a block. At any moment
their bytes are linear in these three numbers, so the peak, being the largest of linear functions,
is at most the sum of the peaks of blocks in which one of the numbers is large and the others are
negligible. Three such blocks are run and measured.

While a layer runs on one block, the next is made, and the result of the one before is written. The
three stages share the memory for blocks; if the node with the most in-neighbours needs all of it,
they take place one after the other instead.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gnnstore.layerwise.models.block import Block
from gnnstore.layerwise.models.calls import LayerCall, RowKind

_PROBE_SIZE = 1024
# Kernels take memory in addition to tensors: scattering sorts positions by target, twice 16 bytes.
_KERNEL_BYTES_PER_EDGE = 32
# For memory that the allocator leaves unused between blocks of many sizes.
_SLACK = 1.1


class PeakMeter(TorchDispatchMode):
    """Measures the peak of the bytes of tensors that are made in its context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0  # the most bytes that were alive at once
        self._alive_bytes = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count the storages of its results that are new."""
        for leaf in _tensors((args, kwargs)):
            self._seen.add(leaf.untyped_storage()._cdata)
        result = func(*args, **(kwargs or {}))
        for leaf in _tensors(result):
            storage: Any = leaf.untyped_storage()
            if storage._cdata in self._seen:
                continue
            self._seen.add(storage._cdata)
            self._alive_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._alive_bytes)
            weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())
        return result

    def _drop(self, key: int, num_bytes: int) -> None:
        self._seen.discard(key)
        self._alive_bytes -= num_bytes


def _tensors(tree: Any) -> list[Tensor]:
    leaves = tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout is torch.strided]


def measure_call(
    call: LayerCall, kind: RowKind, dtype: torch.dtype | None
) -> tuple[npt.NDArray[np.int64], Tensor]:
    """Return the bytes for each edge, node and target that a layer takes, and a row of results."""
    many = _PROBE_SIZE
    shapes = [(0, many, many)]
    if call.needs_edges:
        shapes = [(many, 2, 1), (1, many, 1), (1, many, many)]
    peaks = [0.0, 0.0, 0.0]
    for at, (num_edges, num_nodes, num_targets) in enumerate(shapes, 3 - len(shapes)):
        block = _block_of_zeros(num_edges, num_nodes, num_targets, call, kind)
        with PeakMeter() as meter:
            where = f"{num_nodes} rows of zeros with {num_edges} edges"
            result = call.run(block, dtype, where)
        peaks[at] = _SLACK * meter.peak_bytes / many
    per_edge, per_node, per_target = map(ceil, peaks)
    per_edge += _KERNEL_BYTES_PER_EDGE if call.needs_edges else 0
    # Targets are nodes as well.
    return np.array([per_edge, per_node, max(0, per_target - per_node)]), result[:1].clone()


def _block_of_zeros(
    num_edges: int, num_nodes: int, num_targets: int, call: LayerCall, kind: RowKind
) -> Block:
    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=kind.dtype, device=kind.device)

    begins = torch.full((num_targets + 1,), num_edges, device=kind.device)
    begins[0] = 0
    # No edge from a node to itself: layers may treat those differently.
    sources = torch.full((num_edges,), num_nodes - 1, device=kind.device)
    widths = {name: kind.edge_widths[name] for name in call.takes}
    edges = {
        name: zeros(num_edges, width) if width else zeros(num_edges)
        for name, width in widths.items()
    }
    scale = None if call.norm is None else torch.ones(num_nodes, device=kind.device)
    if call.projection is None:
        return Block(zeros(num_nodes, kind.width), begins, sources, edges, scale)
    own = zeros(num_targets, kind.width)
    return Block(zeros(num_nodes, call.projection.width), begins, sources, edges, scale, own)


# The sizes of a block are an array: edges, nodes, targets (which are nodes as well).
EDGES, NODES, TARGETS = np.eye(3, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class BlockLimits:
    """The memory for blocks in three stages: made, run by the layer, written."""

    # int64 [3, 3]: bytes for each edge, node and target, in each stage; blocks included.
    costs: npt.NDArray[np.int64]
    shares: npt.NDArray[np.int64]  # the memory of each stage
    is_ahead: bool  # whether the three stages take place at once

    @classmethod
    def of(
        cls, costs: npt.NDArray[np.int64], room: int, mean: Any, largest: npt.NDArray[np.int64]
    ) -> BlockLimits:
        """Divide memory between three blocks, or give it to one if a hub needs all of it.

        `mean` has the sizes of a block for each target.
        """
        needed = np.maximum(costs @ mean, 1.0)
        shares = cls(costs, (needed / needed.sum() * room).astype(np.int64), is_ahead=True)
        if shares.admits(largest):
            return shares
        return cls(costs, np.full(3, room), is_ahead=False)

    def admits(self, sizes: npt.ArrayLike) -> bool:
        """Return whether a block may have these sizes."""
        return bool((self.costs @ np.asarray(sizes) <= self.shares).all())

    @property
    def making(self) -> int:
        """The memory in which blocks are made."""
        return int(self.shares[0])

    @property
    def running(self) -> int:
        """The memory in which the layer runs."""
        return int(self.shares[1])

    def most(self, sizes: npt.NDArray[np.int64], stages: int = 3) -> int:
        """Return the largest block, as a multiple of some sizes, that the first stages admit."""
        return int((self.shares // np.maximum(self.costs @ sizes, 1))[:stages].min())
