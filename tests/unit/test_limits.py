"""What a process may take, and budgets that are more than that."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnstore.budget import limits
from gnnstore.budget.limits import (
    MemoryBudget,
    available_bytes,
    group_limit_bytes,
    obtainable_bytes,
    parse_memory,
)
from gnnstore.errors import BudgetError, UsageError

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
    with (cgroups / "user/memory.stat").open("a") as stat:
        stat.write("slab_reclaimable 30\n")
    assert obtainable_bytes(proc, cgroups) == 250_039


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


def test_the_least_limit_of_all_groups_counts(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, 1000, "0::/user/job\n")
    assert group_limit_bytes(proc, cgroups) is None
    write(cgroups / "user/job/memory.max", "700000\n")
    write(cgroups / "user/memory.max", "500000\n")
    assert group_limit_bytes(proc, cgroups) == 500_000


def test_this_machine_has_some_memory() -> None:
    assert available_bytes() > 0


# --- budgets -------------------------------------------------------------------------------


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have 8 MB free of a container's 10 MB."""
    monkeypatch.setattr(limits, "available_bytes", lambda: 8_000_000)
    monkeypatch.setattr(limits, "group_limit_bytes", lambda: 10_000_000)


@pytest.mark.usefixtures("container")
def test_what_memory_stands_for() -> None:
    assert MemoryBudget.of(None) == MemoryBudget(
        8_000_000, False, "of available memory", is_measured=True
    )
    assert MemoryBudget.of(None, shared_bytes=5).num_bytes == 8_000_005
    free = MemoryBudget.of("auto", shared_bytes=5)
    assert (free.num_bytes, free.is_promise) == (6_000_005, True)
    assert free.source == "of the budget, three quarters of the 8 MB that are free"
    # What others hold is part of what the user gives, and of what is given nobody need be free.
    given = MemoryBudget.of("9.5MB", shared_bytes=5)
    assert given == MemoryBudget(9_500_000, True, "of the memory= budget")


@pytest.mark.usefixtures("container")
def test_a_budget_above_the_containers_limit() -> None:
    assert parse_memory(10_000_000) == 10_000_000
    with pytest.raises(BudgetError) as caught:
        parse_memory("10001kB")
    assert str(caught.value) == (
        "memory='10001kB' does not fit, 1000 bytes too few:\n"
        "- needs 10001000 bytes (10 MB)\n"
        "- has 10000000 bytes (10 MB) before the cgroup of this process, such as its container, "
        "kills it\n"
        "- to do: lower memory= to less than 10 MB, or raise the container's limit"
    )
    assert caught.value.missing_bytes is None, "more than this is not to be had"
    with pytest.raises(BudgetError, match=r"(?s)--memory='1GB' does .* lower --memory to less"):
        parse_memory("1GB", name="--memory")


def test_a_text_without_its_unit() -> None:
    with pytest.raises(UsageError, match=r"memory='8' is 8 bytes, .*; did you mean 8GB\?"):
        MemoryBudget.of("8")
    assert parse_memory(8) == 8, "a number may be as small as it likes"


@pytest.mark.parametrize("memory", ["much", -1, "auto"])
def test_what_is_no_size(memory: int | str) -> None:
    with pytest.raises(UsageError, match="memory="):
        parse_memory(memory)
