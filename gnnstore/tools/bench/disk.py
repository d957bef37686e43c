"""Measures a disk for `gnnstore bench disk`, and prints the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from gnnstore.disk.measure import measure_disk
from gnnstore.disk.profile import DeviceProfile, save_profile, tune_reads
from gnnstore.errors import StorageError
from gnnstore.tools.plots import block_name, draw_profile, speed
from gnnstore.tools.ui import exits
from gnnstore.tools.ui.session import Session
from gnnstore.tools.ui.tables import print_facts, print_table, print_text, print_title
from gnnstore.units import format_size


def bench_disk(
    session: Session,
    path: str,
    *,
    plot_file: Path | None,
    is_saved: bool,
    seconds: float,
    num_bytes: int,
    engine: str | None,
) -> int:
    """Measure, keep the result, draw it, print it, and return the exit status."""
    with session.progress() as progress:
        measured = measure_disk(
            path, num_bytes=num_bytes, seconds=seconds, engine=engine, progress=progress
        )
    profile, tuning = measured.profile, tune_reads(measured.profile)
    document: dict[str, Any] = {
        "what": "disk",
        "path": measured.directory,
        "engine_reason": measured.engine_reason,
        "file_bytes": measured.file_bytes,
        "seconds": measured.seconds,
        "remarks": list(measured.remarks),
        "problems": [],
        "profile": profile.to_document(),
        "tuning": asdict(tuning),
        "saved_to": None,
        "drawn_to": None,
    }
    steps: dict[str, Callable[[], Path]] = {}
    if is_saved:
        steps["saved_to"] = lambda: save_profile(profile)
    if plot_file is not None:
        steps["drawn_to"] = lambda: draw_profile(profile, plot_file)
    for name, step in steps.items():
        try:
            document[name] = str(step())
        except StorageError as error:
            document["problems"].append(str(error))
    session.emit(document, lambda console: _render(console, document, profile))
    return exits.STORAGE if document["problems"] else exits.OK


def _render(console: Console, document: Mapping[str, Any], profile: DeviceProfile) -> None:
    tuning = document["tuning"]
    console.print(f"Disk below {document['path']}", style="bold")
    print_facts(
        console,
        {
            "mounted at": f"{profile.mount_point} ({profile.filesystem_type}, {profile.device})",
            "sequential read": speed(profile.sequential_read_bytes_per_second),
            "sequential write": speed(profile.sequential_write_bytes_per_second),
            "engine": document["engine_reason"],
            "page cache": "avoided" if profile.is_direct else "not avoided",
            "measured with": f"a file of {format_size(document['file_bytes'])}, in "
            f"{document['seconds']:.1f} s",
        },
    )
    print_title(console, "Random reads per second")
    _render_rates(console, profile)
    for text in (*document["remarks"], *document["problems"]):
        print_text(console, text)
    print_title(console, "How loaders read here")
    print_facts(
        console,
        {
            "gap": f"{tuning['gap_bytes']} bytes: rows no further apart share a read",
            "queue depth": f"{tuning['queue_depth']} reads in flight for each thread",
            "longest read": block_name(tuning["max_read_bytes"]),
            "because of": "this measurement" if profile.is_direct else tuning["source"],
            "kept in": document["saved_to"] or "nothing was kept",
            "drawn in": document["drawn_to"],
        },
    )


def _render_rates(console: Console, profile: DeviceProfile) -> None:
    blocks = sorted(profile.random_reads_per_second)
    depths = sorted({d for rates in profile.random_reads_per_second.values() for d in rates})
    names = [block_name(block) for block in blocks]
    rows = [
        [depth, *(_rate(profile.random_reads_per_second[block].get(depth)) for block in blocks)]
        for depth in depths
    ]
    best = [speed(profile.best_rate(block) * block) for block in blocks]
    print_table(
        console,
        ["in flight", *names],
        [*rows, ["bandwidth", *best]],
        right=["in flight", *names],
    )


def _rate(reads_per_second: float | None) -> str:
    return "-" if reads_per_second is None else f"{reads_per_second:,.0f}"
