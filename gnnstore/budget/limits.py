"""Budgets of memory: the user's number, checked against the limits of this process.

A container's limit (cgroup v1 or v2) usually lies far below the machine's memory, and the
kernel kills rather than refuses; so the smallest of all limits is what counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnstore.budget.ledger import OF_FREE_MEMORY, Ledger
from gnnstore.errors import BudgetError, UsageError, as_whole_number
from gnnstore.units import format_count, format_size, parse_share, parse_size

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
# cgroup v1 writes "no limit" as the largest multiple of a page below 2^63.
_UNLIMITED = 2**60
# One part in so many of free memory is left, under memory="auto", to the model, its optimiser and
# other programs.
_FREE_SHARE = 4
# The least bytes of a size without a unit; less has lost its unit.
_LEAST_BYTES = 10**6
# A number that is less has, too: no program computes so small a budget.
_SMALL_BYTES = 10**3
# Memory of a cgroup that the kernel takes back before it kills, as memory.stat names it; a budget
# counts only the first as free.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")
# A budget as users write it; None: what is available.
Memory = int | str | None
STAGING_SHARE = 4  # share of a budget for reads in flight of all threads


@dataclass(frozen=True)
class MemoryBudget:
    """The memory that one consumer may use."""

    num_bytes: int
    # Whether the user set the budget, so that batches in flight must stay within it too.
    is_promise: bool
    source: str  # the number's origin, as a phrase that follows a size
    # Whether the budget follows from the memory that is free now, without what others use.
    is_measured: bool = False

    @classmethod
    def of(cls, memory: int | str | None, shared_bytes: int = 0) -> MemoryBudget:
        """Return the budget that `memory=` names."""
        if memory is None:
            free = available_bytes()
            return cls(free + shared_bytes, False, "of available memory", is_measured=True)
        if is_automatic(memory):
            free = available_bytes()
            source = f"of the budget, three quarters of the {format_size(free)} that are free"
            num_bytes = free - free // _FREE_SHARE + shared_bytes
            return cls(num_bytes, True, source, is_measured=True)
        return cls(parse_memory(memory), True, "of the memory= budget")

    @classmethod
    def of_rank(cls, memory: int | str | None, free_bytes: int, num_ranks: int) -> MemoryBudget:
        """Return a rank's part of the memory that was free on its machine: None or "auto"."""
        own = free_bytes // num_ranks
        whole = f"the {format_size(free_bytes)} that were free for {num_ranks} ranks"
        if memory is None:
            return cls(own, False, f"of available memory, this rank's part of {whole}")
        source = f"of the budget, this rank's part of three quarters of {whole}"
        return cls(own - own // _FREE_SHARE, True, source)


def is_automatic(value: object) -> bool:
    """Whether an option is "auto", where it may be anything: arrays are compared by element."""
    return isinstance(value, str) and value == "auto"


def affordable_threads(
    budget_bytes: int, staging_bytes: int, num_threads: int, *, share: int = STAGING_SHARE
) -> int:
    """Return the number of threads that may read, at least 1."""
    most = budget_bytes // share // max(1, staging_bytes)
    return max(1, min(num_threads, most))


def parse_memory(memory: int | str, *, name: str = "memory") -> int:
    """Return the bytes of a budget; refuse more than the cgroups of this process allow."""
    budget, limit = parse_size(memory, name=name), group_limit_bytes()
    text = memory.strip() if isinstance(memory, str) else ""
    if budget < _LEAST_BYTES and (text.isdecimal() or (text and name.startswith("-"))):
        # A number without a unit that is as small is probably meant in gigabytes.
        likely = f"{text}GB" if text.isdecimal() and 0 < int(text) < 1000 else "8GB"
        raise UsageError(
            f"{name}={memory!r} is {format_count(budget, 'byte')}, and a budget is at least "
            f"{format_size(_LEAST_BYTES)}; did you mean {likely}?"
        )
    if limit is not None and budget > limit:
        option = name if name.startswith("-") else f"{name}="
        source = "before the cgroup of this process, such as its container, kills it"
        allowed = Ledger(limit, (), f"{name}={memory!r}", source, "", raise_by=budget - limit)
        lower = f"lower {option} to less than {format_size(limit)}"
        refusal: BudgetError = allowed.refusal(None, lower, "raise the container's limit")
        refusal.missing_bytes = None  # a larger budget would not help
        raise refusal
    return budget


def memory_of(memory: Memory, whole_bytes: int, *, name: str = "memory") -> Memory:
    """Return a budget, in bytes where it is a share of a store of `whole_bytes`, as in "10%"."""
    share = parse_share(memory, name=name)
    if share is None:
        number = as_whole_number(memory)  # 8 is as "8"
        is_small = number is not None and 0 <= number < _SMALL_BYTES
        return parse_memory(str(number), name=name) if is_small else memory
    if share == 0:
        raise UsageError(f"{name}={memory!r} is nothing; give a share above 0%, such as '10%'")
    return max(1, round(share * whole_bytes))


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes of memory that may be allocated before a limit is met."""
    lefts = [limit - usage for limit, usage in _group_limits(proc, cgroups)]
    return max(0, min([_machine_bytes(proc), *lefts]))


def obtainable_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes that may be allocated before the kernel kills: cached files give way."""
    groups = _group_limits(proc, cgroups, _RECLAIMABLE)
    return max(0, min([_machine_bytes(proc), *(limit - usage for limit, usage in groups)]))


def group_limit_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Return the most that a container or another cgroup allows this process; None: no limit."""
    return min((limit for limit, _ in _group_limits(proc, cgroups)), default=None)


def _machine_bytes(proc: Path) -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else _UNLIMITED


def _group_limits(
    proc: Path, cgroups: Path, reclaimable: Sequence[str] = _RECLAIMABLE[:1]
) -> Iterator[tuple[int, int]]:
    """Yield the limit and the bytes in use for good of each cgroup around this process."""
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield from _limits_up(cgroups, group, "memory.max", "memory.current", reclaimable)
        elif "memory" in controllers.split(","):
            yield from _limits_up(
                *(cgroups / "memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes"),
                reclaimable,
            )


def _limits_up(
    root: Path, group: str, limit_file: str, usage_file: str, reclaimable: Sequence[str]
) -> Iterator[tuple[int, int]]:
    """Yield limit and usage of a cgroup and of each of its ancestors that has a limit."""
    # Inside a container the group's path may name directories that only the host sees;
    # the container's own limits then stand at the root of the mount.
    directory = root / group.lstrip("/")
    for place in (directory, *directory.parents):
        limit = _number(place / limit_file)
        if limit is not None and limit < _UNLIMITED:
            usage = _number(place / usage_file) or 0
            yield limit, usage - _reclaimable(place, reclaimable)
        if place == root:
            break


def _reclaimable(place: Path, names: Sequence[str]) -> int:
    text = _read(place / "memory.stat")
    found = (re.search(rf"^(?:total_)?{name} (\d+)", text, re.MULTILINE) for name in names)
    return sum(int(match[1]) for match in found if match)


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def memory_ledger(who: str, memory_bytes: int | None) -> Ledger:
    """Return a ledger of the memory that a conversion may use."""
    if memory_bytes is None:
        return Ledger(available_bytes(), (), who, OF_FREE_MEMORY, "")
    return Ledger(memory_bytes, (), who, "of the memory_bytes= budget", "memory_bytes=")
