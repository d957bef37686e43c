"""Measures the memory of this process, and of scripts in a process whose memory is limited."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.forks import ForkServer

# All that is imported later would count.
_SETUP = """
import json, os, re, sys
from pathlib import Path
import torch
import gnnstore
torch.zeros(1)
def resident(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
def begin(group):
    global before, mapped
    if group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    before, mapped = resident("VmRSS"), resident("RssFile")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
def finish(**found):
    # Pages of files that are mapped, as libraries are, can be taken back.
    found |= {"grown": resident("VmHWM") - before, "mapped": resident("RssFile") - mapped}
    print(json.dumps(found))
"""


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


@contextmanager
def little_memory(limit_bytes: int = 2**26) -> Iterator[None]:
    """Compare the peak of the resident memory with what it was before."""
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    yield
    assert resident("VmHWM") - before < limit_bytes


def run_limited(
    forks: ForkServer,
    script: str,
    *arguments: object,
    limited: tuple[Path, Path] | None = None,
    most: int = 0,
) -> dict[str, Any]:
    """Return what a script tells `finish`; the kernel kills it beyond `most` bytes.

    It calls `begin` with its last argument: the memory cgroup, if there is one.
    """
    group: object = ""
    if limited is not None:
        group, limit = limited
        limit.write_text(str(most))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = forks.run(_SETUP + script, *arguments, group, environment=environment, own_memory=True)
    assert done.returncode == 0, done.stderr or "killed by the kernel"
    found: dict[str, Any] = json.loads(done.stdout)
    return found
