"""Small files that would become large in memory, or take long: refused, the memory measured."""

from __future__ import annotations

import copy
import json
import pickle
import resource
import shutil
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.budget.limits import memory_ledger
from gnnstore.converters import from_pyg
from gnnstore.converters.inputs.files import open_npz
from gnnstore.converters.inputs.pickled import open_pickled
from gnnstore.errors import CorruptStoreError, InputError
from gnnstore.formats import StoreReader
from gnnstore.formats.arrays.zarr_metadata import MAX_COMPRESSED_FILE_BYTES
from gnnstore.formats.base.strict_json import parse_object
from gnnstore.formats.packed import PackedReader
from gnnstore.pipeline.check import verify
from tests.support.forks import check_in_fork
from tests.support.hostile import reseal
from tests.support.limits import little_memory, resident
from tests.support.stores import write_example_store

BOMB_BYTES = 1_300_000_000
_BLOCK_BYTES = 2**17  # the most that a block of Zstandard decodes to
CHUNK = "nodes/node/y/c.0"
ROW_BYTES = 300 * 8


def frame(num_bytes: int, declared: int | None) -> bytes:
    """Return a frame of Zstandard of zeros: 4 bytes for each block of 128 KiB."""
    # The size in 8 bytes; or a window of 128 KiB and no size.
    head = b"\x00\x38" if declared is None else b"\xe0" + declared.to_bytes(8, "little")
    blocks = bytearray()
    for begin in range(0, num_bytes, _BLOCK_BYTES):
        size = min(_BLOCK_BYTES, num_bytes - begin)
        is_last = begin + size == num_bytes
        blocks += (size << 3 | 1 << 1 | is_last).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd" + head + bytes(blocks)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that no test changes."""
    return write_example_store(tmp_path_factory.mktemp("sound") / "a.gnn", shard_bytes=2**16).path


@pytest.fixture
def store(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "a.gnn")


# Compressed arrays ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(BOMB_BYTES, BOMB_BYTES), f"it holds {BOMB_BYTES} bytes, a chunk of the array has"),
        (frame(BOMB_BYTES, None), "cannot be decoded"),
        (frame(BOMB_BYTES, ROW_BYTES), "cannot be decoded"),
        (frame(ROW_BYTES, ROW_BYTES) + frame(BOMB_BYTES, BOMB_BYTES), "cannot be decoded"),
        (frame(ROW_BYTES - 8, ROW_BYTES - 8), f"it holds {ROW_BYTES - 8} bytes"),
        (frame(ROW_BYTES - 8, ROW_BYTES), "cannot be decoded"),
        (frame(ROW_BYTES - 8, None), "cannot be decoded"),
        (b"\x28\xb5\x2f\xfd", "it is not a frame"),
        (b"\x50\x2a\x4d\x18" + bytes(40), "it is not a frame"),  # one to be skipped
    ],
    ids=[
        *("says it", "says nothing", "says less", "second frame", "short", "short, says more"),
        *("short, says nothing", "ends early", "skippable"),
    ],
)
def test_a_chunk_is_no_more_and_no_less_than_the_array_says(
    store: Path, data: bytes, reason: str
) -> None:
    reader = StoreReader.open(store)
    reader.compressed(reader.schema.node.attributes["y"])  # imports
    (store / CHUNK).write_bytes(data)
    reseal(store)
    with little_memory():
        assert verify(store, "checksums").ok
        (problem,) = verify(store, "full").problems
        reader = StoreReader.open(store)
        with pytest.raises(CorruptStoreError, match=reason) as caught:
            reader.compressed(reader.schema.node.attributes["y"])
    assert reason in problem.message
    assert caught.value.path == str(store / CHUNK)


def test_a_chunk_under_a_limit_of_the_address_space(store: Path) -> None:
    (store / CHUNK).write_bytes(frame(BOMB_BYTES, None))
    reseal(store)
    check_in_fork(partial(_decode_in_little_space, store))


def _decode_in_little_space(store: Path) -> None:
    verify(store, "header")
    reader = StoreReader.open(store)
    reader.compressed(reader.schema.node.splits["train"])  # what decoding imports is there
    limit = resident("VmSize") + 2**28
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    message = "cannot be decoded (Zstd decompression error"
    found = [(p.path, message in p.message) for p in verify(store, "full", num_threads=1).problems]
    try:
        reader.compressed(reader.schema.node.attributes["y"])
    except CorruptStoreError as error:
        found.append((type(error).__name__, message in str(error)))
    assert found == [(str(store / "nodes/node/y"), True), ("CorruptStoreError", True)]


