"""`gnnstore verify`: check that the bytes of a store are those that were written."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from gnnstore.features.check import verify
from gnnstore.formats.container.verify import LEVELS, Level, Report
from gnnstore.tools.ui import exits
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.options import session_options, threads_option
from gnnstore.tools.ui.session import Session
from gnnstore.tools.ui.tables import print_next
from gnnstore.units import format_size

_HELP = """Check files, checksums and contents of a store, and of its packed epochs and partitions.

STORE may also be the directory of one of those, or of trainable embeddings. For packed
epochs, "full" also reads each batch as training does.

\b
Levels, each including the one before:
  header     metadata, every file's presence and exact size; reads no data
  checksums  every byte against the crc32c recorded when it was written
  full       also the values: ids in range, columns sorted, padding zero,
             edges of partitions

Exits with 0 if the store is sound and with 1 if it is not; prints every problem with its file and
byte range.

\b
Examples:
  gnnstore verify papers100M.gnn
  gnnstore verify papers100M.gnn --level full
  gnnstore verify papers100M.gnn --level header --json
"""


@click.command(name="verify", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="checksums",
    help="How much to check.",
)
@threads_option("Threads that read. Default: all processors.")
@session_options
def command(session: Session, store: str, level: Level, threads: int | None) -> int:
    """Verify, print the report, and return the exit status."""
    started = time.perf_counter()
    with session.progress() as progress:
        report = verify(store, level, num_threads=threads, progress=progress)
    seconds = time.perf_counter() - started
    session.emit(
        _document(store, report, seconds),
        lambda console: _render(console, store, report, seconds),
    )
    return exits.OK if report.ok else exits.PROBLEM


def _document(store: str, report: Report, seconds: float) -> dict[str, Any]:
    return {
        "store": store,
        "level": report.level,
        "ok": report.ok,
        "files": report.files,
        "bytes_read": report.bytes_read,
        "seconds": seconds,
        "problems": [asdict(problem) for problem in report.problems],
    }


def _render(console: Console, store: str, report: Report, seconds: float) -> None:
    for problem in report.problems:
        console.print(str(problem), soft_wrap=True)
    read = ""
    if report.bytes_read:
        speed = format_size(report.bytes_read / max(seconds, 1e-9))
        read = f", {format_size(report.bytes_read)} read in {seconds:.1f} s ({speed}/s)"
    if report.ok:
        console.print(
            f"{store}: sound at level {report.level}: {report.files:,} files{read}", soft_wrap=True
        )
        if report.level != LEVELS[-1]:
            print_next(console, [("gnnstore", "verify", store, "--level", LEVELS[-1])])
        return
    count = len(report.problems)
    console.print(
        f"{store}: {count} problem{'s' if count > 1 else ''} found at level {report.level}{read}. "
        "Restore the files named above from a copy, or convert the data again.",
        soft_wrap=True,
    )
