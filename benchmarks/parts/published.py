"""Computes the table "Get the data" of the README: stores of published graphs, and minutes.

    python -m benchmarks.parts.published

Nothing is converted. Sizes of stores follow from the format and from the sizes that publishers
state; minutes follow from the rates of docs/benchmarks.md, "Inference and conversion". A test
compares the README with what this prints.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.writer.estimates import NodeTable, Workload, estimate
from gnnstore.units import format_size

# Measured on an AMD EPYC with 2 cores, on 26 and 25 November 2026: edges a second sorted in memory
# and on disk, and bytes of features a second.
EDGES_IN_MEMORY, EDGES_ON_DISK, FEATURE_BYTES = 75.5e6, 19.3e6, 771e6
MEMORY_BYTES = 16 * 10**9


class Graph(NamedTuple):
    """A published graph, as its publisher describes it, and how it is converted."""

    name: str
    num_nodes: int
    num_edges: int  # as published; reverse edges are added in conversion if `is_doubled`
    width: int  # features of a node
    item_bytes: int
    is_doubled: bool


GRAPHS = (
    Graph("ogbn-arxiv", 169_343, 1_166_243, 128, 4, True),
    Graph("ogbn-products", 2_449_029, 61_859_140, 100, 4, True),
    Graph("ogbn-papers100M", 111_059_956, 1_615_685_872, 128, 4, False),
    Graph("MAG240M, papers", 121_751_666, 1_297_748_926, 768, 2, True),
    Graph("IGB-tiny", 100_000, 547_416, 1024, 4, False),
    Graph("IGB-large", 100_000_000, 1_223_571_364, 1024, 4, False),
    Graph("com-Friendster", 65_608_366, 1_806_067_135, 0, 0, True),
)


def store_and_minutes(graph: Graph) -> tuple[str, str]:
    """Return the size of the store and the time of the conversion, as the README has them."""
    feature_bytes = graph.num_nodes * graph.width * graph.item_bytes
    table = NodeTable(graph.num_nodes, graph.width, graph.item_bytes)
    work = Workload(
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        node_tables=(table,) if graph.width else (),
    )
    rules = EdgeRules(undirected=graph.is_doubled)
    expected = estimate(work, rules, MEMORY_BYTES)
    rate = EDGES_ON_DISK if expected.spill_bytes else EDGES_IN_MEMORY
    seconds = graph.num_edges * rules.copies / rate + feature_bytes / FEATURE_BYTES
    minutes = "under 1" if seconds < 60 else f"{math.ceil(seconds / 60)}"
    return format_size(expected.final_bytes), minutes


def main() -> None:
    """Print the table's columns."""
    for graph in GRAPHS:
        print(graph.name, *store_and_minutes(graph), sep=" | ")


if __name__ == "__main__":
    main()
