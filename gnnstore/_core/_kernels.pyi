"""Signatures of the compiled kernels: which arrays go in, which come out, what is checked.

All kernels share these rules. Arrays are taken as they are, never converted or copied: a
wrong dtype is a `TypeError`, a wrong shape or a non-contiguous array a `ValueError`, an id
out of range an `IndexError`. The GIL is released while a kernel works, and its arrays must
not be changed meanwhile. `num_threads` threads are started and joined within the call
(1 to 1024), and never change a result. Paths are str, bytes or `os.PathLike`; a failing
system call is an `OSError` with errno and filename. New arrays of several megabytes live in
recycled buffers (see `pool_empty`).

Symbols in shapes: N nodes, E edges, n items, P bytes per page.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

_Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
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

    What `crc32c` runs on processors without the instruction; here so that tests can hold
    the two against each other on any machine.
    """

def crc32c_implementation() -> Literal["sse4.2", "portable"]:
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

def crc32c_file(path: _Path, block_bytes: int, num_threads: int = 1) -> NDArray[np.uint32]:
    """Return one CRC-32C per block of a file, reading it once in order.

    Memory is 256 KiB per thread whatever the file and the block. Threads take runs of whole
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

def rename_exchange(a: _Path, b: _Path) -> None:
    """Exchange two existing files or directories of one file system atomically.

    Raises
    ------
    FileNotFoundError
        One of them does not exist; nothing was changed.
    OSError
        The system or the file system cannot do it (EINVAL: no support).
    """

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

# --- recycled buffers ----------------------------------------------------------------------

class _PoolStats(TypedDict):
    buffers_in_use: int
    bytes_in_use: int
    bytes_free: int
    hits: int
    misses: int

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

    Counts the edges of each target, scatters them to their columns and sorts each column.
    Everything is done in the outputs: besides them and the inputs, a thread needs at most
    24 bytes per edge of the longest column that it sorts. The peak is thus
    ``2 * E * id_bytes`` of inputs plus ``8 * (N + 1) + E * (id_bytes + edge_id_bytes)``
    of outputs, with id_bytes of 4 or 8 and edge_id_bytes of 0, 4 or 8.

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

# --- sampling ------------------------------------------------------------------------------
# Symbols: B seeds, n nodes and m edges of a batch, L hops.

def sample_neighbors(
    indptr: NDArray[np.int64],
    indices: _Ids,
    seeds: NDArray[np.int64],
    fanouts: Sequence[int],
    *,
    seed: int,
    epoch: int,
    batch: int,
    num_src_nodes: int | None = None,
    replace: bool = False,
    disjoint: bool = False,
    induced: bool = False,
    index_dtype: Literal["int64", "int32"] = "int64",
) -> tuple[_Ids, _Ids, NDArray[np.int64], NDArray[np.int64] | None, list[int], list[int]]:
    """Sample the in-neighbourhood of seed nodes, hop by hop.

    `gnnstore.testing.sampling.sample_neighbors` defines the result. A hop expands the nodes
    that the hop before found first, each once. Draws depend on (seed, epoch, batch, hop,
    node) only, and in a disjoint batch on the index of the seed. Memory is proportional to
    the batch; any number of threads may sample from the same graph at once.

    Parameters
    ----------
    indptr : ndarray of int64, shape [N + 1]
    indices : ndarray of int32 or int64, shape [E]
        Source nodes by target node: those of v are `indices[indptr[v]:indptr[v + 1]]`.
    seeds : ndarray of int64, shape [B]
        Nodes in [0, N); may be repeated.
    fanouts : sequence of int, length L
        In-neighbours to choose per node, one number a hop; -1 takes all.
    seed, epoch, batch : int
        Key of the draws, each in [0, 2^64).
    num_src_nodes : int, optional
        `indices` lie in [0, num_src_nodes); by default N.
    replace : bool
        Choose with replacement.
    disjoint : bool
        One tree per seed, which shares no node with the others.
    induced : bool
        Return all edges between the sampled nodes. Excludes `disjoint`.
    index_dtype : "int64" or "int32"
        dtype of `n_id` and `edge_index`.

    Returns
    -------
    n_id : ndarray of index_dtype, shape [n]
        Node ids; the seeds first, then the others as they were found.
    edge_index : ndarray of index_dtype, shape [2, m]
        Local source ids, then local target ids; the targets ascend.
    edge_pos : ndarray of int64, shape [m]
        Positions in `indices`.
    batch : ndarray of int64, shape [n], or None
        Index of the seed in whose tree a node is; only if disjoint.
    num_sampled_nodes : list of int, length L + 1
        B, then the nodes found in each hop.
    num_sampled_edges : list of int, length L
        The edges chosen in each hop.

    Raises
    ------
    IndexError
        A seed is outside [0, N).
    ValueError
        `indptr` or `indices` is corrupt where the batch touches it, an option makes no
        sense, or the ids do not fit in `index_dtype`.
    OverflowError
        The batch may have too many nodes: 2^32 - 1 or more, or 2^31 or more for "int32".
    """

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
        The edge's own position where it is among the given edges (that of the first, if
        there are several), else the position of its reverse.

    Raises
    ------
    IndexError
        A local id is outside [0, num_nodes).
    """

def random_reads(table: NDArray[np.int32], positions: NDArray[np.int64]) -> int:
    """Return the sum of `table[positions]`, read one by one in a plain loop.

    What a sampler's time is compared with: a batch needs as many random reads as it has
    edges.

    Raises
    ------
    IndexError
        A position is outside the table.
    """

# --- this module ---------------------------------------------------------------------------

def build_info() -> str:
    """Return the compiler, the build type and the flags that this module was built with."""
