"""How much memory the demonstration takes, told apart by what it is.

The resident size of a process counts pages of mapped files too, which the kernel drops when
memory is short. What training really needs is anonymous memory, so that is what is shown
beside the size of the store.
"""

from __future__ import annotations

import resource
import threading
from pathlib import Path
from types import TracebackType

_SECONDS_BETWEEN_LOOKS = 0.02


def anonymous_bytes() -> int:
    """Return this process's resident memory that is no file's, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def peak_resident_bytes() -> int:
    """Return the most memory the process ever had resident, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class PeakMemory:
    """Watches anonymous memory from a thread while its context lasts.

    Attributes
    ----------
    added_bytes : int
        The peak, less what there was at the start.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gnnstore-demo-memory")
        self._before = anonymous_bytes()
        self._peak = self._before

    @property
    def added_bytes(self) -> int:
        """Bytes at the peak beyond those at the start."""
        return self._peak - self._before

    def _watch(self) -> None:
        while not self._stop.wait(_SECONDS_BETWEEN_LOOKS):
            self._peak = max(self._peak, anonymous_bytes())

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._peak = max(self._peak, anonymous_bytes())
