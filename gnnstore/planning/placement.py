"""Where a loader's data should lie, decided from sizes and a budget before any of it is read.

The choice changes how fast batches come, never what is in them. It is made once, with a
reason in words, so that nobody has to guess which way a run went.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from gnnstore.available import available_bytes
from gnnstore.errors import BudgetError, UsageError
from gnnstore.formats.schema import Schema
from gnnstore.units import format_size, parse_size

Strategy = Literal["memory", "mmap"]
Topology = Literal["memory", "mmap"]

# "auto" leaves an eighth of the budget to the batches that are being prepared.
_BATCH_SHARE = 8

_WHERE = {"memory": "in memory", "mmap": "mapped"}
_ALTERNATIVES = {
    ("memory", "memory"): " or choose strategy='mmap'",
    ("mmap", "memory"): " or choose topology='mmap'",
    ("mmap", "mmap"): "",
}


@dataclass(frozen=True)
class StoreSizes:
    """Bytes that the parts of a store take when they lie in memory.

    Attributes
    ----------
    topology_bytes : int
        `indptr`, `indices` and `edge_id`.
    rows_bytes : int
        Paged attributes of nodes and edges, without padding.
    cold_bytes : int
        Attributes that are stored compressed and are therefore always read whole.
    """

    topology_bytes: int
    rows_bytes: int
    cold_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        return self.topology_bytes + self.rows_bytes + self.cold_bytes

    @classmethod
    def of(cls, schema: Schema) -> StoreSizes:
        """Measure a homogeneous store from its schema alone."""
        edge = schema.edge
        structure = [edge.indptr, edge.indices, *([edge.edge_id] if edge.edge_id else [])]
        attributes = [
            *schema.node.attributes.values(),
            *edge.attributes.values(),
            *schema.graph_arrays.values(),
        ]
        return cls(
            topology_bytes=sum(spec.num_bytes for spec in structure),
            rows_bytes=sum(spec.num_bytes for spec in attributes if spec.layout == "paged"),
            cold_bytes=sum(spec.num_bytes for spec in attributes if spec.layout == "cold"),
        )


@dataclass(frozen=True)
class Placement:
    """The decision.

    Attributes
    ----------
    strategy : "memory" or "mmap"
        Where the rows of paged attributes lie.
    topology : "memory" or "mmap"
        Where the graph's structure lies.
    resident_bytes : int
        Memory that is held as long as the loader lives.
    budget_bytes : int
        Memory that may be used in all: `memory=`, or what was available.
    budget_is_promise : bool
        Whether the user set the budget, so that batches in flight must stay within it too.
    reason : str
        Why, in one sentence.
    """

    strategy: Strategy
    topology: Topology
    resident_bytes: int
    budget_bytes: int
    budget_is_promise: bool
    reason: str

    @property
    def spare_bytes(self) -> int | None:
        """Bytes for batches in flight; None where nobody set a budget."""
        return self.budget_bytes - self.resident_bytes if self.budget_is_promise else None


def place(
    sizes: StoreSizes,
    *,
    strategy: str = "auto",
    topology: str = "auto",
    memory: int | str | None = None,
    seeds_bytes: int = 0,
    shared_bytes: int = 0,
) -> Placement:
    """Decide where a store's parts lie while a loader runs.

    Parameters
    ----------
    sizes : StoreSizes
        What there is to place.
    strategy : "auto", "memory" or "mmap"
        "auto": "memory" where everything fits the budget, else "mmap".
    topology : "auto", "memory" or "mmap"
        "auto": in memory where it fits the budget beside the rest.
    memory : int or str, optional
        The budget. By default what this process may still allocate.
    seeds_bytes : int
        What the loader holds besides: its seed nodes and their order.
    shared_bytes : int
        What other loaders on the same store already hold, which costs nothing to share.

    Raises
    ------
    UsageError
        If a choice is unknown, or strategy "memory" is to leave the topology out.
    BudgetError
        If what must lie in memory does not fit.
    """
    _check_choice("strategy", strategy, ("auto", "memory", "mmap"))
    _check_choice("topology", topology, ("auto", "memory", "mmap"))
    if strategy == "memory" and topology == "mmap":
        raise UsageError(
            "strategy='memory' holds everything in memory, the topology included; "
            "leave out topology='mmap', or choose strategy='mmap'"
        )
    if memory is None:
        budget, source = available_bytes() + shared_bytes, "of available memory"
    else:
        budget, source = parse_size(memory, name="memory"), "of the memory= budget"
    have = f"{format_size(budget)} {source}"
    usable = budget - budget // _BATCH_SHARE

    why = "it was asked for"
    if strategy == "auto":
        total = format_size(sizes.total_bytes)
        if seeds_bytes + sizes.total_bytes > usable:
            strategy, why = "mmap", f"the {total} of the store do not fit {have}"
        elif topology == "mmap":
            strategy, why = "mmap", "the topology is to stay mapped"
        else:
            strategy, why = "memory", f"all {total} of the store fit {have}"
    base = seeds_bytes + sizes.cold_bytes + (sizes.rows_bytes if strategy == "memory" else 0)
    if topology == "auto":
        fits = strategy == "memory" or base + sizes.topology_bytes <= usable
        topology = "memory" if fits else "mmap"
    resident = base + (sizes.topology_bytes if topology == "memory" else 0)

    if resident >= budget:
        missing = resident - budget + 1
        raise BudgetError(
            f"strategy {strategy!r} with the topology {_WHERE[topology]} needs {resident} bytes "
            f"({_parts(sizes, strategy, topology, seeds_bytes)}) and room for batches, but has "
            f"{budget} bytes {source}: {missing} bytes too few; raise memory= by at least "
            f"{format_size(missing)}{_ALTERNATIVES[strategy, topology]}"
        )
    return Placement(
        strategy=cast(Strategy, strategy),
        topology=cast(Topology, topology),
        resident_bytes=resident,
        budget_bytes=budget,
        budget_is_promise=memory is not None,
        reason=(
            f"strategy {strategy!r} because {why}; topology {_WHERE[topology]} "
            f"({format_size(sizes.topology_bytes)}); {format_size(resident)} held in memory"
        ),
    )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name}={value!r} is unknown; choose one of {', '.join(choices)}")


def _parts(sizes: StoreSizes, strategy: str, topology: str, seeds_bytes: int) -> str:
    parts = [(sizes.cold_bytes, "compressed attributes"), (seeds_bytes, "seeds and their order")]
    if topology == "memory":
        parts.insert(0, (sizes.topology_bytes, "topology"))
    if strategy == "memory":
        parts.insert(0, (sizes.rows_bytes, "attributes"))
    return " + ".join(f"{format_size(size)} of {what}" for size, what in parts)
