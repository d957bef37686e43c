"""Packed epochs that are damaged or hostile: told by name, never batches that are wrong."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import _core
from gnnstore.errors import CorruptStoreError, UnsupportedVersionError
from gnnstore.features.chunks import BLOCK_BYTES
from gnnstore.features.packed_rows import PackedFiles, crc_seed
from gnnstore.formats.packed import (
    CHECKED_ROWS,
    PACKED_FORMAT_VERSION,
    PackedManifest,
    PackedReader,
)
from gnnstore.testing.graphs import random_graph
from tests.support.batches import batches_of
from tests.support.effort import choose
from tests.support.files import flip
from tests.support.hetero import hetero_store
from tests.support.hostile import reseal, rewrite
from tests.support.packing import pack
from tests.support.stores import write_example_store

BATCHES = 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store with packed epochs named "base"."""
    graph = random_graph(1000, 12_000, seed=5, feature_dim=100, num_classes=7, edge_feature_dim=3)
    path = graph.write(tmp_path_factory.mktemp("plans") / "s.gnn")
    pack(path, [4, 4])
    return path


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store of several types, that no test changes."""
    return hetero_store(tmp_path_factory.mktemp("typed") / "t.gnn", edge_ids=True).path


@pytest.fixture
def packed(store: Path, tmp_path: Path) -> Path:
    """Return packed epochs that a test may break."""
    return shutil.copytree(store / "plans" / "base", tmp_path / "packed")


@pytest.fixture
def fixed(store: Path, tmp_path: Path) -> Path:
    """Return packed epochs with the same cached rows for all batches, that a test may break."""
    whole = store.parent / "fixed"
    if not whole.exists():
        pack(store, [4, 4], output=whole, cache="degree")
    return shutil.copytree(whole, tmp_path / "fixed")


@pytest.mark.parametrize("level", ["header", "checksums", "full"])
def test_sound_packed_epochs(store: Path, level: Any) -> None:
    report = gnnstore.verify(store, level)
    packed = gnnstore.verify(store / "plans" / "base", level)
    assert report.ok
    assert packed.ok
    assert report.files > packed.files > 8
    assert (report.bytes_read > packed.bytes_read > 0) == (level != "header")


@pytest.mark.parametrize("number", [0, 7, BATCHES, 2 * BATCHES - 1])
def test_a_record_that_is_damaged(packed: Path, number: int) -> None:
    begin, size = (int(value) for value in PackedReader.open(packed).index[number, :2])
    flip(packed / "batches" / "c.0", begin + size // 2)
    name = f"batch {number % BATCHES} of epoch {number // BATCHES}"
    loader = gnnstore.open_packed(packed).loader(num_threads=2)
    loader.set_epoch(number // BATCHES)
    taken: list[Any] = []
    message = f"bytes {begin} to {begin + size}, the record of {name}, are damaged"
    with pytest.raises(CorruptStoreError, match=message):
        taken.extend(loader)
    assert len(taken) == number % BATCHES, "those before it are sound"
    (problem,) = gnnstore.verify(packed).problems
    assert problem.path == str(packed / "batches" / "c.0")
    assert problem.first_byte is not None
    assert problem.first_byte <= begin + size // 2 < (problem.end_byte or 0)


def read_damaged(packed: Path, number: int, message: str) -> CorruptStoreError:
    """Read an epoch, whose batches before a damaged one must be sound."""
    loader = gnnstore.open_packed(packed).loader(num_threads=2)
    loader.set_epoch(number // BATCHES)
    taken: list[Any] = []
    with pytest.raises(CorruptStoreError, match=message) as caught:
        taken.extend(loader)
    assert len(taken) == number % BATCHES
    assert f"batch {number % BATCHES} of epoch {number // BATCHES}, 'nodes/node/x'" in str(
        caught.value
    )
    return caught.value


@pytest.mark.parametrize("number", [0, 7, BATCHES, 2 * BATCHES - 1])
@pytest.mark.parametrize("piece", [0, -1])
def test_rows_that_are_damaged_are_not_trained_on(packed: Path, number: int, piece: int) -> None:
    reader = PackedReader.open(packed)
    begin, size = (
        int(reader.chunk_begins(0)[number]),
        int(reader.chunk_bytes(0)[number]),
    )
    path = packed / "rows/x/c.0"
    place = begin + (size - 1 if piece else 0)
    flip(path, place)
    first = begin + ((size - 1) // BLOCK_BYTES * BLOCK_BYTES if piece else 0)
    end = min(first + BLOCK_BYTES, begin + size)
    message = (
        f"{path}: packed rows are damaged: bytes {first} to {end} are not what was written: the "
        "crc32c is .*pack again; 'gnnstore verify'"
    )
    error = read_damaged(packed, number, message)
    assert (error.path, error.offset) == (str(path), begin)
    (problem,) = gnnstore.verify(packed).problems
    assert problem.first_byte is not None
    assert problem.first_byte <= place < (problem.end_byte or 0)


def test_rows_that_are_damaged(packed: Path, store: Path) -> None:
    reader = PackedReader.open(packed)
    number = 2 * BATCHES - 1
    flip(packed / "rows" / "x" / "c.0", int(reader.chunk_begins(0)[number]) + 5)
    (problem,) = gnnstore.verify(packed).problems
    assert problem.path == str(packed / "rows" / "x" / "c.0")
    # In a store their problems are the store's.
    target = store / "plans" / "damaged"
    shutil.copytree(packed, target)
    try:
        assert [p.path for p in gnnstore.verify(store).problems] == [str(target / "rows/x/c.0")]
    finally:
        shutil.rmtree(target)


@pytest.mark.parametrize("name", ["index/c.0.0", "checksums/c.0", "batches/c.0", "rows/x/c.0"])
def test_a_file_that_is_missing_or_short(packed: Path, name: str) -> None:
    path = packed / name
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(CorruptStoreError, match=f"has {size - 1} bytes.*pack again"):
        gnnstore.open_packed(packed)
    path.unlink()
    with pytest.raises(CorruptStoreError, match="the file is missing"):
        gnnstore.open_packed(packed)
    assert not gnnstore.verify(packed).ok


def test_a_file_that_is_cut_while_it_is_read(packed: Path) -> None:
    loader = gnnstore.open_packed(packed).loader(num_threads=1)
    for name in ("batches", "rows/x"):
        with (packed / name / "c.0").open("r+b") as file:
            file.truncate(8192)
    with pytest.raises((CorruptStoreError, gnnstore.StorageError)):
        batches_of(loader)


def test_a_file_that_nobody_knows(packed: Path) -> None:
    (packed / "rows" / "notes.txt").write_text("hello")
    (problem,) = gnnstore.verify(packed, "header").problems
    assert "does not list this file" in problem.message


def test_bytes_of_the_manifest_that_changed(packed: Path) -> None:
    text = (packed / "zarr.json").read_bytes()
    (packed / "zarr.json").write_bytes(text.replace(b'"seed": 3', b'"seed": 4'))
    with pytest.raises(CorruptStoreError, match="altered"):
        gnnstore.open_packed(packed)
    assert not gnnstore.verify(packed).ok


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("epochs", 7),
        ("batches_per_epoch", -1),
        ("num_slots", "many"),
        ("num_slots", 2**31 - 2),
        ("seed", -1),
        ("cached", ["nodes/node/other"]),
        ("cached", []),
        ("plain", ["nodes/node/y", "nodes/node/y"]),
        ("fingerprint", []),
        ("block_bytes", 1),
        ("files", [["../../etc/passwd", 1]]),
        ("format", "gnnstore"),
        ("piece_bytes", 0),
        ("piece_bytes", 4095),
        ("piece_bytes", 3 << 12),
        ("piece_bytes", 1 << 20),
        ("piece_bytes", None),
    ],
)
def test_a_manifest_that_makes_no_sense(packed: Path, field: str, value: Any) -> None:
    rewrite(packed, lambda own: own.update({field: value}))
    with pytest.raises(CorruptStoreError):
        gnnstore.open_packed(packed)


def test_newer_packed_epochs(packed: Path) -> None:
    newer = PACKED_FORMAT_VERSION + 1
    rewrite(packed, lambda own: own.update(format_version=newer))
    with pytest.raises(UnsupportedVersionError, match=rf"format version {newer}.*Upgrade"):
        gnnstore.open_packed(packed)


def test_epochs_of_types_have_a_version_of_their_own(
    packed: Path, typed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader from before there were types refuses them in words, and reads all others."""
    typed = pack(typed, [2], ("paper", "train"), output=tmp_path / "typed", epochs=1)
    untyped, of_types = PackedManifest.OLDEST, 6
    with monkeypatch.context() as older:
        older.setattr(PackedManifest, "VERSION", untyped)
        message = rf"format version {of_types}; this gnnstore reads up to {untyped}"
        with pytest.raises(UnsupportedVersionError, match=message):
            gnnstore.open_packed(typed)
        gnnstore.open_packed(packed)
    for wrong, version in ((typed, untyped), (packed, of_types)):
        gnnstore.open_packed(wrong)
        rewrite(wrong, partial(dict.update, format_version=version))
        with pytest.raises(CorruptStoreError, match="format_version: expected"):
            gnnstore.open_packed(wrong)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("part", None),
        ("part", {"only": 0}),
        *(("part", {name: value}) for name, value in (
            ("number", 1), ("of", 0), ("of", 3), ("first_batch", 1), ("num_batches", 23),
            ("num_batches", 2**61), ("cached_crc32c", -1),
        )),
        ("epochs", 3),
        ("format_version", 5),
        ("slot_shares", [1, 2]),
    ],
)  # fmt: skip
def test_a_part_that_makes_no_sense(fixed: Path, field: str, value: Any) -> None:
    def change(own: dict[str, Any]) -> None:
        is_part = isinstance(value, dict) and "only" not in value
        own[field] = own["part"] | value if is_part else value

    rewrite(fixed, change)
    with pytest.raises(CorruptStoreError):
        gnnstore.open_packed(fixed)


