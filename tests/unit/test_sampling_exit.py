"""A thread that is still sampling when the interpreter ends does not abort the process."""

from __future__ import annotations

import subprocess
import sys

from tests.support.effort import choose

SCRIPT = """
import threading, time
import numpy as np
from gnnstore.formats.store.store import Csc
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.sampling.neighbor import NeighborSampler

rng = np.random.default_rng(0)
indptr = np.arange(0, 200_001, 20, dtype=np.int64)
csc = Csc(indptr, rng.integers(0, 10_000, 200_000).astype(np.int32), 10_000)
sampler = NeighborSampler(csc, SamplingConfig((10, 10)))

def churn():
    while True:
        sampler.sample(np.arange(500), epoch=0, batch=0)

for _ in range(3):
    threading.Thread(target=churn, daemon=True).start()
time.sleep(0.3)
"""


def test_daemon_threads_in_the_kernel() -> None:
    for _ in range(choose(1, 3)):  # which thread holds the GIL at the end is chance
        finished = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
        )
        assert (finished.returncode, finished.stderr) == (0, "")
