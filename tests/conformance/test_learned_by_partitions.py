"""Embeddings that are learned a few partitions at a time are those that are learned in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

import torch

import gnnstore
from gnnstore.converters import from_rmat
from gnnstore.converters.partitions.partition import partition
from gnnstore.errors import StorageError, UsageError

POLICY = gnnstore.PartitionPolicy("two-level", capacity=2, logical=6, name="six")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = from_rmat(
        tmp_path_factory.mktemp("learned") / "a.gnn", scale=8, edge_factor=4, feature_dim=1, seed=1
    )
    partition(path, 6, name="six")
    return path


@pytest.fixture
def table(store: Path, tmp_path: Path) -> Iterator[gnnstore.EmbeddingTable]:
    made = gnnstore.EmbeddingTable.create(
        tmp_path / "cut.emb", store, dim=8, partitions=POLICY, optimizer="adagrad"
    )
    yield made
    made.close()


def loader_of(store: Path, *tables: gnnstore.EmbeddingTable, **options: Any) -> Any:
    return gnnstore.LinkNeighborLoader(
        store,
        [],
        **{
            "batch_size": 50,
            "shuffle": True,
            "seed": 3,
            "neg_sampling": "binary",
            "partitions": POLICY,
            "tables": tables,
            **options,
        },
    )


def learn(table: gnnstore.EmbeddingTable, batch: Any) -> None:
    optimizer = gnnstore.Adagrad(table, lr=0.1)
    source, target = table(batch.n_id)[batch.edge_label_index]
    torch.nn.functional.binary_cross_entropy_with_logits(
        (source * target).sum(-1), batch.edge_label
    ).backward()
    optimizer.step()


@pytest.mark.parametrize("threads", [0, 2])
def test_rows_equal_those_of_a_run_in_memory(
    store: Path, tmp_path: Path, table: gnnstore.EmbeddingTable, threads: int
) -> None:
    whole = gnnstore.EmbeddingTable.create(
        tmp_path / "whole.emb", store, dim=8, optimizer="adagrad"
    )
    both = loader_of(store, table, num_threads=threads)
    for epoch in range(2):
        for batch in both:
            learn(table, batch)
            learn(whole, batch)
        assert both.epoch == epoch + 1
        assert torch.equal(table[:], whole[:])
    # After an epoch, the commit and the loader are at the start of the next.
    table.commit()
    assert table.position() == both.state_dict()
    assert torch.equal(table[:], whole[:])
    whole.close()


def test_an_iteration_that_breaks_off_goes_on_elsewhere(
    store: Path, tmp_path: Path, table: gnnstore.EmbeddingTable
) -> None:
    loader = loader_of(store, table)
    for batch in loader:
        learn(table, batch)
    straight = table[:]

    fresh = {"dim": 8, "partitions": POLICY, "optimizer": "adagrad"}
    other = gnnstore.EmbeddingTable.create(tmp_path / "other.emb", store, **fresh)  # type: ignore[arg-type]
    state: dict[str, Any] = {}
    commit: str | None = None
    for stop in (3, 1, 9, None):
        if commit is not None:
            other = gnnstore.EmbeddingTable.open(tmp_path / "other.emb", store, commit=commit)
        again = loader_of(store, other)
        if commit is not None:
            behind = {**state, "batches": state["batches"] - 1}
            with pytest.raises(UsageError, match="the rows are those after batch"):
                again.load_state_dict(behind)
            again.load_state_dict(state)
        for number, batch in enumerate(again, 1):
            learn(other, batch)
            if number == stop:
                state, commit = again.state_dict(), other.commit()
                break
        if stop is not None:
            other.close()
    assert torch.equal(other[:], straight)
    other.close()


def test_gradients_are_not_carried_to_another_state(
    store: Path, table: gnnstore.EmbeddingTable
) -> None:
    gnnstore.Adagrad(table, lr=0.1)

    def without_steps() -> None:
        for batch in loader_of(store, table):
            table(batch.n_id).sum().backward()

    with pytest.raises(UsageError, match=r"call step\(\) before the next batch"):
        without_steps()


def test_a_loader_of_other_partitions_is_refused(
    store: Path, tmp_path: Path, table: gnnstore.EmbeddingTable
) -> None:
    partition(store, 3, name="three")
    policy = gnnstore.PartitionPolicy("two-level", capacity=2, logical=3, name="three")
    with pytest.raises(UsageError, match="the table is cut by the partitions"):
        loader_of(store, table, partitions=policy)


def test_a_loader_of_the_whole_graph_has_all_rows(
    store: Path, table: gnnstore.EmbeddingTable
) -> None:
    for batch in loader_of(store, table, partitions=None):
        learn(table, batch)
    assert table(torch.arange(256)).shape == (256, 8)


def test_a_read_ahead_that_fails_reaches_the_loop(
    store: Path, table: gnnstore.EmbeddingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that have changed can still be committed."""
    for batch in loader_of(store, table):
        learn(table, batch)
    table.commit()
    loader = loader_of(store, table)
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
            learn(table, batch)

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
