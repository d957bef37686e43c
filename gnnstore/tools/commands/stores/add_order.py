"""`gnnstore add-order STORE`: what temporal and weighted sampling need, for a store that exists."""

from __future__ import annotations

import time

import click

from gnnstore.formats.store.reader import StoreReader
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.layout import Block
from gnnstore.tools.ui.options import declared, session_options
from gnnstore.tools.ui.session import Session

_HELP = """Prepare a store for temporal or weighted sampling.

For each time attribute (of nodes or edges, int64) the edges into a node get an order by time, and
for each weight attribute (of edges) sums. Loaders need these for time_attr= and weight_attr=. The
same options of `gnnstore convert` do it at once.

The store is replaced in one step. Its other files are not copied. Its uuid changes, so a store with
packed epochs or partitions is refused.

\b
Examples:
  gnnstore add-order mag.gnn --time-attr year
  gnnstore add-order reviews.gnn --time-attr time --weight-attr rating
"""


_LAYOUT = (
    "{store}",
    Block(
        "",
        {
            "type": "{type.0} -> {type.2}",
            "relation": "{type.1}",
            "orders by time": "{orders}",
            "sums of weights": "{weight_sums}",
        },
        "edge_types",
    ),
)


@click.command(name="add-order", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@declared("""
  --time-attr NAME*
      Order edges by this attribute of nodes or edges, for loaders with time_attr=; repeat it for
      more.
  --weight-attr NAME*
      Sum this attribute of edges, for loaders with weight_attr=; repeat it for more.
  --memory MEMORY -> memory_bytes  Memory budget, such as 8GB.
""")
@session_options
def command(
    session: Session,
    store: str,
    time_attr: tuple[str, ...],
    weight_attr: tuple[str, ...],
    memory_bytes: int | None,
) -> None:
    """Add the arrays and say which there are."""
    from gnnstore.converters import add_order  # noqa: PLC0415 - the kernels load slowly

    started = time.perf_counter()
    with session.progress() as progress:
        path = add_order(
            store, time_attr, weight_attr, memory_bytes=memory_bytes, progress=progress
        )
    seconds = time.perf_counter() - started
    edges = StoreReader.open(path).schema.edge_types
    found = [
        {
            "type": list(edge.type),
            "orders": list(edge.orders),
            "weight_sums": list(edge.weight_sums),
        }
        for edge in edges
    ]
    document = {"store": str(path), "seconds": seconds, "edge_types": found}
    session.emit(document, _LAYOUT, [("gnnstore", "inspect", str(path))])
