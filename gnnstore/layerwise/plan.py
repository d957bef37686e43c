"""Plans and checks each layer of an inference before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnstore.budget.ledger import Ledger, Reservation, least_more
from gnnstore.errors import BudgetError, UsageError
from gnnstore.formats import AttributeSpec
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, PageGeometry
from gnnstore.layerwise.limits import EDGES, NODES, TARGETS, BlockCosts, BlockLimits, block_sizes
from gnnstore.layerwise.measure import measure_call
from gnnstore.layerwise.models.calls import LayerCall, RowKind, choose_call
from gnnstore.layerwise.models.layers import Layer

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
# The share of a GPU's free memory for blocks: much of its allocator's memory stays unused.
_DEVICE_SHARE = 0.6
# Rows come in recycled buffers, whose sizes are rounded up by this factor at most.
_POOL_ROUNDING = 1.125


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """The plan of one layer."""

    call: LayerCall
    kind: RowKind
    costs: BlockCosts
    width: int
    dtype: str  # type of the written result

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of its result."""
        return self.width * DTYPES[self.dtype].itemsize

    @property
    def source_width(self) -> int:
        """Width of a row as the layer sums it."""
        projection = self.call.projection
        return self.kind.width if projection is None else projection.width

    @property
    def source_bytes(self) -> int:
        """Bytes of a row that is kept in memory."""
        return self.source_width * self.kind.dtype.itemsize

    @property
    def packed_bytes(self) -> int:
        """Bytes of a row that is packed."""
        return self.kind.stored_bytes if self.call.projection is None else self.source_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory for each row that is kept: the row, its id and its factor."""
        return self.source_bytes + 8 + (0 if self.call.norm is None else self.kind.dtype.itemsize)

    def disk_bytes(self, num_nodes: int) -> int:
        """Return the bytes of its result on disk."""
        return PageGeometry(self.row_bytes, DEFAULT_PAGE_BYTES).body_bytes(num_nodes)


def plan_layers(
    layers: Sequence[Layer],
    table: AttributeSpec,
    edge_specs: Mapping[str, AttributeSpec],
    *,
    id_bytes: int,
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
        call = choose_call(layer, kind)
        running, row = measure_call(call, kind, None if dtype is None else DTYPES[dtype])
        stored_next = str(row.dtype).removeprefix("torch.")
        if stored_next not in DTYPES:
            raise UsageError(
                f"{layer.name} gives {stored_next}, but rows are written as one of "
                f"{', '.join(DTYPES)}; leave the last step out, and take it from the result"
            )
        costs = _costs(call, kind, running, row, id_bytes)
        plans.append(LayerPlan(call, kind, costs, row.shape[1], stored_next))
        width, stored = row.shape[1], stored_next
    taken = {name for plan in plans for name in plan.call.takes}
    for name in edge_specs.keys() - taken:
        raise UsageError(
            f"{name}= names edge data, but no layer takes an argument {name!r}; leave it out"
        )
    return plans


def _computed_in(layer: Layer, stored: str) -> torch.dtype:
    """Return the type of a layer's weights; without any, that of the rows, or float32."""
    for part in layer.parts:
        if isinstance(part, torch.nn.Module):
            for tensor in part.parameters():
                if tensor.is_floating_point():
                    return tensor.dtype
    return torch.float64 if stored == "float64" else torch.float32


