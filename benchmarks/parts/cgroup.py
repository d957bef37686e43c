"""The memory limit of `gnnstore bench load`, for benchmarks that need one as well."""

from __future__ import annotations

from gnnstore.testing.cgroup import MemoryGroup, memory_group

__all__ = ["MemoryGroup", "memory_group"]
