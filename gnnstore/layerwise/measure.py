"""Measures the memory that a layer takes on a block, before any block is made.

The tensors that a layer makes grow with the edges, nodes and targets of a block. At any moment
their bytes are linear in these three numbers, so the peak, being the largest of linear functions,
is at most the sum of the peaks of blocks in which one of the numbers is large and the others are
negligible. Three such blocks are run and measured.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gnnstore.budget.ledger import Reservation
from gnnstore.errors import UsageError, described
from gnnstore.layerwise.limits import EDGES, NODES, TARGETS
from gnnstore.layerwise.models.block import Block
from gnnstore.layerwise.models.calls import LayerCall, RowKind

_PROBE_SIZE = 1024
# Kernels take memory in addition to tensors: scattering sorts positions by target, twice 16 bytes.
_KERNEL_BYTES_PER_EDGE = 32
# For memory that the allocator leaves unused between blocks of many sizes.
_SLACK = 1.1


class PeakMeter(TorchDispatchMode):
    """Measures the peak of the bytes of tensors that are made in its context."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0  # the most bytes that were alive at once
        self._alive_bytes = 0
        self._tensors = [tensor for tensor in known if tensor.layout is torch.strided]
        self._seen = {tensor.untyped_storage()._cdata for tensor in self._tensors}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count the storage of its results."""
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


def measure_call(
    call: LayerCall, kind: RowKind, out_dtype: torch.dtype | None
) -> tuple[Reservation, Tensor]:
    """Run a layer on three blocks of zeros."""
    many = _PROBE_SIZE
    shapes = [(1, many, 1), (1, many, many)]
    if call.needs_edges:
        shapes.insert(0, (many, 2, 1))
    else:
        shapes = [(0, many, many)]
    peaks = []
    for shape in shapes:
        block = _block_of_zeros(*shape, call, kind)
        if call.projection is not None:
            mapped = torch.zeros(len(block.x), call.projection.width, dtype=kind.dtype)
            block = replace(block, x=mapped, own=block.x_dst)
        known = [block.x, block.x_dst, block.begins, block.sources, *block.edges.values()]
        known += [] if block.scale is None else [block.scale]
        for part in call.layer.parts:
            if isinstance(part, torch.nn.Module):
                known += [*part.parameters(), *part.buffers()]
        try:
            with PeakMeter(known) as meter:
                result = call(block)
                if out_dtype is not None:
                    result = result.to(out_dtype)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UsageError(
                f"{call.layer.name} fails on {shape[1]} rows of zeros with {shape[0]} edges, "
                f"though not on fewer: {described(error)}"
            ) from error
        peaks.append(_SLACK * meter.peak_bytes / many)
    per_edge, per_node, per_target = [0.0] * (3 - len(peaks)) + peaks
    per = {
        EDGES: ceil(per_edge) + (_KERNEL_BYTES_PER_EDGE if call.needs_edges else 0),
        NODES: ceil(per_node),
        TARGETS: ceil(max(0.0, per_target - per_node)),  # targets are nodes as well
    }
    return Reservation("the layer", per=per), result[:1].clone()


def _block_of_zeros(
    num_edges: int, num_nodes: int, num_targets: int, call: LayerCall, kind: RowKind
) -> Block:
    device, dtype = kind.device, kind.dtype
    begins = torch.full((num_targets + 1,), num_edges, device=device)
    begins[0] = 0
    # No edge from a node to itself: layers may treat those differently.
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
