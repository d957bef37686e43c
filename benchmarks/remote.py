"""Verified copies of a store, compared with `cp`, `sync` and a checksum in the same run.

Run `python -m benchmarks.remote` for a store of 2 GB: from a path, and from obstore's LocalStore;
and the memory that each takes beyond the program's own. The source is in the page cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import parser, report, time_in_turns
from gnnstore import _core
from gnnstore.formats.base.files import BLOCK_BYTES, directory_bytes
from gnnstore.remote.staging import stage
from tests.support.stores import write_example_store

_NODE_BYTES = 512 + 8
# Bytes that a copy may take beyond the program's own: requests in flight, and 100 MB.
_ALLOWED_BYTES = 16 * 2**24 + 100_000_000

_MEMORY = """
import json, re, sys
from obstore.store import LocalStore
from gnnstore.remote.staging import stage

def peak():
    # Not ru_maxrss, which a process has from the one that started it.
    text = open("/proc/self/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+)", text)[1]) * 1024

source, cache, kind = sys.argv[1:]
place = LocalStore(source) if kind == "obstore" else source
before = peak()
stage(place, cache)
print(json.dumps(peak() - before))
"""


def copy_plainly(source: Path, target: Path) -> None:
    """Copy as a user would: cp, sync, and the checksums of what is there."""
    subprocess.run(["cp", "-r", "--reflink=never", source, target], check=True)
    subprocess.run(["sync", "-f", target], check=True)
    threads = len(os.sched_getaffinity(0))
    for file in target.rglob("*"):
        if file.is_file():
            _core.crc32c_file(str(file), BLOCK_BYTES, threads)


def memory_of(source: Path, cache: Path, kind: str) -> int:
    """Return the bytes that a copy takes beyond what the program had."""
    command = [sys.executable, "-c", _MEMORY, str(source), str(cache), kind]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(cache)
    return int(json.loads(done.stdout))


def main() -> None:
    """Write a store, copy it in turns, print the ratios."""
    from obstore.store import LocalStore  # noqa: PLC0415 - an extra

    options = parser(__doc__)
    options.add_argument("--dir", type=Path, help="where to write (a temporary directory)")
    args = options.parse_args()
    wanted = 64_000_000 if args.quick else 2_000_000_000
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        source = write_example_store(
            Path(directory) / "a.gnn",
            num_nodes=wanted // _NODE_BYTES,
            num_edges=1000,
            feature_shape=(128,),
        ).path
        num_bytes, target = directory_bytes(source), Path(directory) / "copy"

        def plainly() -> None:
            copy_plainly(source, target)
            shutil.rmtree(target)

        def from_path() -> None:
            stage(source, target)
            shutil.rmtree(target)

        def from_obstore() -> None:
            stage(LocalStore(str(source)), target)
            shutil.rmtree(target)

        timings = time_in_turns(
            {"cp, sync, crc32c": plainly, "path": from_path, "obstore": from_obstore},
            args.repeats,
        )
        memory = {kind: memory_of(source, target, kind) for kind in ("path", "obstore")}
    plain = timings["cp, sync, crc32c"].median
    rows = [
        (name, f"{num_bytes / timing.median / 1e9:.2f} GB/s  ({timing.milliseconds()})")
        for name, timing in timings.items()
    ]
    ratios = {name: timings[name].median / plain for name in ("path", "obstore")}
    rows += [(f"{name} / cp, sync, crc32c", f"{ratio:.2f}") for name, ratio in ratios.items()]
    rows += [
        (f"{name}, memory", f"{taken / 1e6:.0f} MB of {_ALLOWED_BYTES / 1e6:.0f} MB allowed")
        for name, taken in memory.items()
    ]
    report(
        f"verified copies of a store of {num_bytes / 1e9:.2f} GB",
        rows,
        as_json=args.json,
        timings=timings,
        num_bytes=num_bytes,
        ratios=ratios,
        memory_bytes=memory,
    )


if __name__ == "__main__":
    main()
