"""A memory limit that the kernel keeps: a cgroup, version 1 or 2, whichever the machine has.

What a process allocates and the page cache of the files that it touches count alike, as they
do in a container. That is the difference to a machine with as much memory and to ulimit.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryGroup:
    """A cgroup of one's own.

    Attributes
    ----------
    path : Path
        Its directory.
    version : int
        1 or 2.
    """

    path: Path
    version: int

    @property
    def processes(self) -> Path:
        """The file that takes the ids of processes which join the group."""
        return self.path / "cgroup.procs"

    def limit(self, num_bytes: int) -> None:
        """Let the group hold so many bytes, without swapping; the peak is counted anew.

        Raises
        ------
        OSError
            If it holds more already, and cannot give it back.
        """
        if self.version == 1:
            (self.path / "memory.swappiness").write_text("0")
            (self.path / "memory.limit_in_bytes").write_text(str(num_bytes))
            (self.path / "memory.max_usage_in_bytes").write_text("0")
        else:
            swap = self.path / "memory.swap.max"
            if swap.exists():
                swap.write_text("0")
            (self.path / "memory.max").write_text(str(num_bytes))

    def held_bytes(self) -> int:
        """Return what cannot be dropped: memory of processes, and the kernel's for them."""
        stat = (self.path / "memory.stat").read_text()

        def of(name: str) -> int:
            found = re.search(rf"^{name} (\d+)$", stat, re.MULTILINE)
            return int(found[1]) if found else 0

        if self.version == 1:
            return of("rss") + int((self.path / "memory.kmem.usage_in_bytes").read_text())
        return of("anon") + of("kernel")

    def peak_bytes(self) -> int:
        """Return the most that the group has held, page cache included; 0 if nobody knows."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        file = self.path / name
        return int(file.read_text()) if file.exists() else 0


@contextmanager
def memory_group() -> Iterator[MemoryGroup | None]:
    """Make a group without a limit so far, and remove it in the end; None where none can be."""
    for parent, version, limit in (
        (_ROOT / "memory", 1, "memory.limit_in_bytes"),
        (_ROOT, 2, "memory.max"),
    ):
        path = parent / f"gnnstore-benchmark-{uuid.uuid4().hex[:8]}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            if (path / limit).exists():
                yield MemoryGroup(path, version)
                return
        finally:
            path.rmdir()
    yield None
