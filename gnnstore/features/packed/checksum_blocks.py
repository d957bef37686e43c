"""The checksums of packed runs: a crc32c for each piece of some kilobytes, compared as it is read.

They are computed of what is in memory while it is packed, not of what can be read back, so that a
disk that alters bytes on their way to it is found out as well.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, storage_error
from gnnstore.formats.packed.manifest import CHECKED_ROWS, MAX_PIECE_BYTES

# Runs begin at multiples of this: what direct reads of any common disk are aligned to.
RUN_ALIGNMENT_BYTES = 4096
# Small enough that a piece which was compared is still in the second-level cache when its rows
# are copied, and that a message says where a damage is; 4 bytes for each are nothing beside it.
PIECE_BYTES = 128 << 10
assert MAX_PIECE_BYTES % PIECE_BYTES == 0  # noqa: S101 - reads are of MAX_PIECE_BYTES


def num_pieces(run_bytes: npt.NDArray[np.int64], piece_bytes: int) -> npt.NDArray[np.int64]:
    """Return the number of pieces of runs of so many bytes, int64 each."""
    return -(-run_bytes // piece_bytes)


@dataclass(frozen=True, eq=False)
class RunPieces:
    """The checksums of the runs of a table.

    Attributes
    ----------
    crcs : ndarray of uint32 [pieces]
        From ``begins[i]`` to ``begins[i + 1] - 1``: of the pieces of run i.
    begins : ndarray of int64 [S + 1]
    """

    crcs: npt.NDArray[np.uint32]
    begins: npt.NDArray[np.int64]

    @classmethod
    def unknown(cls, run_bytes: npt.NDArray[np.int64]) -> RunPieces:
        """Return room for the checksums of runs of so many bytes, without padding."""
        begins = np.zeros(len(run_bytes) + 1, np.int64)
        np.cumsum(num_pieces(run_bytes, PIECE_BYTES), out=begins[1:])
        return cls(np.zeros(int(begins[-1]), np.uint32), begins)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self.crcs.nbytes + self.begins.nbytes

    def of_run(self, i: int) -> npt.NDArray[np.uint32]:
        """Return the checksums of a run: a view."""
        return self.crcs[self.begins[i] : self.begins[i + 1]]

    def compare(self, i: int, run: npt.NDArray[np.uint8], offset: int) -> None:
        """Compare a run that was read back while packing goes on.

        Parameters
        ----------
        run : ndarray of uint8
        offset : int
            Where it lies in its file.

        Raises
        ------
        OSError
            Naming the first piece that is not what was written.
        """
        found, expected = _core.crc32c_blocks(run, PIECE_BYTES), self.of_run(i)
        bad = np.flatnonzero(found != expected)
        if len(bad):
            first = offset + int(bad[0]) * PIECE_BYTES
            end = min(first + PIECE_BYTES, offset + len(run))
            raise OSError(
                errno.EBADMSG,
                f"bytes {first} to {end} are not what was just written: the crc32c is "
                f"{int(found[bad[0]]):08x}, not {int(expected[bad[0]]):08x}. Test the disk, or "
                "pack to another one",
            )


def shared_crcs(row_crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the checksums of rows that batches share, in the order of their ranks.

    A batch reads some of a segment's rows, and not those between them, so that there are no pieces
    to compare: it has one checksum for `CHECKED_ROWS` of its rows, of these rows' own.

    Parameters
    ----------
    row_crcs : ndarray of uint32 [d]
        crc32c of each row.
    """
    return _core.crc32c_blocks(row_crcs.astype("<u4").view(np.uint8), 4 * CHECKED_ROWS)


def packed_read_error(
    error: OSError, path: str | Path, offset: int, what: str, advice: str
) -> Exception:
    """Return why a run could not be read: it is damaged, or the system refused.

    Parameters
    ----------
    path, offset
        Where the run lies.
    what, advice : str
        Whose rows they are, and what to do where they are damaged.
    """
    if error.errno != errno.EBADMSG:
        return storage_error(error, f"read the packed rows of {what}", path)
    return CorruptStoreError(
        f"{path}: packed rows are damaged: {error.strerror}; they are of {what}. {advice}",
        path=path,
        offset=offset,
    )
