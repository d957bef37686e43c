"""`gnnstore copy`: a verified copy of a store, from and to paths and buckets."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from gnnstore.tools.options import Command, declared, session_options
from gnnstore.tools.session import Session

_COPY_HELP = """Copy a store, or what was made from it, from SRC to DST, and check every block.

SRC and DST are paths or URLs: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, and for SRC
https://HOST/PATH. URLs need pip install 'gnnstore[remote]'; credentials come from the environment.
Each block is compared with its checksum as it arrives. The copy appears whole, or not at all; after
an interruption, the same command goes on, or, in a bucket, begins anew. Packed epochs, partitions
and assignments of a store are not copied with it: name their own directories.

Commands that read a store copy it to --cache-dir by themselves, if it is given by its URL.

\b
Examples:
  gnnstore copy papers100M.gnn s3://bucket/papers100M.gnn
  gnnstore copy s3://bucket/papers100M.gnn /local/papers100M.gnn
  gnnstore copy /nfs/papers100M.gnn/plans/base s3://bucket/base --verify
"""
_COPIED = (
    "{destination}: {kind} {uuid}, {num_files} files, {num_bytes}",
    "Copied {copied_bytes} in {seconds} from {source}.",
)


@click.command(name="copy", cls=Command, help=_COPY_HELP)
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("destination", metavar="DST", type=click.Path())
@declared("""
  --verify  Read the copy back, compare it as well, and, in a bucket, put again what differs.
  --overwrite  Replace what is at DST, whole. In a bucket, it cannot be opened until that is done.
""")
@session_options
def copy_command(
    session: Session, source: str, destination: str, verify: bool, overwrite: bool
) -> None:
    """Copy, and print what there is now."""
    from gnnstore.remote.copying import copy  # noqa: PLC0415 - the kernels load slowly

    started = time.perf_counter()
    with session.progress() as progress:
        copied = copy(source, destination, verify=verify, overwrite=overwrite, progress=progress)
    document = {**asdict(copied), "seconds": time.perf_counter() - started}
    session.emit(document, _COPIED, [("gnnstore", "inspect", copied.destination)])
