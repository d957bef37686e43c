"""`gnnstore info`: versions, build and machine, to be pasted into a bug report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from gnnstore.tools.inspect.system import (
    describe_engines,
    describe_filesystem,
    describe_system,
)
from gnnstore.tools.ui.options import session_options
from gnnstore.tools.ui.session import Session
from gnnstore.tools.ui.tables import print_facts, print_title
from gnnstore.units import format_size

_HELP = """Show versions, build and machine, for bug reports.

PATH is a store or a directory (default: the current one). Its file system is described, too, with
the alignment of direct I/O and the engines that can read from it; each engine is tried.

\b
Examples:
  gnnstore info
  gnnstore info /data/papers100M.gnn
  gnnstore info --json > report.json
"""


@click.command(name="info", help=_HELP)
@click.argument("path", type=click.Path(), default=".")
@session_options
def command(session: Session, path: str) -> None:
    """Describe the system and print the description."""
    document = {
        **describe_system(),
        "filesystem": describe_filesystem(path),
        "engines": describe_engines(path),
    }
    session.emit(document, lambda console: _render(console, document))


def _render(console: Console, document: Mapping[str, Any]) -> None:
    own, python, machine = document["gnnstore"], document["python"], document["machine"]
    console.print(f"gnnstore {own['version']}", style="bold")
    core = {name: value for name, value in own["core"].items() if name != "file"}
    print_facts(
        console,
        {
            "location": own["location"],
            "core": own["core"]["file"],
            **{f"core {name}": value for name, value in core.items()},
            "python": f"{python['implementation']} {python['version']} ({python['executable']})",
            **{name: value or "not installed" for name, value in document["packages"].items()},
        },
    )
    print_title(console, "Machine")
    memory, huge = machine["memory"], machine["huge_pages"]
    print_facts(
        console,
        {
            "system": f"{machine['system']} {machine['architecture']}",
            "libc": machine["libc"],
            "cpu": machine["cpu"],
            "cpu features": " ".join(machine["cpu_features"]) or "none of those looked for",
            "cpus": f"{machine['cpus_usable']} usable of {machine['cpus_online']}",
            "memory": None if memory["total_bytes"] is None else format_size(memory["total_bytes"]),
            "memory available": format_size(memory["available_bytes"]),
            "page size": f"{machine['page_bytes']} bytes",
            "huge pages": f"enabled: {huge['enabled']}, defrag: {huge['defrag']}",
        },
    )
    print_title(console, f"File system of {document['filesystem']['path']}")
    print_facts(console, _filesystem_facts(document["filesystem"]))
    print_title(console, "Engines that read rows there")
    print_facts(console, _engine_facts(document["engines"]))


def _filesystem_facts(facts: Mapping[str, Any]) -> dict[str, object]:
    direct = facts["direct_io"]
    if direct is None:
        alignment = "unknown (needs Linux 6.1 and a file system that says)"
    elif direct["offset_alignment_bytes"] == 0:
        alignment = "not supported here"
    else:
        alignment = (
            f"offsets to {direct['offset_alignment_bytes']} bytes, "
            f"memory to {direct['memory_alignment_bytes']} bytes"
        )
    return {
        "mounted at": f"{facts['mount_point']} ({facts['type']}, {facts['device']})",
        "access": "read-only" if facts["read_only"] else "read and write",
        "free": f"{format_size(facts['free_bytes'])} of {format_size(facts['total_bytes'])}",
        "block size": f"{facts['block_bytes']} bytes",
        "direct I/O": alignment,
        "spinning disk": {True: "yes", False: "no", None: None}[facts["rotational"]],
    }


def _engine_facts(engines: Mapping[str, Any]) -> dict[str, object]:
    facts: dict[str, object] = {"forced": engines["forced"]}
    if engines["probes"] is None:
        return {**facts, "unknown": "no file there to try them on, and none can be made"}
    for probe in engines["probes"]:
        text = probe["detail"]
        if not probe["is_available"]:
            text = f"not available: {text}. {probe['remedy']}"
        facts[probe["name"]] = text
    return facts
