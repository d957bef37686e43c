"""Gathering random feature rows in memory: gnnstore's kernel compared with torch's indexing.

Every loader copies rows, with any strategy. The workload is a batch of W: 103,000 random rows of
512 bytes from a table of 2 GB. Every gather takes rows that no gather before it took, since a large
third-level cache would otherwise serve them.

The bar is four times torch, one thread each. `memcpy` is the yardstick: as many bytes copied
in order into a reused buffer. Run `python -m benchmarks.gather`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import Timing, parser, report, time_in_turns
from gnnstore import _core

BAR = 4.0
BASELINE, OURS = "torch x[ids], fresh tensor", "gnnstore, table on huge pages"


def filled(num_bytes: int) -> NDArray[np.uint8]:
    """Return memory whose pages all exist, and differ."""
    table = np.empty(num_bytes, dtype=np.uint8)
    table.view(np.uint64)[:] = np.arange(num_bytes // 8, dtype=np.uint64)
    return table


def main() -> None:
    """Time the gathers in turns and print rates and ratios."""
    options = parser(__doc__)
    options.add_argument("--table-bytes", type=int, default=2 << 30, help="the table (2 GiB)")
    options.add_argument("--row-bytes", type=int, default=512, help="a row (512), a multiple of 8")
    options.add_argument("--num-rows", type=int, default=103_000, help="rows a gather (103000)")
    args = options.parse_args()
    row_bytes, num_ids = args.row_bytes, args.num_rows
    table_rows = (args.table_bytes // (8 if args.quick else 1)) // row_bytes
    num_bytes = num_ids * row_bytes
    torch.set_num_threads(1)

    ordinary = filled(table_rows * row_bytes)
    huge = _core.pool_empty(ordinary.size)
    huge[:] = ordinary
    as_tensor = torch.from_numpy(ordinary.view(np.int64).reshape(table_rows, -1))
    kept = _core.pool_empty(num_bytes)
    reused = torch.empty((num_ids, row_bytes // 8), dtype=torch.int64)

    def take(table: NDArray[np.uint8], ids: NDArray[np.int64], num_threads: int) -> torch.Tensor:
        out = _core.pool_empty(num_bytes)
        _core.gather_rows(
            table,
            ids,
            out,
            num_rows=table_rows,
            row_bytes=row_bytes,
            rows_per_page=1,
            page_stride_bytes=row_bytes,
            num_threads=num_threads,
        )
        return torch.from_numpy(out.view(np.int64).reshape(num_ids, -1))

    def copy_in_order(ids: NDArray[np.int64]) -> None:
        start = int(ids[0]) * row_bytes % (huge.size - num_bytes)
        np.copyto(kept, huge[start : start + num_bytes])

    work: dict[str, Callable[[NDArray[np.int64]], object]] = {
        BASELINE: lambda ids: as_tensor[torch.from_numpy(ids)],
        "torch index_select, reused tensor": lambda ids: torch.index_select(
            as_tensor, 0, torch.from_numpy(ids), out=reused
        ),
        OURS: lambda ids: take(huge, ids, 1),
        "gnnstore, table on ordinary pages": lambda ids: take(ordinary, ids, 1),
        "gnnstore, two threads": lambda ids: take(huge, ids, 2),
        "memcpy, in order": copy_in_order,
    }
    rng = np.random.default_rng(0)
    same = rng.integers(0, table_rows, num_ids)
    assert torch.equal(take(huge, same, 2), as_tensor[torch.from_numpy(same)]), "results differ"
    # Drawn beforehand: a warm-up and `repeats` turns of each.
    draws = iter(rng.integers(0, table_rows, (len(work) * (args.repeats + 1), num_ids)))
    timings = time_in_turns(
        {name: lambda run=run: run(next(draws)) for name, run in work.items()},  # type: ignore[misc]
        args.repeats,
    )

    def rate(timing: Timing) -> str:
        return f"{num_bytes / timing.median / 1e9:5.2f} GB/s  ({timing.milliseconds()})"

    ratios = {name: timings[BASELINE].median / timing.median for name, timing in timings.items()}
    verdict = "reached" if ratios[OURS] >= BAR else "MISSED"
    rows = [(name, f"{rate(timing)}  {ratios[name]:5.1f} x") for name, timing in timings.items()]
    rows.append(("the bar", f"{BAR:.0f} x torch, one thread: {verdict}"))
    title = f"gather {num_ids} random rows of {row_bytes} bytes from {ordinary.size / 1e9:.2f} GB"
    report(title, rows, as_json=args.json, timings=timings, num_bytes=num_bytes, ratios=ratios)


if __name__ == "__main__":
    main()
