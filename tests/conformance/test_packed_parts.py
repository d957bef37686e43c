"""Packed epochs whose batches do not depend on one another: by ranks, resumed, and in parts."""

from __future__ import annotations

import errno
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.budget import limits
from gnnstore.errors import (
    CorruptStoreError,
    NoSpaceError,
    NotFoundError,
    StorageError,
    UsageError,
)
from gnnstore.formats.packed import CACHED_NODES_ARRAY, PackedParts, PackedReader
from gnnstore.machine import PRIVATE, SharedMachine
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.parts import PartPacker
from gnnstore.packing.sampling import EpochSampler
from gnnstore.pipeline.check import verify
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.remote import staging
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.faults import inject
from tests.support.graphs import graph_of_three_tables
from tests.support.packing import pack, pack_part
from tests.support.references import BATCHES, EPOCHS, loader_of_packed
from tests.support.stores import assert_same_files, write_two_typed_store

NUM_PARTS = 5


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store; beside it are its epochs, packed by each choice of cached rows."""
    path = graph_of_three_tables().write(tmp_path_factory.mktemp("fixed") / "s.gnn")
    for cache in ("frequency", "belady", *choose((), ("degree",))):
        pack(path, [4, 4], output=path.parent / cache, cache=cache)
    return path


@pytest.fixture(scope="module")
def parts(path: Path) -> Path:
    """Return a directory of the same epochs in parts."""
    directory = path.parent / "parts"
    for number in range(NUM_PARTS):
        pack_part(path, directory, number, NUM_PARTS)
    return directory


# --- records that depend on no other --------------------------------------------------------


@pytest.mark.parametrize("cache", choose(["frequency"], ["frequency", "degree"]))
def test_cached_rows_lie_in_the_plan_once(path: Path, cache: str, expected: Batches) -> None:
    packed = path.parent / cache
    reader = PackedReader.open(packed)
    part = reader.manifest.part
    assert (reader.manifest.format_version, part and (part.number, part.of)) == (7, (0, 1))
    assert len(reader.load_checked(CACHED_NODES_ARRAY, PRIVATE)) == reader.manifest.num_slots > 100
    loader = loader_of_packed(path, packed, num_threads=2)
    assert_same_batches(batches_of(loader, EPOCHS), expected)
    stats = loader.stats()
    assert (stats.cache, stats.rows_cached > 0) == (cache, True)
    assert_same_batches(batches_of(gnnstore.open_packed(packed).loader(), EPOCHS), expected)
    assert verify(packed, "full").ok


def test_ranks_read_what_one_process_reads(
    path: Path, parts: Path, expected: Batches, shares_all: None
) -> None:
    for packed, sizes in (*choose((), ((path.parent / "frequency", [2]),)), (parts, [3])):
        alone = loader_of_packed(path, packed, num_threads=1)
        assert_same_batches(batches_of(alone, EPOCHS), expected)
        for size in choose(sizes, [2, 3]):
            given = {"world_size": size, "local_world_size": size, "num_threads": 1}
            ranks = [loader_of_packed(path, packed, rank=r, **given) for r in range(size)]
            found = [batches_of(each, EPOCHS) for each in ranks]
            for k, batch in enumerate(expected):
                assert_same_batches([found[k % size][k // size]], [batch])
            read = [each.stats().bytes_read for each in ranks]
            assert sum(read) == alone.stats().bytes_read
            # The cached rows lie in memory once, and each rank counts its part.
            machines = [each._machine for each in ranks]
            assert all(isinstance(own, SharedMachine) and own.num_met for own in machines[1:])
            assert all(own.private_bytes == 0 for own in machines)
    one = gnnstore.open_packed(parts).loader(rank=1, world_size=2, memory="50MB")
    assert_same_batches(batches_of(one), expected[1:BATCHES:2])


def test_epochs_by_belady_are_for_one_process(path: Path) -> None:
    packed = path.parent / "belady"
    assert PackedReader.open(packed).manifest.format_version == 5
    for make in (
        lambda: loader_of_packed(path, packed, rank=0, world_size=2),
        lambda: gnnstore.open_packed(packed).loader(rank=0, world_size=2),
    ):
        with pytest.raises(UsageError, match="pack them with --cache-by frequency"):
            make()


@pytest.mark.parametrize("kind", choose(["parts"], ["frequency", "parts"]))
def test_resuming_reads_no_batch_before(
    path: Path, parts: Path, expected: Batches, kind: str
) -> None:
    packed = parts if kind == "parts" else path.parent / kind
    loader = loader_of_packed(path, packed, num_threads=0)
    before, states = [0], []
    for batch in loader:
        del batch
        before.append(loader.stats().bytes_read)
        states.append(loader.state_dict())
    done = 7
    again = loader_of_packed(path, packed, num_threads=0)
    again.load_state_dict(states[done - 1])
    assert_same_batches(batches_of(again), expected[done:BATCHES])
    assert again.stats().bytes_read == before[-1] - before[done] > 0
    # On other numbers of ranks, too.
    for size in choose((3,), (3, 1, 2)):
        found: Batches = []
        for rank in range(size):
            own = loader_of_packed(path, packed, rank=rank, world_size=size)
            own.load_state_dict(states[done - 1])
            found += batches_of(own)[: len(range(done + rank, BATCHES, size))]
        order = [k for rank in range(size) for k in range(done + rank, BATCHES, size)]
        assert_same_batches(found, [expected[k] for k in order])


def test_resumed_with_less_memory(
    path: Path, tmp_path: Path, expected: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice of the first attempt holds, and other cached tables are refused."""
    whole = tmp_path / "whole"
    least: dict[str, Any] = {"cache": "frequency", "superbatch": 2}
    with inject("fallocate", errno=errno.ENOSPC, skip=4, times=-1), pytest.raises(NoSpaceError):
        pack(path, [4, 4], output=whole, **least)
    init = EpochSampler.__init__

    def with_less(sampler: EpochSampler, *given: Any) -> None:
        init(sampler, *given)
        sampler.size = sampler.size._replace(num_slots=sampler.size.num_slots // 2)

    monkeypatch.setattr(EpochSampler, "__init__", with_less)
    with monkeypatch.context() as patched:
        patched.setattr(EpochPacker, "_decide", _deciding_otherwise)
        with pytest.raises(UsageError, match=r"was begun with cached rows of .* with as much"):
            pack(path, [4, 4], output=whole, resume=True, **least)
    pack(path, [4, 4], output=whole, resume=True, **least)
    assert_same_files(whole, path.parent / "frequency")
    assert_same_batches(batches_of(gnnstore.open_packed(whole).loader(), EPOCHS), expected)


_DECIDE = EpochPacker._decide


def _deciding_otherwise(packer: EpochPacker, cached: Any, *given: Any) -> None:
    """Decide as on a machine that would cache one table less."""
    _DECIDE(packer, cached[1:], *given)


# --- parts ----------------------------------------------------------------------------------


def test_parts_in_any_order_at_every_memory(
    path: Path, parts: Path, tmp_path: Path, expected: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "group_limit_bytes", lambda: None)
    packed = gnnstore.open_packed(parts)
    assert_same_batches(batches_of(packed.loader(num_threads=0), EPOCHS), expected)
    again = pickle.loads(pickle.dumps(packed))  # noqa: S301 - our own
    assert_same_batches(batches_of(loader_of_packed(path, again), EPOCHS), expected)
    ways: list[dict[str, Any]] = [
        {"memory": "45MB", "topology": "mmap", "num_threads": 1},
        {"memory": "60MB", "topology": "disk", "superbatch": 3},
        {"memory": "8GB", "num_threads": 8},
    ]
    for k, number in enumerate(choose((3, 0, 4), (3, 0, 4, 1, 2))):
        made = pack_part(path, tmp_path / "p", number, NUM_PARTS, **ways[k % 3])
        assert made.name == f"part-{number:05d}-of-00005"
        assert_same_files(made, parts / made.name)
    assert verify(parts, "full").ok


def test_the_largest_batch_of_all_parts_must_fit(parts: Path) -> None:
    found = PackedParts.open(parts)
    sizes = [part.manifest.largest_batch_bytes for part in found.parts]
    assert found.largest_batch_bytes == max(sizes) > min(sizes)


def test_epochs_of_the_store_come_before_a_directory(
    path: Path, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shutil.copytree(path, tmp_path / "s.gnn")
    named = pack(store, [4, 4], cache="frequency")
    shutil.copytree(parts, tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    assert loader_of_packed(store, "base")._sources.packed.parts.path == named
    shutil.rmtree(named)
    assert len(loader_of_packed(store, "base")._sources.packed.parts.parts) == NUM_PARTS


def test_parts_of_typed_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cached is the same where memory would hold a type whole, and where not."""
    monkeypatch.setattr(limits, "group_limit_bytes", lambda: None)
    path = write_two_typed_store(tmp_path / "t.gnn", widths=(25, 20)).path
    options: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": 3}
    seeds = ("paper", "train")
    plain = NeighborLoader(path, [4, 4], seeds, strategy="memory", **options)
    expected = batches_of(plain, 2)
    given: dict[str, Any] = {"input_nodes": seeds, "batch_size": 20, "cache_bytes": "8kB"}
    for number in range(3):
        pack_part(path, tmp_path / "small", number, 3, memory="45MB", **given)
    for number in choose((1,), (0, 1, 2)):
        large = pack_part(path, tmp_path / "large", number, 3, memory="8GB", **given)
        assert_same_files(large, tmp_path / "small" / large.name)
    found = PackedParts.open(tmp_path / "small")
    assert set(found.manifest.cached) == {"nodes/paper/x", "nodes/author/x"}
    assert_same_batches(batches_of(gnnstore.open_packed(found.path).loader(), 2), expected)
    ranked = NeighborLoader(path, [4, 4], seeds, packed=found.path, rank=1, world_size=2, **options)
    assert_same_batches(batches_of(ranked), expected[1 : len(plain) : 2])
    assert verify(found.path, "full").ok


@pytest.mark.parametrize("cache", choose(["degree"], ["frequency", "degree"]))
def test_the_choice_is_the_same_everywhere(path: Path, tmp_path: Path, cache: str) -> None:
    found = [
        pack_part(
            path,
            tmp_path / f"{topology}{threads}",
            1,
            12,
            cache=cache,
            topology=topology,
            num_threads=threads,
        )
        for topology, threads in choose(
            (("memory", 1), ("disk", 2)), (("memory", 1), ("memory", 8), ("mmap", 1), ("disk", 2))
        )
    ]
    for made in found[1:]:
        assert_same_files(made, found[0])


def test_a_part_that_is_there_is_done(
    path: Path, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was sampled again")

    own = shutil.copytree(parts, tmp_path / "own")
    monkeypatch.setattr(Presampler, "run", sampled)
    pack_part(path, own, 2, NUM_PARTS, memory="60MB")
    assert_same_files(own, parts)
    others: tuple[tuple[str, Any], ...] = (
        ("seed", 4),
        ("cache_bytes", "90kB"),
        ("cache", "degree"),
        ("epochs", 3),
        ("batch_size", 40),
        ("fanouts", (4, 3)),
    )
    for name, value in others:
        with pytest.raises(UsageError, match="is there, and was packed otherwise"):
            pack_part(path, own, 2, NUM_PARTS, **{name: value})
    # Nor is another part put beside it.
    shutil.rmtree(own / "part-00001-of-00005")
    with pytest.raises(UsageError, match="packed otherwise: seed is 3, not 4"):
        pack_part(path, own, 1, NUM_PARTS, seed=4)
    with pytest.raises(UsageError, match="has part 0 of 5, and this is one of 4"):
        pack_part(path, own, 1, 4)


def test_another_attempt_is_faster(
    path: Path, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where machines do not see one another's locks."""
    whole, name = tmp_path / "p", "part-00002-of-00005"

    pack_now = PartPacker.pack

    def before() -> None:
        shutil.copytree(parts / name, whole / name)

    def pack_late(of: PartPacker, directory: Path, **_: Any) -> Path:
        return pack_now(of, directory, before=before)

    monkeypatch.setattr(PartPacker, "pack", pack_late)
    pack_part(path, whole, 2, NUM_PARTS)
    assert_same_files(whole / name, parts / name)
    assert [each.name for each in whole.iterdir()] == [name]


def test_locks_of_other_machines_that_are_not_seen(
    path: Path, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_SHARED", re.compile(""))
    whole, said = tmp_path / "p", list[str]()
    with (
        inject("fallocate", errno=errno.ENOSPC, skip=2, times=-1),
        pytest.raises(NoSpaceError) as refused,
    ):
        pack_part(path, whole, 2, NUM_PARTS)
    assert "resume" not in refused.value.message
    assert not list(tmp_path.iterdir())
    whole.mkdir()  # by the user, whose it stays
    with inject("fallocate", errno=errno.ENOSPC, times=-1), pytest.raises(NoSpaceError):
        pack_part(path, whole, 2, NUM_PARTS)
    assert not list(whole.iterdir())
    pack_part(path, whole, 2, NUM_PARTS, resume=True, on_event=said.append)
    assert [text for text in said if "--resume: " in text and "from the beginning" in text]
    assert_same_files(whole / "part-00002-of-00005", parts / "part-00002-of-00005")


def test_a_damaged_part_keeps_no_other_from_being_packed(
    path: Path, parts: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(parts, tmp_path / "own")
    (own / "part-00000-of-00005" / "zarr.json").write_text("{")
    shutil.rmtree(own / "part-00002-of-00005")
    with pytest.raises(
        UsageError, match=r"part-00001-of-00005: is there, and was packed otherwise"
    ):
        pack_part(path, own, 2, NUM_PARTS, seed=4)
    pack_part(path, own, 2, NUM_PARTS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cache_bytes": None}, "part 1 of 5: without cache_bytes= the memory of each machine"),
        ({"cache": None}, "part 1 of 5: with cache=belady each batch depends on all before"),
        ({"segment": 3}, "part 1 of 5: rows that batches share .* leave segment=3 out"),
        ({"number": 5}, "part 5 of 5: parts are numbered from 0; give one from 0/5 to 4/5"),
        ({"of": 25}, "part 1 of 25: 24 batches in all, .* at most 24 parts"),
    ],
)
def test_parts_that_are_refused(
    path: Path, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pack_part(path, tmp_path / "p", **{"number": 1, "of": NUM_PARTS, **given})
    assert not list(tmp_path.rglob("part-*"))


def test_directories_that_are_not_whole(path: Path, parts: Path, tmp_path: Path) -> None:
    own = shutil.copytree(parts, tmp_path / "own")

    def refused(error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            gnnstore.open_packed(own)
        assert any(message[:20] in each.message for each in verify(own, "header").problems)

    shutil.rmtree(own / "part-00000-of-00005")
    shutil.rmtree(own / "part-00003-of-00005")
    refused(NotFoundError, "2 parts of 5 not there: 0, 3; make each with .* --part 0/5")
    pack_part(path, tmp_path / "four", 3, 4)
    shutil.move(tmp_path / "four" / "part-00003-of-00004", own)
    refused(UsageError, "has parts of 4 and of 5; keep the parts of one number")
    shutil.rmtree(own)
    shutil.copytree(parts, own)
    shutil.rmtree(own / "part-00003-of-00005")
    pack_part(path, tmp_path / "else", 3, 5, seed=4)
    shutil.move(tmp_path / "else" / "part-00003-of-00005", own)
    refused(UsageError, "part-00003-of-00005 is of another run than .*: seed is 4, not 3")
    places: list[dict[str, Any]] = [{}, {"cache_dir": tmp_path / "c"}]
    for more in places:
        with pytest.raises(UsageError, match="is part 1 of 5; open the directory that holds all"):
            gnnstore.open_packed(own / "part-00001-of-00005", **more)
    for source in ("part-00001-of-00005", "../frequency"):
        shutil.rmtree(own / "part-00003-of-00005")
        shutil.copytree(parts / source, own / "part-00003-of-00005")
        wrong = "part 1 of 5" if source.startswith("part") else "part 0 of 1"
        refused(UsageError, f"part-00003-of-00005: has {wrong} by its manifest, and not")


def test_a_part_put_in_the_place_of_another(path: Path, parts: Path, tmp_path: Path) -> None:
    own = shutil.copytree(parts, tmp_path / "own")
    data = pickle.dumps(gnnstore.open_packed(own))
    shutil.rmtree(own)
    pack_part(path, own, 1, NUM_PARTS, seed=4)
    for number in (0, 2, 3, 4):
        name = f"part-{number:05d}-of-00005"
        shutil.copytree(parts / name, own / name)
    with pytest.raises(StorageError, match="another directory of packed epochs was put in place"):
        pickle.loads(data)  # noqa: S301 - our own


@pytest.fixture
def damaged(parts: Path, tmp_path: Path) -> Path:
    return shutil.copytree(parts, tmp_path / "damaged")


def test_damaged_cached_rows_are_not_used(path: Path, damaged: Path) -> None:
    for name in ("cache/nodes/c.0", "cache/rows/x/c.0.0"):
        file = damaged / "part-00000-of-00005" / name
        whole = file.read_bytes()
        file.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
        with pytest.raises(CorruptStoreError, match=name):
            batches_of(loader_of_packed(path, damaged))
        assert not verify(damaged).ok
        file.write_bytes(whole)
