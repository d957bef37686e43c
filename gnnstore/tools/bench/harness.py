"""Runs tasks in processes of their own in memory cgroups, and measures the disk between them.

Each task has its own process, because a limit applies to a process, and because memory that one
measurement has left must not help the next. Memory that a process allocates and the page cache of
the files that it reads count alike, as in a container, unlike with ulimit. `gnnstore bench load`
and `benchmarks/` use it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gnnstore import _core
from gnnstore.disk.engines import choose_engine
from gnnstore.disk.measure import Draw, at_random, in_sequence, read_rate
from gnnstore.errors import UsageError, storage_errors
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import Schema
from gnnstore.strategies.placement import read_tables
from gnnstore.strategies.registry import auto

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore

BATCH_MARK = "."  # a worker prints it for each batch
# Entered before anything is loaded, so that the whole process is counted.
_ENTER = 'echo $$ > "$0" && exec "$@"'
# A process may take long to remove its files, and leaves its group after the kernel has taken back
# its memory.
_LEAVING_SECONDS = 60.0
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_V1, _V2 = "memory.limit_in_bytes", "memory.max"
BASELINE = "numpy-mmap"
# The stages of a batch, in their order.
STAGES = ("sampling", "planning", "filling", "packing", "reading", "assembling", "other")


@dataclass(frozen=True)
class Way:
    """A way of loading batches."""

    strategy: str = ""  # of a loader; none for the mapping
    is_compared: bool = True  # whether it is timed unless told otherwise
    is_limited: bool = True  # whether its memory is limited
    is_made_ahead: bool = False  # whether an epoch is prepared during the one before it
    is_even: bool = False  # whether all batches cost about the same, so that a sample is enough
    reads_by_faults: bool = False  # whether rows are read by page faults
    packs: bool = False  # whether packed rows may be written to disk


def ways() -> dict[str, Way]:
    """Return the ways by name, those without a memory limit at the end."""
    choice = auto()
    found = {BASELINE: Way(is_even=True, reads_by_faults=True)}
    for one in choice.loadable:
        found[one.choice] = Way(
            one.choice,
            is_compared=one.mode != "mmap",
            is_made_ahead=one.plans,
            is_even=not one.plans and one.score is None,
            reads_by_faults=one.mode == "mmap",
            packs=one.packs,
        )
    found[choice.name] = Way(choice.name, is_compared=False, is_made_ahead=True, packs=True)
    in_memory = choice.by_mode["memory"].name
    return {**found, in_memory: Way(in_memory, is_limited=False)}


@dataclass(frozen=True)
class MemoryGroup:
    """A cgroup that this process has made."""

    path: Path

    @property
    def version(self) -> int:
        """Version of cgroups: 1 or 2."""
        return 1 if (self.path / _V1).exists() else 2

    def limit(self, num_bytes: int) -> None:
        """Limit the group's memory, without swapping, and reset its peak."""
        files = {"memory.swap.max": 0, _V2: num_bytes}
        if self.version == 1:
            files = {"memory.swappiness": 0, _V1: num_bytes, "memory.max_usage_in_bytes": 0}
        for name, value in files.items():
            if name == _V2 or (self.path / name).exists():
                (self.path / name).write_text(str(value))

    def held_bytes(self) -> int:
        """Return the memory of the processes and the kernel's for these, without page cache."""
        lines = (self.path / "memory.stat").read_text().splitlines()
        stat = {name: int(value) for name, value in map(str.split, lines)}
        if self.version == 1:
            return stat["rss"] + int((self.path / "memory.kmem.usage_in_bytes").read_text())
        return stat["anon"] + stat.get("kernel", 0)

    def peak_bytes(self) -> int:
        """Return the peak of the group's memory, with page cache; 0 if it is not known."""
        file = self.path / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")
        return int(file.read_text()) if file.exists() else 0


@contextmanager
def memory_group() -> Iterator[MemoryGroup | None]:
    """Make a group without a limit, and remove it in the end; None if that is not possible."""
    tops = (_CGROUPS / "memory", _CGROUPS)
    parents = [*tops]
    # Where only part of the tree is this user's: the process's own groups, and those above.
    with suppress(OSError):
        for group in re.findall(r"^\d+:(?:memory|):/(.+)$", _OWN_CGROUPS.read_text(), re.MULTILINE):
            places = [Path(group), *Path(group).parents][:-1]
            parents += [top / place for top in tops for place in places]
    for parent in parents:
        path = parent / f"gnnstore-benchmark-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            if any((path / name).exists() for name in (_V1, _V2)):
                yield MemoryGroup(path)
                return
        finally:
            deadline = time.monotonic() + _LEAVING_SECONDS
            while path.exists():
                try:
                    path.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
    yield None


