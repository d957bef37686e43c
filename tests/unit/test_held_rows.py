"""Which rows of a batch a device has: beside what sets of nodes say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnstore.features.held import HeldRows, Split, kept

NUM_NODES = {"paper": 40, "author": 15, "venue": 3}

Ids = st.lists(st.integers(0, 39), max_size=60)


def ids_of(papers: list[int], dtype: Any) -> dict[str, Any]:
    """Return the nodes of a batch; of some types the same, within their numbers."""
    return {
        name: np.array([each % count for each in papers], dtype)
        for name, count in NUM_NODES.items()
    }


@given(
    nodes=Ids,
    before=st.none() | Ids,
    held=st.sets(st.integers(0, 39)),
    num_filled=st.none() | st.integers(0, 40),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_splits_equal_sets(
    nodes: list[int],
    before: list[int] | None,
    held: set[int],
    num_filled: int | None,
    dtype: type,
) -> None:
    """Every position once, with the row that is at its place; venues are not held at all."""
    of_type = {
        name: np.array(sorted(each for each in held if each < NUM_NODES[name]), np.int64)
        for name in ("paper", "author")
    }
    rows = HeldRows.from_nodes(of_type, NUM_NODES)
    batch = ids_of(nodes, dtype)
    earlier = None if before is None else ids_of(before, dtype)
    filled = None if num_filled is None else dict.fromkeys(NUM_NODES, num_filled)
    splits = rows.split(batch, earlier, filled)
    assert splits.keys() == {"paper", "author"}
    for name, (missed, hits, slots, matched, places) in splits.items():
        ids, there = batch[name], of_type[name][:num_filled]
        assert sorted([*missed, *hits, *matched]) == [*range(len(ids))]
        for each in (missed, hits, slots, matched, places):
            assert each.dtype == np.int32
        for each in (missed, hits, matched):
            assert (np.diff(each) > 0).all()
        assert ids[hits].tolist() == of_type[name][slots].tolist()
        assert set(ids[hits].tolist()) == set(ids.tolist()) & set(there.tolist())
        known = set() if earlier is None else set(earlier[name].tolist())
        if earlier is not None:
            assert ids[matched].tolist() == earlier[name][places].tolist()
        assert set(ids[missed].tolist()) == set(ids.tolist()) - set(there.tolist()) - known
        assert splits[name].num_rows == len(ids)
        assert splits[name].is_whole == (len(missed) == len(ids))
        assert kept(batch, splits)[name].tolist() == [*ids[missed], *ids[matched]]
    if num_filled is None:
        left = rows.missed(batch, earlier)
        assert left.keys() == batch.keys()
        for name, split in splits.items():
            assert left[name].tolist() == batch[name][split.missed].tolist()
        assert left["venue"] is batch["venue"]


def test_bytes_are_those_of_the_index() -> None:
    rows = HeldRows.from_nodes(
        {"paper": np.array([1, 3]), "venue": np.empty(0, np.int64)}, NUM_NODES
    )
    assert rows.num_rows == 2
    assert rows.num_bytes == 12 + 2 * 8
    assert rows.nodes["venue"].size == 0
    assert rows.nodes["paper"].tolist() == [1, 3]


def test_a_batch_of_none_of_a_type() -> None:
    rows = HeldRows.from_nodes({"paper": np.array([1])}, NUM_NODES)
    assert rows.split({"venue": np.array([0])}) == {}
    assert rows.missed({}) == {}


def test_an_id_outside_the_graph() -> None:
    rows = HeldRows.from_nodes({"paper": np.array([1])}, NUM_NODES)
    for make in (rows.split, rows.missed):
        with pytest.raises(IndexError, match="64"):
            make({"paper": np.array([64])})


def test_a_split_of_missed_rows_alone() -> None:
    split = Split(np.arange(3, dtype=np.int32))
    assert split.is_whole
    assert split.kept.tolist() == [0, 1, 2]
