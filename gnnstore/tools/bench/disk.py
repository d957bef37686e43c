"""Measures a disk; prints and plots that. Apart from loaders, so that torch is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnnstore.disk.measure import measure_disk
from gnnstore.disk.profile import save_profile, tune_reads
from gnnstore.errors import StorageError
from gnnstore.pictures import draw_into
from gnnstore.tools.layout import Block, Layout
from gnnstore.tools.plots import draw_profile
from gnnstore.tools.session import OK, STORAGE, Session


def bench_disk(
    session: Session,
    path: str,
    *,
    plot_file: Path | None,
    is_saved: bool,
    **options: Any,
) -> int:
    """Measure, keep the result, draw it, print it, and return the exit status."""
    with session.progress() as progress:
        measured = measure_disk(path, **options, progress=progress)
    profile, tuning = measured.profile, tune_reads(measured.profile)
    document: dict[str, Any] = {
        "what": "disk",
        "path": measured.directory,
        "engine_reason": measured.engine_reason,
        "file_bytes": measured.file_bytes,
        "seconds": measured.seconds,
        "remarks": list(measured.remarks),
        "profile": asdict(profile),
        "tuning": asdict(tuning),
        "saved_to": None,
    }
    draw_into(document, plot_file, lambda _, file: draw_profile(profile, file))
    if is_saved:
        try:
            document["saved_to"] = str(save_profile(profile))
        except StorageError as error:
            document["problems"].append(str(error))
    depths = sorted({d for rates in profile.random_reads_per_second.values() for d in rates})
    document["random_reads"] = [
        {"block_bytes": block, **{f"{depth}": rate for depth, rate in rates.items()}}
        for block, rates in sorted(profile.random_reads_per_second.items())
    ]
    session.emit(document, _disk_layout(depths))
    return STORAGE if document["problems"] else OK


def _disk_layout(depths: Sequence[int]) -> Layout:
    return (
        "Disk below {path}",
        Block(
            "",
            {
                "mounted at": "{profile.mount_point} ({profile.filesystem_type}, {profile.device})",
                "sequential read": "{profile.sequential_read_bytes_per_second}",
                "sequential write": "{profile.sequential_write_bytes_per_second}",
                "engine": "{engine_reason}",
                "page cache avoided": "{profile.is_direct}",
                "measured with": "a file of {file_bytes}, in {seconds}",
            },
        ),
        Block(
            "Random reads per second, by reads in flight",
            {"read": "{block_bytes}", **{f"{d}": f"{{{d}:,.0f}}" for d in depths}},
            "random_reads",
        ),
        Block(
            "How loaders read here",
            {
                "gap": "{tuning.gap_bytes}: rows no further apart share a read",
                "queue depth": "{tuning.queue_depth:read} in flight for each thread",
                "longest read": "{tuning.max_read_bytes}",
                "because of": "{tuning.source}",
                "kept in": "{saved_to}",
            },
        ),
    )
