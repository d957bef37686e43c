"""A table of learned rows: rows by node, commits, and what is refused."""

from __future__ import annotations

import copy
import errno
import fcntl
import json
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import (
    BadIndexError,
    BudgetError,
    CorruptStoreError,
    GnnstoreError,
    NotFoundError,
    StorageError,
    StoreExistsError,
    UnsupportedVersionError,
    UsageError,
)
from gnnstore.formats.base.files import crc32c_of
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.formats.tables import canonical
from gnnstore.partitions.policy import Slots
from gnnstore.testing.graphs import write_store
from gnnstore.tools import cli
from tests.support.effort import choose
from tests.support.stores import write_example_store
from tests.support.twins.kernels import initial_rows

N, DIM, P = 60, 8, 5

Open = Callable[..., gnnstore.EmbeddingTable]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_example_store(tmp_path_factory.mktemp("s") / "a.gnn", num_nodes=N).path
    partition(path, P, name="five")
    partition(path, 2, name="two")
    return path


@pytest.fixture
def table_of(store: Path, tmp_path: Path) -> Iterator[Open]:
    """Return a function that creates a table, or opens the one that there is."""
    made: list[gnnstore.EmbeddingTable] = []

    def create_or_open(**options: Any) -> gnnstore.EmbeddingTable:
        path = tmp_path / "a.emb"
        if made:
            made[-1].close()
        if path.exists() and "dim" not in options:
            made.append(gnnstore.EmbeddingTable.open(path, store, **options))
        else:
            made.append(gnnstore.EmbeddingTable.create(path, store, **{"dim": DIM, **options}))
        return made[-1]

    yield create_or_open
    for table in made:
        table.close()


ENOUGH = Slots(0, 0)  # for the state, and no more


def learn(table: gnnstore.EmbeddingTable, ids: Any) -> None:
    """Make a step that changes these rows."""
    optimizer = gnnstore.RowwiseAdagrad(table, lr=0.1)
    rows = table(torch.as_tensor(ids))
    (rows.square().sum() + rows.sum()).backward()
    optimizer.step()


def enter(table: gnnstore.EmbeddingTable, *state: int, slots: Slots = ENOUGH) -> None:
    table.enter(np.array(state), slots)


def nodes_in(store: Path, *partitions: int) -> torch.Tensor:
    reader = PartitionsReader.open(store / "partitions" / "five")
    order = reader.read(reader.order_spec).astype(np.int64)
    return torch.from_numpy(np.concatenate([order[list(reader.rows(k))] for k in partitions]))


@pytest.mark.parametrize(
    "kind", ["xavier_uniform", "normal", *choose([], ["xavier_normal", "uniform"])]
)
def test_rows_begin_by_seed_node_and_column(table_of: Open, kind: str) -> None:
    table = table_of(init=kind, scale=2.0, seed=7).eval()
    spread = {"xavier_uniform": 6.0, "xavier_normal": 2.0}.get(kind, N + DIM) / (N + DIM)
    twin = initial_rows(
        np.arange(N),
        dim=DIM,
        distribution=kind.removeprefix("xavier_"),
        scale=2.0 * spread**0.5,
        seed=7,
    )
    ids = torch.tensor([[5, 0], [59, 5]])
    assert table(ids).shape == (2, 2, DIM)
    np.testing.assert_allclose(table(ids).numpy(), twin[ids.numpy()], rtol=2e-6)
    table = table_of(init=kind, scale=2.0, seed=7, dim=DIM, partitions="five", overwrite=True)
    np.testing.assert_allclose(table[:].numpy(), twin, rtol=2e-6)