@dataclass(frozen=True)
class Task:
    """The order to a process: a strategy, its memory limit, and the batches to load."""

    strategy: str  # one of `ways`
    store: str  # path of the store
    # File of nodes, of nodes by type, or of edges [2, L], which every epoch shuffles; "" for all
    # edges.
    seeds: str
    share: float  # share of the features in the limit, on top of the memory used before
    slack_bytes: int  # in addition to the share
    warm_up: int = 0  # batches before the clock starts
    batches: int = 0  # batches on the clock
    group: str = ""  # the process's memory group; "" for none, and no limit
    round: int = 0  # number of the epoch, so that rounds draw different batches
    fanouts: Any = (10, 10, 10)  # of each hop, or of each hop by edge type
    sampling: dict[str, Any] = field(default_factory=dict)  # other options of a loader's sampling
    batch_size: int = 1024
    seed: int = 0
    num_threads: int = 0  # threads of a loader; 0 for its own choice
    disk_bytes: int = 0  # the most that packed rows may take; 0 for the loader's own choice
    packed: str = ""  # packed epochs to load instead of a strategy; "": none
    links: dict[str, Any] | None = None  # options of `LinkNeighborLoader`; None: seeds are nodes
    edge_type: tuple[str, ...] = ()  # of the edges, if types have names

    @classmethod
    def of_json(cls, text: str) -> Task:
        """Return the task that a process was given."""
        given: dict[str, Any] = json.loads(text)
        fanouts = given["fanouts"]
        return cls(**{**given, "fanouts": fanouts if isinstance(fanouts, dict) else (*fanouts,)})

    @property
    def memory_group(self) -> MemoryGroup | None:
        """The process's memory group."""
        return MemoryGroup(Path(self.group)) if self.group else None


def run_task(
    task: Task,
    *words: str,
    worker: str,
    is_limited: bool,
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, Any] | str:
    """Run a module on a task, with cold files; return its answer, or why there is none."""
    with memory_group() if is_limited else nullcontext() as group:
        drop_from_cache([Path(path) for path in (task.store, task.packed) if path])
        task = replace(task, group="" if group is None else str(group.path))
        given = ["-m", worker, json.dumps(asdict(task)), *words]
        return ask_process(given, group, on_mark=on_batch)


def ask_process(
    words: Sequence[str],
    group: MemoryGroup | None = None,
    *,
    on_mark: Callable[[], None] = lambda: None,
) -> dict[str, Any] | str:
    """Run `python *words` and return the JSON object of its last line, or why there is none."""
    command = [sys.executable, *words]
    if group is not None:
        command = ["sh", "-c", _ENTER, str(group.path / "cgroup.procs"), *command]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        # A session of its own: Ctrl-C would come to it twice, from the terminal and from here.
        process = subprocess.Popen(  # noqa: S603 - this interpreter
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        answer = ""
        try:
            for line in process.stdout or ():
                answer = line.strip() or answer
                if line.strip() == BATCH_MARK:
                    on_mark()
            status = process.wait()
        finally:
            try:
                process.send_signal(signal.SIGINT)  # does nothing once it has ended
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LEAVING_SECONDS)
            finally:  # a second Ctrl-C ends it at once
                process.kill()
                process.communicate()
        if status == -signal.SIGKILL:
            return "killed by the kernel: it took more than the limit"
        if status == 0 and answer:
            document: dict[str, Any] = json.loads(answer)
            return str(document["problem"]) if "problem" in document else document
        errors.seek(0)
        return errors.read().strip().rpartition("\n")[2] or f"it ended with status {status}"


def drop_from_cache(paths: Iterable[Path]) -> None:
    """Ask the kernel to drop the cached pages of files; needs no privilege once they are clean."""
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                with file.open("rb") as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def require_group() -> int:
    """Return the version of the memory cgroups that can be made here."""
    with memory_group() as group:
        if group is not None:
            return group.version
    raise UsageError(
        "no memory cgroup can be made here, so nothing would keep the memory limit: that needs "
        "root, or a part of the cgroup tree that was handed over to you. --no-limit compares "
        "without a limit; the page cache then serves reads through it"
    )


def split_tables(schema: Schema) -> tuple[list[AttributeSpec], list[AttributeSpec]]:
    """Return the attributes whose rows are read from disk, and those held in memory."""
    attributes = [*schema.node_attributes(), *schema.edge_attributes()]
    wide = read_tables(attributes)
    if not wide:
        raise UsageError(
            "no attribute of the store is stored in pages, so no rows are read from disk and "
            "there is nothing to compare; see 'gnnstore inspect'"
        )
    return wide, [spec for spec in attributes if spec not in wide]


class DeviceLimits(NamedTuple):
    """Speed of a disk in one measurement."""

    random_reads_per_second: float  # reads of 4 KiB, at the best of some queue depths
    bytes_per_second: float  # bandwidth of large sequential blocks
    engine: str
    is_direct: bool  # whether reads bypassed the page cache


def measure_disk_of(store: GraphStore) -> DeviceLimits:
    """Read some of the first table that is read from disk, for less than a second.

    A shared disk changes from minute to minute, so strategies are compared with the limits of the
    same minute. Nothing is written.
    """
    array = store.reader.paged(split_tables(store.schema)[0][0])
    size, path = max(zip(array.body_bytes, array.file_paths, strict=True))
    # Page faults have no queue; threads with pread work everywhere.
    engine = choose_engine(path).name.replace("mmap", "pread")
    small, large = (min(block, 1 << size.bit_length() - 1) for block in (4 << 10, 1 << 20))
    with storage_errors("measure the disk on", path):
        files = _core.FileSet([str(path)], [size])

        def rate(block: int, depth: int, draw: Draw) -> float:
            most = max(1, size // block) if block == large else 1 << 20
            options = {"block_bytes": block, "depth": depth, "max_reads": most}
            return read_rate(files, engine, draw=draw, seconds=0.2, **options)

        at_once = max(rate(small, depth, at_random(size, small)) for depth in (64, 128, 256))
        in_order = rate(large, 8, in_sequence(size, large)) * large
    return DeviceLimits(at_once, in_order, engine, files.is_direct)
