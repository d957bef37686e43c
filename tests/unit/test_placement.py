"""Where data goes: the decision, its words, and what the machine says it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnnstore.budget import limits
from gnnstore.budget.limits import MemoryBudget
from gnnstore.caching.scores import CacheCost, StaticCacheInfo
from gnnstore.errors import BudgetError, UsageError
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import EdgeTypeSpec, NodeTypeSpec, Schema
from gnnstore.graph.sizes import StoreSizes, TableSize
from gnnstore.pipeline.margins import with_margin
from gnnstore.strategies.base import Auto
from gnnstore.strategies.builtin import STRATEGIES, find_strategy
from gnnstore.strategies.sizes import placement
from gnnstore.strategies.sizes.placement import HELD_ROW_BYTES, Placement
from gnnstore.strategies.sizes.prefetch import check_two_batches
from gnnstore.strategies.sizes.settings import CacheSettings
from gnnstore.strategies.static import cache_rows

GB = 10**9
X = TableSize("x", num_rows=10**7, row_bytes=800)
SIZES = StoreSizes(
    topology_bytes=2 * GB,
    tables=(X,),
    compressed_bytes=GB // 10,
    indptr_bytes=GB // 5,
    indices_bytes=18 * GB // 10,
)


def place(sizes: StoreSizes, strategy: str = "auto", **options: Any) -> Placement:
    chosen = find_strategy(strategy)
    given = chosen.by_mode if isinstance(chosen, Auto) else chosen
    budget = MemoryBudget.of(options.pop("memory", None), options.pop("shared_bytes", 0))
    return placement.place(sizes, budget, strategy=given, **options)


def spec(name: str, dtype: str, *shape: int, layout: str = "paged") -> AttributeSpec:
    return AttributeSpec(name, name, layout, dtype, shape)  # type: ignore[arg-type]


def test_sizes_come_from_the_schema() -> None:
    node = NodeTypeSpec(
        "node",
        10,
        {"x": spec("x", "bfloat16", 10, 100), "y": spec("y", "int64", 10, layout="cold")},
        {"train": spec("train", "int64", 5, layout="cold")},
    )
    edge = EdgeTypeSpec(
        *("node", "to", "node"),
        30,
        spec("indptr", "int64", 11),
        spec("indices", "int32", 30),
        spec("edge_id", "int32", 30),
        {"w": spec("w", "float32", 30)},
    )
    schema = Schema((node,), (edge,), {}, {"g": spec("g", "float64", 2, 2, layout="cold")})
    sizes = StoreSizes.of(schema)
    assert sizes == StoreSizes(
        topology_bytes=88 + 120,
        tables=(TableSize("x", 10, 200), TableSize("w", 30, 4, False, edge.type)),
        compressed_bytes=80 + 32,
        indptr_bytes=88,
        indices_bytes=120,
        edge_ids=(TableSize("edge_id", 30, 4, False, edge.type),),
    )
    assert sizes.rows_bytes == 2000 + 120
    assert sizes.total_bytes == 328 + 2120 + 112
    assert StoreSizes.of(schema, with_edge_ids=False) == replace(sizes, edge_ids=())


@pytest.mark.parametrize(
    ("memory", "strategy", "topology", "resident"),
    [
        ("20GB", "memory", "memory", 10_100_000_000),
        ("11.6GB", "memory", "memory", 10_100_000_000),
        # An eighth is left to the batches: 11.5 GB hold 10.06 GB of data.
        ("11.5GB", "static", "memory", 2_100_000_000),
        ("2.4GB", "static", "memory", 2_100_000_000),
        # A quarter of the rest is for in-neighbours: (2390 - 300) / 4.
        ("2.39GB", "static", "disk", 300_000_000 + 522_500_000),
        ("343MB", "static", "disk", 300_000_000 + 10_750_000),
        ("342MB", "static", "mmap", 100_000_000),
        ("101MB", "static", "mmap", 100_000_000),
    ],
)
def test_auto_takes_what_fits(memory: str, strategy: str, topology: str, resident: int) -> None:
    chosen = place(SIZES, memory=memory)
    assert (chosen.strategy.name, chosen.topology) == (strategy, topology)
    assert chosen.resident_bytes == resident
    assert chosen.budget_is_promise
    assert chosen.spare_bytes == chosen.budget_bytes - resident > 0


HELD = "ids of edges: 1 GB in memory (none with edge_ids='store'"
READ = "ids of edges: 1 GB read from disk for each batch (none with edge_ids='store'"


@pytest.mark.parametrize(
    ("memory", "strategy", "topology", "ids", "note"),
    [
        ("20GB", "memory", "memory", "memory", ""),
        # 10.1 GB fit in seven eighths of it, and 11.1 GB do not.
        ("12GB", "static", "memory", "memory", f"{HELD}, and the other 10.1 GB fit in memory)"),
        ("4.2GB", "static", "memory", "memory", f"{HELD})"),
        ("4GB", "static", "memory", "disk", f"{READ})"),  # more than half of the rest
        ("2.4GB", "static", "memory", "disk", f"{READ})"),
        ("342MB", "static", "mmap", "disk", f"{READ})"),
    ],
)
def test_ids_of_edges_take_no_place_of_the_topology(
    memory: str, strategy: str, topology: str, ids: str, note: str
) -> None:
    sizes = replace(SIZES, edge_ids=(TableSize("ids", 250_000_000, 4, of_nodes=False),))
    found, without = place(sizes, memory=memory), place(SIZES, memory=memory)
    assert (found.strategy.name, found.topology, found.modes["ids"]) == (strategy, topology, ids)
    assert found.topology == without.topology
    assert found.ids_note == note
    assert found.reason.endswith(found.ids_note)
    assert "ids" not in without.modes
    assert "edge_ids" not in without.reason
    held = 10**9 if ids == "memory" else 0
    if found.strategy == without.strategy:
        assert found.resident_bytes == without.resident_bytes + held


def test_the_reason_is_a_sentence() -> None:
    assert place(SIZES, memory="20GB").reason == (
        "strategy 'memory' because all 10.1 GB of the store fit 20 GB of the memory= budget; "
        "topology in memory (2 GB); 10.1 GB held in memory"
    )
    assert "'static' because the 10.1 GB of the store do not fit 9 GB" in (
        place(SIZES, memory="9GB").reason
    )
    assert (
        "'mmap' because the 10.1 GB of the store do not fit 9 GB of the memory= budget, and so"
        in (place(SIZES, memory="9GB", instead_of_static="so").reason)
    )
    assert "'mmap' because it was asked for" in place(SIZES, memory="9GB", strategy="mmap").reason
    assert "'static' because the topology is to stay mapped" in (
        place(SIZES, memory="90GB", topology="mmap").reason
    )


def test_forced_choices_are_kept() -> None:
    chosen = place(SIZES, strategy="mmap", topology="mmap", memory="90GB")
    assert (chosen.strategy.name, chosen.topology) == ("mmap", "mmap")
    chosen = place(SIZES, strategy="mmap", topology="memory", memory="2.2GB")
    assert (chosen.strategy.name, chosen.topology) == ("mmap", "memory")
    chosen = place(SIZES, strategy="memory", memory="10.2GB")
    assert (chosen.strategy.name, chosen.topology) == ("memory", "memory")


def test_without_a_budget_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 5 * GB)
    chosen = place(SIZES)
    assert (chosen.strategy.name, chosen.topology) == ("static", "memory")
    assert "5 GB of available memory" in chosen.reason
    assert chosen.spare_bytes is None, "only memory= is a promise"
    # What another loader on the same store holds already costs nothing.
    assert place(SIZES, shared_bytes=8 * GB).strategy.name == "memory"
    # Its cache is in the way of everything but a loader that shares it.
    chosen = place(SIZES, cached_bytes=8 * GB)
    assert (chosen.strategy.name, chosen.budget_bytes) == ("static", 13 * GB)
    with pytest.raises(BudgetError, match=r"has 5000000000 bytes \(5 GB\) of available memory"):
        place(SIZES, strategy="memory", cached_bytes=8 * GB)
    assert place(SIZES, memory=5 * GB, cached_bytes=8 * GB).budget_bytes == 5 * GB


def test_a_budget_too_small_says_need_have_and_missing() -> None:
    with pytest.raises(BudgetError) as caught:
        place(SIZES, strategy="memory", memory="10GB")
    message = str(caught.value)
    assert message == (
        "strategy 'memory' does not fit, 100000001 bytes too few:\n"
        "- needs 10100000001 bytes (10.1 GB)\n"
        "- has 10000000000 bytes (10 GB) of the memory= budget\n"
        "- largest parts: 8 GB of attributes + 2 GB of topology + 100 MB of compressed attributes\n"
        "- to do: raise memory= by at least 101 MB, or choose strategy='mmap'"
    )
    with pytest.raises(BudgetError, match="needs 10100000009 bytes"):
        place(SIZES, strategy="memory", memory="10GB", seeds_bytes=8)
    with pytest.raises(BudgetError, match=r"raise memory= by .* or choose topology='mmap'"):
        place(SIZES, strategy="mmap", topology="memory", memory="2GB")
    with pytest.raises(BudgetError, match="needs 100000001 bytes") as caught:
        place(SIZES, memory=1)
    assert str(caught.value).endswith(
        "raise memory= by at least 100 MB, lower num_threads=, or choose strategy='mmap'"
    )
    with pytest.raises(BudgetError) as caught:
        place(SIZES, strategy="mmap", memory=1)
    assert str(caught.value).endswith("\n- to do: raise memory= by at least 100 MB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fast"}, "strategy='fast' is unknown; choose one of auto, memory, mmap, "),
        ({"strategy": "sttic"}, "strategy='sttic' is unknown; did you mean 'static'? All: auto, "),
        ({"topology": "ram"}, "topology='ram' is unknown"),
        ({"strategy": "memory", "topology": "mmap"}, "leave out topology='mmap'"),
        ({"memory": "lots"}, "memory='lots' is not a size"),
        ({"memory": -1}, "memory=-1 is negative"),
    ],
)
def test_nonsense_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        place(SIZES, **options)
    assert message in str(caught.value)


# --- rows that are read from disk ----------------------------------------------------------


def test_the_default_is_to_read_with_a_cache() -> None:
    chosen = place(SIZES, memory="5GB")
    assert chosen.modes == {"x": "disk"}
    assert chosen.reads_disk
    assert place(SIZES, memory="20GB").modes == {"x": "memory"}
    assert not place(SIZES, memory="5GB", strategy="mmap").reads_disk


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.reads_disk])
def test_staging_is_part_of_the_budget(strategy: str) -> None:
    chosen = place(SIZES, strategy=strategy, memory="3GB", staging_bytes=lambda _: 300_000_000)
    assert (chosen.staging_bytes, chosen.resident_bytes) == (300_000_000, 2_100_000_000)
    assert chosen.spare_bytes == 600_000_000
    # An eighth is left to the batches: with staging, 2.4 GB do not hold the topology.
    chosen = place(SIZES, strategy=strategy, memory="2.4GB", staging_bytes=lambda _: 10)
    assert chosen.topology == "disk"
    assert chosen.neighbors_bytes == (2_400_000_000 - 300_000_000 - 10) // 4
    with pytest.raises(BudgetError) as caught:
        place(SIZES, strategy=strategy, memory="350MB", staging_bytes=lambda _: 300_000_000)
    message = str(caught.value)
    assert message.startswith(
        f"strategy {strategy!r} does not fit, 50000001 bytes too few:\n"
        "- needs 400000001 bytes (400 MB)\n"
        "- has 350000000 bytes (350 MB) of the memory= budget\n"
        "- largest parts: 300 MB of staging for reads + 100 MB of compressed attributes\n"
        "- to do: raise memory= by at least 50.1 MB, lower num_threads=, or choose"
    )


def test_where_nothing_is_read_no_engine_is_asked_for() -> None:
    def staging_bytes(_: int) -> int:
        raise AssertionError("an engine was opened")

    assert place(SIZES, memory="20GB", staging_bytes=staging_bytes).staging_bytes == 0
    place(SIZES, memory="5GB", strategy="mmap", staging_bytes=staging_bytes)


def test_narrow_rows_are_held_the_narrowest_first() -> None:
    tables = (
        X,
        TableSize("y", 10**7, 8),
        TableSize("edge_attr", 2 * 10**7, HELD_ROW_BYTES, of_nodes=False),
        TableSize("z", 10**7, HELD_ROW_BYTES + 1),
        TableSize("none", 0, 400),
    )
    sizes = StoreSizes(
        topology_bytes=0, tables=tables, compressed_bytes=0, indptr_bytes=0, indices_bytes=0
    )

    def held(memory: int) -> set[str]:
        chosen = place(sizes, strategy="static", memory=memory)
        names = {path for path, mode in chosen.modes.items() if mode == "memory"}
        by_path = {table.path: table.num_bytes for table in tables}
        assert chosen.resident_bytes == sum(by_path[name] for name in names)
        return names

    # 80 MB and 1,280 MB: all that is held takes at most a quarter.
    assert held(4 * 80_000_000 - 4) == {"none"}
    assert held(4 * 80_000_000) == {"none", "y"}
    assert held(4 * 1_360_000_000 - 4) == {"none", "y"}
    assert held(4 * 1_360_000_000) == {"none", "y", "edge_attr"}


@pytest.mark.parametrize("disk", [True, False])
def test_rows_of_edges_that_a_pass_reads_are_not_held(disk: bool) -> None:
    """Unless all rows fit: cached rows of nodes have the memory instead."""
    kind = ("a", "to", "b")
    tables = (X, TableSize("time", 10**7, 8, False, kind))
    ids = (TableSize("edge_id", 10**7, 4, False, kind),)
    sizes = replace(SIZES, topology_bytes=0, compressed_bytes=0, tables=tables, edge_ids=ids)

    def held(memory: int) -> set[str]:
        chosen = place(sizes, "packed", memory=memory, topology="memory", reads_edges_ahead=disk)
        parts = {part.what: part.fixed for part in chosen.ledger.reservations}
        # A time, and an id: a piece of both, and of the times before they are put there.
        rows = {frozenset({"time", "edge_id"}): 156_250 * 20, frozenset({"edge_id"}): 262_144 * 4}
        on_disk = chosen.read_paths - {"x"}
        assert parts.get("a piece of the rows of edges", 0) == (
            rows[frozenset(on_disk)] if disk and on_disk else 0
        )
        return {path for path, mode in chosen.modes.items() if mode == "memory"}

    everything = sizes.rows_bytes + sizes.edge_ids_bytes
    assert held(everything) == {"time", "edge_id"}
    assert held(everything - 1) == (set() if disk else {"time", "edge_id"})


def test_only_what_may_be_held_is_looked_at() -> None:
    """What narrow integers take in memory is found out by reading all of them."""
    tables = (X, TableSize("y", 10**7, 8), TableSize("edge_type", 10**9, 8, of_nodes=False))
    sizes = StoreSizes(
        topology_bytes=0, tables=tables, compressed_bytes=0, indptr_bytes=0, indices_bytes=0
    )
    asked: list[str] = []

    def in_a_byte(path: str) -> int:
        asked.append(path)
        return 1

    def held(memory: int, **options: Any) -> dict[str, int]:
        asked.clear()
        chosen = place(sizes, memory=memory, held_row_bytes=in_a_byte, **options)
        rows = {table.path: table.num_rows for table in tables}
        in_memory = {path: rows[path] for path, mode in chosen.modes.items() if mode == "memory"}
        assert chosen.resident_bytes == sum(in_memory.values())
        return in_memory

    assert held(4 * 10_000_000, strategy="static") == {"y": 10**7}, "a quarter, in a byte each"
    assert asked == ["y"]
    assert held(4 * 10_000_000 - 4, strategy="static") == {}
    assert asked == []
    assert held(4 * 10**9, strategy="static") == {"y": 10**7}
    assert asked == ["y", "edge_type"], "of that an eighth would have fit alone"
    assert held(4 * 10**9, strategy="mmap") == {}
    assert asked == []
    assert held(4 * 10**9, strategy="mmap", shared_tables={"y"}) == {"y": 10**7}
    assert asked == ["y"], "others hold it so"


COST = CacheCost(num_nodes=10**7, index_bytes=2_000_000, node_bytes=1000)


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.mode != "memory"])
def test_narrow_rows_that_others_hold_are_taken_from_there(strategy: str) -> None:
    """They stay in memory whatever is decided, so they count; wide ones are another's affair."""
    y = TableSize("y", num_rows=10**7, row_bytes=64)
    sizes = replace(SIZES, tables=(X, y))
    alone = place(sizes, strategy=strategy, memory=2_900_000_000)
    beside = place(sizes, strategy=strategy, memory=2_900_000_000, shared_tables={"x", "y"})
    assert alone.modes["y"] != "memory"
    assert (beside.modes["y"], beside.modes["x"]) == ("memory", alone.modes["x"])
    assert beside.left_bytes == alone.left_bytes - y.num_bytes
    with pytest.raises(BudgetError, match="raise memory= by at least"):
        place(sizes, strategy=strategy, memory=700_000_000, shared_tables=("y",))


