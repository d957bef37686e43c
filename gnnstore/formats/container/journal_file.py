"""The journal as a file: lines of JSON, each led by a crc32c of its own.

A crash may tear the last line, so reading stops at the first line that is damaged or does not have
the fields of its kind.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnstore.errors import CorruptStoreError, StorageError, storage_errors
from gnnstore.formats.container.files import crc32c_of, write_all
from gnnstore.formats.container.regular_files import open_binary, open_regular
from gnnstore.formats.container.strict_json import parse_object, value_bound

JOURNAL_FILE = "journal"
JOURNAL_VERSION = 1
# A line stays below a kilobyte; the header names each input. A larger file is no journal.
_MAX_JOURNAL_BYTES = 2**28
# In all lines: a packed batch takes ten, which makes 800,000 batches. Steps recorded behind the
# limit are done again, like those behind a damaged line.
_MAX_JOURNAL_VALUES = 2**23

Record = dict[str, Any]

# Fields of the lines of each kind that the journal itself needs: the types of values, of all
# elements of a list, and of all values of an object under `str`. A journal may come from anywhere.
_SHAPES: dict[str, Any] = {
    "header": {"version": int, "fingerprint": dict},
    "shard": {"array": str, "number": int, "row_ndim": int, "layout": list, "crc": int},
    "cold": {"array": str, "content_crc": int, "files": [list]},
    "run": {"run": {"files": [str]}, "sizes": [int]},
    "forget_runs": {},
    "step": {"number": int, "ends": {str: int}, "crcs": {str: int}},
    "edges": {"edges": dict},
    "spill_directory": {"path": str},
}
_MAX_AXES = 64


def _has_shape(value: Any, shape: Any) -> bool:
    if isinstance(shape, list):
        return isinstance(value, list) and all(_has_shape(item, shape[0]) for item in value)
    if isinstance(shape, dict) and str in shape:
        return isinstance(value, dict) and all(_has_shape(v, shape[str]) for v in value.values())
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            _has_shape(value.get(key), expected) for key, expected in shape.items()
        )
    if shape is int:
        return type(value) is int and 0 <= value < 2**62
    return isinstance(value, shape)


def _is_record(record: Record) -> bool:
    """Whether a line has the fields of its kind; kinds of later versions pass."""
    kind = record.get("kind")
    if not isinstance(kind, str) or not _has_shape(record, _SHAPES.get(kind, {})):
        return False
    if kind == "cold":
        return all(
            len(file) == 3 and _has_shape(file[0], str) and _has_shape(file[1:], [int])
            for file in record["files"]
        )
    if kind == "run":
        return len(record["sizes"]) == len(record["run"]["files"])
    return kind != "shard" or record["row_ndim"] < _MAX_AXES


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append the line of a record, durably."""
    with storage_errors("write the journal", path):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = open_regular(path, flags, error=CorruptStoreError, root=path.parent)
        with open(descriptor, "ab", buffering=0) as file:  # noqa: PTH123 - a descriptor
            write_all(file, memoryview(encode_record(record)))
            os.fsync(file.fileno())


def cut_journal(path: Path, num_bytes: int) -> None:
    """Cut a journal off behind a record."""
    with storage_errors("continue the journal", path):
        descriptor = open_regular(path, os.O_WRONLY, error=CorruptStoreError, root=path.parent)
        try:
            os.ftruncate(descriptor, num_bytes)
        finally:
            os.close(descriptor)


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return the line of a record: a crc32c, then JSON."""
    text = json.dumps(record, allow_nan=False).encode()
    return b"%08x %s\n" % (crc32c_of(text), text)


def read_records(path: Path) -> tuple[list[Record], int]:
    """Return the records of a journal up to the first damaged line, and their bytes."""
    try:
        with open_binary(path, error=StorageError, root=path.parent) as file:
            data = file.read(_MAX_JOURNAL_BYTES + 1)
    except OSError:
        return [], 0
    if len(data) > _MAX_JOURNAL_BYTES:
        return [], 0
    records: list[Record] = []
    good_bytes = 0
    values_left = _MAX_JOURNAL_VALUES
    for line in io.BytesIO(data):
        record = _decode_line(line, path, values_left)
        if record is None:
            break
        records.append(record)
        good_bytes += len(line)
        values_left -= value_bound(line)
    header = records[0] if records else {}
    if header.get("kind") != "header" or header["version"] != JOURNAL_VERSION:
        return [], 0
    return records, good_bytes


def _decode_line(line: bytes, path: Path, max_values: int) -> Record | None:
    crc, _, text = line.partition(b" ")
    if not line.endswith(b"\n") or b"%08x" % crc32c_of(text[:-1]) != crc:
        return None
    try:
        record = parse_object(text, path=str(path), max_values=max_values)
    except CorruptStoreError:
        return None
    return record if _is_record(record) else None
