"""`gnnstore bench`: what this machine can do, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnnstore.budget.limits import parse_memory
from gnnstore.errors import BudgetError, UsageError
from gnnstore.tools.bench.ways import ways
from gnnstore.tools.ui.batch_options import batch_options
from gnnstore.tools.ui.options import SIZE, session_options
from gnnstore.tools.ui.session import Session

_HELP = """Measure this machine.

\b
Examples:
  gnnstore bench disk /data
  gnnstore bench load papers100M.gnn
"""


@click.group(name="bench", help=_HELP)
def command() -> None:
    """Hold the things that can be measured; the text users see is `_HELP`."""


_DISK_HELP = """Measure the disk below a directory, and keep the result for loaders.

PATH is a directory (or a file in one) on the file system where stores lie. A file of random
bytes is written there, read in sequence, and read at random in blocks of 512 bytes, 4 KiB
and 64 KiB with 1 to 256 reads in flight. It takes a tenth of the free space at most and is
removed afterwards. Loaders on that file system then merge reads and fill queues as suits it.

Measure when nothing else uses the disk.

\b
Examples:
  gnnstore bench disk /data
  gnnstore bench disk /data --plot disk.png
  gnnstore bench disk . --seconds 60 --size 8GiB --engine pread --no-save
"""


@command.command(name="disk", help=_DISK_HELP)
@click.argument("path", type=click.Path())
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE.png", help="Draw the result as well."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=3600),
    default=15,
    show_default=True,
    help="About how long to measure.",
)
@click.option(
    "--size",
    "num_bytes",
    type=SIZE,
    default="1GiB",
    show_default=True,
    help="Size of the file to measure with.",
)
@click.option(
    "--engine",
    type=click.Choice(("io_uring", "pread")),
    help="What reads; default: what loaders would choose here.",
)
@click.option("--no-save", is_flag=True, help="Do not keep the result for loaders.")
@session_options
def disk(session: Session, path: str, plot: str | None, no_save: bool, **options: Any) -> int:
    """Measure, keep the result, draw it, print it, and return the exit status."""
    # On demand: the kernels and matplotlib take longer to load than --help may.
    from gnnstore.tools.bench.disk import bench_disk  # noqa: PLC0415

    return bench_disk(
        session,
        path,
        plot_file=None if plot is None else Path(plot),
        is_saved=not no_save,
        **options,
    )


class StrategiesType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Names of strategies as in "map,belady"."""

    name = "strategies"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the names, or fail as click does for a bad option."""
        names = tuple(name.strip() for name in value.split(","))
        for name in names:
            if name not in ways():
                self.fail(f"{name!r} is none of {', '.join(ways())}", param, ctx)
        return names


class MemoryType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A share of the features as in "10%" (a float, of 1), or bytes (an int)."""

    name = "memory"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | int:
        """Return the share or the bytes, or fail as click does for a bad option."""
        try:
            if not value.endswith("%"):
                return parse_memory(value, name="--memory")
            share = float(value[:-1]) / 100
        except BudgetError:
            raise
        except (UsageError, ValueError):
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(
                f"{value!r} is neither a share of the features from 0% to 100% nor a size; write "
                "10% or 2GiB",
                param,
                ctx,
            )
        return share


_LOAD_HELP = """Time the ways of loading STORE when its features do not fit memory.

Each strategy runs in a process of its own, in a memory cgroup that counts the page cache as
well: it may hold the graph's structure and narrow attributes such as labels, and --memory and
--slack beside them. Whole epochs are timed, the second where it is sampled, planned and
packed during the first; of strategies whose batches all take the same (map, mmap, direct), 24
batches.

map is what gnnstore is compared with: the same sampler, and rows gathered by NumPy from a mapping
of the features with MADV_RANDOM, by 32 threads. memory runs without a limit, with everything in
memory. The disk itself is measured before each strategy.

Nothing is said of a model: batches are taken and dropped.

\b
Examples:
  gnnstore bench load papers100M.gnn
  gnnstore bench load papers100M.gnn --num-neighbors 15,10 --memory 8GiB --plot epochs.png
  gnnstore bench load papers100M.gnn --strategies map,static-degree,packed --batches 50
"""


@command.command(name="load", help=_LOAD_HELP)
@click.argument("store", type=click.Path())
@batch_options
@click.option(
    "--strategies",
    type=StrategiesType(),
    metavar="NAME,NAME,...",
    default=",".join(name for name, way in ways().items() if way.is_compared),
    show_default=True,
    help=f"What to time, in this order: any of {', '.join(ways())}.",
)
@click.option(
    "--memory",
    type=MemoryType(),
    metavar="SHARE|SIZE",
    default="10%",
    show_default=True,
    help="Memory beside structure and labels: a share of the features' bytes, or bytes.",
)
@click.option(
    "--slack",
    "slack_bytes",
    type=SIZE,
    default="200MB",
    show_default=True,
    help="Memory besides, for batches, Python and the kernel.",
)
@click.option("--disk", "disk_bytes", type=SIZE, help="The most that packed rows may take.")
@click.option(
    "--batches",
    "num_batches",
    type=click.IntRange(min=1),
    help="Shorten the epoch to so many batches; what is done once for it then weighs more.",
)
@click.option(
    "--epoch", "whole_epochs", is_flag=True, help="Whole epochs of map, mmap and direct, too."
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Rounds in which each strategy is timed once.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the batches."
)
@click.option(
    "--threads",
    "num_threads",
    type=click.IntRange(min=1),
    help="Threads of a loader; default: what it takes by itself.",
)
@click.option("--no-limit", is_flag=True, help="Set no memory limit; where no cgroup can be made.")
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE.png", help="Draw the times as well."
)
@session_options
def load(session: Session, store: str, plot: str | None, **options: Any) -> int:
    """Time, draw, print, and return the exit status."""
    # On demand: torch and the kernels take longer to load than --help may.
    from gnnstore.tools.bench.load import bench_load  # noqa: PLC0415

    return bench_load(session, store, plot_file=None if plot is None else Path(plot), **options)
