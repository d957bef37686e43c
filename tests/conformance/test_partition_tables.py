"""Embeddings that follow a loader: their rows are in memory with the partitions they are of."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore import Adagrad, EmbeddingTable, LinkNeighborLoader, PartitionPolicy, RowwiseAdagrad
from gnnstore.budget.ledger import Reservation
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import BudgetError, StorageError, UsageError
from gnnstore.partitions.buffer import PartitionFiles, PartitionSlots
from gnnstore.partitions.policy import Slots
from gnnstore.testing.graphs import random_graph
from tests.support.effort import choose

POLICY = PartitionPolicy(capacity=4, name="spread")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    path = random_graph(150, 1_200, seed=1).write(tmp_path_factory.mktemp("tables") / "g.gnn")
    partition(path, 8, name="spread", seed=3)
    partition(path, 6, name="other", seed=3)
    return gnnstore.open(path)


def table_of(store: gnnstore.GraphStore, path: Path, **options: Any) -> EmbeddingTable:
    given: dict[str, Any] = {"dim": 3, "partitions": POLICY, "seed": 1}
    return EmbeddingTable.create(path, store, **{**given, **options})


def loader_of(store: gnnstore.GraphStore, table: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 5, "num_threads": 2}
    given |= {"partitions": POLICY, "neg_sampling": "binary", **options}
    return LinkNeighborLoader(store, [], tables=[table], **given)


def loss_of(table: EmbeddingTable, batch: Any) -> torch.Tensor:
    rows = table(batch.n_id)
    source, target = batch.edge_label_index
    scores = (rows[source] * rows[target]).sum(dim=-1)
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.edge_label)


def step(table: EmbeddingTable, optimizer: Any, batch: Any) -> float:
    """Learn from a batch, and return its loss."""
    loss = loss_of(table, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(
    table: EmbeddingTable, loader: Any, num_epochs: int = 1, optimizer: Any = RowwiseAdagrad
) -> list[float]:
    optimizer, losses = optimizer(table, lr=0.3), []
    for _ in range(num_epochs):
        losses += [step(table, optimizer, batch) for batch in loader]
    return losses


@pytest.mark.parametrize("optimizer", [Adagrad, RowwiseAdagrad])
@pytest.mark.parametrize("num_threads", [0, 3])
def test_rows_are_those_of_a_table_in_memory(
    store: gnnstore.GraphStore, tmp_path: Path, optimizer: Any, num_threads: int
) -> None:
    """Whoever prepares batches, and whether rows leave memory and come back."""
    losses, rows = [], []
    for name, partitions in (("whole", None), ("parts", POLICY)):
        table = table_of(store, tmp_path / name, partitions=partitions, optimizer=optimizer.RULE)
        how = {"num_threads": num_threads if partitions else 0, "prefetch_batches": 8}
        losses.append(train(table, loader_of(store, table, **how), 2, optimizer))
        rows.append(table[:].detach().clone())
        table.close()
    assert losses[0] == losses[1]
    assert torch.equal(*rows)
    assert losses[0][-1] < losses[0][0]


def test_ranks_in_the_middle_of_an_epoch_go_by_all_rows(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    """By those in memory as they are now, and by those on disk, not by a state's alone."""
    queries = torch.randint(150, (2, 60), generator=torch.Generator().manual_seed(0))

    def ranks(rows: Any) -> torch.Tensor:
        return gnnstore.link_ranks(
            lambda known, candidates, _: known @ candidates.T, queries, rows, side="both"
        )

    at: dict[str, list[torch.Tensor]] = {}
    for name, options in {"whole": {"partitions": None}, "parts": {}}.items():
        table = table_of(store, tmp_path / name, **options)
        optimizer = RowwiseAdagrad(table, lr=0.3)
        for number, batch in enumerate(loader_of(store, table)):
            step(table, optimizer, batch)
            if number % choose(2, 1) == 0:
                at.setdefault(name, []).append(ranks(table))
        table.close()
    assert len(at["whole"]) > choose(3, 6), "some states of some batches"
    assert all(a.equal(b) for a, b in zip(at["whole"], at["parts"], strict=True))
    assert not at["whole"][0].equal(at["whole"][-1])
    assert ranks(torch.zeros(150, 3)).eq(1 + 149 / 2).all(), "a model that knows nothing"


