"""Signatures of the compiled kernels: which arrays go in, which come out, what is checked.

All kernels share these rules. Arrays are taken as they are, never converted or copied: a
wrong dtype is a `TypeError`, a wrong shape or a non-contiguous array a `ValueError`, an id
out of range an `IndexError`. The GIL is released while a kernel works, and its arrays must
not be changed meanwhile. `num_threads` threads are started and joined within the call
(1 to 1024), and never change a result. Paths are str, bytes or `os.PathLike`; a failing
system call is an `OSError` with errno and filename. New arrays of several megabytes live in
recycled buffers (see `empty`).

Symbols in shapes: N nodes, E edges, n items, P bytes per page.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

_Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Excluded: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
_Ids: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

# --- checksums -----------------------------------------------------------------------------

def crc32c(data: NDArray[np.uint8], initial: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of bytes.

    Parameters
    ----------
    data : ndarray of uint8, shape [n]
        The bytes; any contiguous vector, read-only ones too.
    initial : int
        Checksum of the bytes before `data`, so that a stream can be summed in pieces.

    Returns
    -------
    int
        Checksum of everything so far, in [0, 2^32).
    """

def crc32c_portable(data: NDArray[np.uint8], initial: int = 0) -> int:
    """Return what `crc32c` returns, computed from tables alone.

    `crc32c` runs this on processors without the instruction; it is here so that tests can compare
    the two on any machine.
    """

def crc32c_streams(data: NDArray[np.uint8], initial: int = 0) -> int:
    """Return what `crc32c` returns, computed as on processors without AVX-512."""

def crc32c_implementation() -> Literal["avx512", "sse4.2", "portable"]:
    """Return which implementation `crc32c` uses on this processor."""

def crc32c_blocks(data: NDArray[np.uint8], block_bytes: int) -> NDArray[np.uint32]:
    """Return one CRC-32C per block of `block_bytes`.

    Parameters
    ----------
    data : ndarray of uint8, shape [n]
    block_bytes : int
        At least 1; the last block may be shorter.

    Returns
    -------
    ndarray of uint32, shape [ceil(n / block_bytes)]
    """

def crc32c_rows(
    data: NDArray[np.uint8], rows: NDArray[np.int32], row_bytes: int
) -> NDArray[np.uint32]:
    """Return one CRC-32C per row.

    Parameters
    ----------
    data : ndarray of uint8
    rows : ndarray of int32, shape [n]
        Row i is ``data[i * row_bytes:(i + 1) * row_bytes]``.
    row_bytes : int

    Returns
    -------
    ndarray of uint32, shape [n]

    Raises
    ------
    IndexError
        There is no such row.
    """

def crc32c_ranges(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    crcs: NDArray[np.uint32],
) -> None:
    """Continue the CRC-32C of each of several ranges.

    Parameters
    ----------
    data : ndarray of uint8
    begins, ends : ndarray of int64, shape [n]
        The bytes of range i are ``data[begins[i]:ends[i]]``.
    crcs : ndarray of uint32, shape [n]
        Checksum of each range's bytes before these, 0 if there are none; updated.

    Raises
    ------
    IndexError
        A range leaves the data; `crcs` is as before.
    """

def crc32c_file(path: _Path, block_bytes: int, num_threads: int = 1) -> NDArray[np.uint32]:
    """Return one CRC-32C per block of a file, reading it once in order.

    Memory is 256 KiB per thread for any file and block. Threads take runs of whole
    blocks.

    Parameters
    ----------
    path : path-like
    block_bytes : int
        At least 1; the last block may be shorter.

    Returns
    -------
    ndarray of uint32, shape [ceil(file size / block_bytes)]

    Raises
    ------
    OSError
        The file cannot be opened or read, or becomes shorter meanwhile (EIO); the message
        has the byte offset.
    """

# --- files ---------------------------------------------------------------------------------

def map_files(
    paths: Iterable[_Path],
    body_bytes: Sequence[int],
    advice: Literal["normal", "random", "sequential"] = "normal",
) -> NDArray[np.uint8]:
    """Map the beginnings of files one behind the other, as one array.

    The shards of an array thereby look like one raw array, without a copy and without
    holding a descriptor per shard.

    Parameters
    ----------
    paths : iterable of path-like
    body_bytes : sequence of int
        How many bytes of each file to map. Every body but the last must be a multiple of
        the system's page size; a body of 0 bytes is allowed.
    advice : {"normal", "random", "sequential"}
        Passed to `madvise` for the whole range. Without "random" the system reads tens of
        pages around each page that a random access touches.

    Returns
    -------
    ndarray of uint8, shape [sum(body_bytes)], read-only
        Unmapped when its last view dies. A file that is truncated after it was mapped kills
        the process with SIGBUS when the lost part is read, as any mapping does; committed
        files of a store are never changed.

    Raises
    ------
    ValueError
        Bodies that do not add up to whole system pages, or a negative one.
    OSError
        A file cannot be opened or mapped, or is shorter than its body (EIO).
    """

def rename_noreplace(source: _Path, target: _Path) -> None:
    """Rename a file or directory, atomically, unless the target exists.

    Raises
    ------
    FileExistsError
        The target exists; nothing was changed.
    OSError
        The system or the file system cannot do it (EINVAL: no support).
    """

def remove_tree(path: _Path) -> None:
    """Remove a directory, if it is one, and all that is in it, as far as that can be.

    In one step of the interpreter: `shutil.rmtree` that is interrupted may close a descriptor
    twice, which is somebody else's then.
    """

def rename_exchange(a: _Path, b: _Path) -> None:
    """Exchange two existing files or directories of one file system atomically.

    Raises
    ------
    FileNotFoundError
        One of them does not exist; nothing was changed.
    OSError
        The system or the file system cannot do it (EINVAL: no support).
    """

# --- failing system calls, for tests -------------------------------------------------------

def set_faults(faults: Sequence[tuple[str, int, int, int, int]]) -> None:
    """Make system calls of this module fail, in the whole process, until the next call.

    `tests.support.faults` wraps this in a context manager. Every fault counts all calls
    of its kind; where several are due, the first does its work and the others wait for the
    next call.

    Parameters
    ----------
    faults : sequence of (call, skip, times, errno, short_bytes)
        In place of those before; empty: none.

        call : str
            "open", "fstat", "statx", "pread", "pwrite", "fallocate", "mmap", "madvise",
            "fadvise", "renameat2", "thread" (starting one), "io_uring_setup",
            "io_uring_register", "io_uring_enter" or "io_uring_read" (the result of a read that
            has finished).
        skip : int
            Calls that are let through first.
        times : int
            Calls that fail after that; -1: all.
        errno : int
            The error that they fail with; 0: a "pread", "pwrite" or "io_uring_read" is cut short
            instead.
        short_bytes : int
            Bytes of a short one, or fewer if there are not as many; 0: none, as at the end
            of the file.

    Raises
    ------
    ValueError
        An unknown call, or numbers that mean nothing; the faults before stay in force.
    """

def num_faults() -> int:
    """Return how many calls have failed because of the latest `set_faults`."""

# --- rows ----------------------------------------------------------------------------------

def gather_rows(
    table: NDArray[np.uint8],
    ids: _Ids,
    out: NDArray[np.uint8],
    *,
    num_rows: int,
    row_bytes: int,
    rows_per_page: int,
    page_stride_bytes: int,
    num_threads: int = 1,
) -> None:
    """Copy rows of a table in pages to consecutive places: the floor under every batch.

    Row i lies at byte ``i // rows_per_page * page_stride_bytes + i % rows_per_page *
    row_bytes``. A dense table has ``rows_per_page=1, page_stride_bytes=row_bytes``.

    Parameters
    ----------
    table : ndarray of uint8
        At least up to the end of row ``num_rows - 1``: a mapping of a store, or memory.
    ids : ndarray of int32 or int64, shape [n]
        Rows to copy, in any order, repeated or not.
    out : ndarray of uint8, shape [n * row_bytes], writable
        Receives the rows; must not overlap the table. A buffer of `pool_empty` spares the
        page faults of fresh memory, which cost more than the copy.
    num_rows, row_bytes, rows_per_page, page_stride_bytes : int
        The table's geometry.
    num_threads : int
        Parts of about 1 MiB of rows are shared out; fewer parts use fewer threads.

    Raises
    ------
    IndexError
        An id is outside [0, num_rows); nothing was written.
    ValueError
        Geometry, table and out do not fit together.
    """

def gather_decoded(
    table: NDArray[np.uint8],
    ids: _Ids,
    scales: NDArray[np.float32],
    out: NDArray[np.uint8],
    *,
    num_rows: int,
    row_bytes: int,
    rows_per_page: int,
    page_stride_bytes: int,
    dtype: str,
    num_threads: int = 1,
) -> None:
    """Copy rows of a table of int8 as `gather_rows` does, as the numbers that they stand for.

    Parameters
    ----------
    scales : ndarray of float32, shape [row_bytes]
        Of each column; finite and normal.
    out : ndarray of uint8, writable
        Receives n rows of `row_bytes` numbers of the type `dtype`.
    dtype : str
        "float32", "float16" or "bfloat16".
    """

