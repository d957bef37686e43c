"""What inference is going to do, decided and checked before any of it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnstore.errors import BudgetError, UsageError
from gnnstore.formats import AttributeSpec
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, PageGeometry
from gnnstore.layerwise.memory import BlockCosts, BlockLimits, Sizes, measure_call
from gnnstore.layerwise.models.calls import LayerCall, RowKind, choose_call
from gnnstore.layerwise.models.layers import Layer
from gnnstore.units import format_at_least, format_size

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
# Rows come in recycled buffers, whose sizes are rounded up by so much at most.
_POOL_ROUNDING = 1.125
# Of a GPU's free memory, for blocks: what its allocator leaves unused is not small.
_DEVICE_SHARE = 0.6


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """How one layer is run.

    Attributes
    ----------
    call : LayerCall
    kind : RowKind
        Of the rows that it takes.
    costs : BlockCosts
    width : int
        Of the rows that it gives.
    dtype : str
        In which these are written.
    """

    call: LayerCall
    kind: RowKind
    costs: BlockCosts
    width: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that it gives."""
        return self.width * DTYPES[self.dtype].itemsize

    def disk_bytes(self, num_nodes: int) -> int:
        """Return the bytes that its rows take on disk."""
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
    """Try each layer on a small graph, and find out what it takes.

    Parameters
    ----------
    table : AttributeSpec
        The first layer's input.
    edge_specs : Mapping of str to AttributeSpec
        Data of edges by the argument that takes it.
    id_bytes : int
        Of a source as stored.
    dtype : str, optional
        In which all rows are written; by default that in which they are computed.

    Raises
    ------
    UsageError
        If a layer fails, is not layer-wise, or none takes the data of edges that there is.
    """
    plans: list[LayerPlan] = []
    width, stored = table.shape[1], table.dtype
    edge_widths = {
        name: int(np.prod(spec.shape[1:])) if len(spec.shape) > 1 else 0
        for name, spec in edge_specs.items()
    }
    for layer in layers:
        kind = RowKind(width, stored, _computed_in(layer, stored), device, edge_widths)
        call = choose_call(layer, kind)
        sizes, row = measure_call(call, kind, None if dtype is None else DTYPES[dtype])
        stored_next = str(row.dtype).removeprefix("torch.")
        if stored_next not in DTYPES:
            raise UsageError(
                f"{layer.name} gives {stored_next}, but rows are written as one of "
                f"{', '.join(DTYPES)}; leave the last step out, and take it from the result"
            )
        written = Sizes(0, 0, row.shape[1] * row.dtype.itemsize)
        costs = _costs(call, kind, (sizes, written), id_bytes)
        plans.append(LayerPlan(call, kind, costs, row.shape[1], stored_next))
        width, stored = row.shape[1], stored_next
    taken = {name for plan in plans for name in plan.call.takes}
    for name in edge_specs.keys() - taken:
        raise UsageError(
            f"{name}= names data of edges, but none of the layers takes an argument {name!r}; "
            "leave it out"
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


def _costs(call: LayerCall, kind: RowKind, after: tuple[Sizes, Sizes], id_bytes: int) -> BlockCosts:
    item_bytes = kind.dtype.itemsize
    row_bytes = _POOL_ROUNDING * kind.row_bytes
    if not call.needs_edges:
        # Ids; pointers to edges that there are not.
        held = Sizes(0, row_bytes, 8)
        return BlockCosts(held, Sizes(0, 8, 0), *after)
    edge_bytes = sum(max(1, kind.edge_widths[name]) for name in call.takes) * item_bytes
    scale_bytes = 0 if call.norm is None else 4
    held = Sizes(8 + edge_bytes, row_bytes + scale_bytes, 8)
    # Sources as they are stored, by piece; data of edges as stored, its order, and positions.
    data_bytes = 24 + edge_bytes if call.takes else 0
    converted_bytes = 0 if kind.is_as_stored else kind.stored_bytes
    making = Sizes(id_bytes + data_bytes, 8 + converted_bytes, 8)
    return BlockCosts(held, making, *after)


@dataclass(frozen=True)
class Hub:
    """The node with the most in-neighbours."""

    node: int
    degree: int


def limit_blocks(
    plans: Sequence[LayerPlan],
    *,
    memory_bytes: int,
    fixed_bytes: int,
    num_nodes: int,
    num_edges: int,
    hub: Hub,
) -> list[BlockLimits]:
    """Decide how large the blocks of each layer may be.

    Parameters
    ----------
    memory_bytes : int
        The budget.
    fixed_bytes : int
        Of it, what is needed besides blocks.

    Raises
    ------
    BudgetError
        If the hub's in-neighbourhood does not fit; naming the least budget.
    """
    found = []
    least, worst = 0, plans[0]
    for plan in plans:
        largest = _largest(plan, hub, num_nodes)
        for_blocks = max(0, memory_bytes - fixed_bytes)
        if plan.kind.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(plan.kind.device)
            for_blocks = min(for_blocks, int(_DEVICE_SHARE * free))
        degree = num_edges / max(1, num_nodes) if plan.call.needs_edges else 0.0
        limits = BlockLimits.of(plan.costs, for_blocks, degree, largest)
        found.append(limits)
        needed = limits.least_bytes(*largest) if num_nodes else 0
        if needed > least:
            least, worst = needed, plan
    total = fixed_bytes + least
    if not all(
        limits.admits(*_largest(plan, hub, num_nodes)) or not num_nodes
        for plan, limits in zip(plans, found, strict=True)
    ):
        raise BudgetError(
            f"{worst.call.layer.name} takes {format_size(least)} for node {hub.node} with its "
            f"{hub.degree} in-neighbours at once, and {format_size(fixed_bytes)} besides: "
            f"{format_at_least(total)} in all, but there are {format_size(memory_bytes)}; raise "
            f"memory= to at least {format_at_least(total)}, or evaluate with a "
            "gnnstore.NeighborLoader that samples neighbours"
        )
    return found


def _largest(plan: LayerPlan, hub: Hub, num_nodes: int) -> tuple[int, int, int]:
    """Return edges, nodes and targets of the block that cannot be made smaller."""
    if not plan.call.needs_edges:
        return 0, 1, 1
    return hub.degree, min(hub.degree + 1, num_nodes), 1


def check_dtype(dtype: Any) -> str | None:
    """Return the name of a floating type that rows can be written in.

    Raises
    ------
    UsageError
        If it is another.
    """
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else ""
    if not name:
        name = np.dtype(dtype).name
    if name not in DTYPES:
        raise UsageError(f"dtype={dtype!r}: rows are written as one of {', '.join(DTYPES)}")
    return name