def test_a_commit_is_what_is_opened_again(table_of: Open) -> None:
    table = table_of()
    first = table.commit_id
    learn(table, [1, 2, 2])
    learned = table[:]
    table = table_of()  # closed without a commit
    assert table.commit_id == first
    assert not torch.equal(table[:], learned)
    learn(table, [1, 2, 2])
    done = table.commit({"epoch": 0, "batches": 3})
    learn(table, [4])
    table = table_of()
    assert (table.commit_id, table.position()) == (done, {"epoch": 0, "batches": 3})
    assert torch.equal(table[:], learned)
    # The state of the optimizer travels with the rows.
    learn(table, [1])
    again = table[:]
    table = table_of(commit=first)
    learn(table, [1, 2, 2])
    learn(table, [1])
    assert torch.equal(table[:], again)


def test_an_older_commit_can_be_opened_and_gone_on_from(table_of: Open) -> None:
    table = table_of(keep=3)
    commits, rows = [], []
    for i in range(4):
        learn(table, [i, 10])
        commits.append(table.commit())
        rows.append(table[:])
    for i in (3, 2, 1):
        table = table_of(commit=commits[i])
        assert torch.equal(table[:], rows[i])
    with pytest.raises(UsageError, match=f"{commits[0]} is not in this table"):
        table_of(commit=commits[0])
    table = table_of(commit=commits[2])
    learn(table, [30])
    last = table.commit()
    table = table_of(commit=commits[1])
    assert torch.equal(table[:], rows[1])
    table = table_of(commit=last)
    with pytest.raises(UsageError, match="is not in this table"):
        table_of(commit=commits[3])
    assert gnnstore.verify(table.path).ok


def test_a_checkpoint_holds_the_commit_and_no_rows(table_of: Open, tmp_path: Path) -> None:
    table = table_of()
    model = torch.nn.ModuleDict({"emb": table, "dense": torch.nn.Linear(2, 2)})
    learn(table, [1])
    with pytest.raises(UsageError, match=r"1 steps since the last commit.*commit\(\)"):
        model.state_dict()
    table.commit()
    torch.save(model.state_dict(), tmp_path / "run.pt")
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    assert [name for name in saved if "emb" in name] == ["emb._extra_state"]
    model.load_state_dict(saved)
    learn(table, [1])
    with pytest.raises(UsageError, match="the table is beyond"):
        model.load_state_dict(saved)
    newest = table.commit()
    with pytest.raises(UsageError, match=f"the table is at .*{newest}"):
        model.load_state_dict(saved)
    table = table_of(dim=DIM, overwrite=True)
    with pytest.raises(UsageError, match="the checkpoint goes with"):
        table.load_state_dict({"_extra_state": saved["emb._extra_state"]})


def test_a_loader_at_another_place_is_refused(table_of: Open) -> None:
    table = table_of()
    table.check_position({"epoch": 3, "batches": 1})  # nothing is known yet
    table.note_position(table, {"epoch": 0, "batches": 3, "fingerprint": (1, 2)})
    learn(table, [1])
    table.commit()
    table = table_of()
    table.check_position({"epoch": 0, "batches": 3, "fingerprint": [1, 2]})
    with pytest.raises(UsageError, match=r"after batch 3 of epoch 0 .* batch 4 of epoch 0"):
        table.check_position({"epoch": 0, "batches": 4, "fingerprint": [1, 2]})
    with pytest.raises(UsageError, match="other options"):
        table.check_position({"epoch": 0, "batches": 3, "fingerprint": [1, 3]})
    with pytest.raises(UsageError, match="values that JSON can hold"):
        table.commit({"a": object()})
    learn(table, [1])
    with pytest.raises(UsageError, match=r"1 steps were made since the commit.* open the table"):
        table.check_position({"epoch": 0, "batches": 3, "fingerprint": [1, 2]})


@pytest.mark.parametrize("position", [{"epoch": 1, "best": float("inf")}, [1]])
def test_a_position_that_readers_would_refuse_is_not_committed(
    table_of: Open, position: Any
) -> None:
    """And the commits that there are stay as they are."""
    table = table_of()
    learn(table, [1, 2])
    first = table.commit({"epoch": 0})
    learn(table, [1, 2])
    with pytest.raises(UsageError, match=r"a loader|loader\.state_dict"):
        table.commit(position)
    rows, before = table[:3].clone(), table_of(commit=first)[:3]
    assert not torch.equal(rows, before)
    again = table_of()
    assert again.commit_id == first
    assert again.position() == {"epoch": 0}
    learn(again, [1, 2])
    again.commit({"epoch": 1})
    assert torch.equal(table_of()[:3], rows)


