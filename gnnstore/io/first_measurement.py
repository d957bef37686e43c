"""The measurements of a disk where a decision needs some: made at the first use, then kept.

`gnnstore bench disk` measures for longer, and what it finds takes the place of this.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from gnnstore.errors import GnnstoreError, StorageError
from gnnstore.io.measure_disk import measure_disk
from gnnstore.planning.device_profile import (
    DeviceProfile,
    filesystem_id,
    load_profile,
    save_profile,
)
from gnnstore.progress import Progress
from gnnstore.units import format_size

# Long enough for every point to be measured on flash; on a spinning disk deep queues are left out.
_SECONDS = 3.0
_NUM_BYTES = 256 << 20

# Of a disk that cannot be measured: flash behind a SATA bus, or a virtual one.
_ASSUMED_READS = {4 << 10: {1: 8_000.0, 128: 80_000.0}, 64 << 10: {1: 4_000.0, 128: 8_000.0}}
_ASSUMED_BYTES_PER_SECOND = 5e8

_log = logging.getLogger(__name__)
# What could not be kept in files, for the rest of the process.
_kept: dict[str, DeviceProfile] = {}
_lock = threading.Lock()


def disk_profile(path: Path, progress: Progress | None = None) -> DeviceProfile:
    """Return the measurements of the disk that holds a store; make them if there are none.

    That takes some seconds, once for each file system. Where they cannot be kept in the user's
    cache, they are kept for the rest of the process; where none can be made, as in a directory
    that may not be written to, those of a usual disk are assumed. Both are said in the log.

    Parameters
    ----------
    path : Path
        A directory on the disk.
    progress : Progress, optional
        Told the phases.
    """
    identity = filesystem_id(path)
    with _lock:
        found = _kept.get(identity) or load_profile(path)
        if found is not None:
            return found
        try:
            measured = measure_disk(path, num_bytes=_NUM_BYTES, seconds=_SECONDS, progress=progress)
        except (GnnstoreError, OSError) as error:
            _log.info(
                "the disk below %s cannot be measured (%s); %s a second in order and 80,000 reads "
                "a second are assumed. 'gnnstore bench disk' can measure another directory on it",
                path,
                error,
                format_size(int(_ASSUMED_BYTES_PER_SECOND)),
            )
            _kept[identity] = _assumed(identity)
            return _kept[identity]
        profile = measured.profile
        try:
            save_profile(profile)
        except StorageError as error:
            _log.info("%s; they are kept for the rest of this process", error)
            _kept[identity] = profile
        return profile


def _assumed(identity: str) -> DeviceProfile:
    return DeviceProfile(
        filesystem_id=identity,
        mount_point="unknown",
        device="unknown",
        filesystem_type="unknown",
        engine="assumed",
        is_direct=False,
        measured_at="never",
        sequential_read_bytes_per_second=_ASSUMED_BYTES_PER_SECOND,
        sequential_write_bytes_per_second=_ASSUMED_BYTES_PER_SECOND,
        random_reads_per_second=_ASSUMED_READS,
    )
