"""Plans and checks each layer of an inference before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.budget.ledger import Ledger, Reservation, least_more
from gnnstore.errors import UsageError
from gnnstore.formats import AttributeSpec
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, PageGeometry
from gnnstore.layerwise.memory import EDGES, NODES, TARGETS, BlockLimits, measure_call
from gnnstore.layerwise.models.calls import LayerCall, RowKind, check_call
from gnnstore.layerwise.models.layers import Layer

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
# The share of a GPU's free memory for blocks: much of its allocator's memory stays unused.
_DEVICE_SHARE = 0.6
# Rows come in buffers of a pool, whose sizes are rounded up by an eighth at most.
_POOL_EIGHTHS = 9


@dataclass(frozen=True)
class GraphSize:
    """The numbers of a graph that limit blocks."""

    num_nodes: int
    num_edges: int
    hub: tuple[int, int]  # the node with the most in-neighbours, and their number


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """The plan of one layer."""

    call: LayerCall
    kind: RowKind
    costs: npt.NDArray[np.int64]  # see `BlockLimits`
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
        """Bytes of a row as the layer sums it."""
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

    def limits(self, room: int, graph: GraphSize, others: float | None = None) -> BlockLimits:
        """Divide memory between blocks, with some number of other rows a target."""
        degree = graph.num_edges / max(1, graph.num_nodes) if self.call.needs_edges else 0.0
        mean = np.array([degree, (degree if others is None else others) + 1, 1])
        return BlockLimits.of(self.costs, room, mean, self.largest_block(graph))

    def largest_block(self, graph: GraphSize) -> npt.NDArray[np.int64]:
        """Return the sizes of the smallest possible block of the hub."""
        if not self.call.needs_edges:
            return NODES + TARGETS
        degree = graph.hub[1]
        return degree * EDGES + min(degree + 1, graph.num_nodes) * NODES + TARGETS


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
        call = LayerCall.of(layer, kind)
        check_call(call, kind)
        running, row = measure_call(call, kind, None if dtype is None else DTYPES[dtype])
        width, stored = row.shape[1], str(row.dtype).removeprefix("torch.")
        if stored not in DTYPES:
            raise UsageError(
                f"{layer.name} gives {stored}, but rows are written as one of "
                f"{', '.join(DTYPES)}; leave the last step out, and take it from the result"
            )
        costs = _costs(call, kind, running, width * row.dtype.itemsize, id_bytes)
        plans.append(LayerPlan(call, kind, costs, width, stored))
    for name in edge_specs.keys() - {name for plan in plans for name in plan.call.takes}:
        raise UsageError(
            f"{name}= names edge data, but no layer takes an argument {name!r}; leave it out"
        )
    return plans


def _computed_in(layer: Layer, stored: str) -> torch.dtype:
    """Return the type of a layer's weights; without any, that of the rows, or float32."""
    for module in layer.modules:
        for tensor in module.parameters():
            if tensor.is_floating_point():
                return tensor.dtype
    return torch.float64 if stored == "float64" else torch.float32


def _costs(
    call: LayerCall,
    kind: RowKind,
    running: npt.NDArray[np.int64],
    result_bytes: int,
    id_bytes: int,
) -> npt.NDArray[np.int64]:
    """Return the bytes of the three stages for each edge, node and target."""
    row_bytes = kind.row_bytes * _POOL_EIGHTHS // 8 + 1
    if not call.needs_edges:
        held = row_bytes * NODES + 8 * TARGETS
        return np.array([held + 8 * NODES, held + running, result_bytes * TARGETS])
    edge_bytes = sum(max(1, kind.edge_widths[name]) for name in call.takes) * kind.dtype.itemsize
    scale_bytes = 0 if call.norm is None else max(4, kind.dtype.itemsize)
    source_bytes, own_bytes = row_bytes, 0
    if call.projection is not None:
        source_bytes = call.projection.width * kind.dtype.itemsize * _POOL_EIGHTHS // 8 + 1
        own_bytes = row_bytes
    held = np.array([8 + edge_bytes, source_bytes + scale_bytes, 8 + own_bytes])
    # Sources as stored, by piece; edge data as stored, its order, and positions.
    data_bytes = 24 + edge_bytes if call.takes else 0
    converted_bytes = 0 if kind.is_as_stored else kind.stored_bytes
    making = np.array([id_bytes + data_bytes, 8 + converted_bytes, 8])
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
        room = max(0, memory(memory_bytes).left())
        if plan.kind.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(plan.kind.device)
            room = min(room, int(_DEVICE_SHARE * free))
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
            device = Ledger(room, (needed,), who, "of device memory", option="")
            raise device.refusal(None, "run on device='cpu'", remedy)
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
