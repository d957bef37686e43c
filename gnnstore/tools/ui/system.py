"""The facts about this machine and this installation that explain a speed or a failure.

Versions come from the packages' metadata, so that nothing heavy is imported and a broken
torch can still be reported.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import gnnstore
from gnnstore import _core
from gnnstore.budget.limits import available_bytes

_PACKAGES = ("numpy", "torch", "torch_geometric", "zarr", "numcodecs", "pyarrow", "click", "rich")
# Instruction sets that decide how fast checksums, gathers and copies can be.
_CPU_FEATURES = ("sse4_2", "avx", "avx2", "avx512f", "avx512bw", "bmi2", "crc32", "asimd", "sve")
_THP = Path("/sys/kernel/mm/transparent_hugepage")


def describe_system() -> dict[str, Any]:
    """Return what a bug report needs, as JSON values."""
    return {
        "gnnstore": {
            "version": gnnstore.__version__,
            "location": str(Path(gnnstore.__file__).parent),
            "core": describe_core(),
        },
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "packages": {name: package_version(name) for name in _PACKAGES},
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "libc": " ".join(platform.libc_ver()).strip() or None,
            "cpu": cpu_model(),
            "cpu_features": cpu_features(),
            "cpus_usable": len(os.sched_getaffinity(0)),
            "cpus_online": os.cpu_count(),
            "page_bytes": resource.getpagesize(),
            "huge_pages": huge_pages(),
            "memory": memory(),
        },
    }


def describe_core() -> dict[str, str]:
    """Return where the compiled kernels lie, how they were built, what they chose here."""
    return {
        "file": str(_core._kernels.__file__),
        "build": _core.build_info(),
        "crc32c": _core.crc32c_implementation(),
    }


def package_version(name: str) -> str | None:
    """Return the installed version of a package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str | None:
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


def huge_pages() -> dict[str, str | None]:
    """Return the kernel's modes for transparent huge pages ("madvise" or "always" is good)."""
    return {name: _bracketed(_THP / name) for name in ("enabled", "defrag")}


def _bracketed(file: Path) -> str | None:
    """Return the chosen word of a sysfs file such as "always [madvise] never"."""
    try:
        text = file.read_text()
    except OSError:
        return None
    return text.partition("[")[2].partition("]")[0] or text.strip()


def memory() -> dict[str, int | None]:
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