def _with_crc(crc: int, own: dict[str, Any]) -> None:
    own["part"]["cached_crc32c"] = crc


def test_other_cached_rows(fixed: Path, tmp_path: Path) -> None:
    """Numbers of rows that do not ascend, or are not those that were chosen or expected."""
    count = PackedReader.open(fixed).manifest.num_slots
    place = Path("cache") / "nodes" / "c.0"
    nodes = np.fromfile(fixed / place, np.int64, count)
    free = next(v for v in range(1000) if v not in nodes)
    other = np.sort([*nodes[1:], free])
    not_these, no_record = "these are not the rows that are cached", "it is not a record of these"
    first, last, negative = (nodes.copy() for _ in range(3))
    first[0], last[-1], negative[0] = nodes[1], 1000, -1
    for changed, words in (
        (first, not_these),
        (last, not_these),
        (negative, not_these),
        (other, no_record),
    ):
        for is_forged in (False, True):
            packed = shutil.copytree(fixed, tmp_path / "copy")
            with (packed / place).open("r+b") as file:
                file.write(changed.tobytes())
            reseal(packed)
            if is_forged:
                crc = _core.crc32c(changed.view(np.uint8))
                rewrite(packed, partial(_with_crc, crc))
            with pytest.raises(CorruptStoreError, match=words if is_forged else not_these):
                batches_of(gnnstore.open_packed(packed).loader(num_threads=0))
            problems = gnnstore.verify(packed, "full").problems
            found = "cannot be read" if is_forged and words == no_record else not_these
            assert problems
            assert all(found in problem.message for problem in problems)
            shutil.rmtree(packed)