def test_partitions_come_and_go_with_their_changes_and_state(table_of: Open, store: Path) -> None:
    """Rows on disk after an epoch of states are those of a run in memory, bit by bit."""
    whole = table_of(seed=1)
    states: list[tuple[int, ...]] = [(0, 1), (1, 2), (2, 0), (0, 3), (3, 4), (4, 0), (0, 1), (2, 3)]
    rng = np.random.default_rng(0)
    batches = [[rng.permutation(nodes_in(store, *s))[:9] for _ in range(3)] for s in states]
    for batches_of in batches:
        for ids in batches_of:
            learn(whole, ids)
    expected = whole[:]
    learn(whole, np.arange(N))
    expected_twice = whole[:]

    table = table_of(dim=DIM, seed=1, partitions="five", overwrite=True)
    slots = Slots(2, 1)
    assert table.reserve(slots).fixed == 3 * (64 << 10) + N * 4
    table.attach(str(table._manifest.partitions_uuid))
    for i, (state, ids_of) in enumerate(zip(states, batches, strict=True)):
        enter(table, *state, slots=slots)
        for ids in ids_of:
            learn(table, ids)
        if i + 1 < len(states):
            table.expect(np.array(states[i + 1]))
        if i == 4:
            table.commit()
    table.leave(table)
    assert torch.equal(table[:], expected)
    table.commit()
    table = table_of()
    assert torch.equal(table[:], expected)
    table.load()
    learn(table, np.arange(N))
    assert torch.equal(table[:], expected_twice), "the state of the optimizer was lost"


def test_a_node_whose_partition_is_away_is_named(table_of: Open, store: Path) -> None:
    table = table_of(partitions="five")
    gnnstore.RowwiseAdagrad(table)
    node = nodes_in(store, 3)[:1]
    with pytest.raises(UsageError, match=f"node {int(node)} is of partition 3.* are \\[\\]"):
        table(node)
    enter(table, 0, 4)
    with pytest.raises(UsageError, match=r"partition 3, which is not in memory: .* are \[0 4\]"):
        table(node)
    for bad in (-1, N):
        with pytest.raises(BadIndexError, match=r"outside \[0, 60\)"):
            table(torch.tensor([bad]))
    table.leave(table)
    with pytest.raises(BadIndexError, match=r"outside \[-60, 60\)"):
        table[[N]]


def test_rows_are_asked_for_by_integers_and_indexed_as_arrays_are(table_of: Open) -> None:
    table = table_of().eval()
    rows = table[:]
    mask = torch.zeros(N, dtype=torch.bool)
    mask[[3, 7]] = True
    for ids in ([3, 7], np.array([[3], [7]]), torch.tensor(7, dtype=torch.int32)):
        assert torch.equal(table(ids), rows[torch.as_tensor(ids).long()])
    for key in (-1, [0, -N], mask, slice(5, None, 3), np.array([[3], [7]]), (slice(2), 1)):
        assert torch.equal(table[key], rows[key])
    for wrong in (mask, torch.rand(3)):
        with pytest.raises(BadIndexError, match="expected ids of nodes, integers; found"):
            table(wrong)
    for bad in (mask[1:], [0.5]):
        with pytest.raises(BadIndexError):
            table[bad]


def test_a_closed_table_is_not_used(table_of: Open) -> None:
    table = table_of()
    optimizer = gnnstore.RowwiseAdagrad(table)
    table(torch.tensor([1])).sum().backward()
    table.close()
    table.close()
    uses = (optimizer.step, table.commit, table.load, lambda: table[:], lambda: table([1]))
    for use in uses:
        with pytest.raises(UsageError, match="table was closed; open it again"):
            use()