def test_a_frame_of_another_writer_that_does_not_say_its_size(store: Path) -> None:
    (store / CHUNK).write_bytes(frame(ROW_BYTES, None))
    reseal(store)
    reader = StoreReader.open(store)
    assert not reader.compressed(reader.schema.node.attributes["y"]).any()


def test_a_chunk_that_is_too_long_for_one(store: Path) -> None:
    with (store / CHUNK).open("r+b") as file:
        file.truncate(10 * MAX_COMPRESSED_FILE_BYTES)  # sparse
    reseal(store)
    reader = StoreReader.open(store)
    message = f"larger than the {MAX_COMPRESSED_FILE_BYTES} bytes"
    with little_memory(), pytest.raises(CorruptStoreError, match=message):
        reader.compressed(reader.schema.node.attributes["y"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["codecs"].append(d["codecs"][1]), "expected little-endian bytes and zstd"),
        (lambda d: d["codecs"][1].update(name="gzip"), "expected little-endian bytes and zstd"),
        (lambda d: d.update(codecs=[]), "expected little-endian bytes and zstd"),
        (lambda d: d["codecs"][0]["configuration"].update(endian="big"), "expected little-endian"),
        (lambda d: d["codecs"][0].pop("configuration"), "expected little-endian bytes and zstd"),
        (lambda d: d.update(storage_transformers=[{}]), "and no storage_transformers"),
        (lambda d: d["chunk_key_encoding"].update(name="v2"), "chunk_key_encoding: expected"),
        (lambda d: d.update(shape=[300] * 33), "at most 32 dimensions"),
        (lambda d: d.update(shape=[0, 2**61, 2**61]), r"at most 32 dimensions and 2\^62 bytes"),
    ],
)
def test_a_compressed_array_that_is_encoded_in_another_way(
    store: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    file = store / "nodes/node/y/zarr.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    reseal(store)
    with pytest.raises(CorruptStoreError, match=message):
        StoreReader.open(store)


def test_packed_epochs_graph_array_is_checked_before_it_is_read(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    from tests.support.packing import pack  # noqa: PLC0415

    packed = tmp_path / "packed"
    shutil.copytree(pack(write_example_store(tmp_path / "s.gnn").path, [2], epochs=1), packed)
    (spec,) = PackedReader.open(packed).manifest.schema.graph_arrays.values()
    chunk, metadata = packed / spec.path / "c.0.0", packed / spec.path / "zarr.json"
    sound = PackedReader.open(packed).compressed(spec)
    assert sound.shape == (4, 2)
    whole = chunk.read_bytes()
    chunk.write_bytes(frame(BOMB_BYTES, None))
    reseal(packed)
    with little_memory(), pytest.raises(CorruptStoreError, match="cannot be decoded"):
        PackedReader.open(packed).compressed(spec)
    (problem,) = verify(packed, "full").problems
    assert "cannot be decoded" in problem.message
    chunk.write_bytes(whole)
    document = json.loads(metadata.read_text())
    document["shape"] = [2**40, 2]
    metadata.write_text(json.dumps(document))

    def grow(manifest: dict[str, Any]) -> None:
        manifest["schema"]["graph_arrays"]["weights"]["shape"] = [2**40, 2]

    reseal(packed, grow)
    with pytest.raises(CorruptStoreError, match="needs files that the manifest does not list"):
        PackedReader.open(packed)


# JSON -------------------------------------------------------------------------------------


@pytest.mark.timeout(100)
def test_a_repeated_key_among_many_is_found_in_linear_time() -> None:
    """A search that compares all of them takes minutes, and the limit of a test ends it."""
    keys = ",".join(f'"k{i}":0' for i in range(120_000))
    with pytest.raises(CorruptStoreError, match="a key appears twice"):
        parse_object(f'{{{keys},"k119999":1}}'.encode(), path="x")


# What converters read ---------------------------------------------------------------------


def archive_that_lies(path: Path, member: str, data: bytes, method: int) -> None:
    """Write an archive whose member says that it is but `data`, and goes on for 80 MB."""
    with (
        zipfile.ZipFile(path, "w", method, compresslevel=1) as archive,
        archive.open(member, "w", force_zip64=True) as file,
    ):
        file.write(data)
        for _ in range(80):
            file.write(bytes(10**6))
    raw = bytearray(path.read_bytes())
    entry = raw.rindex(b"PK\x01\x02")
    raw[entry + 24 : entry + 28] = struct.pack("<I", len(data))
    path.write_bytes(raw)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_an_archive_expands_no_further_than_it_says(tmp_path: Path, method: int) -> None:
    np.save(tmp_path / "a.npy", np.arange(10))
    array = (tmp_path / "a.npy").read_bytes()
    archive_that_lies(tmp_path / "a.npz", "a.npy", array, method)
    archive_that_lies(tmp_path / "split_dict.pt", "split/data.pkl", bytes(1000), method)
    is_bounded = method == zipfile.ZIP_DEFLATED
    with little_memory():
        with pytest.raises(InputError, match="is damaged" if is_bounded else "as NumPy writes it"):
            open_npz(tmp_path / "a.npz")["a"].read()
        with pytest.raises(InputError, match="found an archive as torch"):
            read_pickled(tmp_path / "split_dict.pt")


def read_pickled(path: Path) -> Any:
    return open_pickled(path, "the splits", memory_ledger("reading the splits", None))


def save_pickle(path: Path, value: Any) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("split/data.pkl", pickle.dumps(value, 2))


def test_a_pickle_takes_no_more_memory_than_its_file(tmp_path: Path) -> None:
    """A text of 1 MB and its bytes, four thousand times."""
    data = b"X\0\0\x10\0" + bytes(2**20) + b"q\0X\6\0\0\0latin1q\1c_codecs\nencode\nq\2"
    data += b"h\2h\0h\1\x86R" * 4000 + b"."
    path = tmp_path / "split_dict.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("split/data.pkl", b"\x80\2" + data)
    with little_memory(), pytest.raises(InputError, match="a bytes of something else"):
        read_pickled(path)


def test_one_dictionary_under_many_names(tmp_path: Path) -> None:
    """Two thousand names of two thousand arrays are four million."""
    path, ids = tmp_path / "split_dict.pt", np.arange(3)
    few, names = {"paper": ids, "author": ids}, list(map(str, range(2000)))
    save_pickle(path, {"train": few, "valid": few})
    assert [[*own] for own in read_pickled(path).values()] == [["paper", "author"]] * 2
    many = dict.fromkeys(names, ids)
    save_pickle(path, dict.fromkeys(names, many))
    with little_memory(), pytest.raises(InputError, match="found values that occur many times"):
        read_pickled(path)


def test_values_of_a_saved_data_that_occur_many_times(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    import torch  # noqa: PLC0415
    from torch_geometric.data import Data  # noqa: PLC0415

    ends, names = torch.zeros(2, 1, dtype=torch.int64), [f"note {i}" for i in range(2000)]

    def convert(**notes: Any) -> Path:
        torch.save(Data(edge_index=ends, num_nodes=4, **notes), tmp_path / "a.pt")
        return from_pyg(tmp_path / "a.pt", tmp_path / "a.gnn", overwrite=True)

    x = torch.ones(4, 2)
    made = StoreReader.open(convert(x=x, z=x, note=[["a"]] * 2)).schema
    assert made.node.attributes.keys() == {"x", "z"}
    assert made.graph_attributes["note"] == [["a"]] * 2
    shutil.rmtree(tmp_path / "a.gnn")
    nested: list[Any] = [1]
    for _ in range(60):
        nested = [nested, nested]
    for notes in (
        {"note": nested},
        {"note": dict.fromkeys(names, dict.fromkeys(names, 0))},
        {"note": ["x" * 2**20] * 2000},
        dict.fromkeys(names, torch.zeros(2**18)),
        {name: zeros[:-1] for zeros in [torch.zeros(2**18)] for name in names},
    ):
        with little_memory(), pytest.raises(InputError, match="found values that occur many times"):
            convert(**notes)
    assert not (tmp_path / "a.gnn").exists()


def test_members_of_what_torch_saves_do_not_overlap(tmp_path: Path) -> None:
    """A thousand storages in one place, of a megabyte each."""
    path = tmp_path / "split_dict.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("split/data.pkl", b"\x80\2}.")
        archive.writestr("split/data/0", bytes(2**20))
        for number in range(1, 1000):
            archive.filelist.append(copy.copy(archive.filelist[1]))
            archive.filelist[-1].filename = f"split/data/{number}"
    with little_memory(), pytest.raises(InputError, match="found an archive as torch"):
        read_pickled(path)