@pytest.mark.parametrize(
    ("column", "value"), [(0, 1), (0, -4096), (0, 2**40), (1, 2**40), (3, 2**40), (4, 2**41)]
)
def test_an_index_that_leads_elsewhere(packed: Path, column: int, value: int) -> None:
    path = packed / "index" / "c.0.0"
    with path.open("r+b") as file:
        file.seek((3 * 5 + column) * 8)
        file.write(value.to_bytes(8, "little", signed=True))
    with pytest.raises(CorruptStoreError, match=r"index: .*pack again"):
        gnnstore.open_packed(packed)


def test_checksums_that_do_not_fit_the_manifest(packed: Path) -> None:
    """Records with checksums of blocks of another size."""
    rewrite(packed, lambda own: own.update(piece_bytes=4096))
    with pytest.raises(ValueError, match="crcs"):
        batches_of(gnnstore.open_packed(packed).loader(num_threads=1))


def test_slots_are_checked(packed: Path) -> None:
    """Packed epochs of fewer slots than their records name are refused before memory is touched."""
    rewrite(packed, lambda own: own.update(num_slots=3))
    with pytest.raises((IndexError, gnnstore.GnnstoreError)):
        batches_of(gnnstore.open_packed(packed).loader(num_threads=1))


def forge(packed: Path, change: Callable[[np.ndarray[Any, Any]], None]) -> None:
    """Change the bytes of the first record, and all checksums."""
    index, records = packed / "index" / "c.0.0", packed / "batches" / "c.0"
    numbers = np.fromfile(index, np.uint8)
    begin, size = (int(number) for number in numbers[:16].view(np.int64))
    data = np.fromfile(records, np.uint8)
    change(data[begin : begin + size])
    numbers[16:24].view(np.int64)[0] = _core.crc32c(data[begin : begin + size], crc_seed(0))
    numbers.tofile(index)
    data.tofile(records)
    reseal(packed)


