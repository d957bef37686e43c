"""The rate of gathering rows, which predictions go by: in little time, and within its memory."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from gnnstore.strategies.predict import calibrate
from gnnstore.strategies.predict.calibrate import gather_bandwidth


@pytest.mark.parametrize("row_bytes", [0, 4, 512, 1 << 20])
@pytest.mark.parametrize("spare_bytes", [-5, 1000, 100_000_000])
@pytest.mark.parametrize(("num_rows", "batch_rows"), [(0, 0.0), (3, 1.5), (10**7, 150_000.0)])
def test_it_takes_a_quarter_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
    row_bytes: int,
    spare_bytes: int,
    num_rows: int,
    batch_rows: float,
) -> None:
    taken: list[int] = []

    def measured(row_bytes: int, table_rows: int, batch_rows: int, num_threads: int) -> float:
        assert min(table_rows, batch_rows) >= 1
        taken.append(table_rows * row_bytes + num_threads * batch_rows * (row_bytes + 8))
        return 1e9

    monkeypatch.setattr(calibrate, "_measured", measured)
    assert gather_bandwidth(row_bytes, num_rows, batch_rows, num_threads=3, spare_bytes=spare_bytes)
    assert taken[0] <= max(spare_bytes // 4, 2 << 20, 4 * (row_bytes + 8))


@pytest.mark.parametrize("row_bytes", [4, 512, 1 << 18])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_it_takes_little_time(row_bytes: int, num_threads: int) -> None:
    options: Any = {"num_threads": num_threads, "spare_bytes": 64 << 20}
    began = perf_counter()
    rate = gather_bandwidth(row_bytes, 10**6, 5000.0, **options)
    assert perf_counter() - began < 2
    assert 1e6 < rate < 1e13
    began = perf_counter()
    assert gather_bandwidth(row_bytes, 10**6, 5000.0, **options) == rate, "known by now"
    assert perf_counter() - began < 0.05
