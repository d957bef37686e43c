"""How the allocator of this process treats large blocks; for the command line only.

It is the process's own to decide, so a library had better not.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # of mallopt(3)
_THRESHOLD_BYTES = 2**20


def return_large_blocks() -> None:
    """Let blocks from 1 MiB on go back to the system as soon as they are freed.

    By default glibc raises its threshold to the largest block that was freed, up to 32 MiB, and
    keeps what is smaller, for each thread that ever asked: 130 MB after a text edge list of
    95 MB had been read in pieces of 4, which is nobody's budget.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