# The number of arrays; the axes, the length and the type of the first one.
@pytest.mark.parametrize(
    ("place", "value"), [(0, 2**40), (2, -2), (2, 2**40), (3, -7), (3, 2**60), (1, 0x4F7C)]
)
def test_a_record_that_was_forged(packed: Path, place: int, value: int) -> None:
    """Its checksums are right: told as soon as a sound one is read."""

    def change(record: np.ndarray[Any, Any]) -> None:
        record.view(np.int64)[place] = value

    forge(packed, change)
    with pytest.raises(CorruptStoreError, match="record of batch 0 of epoch 0, are damaged"):
        next(iter(gnnstore.open_packed(packed).loader(num_threads=1)))
    (problem,) = gnnstore.verify(packed, "full").problems
    assert "it is not a record of these epochs" in problem.message


@pytest.mark.parametrize("kind", ["links", "typed nodes"])
def test_what_a_record_shows_of_its_seeds(
    store: Path, typed: Path, tmp_path: Path, kind: str
) -> None:
    """Names and lengths of other arrays, with right checksums: found without a loader."""
    if kind == "links":
        links = gnnstore.LinkNeighborLoader(store, [2], neg_sampling="binary", seed=0)._seeds
        packed = pack(
            store, [2], output=tmp_path / "packed", seeds=links, batch_size=4096, epochs=1
        )
        texts = [("edge_label_index", "edge_label_inde_"), ("float32", "float_2")]
        texts += [("4096]", "4095]")]
    else:
        packed = pack(
            typed, [2], ("paper", "train"), output=tmp_path / "packed", batch_size=90, epochs=1
        )
        texts = [("paper", "peper"), ("false]", "true ]")]
    sound = shutil.copytree(packed, tmp_path / "sound")
    for old, new in texts:

        def change(record: np.ndarray[Any, Any], old: str = old, new: str = new) -> None:
            assert old.encode() in record.tobytes()
            record[:] = np.frombuffer(
                record.tobytes().replace(old.encode(), new.encode(), 1), np.uint8
            )

        forge(packed, change)
        (problem,) = gnnstore.verify(packed, "full").problems
        assert (
            "the record of batch 0 of epoch 0, are damaged: it is not a record" in problem.message
        )
        with pytest.raises(CorruptStoreError, match="it is not a record of these epochs"):
            next(iter(gnnstore.open_packed(packed).loader(num_threads=1)))
        shutil.rmtree(packed)
        shutil.copytree(sound, packed)
    assert gnnstore.verify(packed, "full").ok


