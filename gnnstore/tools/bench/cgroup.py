"""Memory limits that the kernel enforces: cgroups of the machine's version, 1 or 2.

Memory that a process allocates and the page cache of the files that it reads count alike, as they
do in a container, unlike with ulimit.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_LIMITS = {1: "memory.limit_in_bytes", 2: "memory.max"}
# A process that was killed leaves its group once the kernel has taken its memory back.
_LEAVING_SECONDS = 10.0


@dataclass(frozen=True)
class MemoryGroup:
    """A cgroup that this process has made."""

    path: Path
    version: int  # 1 or 2

    @property
    def processes(self) -> Path:
        """The file to which the ids of joining processes are written."""
        return self.path / "cgroup.procs"

    def limit(self, num_bytes: int) -> None:
        """Limit the group's memory, without swapping, and reset its peak."""
        if self.version == 1:
            (self.path / "memory.swappiness").write_text("0")
            (self.path / _LIMITS[1]).write_text(str(num_bytes))
            (self.path / "memory.max_usage_in_bytes").write_text("0")
        else:
            swap = self.path / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
            (self.path / _LIMITS[2]).write_text(str(num_bytes))

    def held_bytes(self) -> int:
        """Return the memory of the processes and the kernel's for these, without page cache."""
        stat = (self.path / "memory.stat").read_text()

        def of(name: str) -> int:
            found = re.search(rf"^{name} (\d+)$", stat, re.MULTILINE)
            return int(found[1]) if found else 0

        if self.version == 1:
            return of("rss") + int((self.path / "memory.kmem.usage_in_bytes").read_text())
        return of("anon") + of("kernel")

    def peak_bytes(self) -> int:
        """Return the peak of the group's memory, with page cache; 0 if it is not known."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        file = self.path / name
        return int(file.read_text()) if file.exists() else 0


@contextmanager
def memory_group(root: Path = _ROOT, own: Path = _OWN) -> Iterator[MemoryGroup | None]:
    """Make a group without a limit, and remove it in the end; None if that is not possible."""
    for parent, version in _parents(root, own):
        path = parent / f"gnnstore-benchmark-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            if (path / _LIMITS[version]).exists():
                yield MemoryGroup(path, version)
                return
        finally:
            _remove(path)
    yield None


def _parents(root: Path, own: Path) -> Iterator[tuple[Path, int]]:
    """Yield directories for a group, with the version: the roots, then this process's and above."""
    yield root / "memory", 1
    yield root, 2
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, group = line.split(":", 2)
        version = 2 if number == "0" and not controllers else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        top = root if version == 2 else root / "memory"
        place = top / group.lstrip("/")
        while place not in (top, top.parent):
            yield place, version
            place = place.parent


def _remove(path: Path) -> None:
    deadline = time.monotonic() + _LEAVING_SECONDS
    while True:
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