def decode_rows(
    rows: NDArray[np.uint8],
    scales: NDArray[np.float32],
    out: NDArray[np.uint8],
    *,
    dtype: str,
    num_threads: int = 1,
) -> None:
    """Write what rows of int8 stand for, which lie one behind the other, as `gather_decoded`."""

def read_pages(
    paths: Iterable[_Path],
    body_bytes: Sequence[int],
    out: NDArray[np.uint8],
    *,
    num_rows: int,
    row_bytes: int,
    rows_per_page: int,
    page_stride_bytes: int,
    num_threads: int = 1,
) -> None:
    """Read all rows of a table in pages from its files, dropping the pages' padding.

    Parameters
    ----------
    paths : iterable of path-like
        The shards, in order.
    body_bytes : sequence of int
        Bytes of pages at the beginning of each file. Every body but the last must be a
        multiple of `page_stride_bytes`; together they reach at least the end of the last
        row, and what lies behind it is not read.
    out : ndarray of uint8, shape [num_rows * row_bytes], writable
    num_rows, row_bytes, rows_per_page, page_stride_bytes : int
        The table's geometry, as in `gather_rows`.
    num_threads : int
        Threads that read; each needs about 1 MiB (or one page, if that is more) when pages
        have padding, nothing when they have none.

    Raises
    ------
    OSError
        A file cannot be opened or read, or ends early (EIO); the message has the byte offset.
    ValueError
        Geometry, bodies and out do not fit together.
    """

# --- reads around the page cache ------------------------------------------------------------

class FileSet:
    """The files of an array in pages, open for reading; bodies stand one behind the other.

    Parameters
    ----------
    paths : iterable of path-like
    body_bytes : sequence of int
        Bytes of pages at the beginning of each file.
    direct : bool
        Read around the page cache (O_DIRECT) where the file system allows it.

    Raises
    ------
    OSError
        A file cannot be opened, or is shorter than its body (EIO).
    """

    def __init__(
        self, paths: Iterable[_Path], body_bytes: Sequence[int], *, direct: bool = True
    ) -> None: ...
    @property
    def alignment_bytes(self) -> int:
        """Bytes that offsets and lengths of reads are multiples of."""
    @property
    def is_direct(self) -> bool:
        """Whether all files are read around the page cache."""
    @property
    def buffered_because(self) -> str:
        """Why not, although it was wanted; empty if they are."""