def test_what_a_cache_takes() -> None:
    assert COST.rows_in(2_000_999) == COST.rows_in(0) == 0
    assert COST.rows_in(2_001_000) == 1
    assert COST.rows_in(10**12) == 10**7, "no more than there are nodes"
    assert (COST.bytes_of(0), COST.bytes_of(3)) == (0, 2_003_000)
    assert CacheCost(10, 8, 0).rows_in(10**6) == 0, "no attribute, nothing to cache"


def test_batches_in_flight_come_before_the_cache() -> None:
    chosen = place(SIZES, strategy="static", topology="mmap", memory=100_000_000 + 1_002_000_000)

    def rows(batch_bytes: int, num_threads: int, sample_bytes: int = 0) -> int:
        return cache_rows(
            chosen, CacheSettings(), COST, batch_bytes, sample_bytes, num_threads=num_threads
        )

    assert rows(10_000_000, 2) == (1_000_000_000 - 4 * 10_000_000) // 1000, "one more than threads"
    # A quarter of 1,002 MB is 250.5 MB: not four batches of 70 MB.
    assert rows(70_000_000, 2) == (1_000_000_000 - 250_500_000) // 1000
    assert rows(200_000_000, 2) == 500_000, "never less than two batches and a half"
    assert rows(200_000_000, 2, 60_000_000) == 480_000, "two, and the samples of two threads"
    assert rows(334_000_000, 2) == (1_000_000_000 - 835_000_000) // 1000
    assert rows(400_000_000, 2) == 0


