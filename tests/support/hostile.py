"""Sealed directories changed by somebody hostile: any value, and then all checksums made right.

A checksum finds what a disk has done, and nothing that somebody has done on purpose. So changes
here are sealed again, and what is behind the checksums has to hold by itself. Changes are plain
data that Hypothesis draws, so that a failure prints those that it takes.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from numcodecs import zstd

from gnnstore import _core
from gnnstore.features.packed_rows import crc_seed
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, zarr_data_type
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.base.files import BLOCK_BYTES, crc32c_of
from gnnstore.formats.container.manifest import CHECKSUMS_ARRAY, ZERO_CRC

Json: TypeAlias = dict[str, Any]
Change: TypeAlias = Callable[[Json], object]

_CRC = re.compile(rb'("manifest_crc32c": ?)"\w{8}"')

# ---- sealing


def write_sealed(root: Path, text: str) -> None:
    """Write a root `zarr.json` with the crc32c that its text has."""
    zeroed = _CRC.sub(rb'\1"%b"' % ZERO_CRC.encode(), text.encode())
    root.write_bytes(_CRC.sub(rb'\1"%08x"' % crc32c_of(zeroed), zeroed))


def rewrite(directory: Path, change: Change) -> None:
    """Change a manifest and seal it; the files stay as they are listed."""
    root = directory / METADATA_FILE
    document = json.loads(root.read_text())
    change(_manifest_in(document))
    write_sealed(root, json.dumps(document, indent=1))


def reseal(directory: Path, change: Change = lambda _: None) -> None:
    """Give a manifest the sizes and checksums that the files have, and change it besides."""

    def update(own: Json) -> None:
        blocks: list[Any] = []
        for entry in own["files"]:
            file = directory / entry[0]
            entry[1] = file.stat().st_size
            blocks.append(_core.crc32c_file(str(file), BLOCK_BYTES))
        table = directory / CHECKSUMS_ARRAY / "c.0"
        crcs = np.concatenate(blocks).astype("<u4").tobytes()
        data = bytearray(table.read_bytes())
        data[: len(crcs)] = crcs
        table.write_bytes(data)
        for entry in own["checksum_files"]:
            entry[2] = f"{crc32c_of((directory / entry[0]).read_bytes()):08x}"
        change(own)

    rewrite(directory, update)


def _manifest_in(document: Json) -> Json:
    own: Json = next(iter(document["attributes"].values()))
    return own


# ---- changes of JSON


@dataclass(frozen=True)
class JsonEdit:
    """A change of one value of a document.

    Attributes
    ----------
    path : tuple of int
        The way to the value: at each level the number of the child, of those that there are.
    action : str
        "set", "remove", "repeat" (in its list), "rename" (its key), "add" to a number, or "copy"
        the value at the path `value`.
    """

    path: tuple[int, ...]
    action: str
    value: Any = None

    def apply(self, document: Any) -> None:
        """Change a document, if it has such a value."""
        found = _find(document, self.path)
        if found is None:
            return
        parent, key = found
        if self.action == "set":
            parent[key] = copy.deepcopy(self.value)
        elif self.action == "copy":
            other = _find(document, self.value)
            parent[key] = copy.deepcopy(other[0][other[1]]) if other else None
        elif self.action == "add" and type(parent[key]) in (int, float):
            parent[key] += self.value
        elif self.action == "remove":
            del parent[key]
        elif self.action == "repeat" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif self.action == "rename" and isinstance(parent, dict):
            parent[self.value] = parent.pop(key)


def _find(document: Any, path: tuple[int, ...]) -> tuple[Any, Any] | None:
    """Return the container of a value, and its key there."""
    found = None
    for number in path:
        if not isinstance(document, dict | list) or not document:
            break
        keys = list(document) if isinstance(document, dict) else range(len(document))
        found = document, keys[number % len(keys)]
        document = document[found[1]]
    return found


_NUMBERS = st.sampled_from(
    [0, 1, -1, 2, 3, 39, 40, 41, 4096, 2**31 - 1, 2**31, 2**40, 2**62, 2**63, 2**64, -(2**63)]
) | st.integers(-(2**65), 2**65)
_TEXTS = st.sampled_from(
    [
        *("", "node", "x", "cold", "paged", "int8", "int64", "float64", "../x", "/etc/passwd"),
        *("a" * 300, "nodes/node/x", "edge_index", "batch_size", "\0", "%2e%2e", "a/b", "~"),
    ]
) | st.text(max_size=8)
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS | st.sampled_from([0.5, -1e300, -0.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=4,
)
_PATHS = st.lists(st.integers(0, 40), min_size=1, max_size=7).map(tuple)


def json_edits() -> st.SearchStrategy[JsonEdit]:
    """Return a strategy of changes of a document."""
    return st.one_of(
        st.builds(JsonEdit, _PATHS, st.just("set"), _VALUES),
        st.builds(JsonEdit, _PATHS, st.just("set"), _NUMBERS),
        st.builds(JsonEdit, _PATHS, st.just("copy"), _PATHS),
        st.builds(JsonEdit, _PATHS, st.just("add"), st.sampled_from([1, -1, 64, 2**32])),
        st.builds(JsonEdit, _PATHS, st.sampled_from(["remove", "repeat"])),
        st.builds(JsonEdit, _PATHS, st.just("rename"), _TEXTS),
    )


# ---- changes of files


@dataclass(frozen=True)
class ManifestEdit:
    """A change of the manifest alone."""

    edit: JsonEdit

    def apply(self, directory: Path) -> Change:
        """Return the change, for when the rest is sealed."""
        del directory
        return self.edit.apply


@dataclass(frozen=True)
class MetadataEdit:
    """A change of the `zarr.json` of one of the arrays."""

    array: int
    edit: JsonEdit

    def apply(self, directory: Path) -> None:
        """Change the file."""
        file = _array(directory, self.array) / METADATA_FILE
        document = json.loads(file.read_text())
        self.edit.apply(document)
        file.write_text(json.dumps(document))


@dataclass(frozen=True)
class ElementEdit:
    """Other numbers in one of the arrays: at some places, or from the first of them on."""

    array: int
    places: tuple[int, ...]
    value: int | float
    to_end: bool = False

    def apply(self, directory: Path) -> None:
        """Change the first file of the array."""
        place = _array(directory, self.array)
        own = json.loads((place / METADATA_FILE).read_text())
        described = own["attributes"]["gnnstore"]
        file = next(iter(sorted(place.glob("c*"))), None)
        if file is None:
            return
        dtype = STORAGE_DTYPES[described["dtype"]]
        is_compressed = described["layout"] == "cold"
        try:
            data = zstd.decompress(file.read_bytes()) if is_compressed else file.read_bytes()
        except RuntimeError:  # no frame since an earlier change
            return
        values = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype).copy()
        # Mostly what lies before padding and the index of the shard.
        count = min(len(values), int(np.prod(own["shape"])) + 1)
        if not count:
            return
        with np.errstate(all="ignore"):
            value = _as_type(self.value, dtype)
        for index in self.places:
            values[index % count] = value
        if self.to_end:
            values[self.places[0] % count : count] = value
        data = values.tobytes() + data[values.nbytes :]
        file.write_bytes(zstd.compress(data) if is_compressed else data)


def _as_type(value: int | float, dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iub" and not np.isfinite(value):
        value = -1
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        wrapped = int(value) % 2**bits
        return wrapped - 2**bits if dtype.kind == "i" and wrapped >> (bits - 1) else wrapped
    return dtype.type(value)


@dataclass(frozen=True)
class ByteEdit:
    """Other bytes in one of the files, or another end of it."""

    file: int
    place: int
    data: bytes
    cuts: bool = False

    def apply(self, directory: Path) -> None:
        """Change the file."""
        files = sorted(path for path in directory.rglob("c*") if path.is_file())
        file = files[self.file % len(files)]
        found = bytearray(file.read_bytes())
        place = self.place % (len(found) + 1)
        found[place : None if self.cuts else place + len(self.data)] = self.data
        file.write_bytes(found)


@dataclass(frozen=True)
class TypeEdit:
    """Another element type of one of the arrays, in the manifest and beside it."""

    array: int
    dtype: str

    def apply(self, directory: Path) -> Change:
        """Change the array's metadata; return the change of the manifest."""
        place = _array(directory, self.array)
        file = place / METADATA_FILE
        document = json.loads(file.read_text())
        document["data_type"] = zarr_data_type(self.dtype)
        document["attributes"]["gnnstore"]["dtype"] = self.dtype
        document["fill_value"] = False if self.dtype == "bool" else 0
        file.write_text(json.dumps(document))
        path = place.relative_to(directory).as_posix()
        return lambda own: [
            spec.update(dtype=self.dtype) for spec in _specs_in(own) if spec["path"] == path
        ]