def test_gradients_that_wait_are_not_forgotten(table_of: Open, store: Path) -> None:
    table = table_of(partitions="five")
    optimizer = gnnstore.RowwiseAdagrad(table)
    enter(table, 0, 1)
    rows = table(nodes_in(store, 1))
    rows.sum().backward()
    with pytest.raises(UsageError, match=r"gradients of 1 calls .*step\(\) before the next batch"):
        enter(table, 0, 2)
    assert table._buffer.resident().tolist() == [0, 1]
    enter(table, 1, 0)  # which are there already
    optimizer.zero_grad()
    late = rows.sum()
    enter(table, 0, 2)
    with pytest.raises(UsageError, match="whose partitions have left memory"):
        late.backward()
    table.leave(table)


def test_a_step_ends_what_was_looked_up(table_of: Open) -> None:
    """As places of rows may change with it: a gradient that comes later is refused, not lost."""
    table = table_of()
    optimizer = gnnstore.RowwiseAdagrad(table)
    rows = table(torch.tensor([1]))
    rows.sum().backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(UsageError, match="a step was made with"):
        (2 * rows.sum()).backward()
    table(torch.tensor([1])).sum().backward()
    optimizer.step()


def test_rows_ask_for_an_optimizer_or_none(table_of: Open) -> None:
    table = table_of()
    with pytest.raises(UsageError, match="no optimizer would change"):
        table(torch.tensor([0]))
    with torch.no_grad():
        assert not table(torch.tensor([0])).requires_grad
    assert not table.eval()(torch.tensor([0])).requires_grad
    gnnstore.RowwiseAdagrad(table.train())
    assert table(torch.tensor([0])).requires_grad


