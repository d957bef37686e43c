"""Where data goes: the decision, its words, and what the machine says it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnstore.available import available_bytes
from gnnstore.errors import BudgetError, UsageError
from gnnstore.formats.schema import AttributeSpec, EdgeTypeSpec, NodeTypeSpec, Schema
from gnnstore.planning import placement
from gnnstore.planning.placement import StoreSizes, place

GB = 10**9
SIZES = StoreSizes(topology_bytes=2 * GB, rows_bytes=8 * GB, cold_bytes=GB // 10)


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
    assert StoreSizes.of(schema) == StoreSizes(
        topology_bytes=88 + 120 + 120, rows_bytes=2000 + 120, cold_bytes=80 + 32
    )


@pytest.mark.parametrize(
    ("memory", "strategy", "topology", "resident"),
    [
        ("20GB", "memory", "memory", 10_100_000_000),
        ("11.6GB", "memory", "memory", 10_100_000_000),
        # An eighth is left to the batches: 11.5 GB hold 10.06 GB of data.
        ("11.5GB", "mmap", "memory", 2_100_000_000),
        ("2.4GB", "mmap", "memory", 2_100_000_000),
        ("2.39GB", "mmap", "mmap", 100_000_000),
        ("101MB", "mmap", "mmap", 100_000_000),
    ],
)
def test_auto_takes_what_fits(memory: str, strategy: str, topology: str, resident: int) -> None:
    chosen = place(SIZES, memory=memory)
    assert (chosen.strategy, chosen.topology) == (strategy, topology)
    assert chosen.resident_bytes == resident
    assert chosen.budget_is_promise
    assert chosen.spare_bytes == chosen.budget_bytes - resident > 0


def test_the_reason_is_a_sentence() -> None:
    assert place(SIZES, memory="20GB").reason == (
        "strategy 'memory' because all 10.1 GB of the store fit 20 GB of the memory= budget; "
        "topology in memory (2 GB); 10.1 GB held in memory"
    )
    assert "'mmap' because the 10.1 GB of the store do not fit 9 GB" in (
        place(SIZES, memory="9GB").reason
    )
    assert "'mmap' because it was asked for" in place(SIZES, memory="9GB", strategy="mmap").reason
    assert "'mmap' because the topology is to stay mapped" in (
        place(SIZES, memory="90GB", topology="mmap").reason
    )


def test_forced_choices_are_kept() -> None:
    chosen = place(SIZES, strategy="mmap", topology="mmap", memory="90GB")
    assert (chosen.strategy, chosen.topology) == ("mmap", "mmap")
    chosen = place(SIZES, strategy="mmap", topology="memory", memory="2.2GB")
    assert (chosen.strategy, chosen.topology) == ("mmap", "memory")
    chosen = place(SIZES, strategy="memory", memory="10.2GB")
    assert (chosen.strategy, chosen.topology) == ("memory", "memory")


def test_without_a_budget_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "available_bytes", lambda: 5 * GB)
    chosen = place(SIZES)
    assert (chosen.strategy, chosen.topology) == ("mmap", "memory")
    assert "5 GB of available memory" in chosen.reason
    assert chosen.spare_bytes is None, "only memory= is a promise"
    # What another loader on the same store holds already costs nothing.
    assert place(SIZES, shared_bytes=8 * GB).strategy == "memory"


def test_a_budget_too_small_says_need_have_and_missing() -> None:
    with pytest.raises(BudgetError) as caught:
        place(SIZES, strategy="memory", memory="10GB")
    message = str(caught.value)
    assert "needs 10100000000 bytes (8 GB of attributes + 2 GB of topology + 100 MB" in message
    assert "has 10000000000 bytes of the memory= budget: 100000001 bytes too few" in message
    assert "raise memory= by at least 100 MB or choose strategy='mmap'" in message

    with pytest.raises(BudgetError, match=r"topology \+ 100 MB of compressed attributes \+ 8 B of"):
        place(SIZES, strategy="memory", memory="10GB", seeds_bytes=8)
    with pytest.raises(BudgetError, match=r"raise memory= by .* or choose topology='mmap'"):
        place(SIZES, strategy="mmap", topology="memory", memory="2GB")
    with pytest.raises(BudgetError, match="needs 100000000 bytes") as caught:
        place(SIZES, memory=1)
    assert str(caught.value).endswith("too few; raise memory= by at least 100 MB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fast"}, "strategy='fast' is unknown; choose one of auto, memory, mmap"),
        ({"topology": "ram"}, "topology='ram' is unknown"),
        ({"strategy": "memory", "topology": "mmap"}, "leave out topology='mmap'"),
        ({"memory": "lots"}, "memory='lots' is not a size"),
        ({"memory": -1}, "memory=-1 is negative"),
    ],
)
def test_nonsense_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        place(SIZES, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)


# --- what is available ---------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(tmp_path: Path, available_kib: int, cgroup: str) -> tuple[Path, Path]:
    write(
        tmp_path / "proc/meminfo",
        f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:   {available_kib} kB\n",
    )
    write(tmp_path / "proc/self/cgroup", cgroup)
    return tmp_path / "proc", tmp_path / "cgroup"


def test_the_machine_alone(tmp_path: Path) -> None:
    assert available_bytes(*machine(tmp_path, 1000, "")) == 1_024_000


def test_a_cgroup_of_version_2_and_its_parents(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, 1000, "0::/user/job\n")
    write(cgroups / "user/job/memory.max", "max\n")
    write(cgroups / "user/memory.max", "500000\n")
    write(cgroups / "user/memory.current", "300000\n")
    write(cgroups / "user/memory.stat", "anon 7\ninactive_file 50000\nactive_file 9\n")
    assert available_bytes(proc, cgroups) == 250_000


def test_a_cgroup_of_version_1(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, 1000, "11:cpu,cpuacct:/x\n3:memory:/docker/abc\n")
    # Inside of the container only the root of the mount exists.
    write(cgroups / "memory/memory.limit_in_bytes", "400000\n")
    write(cgroups / "memory/memory.usage_in_bytes", "150000\n")
    write(cgroups / "memory/memory.stat", "cache 1\ntotal_inactive_file 5000\n")
    assert available_bytes(proc, cgroups) == 255_000


def test_no_limit_of_version_1_is_no_limit(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, 1000, "3:memory:/\n")
    write(cgroups / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert available_bytes(proc, cgroups) == 1_024_000


def test_an_exhausted_cgroup_leaves_nothing(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, 1000, "0::/\n")
    write(cgroups / "memory.max", "1000\n")
    write(cgroups / "memory.current", "2000\n")
    assert available_bytes(proc, cgroups) == 0


def test_this_machine_has_some_memory() -> None:
    assert available_bytes() > 0
