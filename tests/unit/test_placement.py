"""Where data goes: the decision, its words, and what the machine says it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnnstore.budget import limits
from gnnstore.budget.limits import MemoryBudget
from gnnstore.errors import BudgetError
from gnnstore.formats.arrays.spec import AttributeSpec, Scaled
from gnnstore.formats.store.schema import NodeTypeSpec, Schema
from gnnstore.graph.sizes import StoreSizes, TableSize
from gnnstore.pipeline.lookahead.presample import with_margin
from gnnstore.strategies import placement
from gnnstore.strategies.base import Auto
from gnnstore.strategies.placement import Placement, check_two_batches, read_tables
from gnnstore.strategies.registry import STRATEGIES, find_strategy

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


# --- rows that are read from disk ----------------------------------------------------------


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


def nodes(*attributes: AttributeSpec) -> Schema:
    own = {each.name: each for each in attributes}
    return Schema((NodeTypeSpec("node", attributes[0].num_rows, own),), ())


def test_int8_is_named_where_the_floats_decide() -> None:
    """It would fit then; where it would not, nothing is promised."""
    sizes = StoreSizes.from_schema(nodes(spec("x", "float32", 1000, 100)))
    assert sizes.saved_by_int8 == 300_000
    for limit, is_named in ((200_000, True), (90_000, False)):
        with pytest.raises(BudgetError) as error:
            place(sizes, "memory", memory=limit)
        assert ("'gnnstore quantize'" in str(error.value)) == is_named
    assert StoreSizes.from_schema(nodes(spec("x", "int8", 1000, 100))).saved_by_int8 == 0


def test_rows_that_are_decoded_are_features_however_narrow() -> None:
    """They are cached and packed, and not held whole as labels are."""
    scales = spec("x_scale", "float32", 17, layout="cold")
    x = replace(spec("x", "int8", 1000, 17), scaled=Scaled(scales, "float32"))
    y = spec("y", "int64", 1000)
    for schema, is_wide in ((nodes(x, y), True), (nodes(x, y).decoding({"x": None}), False)):
        read = [each.name for each in read_tables(schema.node_attributes())]
        assert read == (["x"] if is_wide else ["x", "y"])
        found = place(StoreSizes.from_schema(schema), "static", memory="1GB")
        assert found.modes == {"x": "disk" if is_wide else "memory", "y": "memory"}
