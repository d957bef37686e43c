"""`gnnstore reorder STORE OUT`: nodes numbered so that rows needed often lie together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gnnstore.converters.stores.reorder import ORDERS, reorder
from gnnstore.errors import UsageError
from gnnstore.tools.commands.convert import output_options
from gnnstore.tools.convert import convert
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.options import (
    batch_options,
    declared,
    is_batch_option,
    refuse_given,
    session_options,
)
from gnnstore.tools.ui.session import Session

if TYPE_CHECKING:
    from gnnstore.tools.ui.options import SamplingOptions, SeedOptions

_HELP = """Renumber the nodes of a store, so that rows needed often lie together.

OUT is another store with everything that STORE has. Node ids change, in edges, splits and
batches: store.original_ids[node] is the id in the original data, and store.ids_of(original) maps
back. Edges are known by their positions in OUT; store.original_edge_ids[position] is the old id.

--order degree sorts nodes by descending out-degree, so that nodes without out-edges come last.
--order frequency samples batches, with the options of `gnnstore predict`, and puts the nodes that
most batches need first. --order community groups nodes that share in-neighbours, the most needed
communities first, and sorts each community by degree.

\b
Examples:
  gnnstore reorder graph.gnn --estimate
  gnnstore reorder graph.gnn ordered.gnn
  gnnstore reorder graph.gnn ordered.gnn --order frequency \\
    --num-neighbors 15,10 --input-nodes train
"""


@click.command(name="reorder", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@click.argument("output", metavar="[OUT]", type=click.Path(), required=False)
@declared(
    f"""
  --order {"|".join(ORDERS)} = degree  The order of nodes; see above.
  --estimate  Print savings and cost, and write nothing.
  --edge-ids/--no-edge-ids  Store the ids that edges have in STORE. Default: yes.
  --seed N>=0 = 0  With --order community: decides between equally good communities.
"""
)
@batch_options
@declared("  --spill-dir DIR  Directory for data that is sorted on disk. Default: that of OUT.")
@output_options
@session_options
def command(
    session: Session,
    *,
    sampling: SamplingOptions,
    batch_size: int,
    seeds_asked: SeedOptions,
    estimate: bool,
    **arguments: Any,
) -> None:
    """Reorder a store; users see `_HELP`."""
    if not estimate and arguments["output"] is None:
        raise UsageError("OUT is missing: where the new store is to be; or give --estimate")
    order = arguments["order"]
    if order != "frequency":
        refuse_given(is_batch_option, "only with --order frequency, which samples batches")
    if order != "community":
        refuse_given("seed".__eq__, "only with --order community")
    scores = None
    if order == "frequency":
        # On demand: torch and the kernels take longer to load than --help may.
        from gnnstore.tools.reorder import count_batches  # noqa: PLC0415

        scores = count_batches(
            session,
            arguments["store"],
            sampling,
            batch_size,
            seeds_asked,
            memory_bytes=arguments["memory_bytes"],
        )
    if estimate:
        from gnnstore.tools.reorder import estimate_order  # noqa: PLC0415

        edge_ids = arguments["edge_ids"] is not False
        return estimate_order(session, arguments["store"], order, scores, edge_ids)
    return convert(session, reorder, scores=scores, **arguments)
