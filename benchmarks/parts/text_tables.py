"""Parsing tables in text: gnnstore's reader and pyarrow's in turns, in seconds of a processor."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import measure, report
from gnnstore.converters.inputs.text_tables import TableFormat, TextTable
from gnnstore.units import format_size, spread

BAR_BYTES = 300e6
_EDGES, _ROWS, _COLUMNS = 15_000_000, 200_000, 64
_IDS = 2**24
_CHUNK = 2**16


def _write(path: Path, chunks: list[np.ndarray[Any, Any]], separator: str, form: str) -> Path:
    """Write the rows of a few chunks again and again: what is parsed does not remember."""
    with path.open("w") as file:
        for rows in chunks:
            lines = "\n".join(
                separator.join(form % value for value in row) for row in rows.tolist()
            )
            file.write(lines + "\n")
    return path


def write_edges(path: Path, num_edges: int) -> Path:
    """Write an edge list, its ends separated by a tab."""
    chunk = np.random.default_rng(0).integers(0, _IDS, (_CHUNK, 2))
    return _write(path, [chunk] * max(1, num_edges // _CHUNK), "\t", "%d")


def write_decimals(path: Path, num_rows: int) -> Path:
    """Write rows of decimals of six digits, separated by commas."""
    step = 4096
    chunk = np.random.default_rng(0).normal(size=(step, _COLUMNS))
    return _write(path, [chunk] * max(1, num_rows // step), ",", "%.6f")


def _ours(path: Path, table_format: TableFormat) -> Callable[[], float]:
    def parse() -> float:
        return float(sum(block.nbytes for block in TextTable(path, table_format).blocks()))

    return parse


def _pyarrow(path: Path, delimiter: str, kind: str) -> Callable[[], float] | None:
    try:
        import pyarrow as pa  # noqa: PLC0415 - a peer that need not be there
        from pyarrow import csv  # noqa: PLC0415
    except ImportError:
        return None
    with path.open() as file:
        names = [str(column) for column in range(len(file.readline().split(delimiter)))]

    def parse() -> float:
        reader = csv.open_csv(
            path,
            csv.ReadOptions(use_threads=False, column_names=names),
            csv.ParseOptions(delimiter=delimiter),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pa.type_for_alias(kind))),
        )
        return float(sum(batch.nbytes for batch in reader))

    return parse


def compare(directory: Path, arguments: argparse.Namespace) -> None:
    """Parse an edge list and a table of decimals in turns with pyarrow, and report."""
    share = 20 if arguments.quick else 1
    edges = write_edges(directory / "edges.tsv", _EDGES // share)
    decimals = write_decimals(directory / "x.csv", _ROWS // share)
    # The formats to read: ids that are checked, and features.
    edge_format = TableFormat("int64", num_columns=2, delimiter=None, comments=b"#", minimum=0)
    tables = {
        "edge list": (edges, edge_format, "\t", "int64"),
        "decimals": (decimals, TableFormat("float32"), ",", "float32"),
    }
    rows: list[tuple[str, str]] = []
    document: dict[str, Any] = {}
    for name, (path, table_format, delimiter, kind) in tables.items():
        size = path.stat().st_size
        ways = {"gnnstore": _ours(path, table_format), "pyarrow": _pyarrow(path, delimiter, kind)}
        found: dict[str, list[float]] = {way: [] for way, parse in ways.items() if parse}
        for turn in range(arguments.repeats + 1):
            for way in found if turn % 2 else reversed(found):
                parse = ways[way]
                if parse is not None:
                    seconds = measure(parse).cpu_seconds
                    found[way] += [size / seconds] * bool(turn)  # the first one warms up
        for way, rates in found.items():
            speed = spread((rate / 1e6 for rate in rates), ".0f")
            rows.append((f"{name} of {format_size(size)}, {way}: MB a CPU second", speed))
        ours = median(found["gnnstore"])
        bar = min([BAR_BYTES, *map(median, (found[way] for way in found if way != "gnnstore"))])
        rows.append((f"  the bar {bar / 1e6:.0f} is met", str(ours >= bar)))
        document[name] = found
    report("parse text", rows, as_json=arguments.json, bytes_per_cpu_second=document)
