"""`gnnstore inspect`: what a store holds, where its bytes are, and how it will be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnnstore.formats.plan_manifest import is_plan
from gnnstore.formats.plan_reader import PlanReader
from gnnstore.formats.reader import StoreReader
from gnnstore.tools.describe_plan import describe_plan, render_plan
from gnnstore.tools.describe_store import describe_array, describe_files, describe_store, find_array
from gnnstore.tools.options import session_options
from gnnstore.tools.render_store import render_array, render_store
from gnnstore.tools.scan_store import scan_array, scan_store
from gnnstore.tools.session import Session

_HELP = """Show what a store holds and how it will be read.

Reads metadata only, so it is quick on a store of any size. --stats reads the arrays too,
once and in bounded memory: degrees, isolated nodes, range and NaN of every attribute, and
a histogram of the labels. Packed plans are listed; STORE may also be a plan by itself.

\b
Examples:
  gnnstore inspect cora.gnn
  gnnstore inspect cora.gnn --stats
  gnnstore inspect cora.gnn --array nodes/node/x
  gnnstore inspect cora.gnn --json | jq '.arrays[] | {path, disk_bytes}'
"""


@click.command(name="inspect", help=_HELP)
@click.argument("store", type=click.Path())
@click.option("--array", "array_path", metavar="PATH", help="One array only: its path or name.")
@click.option("--stats", is_flag=True, help="Read the arrays and summarise their values.")
@session_options
def command(session: Session, store: str, array_path: str | None, stats: bool) -> None:
    """Open the store, describe it and print that."""
    if is_plan(Path(store)):
        document = describe_plan(PlanReader.open(store))
        session.emit(document, lambda console: render_plan(console, document))
        return
    reader = StoreReader.open(store)
    if array_path is None:
        _inspect_store(session, reader, stats)
    else:
        _inspect_array(session, reader, array_path, stats)


def _inspect_store(session: Session, reader: StoreReader, stats: bool) -> None:
    document = describe_store(reader)
    if stats:
        with session.progress() as progress:
            document["stats"] = scan_store(reader, progress)
    session.emit(document, lambda console: render_store(console, document))


def _inspect_array(session: Session, reader: StoreReader, path: str, stats: bool) -> None:
    spec = find_array(reader, path)
    document = {**describe_array(reader, spec), "files": describe_files(reader, spec)}
    if stats:
        found: dict[str, Any] = {"values": {}, "labels": {}}
        with session.progress() as progress:
            scan_array(reader, spec, progress, found)
        document["stats"] = found
    session.emit(document, lambda console: render_array(console, document))