@pytest.mark.parametrize("failing", ["slots", "manifest", "rename"])
def test_a_commit_that_fails_leaves_the_one_before(
    table_of: Open, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    table = table_of()
    learn(table, [1])
    first = table.commit()
    before = table[:]
    learn(table, [1, 2])
    learned = table[:]

    def fail(*arguments: Any) -> None:
        name = "table.json.tmp" if failing == "manifest" else "slots"
        path = arguments[0]
        file = Path(f"/proc/self/fd/{path}").readlink().name if isinstance(path, int) else name
        if file == name:
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace" if failing == "rename" else "fsync", fail)
        for _ in range(3):
            with pytest.raises(StorageError, match="Input/output error"):
                table.commit()
    saved = {file.name: file.read_bytes() for file in table.path.iterdir()}
    assert table.commit_id == first
    assert torch.equal(table[:], learned)
    assert table.commit() != first
    assert torch.equal(table_of()[:], learned)
    for name, data in saved.items():  # as a kill before the last attempt would have left it
        (table.path / name).write_bytes(data)
    table = table_of()
    assert torch.equal(table[:], before)


@pytest.mark.parametrize("slots", [Slots(2, 1), ENOUGH])
def test_a_partition_that_cannot_be_written_stays_in_memory(
    table_of: Open, store: Path, monkeypatch: pytest.MonkeyPatch, slots: Slots
) -> None:
    """Also if there are to be fewer slots."""
    table = table_of(partitions="five")
    enter(table, 0, 1, slots=Slots(2, 1))
    learn(table, nodes_in(store, 0, 1))
    learned = table[:]

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for _ in range(2):
            with pytest.raises(StorageError, match="No space left"):
                enter(table, 2, 3, slots=slots)
        with pytest.raises(StorageError, match="No space left"):
            table.commit()
    table.leave(table)
    assert torch.equal(table[:], learned)
    table.commit()
    assert torch.equal(table_of()[:], learned)


def test_damage_is_named(table_of: Open, store: Path) -> None:
    table = table_of(partitions="five")
    table.load()
    learn(table, np.arange(N))
    table.commit()
    slots = table.path / "slots"
    data = bytearray(slots.read_bytes())
    data[(64 << 10) + 9] ^= 1
    slots.write_bytes(data)
    assert gnnstore.verify(table.path, "header").ok
    problems = gnnstore.verify(table.path).problems
    assert [(each.first_byte, each.end_byte) for each in problems] == [(64 << 10, 128 << 10)]
    table = table_of()
    with pytest.raises(CorruptStoreError, match=r"slots: damaged at byte 65536.*checksum"):
        table[:]
    slots.write_bytes(data[: 100 << 10])
    assert not gnnstore.verify(table.path, "header").ok
    with pytest.raises(CorruptStoreError, match="file ends here"):
        enter(table, 0, 1, 2, 3, 4)
    table.leave(table)
    table.close()
    slots.rename(slots.with_name("away"))
    with pytest.raises(CorruptStoreError, match="slots: missing"):
        table_of()
    assert str(gnnstore.verify(table.path).problems[0]).startswith(f"{slots}: missing")
    slots.with_name("away").rename(slots)
    manifest = table.path / "table.json"
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(CorruptStoreError, match=r"table\.json: damaged"):
        table_of()
    assert "damaged" in gnnstore.verify(table.path).problems[0].message
    document = json.loads(manifest.read_text())
    document["table"]["commits"][-1]["slots"][0] = document["table"]["commits"][-1]["slots"][1]
    manifest.write_text(json.dumps(document))
    with pytest.raises(CorruptStoreError, match=r"table\.json"):
        table_of()
    manifest.unlink()
    with pytest.raises(NotFoundError, match="no table of embeddings"):
        table_of()


def resealed(document: dict[str, Any]) -> str:
    """Return a manifest with the checksum that its contents have."""
    return json.dumps(document | {"crc32c": crc32c_of(canonical(document["table"]))})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.update(format="x"), CorruptStoreError, "format: expected one of gnn"),
        (
            lambda t: t.update(version=99),
            UnsupportedVersionError,
            "table has format version 99",
        ),
        (lambda t: t.update(rows_per_partition=2**60), CorruptStoreError, "rows_per_partition"),
        (lambda t: t.update(rows_per_partition=13), UsageError, "cut by partitions 'five'"),
        (
            lambda t: t["commits"][-1].update(slots=[2**60, -1, -1, -1, -1]),
            CorruptStoreError,
            "slots",
        ),
        (
            lambda t: t["commits"][-1].update(slots=[0, 0, -1, -1, -1]),
            CorruptStoreError,
            "slots: expected 5 slots, none of them twice",
        ),
    ],
)
def test_manifests_that_make_no_sense(
    table_of: Open, change: Callable[[Any], object], error: type[GnnstoreError], message: str
) -> None:
    table = table_of(partitions="five")
    table.close()
    manifest = table.path / "table.json"
    document = json.loads(manifest.read_text())
    manifest.write_text(resealed(document))
    table_of().close()
    change(document["table"])
    manifest.write_text(resealed(document))
    with pytest.raises(error, match=message):
        table_of()


