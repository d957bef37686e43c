"""Tests that plug-ins inherit: of row sources, of cache policies and of strategies.

A subclass makes what is to be tested. If its name begins with `Test`, pytest runs it; the tests
need no fixtures, so that any other runner can call the methods whose names begin with `test_`.
"""

from __future__ import annotations

import gc
import pickle
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts
from gnnstore.budget.ledger import PLANNED, SLOTS
from gnnstore.caching.plan import CachePlan, Trace
from gnnstore.errors import BudgetError
from gnnstore.features.source import RowRequest
from gnnstore.testing.graphs import random_graph
from gnnstore.testing.resuming import assert_resumes, assert_same_batches

if TYPE_CHECKING:
    from gnnstore.caching.policies import CachePolicy, Planner
    from gnnstore.features.source import RowSource

_NUM_THREADS = 4
# Seconds in which threads of a loader that is gone must have ended.
_MOST_WAIT = 20.0


class RowSourceTests(ABC):
    """Tests of a row source, or of a tier: each row is found by its id, in every way of reading.

    Examples
    --------
    >>> import numpy as np
    >>> from gnnstore.testing import RowSourceTests
    >>> class TestArrayRows(RowSourceTests):
    ...     def make(self):
    ...         rows = np.random.default_rng(0).random((100, 8))
    ...         return ArrayRows(rows), rows
    """

    @abstractmethod
    def make(self) -> tuple[RowSource, npt.NDArray[Any]]:
        """Return a new source, and the rows [N, ...] that it has; two at least, all different."""

    def test_spec(self) -> None:
        """The number, shape and type of rows are as stated, and so is their memory."""
        source, rows = self.make()
        spec = source.spec
        _check_equal("num_rows", (spec.num_rows, source.num_rows), (len(rows), len(rows)))
        _check_equal("shape", spec.shape, rows.shape[1:])
        _check_equal("dtype", spec.dtype, rows.dtype)
        _check_equal("row_bytes", source.row_bytes, rows[0].nbytes)
        _check(source.resident_bytes >= 0, f"resident_bytes is {source.resident_bytes}")

    def test_rows_of_any_ids(self) -> None:
        """Ids come in any order, repeated or not, as int32 or int64."""
        source, rows = self.make()
        for ids in _ids(len(rows)):
            for dtype in (np.int32, np.int64):
                found, counts = source.gather(ids.astype(dtype))
                _check_rows(f"the rows of ids {ids.tolist()}", found, rows[ids])
                _check(isinstance(counts, ReadCounts), f"read_rows returned {counts!r}")

    def test_buffers_of_any_type(self) -> None:
        """A buffer has `row_bytes` a row, of any element type."""
        source, rows = self.make()
        for ids in _ids(len(rows)):
            out = np.zeros((len(ids), source.row_bytes), np.uint8)
            source.read_rows(ids, out)
            _check(out.tobytes() == rows[ids].tobytes(), "bytes of rows differ in a buffer of them")

    def test_ids_out_of_range(self) -> None:
        """An id that has no row is an IndexError, and other ids can still be read."""
        source, rows = self.make()
        for bad in (-1, len(rows)):
            ids = np.array([0, bad, 1])
            try:
                source.read_rows(ids, source.spec.empty(len(ids)))
            except IndexError:
                pass
            else:
                raise AssertionError(f"id {bad} of {len(rows)} rows raised no IndexError")
        _check_rows("rows after an error", source.gather(np.arange(2)).values, rows[:2])

    def test_ranges(self) -> None:
        """Rows that follow one another are read at once."""
        source, rows = self.make()
        num_rows = len(rows)
        for first, last in ((0, num_rows), (num_rows // 2, num_rows), (1, 1), (1, 2)):
            out = source.spec.empty(last - first)
            source.read_range(first, out)
            _check_rows(f"rows {first} to {last}", source.spec.view(out), rows[first:last])

    def test_cached_rows(self) -> None:
        """Rows with a slot come from the slots of a tier above, and others from the source."""
        source, rows = self.make()
        held = np.ascontiguousarray(rows[::-1][:2])
        cache = held.reshape(-1).view(np.uint8).reshape(2, -1)
        for ids in _ids(len(rows)):
            slots = np.resize(np.array([-1, 1, -1, 0], np.int32), len(ids))
            out = source.spec.empty(len(ids))
            counts = source.read_into(RowRequest(ids, slots, cache), out)
            expected = rows[ids]
            expected[slots >= 0] = held[slots[slots >= 0]]
            _check_rows("rows of the source and of slots", source.spec.view(out), expected)
            is_counted = counts.rows_cached >= int((slots >= 0).sum())
            _check(is_counted, f"{counts.rows_cached} rows_cached do not count the rows of slots")

    def test_rows_are_copies(self) -> None:
        """Rows that were read belong to the caller, who may change them."""
        source, rows = self.make()
        ids = np.arange(2)
        source.gather(ids).values.reshape(-1).view(np.uint8)[:] = 0xFF
        _check_rows("rows after others were changed", source.gather(ids).values, rows[:2])

    def test_many_threads(self) -> None:
        """Threads read at the same time."""
        source, rows = self.make()
        asked = [ids for ids in _ids(len(rows)) for _ in range(_NUM_THREADS)]
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            for ids, (found, _) in zip(asked, pool.map(source.gather, asked), strict=True):
                _check_rows("rows that threads read at the same time", found, rows[ids])

    def test_rows_in_files(self) -> None:
        """If the table lies in files, these have the same rows."""
        source, rows = self.make()
        files = source.file_rows
        if files is not None:
            _check_equal("the spec of file_rows", files.spec, source.spec)
            ids = np.arange(len(rows))
            _check_rows("the rows of file_rows", files.gather(ids).values, rows)


def _ids(num_rows: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield none, one, all and many ids; not in order, and with repeated ones."""
    rng = np.random.default_rng(0)
    yield np.empty(0, np.int64)
    yield np.array([num_rows - 1])
    yield rng.permutation(num_rows)
    yield rng.integers(num_rows, size=3 * num_rows)


class CachePolicyTests(ABC):
    """Tests of a cache policy: its plans name slots with the right rows, from any cache.

    Examples
    --------
    >>> from gnnstore.testing import CachePolicyTests
    >>> class TestModulo(CachePolicyTests):
    ...     def make(self):
    ...         return Modulo()
    """

    num_rows: int = 300  # rows of which batches need some
    all_slots: tuple[int, ...] = (0, 1, 40, 120, 500)

    @abstractmethod
    def make(self) -> CachePolicy:
        """Return the policy."""

    def test_plans_can_be_followed(self) -> None:
        """One superbatch after the other: a row is read from a slot that has it, or is missed."""
        for num_slots in self.all_slots:
            planner = self.make().planner(num_slots)
            _check_equal("num_slots", planner.num_slots, num_slots)
            cache = np.full(num_slots, -1)
            for trace in self._traces():
                _follow(planner.plan(trace), trace, cache)
                self._check_nodes(planner, cache)

    def test_a_cache_that_holds_rows(self) -> None:
        """After `restart` the slots hold the rows that it was given: some twice, some empty."""
        for num_slots in self.all_slots:
            planner = self.make().planner(num_slots)
            traces = self._traces()
            planner.plan(next(traces))
            cache = np.random.default_rng(0).integers(-1, self.num_rows, num_slots)
            planner.restart(cache.copy())
            for trace in traces:
                _follow(planner.plan(trace), trace, cache)
                self._check_nodes(planner, cache)

    def test_plans_are_repeated(self) -> None:
        """The same traces have the same plans, so that a run can be repeated."""
        for num_slots in self.all_slots:
            first, second = (self.make().planner(num_slots) for _ in range(2))
            for trace in self._traces():
                plans = first.plan(trace), second.plan(trace)
                for i in range(trace.num_batches):
                    for found, expected in zip(*(_step(plan, i) for plan in plans), strict=True):
                        _check_rows(f"the plan of batch {i}, made again", found, expected)

    def test_rows_to_begin_with(self) -> None:
        """The rows that fill an empty cache are different ones of the table, and have slots."""
        for num_slots in self.all_slots:
            trace = next(self._traces())
            nodes = self.make().initial_nodes(trace, self.num_rows, num_slots)
            is_set = len(np.unique(nodes)) == len(nodes) <= num_slots
            _check(is_set, f"initial_nodes for {num_slots} slots are {nodes.tolist()}")
            in_range = (nodes >= 0) & (nodes < self.num_rows)
            _check(bool(in_range.all()), f"initial_nodes are not all rows: {nodes.tolist()}")

    def test_planning_memory(self) -> None:
        """Planning reserves memory, which does not shrink as batches grow."""
        sizes = {PLANNED: 8, SLOTS: 100}
        small, large = (
            sum(part.bytes_of(sizes) for part in self.make().reserve(batch_rows))
            for batch_rows in (10, 10_000)
        )
        _check(0 <= small <= large, f"planning reserves {small} bytes, then {large} bytes")

    def _check_nodes(self, planner: Planner, cache: npt.NDArray[np.int64]) -> None:
        """Check that a planner's slots have the rows that followed its plans."""
        nodes = planner.nodes
        _check_equal("the number of nodes", len(nodes), len(cache))
        is_held = nodes >= 0
        _check_rows("nodes, the row in each slot,", nodes[is_held], cache[is_held])

    def _traces(self) -> Iterator[Trace]:
        """Yield superbatches, some rows of which are needed often; some batches need none."""
        rng = np.random.default_rng(1)
        for sizes in ((50, 0, 60, 30), (), (40,), (0,), (50, 50, 50, 50, 50, 50)):
            drawn = ((self.num_rows * rng.random(size) ** 3).astype(np.int64) for size in sizes)
            yield Trace.of(list(drawn))


def _step(plan: CachePlan, i: int) -> tuple[npt.NDArray[Any], ...]:
    """Return the slots of a batch's rows, and the places of rows that enter slots after it."""
    return plan.batch_slots(i), *plan.batch_changes(i)


def _follow(plan: CachePlan, trace: Trace, cache: npt.NDArray[np.int64]) -> None:
    """Read each batch by a plan, and change the cache, which holds ids in the place of rows."""
    _check_equal("the batches of a plan", plan.num_batches, trace.num_batches)
    for i in range(trace.num_batches):
        ids = trace.batch(i)
        slots, positions, entered = _step(plan, i)
        _check_equal(f"batch {i}: the number of slots", len(slots), len(ids))
        is_hit = slots >= 0
        _check(bool((slots < len(cache)).all()), f"batch {i}: slots are not below {len(cache)}")
        _check_rows(f"batch {i}: rows of slots", cache[slots[is_hit]], ids[is_hit])
        _check_equal(f"batch {i}: misses", int(plan.misses[i]), len(np.unique(ids[~is_hit])))
        are_places = (positions >= 0) & (positions < len(ids))
        _check(bool(are_places.all()), f"batch {i}: rows enter slots that are not of the batch")
        are_slots = (entered >= 0) & (entered < len(cache))
        _check(bool(are_slots.all()), f"batch {i}: rows enter slots that are not there")
        is_set = len(np.unique(entered)) == len(entered)
        _check(is_set, f"batch {i}: two rows enter one slot")
        cache[entered] = ids[positions]


class StrategyTests:
    """Tests of a strategy: batches equal a loader's in memory, in every kind of run.

    Attributes
    ----------
    strategy : str
        The registered name.
    options : Mapping
        Options of the loader that the strategy needs.

    Examples
    --------
    >>> from gnnstore.testing import StrategyTests
    >>> class TestModuloStrategy(StrategyTests):
    ...     strategy = "modulo"
    ...     options = {"cache_bytes": "20kB", "superbatch": 4}
    """

    strategy: str
    options: Mapping[str, Any] = MappingProxyType({})
    _directory: ClassVar[tempfile.TemporaryDirectory[str]]
    _path: ClassVar[Path]

    @classmethod
    def setup_class(cls) -> None:
        """Write the graph that loaders read."""
        cls._directory = tempfile.TemporaryDirectory()
        graph = random_graph(400, 3000, feature_dim=100, num_classes=4, edge_feature_dim=3, skew=2)
        cls._path = graph.write(Path(cls._directory.name) / "graph.gnn")

    @classmethod
    def teardown_class(cls) -> None:
        """Remove the graph."""
        cls._directory.cleanup()

    def make_loader(self, data: Any = None, **more: Any) -> Any:
        """Return a loader by the strategy, over a new store by default, with more options."""
        from gnnstore.loaders.node import NeighborLoader  # noqa: PLC0415 - imports torch

        options = {
            "batch_size": 60,
            "shuffle": True,
            "seed": 1,
            "strategy": self.strategy,
            **self.options,
            **more,
        }
        return NeighborLoader(self._path if data is None else data, [4, 4], "train", **options)

    def _in_memory(self, **more: Any) -> Any:
        from gnnstore.loaders.node import NeighborLoader  # noqa: PLC0415

        options = {"batch_size": 60, "shuffle": True, "seed": 1, "strategy": "memory", **more}
        return NeighborLoader(self._path, [4, 4], "train", **options)

    def test_batches(self) -> None:
        """Three epochs have the batches of a loader in memory, with threads and without."""
        expected = [_epoch(loader) for loader in [self._in_memory()] for _ in range(3)]
        for num_threads in (0, 2):
            loader = self.make_loader(num_threads=num_threads)
            for epoch in range(3):
                where = f"epoch {epoch} with num_threads={num_threads}"
                assert_same_batches(_epoch(loader), expected[epoch], where)

    def test_resumes(self) -> None:
        """A loader that is stopped goes on with the next batch; so does one in memory, and back."""
        assert_resumes(self.make_loader, num_epochs=1)
        loaders = (make() for make in cycle((self.make_loader, self._in_memory)))
        assert_resumes(lambda: next(loaders), num_epochs=1)

    def test_two_loaders_of_a_store(self) -> None:
        """A loader that runs in the middle of another's epoch changes the batches of neither."""
        from gnnstore.graph.store import open as open_store  # noqa: PLC0415

        expected, others = _epoch(self._in_memory()), _epoch(self._in_memory(seed=2))
        store = open_store(self._path)
        first, second = self.make_loader(store), self.make_loader(store, seed=2)
        found = []
        for number, batch in enumerate(first):
            found.append(batch.to_dict())
            if number == 1:
                assert_same_batches(_epoch(second), others, "a loader within another one's epoch")
        assert_same_batches(found, expected, "a loader, within whose epoch another one ran")

    def test_pickled(self) -> None:
        """A loader goes to another process by pickling, and gives the same batches there."""
        loader = pickle.loads(pickle.dumps(self.make_loader()))  # noqa: S301 - our own
        assert_same_batches(_epoch(loader), _epoch(self._in_memory()), "pickled")

    def test_an_epoch_that_is_left(self) -> None:
        """The next epoch is whole, and once the loader is gone, no thread of it is left."""
        before = set(threading.enumerate())
        expected = [_epoch(loader) for loader in [self._in_memory()] for _ in range(2)]
        loader = self.make_loader()
        batches = iter(loader)
        next(batches)
        del batches
        found = _epoch(loader)
        is_any = any(_is_same(found, epoch) for epoch in expected)
        _check(is_any, "the epoch after one that was left has other batches")
        del loader
        gc.collect()
        end = time.monotonic() + _MOST_WAIT
        while more := [t.name for t in threading.enumerate() if t not in before]:
            _check(time.monotonic() < end, f"threads are left: {', '.join(more)}")
            time.sleep(0.01)

    def test_too_small_a_budget(self) -> None:
        """A budget without room for batches is refused when the loader is made."""
        try:
            self.make_loader(memory="1kB")
        except BudgetError:
            return
        raise AssertionError("memory='1kB' raised no BudgetError")


def _epoch(loader: Any) -> list[dict[str, Any]]:
    return [batch.to_dict() for batch in loader]


def _is_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    try:
        assert_same_batches(found, expected)
    except AssertionError:
        return False
    return True


def _check(is_right: bool, problem: str) -> None:
    if not is_right:
        raise AssertionError(problem)


def _check_equal(what: str, found: Any, expected: Any) -> None:
    _check(found == expected, f"{what}: found {found!r}, expected {expected!r}")


def _check_rows(what: str, found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """Check shapes and types, and values with NaN equal to NaN."""
    _check_equal(f"{what}: shape", found.shape, expected.shape)
    is_number = expected.dtype.kind in "fc"
    is_same = np.array_equal(found, expected, equal_nan=is_number)
    _check(bool(is_same), f"{what} differ: found {found!r}, expected {expected!r}")