@pytest.mark.parametrize("is_typed", choose([True], [False, True]))
def test_words_of_a_record(packed: Path, typed: Path, tmp_path: Path, is_typed: bool) -> None:
    """Whatever they are, the record is refused as damaged, or fits the graph."""
    if is_typed:
        packed = tmp_path / "typed"
        pack(typed, [2, 2], ("paper", "train"), output=packed, batch_size=9, superbatch=2)
    reader = PackedReader.open(packed)
    begin, size = (int(value) for value in reader.index[0, :2])
    path, files, num_refused = packed / "batches" / "c.0", PackedFiles.open(reader), 0
    data = np.fromfile(path, np.uint8)[begin : begin + size]
    places = {*range(200), *range(0, size // 8, 101)}
    for place, value in itertools.product(places, (-2, 2**31 + 5)):
        words = data.view(np.int64).copy()
        words[place] = value
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(words.tobytes())
        reader.index[0, 2] = _core.crc32c(words.view(np.uint8), crc_seed(0))
        try:
            files.record(0)
        except CorruptStoreError:
            num_refused += 1
    assert num_refused > 200


# --- rows that batches share ---------------------------------------------------------------


@pytest.fixture
def segmented(store: Path, tmp_path: Path) -> Path:
    """Return packed epochs whose batches share rows, four at a time, that a test may break."""
    whole = store.parent / "segmented"
    if not whole.exists():
        pack(store, [4, 4], output=whole, superbatch=12, segment=4)
    return shutil.copytree(whole, tmp_path / "segmented")


def test_a_segment_that_is_damaged(segmented: Path) -> None:
    reader = PackedReader.open(segmented)
    assert reader.segments is not None
    assert gnnstore.verify(segmented).ok
    first, end, num_rows, _, begin = (int(value) for value in reader.segments[-1])
    assert (first, end) == (2 * BATCHES - 4, 2 * BATCHES)
    flip(segmented / "rows/x/c.0", begin + num_rows * 400 - 1)
    (problem,) = gnnstore.verify(segmented).problems
    assert problem.path == str(segmented / "rows/x/c.0")


@pytest.mark.parametrize("row", [0, -1])
def test_shared_rows_that_are_damaged_are_not_trained_on(segmented: Path, row: int) -> None:
    reader = PackedReader.open(segmented)
    assert reader.segments is not None
    first, end, num_rows, _, begin = (int(value) for value in reader.segments[1])
    rank = row % num_rows
    saved = PackedFiles.open(reader)
    readers = []
    for number in range(first, end):
        shared = saved.record(number).shared
        assert shared is not None
        if rank in shared[1]:
            readers.append((number, shared[1]))
    assert len(readers) >= 2, "it is shared"
    place = begin + rank * 400 + 399
    flip(segmented / "rows/x/c.0", place)
    number, ranks = readers[0]
    group = ranks[np.searchsorted(ranks, rank) // CHECKED_ROWS * CHECKED_ROWS :][:CHECKED_ROWS]
    first_byte, last_byte = begin + int(group[0]) * 400, begin + int(group[-1]) * 400 + 400
    assert first_byte <= place < last_byte
    message = (
        f"rows/x/c.0: bytes {first_byte} to {last_byte}, packed rows that batches share, are "
        f"damaged: the crc32c of {len(group)} rows among them is .*pack again"
    )
    assert read_damaged(segmented, number, message).offset == first_byte
    assert not gnnstore.verify(segmented).ok


def test_own_rows_with_segments(segmented: Path) -> None:
    reader = PackedReader.open(segmented)
    number = BATCHES + 3
    begin, size = (
        int(reader.chunk_begins(0)[number]),
        int(reader.chunk_bytes(0)[number]),
    )
    assert 0 < size <= BLOCK_BYTES
    flip(segmented / "rows/x/c.0", begin + size // 2)
    read_damaged(segmented, number, f"bytes {begin} to {begin + size} are not what was written")


def test_damaged_graph_attributes_are_not_handed_out(tmp_path: Path) -> None:
    """Wherever the bit is, also where the compressed bytes can be decoded."""
    packed = pack(write_example_store(tmp_path / "s.gnn").path, [2], epochs=1)
    sound = gnnstore.open_packed(packed).graph_attributes()
    (spec,) = gnnstore.open_packed(packed).schema.graph_arrays.values()
    chunk = packed / spec.path / "c.0.0"
    for offset in range(0, chunk.stat().st_size, choose(7, 1)):
        flip(chunk, offset)
        with pytest.raises(CorruptStoreError, match=r"c\.0\.0: bytes 0-\d+ are damaged"):
            gnnstore.open_packed(packed).graph_attributes()
        flip(chunk, offset)
    found = gnnstore.open_packed(packed).graph_attributes()
    assert (found[spec.name] == sound[spec.name]).all()


# --- packed epochs of earlier versions ------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_older_epochs_are_refused(packed: Path, version: int) -> None:
    rewrite(packed, lambda own: own.update(format_version=version))
    with pytest.raises(UnsupportedVersionError, match=f"version {version};.*Pack again"):
        gnnstore.open_packed(packed)


@pytest.mark.parametrize(
    ("segment", "column", "value"),
    [
        (0, 0, 1),
        (1, 1, 5),
        (1, 1, 4),
        (5, 1, 2 * BATCHES + 1),
        (0, 2, -1),
        (0, 2, 2**31),
        (0, 3, 0),
        (0, 4, 1),
        (0, 4, -4096),
        (0, 4, 2**40),
        (5, 2, 10**6),
    ],
)
def test_segments_that_lead_elsewhere(
    segmented: Path, segment: int, column: int, value: int
) -> None:
    path = segmented / "segments" / "c.0.0"
    with path.open("r+b") as file:
        file.seek((segment * 5 + column) * 8)
        file.write(value.to_bytes(8, "little", signed=True))
    with pytest.raises(CorruptStoreError, match="pack again"):
        gnnstore.open_packed(segmented)


def test_a_segmented_plan_that_says_it_is_none(segmented: Path) -> None:
    rewrite(segmented, lambda own: own.update(segment=1))
    with pytest.raises(CorruptStoreError, match="segment"):
        gnnstore.open_packed(segmented)


def test_ranks_are_checked(segmented: Path) -> None:
    """Fewer shared rows than records name: refused before anything is read."""
    path = segmented / "segments" / "c.0.0"
    with path.open("r+b") as file:
        for segment in range(6):
            file.seek((segment * 5 + 2) * 8)
            file.write((3).to_bytes(8, "little"))
    with pytest.raises(gnnstore.CorruptStoreError):
        batches_of(gnnstore.open_packed(segmented).loader(num_threads=1))
