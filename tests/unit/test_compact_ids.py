"""Numbering scattered ids: the bitmap's kernels, and a limit on memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.converters import ConvertOptions, from_snap
from gnnstore.converters.edges import id_remap as compact_ids
from gnnstore.converters.edges.id_remap import IdCollector
from gnnstore.errors import BudgetError
from gnnstore.testing.graphs import read_store
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


@pytest.mark.parametrize(
    ("ids", "message"),
    [([3, 128], "the id 128 is out of range"), ([-1], "the id -1 is out"), ([5], "5 is not in")],
)
def test_ids_that_are_not_in_the_bitmap(ids: list[int], message: str) -> None:
    words = np.zeros(2, np.uint64)
    _core.bitmap_mark(words, np.array([3]))
    ranks, _ = _core.bitmap_count(words)
    with pytest.raises(IndexError, match=message):
        _core.bitmap_rank(words, ranks, np.array(ids))
    if ids != [5]:
        with pytest.raises(IndexError, match=message):
            _core.bitmap_mark(words, np.array(ids))
    with pytest.raises(ValueError, match="ranks must have one entry for each 8 words"):
        _core.bitmap_rank(np.zeros(9, np.uint64), ranks, np.array([3]))


@pytest.mark.parametrize("memory_bytes", [None, 3000, 10**6])
def test_a_limit_on_memory_changes_how_not_what(memory_bytes: int | None) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, 60)
    collector = IdCollector(memory_bytes=memory_bytes)
    for part in np.array_split(ids, 7):
        collector.add(part)
    found = collector.finish()
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


def test_the_bitmap_is_taken_from_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = []

    class Watched(compact_ids.IdCollector):
        def finish(self) -> Any:
            ids = super().finish()
            reserved.append(ids.num_bytes)
            return ids

    monkeypatch.setattr("gnnstore.converters.datasets.numbering.IdCollector", Watched)
    text = tmp_path / "edges.txt"
    text.write_text("7 99999999\n99999999 12\n")
    options = ConvertOptions(memory_bytes=2 * 10**8)
    stored = read_store(from_snap(text, tmp_path / "g.gnn", options=options))
    assert stored.original_ids is not None
    assert stored.original_ids.tolist() == [7, 12, 99999999]
    assert reserved == [pytest.approx(10**8 * (1 / 8 + 1 / 64), rel=1e-3)]
