"""`gnnstore bench`: what this machine can do, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnnstore.tools.options import SIZE, session_options
from gnnstore.tools.session import Session

_HELP = """Measure this machine.

\b
Examples:
  gnnstore bench disk /data
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
    from gnnstore.tools.bench_disk import bench_disk  # noqa: PLC0415

    return bench_disk(
        session,
        path,
        plot_file=None if plot is None else Path(plot),
        is_saved=not no_save,
        **options,
    )
