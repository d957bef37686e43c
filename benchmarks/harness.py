"""Shared parts of the benchmarks: the machine's name, repeated timing, and output of results.

Absolute times drift from machine to machine and from hour to hour. So each benchmark times
what it compares in turns, within one run, and reports ratios of medians with their spread.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnnstore.errors import UsageError
from gnnstore.tools.bench.harness import DeviceLimits, require_group
from gnnstore.units import parse_size, spread


@dataclass(frozen=True)
class Timing:
    """Seconds of one thing, measured several times."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)

    def milliseconds(self) -> str:
        """Return median, least and most, in milliseconds, for a table."""
        low, middle, high = (1e3 * s for s in (min(self.seconds), self.median, max(self.seconds)))
        return f"{middle:.2f} ms [{low:.2f}, {high:.2f}]"


@dataclass(frozen=True)
class Turn:
    """Work and time of one turn.

    Attributes
    ----------
    amount : float
        Reads, bytes or batches.
    seconds, cpu_seconds : float
        Elapsed, and spent by all threads of the process in user mode and in the kernel.
    """

    amount: float
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Amount a second."""
        return self.amount / self.seconds

    @property
    def cpu_each(self) -> float:
        """CPU seconds for each unit."""
        return self.cpu_seconds / self.amount


def measure(work: Callable[[], float]) -> Turn:
    """Run a piece of work that returns how much it did."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    amount = work()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(amount, seconds, cpu)


def time_in_turns(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, Timing]:
    """Run each piece of work once to warm up, then all pieces in turns.

    Turns, because a noisy neighbour then disturbs all alike. The result of a piece is dropped
    outside its own time.
    """
    for run in work.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    gc.disable()
    try:
        for _ in range(repeats):
            for name, run in work.items():
                start = time.perf_counter()
                result = run()
                seconds[name].append(time.perf_counter() - start)
                del result
    finally:
        gc.enable()
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def machine() -> dict[str, Any]:
    """Return a description of the machine, without which the numbers mean little."""
    model = platform.processor() or platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    huge = " ".join(_lines("/sys/kernel/mm/transparent_hugepage/enabled")) or "unknown"
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "transparent_huge_pages": huge,
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def several(kind: Callable[[str], Any] = str, choices: Iterable[Any] = ()) -> Callable[[str], Any]:
    """Return a function that parses values with commas between them."""
    allowed = tuple(choices)

    def values(text: str) -> list[Any]:
        found = [kind(part) for part in text.split(",")]
        if allowed and (unknown := [each for each in found if each not in allowed]):
            names = ", ".join(map(str, allowed))
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {names}")
        return found

    return values


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--repeats", type=int, default=7, help="timings of each thing (7)")
    result.add_argument("--json", action="store_true", help="print JSON instead of a table")
    result.add_argument("--quick", action="store_true", help="a small size: seconds, not minutes")
    return result


def add_loader_options(options: argparse.ArgumentParser) -> None:
    """Add the options of benchmarks that compare a loader in memory with peers."""
    options.add_argument("--threads", type=int, help="threads of the loader (all cores)")
    options.add_argument("--peer-batches", type=int, default=12, help="batches of a peer (12)")
    options.add_argument("--peer-workers", type=several(int), default=[0, 2], help="(0,2)")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")


def add_partition_options(options: argparse.ArgumentParser, batch_size: int) -> None:
    """Add the options of benchmarks that train by partitions."""
    options.set_defaults(repeats=3)
    options.add_argument("--partitions", type=int, default=32, help="(32)")
    options.add_argument("--batch-size", type=int, default=batch_size, help=f"({batch_size})")
    options.add_argument("--memory", help="budget of the loader; by default what is available")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")


def add_limit_options(options: argparse.ArgumentParser) -> None:
    """Add the options of benchmarks that run processes within a memory limit."""
    options.add_argument("--slack", type=parse_size, default=200 * 10**6, help="(200MB)")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")
    options.add_argument("--no-limit", action="store_true", help="go on without a cgroup")


def limit_version(arguments: argparse.Namespace) -> int:
    """Return the version of the cgroups that keep the limit; 0 if the options ask for none.

    With --quick a machine without cgroups is good enough, too.

    Raises
    ------
    SystemExit
        If there are none, and the options do not say to go on without.
    """
    if arguments.no_limit:
        return 0
    try:
        return require_group()
    except UsageError as error:
        if arguments.quick:
            return 0
        raise SystemExit(str(error)) from error


@contextmanager
def directory_of(arguments: argparse.Namespace) -> Iterator[Path]:
    """Return the directory that keeps stores, or a temporary one."""
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as temporary:
        yield arguments.cache or Path(temporary)


def device_row(devices: Sequence[DeviceLimits]) -> tuple[str, str]:
    """Return the row of a table with the disk's own limits."""
    text = f"{spread((d.random_reads_per_second / 1e3 for d in devices), '.1f')} k random reads "
    text += f"of 4 KiB a second, {spread(d.bytes_per_second / 1e9 for d in devices)} GB/s in order"
    return "the disk", text


def device_numbers(devices: Sequence[DeviceLimits]) -> dict[str, float]:
    """Return the medians of the disk's limits, for machines."""
    return {
        "random_reads_per_second": statistics.median(d.random_reads_per_second for d in devices),
        "bytes_per_second": statistics.median(d.bytes_per_second for d in devices),
    }


def report(
    title: str,
    rows: Sequence[tuple[str, str]],
    *,
    as_json: bool,
    timings: dict[str, Timing] | None = None,
    **numbers: Any,
) -> dict[str, Any]:
    """Print the machine and the results: a table, or JSON with every single timing.

    Parameters
    ----------
    rows : sequence of (what, value)
        For people.
    timings, numbers
        For machines.

    Returns
    -------
    dict
        The document that is printed as JSON.
    """
    facts = machine()
    document = {
        "schema_version": 1,
        "benchmark": title,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": facts,
        "timings_seconds": {k: asdict(t)["seconds"] for k, t in (timings or {}).items()},
        **numbers,
    }
    if as_json:
        json.dump(document, sys.stdout, indent=1)
        print()
        return document
    print(f"{title}\n{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, ", end="")
    print(f"Linux {facts['kernel']}, huge pages: {facts['transparent_huge_pages']}")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")
    return document
