"""What a block takes in memory, found out before any block is made.

The tensors that a layer makes on its way grow with the edges, nodes and targets of a block. At
any moment their bytes are linear in these three numbers, so the peak, being the largest of
linear functions, is at most the sum of the peaks of blocks in which one of the numbers is large
and the others are next to nothing. Three such blocks are run, and watched.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gnnstore.layerwise.models.block import Block
from gnnstore.layerwise.models.calls import LayerCall, RowKind
from gnnstore.layerwise.packing import INDEX_SHARE

_PROBE_SIZE = 1024
# Kernels take memory that is no tensor: scattering sorts positions by target, twice 16 bytes.
_KERNEL_BYTES_PER_EDGE = 32
# Of what was measured: what the allocator leaves unused between blocks of many sizes.
_SLACK = 1.1


class PeakMeter(TorchDispatchMode):
    """Watches the bytes of tensors that are made while it is entered.

    Parameters
    ----------
    known : iterable of Tensor
        What was there before; views of these count nothing.

    Attributes
    ----------
    peak_bytes : int
        The most bytes that were alive at once.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._alive_bytes = 0
        self._tensors = [tensor for tensor in known if tensor.layout is torch.strided]
        self._seen = {tensor.untyped_storage()._cdata for tensor in self._tensors}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count the storages of its results."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        num_bytes = storage.nbytes()
        self._alive_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self._alive_bytes)
        weakref.finalize(storage, self._drop, key, num_bytes)

    def _drop(self, key: int, num_bytes: int) -> None:
        self._seen.discard(key)
        self._alive_bytes -= num_bytes


@dataclass(frozen=True)
class Sizes:
    """Bytes for each edge, each node and each target of a block; targets are nodes as well."""

    per_edge: float
    per_node: float
    per_target: float

    def of(self, num_edges: Any, num_nodes: Any, num_targets: Any) -> Any:
        """Return the bytes of a block, or of several (arrays)."""
        return self.per_edge * num_edges + self.per_node * num_nodes + self.per_target * num_targets

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(
            self.per_edge + other.per_edge,
            self.per_node + other.per_node,
            self.per_target + other.per_target,
        )


@dataclass(frozen=True)
class BlockCosts:
    """What a block takes in memory, by the time at which it does.

    Attributes
    ----------
    held : Sizes
        The block itself.
    making : Sizes
        What is needed besides while it is made.
    running : Sizes
        What is needed besides while the layer runs on it, its result included.
    written : Sizes
        Its result, while that is written.
    """

    held: Sizes
    making: Sizes
    running: Sizes
    written: Sizes

    @property
    def first_half(self) -> Sizes:
        """While it is made."""
        return self.held + self.making

    @property
    def second_half(self) -> Sizes:
        """While the layer runs on it."""
        return self.held + self.running


