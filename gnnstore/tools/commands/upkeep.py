"""Commands that check a store, describe the machine, and remove what is not needed."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
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
from gnnstore.errors import NotFoundError, StorageError, UsageError, storage_errors
from gnnstore.formats.assignments import ASSIGNMENTS
from gnnstore.formats.base.files import directory_bytes
from gnnstore.formats.container.manifest import KINDS
from gnnstore.formats.container.workdir import Leftover, find_leftovers, remove
from gnnstore.formats.packed import PACKED
from gnnstore.formats.partitions import PARTITIONS
from gnnstore.formats.store.schema import StoreManifest
from gnnstore.formats.store.store import StoreReader
from gnnstore.formats.store.units import remove_unit, unit_path
from gnnstore.pipeline.check import LEVELS, Level, verify
from gnnstore.tools.layout import Block
from gnnstore.tools.options import Command, cache_option, declared, session_options
from gnnstore.tools.session import OK, PROBLEM, Session
from gnnstore.units import format_count

_VERIFY_HELP = """\
Check files, checksums and contents of a store, and of what was made from it.

STORE may also be the directory of packed epochs, of partitions, of an assignment, or of trainable
embeddings. For packed epochs, "full" also reads each batch as training does.

\b
Levels, each including the one before:
  header     metadata, every file's presence and exact size; reads no data
  checksums  every byte against the crc32c recorded when it was written
  full       also the values: ids in range, columns sorted, padding zero,
             edges of partitions

Exits with 0 if the store is sound and with 1 if it is not; prints every problem with its file and
byte range.

\b
Examples:
  gnnstore verify papers100M.gnn
  gnnstore verify papers100M.gnn --level full
  gnnstore verify papers100M.gnn --level header --json
"""

_PROBLEMS = Block("", "{path}[ bytes {first_byte:d}-{end_byte:d}]: {message}", "problems")


@click.command(name="verify", cls=Command, help=_VERIFY_HELP)
@click.argument("store", type=click.Path())
@click.option("--level", type=click.Choice(LEVELS), default="checksums", help="How much to check.")
@declared("  --threads N>=1  Threads that read. Default: all processors.")
@cache_option
@session_options
def verify_command(session: Session, store: str, level: Level, threads: int | None) -> int:
    """Verify, print the report, and return the exit status."""
    started = time.perf_counter()
    with session.progress() as progress:
        report = verify(store, level, num_threads=threads, progress=progress)
    document = {
        "store": store,
        "level": report.level,
        "ok": report.ok,
        "files": report.files,
        "bytes_read": report.bytes_read,
        "seconds": time.perf_counter() - started,
        "problems": [
            {**asdict(one), "message": one.message.removeprefix(f"{one.path}: ")}
            for one in report.problems
        ],
    }
    is_whole = not report.ok or report.level == LEVELS[-1]
    commands = [] if is_whole else [("gnnstore", "verify", store, "--level", LEVELS[-1])]
    read = ", {bytes_read} read in {seconds}" if report.bytes_read else ""
    verdict = f"{{store}}: sound at level {{level}}: {{files}} files{read}"
    if not report.ok:
        found = format_count(len(report.problems), "problem")
        verdict = (
            f"{{store}}: {found} found at level {{level}}{read}. Restore the files named above "
            "from a copy, or convert the data again."
        )
    session.emit(document, [_PROBLEMS, verdict] if report.problems else [verdict], commands)
    return OK if report.ok else PROBLEM


_INFO_HELP = """Show versions, build and machine, for bug reports.

PATH is a store or a directory (default: the current one). Its file system is described, too, with
the alignment of direct I/O and the engines that can read from it; each engine is tried.

\b
Examples:
  gnnstore info
  gnnstore info /data/papers100M.gnn
  gnnstore info --json > report.json
"""
_PACKAGES = ("numpy", "torch", "torch_geometric", "numcodecs", "pyarrow", "click", "rich")


_SYSTEM = (
    "gnnstore {gnnstore.version}",
    Block("Software", "gnnstore"),
    Block("Python", "python"),
    Block("Packages", "packages"),
    Block("Machine", "machine"),
    Block("File system", "filesystem"),
    Block("Engines that read rows there", "  {name}: {detail}[. {remedy}]", "engines.probes"),
    "The engine is set to {engines.forced}.",
)


@click.command(name="info", cls=Command, help=_INFO_HELP)
@click.argument("path", type=click.Path(), default=".")
@session_options
def info_command(session: Session, path: str) -> None:
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
    session.emit(document, _SYSTEM)


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
            "mount_point": mount.point,
            "type": mount.kind,
            "device": mount.device,
            "read_only": bool(space.f_flag & os.ST_RDONLY),
            "block_bytes": space.f_bsize,
            "free_bytes": space.f_bavail * space.f_frsize,
            "total_bytes": space.f_blocks * space.f_frsize,
            "direct_io": direct_io,
        },
        "engines": {"forced": os.environ.get(ENVIRONMENT_VARIABLE) or None, "probes": probes},
    }


_RM_HELP = """Remove packed epochs, a partitioning or an assignment of STORE, and nothing else.

'gnnstore inspect STORE' lists them. Those written with --output are directories of their own:
remove them like any other.

