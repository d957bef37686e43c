"""Parts of a file, read and written whole."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt


def read_part(descriptor: int, num_bytes: int, offset: int) -> npt.NDArray[np.uint8]:
    """Return so many bytes from an offset on.

    Raises
    ------
    OSError
        If they cannot be read, or the file ends before.
    """
    out = np.empty(num_bytes, np.uint8)
    done = 0
    while done < num_bytes:
        count = os.preadv(descriptor, [out[done:].data], offset + done)
        if count == 0:
            raise OSError(f"the file ends at byte {offset + done}")
        done += count
    return out


def write_part(descriptor: int, data: npt.NDArray[np.uint8], offset: int) -> int:
    """Write bytes from an offset on; return where that ends.

    Raises
    ------
    OSError
        If they cannot be written.
    """
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:].data, offset + done)
    return offset + done
