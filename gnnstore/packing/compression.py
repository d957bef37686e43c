"""The choice of compression for packed rows: tried on rows of a batch, beside the disk's speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnstore.features.packed.frames import compress, decompress
from gnnstore.formats.packed.manifest import COMPRESSIONS, Compression
from gnnstore.units import format_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from gnnstore.disk.profile.device_profile import DeviceProfile
    from gnnstore.packing.job import EpochPacker

# Of each table. Blosc works in blocks of some hundred kB, so this is many of them.
_SAMPLE_BYTES = 8 << 20
# Decoding is timed so often, and the quickest counts: others are disturbed.
_TIMES = 3


@dataclass(frozen=True)
class Trial:
    """Compressed size and decompression time of some rows with one codec."""

    compression: Compression
    raw_bytes: int  # of the rows, and of their frames
    kept_bytes: int  # of the rows, and of their frames
    decode_seconds: float  # of one thread
    saved_seconds: float  # seconds of reading that compression saves, less those of decoding

    def describe(self) -> str:
        """Return it in a phrase."""
        share = self.kept_bytes / max(1, self.raw_bytes)
        rate = self.raw_bytes / max(self.decode_seconds, 1e-9)
        return f"{self.compression} leaves {share:.0%} and decodes {format_size(rate)}/s"


@dataclass(frozen=True)
class CompressionChoice:
    """The result of compressing a sample with each codec."""

    compression: Compression | None  # the codec that saves time; None: none does
    reason: str
    trials: tuple[Trial, ...] = ()


def choose_compression(packer: EpochPacker, profile: DeviceProfile | None) -> CompressionChoice:
    """Compress some rows, and compare what that saves of reading with what decoding takes."""
    if not packer.tables:
        return CompressionChoice(None, "no rows are packed")
    if profile is None or not profile.is_direct:
        reason = "the disk was not measured; measure it with 'gnnstore bench disk'"
        return CompressionChoice(None, reason)
    rate = profile.sequential_read_bytes_per_second
    samples = _sample_rows(packer)
    trials = tuple(try_out(samples, name, rate) for name in COMPRESSIONS)
    best = max(trials, key=lambda trial: trial.saved_seconds)
    found = (
        f"{'; '.join(trial.describe() for trial in trials)}; the disk reads {format_size(rate)}/s"
    )
    return CompressionChoice(best.compression if best.saved_seconds > 0 else None, found, trials)


def try_out(
    samples: list[npt.NDArray[Any]],
    name: Compression,
    bytes_per_second: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Trial:
    """Compress and decode rows of some tables."""
    raw_bytes = kept_bytes = 0
    seconds = 0.0
    for rows in samples:
        raw = rows.reshape(-1).view(np.uint8)
        raw_bytes += len(raw)
        frame = compress(raw, name, rows.itemsize)
        if frame is None:
            kept_bytes += len(raw)
            continue
        kept_bytes += len(frame)
        kept, out = np.frombuffer(frame, np.uint8), np.empty_like(raw)
        times = []
        for _ in range(_TIMES):
            begin = clock()
            decompress(kept, out)
            times.append(clock() - begin)
        seconds += min(times)
    saved = (raw_bytes - kept_bytes) / bytes_per_second - seconds
    return Trial(name, raw_bytes, kept_bytes, seconds, saved)


def _sample_rows(packer: EpochPacker) -> list[npt.NDArray[Any]]:
    """Return rows that the first batch misses, as they would lie in its chunk."""
    sample = packer.first_batches(packer.make_planner(), 1)
    with closing(sample):
        missed = np.unique(sample.trace.batch(0)[sample.plan.batch_slots(0) < 0])
    return [
        rows.gather(missed[: max(1, _SAMPLE_BYTES // rows.row_bytes)]).values
        for rows in packer.sources.values()
    ]
