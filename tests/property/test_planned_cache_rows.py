"""Rows that come by a plan are the table's rows, whatever the plan, the cache and the threads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.budget.ledger import SLOTS
from gnnstore.caching.belady import POLICIES
from gnnstore.caching.plan import Trace
from gnnstore.disk.engines import open_engine
from gnnstore.features.file_rows import FileRows
from gnnstore.features.memory_rows import MemoryRows
from gnnstore.features.planned import PlanStep, SlotCache, TurnLock
from gnnstore.features.source import Decoding, Decodings, Rows, RowSource, of_one_type
from tests.support.effort import examples
from tests.support.twins import kernels as twin
from tests.support.twins.reads import write_array

NUM_ROWS = 400
# Bytes of a row of each table: whole lines, others, and the smallest.
WIDTHS = {"wide": 512, "odd": 33, "narrow": 1}


@dataclass
class Tables:
    rows: dict[str, NDArray[np.uint8]]
    opened: dict[str, RowSource]


@pytest.fixture(scope="module")
def tables() -> Iterator[Tables]:
    rng = np.random.default_rng(0)
    rows = {
        path: rng.integers(0, 256, (NUM_ROWS, width), dtype=np.uint8)
        for path, width in WIDTHS.items()
    }
    with tempfile.TemporaryDirectory() as directory:
        opened: dict[str, RowSource] = {}
        for path, values in rows.items():
            array = write_array(Path(directory) / path, values)
            opened[path] = FileRows.open(array, open_engine(array.file_paths[0]))
        yield Tables(rows, opened)


class InMemory(MemoryRows):
    """Missed rows taken from memory: a source of another kind."""

    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        return super().read_rows(ids, out) + ReadCounts(rows_read=len(np.unique(ids)))


def random_trace(rng: np.random.Generator, num_batches: int, dtype: type) -> Trace:
    """Skewed batches of different sizes, some with repeated rows, some empty."""
    sizes = rng.integers(0, 90, num_batches)
    return Trace.of([(NUM_ROWS * rng.random(size) ** 3).astype(dtype) for size in sizes])


def gather_all(
    cache: SlotCache,
    turns: TurnLock,
    steps: list[PlanStep],
    num_threads: int,
    missed: Mapping[str, RowSource] | None,
    *,
    decodings: Decodings,
) -> list[dict[str, Rows]]:
    """Gather the next batches by turns, in order or in several threads."""
    first = turns.num_done

    def gather(i: int) -> dict[str, Rows]:
        return cache.gather(turns, first + i, steps[i], missed, decodings=decodings)

    if num_threads == 1:
        return [gather(i) for i in range(len(steps))]
    with ThreadPoolExecutor(num_threads) as executor:
        return list(executor.map(gather, range(len(steps))))


@pytest.mark.parametrize("policy", POLICIES.names)
@pytest.mark.parametrize("has_source", [False, True])
@given(
    seed=st.integers(0, 2**32),
    # None, one row, below a batch, about one, most rows, more than there are.
    num_slots=st.sampled_from([0, 1, 2, 30, 90, 300, 1000]),
    num_threads=st.sampled_from([1, 2, 4]),
    dtype=st.sampled_from([np.int32, np.int64]),
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    takeovers=st.lists(st.booleans(), min_size=3, max_size=3),
    decoded=st.sets(st.sampled_from(["wide", "odd"])),
)
@settings(max_examples=examples(40), deadline=None)
def test_rows_are_the_tables_rows(
    tables: Tables,
    policy: str,
    has_source: bool,
    *,
    seed: int,
    num_slots: int,
    num_threads: int,
    dtype: type,
    sizes: list[int],
    takeovers: list[bool],
    decoded: set[str],
) -> None:
    """Superbatch after superbatch; in one iteration, or anew from what the one before has left."""
    rng = np.random.default_rng(seed)
    cache = SlotCache(of_one_type(tables.opened), num_slots)
    assert cache.num_bytes == SlotCache.reserve(sum(WIDTHS.values())).bytes_of({SLOTS: num_slots})
    planner = POLICIES[policy].planner(num_slots)
    decodings = {path: scaled(WIDTHS[path], rng) for path in decoded}
    shown: dict[str, NDArray[Any]] = dict(tables.rows)
    for path, decoding in decodings.items():
        whole = twin.decode_rows(shown[path].view(np.int8), decoding.scales, "float16")
        shown[path] = whole.view(np.float16).reshape(shown[path].shape)
    turns, num_gathered = cache.begin(), 0
    for size, is_taken_over in zip(sizes, takeovers, strict=False):
        if is_taken_over:
            turns, num_gathered = cache.begin(), 0
            planner.restart(cache.planned_nodes)
        trace = random_trace(rng, size, dtype)
        plan = planner.plan(trace)
        missed = {p: InMemory(rows) for p, rows in tables.rows.items()}
        steps = [
            PlanStep(trace.batch(i), plan.batch_slots(i), *plan.batch_changes(i))
            for i in range(size)
        ]
        sources = missed if has_source else None
        gathered = gather_all(cache, turns, steps, num_threads, sources, decodings=decodings)
        num_gathered += size
        for i, of_batch in enumerate(gathered):
            ids, slots = trace.batch(i), plan.batch_slots(i)
            for path, (rows, counts) in of_batch.items():
                assert rows.shape == (len(ids), WIDTHS[path])
                assert (rows == shown[path][ids]).all()
                assert counts.rows_read == plan.misses[i]
                assert counts.rows_cached == (slots >= 0).sum()
        assert turns.num_done == num_gathered
        held = planner.nodes
        assert (cache.planned_nodes[held >= 0] == held[held >= 0]).all()
    # What the slots hold is what the cache says.
    slots = np.arange(num_slots, dtype=np.int32)
    last, nodes = PlanStep(cache.planned_nodes, slots, slots[:0], slots[:0]), cache.planned_nodes
    if (nodes >= 0).all():
        for path, (rows, _) in cache.gather(turns, num_gathered, last).items():
            assert (rows == tables.rows[path][nodes]).all()


def scaled(width: int, rng: np.random.Generator) -> Decoding:
    return Decoding(rng.uniform(0.01, 1, width).astype(np.float32), "float16")


def test_cached_rows_may_enter_other_slots(tables: Tables) -> None:
    """Also each other's; slots keep rows as they are stored."""
    table, width = tables.rows["wide"], WIDTHS["wide"]
    cache = SlotCache(of_one_type({"wide": tables.opened["wide"]}), 3)
    turns = cache.begin()
    decodings = {"wide": scaled(width, np.random.default_rng(0))}

    def gather(number: int, ids: list[int], *plan: list[int], decodings: Decodings) -> Rows:
        slots, positions, entered = (np.array(each, np.int32) for each in plan)
        step = PlanStep(np.array(ids), slots, positions, entered)
        return cache.gather(turns, number, step, decodings=decodings)["wide"]

    gather(0, [7, 8], [-1, -1], [0, 1], [0, 1], decodings=decodings)
    gather(1, [8, 9, 7], [1, -1, 0], [0, 1, 2], [0, 2, 1], decodings=decodings)
    rows, counts = gather(2, [8, 7, 9], [0, 1, 2], [], [], decodings={})
    assert counts.rows_cached == 3
    assert (rows == table[[8, 7, 9]]).all()


