"""A store that is made of a damaged one would verify: so it is not made."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch_geometric.nn import SAGEConv

import gnnstore
from gnnstore.converters import (
    ConvertOptions,
    add_order,
    from_kronecker,
    from_snap,
    reorder,
    split_edges,
)
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import CorruptStoreError
from gnnstore.formats import StoreReader
from gnnstore.formats.arrays.compressed import write_compressed_files
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.assignments import AssignmentReader
from gnnstore.formats.base.files import BLOCK_BYTES
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.container.reads import CheckedFiles
from gnnstore.formats.packed import PackedReader
from gnnstore.testing.graphs import write_store
from gnnstore.tools.cli import main
from tests.support.effort import choose, examples, is_long
from tests.support.files import flip
from tests.support.hetero import WRITES, hetero_store, make_hetero
from tests.support.hostile import reseal
from tests.support.stores import write_example_store

Derive = Callable[[Path, Path], object]

DERIVED: dict[str, Derive] = {
    "reorder": reorder,
    "community": lambda store, out: reorder(store, out, "community"),
    "split": split_edges,
    "kronecker": lambda store, out: from_kronecker(store, out, factor=2),
    "partition": lambda store, out: partition(store, 3, output=out, train_first="train"),
}


def infer(store: Path, out: Path) -> None:
    """Run a layer over all nodes."""
    layer = SAGEConv(7, 3)
    with torch.no_grad():
        for number, weights in enumerate(layer.parameters()):
            weights[:] = torch.arange(weights.numel()).reshape(weights.shape) * 0.1 + number
    gnnstore.inference([layer], store, out)


def export(store: Path, out: Path) -> None:
    """Write embeddings with their graph."""
    table = gnnstore.EmbeddingTable.open(store.with_name("t.emb"), store)
    try:
        table.export(out, "z", with_graph=True)
    finally:
        table.close()


def add_orders(store: Path, out: Path) -> None:
    """Give a copy orders by times of edges and of nodes, and sums of weights."""
    shutil.copytree(store, out)
    try:
        add_order(out, ["edge_time", "y"], "edge_weight")
    except BaseException:
        assert not [path for path in out.parent.iterdir() if path.name.startswith(f".{out.name}")]
        shutil.rmtree(out)
        raise


def pack_epoch(store: Path, out: Path) -> None:
    """Pack an epoch by the command."""
    is_typed = len(StoreReader.open(store).schema.node_types) > 1
    words = ["--input-nodes", "paper:train" if is_typed else "train", "--num-neighbors", "3,2"]
    words += ["--batch-size", "20", "--memory", "64MB", "--output", str(out), "--quiet"]
    messages = io.StringIO()
    with redirect_stderr(messages):
        status = main(["pack", str(store), *words])
    if status:
        assert status == 1
        raise CorruptStoreError(messages.getvalue().removeprefix("gnnstore: error: "))


def assign(store: Path, out: Path) -> None:
    """Assign the seeds by the command."""
    messages = io.StringIO()
    words = ["--parts", "2", "--hops", "2", "--name", "a", "--threads", "1", "--quiet"]
    with redirect_stderr(messages):
        status = main(["assign", str(store), *words])
    if status:
        assert status == 1
        raise CorruptStoreError(messages.getvalue().removeprefix("gnnstore: error: "))
    shutil.move(store / "assignments" / "a", out)


COMMANDS: dict[str, tuple[Derive, type[SealedReader[Any]]]] = {
    "pack": (pack_epoch, PackedReader),
    "inference": (infer, StoreReader),
    "export": (export, StoreReader),
    "add-order": (add_orders, StoreReader),
    "assign": (assign, AssignmentReader),
}
# Arrays whose values the result does not have.
UNREAD: dict[str, tuple[str, ...]] = {
    "kronecker": ("maps/", "edges/node__to__node/edge_id"),
    "partition": (
        "maps/",
        "edges/node__to__node/attrs/",
        "edges/node__to__node/edge_id",
        "nodes/node/y",
        "splits/node/valid",
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store with every kind of array that all of them take."""
    rng = np.random.default_rng(1)
    return write_store(
        tmp_path_factory.mktemp("sound") / "a.gnn",
        rng.integers(0, 250, (2, 3000)),
        splits={"train": rng.permutation(300)[:40], "valid": np.arange(7)},
        original_ids=rng.permutation(900)[:300],
        x=rng.normal(size=(300, 7)).astype(np.float32),
        y=rng.integers(0, 4, 300),
        edge_weight=rng.random(3000),
        edge_time=rng.integers(0, 50, 3000),
        options=ConvertOptions(edge_ids=True),
    )


