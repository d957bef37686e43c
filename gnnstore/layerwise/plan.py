"""Plans each layer before any work is done: its call, its memory, and the rows that it keeps.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gnnstore.budget.ledger import Ledger, Reservation, least_more
from gnnstore.caching.scores import select_nodes
from gnnstore.errors import UsageError
from gnnstore.formats import AttributeSpec
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, PageGeometry
from gnnstore.layerwise.calls import Block, LayerCall, RowKind, check_call
from gnnstore.layerwise.layers import Layer
from gnnstore.units import format_count

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_PROBE_SIZE = 1024
# Bytes of an edge that kernels take in addition to tensors: scattering sorts positions by target,
# twice 16 bytes.
_KERNEL_BYTES_PER_EDGE = 32
# Factor for memory that the allocator leaves unused between blocks of many sizes.
_SLACK = 1.1
# The share of a GPU's free memory for blocks: much of its allocator's memory stays unused.
_DEVICE_SHARE = 0.6
# Eighths by which the pool rounds buffers of rows up, at most.
_POOL_EIGHTHS = 9
# Rows are kept with the first of these shares of a layer's memory, in sixteenths, that leaves the
# node with the most in-neighbours room in three blocks.
_KEPT_SHARES = (12, 8, 4)
# The sizes of a block are an array: edges, nodes, targets (which are nodes as well).
EDGES, NODES, TARGETS = np.eye(3, dtype=np.int64)


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


def _measure(call: LayerCall, dtype: torch.dtype | None) -> tuple[npt.NDArray[np.int64], Tensor]:
    """Return the bytes for each edge, node and target that a layer takes, and a row of results."""
    many = _PROBE_SIZE
    shapes = [(0, many, many)]
    if call.needs_edges:
        shapes = [(many, 2, 1), (1, many, 1), (1, many, many)]
    peaks = [0.0, 0.0, 0.0]
    for at, (num_edges, num_nodes, num_targets) in enumerate(shapes, 3 - len(shapes)):
        block = _block_of_zeros(num_edges, num_nodes, num_targets, call)
        with PeakMeter() as meter:
            where = (
                f"{format_count(num_nodes, 'row')} of zeros with {format_count(num_edges, 'edge')}"
            )
            result = call.run(block, dtype, where)
        peaks[at] = _SLACK * meter.peak_bytes / many
    per_edge, per_node, per_target = map(ceil, peaks)
    per_edge += _KERNEL_BYTES_PER_EDGE if call.needs_edges else 0
    # Targets are nodes as well.
    return np.array([per_edge, per_node, max(0, per_target - per_node)]), result[:1].clone()


def _block_of_zeros(num_edges: int, num_nodes: int, num_targets: int, call: LayerCall) -> Block:
    kind = call.kind

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=kind.dtype, device=kind.device)

    begins = torch.full((num_targets + 1,), num_edges, device=kind.device)
    begins[0] = 0
    # No edge from a node to itself: layers may treat those differently.
    sources = torch.full((num_edges,), num_nodes - 1, device=kind.device)
    widths = {name: kind.edge_widths[name] for name in call.takes}
    edges = {name: zeros(num_edges, *([width] if width else [])) for name, width in widths.items()}
    scale = None if call.norm is None else torch.ones(num_nodes, device=kind.device)
    own = None if call.map_name is None else zeros(num_targets, kind.width)
    return Block(zeros(num_nodes, call.source_width), begins, sources, edges, scale, own)


@dataclass(frozen=True, eq=False)
class BlockLimits:
    """The memory for blocks in three stages: made, run by the layer, written."""

    # int64 [3, 3]: bytes for each edge, node and target, in each stage; blocks included.
    costs: npt.NDArray[np.int64]
    shares: npt.NDArray[np.int64]  # int64 [3]: the memory of each stage
    is_ahead: bool  # whether the three stages take place at once

    @classmethod
    def from_costs(
        cls, costs: npt.NDArray[np.int64], room: int, mean: Any, largest: npt.NDArray[np.int64]
    ) -> BlockLimits:
        """Divide memory between three blocks, or give it to one if a hub needs all of it.

        `mean` has the sizes of a block for each target.
        """
        needed = np.maximum(costs @ mean, 1.0)
        shares = cls(costs, (needed / needed.sum() * room).astype(np.int64), is_ahead=True)
        return shares if shares.admits(largest) else cls(costs, np.full(3, room), is_ahead=False)

    def admits(self, sizes: npt.ArrayLike) -> bool:
        """Return whether a block may have these sizes."""
        return bool((self.costs @ np.asarray(sizes) <= self.shares).all())

    def most(self, sizes: npt.NDArray[np.int64], stages: int = 3) -> int:
        """Return the largest block, as a multiple of some sizes, that the first stages admit."""
        return int((self.shares // np.maximum(self.costs @ sizes, 1))[:stages].min())


@dataclass(frozen=True)
class GraphSize:
    """The numbers of a graph that limit blocks."""

    num_nodes: int
    num_edges: int
    hub: tuple[int, int]  # the node with the most in-neighbours, and their number

    @property
    def whole(self) -> tuple[int, int, int]:
        """The sizes of a block of all nodes."""
        return self.num_edges, self.num_nodes, self.num_nodes


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """The plan of one layer."""

    call: LayerCall
    costs: npt.NDArray[np.int64]  # see `BlockLimits`
    width: int
    dtype: str  # type of the written result

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of its result."""
        return self.width * DTYPES[self.dtype].itemsize

    @property
    def packed_bytes(self) -> int:
        """Bytes of a row that is packed."""
        call = self.call
        return call.kind.stored_bytes if call.map_name is None else call.source_bytes

    def disk_bytes(self, num_nodes: int) -> int:
        """Return the bytes of its result on disk."""
        return PageGeometry(self.row_bytes, DEFAULT_PAGE_BYTES).body_bytes(num_nodes)

    def limits(self, room: int, graph: GraphSize, others: float | None = None) -> BlockLimits:
        """Divide memory between blocks, with some number of other rows a target."""
        degree = graph.num_edges / max(1, graph.num_nodes) if self.call.needs_edges else 0.0
        mean = np.array([degree, (degree if others is None else others) + 1, 1])
        return BlockLimits.from_costs(self.costs, room, mean, self.largest_block(graph))

    def largest_block(self, graph: GraphSize) -> npt.NDArray[np.int64]:
        """Return the sizes of the smallest possible block of the hub."""
        if not self.call.needs_edges:
            return NODES + TARGETS
        degree = graph.hub[1]
        return degree * EDGES + min(degree + 1, graph.num_nodes) * NODES + TARGETS

    def takes_whole(self, room: int, graph: GraphSize) -> bool:
        """Return whether all nodes are one block."""
        return self.limits(room, graph, 0.0).admits(graph.whole)

    def divide(
        self, room: int, graph: GraphSize, counts: npt.NDArray[np.uint32] | None
    ) -> tuple[BlockLimits, npt.NDArray[np.int64]]:
        """Divide memory between blocks and kept rows; return the nodes of these, ascending.

        Kept are those that most edges come from, by the edges out of each node, if the layer can
        refer to them where they are.
        """
        if self.takes_whole(room, graph):
            return self.limits(room, graph, 0.0), np.empty(0, np.int64)
        if counts is not None and self.call.sums:
            norm_bytes = 0 if self.call.norm is None else self.call.kind.dtype.itemsize
            each = self.call.source_bytes + 8 + norm_bytes  # the row, its id and its factor
            for share in _KEPT_SHARES:
                number = min(room * share // 16 // each, int(np.count_nonzero(counts)))
                kept = select_nodes(counts, number)
                others = (graph.num_edges - int(counts[kept].sum())) / graph.num_nodes
                limits = self.limits(room - number * each, graph, others)
                if limits.is_ahead:
                    return limits, kept
        return self.limits(room, graph), np.empty(0, np.int64)


def plan_layers(
    layers: Sequence[Layer],
    table: AttributeSpec,
    edge_specs: Mapping[str, AttributeSpec],
    *,
    dtype: str | None,
    device: torch.device,
) -> list[LayerPlan]:
    """Try each layer on a small graph, and measure the memory that it takes."""
    plans: list[LayerPlan] = []
    width, stored = table.shape[1], table.dtype
    edge_widths = {
        name: int(np.prod(spec.shape[1:])) if len(spec.shape) > 1 else 0
        for name, spec in edge_specs.items()
    }
    for layer in layers:
        kind = RowKind(width, stored, _computed_in(layer, stored), device, edge_widths)
        call = LayerCall.for_layer(layer, kind)
        check_call(call)
        running, row = _measure(call, None if dtype is None else DTYPES[dtype])
        width, stored = row.shape[1], str(row.dtype).removeprefix("torch.")
        if stored not in DTYPES:
            raise UsageError(
                f"{layer.name} gives {stored}, but rows are written as one of "
                f"{', '.join(DTYPES)}; leave the last step out, and take it from the result"
            )
        costs = _costs(call, running, width * row.dtype.itemsize)
        plans.append(LayerPlan(call, costs, width, stored))
    for name in edge_specs.keys() - {name for plan in plans for name in plan.call.takes}:
        raise UsageError(
            f"{name}= names edge data, but no layer takes an argument {name!r}; leave it out"
        )
    return plans


def _computed_in(layer: Layer, stored: str) -> torch.dtype:
    """Return the type of a layer's weights; without any, the rows' type, or float32."""
    for module in layer.modules:
        for tensor in module.parameters():
            if tensor.is_floating_point():
                return tensor.dtype
    return torch.float64 if stored == "float64" else torch.float32


def _costs(
    call: LayerCall, running: npt.NDArray[np.int64], result_bytes: int
) -> npt.NDArray[np.int64]:
    """Return the bytes of the three stages for each edge, node and target."""
    kind = call.kind
    source_bytes = call.source_bytes * _POOL_EIGHTHS // 8 + 1
    own_bytes = 0 if call.map_name is None else kind.row_bytes * _POOL_EIGHTHS // 8 + 1
    scale_bytes = 0 if call.norm is None else max(4, kind.dtype.itemsize)
    edge_bytes = sum(max(1, kind.edge_widths[name]) for name in call.takes) * kind.dtype.itemsize
    held = np.array([8 + edge_bytes, source_bytes + scale_bytes, 8 + own_bytes])
    # Edge data as stored, its order, and positions; ids of rows, in a list and in a group's.
    making = np.array([24 + edge_bytes if call.takes else 0, 16, 8])
    front = source_bytes * NODES if call.sums else 0  # copied in front of rows that are kept
    return np.array([held + making, held + front + running, result_bytes * TARGETS])


def rooms_of(
    plans: Sequence[LayerPlan],
    memory_bytes: int,
    memory: Callable[[int], Ledger],
    graph: GraphSize,
) -> list[int]:
    """Return the memory of each layer for its blocks and the rows that it keeps."""
    rooms, refused = [], []
    for plan in plans:
        room, device = max(0, memory(memory_bytes).left()), plan.call.kind.device
        if device.type == "cuda":
            room = min(room, int(_DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]))
        rooms.append(room)
        largest = plan.largest_block(graph)
        if graph.num_nodes and not plan.limits(room, graph).admits(largest):
            refused.append((int((plan.costs @ largest).max()), plan, room))
    if refused:
        least_bytes, plan, room = max(refused, key=lambda one: one[0])
        who, remedy = plan.call.layer.name, "evaluate with a gnnstore.NeighborLoader that samples"
        block = "node {} with its {} in-neighbours at once".format(*graph.hub)
        needed, ledger = Reservation(block, least_bytes), memory(memory_bytes)
        if ledger.left() >= least_bytes:
            device_memory = Ledger(room, (needed,), who, "of device memory", option="")
            raise device_memory.refusal(None, "run on device='cpu'", remedy)
        more = least_more(lambda more: max(0, least_bytes - memory(memory_bytes + more).left()))
        raise replace(ledger.add(needed), who=who, raise_by=more).refusal(None, remedy)
    return rooms


def check_dtype(dtype: Any) -> str | None:
    """Return the name of the floating type in which rows are written."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UsageError(f"dtype={dtype!r}: rows are written as one of {', '.join(DTYPES)}")
    return name
