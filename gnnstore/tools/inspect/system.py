"""Facts about this machine and installation that explain a speed or a failure, for bug reports.

Versions come from the metadata of packages, so that nothing heavy is imported and a broken torch
can still be reported. Direct I/O depends on the file system below a store, and engines on the
kernel and the container, so both are tried and not guessed from versions.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import gnnstore
from gnnstore import _core
from gnnstore.budget.limits import available_bytes
from gnnstore.disk.engines import ENVIRONMENT_VARIABLE, probe_engines
from gnnstore.disk.profile.filesystems import find_mount
from gnnstore.errors import GnnstoreError, NotFoundError
from gnnstore.formats import StoreReader

_PACKAGES = ("numpy", "torch", "torch_geometric", "zarr", "numcodecs", "pyarrow", "click", "rich")
# Instruction sets that decide how fast checksums, gathers and copies can be.
_CPU_FEATURES = ("sse4_2", "avx", "avx2", "avx512f", "avx512bw", "bmi2", "crc32", "asimd", "sve")
_THP = Path("/sys/kernel/mm/transparent_hugepage")

_AT_FDCWD = -100
_STATX_DIOALIGN = 0x2000  # Linux 6.1
_STATX_BYTES = 256
_STATX_MASK_OFFSET = 0
_STATX_DIO_OFFSET = 152  # stx_dio_mem_align and stx_dio_offset_align, u32 each

_PROBED_BYTES = 4096


def describe_system() -> dict[str, Any]:
    """Return the facts for a bug report, as JSON values."""
    return {
        "gnnstore": {
            "version": gnnstore.__version__,
            "location": str(Path(gnnstore.__file__).parent),
            "core": _core_facts(),
        },
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "packages": {name: _version(name) for name in _PACKAGES},
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "libc": " ".join(platform.libc_ver()).strip() or None,
            "cpu": _cpu_model(),
            "cpu_features": cpu_features(),
            "cpus_usable": len(os.sched_getaffinity(0)),
            "cpus_online": os.cpu_count(),
            "page_bytes": resource.getpagesize(),
            "huge_pages": _huge_pages(),
            "memory": _memory(),
        },
    }


def _core_facts() -> dict[str, str]:
    """Return where the compiled kernels lie, how they were built, what they chose here."""
    return {
        "file": str(_core._kernels.__file__),
        "build": _core.build_info(),
        "crc32c": _core.crc32c_implementation(),
    }


def _version(name: str) -> str | None:
    """Return the installed version of a package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    """Return the processor's name as the kernel gives it."""
    return _cpuinfo("model name") or platform.processor() or None


def cpu_features() -> list[str]:
    """Return those instruction sets of this processor that the kernels can profit from."""
    flags = (_cpuinfo("flags") or _cpuinfo("Features") or "").split()
    return [feature for feature in _CPU_FEATURES if feature in flags]


def _cpuinfo(key: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _huge_pages() -> dict[str, str | None]:
    """Return the kernel's modes for transparent huge pages ("madvise" or "always" is good)."""
    return {name: _bracketed(_THP / name) for name in ("enabled", "defrag")}


def _bracketed(file: Path) -> str | None:
    """Return the chosen word of a sysfs file such as "always [madvise] never"."""
    try:
        text = file.read_text()
    except OSError:
        return None
    return text.partition("[")[2].partition("]")[0] or text.strip()


def _memory() -> dict[str, int | None]:
    """Return the machine's memory and what this process may still take of it, in bytes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    total = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    return {
        "total_bytes": total[0] if total else None,
        # The least of the machine's and every cgroup's limit: what a loader goes by.
        "available_bytes": available_bytes(),
    }


def describe_filesystem(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return facts about the file system that holds `path`."""
    place = Path(path)
    if not place.exists():
        raise NotFoundError(f"{place}: no such file or directory", path=place)
    space = os.statvfs(place)
    mount = find_mount(place)
    return {
        "path": str(place),
        "mount_point": mount.point if mount else None,
        "type": mount.kind if mount else None,
        "device": mount.device if mount else None,
        "read_only": bool(space.f_flag & os.ST_RDONLY),
        "block_bytes": space.f_bsize,
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "direct_io": _direct_io(place),
        "rotational": _rotational(place),
    }


def _direct_io(place: Path) -> dict[str, int] | None:
    """Return the alignments that direct I/O needs; None where the kernel cannot say."""
    if place.is_file():
        return _dio_alignment(place)
    try:  # the kernel answers for regular files only
        with tempfile.NamedTemporaryFile(dir=place, prefix=".gnnstore-info-") as probe:
            return _dio_alignment(Path(probe.name))
    except OSError:
        return None


def _dio_alignment(file: Path) -> dict[str, int] | None:
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(file), 0, _STATX_DIOALIGN, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", buffer, _STATX_MASK_OFFSET)
    if not mask & _STATX_DIOALIGN:
        return None
    memory, offset = struct.unpack_from("=II", buffer, _STATX_DIO_OFFSET)
    return {"memory_alignment_bytes": memory, "offset_alignment_bytes": offset}


def _rotational(place: Path) -> bool | None:
    """Return whether the disk spins; None for a network, memory or layered file system."""
    device = place.stat().st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (node / "queue", node / ".." / "queue"):  # a partition's disk is one up
        try:
            return (queue / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None


def describe_engines(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Try each engine on a file at `path`: a store's own, or one that is made for it."""
    return {
        "forced": os.environ.get(ENVIRONMENT_VARIABLE) or None,
        "probes": _probe(Path(path)),
    }


def _probe(place: Path) -> list[dict[str, Any]] | None:
    try:
        with _file_in(place) as file:
            return [
                {
                    "name": probe.name,
                    "is_available": probe.is_available,
                    "detail": probe.detail,
                    "remedy": probe.remedy or None,
                }
                for probe in probe_engines(file)
            ]
    except OSError:  # also what reads and opens here raise
        return None


@contextmanager
def _file_in(place: Path) -> Iterator[Path]:
    file = place.resolve() if place.is_file() else _file_of_store(place)
    if file is not None:
        yield file
        return
    with tempfile.NamedTemporaryFile(dir=place, prefix=".gnnstore-info-") as made:
        made.write(bytes(_PROBED_BYTES))
        made.flush()
        yield Path(made.name)


def _file_of_store(place: Path) -> Path | None:
    try:
        reader = StoreReader.open(place)
        paged = [spec for spec in reader.schema.arrays() if spec.layout == "paged"]
        files = [file for spec in paged for file in reader.paged(spec).file_paths]
    except GnnstoreError:  # no store, or a damaged one, which is not what is asked here
        return None
    return files[0] if files else None
