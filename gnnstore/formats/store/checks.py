"""Checks the values of a store: column pointers ascend, neighbours exist, splits name nodes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base.files import Problem
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.store.by_column import (
    BLOCK_EDGE_BYTES,
    column_blocks,
    integer_weights,
    is_time,
    is_weight,
    largest_column,
    node_times,
    places_by_time,
    sums_by_column,
    weights_of,
)
from gnnstore.formats.store.schema import EdgeTypeSpec, NodeTypeSpec, StoreManifest, TextSpec

# Bytes of an array that scans hold at a time, with a few temporaries of the same size.
_SCAN_BYTES = 16 * 2**20
# Bytes of each of two searches for ids of edges: a mark for each id takes a byte, and where most of
# the numbers up to the largest are not ids, sorting some takes 8 bytes each, a few times.
ID_BYTES = 2**26
_MOST_MARKS = 8  # marks for each edge, at most
_TEXT_SCAN_BYTES = 2**16  # bytes of offsets; the texts are many times as long

Reader = SealedReader[StoreManifest]


def check_meaning(reader: Reader) -> Iterator[Problem]:
    """Yield numbers of a store that do not make a graph; reads all arrays."""
    schema = reader.manifest.schema
    num_src = {node.name: node.num_nodes for node in schema.node_types}
    yield from _carried(reader, num_bytes=ID_BYTES)
    yield from _check_whole_ids(reader)
    for node in schema.node_types:
        yield from _check_node_ids(reader, node)
        if node.original_name is not None:
            yield from _check_text(reader, node.original_name)
    for edge in schema.edge_types:
        unsound = list(_check_columns(reader, edge, num_src[edge.source]))
        yield from unsound
        for name, split in edge.splits.items():
            ends = (split.sources, num_src[edge.source]), (split.targets, num_src[edge.target])
            for arrays, num_nodes in ends:
                for part, spec in arrays.items():
                    yield from _check_range(reader, spec, num_nodes, f"{part} of {name!r}")
        if edge.shared_row is not None:
            yield from _check_range(
                reader, edge.shared_row, edge.num_edges, "rows of shared attributes", kind="row"
            )
        if not unsound:
            yield from _check_orders(reader, edge)
            yield from _check_sums(reader, edge)
        for text in edge.value_names.values():
            yield from _check_text(reader, text)


def refuse_carried(reader: Reader, memory_bytes: int, *, ids: bool = True) -> None:
    """Refuse numbers that a copy has as they are, and that do not make a graph there either.

    `gnnstore verify` would refuse a result with a repeated edge id.
    `memory_bytes`: what there is to look for repeated ids in; `ids`: whether the copy has ids of
    edges.
    """
    reader.check_arrays(*(spec.path for spec in reader.manifest.schema.whole_arrays()))
    for problem in _carried(reader, ids=ids, num_bytes=max(1, min(ID_BYTES, memory_bytes // 8))):
        array = Path(problem.path).relative_to(reader.path).as_posix()
        reader.check_arrays(array)  # its error names the bytes
        raise reader.corrupt(problem.message, array)


def _carried(reader: Reader, *, num_bytes: int, ids: bool = True) -> Iterator[Problem]:
    """Yield numbers that a copy of the store has as they are, and that do not make a graph."""
    for edge in reader.manifest.schema.edge_types:
        if ids:
            yield from _check_ids(reader, edge, num_bytes)
        for name, text in edge.value_names.items():
            for spec in edge.named_values(name):
                num_names = text.offsets.num_rows - 1
                yield from _check_range(reader, spec, num_names, name, kind="value")


def _check_ids(reader: Reader, edge: EdgeTypeSpec, num_bytes: int) -> Iterator[Problem]:
    """Yield ids that are not positions in the input: negative, repeated or too large."""
    provenance = reader.manifest.provenance
    options = provenance.get("options")
    options = options if isinstance(options, dict) else {}
    is_whole = options.get("undirected") is False and options.get("self_loops") == "keep"
    # Edges of another store have the ids that its rules have left.
    is_whole = is_whole and "store_uuid" not in provenance and not edge.splits
    for spec in (edge.edge_id, edge.original_id, *(own.edge_id for own in edge.splits.values())):
        if spec is None:
            continue
        limit = spec.num_rows if is_whole and spec is edge.edge_id else 2**63 - 1
        outside = list(_check_range(reader, spec, limit, "edge ids", kind="edge"))
        yield from outside
        repeated = None if outside else _repeated_value(reader.paged(spec), num_bytes)
        if repeated is not None:
            yield _problem(reader, spec, f"several edges have the id {repeated}")


def _check_whole_ids(reader: Reader) -> Iterator[Problem]:
    """Check that the nodes of a part ascend, and that the whole store has them."""
    if (part := reader.manifest.schema.part) is None:
        return
    last = -1
    for first, ids in reader.pieces(part.whole_id, _SCAN_BYTES):
        if (outside := _outside(first, ids, part.num_nodes)) is not None:
            yield _problem(reader, part.whole_id, f"ids in the whole store: {outside}")
            return
        if len(descents := np.flatnonzero(np.diff(ids, prepend=last) <= 0)):
            found = f"entry {first + int(descents[0])} does not ascend"
            yield _problem(reader, part.whole_id, f"ids in the whole store: {found}")
            return
        last = int(ids[-1])


def _check_node_ids(reader: Reader, node: NodeTypeSpec) -> Iterator[Problem]:
    for name, spec in node.splits.items():
        if len(spec.shape) != 1 or STORAGE_DTYPES[spec.dtype].kind not in "iu":
            found = f"has shape {list(spec.shape)} of {spec.dtype}"
            yield _problem(reader, spec, f"split {name!r} {found}, expected a list of node ids")
            continue
        yield from _check_range(reader, spec, node.num_nodes, f"split {name!r}")


def _check_range(
    reader: Reader, spec: AttributeSpec, limit: int, what: str, *, kind: str = "node"
) -> Iterator[Problem]:
    """Yield the first entry of a list of nodes [k], or of lists [k, A], that is not a node."""
    for first, ids in reader.pieces(spec, _SCAN_BYTES):
        if (outside := _outside(first, ids, limit, kind)) is not None:
            yield _problem(reader, spec, f"{what}: {outside}")
            return


def _outside(first: int, ids: npt.NDArray[Any], limit: int, kind: str = "node") -> str | None:
    outside = np.argwhere((ids < 0) | (ids >= limit))
    if not len(outside):
        return None
    place = tuple(int(i) for i in outside[0])
    return f"entry {first + place[0]} is {kind} {int(ids[place])}, outside [0, {limit})"


def _check_text(reader: Reader, text: TextSpec) -> Iterator[Problem]:
    """Check that offsets ascend from the first byte to the last, and every text is UTF-8."""
    where = str(reader.path / text.offsets.path)
    num_bytes = text.bytes.num_rows
    letters = reader.paged(text.bytes)
    latest = 0
    for first, piece in reader.paged(text.offsets).pieces(_TEXT_SCAN_BYTES):
        if first == 0 and piece[0] != 0:
            yield Problem(where, f"the first text begins at byte {int(piece[0])}, expected 0")
            return
        descents = np.flatnonzero(np.diff(piece, prepend=latest) < 0)
        if len(descents) or piece[-1] > num_bytes:
            place = first + int(descents[0]) if len(descents) else first + len(piece) - 1
            yield Problem(where, f"entry {place} descends, or is behind the {num_bytes} bytes")
            return
        data = letters.read_slice(latest, int(piece[-1]))
        begins = piece[:-1] - latest
        try:
            str(data.tobytes(), "utf-8")
            is_utf8 = not (data[begins[begins < len(data)]] & 0xC0 == 0x80).any()
        except UnicodeDecodeError:
            is_utf8 = False
        if not is_utf8:
            path = str(reader.path / text.bytes.path)
            yield Problem(path, "a text is not UTF-8", latest, int(piece[-1]))
            return
        latest = int(piece[-1])
    if latest != num_bytes:
        yield Problem(where, f"the last text ends at byte {latest} of {num_bytes}")


def _check_columns(reader: Reader, edge: EdgeTypeSpec, num_src: int) -> Iterator[Problem]:
    indptr, indices = reader.paged(edge.indptr), reader.paged(edge.indices)
    previous = 0
    for first, piece in indptr.pieces(_SCAN_BYTES):
        descents = np.flatnonzero(np.diff(piece, prepend=previous) < 0)
        if len(descents):
            column = first + int(descents[0])
            yield _problem(reader, edge.indptr, f"the pointer of column {column} descends")
            return
        previous = int(piece[-1])
    pointers = indptr.view("sequential")
    last = -1
    for first, piece in indices.pieces(_SCAN_BYTES):
        if (outside := _outside(first, piece, num_src)) is not None:
            yield _problem(reader, edge.indices, f"sources of edges: {outside}")
            return
        descents = np.flatnonzero(np.diff(piece, prepend=last) < 0) + first
        # Sources may descend only where a column begins.
        columns = np.searchsorted(pointers, descents, side="left")
        unsorted = descents[(pointers[np.minimum(columns, len(pointers) - 1)] != descents)]
        if len(unsorted):
            found = f"the sources of a column are not sorted at edge {unsorted[0]}"
            yield _problem(reader, edge.indices, found)
            return
        last = int(piece[-1])


def _check_orders(reader: Reader, edge: EdgeTypeSpec) -> Iterator[Problem]:
    """Check that each order has the places of every column by time."""
    for name, spec in edge.orders.items():
        of_nodes = node_times(reader.manifest.schema, edge, name)
        of_what = of_nodes or edge.attributes.get(name)
        if of_what is None or not is_time(of_what):
            yield _problem(reader, spec, f"there are no times {name!r} of nodes or edges")
            continue
        times = reader.read(of_nodes) if of_nodes else None
        of_edges = edge.indices if of_nodes else of_what
        for first, counts in _column_blocks(reader, edge):
            last = first + int(counts.sum())
            found = reader.paged(of_edges).read_slice(first, last)
            ids = np.arange(first, last)
            if edge.edge_id is not None:
                ids = reader.paged(edge.edge_id).read_slice(first, last)
            expected = places_by_time(found if times is None else times[found], ids, counts)
            bad = np.flatnonzero(reader.paged(spec).read_slice(first, last) != expected)
            if len(bad):
                where = f"the order at edge {first + int(bad[0])}"
                yield _problem(reader, spec, f"{where} does not follow the times {name!r}")
                break


def _check_sums(reader: Reader, edge: EdgeTypeSpec) -> Iterator[Problem]:
    """Check that the sums of weights fit the weights."""
    for name, spec in edge.weight_sums.items():
        weights = edge.attributes.get(name)
        if weights is None or not is_weight(weights):
            yield _problem(reader, spec, f"there are no weights {name!r} of edges")
            continue
        for first, counts in _column_blocks(reader, edge):
            last = first + int(counts.sum())
            values = weights_of(reader.paged(weights).read_slice(first, last), weights.dtype)
            wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
            if len(wrong):
                found = f"the weight of edge {first + int(wrong[0])} is {values[wrong[0]]}"
                expected_what = "expected a finite number that is not negative"
                yield _problem(reader, weights, f"{found}, {expected_what}")
                break
            try:
                expected = sums_by_column(integer_weights(values, counts), counts)
            except InputError as error:
                yield _problem(reader, weights, str(error))
                break
            bad = np.flatnonzero(reader.paged(spec).read_slice(first, last) != expected)
            if len(bad):
                edge_number = first + int(bad[0])
                found = f"the sum at edge {edge_number} does not fit the weights"
                yield _problem(reader, spec, found)
                break


def _problem(reader: Reader, spec: AttributeSpec, message: str) -> Problem:
    return Problem(str(reader.path / spec.path), message)


def _column_blocks(
    reader: Reader, edge: EdgeTypeSpec
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    indptr = reader.paged(edge.indptr)
    largest = largest_column(indptr)
    return column_blocks(indptr, max(largest, _SCAN_BYTES // BLOCK_EDGE_BYTES))


def _repeated_value(array: PagedArray, num_bytes: int) -> int | None:
    """Return a value that occurs twice in an array of ids; None if there is none."""
    scan_bytes = min(_SCAN_BYTES, num_bytes)
    largest = max((int(piece.max()) for _, piece in array.pieces(scan_bytes)), default=-1)
    if largest < _MOST_MARKS * array.num_rows:
        return _marked_twice(array, largest + 1, num_bytes, scan_bytes)
    num_groups = -(-8 * array.num_rows // num_bytes)
    factor = np.uint64(secrets.randbits(63) * 2 + 1)
    for group in range(num_groups):
        parts = []
        for _, piece in array.pieces(scan_bytes):
            if num_groups > 1:
                drawn = (piece.astype(np.uint64) * factor) >> np.uint64(32)
                piece = piece[drawn % np.uint64(num_groups) == group]  # noqa: PLW2901
            parts.append(piece)
        repeated = _repeated_in(np.concatenate(parts))
        if repeated is not None:
            return repeated
    return None


def _marked_twice(array: PagedArray, limit: int, most: int, scan_bytes: int) -> int | None:
    """Return a value below `limit` that occurs twice; `most` values are marked at a time."""
    for low in range(0, limit, most):
        marks, num_marked = np.zeros(min(most, limit - low), np.bool_), 0
        for _, piece in array.pieces(scan_bytes):
            own = piece[(piece >= low) & (piece < low + len(marks))] - low
            if (marked := marks[own]).any():
                return low + int(own[marked][0])
            marks[own] = True
            num_marked += len(own)
            if np.count_nonzero(marks) < num_marked:  # twice in this piece
                return low + (_repeated_in(own) or 0)
    return None


def _repeated_in(values: npt.NDArray[Any]) -> int | None:
    """Return a value that occurs twice in an array in memory."""
    values = np.sort(values)
    twice = np.flatnonzero(values[1:] == values[:-1])
    return int(values[twice[0]]) if len(twice) else None
