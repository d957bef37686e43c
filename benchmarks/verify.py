"""Speed of `verify` on a store, compared with plain reading of the same files in the same run.

Run `python -m benchmarks.verify` for a store of 1 GB in the page cache, and add `--cold` to
drop its files from the cache before each turn.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import parser, report, time_in_turns
from gnnstore.pipeline.check import verify
from gnnstore.tools.bench.harness import drop_from_cache
from tests.support.stores import write_example_store


def read_all(store: Path) -> int:
    """Read every file from start to end with one thread, and return the bytes."""
    buffer = np.empty(2**22, dtype=np.uint8)
    total = 0
    for path in store.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while got := file.readinto(buffer.data):
                    total += got
    return total


def main() -> None:
    """Write a store, time both, print the ratio."""
    options = parser(__doc__)
    options.add_argument("--cold", action="store_true", help="drop the page cache each time")
    options.add_argument(
        "--dir", type=Path, help="where to write the store (a temporary directory)"
    )
    args = options.parse_args()
    num_nodes = 100_000 if args.quick else 2_000_000
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        store = write_example_store(
            Path(directory) / "a.gnn", num_nodes=num_nodes, num_edges=1000, feature_shape=(128,)
        ).path
        num_bytes = read_all(store)

        def reading() -> int:
            if args.cold:
                drop_from_cache([store])
            return read_all(store)

        def verifying(num_threads: int) -> None:
            if args.cold:
                drop_from_cache([store])
            if not verify(store, num_threads=num_threads).ok:
                raise SystemExit("the store is damaged")

        timings = time_in_turns(
            {
                "read, one thread": reading,
                "verify, one thread": lambda: verifying(1),
                "verify, all threads": lambda: verifying(len(os.sched_getaffinity(0))),
            },
            args.repeats,
        )
    read = timings["read, one thread"].median
    rows = [
        (name, f"{num_bytes / timing.median / 1e9:.2f} GB/s  ({timing.milliseconds()})")
        for name, timing in timings.items()
    ]
    ratios = {name: read / timing.median for name, timing in timings.items()}
    rows += [(f"{name} / read", f"{ratio:.2f}") for name, ratio in ratios.items() if "ver" in name]
    cache = "cold" if args.cold else "warm"
    title = f"verify a store of {num_bytes / 1e9:.2f} GB, {cache} page cache"
    report(title, rows, as_json=args.json, timings=timings, num_bytes=num_bytes, ratios=ratios)


if __name__ == "__main__":
    main()
