"""The rate of gathering rows, which predictions go by, in little time."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from gnnstore.strategies.predict.calibrate import gather_bandwidth


@pytest.mark.parametrize("row_bytes", [4, 512, 1 << 18])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_it_takes_little_time(row_bytes: int, num_threads: int) -> None:
    options: Any = {"num_threads": num_threads, "spare_bytes": 64 << 20}
    began = perf_counter()
    rate = gather_bandwidth(row_bytes, 10**6, 5000.0, **options)
    assert perf_counter() - began < 2
    assert 1e6 < rate < 1e13
    assert gather_bandwidth(0, 0, 0.0, num_threads=num_threads, spare_bytes=-5) > 0