def test_two_batches_are_the_least() -> None:
    chosen = place(SIZES, strategy="direct", topology="mmap", memory="1.1GB")
    check_two_batches(chosen.ledger, GB // 2)
    with pytest.raises(BudgetError) as caught:
        check_two_batches(chosen.ledger, GB // 2 + 1)
    assert str(caught.value) == (
        "strategy 'direct' does not fit, 2 bytes too few:\n"
        "- needs 1100000002 bytes (1.1 GB)\n"
        "- has 1100000000 bytes (1.1 GB) of the memory= budget\n"
        "- largest parts: 1 GB of batches in flight + 100 MB of compressed attributes\n"
        "- to do: raise memory= by at least 2 B, or choose a smaller batch_size or fan-out"
    )
    assert with_margin(800) == 900


def test_a_cache_of_a_given_size() -> None:
    chosen = place(SIZES, strategy="static", topology="mmap", memory="1.1GB")
    settings = CacheSettings("degree", 900_000_000)
    assert cache_rows(chosen, settings, COST, 50_000_000, 0, num_threads=2) == 898_000
    with pytest.raises(BudgetError) as caught:
        cache_rows(chosen, settings, COST, 60_000_000, 0, num_threads=2)
    assert str(caught.value) == (
        "strategy 'static' does not fit, 20000000 bytes too few:\n"
        "- needs 1120000000 bytes (1.12 GB)\n"
        "- has 1100000000 bytes (1.1 GB) of the memory= budget\n"
        "- largest parts: 900 MB of cached rows + 120 MB of batches in flight + 100 MB of "
        "compressed attributes\n"
        "- to do: raise memory= by at least 20 MB, or lower cache_bytes="
    )


def test_without_a_promise_the_cache_takes_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 5 * GB)
    chosen = place(SIZES, strategy="static", topology="mmap")
    assert (
        cache_rows(chosen, CacheSettings(), COST, 0, 0, num_threads=2)
        == (4_900_000_000 // 2 - 2 * 10**6) // 1000
    )


def test_the_cache_is_part_of_the_decision() -> None:
    chosen = place(SIZES, strategy="static", memory="3GB")
    cached = chosen.with_cache(StaticCacheInfo("frequency", 1000, 50_000_000))
    assert cached.spare_bytes == 850_000_000
    assert cached.reason == (
        f"{chosen.reason}; rows of the 1000 nodes that sampling needs most often cached in 50 MB"
    )
    empty = chosen.with_cache(StaticCacheInfo("degree", 0, 0, "there is no room"))
    assert empty.reason.endswith(
        "; rows of the 0 nodes of the highest out-degree cached in 0 B (there is no room)"
    )