@pytest.mark.parametrize("derive", [name for name in DERIVED if is_long() or name != "community"])
def test_every_array_is_compared(tmp_path: Path, sound: Path, derive: str) -> None:
    store, out = tmp_path / "a.gnn", tmp_path / "b.gnn"
    shutil.copytree(sound, store)
    names = [entry.path for entry in StoreReader.open(store).manifest.files]
    names = [name for name in names if not name.endswith("zarr.json")]
    read = [name for name in names if not name.startswith(UNREAD.get(derive, ()))]
    for name in read[:: choose(2, 1)]:
        file = store / name
        data = file.read_bytes()
        # The last byte: it is nowhere near what is read first, and decodes to something.
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(CorruptStoreError, match=rf"{name}: bytes .* are damaged: .*crc32c"):
            DERIVED[derive](store, out)
        assert not out.exists()
        file.write_bytes(data)
    assert len(read) >= 4
    DERIVED[derive](store, out)


@pytest.fixture(scope="module")
def sound_types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store with types."""
    data = make_hetero(counts={"paper": 60, "author": 35}, degrees={WRITES: 3})
    data[WRITES].edge_weight = data[WRITES].pop("w")
    return hetero_store(tmp_path_factory.mktemp("typed") / "a.gnn", data, edge_ids=True).path


@pytest.mark.parametrize(
    ("command", "made"),
    [
        *((command, "sound") for command in COMMANDS),
        *choose([], [("pack", "types"), ("add-order", "types")]),
    ],
)
def test_a_bit_is_found_or_was_not_read(
    tmp_path: Path, sound: Path, sound_types: Path, command: str, made: str
) -> None:
    """What writes refuses the store, or writes what it makes of the sound one."""
    (derive, kind), store, out = COMMANDS[command], tmp_path / "a.gnn", tmp_path / "b"
    shutil.copytree(sound if made == "sound" else sound_types, store)
    if command == "export":
        gnnstore.EmbeddingTable.create(tmp_path / "t.emb", store, dim=2).close()
    derive(store, out)
    expected, found = kind.open(out).uuid, 0
    for spec in [*StoreReader.open(store).manifest.arrays()][:: choose(2, 1)]:
        shutil.rmtree(out)
        (file,) = (path for path in (store / spec.path).iterdir() if path.name[0] == "c")
        # In the third element, or at the end of what is compressed.
        offset = 2 * STORAGE_DTYPES[spec.dtype].itemsize
        offset = offset if spec.layout == "paged" else file.stat().st_size - 1
        flip(file, offset, bit=1)
        try:
            derive(store, out)
        except CorruptStoreError as error:
            assert "bytes 0-" in str(error), spec.path  # noqa: PT017
            assert str(error).startswith(str(out if command == "add-order" else store))  # noqa: PT017
            assert not out.exists()
            out.mkdir()
            found += 1
        else:
            assert kind.open(out).uuid == expected, spec.path
        flip(file, offset, bit=1)
    assert found >= choose(2, 3)


@pytest.mark.parametrize("derive", [*DERIVED, "add-order"])
def test_ids_that_no_node_has(tmp_path: Path, sound: Path, derive: str) -> None:
    """Those of a store whose checksums are right."""
    store, make = tmp_path / "a.gnn", DERIVED.get(derive, add_orders)
    shutil.copytree(sound, store)
    schema = StoreReader.open(store).schema
    for spec, words in ((schema.edge.indices, "outside"), (schema.edge.indptr, "ascend")):
        file = store / spec.path / "c.0"
        whole = file.read_bytes()
        flip(file, 8 * 4, bit=30)
        reseal(store)
        with pytest.raises(CorruptStoreError, match=words):
            make(store, tmp_path / "b.gnn")
        assert not (tmp_path / "b.gnn").exists()
        file.write_bytes(whole)
    if derive == "add-order":
        return
    train = schema.node.splits["train"]
    for name in ("c.0", "zarr.json"):
        (store / train.path / name).unlink()
    write_compressed_files(store / train.path, train, np.full(40, 300))
    reseal(store)
    with pytest.raises(CorruptStoreError, match=r"splits/node/train: has nodes outside \[0, 300\)"):
        make(store, tmp_path / "b.gnn")


def test_repeated_ids_and_scales_of_no_numbers(tmp_path: Path, sound: Path) -> None:
    """Those of a store whose checksums are right, which a copy would carry over."""
    split_edges(sound, tmp_path / "a.gnn")
    edge = StoreReader.open(tmp_path / "a.gnn").schema.edge
    in_split = edge.splits["valid"].edge_id
    own = StoreReader.open(sound).schema.edge.edge_id
    assert own is not None
    assert in_split is not None
    out, makes = tmp_path / "out.gnn", (DERIVED["reorder"], export, DERIVED["split"])
    for path, spec in ((sound, own), (tmp_path / "a.gnn", in_split)):
        store = shutil.copytree(path, tmp_path / "b.gnn")
        with (store / spec.path / "c.0").open("r+b") as file:
            first = file.read(spec.row_bytes)
            file.seek(5 * spec.row_bytes)
            file.write(first)
        reseal(store)
        message = f"{spec.path}: several edges have the id {int.from_bytes(first, 'little')}; .*"
        gnnstore.EmbeddingTable.create(tmp_path / "t.emb", store, dim=2).close()
        for make in makes[: 2 + (spec is own)]:
            with pytest.raises(CorruptStoreError, match=message):
                make(store, out)
        assert not list(tmp_path.glob("*out*"))
        shutil.rmtree(store)
        shutil.rmtree(tmp_path / "t.emb")
    store = write_store(
        tmp_path / "c.gnn",
        np.arange(20).reshape(2, 10),
        x=np.arange(40, dtype=np.float32).reshape(20, 2),
        options=ConvertOptions(feature_dtype="int8", feature_scale="column"),
    )
    ((_, scaled),) = StoreReader.open(store).schema.scaled_attributes()
    scale = scaled.scales
    gnnstore.EmbeddingTable.create(tmp_path / "t.emb", store, dim=2).close()
    for entry in (store / scale.path).iterdir():
        entry.unlink()
    write_compressed_files(store / scale.path, scale, np.array([1, np.nan], np.float32))
    reseal(store)
    for make in (*makes, DERIVED["kronecker"]):
        with pytest.raises(CorruptStoreError, match=f"{scale.path}: the scale of column 1 of 'x'"):
            make(store, out)
    assert not list(tmp_path.glob("*out*"))


def test_names_are_compared(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("".join(f"n{i},n{i // 2}\n" for i in range(90)))
    store = tmp_path / "a.gnn"
    from_snap(edges, store, string_ids=True)
    (text,) = [own for own in [StoreReader.open(store).schema.node.original_name] if own]
    for spec in (text.bytes, text.offsets):
        file = store / spec.path / "c.0"
        data = file.read_bytes()
        file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        for make in (DERIVED["reorder"], DERIVED["split"]):
            with pytest.raises(CorruptStoreError, match=f"{spec.path}/c.0: bytes .* are damaged"):
                make(store, tmp_path / "b.gnn")
        file.write_bytes(data)


def test_altered_checksums(tmp_path: Path, sound: Path) -> None:
    """Those of a store that was altered on purpose, or whose table of checksums is damaged."""
    store = tmp_path / "a.gnn"
    shutil.copytree(sound, store)
    file = store / "checksums" / "c.0"
    data = file.read_bytes()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(CorruptStoreError, match="the checksums are altered; restore"):
        reorder(store, tmp_path / "b.gnn")


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store with files of more than one block, one of which is damaged."""
    path = tmp_path_factory.mktemp("blocks") / "a.gnn"
    write_example_store(path, num_nodes=70_000, feature_shape=(16,))
    return path


