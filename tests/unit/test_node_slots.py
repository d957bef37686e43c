"""The index of a cache's nodes, and counters of ids, beside what NumPy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.features.static import SlotIndex


@given(
    num_nodes=st.integers(0, 400),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_slots_equal_a_table(num_nodes: int, share: float, seed: int, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    cached = np.flatnonzero(rng.random(num_nodes) < share)
    table = np.full(num_nodes, -1, np.int32)
    table[cached] = np.arange(len(cached))
    slots = SlotIndex.from_rows(cached, num_nodes)
    ids: npt.NDArray[Any] = rng.integers(0, max(num_nodes, 1), 3 * num_nodes).astype(dtype)
    np.testing.assert_array_equal(slots.slots(ids), table[ids])
    assert slots.num_bytes == SlotIndex.bytes_for(num_nodes, len(cached))


def test_an_id_outside_the_graph() -> None:
    slots = SlotIndex.from_rows(np.array([1, 3]), 64)
    for bad in (-1, 64):
        with pytest.raises(IndexError, match=f"row id {bad}"):
            slots.slots(np.array([bad]))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
def test_counts_equal_bincount(dtype: type) -> None:
    ids = np.random.default_rng(0).integers(0, 50, 4000).astype(np.int32)
    counts: npt.NDArray[Any] = np.zeros(50, dtype)
    _core.count_ids(ids, counts)
    _core.count_ids(ids.astype(np.int64)[:100], counts)
    expected = np.bincount(ids, minlength=50) + np.bincount(ids[:100], minlength=50)
    np.testing.assert_array_equal(counts, np.minimum(expected, np.iinfo(dtype).max))


def test_a_full_counter_stays_full() -> None:
    counts = np.array([254, 0], np.uint8)
    _core.count_ids(np.zeros(9, np.int64), counts)
    assert counts.tolist() == [255, 0]


def test_nothing_is_counted_when_an_id_is_outside() -> None:
    counts = np.zeros(4, np.uint32)
    with pytest.raises(IndexError, match="row id 4 at position 2"):
        _core.count_ids(np.array([0, 1, 4]), counts)
    assert not counts.any()
