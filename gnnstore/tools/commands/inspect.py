"""`gnnstore inspect`: the contents of a store, their sizes on disk, and how they will be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnnstore.errors import UsageError
from gnnstore.formats.container.manifest import kind_of
from gnnstore.formats.packed.reader import PACKED, PackedReader
from gnnstore.formats.partitions.reader import PARTITIONS, PartitionsReader
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.units import find_unit
from gnnstore.formats.tables.manifest import TableManifest
from gnnstore.tools.inspect.describe_store import (
    describe_array,
    describe_files,
    describe_store,
    find_array,
)
from gnnstore.tools.inspect.packed import describe_packed, render_packed, scan_packed
from gnnstore.tools.inspect.partitioned import describe_partitions, render_partitions
from gnnstore.tools.inspect.render_store import render_array, render_store
from gnnstore.tools.inspect.tables import describe_table, render_table
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.options import plot_option, session_options
from gnnstore.tools.ui.session import Session

if TYPE_CHECKING:
    from rich.console import Console

_HELP = """Show the contents of a store and how they will be read.

Reads metadata only, so it is fast on a store of any size. --stats also reads the arrays, once and
in bounded memory: degrees, isolated nodes, range and NaN of every attribute, and a histogram of
the labels. Packed epochs and partitions are listed; STORE may also be the directory of one, or of
trainable embeddings. --plot draws the degrees of the graph; of a graph with types, its node and
edge types; or of packed epochs, the rows of their batches and how soon rows are reused.

\b
Examples:
  gnnstore inspect cora.gnn
  gnnstore inspect cora.gnn --stats
  gnnstore inspect cora.gnn --array nodes/node/x
  gnnstore inspect cora.gnn --packed base --plot base.png
  gnnstore inspect cora.gnn --partitions random-16
  gnnstore inspect cora.gnn --json | jq '.arrays[] | {path, disk_bytes}'
"""


@click.command(name="inspect", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@click.option("--array", "array_path", metavar="PATH", help="Show one array, by path or name.")
@click.option("--stats", is_flag=True, help="Read the arrays and summarise their values.")
@click.option("--packed", metavar="NAME", help="Show some of the store's packed epochs.")
@click.option("--partitions", metavar="NAME", help="Show one of the store's partitionings.")
@plot_option("Draw degrees or types of the graph, or the rows of packed epochs.")
@session_options
def command(
    session: Session,
    store: str,
    *,
    array_path: str | None,
    stats: bool,
    packed: str | None,
    partitions: str | None,
    plot_file: Path | None,
) -> None:
    """Open the store, describe it, plot it and print the description."""
    if plot_file is not None and array_path is not None:
        raise UsageError(
            "--plot draws the degrees of a graph, or packed epochs; leave out --array, or --plot"
        )
    path = Path(store)
    if TableManifest.is_at(path):
        if array_path is not None or stats or plot_file is not None:
            raise UsageError(
                "--array, --stats and --plot are for stores and packed epochs, not for embeddings "
                "that are learned; leave them out, or export the table"
            )
        _emit(session, describe_table(path), render_table)
        return
    if packed is not None:
        path = find_unit(PACKED, StoreReader.open(store).path, packed)
    if partitions is not None:
        path = find_unit(PARTITIONS, StoreReader.open(store).path, partitions)
    if (kind := kind_of(path)) in {PACKED, PARTITIONS}:
        if array_path is not None or stats:
            raise UsageError(
                "--array and --stats are for stores, not for packed epochs or partitions; leave "
                "them out, or inspect the store"
            )
        if kind is PACKED:
            _inspect_packed(session, PackedReader.open(path), plot_file)
            return
        if plot_file is not None:
            raise UsageError("--plot draws the degrees of a graph, or packed epochs; leave it out")
        _emit(session, describe_partitions(PartitionsReader.open(path)), render_partitions)
        return
    reader = StoreReader.open(store)
    if array_path is None:
        _inspect_store(session, reader, stats, plot_file)
    else:
        _inspect_array(session, reader, array_path, stats)


# Scans and plots are imported on demand: kernels and matplotlib take longer than metadata may.
# ruff: noqa: PLC0415


def _inspect_packed(session: Session, reader: PackedReader, plot_file: Path | None) -> None:
    document = describe_packed(reader)
    if plot_file is not None:
        from gnnstore.tools.plots import draw_packed

        with session.progress() as progress:
            rows = scan_packed(reader, progress)
        document["rows"] = rows.to_json()
        document["drawn_to"] = str(draw_packed(reader.path.name, rows, plot_file))
    _emit(session, document, render_packed)


def _inspect_store(
    session: Session, reader: StoreReader, stats: bool, plot_file: Path | None
) -> None:
    document = describe_store(reader)
    if stats:
        from gnnstore.tools.inspect.scan import scan_store

        with session.progress() as progress:
            document["stats"] = scan_store(reader, progress)
    if plot_file is not None and not reader.schema.is_homogeneous:
        from gnnstore.tools.plots import draw_types

        document["drawn_to"] = str(draw_types(reader.path.name, document["graph"], plot_file))
    elif plot_file is not None:
        from gnnstore.tools.inspect.scan import count_degrees
        from gnnstore.tools.plots import draw_degrees

        with session.progress() as progress:
            degrees = count_degrees(reader, progress)
        document["degrees"] = {"in": degrees.inward.to_json(), "out": degrees.outward.to_json()}
        kind = document["provenance"].get("kind", "")
        document["drawn_to"] = str(draw_degrees(reader.path.name, degrees, plot_file, kind))
    _emit(session, document, render_store)


def _inspect_array(session: Session, reader: StoreReader, path: str, stats: bool) -> None:
    spec = find_array(reader, path)
    document = {**describe_array(reader, spec), "files": describe_files(reader, spec)}
    if stats:
        from gnnstore.tools.inspect.scan import scan_array

        found: dict[str, Any] = {"values": {}, "labels": {}}
        with session.progress() as progress:
            scan_array(reader, spec, progress, found)
        document["stats"] = found
    _emit(session, document, render_array)


def _emit(
    session: Session,
    document: Mapping[str, Any],
    render: Callable[[Console, Mapping[str, Any]], None],
) -> None:
    def show(console: Console) -> None:
        render(console, document)
        if "drawn_to" in document:
            console.print(f"\nDrawn in {document['drawn_to']}", soft_wrap=True)

    session.emit(document, show)
