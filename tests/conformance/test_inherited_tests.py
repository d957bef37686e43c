"""The tests that plug-ins inherit: what is ours passes them, and each defect fails one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore._core import empty
from gnnstore.caching.belady import POLICIES
from gnnstore.caching.plan import CachePlan, PlannedStep, Trace
from gnnstore.caching.policies import CachePolicy, Fixed
from gnnstore.disk.engines import open_engine
from gnnstore.features.memory_rows import CompactRows, MemoryRows
from gnnstore.features.shared_rows import SharedRows
from gnnstore.features.source import Rows as Gathered
from gnnstore.features.source import of_one_type
from gnnstore.features.static import StaticCache
from gnnstore.features.tables import open_rows
from gnnstore.formats import PagedArray, StoreReader
from gnnstore.plugins import ReadCounts, RowRequest, RowSource, RowSpec, Tier
from gnnstore.testing import CachePolicyTests, RowSourceTests, StrategyTests
from gnnstore.testing.graphs import write_store

NUM_ROWS = 200
ROWS = np.random.default_rng(0).random((NUM_ROWS, 30), dtype=np.float32)


@pytest.fixture(scope="module")
def stores() -> dict[type, Path]:
    return {}


class StoredRows(RowSourceTests):
    """Of an array in the files of a store."""

    rows: NDArray[Any] = ROWS

    @pytest.fixture(autouse=True)
    def _store(self, stores: dict[type, Path], tmp_path_factory: pytest.TempPathFactory) -> None:
        """Write one store for the tests of a class."""
        if type(self) not in stores:
            path = tmp_path_factory.mktemp("rows") / "s.gnn"
            stores[type(self)] = write_store(path, np.zeros((2, 1), np.int64), x=self.rows)
        self.path = stores[type(self)]

    def array(self) -> PagedArray:
        reader = StoreReader.open(self.path)
        return reader.paged(reader.schema.node.attributes["x"])

    def direct(self) -> RowSource:
        array = self.array()
        return open_rows(array, open_engine(array.file_paths[0]))


class TestMemoryRows(StoredRows):
    def make(self) -> tuple[RowSource, NDArray[Any]]:
        return MemoryRows.load(self.array(), 2), self.rows


class TestCompactRows(StoredRows):
    rows = np.arange(3 * NUM_ROWS).reshape(NUM_ROWS, 3)

    def make(self) -> tuple[RowSource, NDArray[Any]]:
        return CompactRows.load(self.array()), self.rows


class TestMappedRows(StoredRows):
    def make(self) -> tuple[RowSource, NDArray[Any]]:
        return open_rows(self.array(), "mmap"), self.rows


class TestFileRows(StoredRows):
    def make(self) -> tuple[RowSource, NDArray[Any]]:
        return self.direct(), self.rows


class TestSharedRows(RowSourceTests):
    def make(self) -> tuple[RowSource, NDArray[Any]]:
        places = np.random.default_rng(1).permutation(NUM_ROWS)[:90]
        table, rows = (MemoryRows.from_array(own) for own in (ROWS, places))
        return SharedRows(table, rows), ROWS[places]


class TestRowsOfOneNumber(RowSourceTests):
    def make(self) -> tuple[RowSource, NDArray[Any]]:
        return MemoryRows.from_array(ROWS[:, 0].copy()), ROWS[:, 0]


class TestTransposedRows(RowSourceTests):
    def make(self) -> tuple[RowSource, NDArray[Any]]:
        rows = np.random.default_rng(0).integers(0, 2**60, (50, 4, 3))
        return MemoryRows.from_array(np.asfortranarray(rows)), rows


class TestStaticCache(StoredRows):
    def make(self) -> tuple[RowSource, NDArray[Any]]:
        cache = StaticCache(of_one_type({"x": self.direct()}), NUM_ROWS)
        nodes = np.arange(0, NUM_ROWS, 3)
        cache.warm_up(nodes, np.ones(len(nodes), np.uint8))
        return cache.rows("x"), self.rows


class PolicyTests(CachePolicyTests):
    name: str

    def make(self) -> CachePolicy:
        return POLICIES[self.name]


for policy in POLICIES:
    kind = f"Test{policy.name.capitalize()}"
    globals()[kind] = type(kind, (PolicyTests,), {"name": policy.name, "__module__": __name__})


class TestFixed(CachePolicyTests):
    def make(self) -> CachePolicy:
        return Fixed(lambda num_slots: np.arange(self.num_rows)[:num_slots], self.num_rows)

    def test_planning_memory(self) -> None:
        """Memory is reserved by the policy in whose place it stands."""


class TestDirect(StrategyTests):
    """Which resumes in `test_resume`, too, as all do."""

    strategy = "direct"

    @pytest.mark.long("as it is in other files")
    def test_resumes(self) -> None:
        """Go on with the next batch."""
        super().test_resumes()


class TestStatic(TestDirect):
    strategy = "static"
    options: Mapping[str, Any] = MappingProxyType({"cache_bytes": "20kB"})


class TestBeladyLoader(TestDirect):
    strategy = "belady"
    options: Mapping[str, Any] = MappingProxyType({"cache_bytes": "20kB", "superbatch": 4})


class TestPacked(TestBeladyLoader):
    strategy = "packed"


# --- defects ------------------------------------------------------------------------------------


class Rows(RowSource):
    """Rows of an array, with nothing wrong."""

    def __init__(self) -> None:
        self.array = ROWS.copy()

    @property
    def spec(self) -> RowSpec:
        return RowSpec(NUM_ROWS, (30,), np.dtype(np.float32))

    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        if len(ids) and ids.min() < 0:
            raise IndexError(ids.min())
        self.spec.view(out)[:] = self.array[ids]
        return ReadCounts(rows_read=len(ids))


class WrongNumber(Rows):
    @property
    def spec(self) -> RowSpec:
        return RowSpec(NUM_ROWS + 1, (30,), np.dtype(np.float32))


class InOrderOnly(Rows):
    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        return super().read_rows(np.sort(ids), out)


class OfItsOwnType(Rows):
    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        super().read_rows(ids, rows := self.spec.empty(len(ids)))
        out[:] = rows[:, :1] if out.shape[1:] != (30,) else rows
        return ReadCounts()


class NegativeIds(Rows):
    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        self.spec.view(out)[:] = self.array[ids]
        return ReadCounts()


class RangesFromTheBegin(Rows):
    def read_range(self, first: int, out: NDArray[Any]) -> ReadCounts:
        return super().read_range(0 * first, out)


class NoSlots(Rows):
    def read_into(self, request: RowRequest, out: NDArray[Any]) -> ReadCounts:
        return self.read_rows(request.ids, out)


class Views(Rows):
    def gather(self, ids: NDArray[Any], memory: Any = empty) -> Any:
        if ids.tolist() == [0, 1]:
            return Gathered(self.array[:2], ReadCounts())
        return super().gather(ids, memory)


class SharedBuffer(Rows):
    """Which two threads fill at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.held = np.empty((3 * NUM_ROWS, 30), np.float32)

    def gather(self, ids: NDArray[Any], memory: Any = empty) -> Any:  # noqa: ARG002
        self.held[: len(ids)] = self.array[ids]
        return self.held[: len(ids)], ReadCounts()