# --- the kernels ---------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32),
    row_bytes=st.sampled_from([1, 4, 33, 64, 256, 320, 512, 4097, 12288]),
    num_slots=st.integers(1, 500),
    num_ids=st.integers(0, 700),
    num_threads=st.sampled_from([1, 2, 3]),
    place=st.sampled_from([(0, 0), (4, 0), (3, 5), (64, 64)]),
)
@settings(max_examples=examples(40), deadline=None)
def test_copies_equal_numpy(
    seed: int,
    row_bytes: int,
    num_slots: int,
    num_ids: int,
    num_threads: int,
    *,
    place: tuple[int, int],
) -> None:
    """Rows of whole lines go around the processor's caches where there are 4 MiB of them."""
    rng = np.random.default_rng(seed)
    # More rows than are copied make the outputs large enough.
    num_slots += (5 << 20) // row_bytes if row_bytes >= 256 and seed % 2 else 0
    slot_bytes, own = row_bytes + sum(place), slice(place[0], place[0] + row_bytes)
    whole = rng.integers(0, 256, (num_slots, slot_bytes), dtype=np.uint8)
    table = whole[:, own]
    slots = rng.integers(-1, num_slots, num_ids).astype(np.int32)
    out = np.full((num_ids, row_bytes), 7, np.uint8)
    expected = np.where((slots < 0)[:, None], np.uint8(7), table[slots])
    copied = _core.copy_from_slots(table, slots, out.reshape(-1), num_threads=num_threads)
    assert copied == (slots >= 0).sum()
    assert (out == expected).all()

    # What lies in slots and what does not, decoded in the order of the ids.
    scales = rng.uniform(0.01, 1, row_bytes).astype(np.float32)
    others = rng.integers(0, 256, ((slots < 0).sum(), row_bytes), dtype=np.uint8)
    joined = table[slots]
    joined[slots < 0] = others
    numbers = _core.pool_empty(4 * joined.size)
    copied = _core.decode_from_slots(
        table, slots, others.reshape(-1), scales, numbers, dtype="float32", num_threads=num_threads
    )
    assert copied == (slots >= 0).sum()
    assert (numbers == twin.decode_rows(joined.view(np.int8), scales, "float32")).all()
    with pytest.raises(ValueError, match=r"bytes have no slot, and there are"):
        _core.decode_from_slots(
            table, slots, np.append(others, table[0]), scales, numbers, dtype="float32"
        )  # fmt: skip

    num_changes = min(num_ids, num_slots)
    positions = rng.integers(0, max(1, num_ids), num_changes).astype(np.int32)
    targets = rng.permutation(num_slots)[:num_changes].astype(np.int32)
    changed = _core.pool_empty(whole.nbytes).reshape(whole.shape)
    changed[:] = whole
    _core.copy_to_slots(out.reshape(-1), positions, changed[:, own], targets)
    table[targets] = out[positions]
    assert (changed == whole).all()