def _specs_in(value: Any) -> Iterator[Json]:
    """Yield the descriptions of arrays anywhere in a manifest."""
    if isinstance(value, dict) and {"path", "dtype"} <= value.keys():
        yield value
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _specs_in(child)


@dataclass(frozen=True)
class RecordEdit:
    """Other numbers in the record of a packed batch, with the checksum that the index has."""

    batch: int
    places: tuple[int, ...]
    value: int
    dtype: str

    def apply(self, directory: Path) -> None:
        """Change the record and the index."""
        metadata = (directory / "index" / METADATA_FILE).read_text()
        num_batches, columns = json.loads(metadata)["shape"]
        # Behind the numbers is the index of the shard, whose bytes are no whole number of them.
        count = num_batches * columns
        index = np.memmap(directory / "index" / "c.0.0", np.int64, "r+", shape=count)
        records = np.memmap(directory / "batches" / "c.0", np.uint8, "r+")
        number = self.batch % num_batches
        begin, size = (int(value) for value in index[number * columns :][:2])
        record = records[begin : begin + size]
        item_bytes = np.dtype(self.dtype).itemsize
        values = record[: size // item_bytes * item_bytes].view(self.dtype)
        for place in self.places if len(values) else ():  # an earlier change may have cut it
            values[place % len(values)] = self.value
        index[number * columns + 2] = _core.crc32c(np.asarray(record), crc_seed(number))
        index.flush()
        records.flush()


Edit: TypeAlias = ManifestEdit | MetadataEdit | ElementEdit | ByteEdit | TypeEdit | RecordEdit

_ELEMENTS = st.sampled_from([0, 1, -1, 2, 39, 40, 41, 127, 2**31, 2**62, -(2**63), 4096]) | (
    st.integers(-(2**63), 2**63 - 1) | st.sampled_from([float("nan"), float("inf"), -1e300, 0.5])
)
_PLACES = st.lists(st.integers(0, 2**12), min_size=1, max_size=4).map(tuple)
_NUMBER = st.integers(0, 40)


def edits(*, records: bool = False) -> st.SearchStrategy[list[Edit]]:
    """Return a strategy of changes of a store; of packed epochs if it has records."""
    kinds: list[st.SearchStrategy[Any]] = [
        st.builds(ManifestEdit, json_edits()),
        st.builds(MetadataEdit, _NUMBER, json_edits()),
        st.builds(ElementEdit, _NUMBER, _PLACES, _ELEMENTS, st.booleans()),
        st.builds(ElementEdit, _NUMBER, _PLACES, _ELEMENTS),
        st.builds(ByteEdit, _NUMBER, st.integers(0, 2**14), st.binary(max_size=9), st.booleans()),
        st.builds(TypeEdit, _NUMBER, st.sampled_from(sorted(STORAGE_DTYPES))),
    ]
    if records:
        kinds += 2 * [
            st.builds(
                RecordEdit,
                _NUMBER,
                _PLACES,
                st.integers(-2, 50) | st.sampled_from([2**31 - 1, -(2**31)]),
                st.sampled_from(["<i4", "<i8"]),
            )
        ]
    return st.lists(st.one_of(kinds), min_size=1, max_size=3)


def apply_edits(directory: Path, changes: list[Edit]) -> None:
    """Change a store or packed epochs, and seal it."""
    of_manifest = [change for edit in changes if (change := edit.apply(directory)) is not None]

    def change_all(own: Json) -> None:
        for change in of_manifest:
            change(own)

    reseal(directory, change_all)


def _array(directory: Path, number: int) -> Path:
    """Return the directory of one of the arrays, but not of the checksums."""
    found = [
        file.parent
        for file in sorted(directory.rglob(METADATA_FILE))
        if '"array"' in file.read_text() and file.parent.name != CHECKSUMS_ARRAY
    ]
    return found[number % len(found)]
