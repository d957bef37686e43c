"""Numbering scattered ids: the bitmap's kernels, and a limit on memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.converters.edges.numbering import IdCollector
from gnnstore.errors import BudgetError
from tests.support.effort import examples


@settings(max_examples=examples(200), deadline=None)
@given(
    ids=st.lists(st.integers(0, 64 * 40 - 1), max_size=200),
    rank_bytes=st.sampled_from([4, 8]),
)
def test_the_bitmap_equals_numpy(ids: list[int], rank_bytes: int) -> None:
    given_ids = np.array(ids, np.int64)
    words = np.zeros(40, np.uint64)
    _core.bitmap_mark(words, given_ids)
    expected = np.unique(given_ids)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    np.testing.assert_array_equal(np.flatnonzero(bits), expected)
    ranks, num_ids = _core.bitmap_count(words)
    assert num_ids == len(expected)
    assert len(ranks) == 5
    found = _core.bitmap_rank(words, ranks, given_ids, rank_bytes)
    assert found.dtype.itemsize == rank_bytes
    np.testing.assert_array_equal(found, np.searchsorted(expected, given_ids))


@pytest.mark.parametrize("memory_bytes", [None, 3000, 10**6])
def test_a_limit_on_memory_changes_how_not_what(memory_bytes: int | None) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, 60)
    collector = IdCollector(memory_bytes=memory_bytes)
    for part in np.array_split(ids, 7):
        collector.add(part)
    found = collector.build()
    expected = np.unique(ids)
    np.testing.assert_array_equal(found.original_ids(), expected)
    np.testing.assert_array_equal(expected[found.to_nodes(ids.reshape(2, 30))].reshape(-1), ids)
    # A bit for each possible id, or eight bytes for each that there is.
    limit = 60 * 8 if memory_bytes == 3000 else 50_000 * (1 / 8 + 1 / 64) + 16
    assert found.num_bytes <= limit


def test_too_many_scattered_ids_are_refused_with_a_number() -> None:
    collector = IdCollector(memory_bytes=10_000)
    collector.add(np.arange(0, 10**7, 10**5))
    message = (
        r"(?s)^numbering nodes by ids .* 4400 bytes too few.* needs 14400 bytes.* has 10000 bytes"
        r".* 7\.2 kB of 300 distinct ids \+ 7\.2 kB of edges .*, or number the nodes from 0"
    )
    with pytest.raises(BudgetError, match=message):
        collector.add(np.arange(1, 2 * 10**7, 10**5))
