"""A memory cgroup for tests of budgets."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@pytest.fixture
def limited() -> Iterator[tuple[Path, Path]]:
    """Make a memory cgroup; yield it and the file that takes its limit."""
    for parent, limit in (
        (ROOT / "memory", "memory.limit_in_bytes"),  # version 1
        (ROOT, "memory.max"),
    ):
        group = parent / f"gnnstore-test-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        if not (group / limit).exists():
            group.rmdir()
            continue
        yield group, group / limit
        group.rmdir()
        return
    pytest.skip("no memory cgroup can be made here (it needs root or delegation)")
