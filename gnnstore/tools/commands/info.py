"""`gnnstore info`: versions, build, machine and file system, for a bug report."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import ExitStack, suppress
from importlib import metadata
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import click

import gnnstore
from gnnstore import _core
from gnnstore.budget.limits import available_bytes
from gnnstore.disk.engines import ENVIRONMENT_VARIABLE, probe_engines
from gnnstore.disk.profile import find_mount
from gnnstore.errors import NotFoundError
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.layout import Block
from gnnstore.tools.ui.options import session_options
from gnnstore.tools.ui.session import Session

_HELP = """Show versions, build and machine, for bug reports.

PATH is a store or a directory (default: the current one). Its file system is described, too, with
the alignment of direct I/O and the engines that can read from it; each engine is tried.

\b
Examples:
  gnnstore info
  gnnstore info /data/papers100M.gnn
  gnnstore info --json > report.json
"""
_PACKAGES = ("numpy", "torch", "torch_geometric", "zarr", "numcodecs", "pyarrow", "click", "rich")


_LAYOUT = (
    "gnnstore {gnnstore.version}",
    Block("Software", "gnnstore"),
    Block("Python", "python"),
    Block("Packages", "packages"),
    Block("Machine", "machine"),
    Block("File system", "filesystem"),
    Block("Engines that read rows there", "  {name}: {detail}[. {remedy}]", "engines.probes"),
    "The engine is set to {engines.forced}.",
)


@click.command(name="info", cls=Command, help=_HELP)
@click.argument("path", type=click.Path(), default=".")
@session_options
def command(session: Session, path: str) -> None:
    """Describe the system and print the description."""
    if not (place := Path(path)).exists():
        raise NotFoundError(f"{place}: no such file or directory", path=place)
    crc32c, location = _core.crc32c_implementation(), str(Path(gnnstore.__file__).parent)
    core = {"file": _core._kernels.__file__, "build": _core.build_info(), "crc32c": crc32c}
    python = {"version": platform.python_version(), "executable": sys.executable}
    document = {
        "gnnstore": {"version": gnnstore.__version__, "location": location, "core": core},
        "python": {"implementation": platform.python_implementation(), **python},
        "packages": {name: _version(name) for name in _PACKAGES},
        "machine": _machine(),
        **_disk(place),
    }
    session.emit(document, _LAYOUT)


def _version(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)  # importing a broken torch would end the report
    return None


def _read(path: str) -> str:
    with suppress(OSError):  # some containers have neither /proc nor /sys
        return Path(path).read_text().strip()
    return ""


def _machine() -> dict[str, Any]:
    lines = (line.partition(":") for line in _read("/proc/cpuinfo").splitlines())
    cpu = {name.strip(): value.strip() for name, _, value in lines}
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "cpu": cpu.get("model name") or platform.processor() or None,
        "cpus_usable": len(os.sched_getaffinity(0)),
        "cpus_online": os.cpu_count(),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "memory": {
            "total_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "available_bytes": available_bytes(),  # also within every cgroup, as loaders count it
        },
    }


def _disk(place: Path) -> dict[str, Any]:
    """Describe the file system, and try direct I/O and engines on a file there."""
    space, mount = os.statvfs(place), find_mount(place)
    direct_io = probes = None
    file = place.resolve() if place.is_file() else place / "zarr.json"  # a store has one
    with suppress(OSError), ExitStack() as stack:  # no file can be made in a read-only directory
        if not file.is_file():
            made = stack.enter_context(NamedTemporaryFile(dir=place, prefix=".gnnstore-info-"))
            os.truncate(made.name, 4096)
            file = Path(made.name)
        files = _core.FileSet([str(file)], [file.stat().st_size])
        why = files.buffered_because or None
        direct_io = {"alignment_bytes": files.alignment_bytes, "refused_because": why}
        probes = [vars(probe) | {"remedy": probe.remedy or None} for probe in probe_engines(file)]
    return {
        "filesystem": {
            "path": str(place),
            "mount_point": mount.point if mount else None,
            "type": mount.kind if mount else None,
            "device": mount.device if mount else None,
            "read_only": bool(space.f_flag & os.ST_RDONLY),
            "block_bytes": space.f_bsize,
            "free_bytes": space.f_bavail * space.f_frsize,
            "total_bytes": space.f_blocks * space.f_frsize,
            "direct_io": direct_io,
        },
        "engines": {"forced": os.environ.get(ENVIRONMENT_VARIABLE) or None, "probes": probes},
    }