class ReadCounts:
    """Counts of reads by engines, and of rows that came from a cache instead. They add up.

    Rows in memory or in a mapping are not counted: the first take no read, and the reads of a
    mapping are the operating system's.

    Parameters
    ----------
    reads, bytes_read, bytes_useful, rows_read, rows_cached : int

    Attributes
    ----------
    reads : int
        Reads submitted; one that the system cuts short and continues counts once.
    bytes_read : int
        Bytes of these reads, with the rest of their pages and the gaps that they span.
    bytes_useful : int
        Bytes of the distinct rows that were read.
    rows_read, rows_cached : int
        Distinct rows that were read, and rows that were copied from a cache.
    depth_sum, waits : int
        The sum of the reads in flight whenever a thread began to wait, and the number of waits.
    seconds_waiting : float
        Time that threads waited for reads, without the copying meanwhile.
    """

    def __init__(
        self,
        *,
        reads: int = 0,
        bytes_read: int = 0,
        bytes_useful: int = 0,
        rows_read: int = 0,
        rows_cached: int = 0,
    ) -> None: ...
    @property
    def reads(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def bytes_useful(self) -> int: ...
    @property
    def rows_read(self) -> int: ...
    @property
    def rows_cached(self) -> int: ...
    @property
    def depth_sum(self) -> int: ...
    @property
    def waits(self) -> int: ...
    @property
    def seconds_waiting(self) -> float: ...
    def __add__(self, other: ReadCounts) -> ReadCounts: ...
    def __eq__(self, other: object) -> bool: ...
    def __repr__(self) -> str: ...
    def __getstate__(self) -> list[int]: ...
    def __setstate__(self, state: Sequence[int]) -> None: ...

class Reader:
    """Engines with their staging memory, lent to one call at a time.

    Safe to use from many threads at once: each call that is under way has an engine of its
    own, which is made when none is idle. After a fork, the child makes its own.

    Parameters
    ----------
    engine : {"io_uring", "pread", "mmap"}
    queue_depth : int
        Reads in flight per engine, 1 to 4096.
    num_threads : int
        Threads per engine of "pread" and "mmap".
    max_read_bytes : int
        Merged reads are cut to this; a multiple of 4096.
    """

    def __init__(
        self,
        engine: str,
        *,
        queue_depth: int = 128,
        num_threads: int = 32,
        max_read_bytes: int = 65536,
    ) -> None: ...
    @property
    def staging_bytes(self) -> int:
        """Memory of one engine that reads go to before rows are copied out."""
    def describe(self) -> str:
        """Return how an engine works here: "io_uring, 128 deep, registered buffers"."""
    def gather_rows(
        self,
        files: FileSet,
        ids: _Ids,
        out: NDArray[np.uint8],
        *,
        num_rows: int,
        row_bytes: int,
        rows_per_page: int,
        page_stride_bytes: int,
        begin_bytes: int = 0,
        gap_bytes: int = 0,
        cache: NDArray[np.uint8] | None = None,
        slots: NDArray[np.int32] | None = None,
    ) -> ReadCounts:
        """Read rows of a table in pages to consecutive places; a cache spares reads.

        `tests.support.twins.reads.plan_reads` defines which reads are made. Cached rows are
        copied while reads are in flight.

        Parameters
        ----------
        files : FileSet
        ids : ndarray of int32 or int64, shape [n]
            Rows, in any order, repeated or not.
        out : ndarray of uint8, shape [n * row_bytes], writable
        num_rows, row_bytes, rows_per_page, page_stride_bytes : int
            The table's geometry, as in the function `gather_rows`.
        begin_bytes : int
            Where row 0 lies, for a table in a part of a file.
        gap_bytes : int
            Rows that lie no further apart are fetched by one read.
        cache : ndarray of uint8, shape [C, row_bytes], optional
            As in `copy_from_slots`.
        slots : ndarray of int32, shape [n], optional
            Row k is copied from slot `slots[k]` of the cache; a negative one is read. Without a
            cache, rows that have a slot are left as they are.

        Returns
        -------
        ReadCounts

        Raises
        ------
        IndexError
            An id or a slot is out of range; nothing was written.
        ValueError
            Geometry, files and out do not fit together.
        OSError
            A read failed, or met the end of its file (EIO); the message has the offset.
            Nothing is in flight any more.
        """
    def read_ranges(
        self,
        files: FileSet,
        file_index: NDArray[np.int64],
        offsets: NDArray[np.int64],
        num_bytes: NDArray[np.int64],
        out_offsets: NDArray[np.int64],
        out: NDArray[np.uint8],
    ) -> ReadCounts:
        """Read byte ranges of files, straight to their places where these are aligned.

        Parameters
        ----------
        files : FileSet
        file_index, offsets, num_bytes, out_offsets : ndarray of int64, shape [n]
            Range k: `num_bytes[k]` bytes at `offsets[k]` of file `file_index[k]`, to
            `out[out_offsets[k]:]`. Need not be aligned; may overlap in the files.
        out : ndarray of uint8, writable

        Returns
        -------
        ReadCounts

        Raises
        ------
        IndexError
            A file, a range of its body or a place in `out` is out of range.
        OSError
            As in `gather_rows`.
        """

def check_cached(nodes: NDArray[np.int64], slots: NDArray[np.int32], ids: _Ids) -> None:
    """Make sure that slots of a cache hold the rows that a plan expects in them.

    Parameters
    ----------
    nodes : ndarray of int64, shape [C]
        The row in each slot; -1: none.
    slots : ndarray of int32, shape [n]
        Where each row should be; negative: nowhere.
    ids : ndarray of int32 or int64, shape [n]

    Raises
    ------
    ValueError
        A slot holds another row, or none.
    IndexError
        A slot is outside the cache.
    """

def drop_pinned(bits: NDArray[np.uint64], ids: _Ids) -> _Ids:
    """Return the ids that are not pinned, in their order.

    `tests.support.twins.caches.drop_pinned` is the definition.

    Parameters
    ----------
    bits : ndarray of uint64
        The result of `index_nodes` for the pinned nodes.
    ids : ndarray of int32 or int64, shape [n]

    Returns
    -------
    ndarray [m]
        A new array of the same element type.

    Raises
    ------
    IndexError
        An id is outside the bitmap.
    """

def add_pinned(
    bits: NDArray[np.uint64],
    ranks: NDArray[np.int32],
    ids: _Ids,
    slots: NDArray[np.int32],
    positions: NDArray[np.int32],
    *,
    first_slot: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Add the slots of pinned rows to the plan of a batch's other rows.

    `tests.support.twins.caches.add_pinned` is the definition.

    Parameters
    ----------
    bits, ranks : ndarray
        The result of `index_nodes` for the pinned nodes.
    ids : ndarray of int32 or int64, shape [n]
        All ids of the batch.
    slots : ndarray of int32, shape [m]
        The slot of each id that `drop_pinned` keeps.
    positions : ndarray of int32, shape [c]
        Rows that enter the cache, among the m.
    first_slot : int
        Of the first pinned node; the others follow.

    Returns
    -------
    slots : ndarray of int32, shape [n]
        The slot of each id.
    positions : ndarray of int32, shape [c]
        Rows that enter, among all n.

    Raises
    ------
    ValueError
        There are not m ids that are not pinned.
    IndexError
        An id is outside the bitmap, or a position not below m.
    """

def places_of(ids: NDArray[Any], known: NDArray[Any]) -> NDArray[np.int32]:
    """Return the first place of each id among some known ones, -1 for one that is not there.

    Takes a hash table of 16 to 64 bytes for each known id.
    `tests.support.twins.caches.places_of` is the definition.

    Parameters
    ----------
    ids : ndarray of int32 or int64, shape [n]
    known : ndarray of int32 or int64, shape [k]

    Returns
    -------
    ndarray of int32, shape [n]

    Raises
    ------
    ValueError
        There are 2^31 known ids or more.
    """

def load_acquire(cell: NDArray[np.int64]) -> int:
    """Return the element of an array of one; what its writer wrote before can be read.

    Parameters
    ----------
    cell : ndarray of int64, shape [1]
        Perhaps in memory that another process writes to.

    Raises
    ------
    ValueError
        The array has not one element.
    """

def store_release(cell: NDArray[np.int64], value: int) -> None:
    """Write the element of an array of one, after all that was written before.

    Parameters
    ----------
    cell : ndarray of int64, shape [1], writable
    value : int

    Raises
    ------
    ValueError
        The array has not one element.
    """

def copy_from_slots(
    cache: NDArray[np.uint8],
    slots: NDArray[np.int32],
    out: NDArray[np.uint8],
    *,
    num_threads: int = 1,
) -> int:
    """Copy rows out of a cache's slots, and leave the others as they are.

    Parameters
    ----------
    cache : ndarray of uint8, shape [C, row_bytes]
        Rows that are contiguous, one behind the other, with any distance.
    slots : ndarray of int32, shape [n]
        Where row k of `out` lies; negative: nowhere.
    out : ndarray of uint8, shape [n * row_bytes], writable
    num_threads : int
        The most that copy, about 2 MiB at a time each.

    Returns
    -------
    int
        Rows copied.

    Raises
    ------
    IndexError
        A slot is outside the cache; nothing was written.
    ValueError
        Lengths that do not fit the cache's rows.
    """

def decode_from_slots(
    cache: NDArray[np.uint8],
    slots: NDArray[np.int32],
    missed: NDArray[np.uint8],
    scales: NDArray[np.float32],
    out: NDArray[np.uint8],
    *,
    dtype: str,
    num_threads: int = 1,
) -> int:
    """Write what rows of int8 stand for, out of a cache's slots and, in their order, others.

    Parameters
    ----------
    cache, slots
        As in `copy_from_slots`.
    missed : ndarray of uint8, shape [m * row_bytes]
        The rows of the m negative slots, one behind the other.
    scales, out, dtype
        As in `gather_decoded`; `out` has n rows.

    Returns
    -------
    int
        Rows that came from slots.

    Raises
    ------
    IndexError
        A slot is outside the cache; nothing was written.
    ValueError
        Lengths that do not fit one another.
    """

def copy_to_slots(
    rows: NDArray[np.uint8],
    positions: NDArray[np.int32],
    cache: NDArray[np.uint8],
    slots: NDArray[np.int32],
) -> None:
    """Copy rows of a batch into slots of a cache.

    Parameters
    ----------
    rows : ndarray of uint8, shape [n * row_bytes]
    positions, slots : ndarray of int32, shape [c]
        Row `positions[j]` goes to slot `slots[j]`.
    cache : ndarray of uint8, shape [C, row_bytes], writable
        As in `copy_from_slots`.

    Raises
    ------
    IndexError
        A position or a slot is out of range; nothing was written.
    ValueError
        Lengths that do not fit the cache's rows or each other.
    """

def sort_misses(
    ids: _Ids,
    slots: NDArray[np.int32],
    rows: NDArray[Any],
    positions: NDArray[np.int32],
    *,
    num_rows: int,
) -> tuple[int, NDArray[np.int32], NDArray[np.int32]]:
    """Sort the missed accesses of one batch by row.

    `tests.support.twins.packing.sort_misses` is the definition. Takes 16 bytes for each miss.

    Parameters
    ----------
    ids : ndarray of int32 or int64, shape [n]
    slots : ndarray of int32, shape [n]
        Negative: missed.
    rows : ndarray of the ids' dtype [m], writable
        Its beginning is filled with the distinct rows that are missed, in the order of the table.
    positions : ndarray of int32 [m], writable
        Where in the batch each of them comes first.
    num_rows : int
        Of the table.

    Returns
    -------
    num_missed : int
        Distinct rows.
    repeat_targets, repeat_sources : ndarray of int32
        Where rows come again, by row; and where in the batch the same row comes first.

    Raises
    ------
    IndexError
        An id is outside [0, num_rows).
    ValueError
        Arrays do not fit together, more than m distinct rows are missed, or the batch has 2^31
        rows.
    """

def min_pack_window_bytes(
    files: FileSet,
    *,
    num_rows: int,
    row_bytes: int,
    rows_per_page: int,
    page_stride_bytes: int,
    gap_bytes: int,
) -> int:
    """Return the least `window_bytes` of `pack_rows` for a table."""

def pack_rows(
    files: FileSet,
    rows: _Ids,
    begins: NDArray[np.int64],
    num_rows_of: NDArray[np.int64],
    paths: Iterable[_Path],
    file_bytes: Sequence[int],
    chunk_files: NDArray[np.int64],
    chunk_offsets: NDArray[np.int64],
    chunk_crcs: NDArray[np.uint32],
    progress: NDArray[np.int64],
    *,
    engine: str,
    num_rows: int,
    row_bytes: int,
    rows_per_page: int,
    page_stride_bytes: int,
    gap_bytes: int,
    num_windows: int,
    window_bytes: int,
    buffer_bytes: int,
    num_spare_buffers: int,
    piece_bytes: int,
    num_threads: int = 1,
    grows: bool = False,
) -> dict[str, int]:
    """Write the rows that batches miss to files, batch by batch, reading a table once in order.

    Besides its arguments it takes ``num_windows * window_bytes + (S + num_spare_buffers) *
    buffer_bytes`` bytes of memory.

    Parameters
    ----------
    files : FileSet
        The table.
    rows : ndarray of int32 or int64 [m]
    begins, num_rows_of : ndarray of int64, shape [S]
        Batch i misses ``rows[begins[i]:begins[i] + num_rows_of[i]]``, which ascend.
    paths : iterable of path-like
        Files to make; none may exist. After an error they may.
    file_bytes : sequence of int
        Their sizes.
    grows : bool
        The files exist, and are made longer; chunks must lie behind what they hold.
    chunk_files, chunk_offsets : ndarray of int64, shape [S]
        Where the rows of each batch go, one behind the other: a file, and a multiple of 4096
        in it. The last block of 4096 bytes is filled up with zeros.
    chunk_crcs : ndarray of uint32, writable
        Becomes the crc32c of each piece of each batch's rows, computed before they are written.
    progress : ndarray of int64, shape [2], writable
        The first counts bytes read and written meanwhile; once another thread makes the second
        anything but 0, the call ends with ECANCELED.
    engine : {"io_uring", "pread", "mmap"}
        The engine that reads the table.
    num_rows, row_bytes, rows_per_page, page_stride_bytes : int
        The table's geometry, as in `gather_rows`.
    gap_bytes : int
        Rows that lie no further apart are fetched by one read.
    num_windows, window_bytes : int
        Parts of the table that are being read or copied, and how much is read of each at most:
        a multiple of 4096, at least what `min_pack_window_bytes` says.
    buffer_bytes : int
        Bytes of a batch that are collected before they are written; a multiple of 4096.
    num_spare_buffers : int
        Buffers that can be full while every batch has one to fill; at least 1.
    piece_bytes : int
        Of a piece; the last one of each batch has what is left.
    num_threads : int
        Threads that copy rows, each for batches of its own. Others read and write.

    Returns
    -------
    dict
        ``reads`` and ``bytes_read`` of the table, ``writes``, ``bytes_written``, ``rows_packed``.

    Raises
    ------
    OSError
        A file cannot be made, read or written: ENOSPC before anything is written where the
        file system can set room aside. Nothing is in flight any more.
    IndexError, ValueError
        Arrays, geometry and files do not fit together.
    """

def pack_spilled_rows(
    files: FileSet,
    ids: SpillFile,
    begins: NDArray[np.int64],
    num_rows_of: NDArray[np.int64],
    crcs: NDArray[np.uint32],
    samples: _Ids,
    paths: Iterable[_Path],
    file_bytes: Sequence[int],
    chunk_files: NDArray[np.int64],
    chunk_offsets: NDArray[np.int64],
    chunk_crcs: NDArray[np.uint32],
    progress: NDArray[np.int64],
    *,
    stride: int,
    max_rows: int,
    engine: str,
    num_rows: int,
    row_bytes: int,
    rows_per_page: int,
    page_stride_bytes: int,
    gap_bytes: int,
    num_windows: int,
    window_bytes: int,
    buffer_bytes: int,
    num_spare_buffers: int,
    piece_bytes: int,
    num_threads: int = 1,
) -> dict[str, int]:
    """Do what `pack_rows` does with rows in a file, range by range of the table.

    Takes ``max_rows`` ids of memory beside what `pack_rows` takes. Where a range ends, blocks of
    the table may be read twice.

    Parameters
    ----------
    ids : SpillFile
    begins, num_rows_of : ndarray of int64, shape [S]
        Batch i misses ``num_rows_of[i]`` rows, which ascend: values of the dtype of `samples`
        from byte ``begins[i]`` on.
    crcs : ndarray of uint32, shape [S]
        Their checksums, as `SpillFile.append` returns them.
    samples : ndarray of int32 or int64
        Rows 0, stride, 2 * stride, ... of each batch, one batch behind the other.
    stride : int
    max_rows : int
        In memory at a time; at least `stride` for each batch, or all that it has.
    files, paths, file_bytes, chunk_files, chunk_offsets, chunk_crcs, progress, engine, num_threads
        As in `pack_rows`, and so is all that is not named here.

    Raises
    ------
    OSError
        As `pack_rows`; with errno EBADMSG, `ids` does not hold what was written.
    IndexError, ValueError
        As `pack_rows`.
    """

def read_packed_rows(
    reader: Reader,
    files: FileSet,
    file: int,
    offset: int,
    positions: NDArray[np.int32],
    repeat_targets: NDArray[np.int32],
    repeat_sources: NDArray[np.int32],
    out: NDArray[np.uint8],
    *,
    row_bytes: int,
    crcs: NDArray[np.uint32] | None = None,
    piece_bytes: int = 0,
) -> ReadCounts:
    """Read packed rows in order and write each to its place in a batch.

    Parameters
    ----------
    reader : Reader
        Reads of its `max_read_bytes`, in order.
    files : FileSet
    file, offset : int
        Where the rows begin: a multiple of 4096.
    positions : ndarray of int32, shape [k]
        Packed row j goes to ``out[positions[j] * row_bytes:]``.
    repeat_targets, repeat_sources : ndarray of int32, shape [r]
        Afterwards row `repeat_targets[j]` of `out` becomes a copy of row `repeat_sources[j]`.
    out : ndarray of uint8, writable
        Whole rows; those that no position names stay as they are.
    crcs : ndarray of uint32, optional
        Of the rows' pieces, as `pack_rows` has them; without, rows are not compared.
    piece_bytes : int
        Of a piece: `max_read_bytes`, or a part of it.

    Returns
    -------
    ReadCounts

    Raises
    ------
    IndexError
        A position is outside of `out`, or the rows outside of the file; nothing was written.
    OSError
        As in `Reader.gather_rows`; with errno EBADMSG, rows are not those that were packed. `out`
        may have been written.
    """

def probe_engine(engine: str, path: _Path, direct: bool = True) -> str:
    """Make an engine as it is really used, and read the beginning of a file with it.

    Returns
    -------
    str
        The engine as `Reader.describe` names it.

    Raises
    ------
    OSError
        The engine does not work here; the message names the call that failed.
    """

def index_nodes(
    nodes: NDArray[np.int64], num_nodes: int
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Index the nodes of a cache whose rows lie in the order of their nodes.

    Parameters
    ----------
    nodes : ndarray of int64, shape [C]
        Strictly ascending, below `num_nodes`.
    num_nodes : int

    Returns
    -------
    bits : ndarray of uint64, shape [ceil(num_nodes / 64)]
        Bit ``v % 64`` of word ``v // 64`` is set if node v is cached.
    ranks : ndarray of int32, of the same shape
        Cached nodes before the word's first.

    Raises
    ------
    IndexError, ValueError
        Nodes are out of range, or do not ascend.
    """

def find_slots(bits: NDArray[np.uint64], ranks: NDArray[np.int32], ids: _Ids) -> NDArray[np.int32]:
    """Return the slot of each node, or -1, from what `index_nodes` returned.

    Raises
    ------
    IndexError
        An id is outside the bitmap.
    """

def plan_fixed(
    bits: NDArray[np.uint64],
    ranks: NDArray[np.int32],
    held: NDArray[np.uint8],
    seen: NDArray[np.uint64],
    ids: _Ids,
    slots: NDArray[np.int32],
) -> tuple[int, NDArray[np.int32], NDArray[np.int32]]:
    """Plan one batch of a cache that holds the rows of some nodes.

    `tests.support.twins.caches.plan_fixed` is the definition.

    Parameters
    ----------
    bits, ranks : ndarray
        The result of `index_nodes` for the nodes.
    held : ndarray of uint8, shape [C], writable
        Whether the row of each slot is there; made 1 for rows that enter.
    seen : ndarray of uint64, of the shape of `bits`, writable
        Zeros, before and after.
    ids : ndarray of int32 or int64, shape [n]
    slots : ndarray of int32, shape [n], writable
        The slot of each row is written there; -1: it is missed.

    Returns
    -------
    num_missed : int
        Distinct rows.
    change_positions, change_slots : ndarray of int32
        Rows at these positions enter these slots after the batch.

    Raises
    ------
    IndexError
        An id is outside the bitmap, or a slot outside the cache; nothing but `slots` is changed.
    """

def count_ids(ids: _Ids, counts: NDArray[np.uint8] | NDArray[np.uint32]) -> None:
    """Add 1 to ``counts[i]`` for each i in ids; a full counter stays full.

    Raises
    ------
    IndexError
        An id is outside `counts`; nothing was counted.
    """

# --- recycled buffers ----------------------------------------------------------------------

class _PoolStats(TypedDict):
    buffers_in_use: int
    bytes_in_use: int
    bytes_free: int
    hits: int
    misses: int

def empty(shape: tuple[int, ...], dtype: object) -> NDArray[Any]:
    """Return a new, writable, C-ordered array of unspecified contents.

    Fresh memory is the most expensive part of a batch: one of 50 MB costs more in page faults
    than in copying. From 128 KiB on, the array is a view of a buffer of the pool, and owns a
    share of it; malloc keeps the memory of smaller ones by itself.

    Parameters
    ----------
    shape : tuple of int
        Extents, possibly zero.
    dtype : dtype-like
        Element type.

    Raises
    ------
    MemoryError
        The system has no memory left.
    """

def release_heap() -> None:
    """Return the freed memory that malloc keeps to the system; takes milliseconds."""

def release_memory() -> None:
    """Return the free buffers of the pool and the memory that malloc keeps to the system."""

def pool_empty(num_bytes: int) -> NDArray[np.uint8]:
    """Return a writable buffer of unspecified contents from the process's pool.

    From 1 MiB on, buffers are aligned to 2 MiB and ask for huge pages; smaller ones are
    aligned to 64 bytes. A buffer is up to an eighth larger than asked for (and a multiple of
    2 MiB), so that requests of nearly equal size share buffers.

    Parameters
    ----------
    num_bytes : int

    Returns
    -------
    ndarray of uint8, shape [num_bytes]
        Belongs to the caller and to all views made of it, torch tensors included; goes back
        to the pool when the last of them dies, on any thread, never earlier.

    Raises
    ------
    MemoryError
        The system has no memory left.
    """

def pool_stats() -> _PoolStats:
    """Return the pool's counters.

    Returns
    -------
    dict
        ``buffers_in_use`` and ``bytes_in_use``: handed out now (whole buffers, so the bytes
        are somewhat more than what was asked for); ``bytes_free``: kept for later;
        ``hits`` and ``misses``: requests since the start of the process that were served
        from the pool, and that took new memory from the system.
    """

def pool_trim(max_free_bytes: int = 0) -> None:
    """Return free buffers to the system, longest unused first, down to `max_free_bytes`."""

def pool_set_limit(max_free_bytes: int) -> None:
    """Set how many free bytes the pool keeps at most, from now on (1 GiB at the start)."""

def pool_exchange(exchanges: bool) -> None:
    """Set whether new memory is taken in exchange for free buffers that are too small.

    Not so at the start: they are worth keeping where memory is not short.
    """

# --- building graphs -----------------------------------------------------------------------

def csc_from_coo(
    src: _Ids,
    dst: _Ids,
    num_nodes: int,
    num_threads: int = 1,
    with_edge_id: bool = True,
    num_src_nodes: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any] | None]:
    """Build the in-neighbour lists of a graph from its edges, in any order.

    Partitions the edges by ranges of targets, and sorts each range in the cache. The peak is
    ``2 * E * id_bytes`` of inputs, ``8 * (N + 1) + E * (id_bytes + edge_id_bytes)`` of outputs,
    with id_bytes of 4 or 8 and edge_id_bytes of 0, 4 or 8, and ``2 * E`` besides (``4 * E``, if
    there are more than 2**27 targets). Each thread takes at most 24 bytes (40, if there are
    more than 2**32 sources) per edge of the longest column, or for ``max(2**16, E // 256)``
    edges, if those are more.

    Parameters
    ----------
    src, dst : ndarray of int32 or int64, shape [E], of one dtype
        Edge e goes from ``src[e]`` to ``dst[e]``.
    num_nodes : int
        Number of targets N, and of sources unless `num_src_nodes` says otherwise.
    with_edge_id : bool
        False spares the memory of the positions.
    num_src_nodes : int, optional
        Number of sources, where they are nodes of another type.

    Returns
    -------
    indptr : ndarray of int64, shape [N + 1]
        The in-edges of node v are at ``indptr[v]`` to ``indptr[v + 1]``.
    indices : ndarray of the dtype of src, shape [E]
        Their sources, sorted by (source, position in the input) within a column.
    edge_id : ndarray of int32 (int64 from 2^31 edges on), shape [E], or None
        Their positions in the input.

    Raises
    ------
    IndexError
        A source or target is out of range; the message names edge, id and bound.
    """

class EdgeBuckets:
    """Edges dealt to buckets of neighbouring targets, then sorted piece by piece.

    Takes ``8 * E`` bytes, an eighth of that at most for room that is left, and some megabytes for
    each thread. First `sample` some of the targets; then `plan`; then `add` all blocks of edges,
    from any threads, and `finish`; then `sort`, from any threads and as often as asked.

    Parameters
    ----------
    num_nodes : int
        N, at most 2**27.
    num_threads : int
        Blocks that are dealt at a time; a thread that adds another one waits.

    Attributes
    ----------
    num_pieces : int
        Pieces of consecutive columns; 0 before the end of the edges.
    """

    def __init__(self, num_nodes: int, num_threads: int = 1) -> None: ...
    @property
    def num_pieces(self) -> int: ...
    def sample(self, dst: NDArray[np.int32]) -> None:
        """Look at targets from all over the edges, so that buckets will be about as large.

        Raises
        ------
        IndexError
            A target is out of range.
        """

    def plan(self, num_edges: int) -> int:
        """Decide on the buckets for so many edges; return about how many the largest one gets."""

    def add(self, src: NDArray[np.int32], dst: NDArray[np.int32], first_position: int) -> None:
        """Deal a block of edges with the position of its first one.

        Raises
        ------
        IndexError
            A source or target is out of range; the edges cannot be finished afterwards.
        """

    def give(self, ids: NDArray[np.int32]) -> None:
        """Give an array, such as an end of a block that was added, whose memory is overwritten."""

    def finish(self) -> int:
        """End the edges; return the number of edges in the largest bucket."""

    def sort(
        self, piece: int, with_edge_id: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32] | None]:
        """Return the `indptr`, `indices` and `edge_id` of a piece, as `csc_from_coo` has them.

        `indptr` has an entry for each column and one behind, and counts the edges of all pieces.
        """