def test_a_creation_that_fails_leaves_nothing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="No space left"):
        gnnstore.EmbeddingTable.create(tmp_path / "a.emb", store, dim=DIM)
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_before_a_commit_failed_is_written_again(
    table_of: Open, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of partitions that are away as well: after a failed fsync nobody knows what the disk has."""
    table = table_of(partitions="five")
    enter(table, 0, 1)
    learn(table, nodes_in(store, 0, 1))
    enter(table, 2, 3)
    learned = table[:]

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="Input/output error"):
            table.commit()
    assert table._directory.doubtful() == [0, 1]
    written: list[int] = []
    write = table._directory.write

    def note(partition: int, data: Any) -> None:
        written.append(partition)
        write(partition, data)

    monkeypatch.setattr(table._directory, "write", note)
    table.commit()
    assert written == [0, 1]
    assert table._directory.doubtful() == []
    assert torch.equal(table_of()[:], learned)


@pytest.mark.parametrize(("code", "works"), [(errno.EINVAL, True), (errno.EACCES, False)])
def test_a_file_system_without_direct_reads(
    table_of: Open, monkeypatch: pytest.MonkeyPatch, code: int, works: bool
) -> None:
    monkeypatch.setattr("gnnstore.formats.table_directory._MIN_DIRECT_BYTES", 0)
    table = table_of()
    learn(table, [1])
    table.commit()
    learned = table[:]
    open_file = os.open

    def refuse(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_DIRECT or (not works and Path(path).name == "slots"):
            raise OSError(code, os.strerror(code))
        return open_file(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    if works:
        assert torch.equal(table_of()[:], learned)
        return
    with pytest.raises(StorageError, match=r"cannot open the table: .*slots: Permission denied"):
        table_of()
    monkeypatch.undo()
    assert torch.equal(table_of()[:], learned), "nothing holds it"


def test_a_disk_that_wants_aligned_memory(
    table_of: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the page cache, many read into and write from whole pages alone."""
    read, write, moved = os.preadv, os.pwrite, 0

    def check(descriptor: int, data: Any) -> None:
        nonlocal moved
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            moved += 1
            if (np.frombuffer(data, np.uint8).ctypes.data | len(data)) % 4096:
                raise OSError(errno.EINVAL, "Invalid argument")

    def checked_read(descriptor: int, buffers: Any, offset: int) -> int:
        check(descriptor, buffers[0])
        return read(descriptor, buffers, offset)

    def checked_write(descriptor: int, data: Any, offset: int) -> int:
        check(descriptor, data)
        return write(descriptor, data, offset)

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gnnstore.formats.table_directory._MIN_DIRECT_BYTES", 0)
    monkeypatch.setattr(os, "preadv", checked_read)
    monkeypatch.setattr(os, "pwrite", checked_write)
    table = table_of(partitions="five")
    table.load()
    learn(table, np.arange(N))
    learned = table[:]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="No space left"):
            table.commit()
    enter(table, 0, 1)  # the others are on disk alone
    table.commit()
    assert gnnstore.verify(table.path).ok
    table = table_of()
    assert torch.equal(table[:], learned)
    rows = gnnstore.open(table.export(tmp_path / "rows.gnn", "z"))
    assert torch.equal(rows.node_attribute("z").tensor(), learned)
    assert moved > 20


def test_a_table_that_was_moved_keeps_out_of_its_successor(
    table_of: Open, store: Path, tmp_path: Path
) -> None:
    table = table_of(partitions="two")
    table.load()
    learn(table, np.arange(N))
    table.commit()
    learn(table, [1])
    learned, moved = table[:], table.path.rename(tmp_path / "b.emb")
    other = gnnstore.EmbeddingTable.create(table.path, store, dim=3)
    before = {file.name: file.read_bytes() for file in table.path.iterdir()}
    assert torch.equal(table[:], learned)
    done = table.commit()
    table.leave(table)
    assert torch.equal(table[[7]], learned[[7]])
    other.close()
    assert {file.name: file.read_bytes() for file in table.path.iterdir()} == before
    table.close()
    found = gnnstore.EmbeddingTable.open(moved, store)
    assert found.commit_id == done
    assert torch.equal(found[:], learned)
    found.close()


def test_one_writer_in_one_process(table_of: Open, store: Path) -> None:
    table = table_of()
    gnnstore.RowwiseAdagrad(table)
    with pytest.raises(UsageError, match="open already"):
        gnnstore.EmbeddingTable.open(table.path, store)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UsageError, match="cannot be pickled"):
            copied(table)
    table.load()
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: table(torch.tensor([0])), table.commit):
            try:
                use()
            except UsageError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_the_lock_is_of_the_process_that_opened_the_table(table_of: Open, store: Path) -> None:
    """A forked child, such as a worker of a DataLoader, has the descriptor, and may outlive it."""
    table = table_of()
    to_child, from_child = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:
        for closes in (False, True):
            from_child.recv()
            if closes:
                table._directory.close()  # the child's, which lets nobody in
            from_child.send("done")
        from_child.recv()
        os._exit(0)
    try:
        for _ in range(2):
            to_child.send("go on")
            to_child.recv()
            with pytest.raises(UsageError, match="open already"):
                gnnstore.EmbeddingTable.open(table.path, store)
    finally:
        to_child.send("end")
        os.waitpid(child, 0)