\b
Examples:
  gnnstore rm papers100M.gnn --packed base
  gnnstore rm papers100M.gnn --partitions random-64
  gnnstore rm papers100M.gnn --assignment parts-8
"""


@click.command(name="rm", cls=Command, help=_RM_HELP)
@click.argument("store", type=click.Path())
@declared("""
  --packed NAME  Name of the packed epochs.
  --partitions NAME  Name of the partitioning.
  --assignment NAME  Name of the assignment.
""")
@session_options
def rm_command(session: Session, store: str, **named: str | None) -> None:
    """Remove the unit and print its size."""
    kinds = {"packed": PACKED, "partitions": PARTITIONS, "assignment": ASSIGNMENTS}
    given = [(kinds[option], option, name) for option, name in named.items() if name is not None]
    if len(given) != 1:
        raise UsageError("name one thing to remove: --packed, --partitions, or --assignment")
    ((kind, option, name),) = given
    path = StoreReader.open(store).path
    size = directory_bytes(unit_path(kind, path, name))
    remove_unit(kind, path, name)
    session.emit(
        {"store": str(path), option: name, "removed_bytes": size},
        [f"Removed the {kind.name} '{{{option}}}' ({{removed_bytes}})."],
        [("gnnstore", "inspect", str(path))],
    )


_GC_HELP = """\
List the leftovers of interrupted conversions and training, and remove them with --yes.

PATH is a directory of stores (default: the current one), or a store. A conversion of graph.gnn
builds the store next to it, as .graph.gnn.tmp-XXXXXXXX; packing, partitioning and assigning do so
in the directories plans, partitions and assignments of their store, and inference next to its
output. Other directories below PATH are not searched. Training keeps temporary files in
.gnnstore-run-*, which this command or the next run removes if the process was killed. Directories
in use are left alone, and a store that an interrupted --overwrite had set aside gets its name back.

\b
Examples:
  gnnstore gc
  gnnstore gc /data/stores
  gnnstore gc /data/stores --yes
"""


_LEFTOVERS = Block(
    "",
    {
        "path": "{path}",
        "state": "{state}",
        "size": "{num_bytes}",
        "action": "{action}",
        "age": "{age_seconds}",
    },
    "leftovers",
)


@click.command(name="gc", cls=Command, help=_GC_HELP)
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path())
@click.option("--yes", is_flag=True, help="Remove the leftovers instead of listing them.")
@session_options
def gc_command(session: Session, paths: tuple[str, ...], yes: bool) -> None:
    """List leftovers, or remove them."""
    found: list[dict[str, Any]] = []
    for path in dict.fromkeys(Path(path).absolute() for path in paths or (".",)):
        with storage_errors("look for leftovers", path):
            found += [
                _describe(leftover, _remove(leftover) if yes else "none")
                for leftover in _find(path)
            ]
    removed = sum(item["num_bytes"] for item in found if item["action"] == "removed")
    layout: list[Any] = [_LEFTOVERS, "Removed {removed_bytes}."]
    commands = []
    if not found:
        layout = ["No interrupted conversion or run left anything here."]
    elif not yes:
        layout.pop()
        states = {item["state"] for item in found} - {"running"}
        if "resumable" in states:
            layout.append("Repeat the command of a resumable one with --resume, or remove all:")
        if states:
            commands = [("gnnstore", "gc", *paths, "--yes")]
    session.emit({"leftovers": found, "removed_bytes": removed}, layout, commands)
    for item in found:
        if item["action"] == "failed":
            raise StorageError(
                f"cannot remove {item['path']}; check whose it is and what its directory permits",
                path=item["path"],
            )


def _find(path: Path) -> Iterator[Leftover]:
    """Yield the leftovers in a directory, or of one store."""
    if path.is_dir() and not StoreManifest.is_at(path):
        yield from find_leftovers(path)
        for store in sorted(filter(StoreManifest.is_at, path.iterdir())):
            yield from _find_in_store(store)
        return
    if path.is_file():
        raise UsageError(f"{path}: is a file; name a store, or a directory of stores")
    is_there = path.exists()
    if is_there:
        yield from _find_in_store(path)
    for item in find_leftovers(path.parent) if path.parent.is_dir() else ():
        if item.final == path:
            is_there = True
            yield item
    if not is_there:
        raise NotFoundError(f"{path}: there is no such directory or store", path=path)


def _find_in_store(store: Path) -> Iterator[Leftover]:
    """Yield the leftovers of interrupted making or removal of packed epochs and partitions."""
    for kind in KINDS:
        directory = store / kind.directory
        if kind.directory and directory.is_dir() and not directory.is_symlink():
            yield from find_leftovers(directory)


def _remove(leftover: Leftover) -> str:
    """Remove a leftover, which is locked, and return the action taken."""
    if leftover.state == "running":
        return "none"
    if leftover.state == "set aside" and leftover.final is not None:
        leftover.path.rename(leftover.final)
        return "restored"
    remove(leftover.path)
    return "failed" if leftover.path.exists() else "removed"


def _describe(leftover: Leftover, action: str) -> dict[str, Any]:
    return {
        "path": str(leftover.path),
        "store": None if leftover.final is None else str(leftover.final),
        "state": leftover.state,
        "num_bytes": leftover.num_bytes,
        "age_seconds": leftover.age_seconds,
        "action": action,
    }