def parse_text(
    text: bytes,
    kinds: str,
    separator: str,
    comments: bytes,
    *,
    skip_blank: bool = False,
    allow_nan: bool = True,
    low: int = -9223372036854775808,
    high: int = 9223372036854775807,
) -> tuple[NDArray[np.uint8], int, tuple[int, int, int, int, int] | None]:
    """Return the rows of a table in text, up to the first line that is none.

    Integers are digits with a sign or without; decimals may have a point and an exponent, or be nan
    or inf, and are rounded once. There may be blanks around fields, and carriage returns before the
    end of a line.

    Parameters
    ----------
    text : bytes
        Whole lines; the last may lack its end.
    kinds : str
        A letter for each field of a line: "e" int64 within the limits, "i" int64, "u" uint64, "f"
        float32, "d" float64, "n" a name, as the two uint32 of its first byte and its length, "-"
        skipped, and "*", the last one, the rest of a line in braces, which is skipped.
    separator : str
        A comma; a tab, of which those at the end of a line count only if fields are wanted there; a
        space for runs of blanks, in which a field is missing between two tabs; a stop for the terms
        of N-Triples, behind which it is.
    comments : bytes
        Characters that begin lines that are skipped.
    skip_blank, allow_nan : bool
        Whether blank lines are skipped, and NaN is a value.
    low, high : int
        The limits of fields of the kind "e", inclusive.

    Returns
    -------
    records : ndarray of uint8, shape [rows * record bytes]
        A record for each line: its values, one behind the other.
    num_comments : int
        Lines that were skipped, without blank ones.
    fault : tuple of int, optional
        For the first line that is not a row: its first byte, the number of its fields, the field at
        fault, and where this begins and ends. The field is -1 if their number is wrong; a blank
        line has none, and a line that is not of N-Triples, where a stop separates.
    """

