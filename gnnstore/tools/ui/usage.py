"""What this process has used so far: bytes written and peak memory, as the kernel counts them."""

from __future__ import annotations

import re
import resource
from pathlib import Path

from gnnstore.units import format_size

_IO = Path("/proc/self/io")


class Usage:
    """Bytes written since it was made, and the peak memory of the process.

    Parameters
    ----------
    io : Path
        The kernel's counters; a parameter for the tests.
    """

    def __init__(self, io: Path = _IO) -> None:
        self._io = io
        self._written_before = self._read_written()

    def written_bytes(self) -> int | None:
        """Return the bytes that were handed to write calls; None where nobody counts them."""
        now = self._read_written()
        if now is None or self._written_before is None:
            return None
        return now - self._written_before

    def peak_memory_bytes(self) -> int:
        """Return the most memory that was resident at a time."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def __str__(self) -> str:
        """Return both for people."""
        written = self.written_bytes()
        peak = f"{format_size(self.peak_memory_bytes())} memory at the peak"
        return peak if written is None else f"{format_size(written)} written, {peak}"

    def _read_written(self) -> int | None:
        try:
            found = re.search(r"^wchar: (\d+)$", self._io.read_text(), re.MULTILINE)
        except OSError:  # some containers hide it
            return None
        return None if found is None else int(found[1])
