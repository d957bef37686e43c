"""The computation of a layer over all nodes, block by block, in order.

While the layer runs on a block, the next is made in one thread, and the result for the block before
is written in another: a copy to the page cache, checksums, and the wait for each finished file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnstore._core import release_heap
from gnnstore.formats import PagedArrayWriter
from gnnstore.layerwise.blocks import BlockMaker
from gnnstore.layerwise.graph import GraphReader
from gnnstore.layerwise.models.block import Block, DegreeNorm
from gnnstore.layerwise.plan import DTYPES, LayerPlan
from gnnstore.progress import Phase
from gnnstore.threads import ordered_map, prefetch


def summary(facts: Mapping[str, Any]) -> str:
    """Return the counts and times of a layer as a sentence."""
    read, written, packed = (
        facts[name] / 1e9 for name in ("bytes_read", "bytes_written", "bytes_packed")
    )
    rate = (read + written) / max(facts["seconds"], 1e-9)
    return (
        "{name}: {num_blocks} blocks in {seconds:.1f} s: {seconds_waiting:.1f} s waiting for rows, "
        "{seconds_running:.1f} s in the layer, {seconds_writing:.1f} s waiting for writes; read "
        f"{read:.2f} GB, wrote {written:.2f} GB ({packed:.2f} GB packed): {rate:.2f} GB/s"
    ).format_map(facts)


def run_pass(
    plan: LayerPlan,
    maker: BlockMaker,
    writer: PagedArrayWriter,
    phase: Phase,
) -> tuple[int, dict[str, Any]]:
    """Run a layer on the rows that are not written; return bytes written, counts and times."""
    start = perf_counter()
    waited = ran = 0.0
    num_blocks = 0
    done = writer.skip(writer.num_committed_rows)
    phase.advance(done)
    bytes_before = writer.remaining_bytes
    num_ahead = 1 if maker.limits.is_ahead else 0
    blocks = prefetch(
        maker.blocks(done),
        num_ahead=num_ahead,
        describe="while making block {}".format,
        stop=maker.packer.stop.set,
    )

    def run_next() -> Tensor:
        nonlocal done, waited, ran, num_blocks
        began = perf_counter()
        first, block = next(blocks)
        waited += perf_counter() - began
        began = perf_counter()
        where = f"nodes {first} to {first + block.num_targets - 1}"
        whole = maker.complete(block).to(plan.kind.device)
        rows = plan.call.run(whole, DTYPES[plan.dtype], where)
        ran += perf_counter() - began
        done = first + block.num_targets
        num_blocks += 1
        del block, whole  # frees it before another block is begun
        release_heap()
        return rows

    def results() -> Iterator[Tensor]:
        while done < writer.spec.num_rows:
            yield run_next()

    def write(rows: Tensor) -> int:
        # A store has bfloat16 as its bits.
        is_half = rows.dtype == torch.bfloat16
        writer.append(rows.view(torch.int16).numpy().view(np.uint16) if is_half else rows.numpy())
        return len(rows)

    written = ordered_map(
        write,
        results(),
        num_threads=1,  # rows and lines of the journal keep their order
        lookahead=lambda: num_ahead + 1,
        describe="while writing the rows of block {}".format,
    )
    begun = perf_counter()
    with closing(blocks), closing(written):
        for num_rows in written:
            phase.advance(num_rows)
    end = perf_counter()
    return bytes_before - writer.remaining_bytes, {
        "num_blocks": num_blocks,
        "seconds": end - start,
        "seconds_waiting": waited,  # for blocks that were not made yet
        "seconds_running": ran,  # in the layer
        # Waiting for rows of the block before that were not written yet.
        "seconds_writing": end - begun - waited - ran,
    }


def degree_scale(
    graph: GraphReader, norm: DegreeNorm, dtype: torch.dtype, advance: Callable[[int], None]
) -> Tensor:
    """Compute 1 / sqrt(degree) of all nodes, in one pass over the edges: [N] of some type."""
    scale = torch.empty(graph.num_nodes, dtype=dtype)
    for first, begins in graph.pieces():
        num_targets = len(begins) - 1
        begin, end = int(begins[0]), int(begins[-1])
        sources = torch.from_numpy(graph.sources(begin, end).astype(np.int64)).sub_(first)
        # Of its source only matters whether it is the target itself.
        sources[(sources < 0) | (sources >= num_targets)] = num_targets
        edges = {}
        if norm.weight_name is not None:
            weights = torch.from_numpy(graph.data(norm.weight_name, begin, end))
            edges[norm.weight_name] = weights.to(dtype)
        rows = torch.empty(num_targets + 1, 0, dtype=dtype)
        block = Block(rows, torch.from_numpy(begins - begin), sources, edges)
        scale[first : first + num_targets] = norm.scale(block)
        advance(num_targets)
    return scale