@dataclass(frozen=True)
class BlockLimits:
    """How large a block may be: while a layer runs on it, the next is made.

    And what it gave for the one before is written.

    Attributes
    ----------
    costs : BlockCosts
    making_bytes, running_bytes, writing_bytes : float
        For the block that is made, for that on which the layer runs, and for the rows that are
        written.
    is_ahead : bool
        Whether the three take place at once.
    """

    costs: BlockCosts
    making_bytes: float
    running_bytes: float
    writing_bytes: float
    is_ahead: bool

    @classmethod
    def of(
        cls, costs: BlockCosts, memory_bytes: int, mean_degree: float, largest: tuple[int, int, int]
    ) -> BlockLimits:
        """Divide memory between three blocks, or give it to one where a hub needs it.

        Parameters
        ----------
        memory_bytes : int
            For blocks.
        mean_degree : float
            Edges of a target.
        largest : (int, int, int)
            Edges, nodes and targets of the largest block that cannot be made smaller.
        """
        stages = (costs.first_half, costs.second_half, costs.written)
        needed = [float(stage.of(mean_degree, mean_degree + 1, 1)) for stage in stages]
        making, running, writing = (part / sum(needed) * memory_bytes for part in needed)
        # Of a group of blocks that are packed, it is remembered where their rows go.
        making *= 1 - 1 / INDEX_SHARE
        limits = cls(costs, making, running, writing, is_ahead=True)
        if limits.admits(*largest):
            return limits
        return cls(costs, memory_bytes, memory_bytes, memory_bytes, is_ahead=False)

    def admits(self, num_edges: Any, num_nodes: Any, num_targets: Any) -> Any:
        """Whether a block may be so large, or which of several (arrays)."""
        size = (num_edges, num_nodes, num_targets)
        return (
            (self.costs.first_half.of(*size) <= self.making_bytes)
            & (self.costs.second_half.of(*size) <= self.running_bytes)
            & (self.costs.written.of(*size) <= self.writing_bytes)
        )

    @property
    def most_rows(self) -> int:
        """Targets of the largest block without edges."""
        costs = self.costs
        stages = (costs.first_half, costs.second_half, costs.written)
        limits = (self.making_bytes, self.running_bytes, self.writing_bytes)
        pairs = zip(stages, limits, strict=True)
        return int(min(limit / max(stage.of(0, 1, 1), 1.0) for stage, limit in pairs))

    def least_bytes(self, num_edges: int, num_nodes: int, num_targets: int) -> int:
        """Return the memory with which a block is admitted."""
        size = (num_edges, num_nodes, num_targets)
        needed = max(self.costs.first_half.of(*size), self.costs.second_half.of(*size))
        return math.ceil(float(needed))


def measure_call(
    call: LayerCall, kind: RowKind, out_dtype: torch.dtype | None
) -> tuple[Sizes, Tensor]:
    """Run a layer on three blocks of zeros.

    Parameters
    ----------
    out_dtype : torch.dtype, optional
        In which its result is wanted; by default as it comes.

    Returns
    -------
    Sizes
        What it takes at most besides the block, its result included.
    Tensor [1, width]
        A row of its result.
    """
    many = _PROBE_SIZE
    shapes = [(1, many, 1), (1, many, many)]
    if call.needs_edges:
        shapes.insert(0, (many, 2, 1))
    else:
        shapes = [(0, many, many)]
    peaks = []
    for shape in shapes:
        block = _block_of_zeros(*shape, call, kind)
        known = [block.x, block.begins, block.sources, *block.edges.values()]
        known += [] if block.scale is None else [block.scale]
        for part in call.layer.parts:
            if isinstance(part, torch.nn.Module):
                known += [*part.parameters(), *part.buffers()]
        with PeakMeter(known) as meter:
            result = call(block)
            if out_dtype is not None:
                result = result.to(out_dtype)
        peaks.append(_SLACK * meter.peak_bytes / many)
    # Targets are nodes as well: what those cost is not counted twice.
    per_edge, per_node, per_target = [0.0] * (3 - len(peaks)) + peaks
    extra = _KERNEL_BYTES_PER_EDGE if call.needs_edges else 0
    sizes = Sizes(per_edge + extra, per_node, max(0.0, per_target - per_node))
    return sizes, result[:1].clone()


def _block_of_zeros(
    num_edges: int, num_nodes: int, num_targets: int, call: LayerCall, kind: RowKind
) -> Block:
    device, dtype = kind.device, kind.dtype
    begins = torch.full((num_targets + 1,), num_edges, device=device)
    begins[0] = 0
    # No edge from a node to itself: those may be dealt with in other ways.
    sources = torch.full((num_edges,), num_nodes - 1, device=device)
    edges = {
        name: torch.zeros((num_edges, width) if width else (num_edges,), dtype=dtype, device=device)
        for name, width in kind.edge_widths.items()
        if name in call.takes
    }
    scale = None
    if call.norm is not None:
        scale = torch.ones(num_nodes, device=device)
    x = torch.zeros(num_nodes, kind.width, dtype=dtype, device=device)
    return Block(x, begins, sources, edges, scale)
