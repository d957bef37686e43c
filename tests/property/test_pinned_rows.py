"""Pinned rows: the kernels that take them out of a plan's input, and put them into the plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gnnstore import _core
from tests.support.twins import caches as twins

NUM_NODES = 200


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], Any]:
    """Return pinned nodes, and a batch's ids."""
    pinned = sorted(draw(st.sets(st.integers(0, NUM_NODES - 1))))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    ids = draw(hnp.arrays(dtype, st.integers(0, 60), elements=st.integers(0, NUM_NODES - 1)))
    return pinned, ids


@given(batches(), st.data())
@example(([], np.arange(3)), None)
@example((list(range(NUM_NODES)), np.array([5, 199, 5, 0], np.int32)), None)
def test_pinned_rows_are_dropped_and_added_as_their_twins_do(
    batch: tuple[list[int], Any], data: st.DataObject | None
) -> None:
    pinned, ids = batch
    bits, ranks = _core.index_nodes(np.array(pinned, np.int64), NUM_NODES)
    kept = _core.drop_pinned(bits, ids)
    assert kept.dtype == ids.dtype
    np.testing.assert_array_equal(kept, twins.drop_pinned(pinned, ids))

    slots = np.arange(len(kept), dtype=np.int32) - 1
    positions = np.empty(0, np.int32)
    if data is not None and len(kept):
        places = st.integers(0, len(kept) - 1)
        positions = data.draw(hnp.arrays(np.int32, st.integers(0, 20), elements=places))
    found = _core.add_pinned(bits, ranks, ids, slots, positions, first_slot=70)
    for ours, theirs in zip(
        found, twins.add_pinned(pinned, ids, slots, positions, 70), strict=True
    ):
        assert ours.dtype == np.int32
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(ids[found[1]], kept[positions])


@given(
    st.lists(st.integers(-2, 30) | st.sampled_from([2**31 - 1, -(2**31)])),
    st.lists(st.integers(-2, 30)),
    st.sampled_from([np.int32, np.int64]),
)
def test_places_among_other_ids_are_found_as_the_twin_finds_them(
    ids: list[int], known: list[int], dtype: type[Any]
) -> None:
    # Others of other widths, too: a key of 32 bits is not enough for each.
    for others in (known, [each + 2**32 for each in known], [*known, 2**32 - 1, 2**32 + 3]):
        wide = np.array(others, np.int64)
        for values in (np.array(ids, dtype), wide, wide[::-1].copy(), wide & 0xFFFFFFFF):
            places = _core.places_of(values, wide)
            assert places.dtype == np.int32
            np.testing.assert_array_equal(places, twins.places_of(values, wide))
    narrow = np.array(known, np.int32)
    found = _core.places_of(np.array(ids, dtype), narrow)
    np.testing.assert_array_equal(found, twins.places_of(np.array(ids), narrow))
    with pytest.raises(TypeError, match="known must be int32 or int64"):
        _core.places_of(narrow, narrow.astype(np.uint8))


def test_what_does_not_belong_together_is_refused() -> None:
    bits, ranks = _core.index_nodes(np.array([3, 5]), 64)
    ids, none = np.array([3, 4]), np.empty(0, np.int32)
    with pytest.raises(ValueError, match="of 2 ids 1 are not pinned, but 2 have been planned"):
        _core.add_pinned(bits, ranks, ids, np.zeros(2, np.int32), none, first_slot=1)
    one = np.zeros(1, np.int32)
    with pytest.raises(IndexError, match="outside"):
        _core.add_pinned(bits, ranks, ids, one, np.array([1], np.int32), first_slot=1)
    with pytest.raises(IndexError, match="row id 64 at position 0"):
        _core.drop_pinned(bits, np.array([64]))
    with pytest.raises(IndexError, match="row id -1 at position 0"):
        _core.add_pinned(bits, ranks, np.array([-1]), none, none, first_slot=1)
    with pytest.raises(ValueError, match="first_slot must be from 0"):
        _core.add_pinned(bits, ranks, ids, none, none, first_slot=-1)
    with pytest.raises(ValueError, match="the same length"):
        _core.add_pinned(bits, ranks[:0], ids, none, none, first_slot=1)