class OtherFiles(Tier):
    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        return self.below.read_rows(ids, out)

    @property
    def file_rows(self) -> RowSource:
        return MemoryRows.from_array(ROWS[::-1].copy())


@pytest.mark.parametrize(
    ("source", "test", "problem"),
    [
        (WrongNumber, "test_spec", "num_rows"),
        (InOrderOnly, "test_rows_of_any_ids", "rows of ids"),
        (OfItsOwnType, "test_buffers_of_any_type", "bytes of rows"),
        (NegativeIds, "test_ids_out_of_range", "id -1 of 200 rows"),
        (RangesFromTheBegin, "test_ranges", "rows 100 to 200"),
        (NoSlots, "test_cached_rows", "source and of slots"),
        (Views, "test_rows_are_copies", "rows after others"),
        (SharedBuffer, "test_many_threads", "read at the same time"),
        (lambda: OtherFiles(Rows()), "test_rows_in_files", "rows of file_rows"),
    ],
)
def test_defects_of_rows(source: Any, test: str, problem: str) -> None:
    def tests(make: Any) -> RowSourceTests:
        kind = type("Found", (RowSourceTests,), {"make": lambda _: (make(), ROWS)})
        return kind()  # type: ignore[no-any-return]

    getattr(tests(Rows), test)()
    with pytest.raises(AssertionError, match=problem):
        getattr(tests(source), test)()


