"""Tunes how rows are read from a disk: merging of reads, their size, and the queue depth.

The tuning follows from a disk's measurements if there are any. It changes the speed of reads, never
their result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnnstore.disk.profile.device_profile import DeviceProfile

# Without measurements: values that suit flash. A virtual disk of 100,000 reads a second needed 128
# in flight for them, gained nothing from 256, and read 12 kB in the time of one read more; 4 KiB
# is on the safe side of that for faster ones.
_DEFAULT_GAP_BYTES = 4 << 10
_DEFAULT_QUEUE_DEPTH = 128
_DEFAULT_MAX_READ_BYTES = 64 << 10

_GAP_UNIT_BYTES = 512
# A spinning disk would have 100 MB/s x 8 ms = 800 kB; more is an error of measurement.
_MAX_GAP_BYTES = 1 << 20
_MAX_READ_BYTES = 1 << 20
# Cutting a merged extent costs a read that merging had saved; with pieces of four gaps, at most a
# quarter of the saved reads.
_GAPS_PER_READ = 4
# Memory for reads in flight of each thread that prepares batches. 128 x 64 kB are 8 MB.
_MAX_STAGING_BYTES = 32 << 20

# A measured rate that is flat from the start says little about a disk under another load.
_MIN_QUEUE_DEPTH = 16
_MAX_QUEUE_DEPTH = 1024
_ROW_BLOCK_BYTES = (512, 4 << 10)  # the reads that rows of features need


@dataclass(frozen=True)
class ReadTuning:
    """The parameters of an engine's reads."""

    gap_bytes: int  # rows at most this far apart share a read; a multiple of 512
    queue_depth: int  # reads in flight
    max_read_bytes: int  # a longer read is cut into pieces of this size; a multiple of 4096
    source: str  # "defaults", or "profile of" and the time of the measurement

    def modest(self) -> ReadTuning:
        """Return the tuning with no more, and no longer, reads in flight than without a profile."""
        return replace(
            self,
            queue_depth=min(self.queue_depth, _DEFAULT_QUEUE_DEPTH),
            max_read_bytes=min(self.max_read_bytes, _DEFAULT_MAX_READ_BYTES),
        )


def tune_reads(profile: DeviceProfile | None) -> ReadTuning:
    """Return the tuning for a disk."""
    if profile is None or not profile.is_direct:
        return ReadTuning(
            _DEFAULT_GAP_BYTES, _DEFAULT_QUEUE_DEPTH, _DEFAULT_MAX_READ_BYTES, "defaults"
        )
    # Reading a gap along pays as long as its bytes cost less than one more read.
    gap = min(profile.seconds_per_read / profile.seconds_per_byte, _MAX_GAP_BYTES)
    gap_bytes = int(gap) // _GAP_UNIT_BYTES * _GAP_UNIT_BYTES
    measured = profile.random_reads_per_second.keys()
    deepest = max(profile.best_depth(block) for block in _ROW_BLOCK_BYTES if block in measured)
    queue_depth = min(max(deepest, _MIN_QUEUE_DEPTH), _MAX_QUEUE_DEPTH)
    return ReadTuning(
        gap_bytes=gap_bytes,
        queue_depth=queue_depth,
        max_read_bytes=_max_read_bytes(gap_bytes, queue_depth),
        source=f"profile of {profile.measured_at}",
    )


def _max_read_bytes(gap_bytes: int, queue_depth: int) -> int:
    """Return a power of two of several gaps, or less to bound the memory of reads in flight."""
    size = _DEFAULT_MAX_READ_BYTES
    while (
        size < min(_GAPS_PER_READ * gap_bytes, _MAX_READ_BYTES)
        and 2 * size * queue_depth <= _MAX_STAGING_BYTES
    ):
        size *= 2
    return size