def test_other_stores_and_partitions_are_refused(
    table_of: Open, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_example_store(tmp_path / "other.gnn", num_nodes=N, seed=1).path
    table = table_of(partitions="five")
    with pytest.raises(UsageError, match=r"cut by the partitions 'five'.*goes through xyz"):
        table.attach("xyz")
    with monkeypatch.context() as patch:
        patch.setattr(PartitionsReader, "uuid", "new")
        with pytest.raises(UsageError, match=r"of this name are new now: .* Restore the par"):
            table_of()
    with pytest.raises(UsageError, match="'much'") as caught:
        table_of(memory="much")
    table_of().close()
    assert caught.tb is not None, "which has the table that could not be made, and does not hold it"
    with pytest.raises(UsageError, match="store that it was created for"):
        gnnstore.EmbeddingTable.open(table.path, other)
    with pytest.raises(NotFoundError, match=r"none\.emb: there is no table of embeddings"):
        gnnstore.EmbeddingTable.open(tmp_path / "none.emb", store)
    empty = write_store(tmp_path / "empty.gnn", np.empty((2, 0), int))
    with pytest.raises(UsageError, match=r"empty\.gnn has no nodes, so that there is nothing to l"):
        gnnstore.EmbeddingTable.create(tmp_path / "b.emb", empty, dim=4)
    create = gnnstore.EmbeddingTable.create
    with pytest.raises(StoreExistsError):
        create(table.path, store, dim=4)
    with pytest.raises(UsageError, match="not a gnnstore table"):
        create(store, store, dim=4, overwrite=True)
    wrong: dict[str, dict[str, Any]] = {
        "dim=0": {"dim": 0},
        "1 to 1048576 columns": {"dim": 2**21},
        "seed=True is not a whole": {"seed": True},
        "scale='a'": {"scale": "a"},
        "overwrite='no'": {"overwrite": "no"},
        "dim=2.5": {"dim": 2.5},
        "name=3": {"partitions": 3},
        "name=''": {"partitions": ""},
        "keep=0": {"keep": 0},
        "keep=300000: expected 1 to": {"keep": 300_000, "partitions": "two"},
        "optimizer='lion'": {"optimizer": "lion"},
        "init='he'": {"init": "he"},
        "scale=nan": {"scale": float("nan")},
        "seed must be in": {"seed": -1},
    }
    for message, options in wrong.items():
        with pytest.raises(UsageError, match=message):
            create(tmp_path / "b.emb", store, **{"dim": 4, **options})
    assert not (tmp_path / "b.emb").exists()


def test_a_table_in_memory_keeps_to_its_budget(table_of: Open) -> None:
    table = table_of(memory=65536).eval()
    table(torch.tensor([0]))
    table = table_of(memory=65535).eval()
    with pytest.raises(BudgetError, match="partition the store"):
        table(torch.tensor([0]))


def test_a_table_larger_than_its_budget_is_not_created(store: Path, tmp_path: Path) -> None:
    create, path = gnnstore.EmbeddingTable.create, tmp_path / "b.emb"
    with pytest.raises(
        BudgetError, match=r"(?s)the table b\.emb does not fit.*partition the store"
    ):
        create(path, store, dim=4, memory=65535)
    with pytest.raises(UsageError, match="'much'"):
        create(path, store, dim=4, memory="much")
    assert not path.exists()
    create(path, store, dim=4, memory=65535, partitions="five").close()
    with pytest.raises(BudgetError):
        create(path, store, dim=4, memory=65535, overwrite=True)
    table = gnnstore.EmbeddingTable.open(path, store)
    assert table._manifest.partitions == "five", "as before"
    table.close()


@pytest.mark.parametrize("partitions", [*choose([], [None]), "five"])
def test_rows_are_exported_as_an_attribute(
    table_of: Open, store: Path, tmp_path: Path, partitions: str | None
) -> None:
    table = table_of(partitions=partitions)
    table.load()
    learn(table, [3, 50])
    table.commit()
    if partitions:
        enter(table, 1, 2)
        learn(table, nodes_in(store, 1))  # neither on disk nor committed
        table.leave(table)
    alone = gnnstore.open(table.export(tmp_path / "rows.gnn", "z", memory=4000))
    assert torch.equal(alone.node_attribute("z").tensor(), table[:])
    assert alone.num_edges == 0
    with pytest.raises(UsageError, match="has an attribute 'x'"):
        table.export(tmp_path / "all.gnn", with_graph=True)
    both = gnnstore.open(table.export(tmp_path / "all.gnn", "z", with_graph=True))
    assert gnnstore.verify(both.path, "full").ok
    loader = gnnstore.NeighborLoader(both, [2], batch_size=16, seed=0, shuffle=True)
    plain = gnnstore.NeighborLoader(store, [2], batch_size=16, seed=0, shuffle=True)
    for batch, other in zip(loader, plain, strict=True):
        assert torch.equal(batch.n_id, other.n_id)
        assert torch.equal(batch.x, other.x)
        assert torch.equal(batch.z, table[batch.n_id])


def test_rows_that_are_exported_were_compared(
    table_of: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = table_of(partitions="two")
    table.load()
    learn(table, np.arange(N))
    table.commit()
    table = table_of()
    data = bytearray((table.path / "slots").read_bytes())
    data[5 * 4 * DIM] ^= 1
    (table.path / "slots").write_bytes(data)
    for memory in (10, 10**6):  # row by row, and all at once
        with pytest.raises(CorruptStoreError, match="slots: damaged at byte 0"):
            table.export(tmp_path / "rows.gnn", "z", memory=memory)
        assert not (tmp_path / "rows.gnn").exists()


def test_edges_are_ranked_by_rows_of_a_table(table_of: Open, store: Path) -> None:
    table = table_of(partitions="five")
    enter(table, 0, 1)
    learn(table, nodes_in(store, 0, 1))
    table.leave(table)
    queries = np.random.default_rng(0).integers(0, N, (2, 20))

    def score(known: torch.Tensor, rows: torch.Tensor, _: Any) -> torch.Tensor:
        return known @ rows.T

    found = gnnstore.link_ranks(score, queries, table)
    assert torch.equal(found, gnnstore.link_ranks(score, queries, table[:]))


def test_a_table_can_be_inspected(table_of: Open, capsys: pytest.CaptureFixture[str]) -> None:
    table = table_of(partitions="five")
    table.load()
    learn(table, [1])
    done = table.commit({"epoch": 2, "batches": 7})
    assert cli.main(["inspect", str(table.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_nodes"], found["dim"], found["partitions"]) == (N, DIM, "five")
    assert found["commits"][-1] == {
        "id": done,
        "parent": found["commits"][0]["id"],
        "steps": 1,
        "epoch": 2,
        "batches": 7,
        "learned_partitions": 1,
    }
    assert cli.main(["inspect", str(table.path)]) == 0
    line = next(each for each in capsys.readouterr().out.splitlines() if done in each)
    assert line.split()[-2:] == ["2", "7"]
    assert cli.main(["inspect", str(table.path), "--stats"]) == 2
    assert cli.main(["verify", str(table.path)]) == 0


def test_few_rows_of_a_partition_are_read_alone(
    table_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(partitions="two")
    table.load()
    learn(table, np.arange(N))
    expected = table[:]
    table.commit()
    table = table_of()
    assert torch.equal(table[:], expected)
    monkeypatch.setattr(type(table._directory), "read", None)  # a whole partition
    for ids in ([], [7], [59]):
        assert torch.equal(table[ids], expected[ids])


def test_one_process_of_several_is_refused(table_of: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UsageError, match="one of 2 processes"):
        table_of()