class Planner:
    """Each row has one slot, with nothing wrong."""

    num_made = 0

    def __init__(self, num_slots: int, defect: str) -> None:
        self.num_slots, self.defect = num_slots, defect
        self.nodes = np.full(num_slots, -1)
        Planner.num_made += 1
        self.number = Planner.num_made

    def restart(self, nodes: NDArray[Any]) -> None:
        if self.defect != "forgets":
            self.nodes = nodes

    def plan(self, trace: Trace) -> CachePlan:
        self.nodes = self.nodes.copy()
        steps = (self.step(trace.batch(i)) for i in range(trace.num_batches))
        return CachePlan.collect(trace.offsets, steps)

    def step(self, ids: NDArray[Any]) -> PlannedStep:
        slots = np.full(len(ids), -1)
        missed = np.arange(len(ids))
        if self.num_slots == 0 or (self.defect == "random" and self.number % 2):
            return PlannedStep(slots, len(np.unique(ids)), missed[:0], missed[:0])
        own = ids % self.num_slots
        is_hit = self.nodes[own] == ids
        if self.defect == "stale":
            is_hit |= self.nodes[own] >= 0
        missed = np.flatnonzero(~is_hit)
        entered, first = np.unique(own[missed], return_index=True)
        positions = missed[first]
        num_misses = len(np.unique(ids[missed]))
        if self.defect == "miscounts":
            num_misses = len(missed)
        if self.defect == "twice":
            entered, positions = own[missed], missed
        self.nodes[entered] = ids[positions]
        return PlannedStep(np.where(is_hit, own, -1), num_misses, positions, entered)


@pytest.mark.parametrize(
    ("defect", "test", "problem"),
    [
        ("stale", "test_plans_can_be_followed", "rows of slots"),
        ("miscounts", "test_plans_can_be_followed", "misses"),
        ("twice", "test_plans_can_be_followed", "two rows enter one slot"),
        ("forgets", "test_a_cache_that_holds_rows", "the row in each slot"),
        ("random", "test_plans_are_repeated", "made again"),
    ],
)
def test_defects_of_policies(defect: str, test: str, problem: str) -> None:
    class Found(CachePolicyTests):
        made = "none"

        def make(self) -> Any:
            return self

        def planner(self, num_slots: int) -> Any:
            return Planner(num_slots, self.made)

    getattr(Found(), test)()
    Found.made = defect
    with pytest.raises(AssertionError, match=problem):
        getattr(Found(), test)()


class Batches:
    """A loader in memory, whose batches a strategy may change."""

    def __init__(self, loader: Any, change: Any) -> None:
        self.loader, self.change = loader, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __iter__(self) -> Any:
        return map(self.change, self.loader)


def with_other_rows(batch: Any) -> Any:
    batch.x = batch.x + 1
    return batch


def test_defects_of_strategies() -> None:
    class Found(StrategyTests):
        strategy = "memory"
        is_right = True

        def make_loader(self, data: Any = None, **more: Any) -> Any:
            loader = super().make_loader(data, **({} if self.is_right else {"seed": 2}) | more)
            return loader if self.is_right else Batches(loader, with_other_rows)

    Found.setup_class()
    Found().test_batches()
    Found.is_right = False
    for test in ("test_batches", "test_two_loaders_of_a_store", "test_an_epoch_that_is_left"):
        with pytest.raises(AssertionError, match=r"differs|other batches"):
            getattr(Found(), test)()
    Found.teardown_class()