PIECES = st.tuples(st.floats(0, 1), st.floats(0, 1))


@example(pieces=[(1.0, 1.0)], damaged=4)  # nothing, at the end of the last block
@given(pieces=st.lists(PIECES, min_size=1, max_size=8), damaged=st.integers(0, 4))
@settings(max_examples=examples(100), deadline=None)
def test_any_pieces_are_those_of_the_file(
    blocks: Path, pieces: list[tuple[float, float]], damaged: int
) -> None:
    """And the damaged block is found by the pieces that reach into it, by no other."""
    reader = StoreReader.open(blocks)
    path = reader.paged(reader.schema.node.attributes["x"]).file_paths[0]
    data = np.fromfile(path, np.uint8)
    assert len(data) > 4 * BLOCK_BYTES
    files = CheckedFiles(reader)
    table = files._files
    size, crcs = table[path]
    table[path] = size, crcs.copy()
    table[path][1][damaged] ^= 1
    for ends in pieces:
        begin, end = (round(share * size) for share in sorted(ends))
        out = np.zeros(end - begin, np.uint8)
        reaches = (
            end > begin and begin < (damaged + 1) * BLOCK_BYTES and end > damaged * BLOCK_BYTES
        )
        if reaches:
            message = f"bytes {damaged * BLOCK_BYTES}-"
            with pytest.raises(CorruptStoreError, match=message):
                files.fill(path, begin, out)
            continue
        files.fill(path, begin, out)
        assert (out == data[begin:end]).all()