def split_text(line: bytes, separator: str) -> list[bytes]:
    """Return the fields of a line, separated as `parse_text` has them.

    All tabs count, and braces at the end, as networkx writes them, are one field. A blank line has
    none, and a line that is not of N-Triples, where a stop separates.
    """

def encode_names(
    text: bytes, places: NDArray[np.uint32]
) -> tuple[list[bytes], NDArray[np.int64], NDArray[np.int64]]:
    """Give numbers to the distinct names among places of a text, in order of appearance.

    Parameters
    ----------
    text : bytes
        The text that the places lie in.
    places : ndarray of uint32, shape [2 * k]
        The first byte and the length of each name.

    Returns
    -------
    names : list of bytes
        The distinct names.
    codes : ndarray of int64, shape [k]
        The number of each name.
    first : ndarray of int64, shape [distinct names]
        The position in `codes` at which each distinct name appears first.
    """

def rmat_edges(
    first_edge: int,
    num_edges: int,
    scale: int,
    probabilities: NDArray[np.float64],
    seed: int,
    num_threads: int = 1,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw consecutive edges of an R-MAT graph with 2^scale nodes.

    An edge is a pure function of (seed, its index), so any chunking of
    [0, number of edges) gives the same graph. Duplicates and self-loops occur.

    Each level takes 32 bits u of a Philox4x64-10 draw with key (seed, "rmat-edg" as a
    big-endian integer) and counter (edge, level // 8, 0, 0): word ``level % 8 // 2``, its
    lower half at even levels. u is compared, as an integer, with the cumulative
    probabilities rounded to multiples of 2^-32.

    Parameters
    ----------
    first_edge, num_edges : int
        The range of edge indices.
    scale : int
        0 to 62.
    probabilities : ndarray of float64, shape [scale, 4]
        Of each level, most significant bit first: the probabilities of the quadrants
        (source bit, target bit) = (0, 0), (0, 1), (1, 0), (1, 1). Each row adds up to 1.
    seed : int
        In [0, 2^64).

    Returns
    -------
    src, dst : ndarray of int64, shape [num_edges]

    References
    ----------
    Chakrabarti, Zhan, Faloutsos: "R-MAT: a recursive model for graph mining", SDM 2004.
    """

def permute_ids(
    ids: NDArray[np.int64],
    scale: int,
    seed: int,
    inverse: bool = False,
    num_threads: int = 1,
) -> NDArray[np.int64]:
    """Apply a bijection of [0, 2^scale) that the seed chooses, or its inverse.

    Gives the nodes of an R-MAT graph, whose degrees fall with their ids, numbers without
    meaning, in no memory: an alternating Feistel network of 8 rounds.

    Parameters
    ----------
    ids : ndarray of int64, shape [n]
    scale : int
        0 to 62.
    seed : int
        In [0, 2^64).

    Returns
    -------
    ndarray of int64, shape [n]

    Raises
    ------
    IndexError
        An id is outside [0, 2^scale).
    """

# --- sorting edges on disk -----------------------------------------------------------------
#
# A record is a packed edge: (target, source, position) as three uint32 (12 bytes), or as
# three uint64 (24 bytes) with ids below 2^48. A run is an array of records in the order of
# (target, source, position). Buffers of records are uint8 vectors, aligned to a word.

def pack_edges(
    sources: _Ids,
    targets: _Ids,
    out: NDArray[np.uint8],
    record_bytes: int,
    first_record: int,
    first_position: int,
    drop_self_loops: bool = False,
) -> int:
    """Pack edges into records.

    Parameters
    ----------
    sources, targets : ndarray of int32 or int64, shape [n], of one dtype
    out : ndarray of uint8
        Has room for n records from `first_record` on, even if some are dropped.
    record_bytes : 12 or 24
    first_record : int
        Where in `out` the first record goes.
    first_position : int
        Position of edge 0; all positions are below 2^32.

    Returns
    -------
    int
        How many records there are: n, or n less the self-loops.

    Raises
    ------
    IndexError
        An id is negative or does not fit.
    """

def sort_edges(
    records: NDArray[np.uint8],
    scratch: NDArray[np.uint8],
    record_bytes: int,
    num_records: int,
    unique: bool = False,
    num_threads: int = 1,
) -> int:
    """Sort records, whose positions ascend, by (target, source, position).

    Parameters
    ----------
    records : ndarray of uint8
        Its first `num_records` records are sorted in place.
    scratch : ndarray of uint8
        Overwritten; as long.
    unique : bool
        Keep only the first of records with equal ends.

    Returns
    -------
    int
        How many records are left.
    """

def merge_edge_runs(
    records: NDArray[np.uint8],
    num_records: NDArray[np.int64],
    record_bytes: NDArray[np.int64],
    first_ids: NDArray[np.int64],
    *,
    first_column: int,
    num_columns: int,
    num_nodes: int,
    unique: bool = False,
    skip_first: bool = False,
    first_loop: int = 0,
    end_loop: int = 0,
    present_loop: int = -1,
    first_loop_id: int = 0,
    id_bytes: int = 8,
    edge_id_bytes: int = 8,
    with_origin: bool = False,
) -> tuple[
    NDArray[Any], NDArray[Any] | None, NDArray[np.int32] | None, NDArray[np.int64], int, int
]:
    """Merge slices of runs into finished columns; among equal edges, earlier slices are first.

    Parameters
    ----------
    records : ndarray of uint8
        The records of all k slices, one slice behind the other.
    num_records, record_bytes, first_ids : ndarray of int64, shape [k]
        Of each slice: its length, 12 or 24, and the id of the edge at position 0.
    first_column, num_columns : int
        All targets lie in [first_column, first_column + num_columns).
    num_nodes : int
        All sources lie below.
    unique : bool
        Keep only the first of edges with equal ends.
    skip_first : bool
        With `unique`: drop also the first of those with the ends of the first edge of all.
    first_loop, end_loop, present_loop : int
        Nodes in [first_loop, end_loop) that have no self-loop get one, except
        `present_loop`; their ids count up from `first_loop_id`.
    id_bytes : 4 or 8
    edge_id_bytes : 0, 4 or 8
        0: without ids.

    Returns
    -------
    sources : ndarray of int32 or int64
        Of `num_edges` elements or more; only the first `num_edges` mean anything.
    edge_ids : ndarray of int32 or int64, or None
        Likewise.
    origins : ndarray of int32, or None
        Likewise; for each edge its place among all records, -1 for an added self-loop.
    column_counts : ndarray of int64, shape [num_columns]
        Edges of each column.
    num_edges : int
        Edges in all.
    num_added : int
        Self-loops that were added.

    Raises
    ------
    ValueError
        A slice is not sorted, or has an edge that belongs elsewhere.
    """

def count_edge_runs(
    records: NDArray[np.uint8],
    num_records: NDArray[np.int64],
    record_bytes: NDArray[np.int64],
    first_ids: NDArray[np.int64],
    *,
    first_column: int,
    num_columns: int,
    num_nodes: int,
    unique: bool = False,
    skip_first: bool = False,
    first_loop: int = 0,
    end_loop: int = 0,
    present_loop: int = -1,
) -> tuple[int, int]:
    """Return `num_edges` and `num_added` of `merge_edge_runs`, without the edges."""

# --- sets of ids ---------------------------------------------------------------------------

def bitmap_mark(words: NDArray[np.uint64], ids: NDArray[np.int64]) -> int:
    """Add ids to a set that is kept as a bitmap, and return how many are new.

    Parameters
    ----------
    words : ndarray of uint64, shape [w]
        Bit ``id % 64`` of word ``id // 64`` says whether an id is in the set. Changed.
    ids : ndarray of int64, shape [n]

    Raises
    ------
    IndexError
        An id is outside [0, 64 w).
    """

def bitmap_count(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], int]:
    """Return what `bitmap_rank` needs besides the bitmap, and the number of ids.

    Returns
    -------
    ranks : ndarray of int64, shape [ceil(w / 8)]
        How many ids lie in the words before each eighth one.
    num_ids : int
    """

def bitmap_rank(
    words: NDArray[np.uint64],
    ranks: NDArray[np.int64],
    ids: NDArray[np.int64],
    rank_bytes: int = 8,
) -> NDArray[Any]:
    """Return for each id how many ids of the set are smaller, as int32 or int64 [n].

    Raises
    ------
    IndexError
        An id is not in the set.
    """

# --- shortened numbers ---------------------------------------------------------------------

def shorten(numbers: NDArray[Any]) -> NDArray[np.int32]:
    """Return numbers as their differences, each in as few bytes as it needs; a copy.

    Parameters
    ----------
    numbers : ndarray of int32 or int64, shape [n]

    Returns
    -------
    ndarray of int32, shape [w]
        A number takes a quarter of a byte, and 1 to 4 bytes of its difference, or 1 to 8.
    """

def restore(words: NDArray[np.int32]) -> NDArray[Any]:
    """Return the numbers that `shorten` has made these words of: int32 or int64 [n], new.

    Raises
    ------
    ValueError
        If they are not such words.
    """

# --- learned rows --------------------------------------------------------------------------
# A slot of memory holds a partition: the values of its rows, then the state of each. A resident
# row is named by slot * rows_per_slot + its place in the partition.

def resident_rows(
    ids: NDArray[np.int64],
    place: _Ids | None,
    num_nodes: int,
    rows_per_slot: int,
    slots: NDArray[np.int32],
    out: NDArray[np.int64],
) -> int:
    """Find the resident rows of nodes; return how many were found before one that is in no slot.

    Parameters
    ----------
    ids : ndarray of int64, shape [n]
    place : ndarray of int32 or int64, shape [N], optional
        Row of each node in the table; by default node i is in row i.
    slots : ndarray of int32
        Slot of each partition, negative where it is in none.
    out : ndarray of int64, shape [n]

    Raises
    ------
    IndexError
        An id is outside [0, num_nodes).
    """

def initial_rows(
    ids: _Ids,
    out: NDArray[np.float32],
    *,
    dim: int,
    distribution: str,
    scale: float,
    seed: int,
    num_threads: int = 1,
) -> None:
    """Fill `out` [n * dim] with values that depend on (seed, id, column) alone.

    Parameters
    ----------
    distribution : "uniform" or "normal"
    scale : float
        Values are uniform in [-scale, scale), or normal with this standard deviation.
    """

def update_rows(
    table: NDArray[np.float32],
    rows: NDArray[np.int64],
    gradients: NDArray[np.float32],
    *,
    dim: int,
    rows_per_slot: int,
    slot_floats: int,
    rule: str,
    rate: float,
    eps: float = 0.0,
    beta1: float = 0.0,
    beta2: float = 0.0,
    num_threads: int = 1,
) -> None:
    """Change rows by their gradients; gradients of a row that comes several times are summed first.

    Parameters
    ----------
    table : ndarray of float32
        Slots of `slot_floats` each: [rows_per_slot, dim] values, then for each row nothing, 1, dim
        or (means, then squares) 2 dim floats of state.
    rows : ndarray of int64, shape [n]
        Resident rows, in any order.
    gradients : ndarray of float32, shape [n * dim]
    rule : "sgd", "adagrad", "rowwise_adagrad" or "sparse_adam"
    """

# --- sampling ------------------------------------------------------------------------------
# Symbols: B seeds, n nodes and m edges of a batch, L hops.

# Ids, the numbers of their trees, and their times.
_Seeds: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64] | None, NDArray[np.int64] | None]
# n_id, batch, num_sampled_nodes of each node type; edge_index, edge_pos, num_sampled_edges of each
# edge type.
_SampledTypes: TypeAlias = tuple[
    list[tuple[_Ids, NDArray[np.int64] | None, list[int]]],
    list[tuple[_Ids, NDArray[np.int64], list[int]]],
]
_Cache: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.int64], _Ids]

class EdgeColumns:
    """The edges of one type, by target, and how they are sampled.

    Parameters
    ----------
    name : str
        For messages; empty for the only type.
    source, target : int
        Numbers of its node types.
    number : int
        Part of the key of its draws, below 2^24 - 1: its place among the edge types of the store.
    indptr : ndarray of int64, shape [N + 1]
    indices : ndarray of int32 or int64, shape [E], or None
        int32 or int64 [E]: source nodes by target; None if they are on disk.
    fanouts : sequence of int, length L
    num_src_nodes : int, optional
        `indices` lie in [0, num_src_nodes); by default N.
    num_edges, indices_dtype
        E and the dtype of the `indices` that are not here.
    timing : "edges" or "sources", optional
        What has times: of a seed's tree only edges up to its time are chosen.
    order : ndarray of uint16 or uint32, shape [E], or None
        Entry `indptr[v] + j` is the place, in the list of v, of its j-th edge by time; None: on
        disk.
    order_dtype : str
        dtype of an order on disk.
    times : ndarray of int64, or None
        Of the edges [E], None if they are on disk; or of the sources [num_src_nodes].
    weighted : bool
        Whether edges are chosen in proportion to weights, by successive sampling.
    weight_sums : ndarray of uint64, shape [E], or None
        Inclusive sums of integer weights along each list; None: on disk.
    draw_ids : ndarray of int32 or int64, shape [N], or None
        Ids that key the draws of target nodes; None: their own.
    """

    def __init__(
        self,
        name: str,
        source: int,
        target: int,
        number: int,
        indptr: NDArray[np.int64],
        indices: _Ids | None,
        fanouts: Sequence[int],
        *,
        num_src_nodes: int | None = None,
        num_edges: int = 0,
        indices_dtype: str = "int64",
        timing: str | None = None,
        order: NDArray[np.uint16] | NDArray[np.uint32] | None = None,
        order_dtype: str = "uint32",
        times: NDArray[np.int64] | None = None,
        weighted: bool = False,
        weight_sums: NDArray[np.uint64] | None = None,
        draw_ids: _Ids | None = None,
    ) -> None: ...

class SampledGraph:
    """A graph of any number of types to sample from.

    Parameters
    ----------
    node_types : sequence of (str, int)
        Names, for messages, and numbers of nodes.
    edge_types : sequence of EdgeColumns
        A hop goes along them in this order.
    """

    def __init__(
        self, node_types: Sequence[tuple[str, int]], edge_types: Sequence[EdgeColumns]
    ) -> None: ...
    def sample(
        self,
        seeds: Sequence[_Seeds],
        *,
        seed: int,
        epoch: int,
        batch: int,
        replace: bool = False,
        disjoint: bool = False,
        induced: bool = False,
        latest: bool = False,
        window: int = 0,
        index_dtype: Literal["int64", "int32"] = "int64",
        excluded: Sequence[_Excluded | None] | None = None,
    ) -> _SampledTypes:
        """Sample the in-neighbourhood of seed nodes, hop by hop.

        `tests.support.twins.sampling.sample_types` defines the result. A hop expands the nodes
        that the hop before found first, each once. Draws depend on (seed, epoch, batch, hop, edge
        type, node) only, and in a disjoint batch on the index of the seed. Memory is proportional
        to the batch; any number of threads may sample from the same graph at once.

        Parameters
        ----------
        seeds : sequence of (ndarray, ndarray or None, ndarray or None), by node type
            Ids, int64 [B]; the numbers of their trees, int64 [B], distinct and below the number
            of seeds, None counts over the types; times, int64 [B], needed if an edge type has some.
        seed, epoch, batch : int
            Key of the draws, each in [0, 2^64).
        replace : bool
            Choose with replacement.
        disjoint : bool
            One tree per seed, which shares no node with the others.
        induced : bool
            Return all edges between the sampled nodes. Excludes `disjoint`.
        index_dtype : "int64" or "int32"
            dtype of ids and edge indices.
        latest : bool
            Choose the latest edges up to a seed's time; else any. All come in the order of times.
        window : int
            w: of a seed of time t, choose edges of (t - w, t]; 0: of any time up to t.
        excluded : sequence of tuple or None, by edge type, optional
            Edges that are not sampled, as ranges of positions in `indices`: targets, first
            positions and those after the last, int64 [k] each, ascending. Fan-outs are filled with
            others.

        Raises
        ------
        IndexError
            A seed is not a node.
        ValueError
            Arrays are corrupt where the batch touches them, an option makes no sense, or the ids
            do not fit in `index_dtype`.
        OverflowError
            The batch may have too many nodes: 2^32 - 1 or more, or 2^31 or more for "int32".
        """

class StagedBatch:
    """A batch of `SampledGraph.sample` that gets the elements it asks for from its caller.

    `draw` and `take` in turns until `draw` returns None, then `result`. For one thread at a
    time; a batch that raised is of no further use. The result equals `SampledGraph.sample`'s,
    bit for bit; "induced" takes the in-neighbour lists of all nodes besides.

    Parameters
    ----------
    graph : SampledGraph
    seeds, seed, epoch, batch, replace, disjoint, induced, latest, window, index_dtype, excluded
        As in `SampledGraph.sample`.
    caches : sequence of tuple or None, by edge type, optional
        In-neighbour lists of some nodes, which are not asked for: `bits`, uint64 [ceil(N / 64)],
        one for each cached node; `starts`, int64 [ceil(N / 64)], how many neighbours stand before
        the first neighbour of each word of `bits`; `neighbors`, in the dtype of indices, the lists
        one behind the other. Mistakes in them are noticed before they have an effect.
    max_column_positions : int
        The most positions of whole lists that are asked for at once.

    Raises
    ------
    IndexError, ValueError, OverflowError
        As `SampledGraph.sample`, at the first call that notices.
    """

    def __init__(
        self,
        graph: SampledGraph,
        seeds: Sequence[_Seeds],
        *,
        seed: int,
        epoch: int,
        batch: int,
        replace: bool = False,
        disjoint: bool = False,
        induced: bool = False,
        latest: bool = False,
        window: int = 0,
        index_dtype: Literal["int64", "int32"] = "int64",
        caches: Sequence[_Cache | None] | None = None,
        max_column_positions: int = 1048576,
        excluded: Sequence[_Excluded | None] | None = None,
    ) -> None: ...
    def draw(self) -> list[tuple[int, int, NDArray[np.int64]]] | None:
        """Return what is needed next, maybe nothing; None at the end.

        Each is the number of an edge type of the graph, the number of a column (0: indices, 1:
        order, 2: times, 3: weight_sums) and positions in it.
        """
    def take(self, fetched: Sequence[NDArray[Any]]) -> None:
        """Take the elements that were asked for, in their order and the columns' dtypes."""
    def result(self) -> _SampledTypes:
        """Return what `SampledGraph.sample` returns, once."""
    @property
    def num_cached(self) -> int:
        """In-neighbours that the caches have served so far."""

def choose_positions(
    degree: int,
    k: int,
    replace: bool,
    seed: int,
    epoch: int,
    batch: int,
    hop: int,
    node: int,
    tree: int = 0,
) -> NDArray[np.int64]:
    """Return the positions in its in-neighbour list that the sampler chooses for a node.

    Parameters
    ----------
    degree : int
        Length of the list; nothing of this size is allocated.
    k : int
        The fan-out; -1 takes all.
    replace : bool
    seed, epoch, batch, hop, node, tree : int
        Key of the draws; `tree` is the index of the seed in a disjoint batch, else 0.

    Returns
    -------
    ndarray of int64
        Positions in [0, degree), in the order in which they are drawn.
    """

def count_targets(targets: _Ids) -> NDArray[np.int32]:
    """Return the number of edges into each node, up to the last that has some.

    Parameters
    ----------
    targets : ndarray of int32 or int64, shape [m]
        Local ids, ascending.

    Raises
    ------
    ValueError
        They do not ascend from 0.
    """

def expand_edges(sources: _Ids, num_incoming: _Ids, out: _Ids) -> None:
    """Fill an edge index with sources, and with the targets that `count_targets` counted.

    Parameters
    ----------
    sources : ndarray of int32 or int64, shape [m]
    num_incoming : ndarray of int32 or int64, shape [t]
    out : ndarray of int32 or int64, shape [2, m]

    Raises
    ------
    ValueError
        The counts do not add up to m.
    """

def add_reverse_edges(
    edge_index: _Ids, edge_pos: NDArray[np.int64], num_nodes: int
) -> tuple[_Ids, NDArray[np.int64]]:
    """Return the union of a batch's edges with their reverses, each pair once.

    Parameters
    ----------
    edge_index : ndarray of int32 or int64, shape [2, m]
        Local ids in [0, num_nodes).
    edge_pos : ndarray of int64, shape [m]
    num_nodes : int

    Returns
    -------
    edge_index : ndarray of the same dtype, shape [2, m']
        Sorted by target, then source.
    edge_pos : ndarray of int64, shape [m']
        The edge's own position where it is among the given edges (the first position, if
        there are several), else the position of its reverse.

    Raises
    ------
    IndexError
        A local id is outside [0, num_nodes).
    """

def edges_by_node(
    edge_index: _Ids,
    num_targets: int,
    num_sources: int,
    layers: Sequence[tuple[int, int]],
    values: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32], list[tuple[Any, ...]]]:
    """Return a batch's edges by target, and each layer's edges by source.

    Parameters
    ----------
    edge_index : ndarray of int32 or int64, shape [2, m]
        Sources, and targets, which ascend.
    num_targets, num_sources : int
    layers : sequence of (int, int)
        Number of edges that a layer takes, the first of the batch, and of its sources. The first
        layer has all; others have no more than the one before.
    values : ndarray of float32, shape [m], optional
        Weights of the edges.

    Returns
    -------
    crow : ndarray of int32, shape [num_targets + 1]
        The edges of target i are at ``crow[i]`` to ``crow[i + 1]``.
    col : ndarray of int32, shape [m]
        Their sources, in the order of the edges.
    transposes : list of (ptr, index, values)
        For each layer of n sources and m edges int32 [n + 1], int32 [m] with the targets of each
        source's edges, in the order of the edges, and their weights, float32 [m], if there are any.

    Raises
    ------
    ValueError
        Targets do not ascend or are not below `num_targets`, or a layer is not a part of the
        one before.
    IndexError
        A source is not among the sources of the batch or of a layer.
    """

def equal_ranges(
    values: _Ids,
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    wanted: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find numbers in ascending ranges of an array, as the edges between pairs of nodes.

    Parameters
    ----------
    values : ndarray of int32 or int64 [E]
        May be mapped: only what is compared is read.
    begins, ends : ndarray of int64 [k]
        Ranges `values[begins[i]:ends[i]]`, each ascending.
    wanted : ndarray of int64 [k]
        A number for each range.

    Returns
    -------
    tuple of ndarray of int64 [k]
        First position of what equals the number, and the one after the last. Where nothing does,
        both are the position where it belongs.

    Raises
    ------
    IndexError
        A range does not lie in the array.
    """

def resident_csc(
    starts: NDArray[np.int64],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    position: _Ids,
    *,
    count: int,
    rows: int,
    num_nodes: int,
    num_positions: int,
    num_threads: int = 1,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
    """Build the columns of partitions that lie in memory together, from their buckets of edges.

    Node r of the k-th partition has the id ``k * rows + r``; only the last may have fewer rows.

    Parameters
    ----------
    starts : ndarray of int64 [count * count + 1]
        Where buckets begin: the bucket of edges from partition i to j is ``j * count + i``.
    source, target : ndarray of int32 [E]
        Ends of each edge, counted in their partitions.
    position : ndarray of int32 or int64 [E]
        In the whole graph. Buckets are sorted by (target, source, position).
    num_positions : int
        Edges of the whole graph.

    Returns
    -------
    indptr : ndarray of int64 [num_nodes + 1]
    indices : ndarray of int32 [E]
        Sources of the edges to each node, ascending.
    positions : ndarray of the dtype of `position` [E]

    Raises
    ------
    ValueError
        An edge is out of range or out of order, or the numbers do not fit together.
    """

def resident_buckets(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    positions: _Ids,
    kept: NDArray[np.int64],
    *,
    rows: int,
    starts: NDArray[np.int64],
    new_count: int,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    position: _Ids,
    num_threads: int = 1,
) -> None:
    """Write the edges between partitions that stay in memory to their buckets of the next state.

    Parameters
    ----------
    indptr, indices, positions
        As `resident_csc` returned them.
    kept : ndarray of int64 [count]
        Number of each partition among the `new_count` of the next state, ascending; negative: it
        leaves.
    starts : ndarray of int64 [new_count * new_count + 1]
    source, target, position : ndarray, writable
        Of the next state's edges, in which buckets of partitions that enter are left as they are.

    Raises
    ------
    ValueError
        A bucket has not as many edges as stay, or the numbers do not fit together.
    """

def random_reads(table: NDArray[np.int32], positions: NDArray[np.int64]) -> int:
    """Return the sum of `table[positions]`, read one by one in a plain loop.

    A baseline for the time of a sampler: a batch needs as many random reads as it has edges.

    Raises
    ------
    IndexError
        A position is outside the table.
    """

# --- planning ------------------------------------------------------------------------------

def plan_belady(
    ids: _Ids,
    offsets: NDArray[np.int64],
    nodes: NDArray[np.int64],
    frequencies: NDArray[np.int32],
    num_threads: int = 1,
) -> tuple[
    NDArray[np.int32],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.int32],
]:
    """Plan which rows a cache of C slots holds while S batches are assembled.

    Belady's rule at the granularity of batches, with bypass: no plan has fewer misses. Rows
    enter after the batch that brings them, and only to stay until they are needed again, or
    to the end. `tests.support.twins.caches.belady_plan` defines the result. Work is linear in
    the accesses. `gnnstore.caching.belady.Belady` has the memory that it takes beside
    the results, for any ids.

    Parameters
    ----------
    ids : ndarray of int32 or int64, shape [n]
        The rows that the batches need, one batch behind the other; below 2^31 - 2 in all.
        Rows may be repeated within a batch.
    offsets : ndarray of int64, shape [S + 1]
        Batch i needs ``ids[offsets[i]:offsets[i + 1]]``.
    nodes : ndarray of int64, shape [C]
        Rows that are in the cache before the first batch, by slot; -1: an empty slot. They become
        the rows after the last batch (-1: an empty slot, even if it holds a row); if planning
        fails, they stay as they are, or if it fails late, all of them become -1.
    frequencies : ndarray of int32, shape [C]
        How many batches needed each of these so far, at least 1; any for an empty slot. They
        become those after the last batch, at most 65535; 0 for an empty slot.
    num_threads : int
        Look for next uses, of more than a million accesses each; 1 to 1024. The plan does not
        depend on it.

    Returns
    -------
    slots : ndarray of int32, shape [n]
        The slot that each access reads; -1: the row is not in the cache.
    misses : ndarray of int64, shape [S]
        Distinct rows of each batch that are not in the cache.
    change_offsets : ndarray of int64, shape [S + 1]
        After batch i was assembled, changes ``change_offsets[i]:change_offsets[i + 1]`` are
        made.
    change_positions : ndarray of int32, shape [changes]
        The row that enters, by its position within the batch.
    change_slots : ndarray of int32, shape [changes]
        The slot that it is written to.

    Raises
    ------
    IndexError
        An id is negative.
    ValueError
        Offsets that do not cut the ids into batches, nodes that are not distinct, a
        frequency below 1, a number of threads out of range.
    """

def access_lists(
    next_uses: NDArray[np.int32],
    slots: NDArray[np.int32],
    *,
    here: int,
    later: int,
    kept_end: int,
    stay_end: int,
    portable: bool = False,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """List the accesses of a batch by what becomes of them, as the planner does block by block.

    Here so that tests can hold what it does on this processor against what it does on any.

    Parameters
    ----------
    next_uses : ndarray of int32, shape [n]
        Where each row is used next; a negative frequency if nowhere. n is at most 512.
    slots : ndarray of int32, shape [n]
        The slot that each access reads, or -1. Accesses that are repeated, which are those whose
        next use is from `here` to `later`, write theirs to the one behind them.
    here, later : int
        The first positions of the batch, and of what is behind it.
    kept_end : int
        Next uses from `later` to below it are kept.
    stay_end : int
        Negative; frequencies below it stay.
    portable : bool
        Without what this processor may have beyond others.

    Returns
    -------
    uses, slots : ndarray of int32
        Of accesses whose slot goes to their next use: where that is, and the slot.
    others : ndarray of int32
        Places of others that have a slot, or are kept.

    Raises
    ------
    ValueError
        Too many accesses, or one that is repeated and does not name another one behind it.
    """

def places_between(
    values: NDArray[np.int32], low: int, high: int, portable: bool = False
) -> NDArray[np.int32]:
    """Return the places of those values, at most 512, that are from `low` to `high`.

    Parameters
    ----------
    portable : bool
        As in `access_lists`.

    Raises
    ------
    ValueError
        There are too many values.
    """

def plan_belady_spilled(
    ids: SpillFile,
    begins: NDArray[np.int64],
    crcs: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    *,
    are_wide: bool,
    num_nodes: int,
    nodes: NDArray[np.int64],
    frequencies: NDArray[np.int32],
    table_bytes: int,
    slots: SpillFile,
    changes: SpillFile,
    num_threads: int = 1,
) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint32]]:
    """Make the plan of `plan_belady`, of a trace in a file, in files.

    `gnnstore.caching.belady.Belady.reserve_spilled` has the memory that it takes.

    Parameters
    ----------
    ids : SpillFile
    begins : ndarray of int64, shape [S]
        The ids of batch i, `offsets[i + 1] - offsets[i]` of them, begin at byte ``begins[i]``.
    crcs : ndarray of uint32, shape [S]
        Their checksums, as `SpillFile.append` returns them.
    offsets : ndarray of int64, shape [S + 1]
    are_wide : bool
        Ids are int64; else they are int32.
    num_nodes : int
        N.
    nodes, frequencies : ndarray
        As in `plan_belady`.
    table_bytes : int
        Of a table with 4 bytes for each node, and never more than for all of them. With less
        the trace is gone through several times.
    slots, changes : SpillFile
        Empty files. `slots` receives the slots of `plan_belady`; `changes` of each batch the
        change positions, and then the change slots.
    num_threads : int
        Look for next uses, four at most and only in batches of more than 30,000 rows; 1 to 1024.
        The plan does not depend on it.

    Returns
    -------
    misses : ndarray of int64, shape [S]
    slot_crcs : ndarray of uint32, shape [S]
        Of each batch's slots.
    change_offsets : ndarray of int64, shape [S + 1]
        The part of `changes` for batch i begins at byte ``8 * change_offsets[i]``.
    change_crcs : ndarray of uint32, shape [S]

    Raises
    ------
    IndexError
        An id outside [0, N).
    OSError
        A file cannot be read or written; with errno EBADMSG, it does not hold what was written.
    ValueError
        As in `plan_belady`; or a node that is not below N, or a file that is closed.
    """

def distinct_rows(nodes: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Set `out` to `nodes`, each row named for its first slot only; -1 for all others.

    Parameters
    ----------
    nodes, out : ndarray of int64, shape [C]
        May be the same array. Takes 5 to 10 bytes a slot meanwhile.
    """

class SpillFile:
    """A file of integers that a run writes, reads and removes. Thread-safe.

    Parameters
    ----------
    path : path-like
        Must not exist.

    Raises
    ------
    OSError
        The file cannot be made.
    """

    def __init__(self, path: _Path) -> None: ...
    @property
    def num_bytes(self) -> int:
        """Disk that the file takes."""
    def append(self, values: _Ids, batch: int) -> tuple[int, int]:
        """Write values behind all others; return the byte they begin at, and their checksum.

        The checksum is a crc32c of the batch's number, too.

        Raises
        ------
        OSError
            The system refuses to write.
        ValueError
            The file is closed.
        """
    def read_int32(self, begin: int, count: int, crc: int, batch: int) -> NDArray[np.int32]:
        """Return `count` values from byte `begin` on, a new array.

        Raises
        ------
        OSError
            The system refuses to read, or the file ends early. With errno EBADMSG, the values
            do not have the checksum `crc`.
        ValueError
            The file is closed.
        """
    def read_int64(self, begin: int, count: int, crc: int, batch: int) -> NDArray[np.int64]:
        """Return what `read_int32` returns, of values of 8 bytes."""
    def close(self) -> None:
        """Remove the file, in the process that made it; waits for other calls. Idempotent."""

# --- this module ---------------------------------------------------------------------------

def build_info() -> str:
    """Return the compiler, the build type and the flags that this module was built with."""
