"""`gnnstore bench`: measure this disk, or loaders on a store."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.errors import UsageError
from gnnstore.strategies.registry import auto
from gnnstore.tools.bench.harness import ways
from gnnstore.tools.options import (
    LOADER_SHARE,
    SLACK_BYTES,
    Command,
    Group,
    Number,
    Parsed,
    batch_options,
    cache_option,
    declared,
    plot_option,
    session_options,
)
from gnnstore.tools.session import Session

_BENCH_HELP = """Measure a disk, or the strategies on a store.

\b
Examples:
  gnnstore bench disk /data
  gnnstore bench load papers100M.gnn
"""


@click.group(name="bench", cls=Group, help=_BENCH_HELP)
def bench_command() -> None:
    """Hold the benchmarks; users see `_BENCH_HELP`."""


_DISK_HELP = """Measure the disk that holds a directory, and save the result for loaders.

PATH is a directory (or a file in one) on the file system of your stores. A file of random bytes is
written there, read sequentially, and read at random in blocks of 512 bytes, 4 KiB and 64 KiB with
1 to 256 reads in flight. It takes at most a tenth of the free space and is removed afterwards.
Loaders on that file system then adapt merged reads and queue depths to the disk.

Run it while nothing else uses the disk.

\b
Examples:
  gnnstore bench disk /data
  gnnstore bench disk /data --plot disk.png
  gnnstore bench disk . --seconds 60 --size 8GiB --engine pread --no-save
"""


@bench_command.command(name="disk", cls=Command, help=_DISK_HELP)
@click.argument("path", type=click.Path())
@plot_option("Plot the result.")
@declared(
    """
  --seconds X = 15  Approximate duration of the measurement.
  --size SIZE -> num_bytes = 1GiB  Size of the test file.
  --engine io_uring|pread  Engine that reads. Default: the one that loaders choose here.
  --no-save  Do not save the result for loaders.
""",
    seconds=Number(min=0.1, max=3600),
)
@session_options
def disk(session: Session, path: str, no_save: bool, **options: Any) -> int:
    """Measure, save the result, plot it, print it, and return the exit status."""
    # On demand: the kernels and matplotlib take longer to load than --help may.
    from gnnstore.tools.bench.disk import bench_disk  # noqa: PLC0415

    return bench_disk(session, path, is_saved=not no_save, **options)


def _parse_ways(text: str, _: str) -> tuple[str, ...]:
    choices, names = auto().by_choice, []
    for name in map(str.strip, text.split(",")):
        names.append(choices[name].choice if name in choices else name)
        if names[-1] not in ways():
            raise UsageError(f"{name!r} is none of {', '.join(ways())}")
    return tuple(names)


_LOAD_HELP = """Time the strategies on STORE when its features do not fit in memory.

Each strategy runs in a process of its own, in a memory cgroup that also counts the page cache. The
limit has room for the graph's topology and narrow attributes such as labels, and for
--loader-memory and --slack in addition. Whole epochs are timed; for strategies that sample ahead,
the second one, which is prepared during the first. Strategies whose batches all cost the same
(numpy-mmap, mmap, direct) are timed on 24 batches.

The baseline is numpy-mmap: the same sampler, and rows gathered by NumPy with 32 threads from a
mapping of the features with MADV_RANDOM. memory runs without a limit, with everything in memory.
The disk is measured before each run.

No model is trained: batches are loaded and dropped.

\b
Examples:
  gnnstore bench load papers100M.gnn
  gnnstore bench load papers100M.gnn --num-neighbors 15,10 \\
    --loader-memory 8GiB --plot epochs.png
  gnnstore bench load papers100M.gnn \\
    --strategies numpy-mmap,static-degree,packed --batches 50
"""


@bench_command.command(name="load", cls=Command, help=_LOAD_HELP)
@click.argument("store", type=click.Path())
@batch_options
@declared(
    f"""
  --strategies NAME,NAME,... = {",".join(name for name, way in ways().items() if way.is_compared)}
      Strategies to time, in this order: any of {", ".join(ways())}.
  --loader-memory BUDGET -> memory = {LOADER_SHARE:.0%}
      Memory of a loader in addition to topology and labels: bytes, or a share of what topology and
      attributes take.
  --slack SIZE -> slack_bytes = {SLACK_BYTES // 10**6}MB
      Memory in addition for batches, Python and the kernel.
  --disk SIZE -> disk_bytes  Disk budget of packed rows. Default: half of the free space.
  --batches N>=1 -> num_batches
      Shorten the epoch to this many batches; one-time costs then weigh more.
  --repeats N>=1 = 1  Rounds that time each strategy once.
  --seed N>=0 = 0  Seed of the batches.
  --threads N>=1 -> num_threads  Threads of a loader. Default: its own choice.
  --no-limit  Set no memory limit, where cgroups are forbidden.
""",
    strategies=Parsed(_parse_ways),
)
@plot_option("Plot the times.")
@cache_option
@session_options
def load(session: Session, store: str, **options: Any) -> int:
    """Time, plot, print, and return the exit status."""
    # On demand: torch and the kernels take longer to load than --help may.
    from gnnstore.tools.bench.load import bench_load  # noqa: PLC0415

    return bench_load(session, store, **options)
