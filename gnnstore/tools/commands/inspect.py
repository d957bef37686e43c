"""`gnnstore inspect`: what a store holds, where its bytes are, and how it will be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnnstore.errors import UsageError
from gnnstore.formats.packed.manifest import is_plan
from gnnstore.formats.packed.reader import PackedReader, find_plan
from gnnstore.formats.store.reader import StoreReader
from gnnstore.tools.inspect.describe_plan import describe_plan, render_plan
from gnnstore.tools.inspect.describe_store import (
    describe_array,
    describe_files,
    describe_store,
    find_array,
)
from gnnstore.tools.inspect.render_store import render_array, render_store
from gnnstore.tools.inspect.scan_store import scan_array, scan_store
from gnnstore.tools.plots.pictures import check_picture
from gnnstore.tools.ui.options import session_options
from gnnstore.tools.ui.session import Session

if TYPE_CHECKING:
    from rich.console import Console

_HELP = """Show what a store holds and how it will be read.

Reads metadata only, so it is quick on a store of any size. --stats reads the arrays too,
once and in bounded memory: degrees, isolated nodes, range and NaN of every attribute, and
a histogram of the labels. Packed plans are listed; STORE may also be a plan by itself.
--plot draws the degrees of the graph; or of a plan the rows of its batches, and how soon rows
are needed again.

\b
Examples:
  gnnstore inspect cora.gnn
  gnnstore inspect cora.gnn --stats
  gnnstore inspect cora.gnn --array nodes/node/x
  gnnstore inspect cora.gnn --plan base --plot base.png
  gnnstore inspect cora.gnn --json | jq '.arrays[] | {path, disk_bytes}'
"""


@click.command(name="inspect", help=_HELP)
@click.argument("store", type=click.Path())
@click.option("--array", "array_path", metavar="PATH", help="One array only: its path or name.")
@click.option("--stats", is_flag=True, help="Read the arrays and summarise their values.")
@click.option("--plan", "plan", metavar="NAME", help="One of the store's packed plans instead.")
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE.png", help="Draw it as well."
)
@session_options
def command(
    session: Session,
    store: str,
    *,
    array_path: str | None,
    stats: bool,
    plan: str | None,
    plot: str | None,
) -> None:
    """Open the store, describe it, draw it and print that."""
    picture = None if plot is None else Path(plot)
    if picture is not None:
        if array_path is not None:
            raise UsageError(
                "--plot draws the degrees of a graph, or a plan; leave out --array, or --plot"
            )
        check_picture(picture)
    path = Path(store)
    if plan is not None:
        path = find_plan(StoreReader.open(store).path, plan)
    if is_plan(path):
        _refuse_for_plans(array_path, stats)
        _inspect_plan(session, PackedReader.open(path), picture)
        return
    reader = StoreReader.open(store)
    if array_path is None:
        _inspect_store(session, reader, stats, picture)
    else:
        _inspect_array(session, reader, array_path, stats)


def _refuse_for_plans(array_path: str | None, stats: bool) -> None:
    if array_path is not None or stats:
        raise UsageError(
            "--array and --stats are of stores, not of packed plans; leave them out, or inspect "
            "the store"
        )


def _inspect_plan(session: Session, reader: PackedReader, picture: Path | None) -> None:
    document = describe_plan(reader)
    if picture is not None:
        # On demand: the kernels and matplotlib take longer to load than metadata may.
        from gnnstore.tools.inspect.scan_plan import scan_plan  # noqa: PLC0415
        from gnnstore.tools.plots.packed import draw_packed  # noqa: PLC0415

        with session.progress() as progress:
            rows = scan_plan(reader, progress)
        document["rows"] = rows.to_json()
        document["drawn_to"] = str(draw_packed(reader.path.name, rows, picture))
    session.emit(document, lambda console: _render(console, document, render_plan))


def _inspect_store(
    session: Session, reader: StoreReader, stats: bool, picture: Path | None
) -> None:
    document = describe_store(reader)
    if stats:
        with session.progress() as progress:
            document["stats"] = scan_store(reader, progress)
    if picture is not None:
        from gnnstore.tools.inspect.scan_degrees import scan_distributions  # noqa: PLC0415
        from gnnstore.tools.plots.store import draw_store  # noqa: PLC0415 - as above

        with session.progress() as progress:
            degrees = scan_distributions(reader, progress)
        document["degrees"] = {"in": degrees.inward.to_json(), "out": degrees.outward.to_json()}
        document["drawn_to"] = str(draw_store(reader.path.name, degrees, picture))
    session.emit(document, lambda console: _render(console, document, render_store))


def _render(
    console: Console,
    document: Mapping[str, Any],
    render: Callable[[Console, Mapping[str, Any]], None],
) -> None:
    render(console, document)
    if "drawn_to" in document:
        console.print(f"\nDrawn in {document['drawn_to']}", soft_wrap=True)


def _inspect_array(session: Session, reader: StoreReader, path: str, stats: bool) -> None:
    spec = find_array(reader, path)
    document = {**describe_array(reader, spec), "files": describe_files(reader, spec)}
    if stats:
        found: dict[str, Any] = {"values": {}, "labels": {}}
        with session.progress() as progress:
            scan_array(reader, spec, progress, found)
        document["stats"] = found
    session.emit(document, lambda console: render_array(console, document))
