"""`gnnstore inspect`: the contents of a store, their sizes on disk, and how they will be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnnstore.errors import UsageError
from gnnstore.formats.assignments import ASSIGNMENTS, AssignmentReader
from gnnstore.formats.container.manifest import kind_of
from gnnstore.formats.packed import PACKED, PackedParts, PackedReader, has_parts
from gnnstore.formats.partitions import PARTITIONS, PartitionsReader
from gnnstore.formats.store.store import StoreReader
from gnnstore.formats.store.units import find_unit
from gnnstore.formats.tables import TableManifest
from gnnstore.tools import describe
from gnnstore.tools.layout import next_commands, program_of
from gnnstore.tools.options import Command, cache_option, declared, plot_option, session_options
from gnnstore.tools.session import Session

_INSPECT_HELP = """Show the contents of a store and how they will be read.

Reads metadata only, so it is fast on a store of any size. --stats also reads the arrays, once and
in bounded memory: degrees, isolated nodes, range and NaN of every attribute, and a histogram of
the labels. Packed epochs, partitions and assignments are listed; STORE may also be the directory of
one, or of trainable embeddings. --plot draws the degrees of the graph; of a graph with types, its
node and edge types; or of packed epochs, the rows of their batches and how soon rows are reused.

\b
Examples:
  gnnstore inspect cora.gnn
  gnnstore inspect cora.gnn --stats
  gnnstore inspect cora.gnn --array nodes/node/x
  gnnstore inspect cora.gnn --packed base --plot base.png
  gnnstore inspect cora.gnn --partitions random-16
  gnnstore inspect cora.gnn --assignment parts-4
  gnnstore inspect cora.gnn --json | jq '.arrays[] | {path, disk_bytes}'
"""


@click.command(name="inspect", cls=Command, help=_INSPECT_HELP)
@click.argument("store", type=click.Path())
@declared(
    """
  --array PATH -> array_path  Show one array, by path or name.
  --stats  Read the arrays and summarise their values.
  --packed NAME  Show some of the store's packed epochs.
  --partitions NAME  Show one of the store's partitionings.
  --assignment NAME  Show one of the store's assignments of seeds to parts.
"""
)
@plot_option("Draw degrees or types of the graph, or the rows of packed epochs.")
@cache_option
@session_options
def inspect_command(
    session: Session,
    store: str,
    *,
    array_path: str | None,
    stats: bool,
    packed: str | None,
    partitions: str | None,
    assignment: str | None,
    plot_file: Path | None,
) -> None:
    """Open the store, describe it, plot it and print the description."""
    path = Path(store)
    for unit, named in ((PACKED, packed), (PARTITIONS, partitions), (ASSIGNMENTS, assignment)):
        if named is not None:
            path = find_unit(unit, StoreReader.open(store).path, named)
    kind, is_table = PACKED if has_parts(path) else kind_of(path), TableManifest.is_at(path)
    is_store = not is_table and kind not in {PACKED, PARTITIONS, ASSIGNMENTS}
    if not is_store and (array_path is not None or stats):
        raise UsageError(
            "--array and --stats are for stores, not for packed epochs, partitions, assignments or "
            "embeddings; leave them out, or inspect the store"
        )
    if plot_file is not None and (array_path is not None or not (is_store or kind is PACKED)):
        raise UsageError(
            "--plot draws the degrees of a graph, or packed epochs; leave it out, or --array"
        )
    if kind is PACKED:
        _inspect_packed(session, path, plot_file)
    elif kind is PARTITIONS:
        found = describe.describe_partitions(PartitionsReader.open(path))
        session.emit(found, describe.PARTITIONS_TEXT)
    elif kind is ASSIGNMENTS:
        found = describe.describe_assignment(AssignmentReader.open(path))
        session.emit(found, describe.ASSIGNMENT_TEXT)
    elif is_table:
        session.emit(describe.describe_table(path), describe.TABLE_TEXT)
    elif array_path is None:
        _inspect_store(session, StoreReader.open(store), stats, plot_file)
    else:
        _inspect_array(session, StoreReader.open(store), array_path, stats)


# Scans and plots are imported on demand: kernels and matplotlib take longer than metadata may.
# ruff: noqa: PLC0415


def _inspect_packed(session: Session, path: Path, plot_file: Path | None) -> None:
    if has_parts(path):
        parts = PackedParts.open(path)
        document = describe.describe_packed(parts.parts, parts.path)
    else:
        document = describe.describe_packed([PackedReader.open(path)])
    if plot_file is not None:
        from gnnstore.tools.plots import draw_packed
        from gnnstore.tools.scan import scan_packed

        with session.progress() as progress:
            rows = scan_packed(PackedParts.open(path), progress)
        document["rows"] = rows.to_json()
        document["drawn_to"] = str(draw_packed(document["name"], rows, plot_file))
    session.emit(document, describe.PACKED_TEXT)


def _inspect_store(
    session: Session, reader: StoreReader, stats: bool, plot_file: Path | None
) -> None:
    document = describe.describe_store(reader)
    commands = next_commands(document["path"])[stats:]
    if stats:
        from gnnstore.tools.scan import scan_store

        with session.progress() as progress:
            document["stats"] = scan_store(reader, progress)
    if plot_file is not None and not reader.schema.is_homogeneous:
        from gnnstore.tools.plots import draw_types

        document["drawn_to"] = str(draw_types(reader.path.name, document["graph"], plot_file))
    elif plot_file is not None:
        from gnnstore.tools.plots import draw_degrees
        from gnnstore.tools.scan import count_degrees

        with session.progress() as progress:
            degrees = count_degrees(reader, progress)
        document["degrees"] = {"in": degrees.inward.to_json(), "out": degrees.outward.to_json()}
        document["drawn_to"] = str(draw_degrees(reader.path.name, degrees, plot_file))
    session.emit(document, describe.whole(document), commands, program_of(document))


def _inspect_array(session: Session, reader: StoreReader, path: str, stats: bool) -> None:
    spec = describe.find_array(reader, path)
    files = describe.describe_files(reader, spec)
    document = {**describe.describe_array(reader, spec), "files": files}
    if stats:
        from gnnstore.tools.scan import scan_array

        found: dict[str, Any] = {"values": {}, "labels": {}}
        with session.progress() as progress:
            scan_array(reader, spec, progress, found)
        document["stats"] = found
    session.emit(document, describe.ARRAY_TEXT)