def _costs(
    call: LayerCall, kind: RowKind, running: Reservation, result: Tensor, id_bytes: int
) -> BlockCosts:
    row_bytes = ceil(_POOL_ROUNDING * kind.row_bytes)
    written = Reservation("results", per={TARGETS: result.shape[1] * result.dtype.itemsize})
    if not call.needs_edges:
        # Ids; pointers to no edges.
        held = Reservation("blocks", per={NODES: row_bytes, TARGETS: 8})
        making = Reservation("making blocks", per={NODES: 8})
        return BlockCosts((held, making), (held, running), (written,))
    edge_bytes = sum(max(1, kind.edge_widths[name]) for name in call.takes) * kind.dtype.itemsize
    scale_bytes = 0 if call.norm is None else max(4, kind.dtype.itemsize)
    source_bytes, own_bytes = row_bytes, 0
    if call.projection is not None:
        source_bytes = ceil(_POOL_ROUNDING * call.projection.width * kind.dtype.itemsize)
        own_bytes = row_bytes
    held = Reservation(
        "blocks",
        per={EDGES: 8 + edge_bytes, NODES: source_bytes + scale_bytes, TARGETS: 8 + own_bytes},
    )
    # Copied in front of the rows that are kept.
    front = Reservation("rows in front of kept ones", per={NODES: source_bytes if call.sums else 0})
    # Sources as stored, by piece; edge data as stored, its order, and positions.
    data_bytes = 24 + edge_bytes if call.takes else 0
    converted_bytes = 0 if kind.is_as_stored else kind.stored_bytes
    making = Reservation(
        "making blocks",
        per={EDGES: id_bytes + data_bytes, NODES: 8 + converted_bytes, TARGETS: 8},
    )
    return BlockCosts((held, making), (held, front, running), (written,))


@dataclass(frozen=True)
class Hub:
    """The node with the most in-neighbours."""

    node: int
    degree: int


@dataclass(frozen=True)
class GraphSize:
    """The numbers of a graph that limit blocks."""

    num_nodes: int
    num_edges: int
    hub: Hub


def limit_blocks(
    plans: Sequence[LayerPlan],
    memory_bytes: int,
    memory: Callable[[int], Ledger],
    graph: GraphSize,
) -> list[int]:
    """Return the memory of each layer for its blocks and the rows that it keeps."""
    rooms, refused = [], []
    for plan in plans:
        room = max(0, memory(memory_bytes).left())
        if plan.kind.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(plan.kind.device)
            room = min(room, int(_DEVICE_SHARE * free))
        rooms.append(room)
        limits, largest = block_limits(plan, room, graph), largest_block(plan, graph)
        if graph.num_nodes and not limits.admits(largest):
            refused.append((limits.least_bytes(largest), plan, room))
    if refused:
        worst = max(refused, key=lambda one: one[0])
        raise _refusal(*worst, memory_bytes=memory_bytes, memory=memory, hub=graph.hub)
    return rooms


def block_limits(
    plan: LayerPlan,
    room: int,
    graph: GraphSize,
    others: float | None = None,
    most_others: int | None = None,
) -> BlockLimits:
    """Divide memory between the blocks of a layer, with some number of other rows a target."""
    degree = graph.num_edges / max(1, graph.num_nodes) if plan.call.needs_edges else 0.0
    mean = block_sizes(degree, (degree if others is None else others) + 1, 1)
    return BlockLimits.of(plan.costs, room, mean, largest_block(plan, graph, most_others))


def largest_block(
    plan: LayerPlan, graph: GraphSize, most_others: int | None = None
) -> dict[str, int]:
    """Return the sizes of the smallest possible block of the hub."""
    if not plan.call.needs_edges:
        return block_sizes(0, 1, 1)
    degree = graph.hub.degree
    others = degree if most_others is None else min(degree, most_others)
    return block_sizes(degree, min(others + 1, graph.num_nodes), 1)


def _refusal(
    least_bytes: int,
    plan: LayerPlan,
    room: int,
    *,
    memory_bytes: int,
    memory: Callable[[int], Ledger],
    hub: Hub,
) -> BudgetError:
    who, remedy = plan.call.layer.name, "evaluate with a gnnstore.NeighborLoader that samples"
    block = f"node {hub.node} with its {hub.degree} in-neighbours at once"
    needed, ledger = Reservation(block, least_bytes), memory(memory_bytes)
    if ledger.left() >= least_bytes:
        device = Ledger(room, (needed,), who, "of device memory", option="")
        return device.refusal(None, "run on device='cpu'", remedy)
    more = least_more(lambda more: max(0, least_bytes - memory(memory_bytes + more).left()))
    ledger = replace(ledger.add(needed), who=who, raise_by=more)
    return ledger.refusal(None, remedy)


def check_dtype(dtype: Any) -> str | None:
    """Return the name of the floating type in which rows are written."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else ""
    if not name:
        name = np.dtype(dtype).name
    if name not in DTYPES:
        raise UsageError(f"dtype={dtype!r}: rows are written as one of {', '.join(DTYPES)}")
    return name
