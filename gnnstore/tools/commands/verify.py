"""`gnnstore verify`: check that the bytes of a store are those that were written."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from gnnstore.features.check import verify
from gnnstore.formats.container.verify import LEVELS, Level
from gnnstore.tools.ui import exits
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.layout import Block
from gnnstore.tools.ui.options import declared, session_options
from gnnstore.tools.ui.session import Session
from gnnstore.units import format_count

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

_PROBLEMS = Block("", "{path}[ bytes {first_byte:d}-{end_byte:d}]: {message}", "problems")


@click.command(name="verify", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@click.option("--level", type=click.Choice(LEVELS), default="checksums", help="How much to check.")
@declared("  --threads N>=1  Threads that read. Default: all processors.")
@session_options
def command(session: Session, store: str, level: Level, threads: int | None) -> int:
    """Verify, print the report, and return the exit status."""
    started = time.perf_counter()
    with session.progress() as progress:
        report = verify(store, level, num_threads=threads, progress=progress)
    document = {
        "store": store,
        "level": report.level,
        "ok": report.ok,
        "files": report.files,
        "bytes_read": report.bytes_read,
        "seconds": time.perf_counter() - started,
        "problems": [
            {**asdict(one), "message": one.message.removeprefix(f"{one.path}: ")}
            for one in report.problems
        ],
    }
    is_whole = not report.ok or report.level == LEVELS[-1]
    commands = [] if is_whole else [("gnnstore", "verify", store, "--level", LEVELS[-1])]
    read = ", {bytes_read} read in {seconds}" if report.bytes_read else ""
    verdict = f"{{store}}: sound at level {{level}}: {{files}} files{read}"
    if not report.ok:
        found = format_count(len(report.problems), "problem")
        verdict = (
            f"{{store}}: {found} found at level {{level}}{read}. Restore the files named above "
            "from a copy, or convert the data again."
        )
    session.emit(document, [_PROBLEMS, verdict] if report.problems else [verdict], commands)
    return exits.OK if report.ok else exits.PROBLEM