@pytest.mark.parametrize("stop", choose([3], [1, 3, 7]))
def test_training_goes_on_from_a_commit(
    store: gnnstore.GraphStore, tmp_path: Path, stop: int
) -> None:
    whole = table_of(store, tmp_path / "whole")
    expected = train(whole, loader_of(store, whole))
    whole.close()
    table = table_of(store, tmp_path / "parts")
    loader, optimizer, found = loader_of(store, table), RowwiseAdagrad(table, lr=0.3), []
    for batch in loader:
        found.append(step(table, optimizer, batch))
        if len(found) == stop:
            break
    table.commit()
    table.close()
    again = EmbeddingTable.open(tmp_path / "parts", store)
    resumed = loader_of(store, again)
    position = again.position()
    assert position is not None
    assert position["batches"] == stop
    resumed.load_state_dict(position)
    assert found + train(again, resumed) == expected
    again.close()


def test_the_next_epoch_begins_after_one_that_broke_off(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    table = table_of(store, tmp_path / "parts").eval()
    loader = loader_of(store, table)
    for epoch in range(4):
        for number, batch in enumerate(loader):
            assert table(batch.n_id).equal(table[batch.n_id])
            if number == epoch * 3:
                break
    assert loader.epoch == 4
    table.close()


def test_gradients_that_wait_at_the_end_of_a_state_are_an_error(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    table = table_of(store, tmp_path / "parts")
    optimizer = RowwiseAdagrad(table, lr=0.3)

    def learn() -> None:
        for batch in loader_of(store, table):
            loss_of(table, batch).backward()

    with pytest.raises(UsageError, match=r"call step\(\) before the next batch"):
        learn()
    optimizer.zero_grad()
    table.close()


def test_tables_of_other_partitions_are_refused(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    table = table_of(store, tmp_path / "parts")
    with pytest.raises(UsageError, match="partitions"):
        loader_of(store, table, partitions=PartitionPolicy(capacity=2, name="other"))
    table.close()


def test_a_loader_of_the_whole_graph_tells_tables_where_it_stands(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    table = table_of(store, tmp_path / "whole", partitions=None)
    loader = loader_of(store, table, partitions=None)
    assert train(table, loader)
    table.commit()
    position = table.position()
    assert position is not None
    assert (position["epoch"], position["batches"]) == (1, 0)
    table.close()


@pytest.mark.parametrize("partitions", [POLICY, None])
def test_a_loader_with_a_table_is_no_more_pickled_than_the_table(
    store: gnnstore.GraphStore, tmp_path: Path, partitions: PartitionPolicy | None
) -> None:
    table = table_of(store, tmp_path / "table", partitions=partitions)
    loader = loader_of(store, table, partitions=partitions)
    for part in (loader, loader._sources) if partitions else (loader,):
        with pytest.raises(UsageError, match="one writer on its directory, and cannot be pickled"):
            pickle.dumps(part)
    table.close()


class KeptRows:
    """A table that follows a loader, of a kind that may be pickled."""

    def reserve(self, slots: Slots) -> Reservation:
        return Reservation("kept rows", 1000 * sum(slots))

    def do_nothing(self, *_: Any) -> None:
        pass

    attach = enter = expect = leave = position = check_position = note_position = do_nothing


def test_a_copy_of_a_loader_reserves_for_tables_that_travel_with_it(
    store: gnnstore.GraphStore,
) -> None:
    loader = loader_of(store, KeptRows())
    copied = pickle.loads(pickle.dumps(loader))  # noqa: S301 - our own
    parts, shape = copied._sources.placement.ledger.reservations, copied._sources.shape
    assert parts == loader._sources.placement.ledger.reservations
    assert KeptRows().reserve(Slots(shape.capacity, shape.num_spare)) in parts
    assert sum(1 for _ in copied) == len(loader)


def test_loaders_take_turns(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    """Evaluation in the middle of a state, by partitions or by all rows, leaves training alone."""
    expected, rows = [], []
    for name in ("alone", "whole", *choose((), ("parts",))):
        table = table_of(store, tmp_path / name)
        loader, optimizer = loader_of(store, table), RowwiseAdagrad(table, lr=0.3)
        others = {"alone": None, "parts": loader_of(store, table, seed=9)}
        other = others.get(name, loader_of(store, table, partitions=None))
        found = []
        for number, batch in enumerate(loader):
            if other is not None and number % 3 == 1:
                table.eval()
                with torch.no_grad():
                    for _, one in zip(range(4), other, strict=False):
                        loss_of(table, one)
                table.train()
            assert name == "alone" or len(table._buffer.resident()) <= 4 or number % 3 == 1
            if number % 3 == 1:  # whose rows may be away: they are back with the next batch
                continue
            found.append(step(table, optimizer, batch))
        expected.append(found)
        commit, state = table.commit(), loader.state_dict()
        rows.append(table[:].detach().clone())
        table.close()
        again = EmbeddingTable.open(tmp_path / name, store, commit=commit)
        loader_of(store, again).load_state_dict(state)
        again.close()
    assert all(each == expected[0] for each in expected)
    assert all(torch.equal(rows[0], each) for each in rows)


def test_a_loader_that_is_made_changes_nothing(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    """Nor one that is refused: what is in memory is what the loader in use has reserved."""
    table = table_of(store, tmp_path / "t")
    RowwiseAdagrad(table)
    batches = iter(loader_of(store, table))
    batch = next(batches)
    resident = table._buffer.resident().tolist()
    assert len(resident) == 4
    with pytest.raises(BudgetError):
        loader_of(store, table, partitions=None, memory="1kB")
    loader_of(store, table, partitions=None)
    table(batch.n_id)
    assert table._buffer.resident().tolist() == resident
    assert table._buffer.num_slots < 8
    batches.close()
    table.close()


@pytest.mark.parametrize("partitions", [None, POLICY])
def test_the_budget_of_a_table_holds_beside_loaders(
    store: gnnstore.GraphStore, tmp_path: Path, partitions: PartitionPolicy | None
) -> None:
    table_of(store, tmp_path / "t", partitions=partitions).close()
    table = EmbeddingTable.open(tmp_path / "t", store, memory="10kB")
    refusal = "(?s)the table t does not fit.* of the memory= budget"
    with pytest.raises(BudgetError, match=refusal):
        table.load()
    with pytest.raises(BudgetError, match=refusal):
        loader_of(store, table, partitions=None)
    if partitions is not None:
        batches = iter(loader_of(store, table))
        next(batches)
        with pytest.raises(BudgetError, match=refusal):
            table.load()
        batches.close()
    table.close()


def test_a_commit_keeps_the_position_that_it_knows(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    class Sampler:
        def __len__(self) -> int:
            return 150

        def __iter__(self) -> Any:
            return iter(range(150))

        def state_dict(self) -> dict[str, Any]:
            return {"drawn": torch.tensor([1, 2]), "next": 3}

        def load_state_dict(self, _: Any) -> None:
            pass

    table = table_of(store, tmp_path / "t", partitions=None)
    options = {"partitions": None, "shuffle": False, "sampler": Sampler(), "num_threads": 0}
    loader = loader_of(store, table, **options)
    next(steps_of(table, loader))
    table.commit()
    state = loader.state_dict()
    table.close()
    table = EmbeddingTable.open(tmp_path / "t", store)
    table.commit()  # of a program without a loader
    table.close()
    table = EmbeddingTable.open(tmp_path / "t", store)
    loader = loader_of(store, table, **options)
    with pytest.raises(UsageError, match="batches would be learned twice, or never"):
        loader.load_state_dict({**state, "batches": 0})
    loader.load_state_dict(state)
    table.close()


def steps_of(table: EmbeddingTable, loader: Any, **how: bool) -> Any:
    """Train on the batches of a loader, and yield after each step."""
    optimizer, batches = RowwiseAdagrad(table, lr=0.3), iter(loader)
    while True:
        table.train(not how.get("evaluates_between", False))
        with torch.set_grad_enabled(not how.get("evaluates_between", False)):
            batch = next(batches, None)
        if batch is None:
            return
        table.train()
        step(table, optimizer, batch)
        yield


def resumes(store: gnnstore.GraphStore, table: EmbeddingTable, loader: Any) -> dict[str, Any]:
    """Commit, and check that the loader's state goes with it, and no other."""
    table.commit()
    state: dict[str, Any] = loader.state_dict()
    table.close()
    again = EmbeddingTable.open(table.path, store)
    other = {**state, "batches": state["batches"] + 1}
    with pytest.raises(UsageError, match="batches would be learned twice, or never"):
        loader_of(store, again).load_state_dict(other)
    loader_of(store, again).load_state_dict(state)
    again.close()
    return state


def test_a_commit_after_the_last_batch_and_a_state_after_the_loop(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    """Only the user knows that nothing lies between them, and can say so."""
    table = table_of(store, tmp_path / "t")
    loader = loader_of(store, table)
    for _ in steps_of(table, loader):
        if loader.batches_left == 0:
            table.commit()
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (1, 0)
    table.close()
    table = EmbeddingTable.open(tmp_path / "t", store)
    loader = loader_of(store, table)
    with pytest.raises(UsageError, match=r"If no batch lies between, .* call commit\(\) on"):
        loader.load_state_dict(state)
    table.commit(state)
    loader.load_state_dict(state)
    assert loader.epoch == 1
    table.close()


@pytest.mark.parametrize("evaluates_between", choose([True], [False, True]))
def test_the_position_is_that_of_training(
    store: gnnstore.GraphStore, tmp_path: Path, evaluates_between: bool
) -> None:
    """Whatever mode the table is in while a batch is handed out, and who else evaluates."""
    table = table_of(store, tmp_path / "t")
    loader, other = loader_of(store, table), loader_of(store, table, seed=9)
    steps = steps_of(table, loader, evaluates_between=evaluates_between)
    for _ in range(4):
        next(steps)
    table.eval()
    with torch.no_grad():
        for _, batch in zip(range(3), other, strict=False):
            loss_of(table, batch)
    table.train()
    assert resumes(store, table, loader)["batches"] == 4


def test_evaluation_with_the_loader_that_trains(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    table = table_of(store, tmp_path / "t")
    loader = loader_of(store, table)
    for _ in steps_of(table, loader):
        pass
    table.eval()
    with torch.no_grad():
        for batch in loader:
            loss_of(table, batch)
    assert resumes(store, table, loader)["epoch"] == 2


def test_training_without_a_loader_has_no_position(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    table = table_of(store, tmp_path / "t")
    next(steps_of(table, loader_of(store, table)))
    table.commit()
    assert table.position() is not None
    table.close()
    table = EmbeddingTable.open(tmp_path / "t", store)
    table.commit()
    assert table.position() is not None
    table.load()
    optimizer = RowwiseAdagrad(table)
    table(torch.arange(5)).sum().backward()
    optimizer.step()
    table.commit()
    assert table.position() is None
    table.close()


def test_all_rows_are_in_memory_until_the_state_changes(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    table = table_of(store, tmp_path / "t")
    num_resident = []
    for number, batch in enumerate(loader_of(store, table)):
        if number == 1:
            with torch.no_grad():
                table.load()
                table(torch.arange(150))
        num_resident.append((len(table._buffer.resident()), table._state.tolist()))
        del batch
    assert num_resident[0][0] == 4
    first = num_resident[0][1]
    assert all(n == 8 for n, state in num_resident[1:] if state == first)
    assert all(n == 4 for n, state in num_resident if state != first)
    assert num_resident[2][1] == first, "the state has more batches"
    table.close()


@pytest.mark.parametrize(
    ("num_nodes", "num_partitions"), [*choose((), ((3072, 2), (7168, 4))), (1000, 3)]
)
def test_slots_take_the_memory_that_is_reserved_for_them(
    tmp_path: Path, num_nodes: int, num_partitions: int
) -> None:
    """Pages of a partition may have room for more rows than its share of the nodes."""
    store = random_graph(num_nodes, 9000, feature_dim=16).write(tmp_path / "g.gnn")
    partition(store, num_partitions)
    policy = gnnstore.PartitionPolicy("dispersed", capacity=1)
    loader = gnnstore.NeighborLoader(str(store), [3], np.arange(50), partitions=policy)
    sources = loader._sources
    (reserved,) = (
        part.fixed
        for part in sources.placement.ledger.reservations
        if part.what.endswith(" partitions") and part.what[0].isdigit()
    )
    slots = PartitionSlots(
        PartitionFiles(sources.unit, sources.engine), 1 + sources.shape.num_spare
    )
    held = sum(rows.resident_bytes for rows in slots._tables.values())
    assert reserved == held


def test_a_read_ahead_that_fails_reaches_the_loop(
    store: gnnstore.GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that have changed can still be committed."""
    table = table_of(store, tmp_path / "t")
    loader, optimizer = loader_of(store, table), RowwiseAdagrad(table, lr=0.3)
    for batch in loader:
        step(table, optimizer, batch)
    table.commit()
    slots, learned = table.path / "slots", table[:]
    preadv = os.preadv

    def fail(descriptor: int, *arguments: Any) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == slots:
            raise OSError(5, "Input/output error")
        return preadv(descriptor, *arguments)

    def until_it_fails() -> None:
        for number, batch in enumerate(loader):
            if number == 0:
                monkeypatch.setattr(os, "preadv", fail)
            step(table, optimizer, batch)

    with pytest.raises(StorageError, match=r"slots: Input/output error") as caught:
        until_it_fails()
    assert caught.value.path == str(slots)
    assert caught.value.offset is not None
    monkeypatch.undo()
    now = table[:]
    assert not torch.equal(now, learned)
    table.commit()
    assert torch.equal(table[:], now)
    assert gnnstore.verify(table.path).ok
    table.close()
