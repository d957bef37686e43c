"""The page arithmetic: where a row lies in the body of an array, and where shards are cut.

Everything that turns a row number into a byte offset, in Python or handed to the compiled
kernels, comes from here. See "Feature pages" in `docs/format.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_PAGE_BYTES = 512  # smallest page: the smallest direct-I/O alignment of any device
MAX_PAGE_BYTES = 2**21
DEFAULT_PAGE_BYTES = 4096
# Pages that a writer chooses among: the smallest that wastes no more than this share of the rows.
_CHOSEN_PAGES = tuple(DEFAULT_PAGE_BYTES << k for k in range(5))
_MOST_PADDING = 0.03

# Alignment of a full shard's end, a page of any operating system (64 KiB on some arm64 and ppc64
# kernels): bodies of shards are joined in memory by mapping one behind the other.
SHARD_ALIGNMENT_BYTES = 2**16
MIN_DEFAULT_SHARD_BYTES = 2**30
MAX_DEFAULT_SHARD_BYTES = 2**34
# Bytes of an inner chunk, which a Zarr reader fetches whole: large enough to be quick, small enough
# to slice.
INNER_CHUNK_BYTES = 2**20


def _floor_power_of_two(value: int) -> int:
    return 1 << (value.bit_length() - 1)


@dataclass(frozen=True)
class PageGeometry:
    """Rows of `row_bytes` in pages of `page_bytes`.

    A row that fits in a page never straddles two; a longer row starts on a page. The unit that
    repeats is the *run*: one page of rows, or the pages of one long row.
    """

    row_bytes: int
    page_bytes: int

    @classmethod
    def for_rows(cls, row_bytes: int, num_rows: int, page_bytes: int | None = None) -> PageGeometry:
        """Return rows in pages of a size, or of the size that is best for them."""
        if page_bytes is not None:
            return cls(row_bytes, page_bytes)
        choices = [cls(row_bytes, size) for size in _CHOSEN_PAGES]
        most = (1 + _MOST_PADDING) * row_bytes * num_rows
        dense = (choice for choice in choices if choice.body_bytes(num_rows) <= most)
        return next(dense, None) or min(choices, key=lambda own: own.body_bytes(num_rows))

    @property
    def rows_per_page(self) -> int:
        """Rows in one run: page_bytes // row_bytes, or 1 for a long row."""
        return max(1, self.page_bytes // self.row_bytes)

    @property
    def pages_per_row(self) -> int:
        """Pages of one run: 1, or ceil(row_bytes / page_bytes) for a long row."""
        return -(-self.row_bytes // self.page_bytes)

    @property
    def page_stride_bytes(self) -> int:
        """Bytes from one run to the next."""
        return self.pages_per_row * self.page_bytes

    @property
    def is_exact(self) -> bool:
        """Whether rows fill their pages, so that the body is the plain C-order array."""
        return self.rows_per_page * self.row_bytes == self.page_stride_bytes

    def num_runs(self, num_rows: int) -> int:
        """Return the number of runs that `num_rows` rows occupy."""
        return -(-num_rows // self.rows_per_page)

    def body_bytes(self, num_rows: int) -> int:
        """Return the bytes that `num_rows` rows occupy, the last run's padding included."""
        return self.num_runs(num_rows) * self.page_stride_bytes

    def offset(self, row: int) -> int:
        """Return the byte offset of a row in the body (of all shards, one behind the other)."""
        run, rank = divmod(row, self.rows_per_page)
        return run * self.page_stride_bytes + rank * self.row_bytes


@dataclass(frozen=True)
class ShardLayout:
    """The division of an array's runs into shard files and inner chunks."""

    geometry: PageGeometry
    num_rows: int
    shard_runs: int  # runs in a full shard; a power of two when there are several shards
    chunk_runs: int  # runs in an inner chunk; 1 unless rows fill pages exactly

    @property
    def shard_rows(self) -> int:
        """Rows in a full shard: Zarr's outer chunk length."""
        return self.shard_runs * self.geometry.rows_per_page

    @property
    def chunk_rows(self) -> int:
        """Rows in an inner chunk."""
        return self.chunk_runs * self.geometry.rows_per_page

    @property
    def chunks_per_shard(self) -> int:
        """Entries of a shard's index."""
        return self.shard_runs // self.chunk_runs

    @property
    def num_shards(self) -> int:
        """Shard files of the array."""
        return -(-self.num_rows // self.shard_rows)

    @property
    def index_bytes(self) -> int:
        """Bytes of the index behind a shard's body: 16 an entry, and a crc32c."""
        return 16 * self.chunks_per_shard + 4

    def shard_num_rows(self, shard: int) -> int:
        """Return the number of rows that lie in a shard."""
        return min(self.num_rows - shard * self.shard_rows, self.shard_rows)

    def shard_num_chunks(self, shard: int) -> int:
        """Return the number of inner chunks that are present in a shard."""
        return -(-self.shard_num_rows(shard) // self.chunk_rows)

    def shard_body_bytes(self, shard: int) -> int:
        """Return the bytes of a shard's body; inner chunks are always stored whole."""
        chunk_bytes = self.chunk_runs * self.geometry.page_stride_bytes
        return self.shard_num_chunks(shard) * chunk_bytes

    def shard_file_bytes(self, shard: int) -> int:
        """Return the size of a shard's file: body and index."""
        return self.shard_body_bytes(shard) + self.index_bytes


def plan_shards(
    geometry: PageGeometry, num_rows: int, shard_bytes: int | None = None
) -> ShardLayout:
    """Choose the shards and inner chunks of an array of `num_rows` rows."""
    stride = geometry.page_stride_bytes
    total_runs = max(1, geometry.num_runs(num_rows))
    if shard_bytes is None:
        wanted = _floor_power_of_two(max(1, total_runs * stride // 64)) * 2
        shard_bytes = min(max(wanted, MIN_DEFAULT_SHARD_BYTES), MAX_DEFAULT_SHARD_BYTES)
    lowest_set_bit = stride & -stride
    aligned_runs = max(1, SHARD_ALIGNMENT_BYTES // lowest_set_bit)
    shard_runs = max(aligned_runs, _floor_power_of_two(max(1, shard_bytes // stride)))

    largest = _floor_power_of_two(max(1, INNER_CHUNK_BYTES // stride)) if geometry.is_exact else 1
    if total_runs > shard_runs:
        return ShardLayout(geometry, num_rows, shard_runs, min(largest, shard_runs))
    # One shard: chunks of equal size that fill it, since the last one is stored whole. (With
    # a fixed size, the 2^18 + 1 pointers of 2^18 nodes would take half as much again.)
    num_chunks = -(-total_runs // largest)
    chunk_runs = -(-total_runs // num_chunks)
    return ShardLayout(geometry, num_rows, num_chunks * chunk_runs, chunk_runs)
