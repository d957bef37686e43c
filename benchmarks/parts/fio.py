"""fio, where it is installed: a common benchmark of disks."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.harness import Turn


def is_installed() -> bool:
    """Return whether there is an fio to run."""
    return shutil.which("fio") is not None


def read(
    path: Path,
    pattern: str,
    *,
    block_bytes: int,
    seconds: float,
    engine: str = "io_uring",
    depth: int = 1,
    threads: int = 1,
) -> Turn:
    """Run one fio job on an existing file, around the page cache; nothing is written.

    Parameters
    ----------
    pattern : "read" or "randread"
        In order, or at random offsets, independently drawn.
    engine : "io_uring" or "psync"
        fio's `ioengine`.
    depth, threads : int
        Reads in flight per thread, and threads.

    Returns
    -------
    Turn
        Reads, their seconds, and the CPU seconds of all threads.

    Raises
    ------
    RuntimeError
        If fio fails, with what it said.
    """
    command = [
        *("fio", "--name=job", "--readonly", "--direct=1", "--output-format=json"),
        *(f"--filename={path}", f"--size={path.stat().st_size}", f"--rw={pattern}"),
        *(f"--bs={block_bytes}", f"--ioengine={engine}", f"--iodepth={depth}"),
        *("--thread", f"--numjobs={threads}", "--group_reporting"),
        *("--time_based", f"--runtime={round(1e3 * seconds)}ms"),
        *("--norandommap", "--randrepeat=0", "--random_generator=tausworthe64"),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"fio failed: {finished.stderr.strip() or finished.stdout.strip()}")
    # Warnings may stand before the document.
    job = json.loads(finished.stdout[finished.stdout.index("{") :])["jobs"][0]
    facts = job["read"]
    elapsed = facts["runtime"] / 1e3
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
    return Turn(facts["total_ios"], elapsed, cpu)
