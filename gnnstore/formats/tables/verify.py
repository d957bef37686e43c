"""Compares the bytes of a table's commits with their checksums."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnnstore.errors import CorruptStoreError
from gnnstore.formats.container.files import Problem
from gnnstore.formats.container.verify import Level, Report
from gnnstore.formats.tables.commit import MANIFEST_FILE, SLOTS_FILE, TableManifest
from gnnstore.formats.tables.slots import SlotFile
from gnnstore.progress import Progress


def is_table(path: Path) -> bool:
    """Whether a directory looks like an embedding table."""
    return (path / MANIFEST_FILE).exists()


def verify_table(path: Path, level: Level, progress: Progress) -> Report:
    """Check the manifest of a table, and unless the level is "header" every slot of its commits.

    A table that is being trained should be closed: its slots come and go with commits.
    """
    manifest, report = TableManifest.read(path), Report(level, files=2)
    size = manifest.slot_bytes
    slots = {
        slot: crc
        for commit in manifest.commits
        for slot, crc in zip(commit.slots.tolist(), commit.crcs.tolist(), strict=True)
        if slot >= 0
    }
    file = SlotFile(path / SLOTS_FILE, size, manifest.used_bytes, writable=False)
    try:
        found, needed = file.path.stat().st_size, (max(slots, default=-1) + 1) * size
        if found < needed:
            short = f"{found} bytes, but the commits name slots up to byte {needed}"
            report.problems.append(Problem(str(file.path), short))
        if level == "header" or found < size:
            return report
        data = np.empty(size, np.uint8)
        with progress.phase("compare checksums", len(slots) * size, "bytes") as phase:
            for slot, crc in sorted(slots.items()):
                try:
                    file.read(slot, data, crc)
                except CorruptStoreError as error:
                    begin = slot * size
                    problem = Problem(str(file.path), error.message, begin, begin + size)
                    report.problems.append(problem)
                report.bytes_read += size
                phase.advance(size)
    finally:
        file.close()
    return report
