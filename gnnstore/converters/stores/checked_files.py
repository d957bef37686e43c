"""Reads the files of a store in pieces, and compares every block with its checksum meanwhile.

A store made from another gets checksums of its own, which would vouch for bytes that were damaged
before. So the bytes are compared where they are in memory anyway: with `gnnstore verify`
beforehand, every byte would be read twice.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.spill_files import read_exactly
from gnnstore.formats.container.files import BLOCK_BYTES
from gnnstore.formats.container.reader import SealedReader


class CheckedFiles:
    """The files of a sealed directory, read in pieces of any size.

    Where a piece needs a part of a block, the whole block is read. The last such block of each
    array is kept, since the next piece begins in it.
    """

    def __init__(self, reader: SealedReader[Any]) -> None:
        self._reader = reader
        self._last_blocks: dict[Path, tuple[Path, int, npt.NDArray[np.uint8]]] = {}

    @cached_property
    def _files(self) -> dict[Path, tuple[int, npt.NDArray[np.uint32]]]:
        """The size of each file, and the crc32c of each of its blocks."""
        manifest, crcs = self._reader.manifest, self._reader.block_checksums()
        return {
            self._reader.path / entry.path: (entry.size_bytes, crcs[first:][: entry.num_blocks])
            for entry, first in zip(manifest.files, manifest.first_blocks()[:-1], strict=True)
        }

    def fill(self, path: Path, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill an array with bytes of a file, from an offset on."""
        end, size = offset + len(out), self._files[path][0]
        low = -(-offset // BLOCK_BYTES) * BLOCK_BYTES
        high = max(low, end if end == size else end // BLOCK_BYTES * BLOCK_BYTES)
        if low < end and low < high:
            self._read(path, low, out[low - offset : high - offset])
        for begin, stop in ((offset, min(low, end)), (high, end)):
            if begin < stop:
                number, skipped = divmod(begin, BLOCK_BYTES)
                block = self._block(path, number)
                out[begin - offset : stop - offset] = block[skipped:][: stop - begin]

    def _block(self, path: Path, number: int) -> npt.NDArray[np.uint8]:
        last = self._last_blocks.get(path.parent)
        if last is not None and last[:2] == (path, number):
            return last[2]
        begin = number * BLOCK_BYTES
        block = np.empty(min(BLOCK_BYTES, self._files[path][0] - begin), np.uint8)
        self._read(path, begin, block)
        self._last_blocks[path.parent] = path, number, block
        return block

    def _read(self, path: Path, begin: int, out: npt.NDArray[np.uint8]) -> None:
        """Read blocks, the last of a file perhaps a short one, and compare them."""
        read_exactly(path, begin, out, "the store")
        first, found = begin // BLOCK_BYTES, _core.crc32c_blocks(out, BLOCK_BYTES)
        expected = self._files[path][1][first : first + len(found)]
        self._reader.check_blocks(path, first, found, expected)
