"""Rows on a device above rows that are read: together they are those of plain indexing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gnnstore.disk.engines import open_engine
from gnnstore.errors import UsageError
from gnnstore.features import device as device_rows
from gnnstore.features.device import DeviceRows, assemble
from gnnstore.features.source import FileRows, MemoryRows
from gnnstore.testing.twins.reads import write_array

NUM_NODES = 700
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
    ),
]


def some_values(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Values of every bit pattern, so that nothing is computed on the way."""
    rng = np.random.default_rng(len(shape))
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return rng.integers(0, 256, num_bytes, np.uint8).view(dtype).reshape(shape)


def some_nodes(count: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(count).permutation(NUM_NODES)[:count])


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


class Lower:
    """Rows in memory, and the ids that were asked for."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.asked: list[list[int]] = []

    def __call__(self, ids: NDArray[Any]) -> torch.Tensor:
        self.asked.append(ids.tolist())
        return torch.from_numpy(self.values[ids])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [0, 1, 300, NUM_NODES])
@pytest.mark.parametrize("width", [1, 3, 100, 768])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.uint16, np.int64])
def test_rows_of_both_tiers(
    dtype: type[np.generic], width: int, count: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_rows, "WARM_UP_BYTES", 10_000)  # in several pieces
    values = some_values((NUM_NODES, width), dtype)
    nodes = some_nodes(count)
    tier = DeviceRows.from_nodes(MemoryRows.from_array(values), nodes, device)
    assert tier.device.type == device
    assert (tier.num_rows, tier.device_bytes) == (count, count * values[0].nbytes)
    rng = np.random.default_rng(width)
    for ids in (
        rng.permutation(NUM_NODES)[:400].astype(np.int32),
        rng.integers(0, NUM_NODES, 500),  # some of them again
        np.empty(0, np.int64),
    ):
        lower = Lower(values)
        found = assemble(ids, tier, lower)
        assert (found.device.type, tuple(found.shape)) == (device, (len(ids), width))
        assert found.dtype == torch.from_numpy(values[:0]).dtype
        assert bits(found) == values[ids].tobytes()
        missing = ids[~np.isin(ids, nodes)].tolist()
        assert lower.asked == ([missing] if missing else [])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_rows_of_other_shapes(shape: tuple[int, ...], device: str) -> None:
    values = some_values((NUM_NODES, *shape), np.float32)
    tier = DeviceRows.from_nodes(MemoryRows.from_array(values), some_nodes(200), device)
    ids = np.arange(NUM_NODES)[::-3].copy()
    found = assemble(ids, tier, Lower(values))
    assert tuple(found.shape) == (len(ids), *shape)
    assert bits(found) == values[ids].tobytes()


def test_bfloat16_is_named() -> None:
    numbers = torch.randn(NUM_NODES, 5).to(torch.bfloat16)
    source = MemoryRows.from_array(numbers.view(torch.int16).numpy())
    tier = DeviceRows.from_nodes(source, some_nodes(99), "cpu", dtype=torch.bfloat16)
    ids = np.arange(0, NUM_NODES, 2)
    found = assemble(ids, tier, lambda ids: numbers[torch.from_numpy(ids)])
    assert torch.equal(found, numbers[::2])
    with pytest.raises(UsageError, match=r"float32 has 4 bytes, but .* have 2"):
        DeviceRows.from_nodes(source, some_nodes(99), "cpu", dtype=torch.float32)


def test_above_rows_on_disk(tmp_path: Path) -> None:
    """What the tier holds is not read."""
    values = some_values((NUM_NODES, 1024), np.float32)
    array = write_array(tmp_path / "x", values)
    source = FileRows.open(array, open_engine(array.file_paths[0]))
    tier = DeviceRows.from_nodes(source, some_nodes(300), "cpu")
    rows_read = 0

    def lower(ids: NDArray[Any]) -> torch.Tensor:
        nonlocal rows_read
        gathered = source.gather(ids)
        rows_read += gathered.counts.rows_read
        return torch.from_numpy(gathered.values)

    found = assemble(np.arange(NUM_NODES), tier, lower)
    assert bits(found) == values.tobytes()
    assert rows_read == NUM_NODES - 300


def test_what_is_there_stays_as_it_is() -> None:
    values = some_values((NUM_NODES, 4), np.float32)
    tier = DeviceRows.from_nodes(MemoryRows.from_array(values), some_nodes(300), "cpu")
    ids = np.arange(NUM_NODES)
    split = tier.split(ids)
    assert sorted([*split.positions, *split.others]) == ids.tolist()
    out = torch.full((NUM_NODES, 4), 7.0)
    tier.fill(out, split)
    assert bits(out[split.positions]) == values[split.positions].tobytes()
    assert torch.all(out[split.others] == 7)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_views_that_begin_anywhere(first: int) -> None:
    """Rows of 24 bytes are words of 8, but a view of them may begin at a multiple of 2 only."""
    values = some_values((NUM_NODES, 12), np.float16)
    tier = DeviceRows.from_nodes(MemoryRows.from_array(values), some_nodes(300), "cpu")
    ids = np.arange(NUM_NODES)
    memory = torch.zeros(NUM_NODES * 12 + 8, dtype=torch.float16)
    out = memory[first : first + NUM_NODES * 12].view(NUM_NODES, 12)
    split = tier.split(ids)
    tier.fill(out, split)
    assert bits(out[split.positions]) == values[split.positions].tobytes()
    assert not memory[:first].any()
    assert not memory[first + NUM_NODES * 12 :].any()

    def lower(ids: NDArray[Any]) -> torch.Tensor:
        rows = torch.from_numpy(values[ids]).reshape(-1)
        return torch.cat([memory[:first], rows])[first:].view(len(ids), 12)

    assert bits(assemble(ids, tier, lower)) == values.tobytes()


def test_wrong_arguments() -> None:
    values = some_values((NUM_NODES, 4), np.float32)
    source = MemoryRows.from_array(values)
    for nodes in (np.array([3, 3]), np.array([4, 3]), np.array([NUM_NODES]), np.array([-1])):
        with pytest.raises(UsageError, match="cannot be held"):
            DeviceRows.from_nodes(source, nodes, "cpu")
    tier = DeviceRows.from_nodes(source, some_nodes(300), "cpu")
    split = tier.split(np.arange(10))
    for out in (
        torch.empty(9, 4),
        torch.empty(10, 5),
        torch.empty(10, 4, dtype=torch.float64),
        torch.empty(4, 10).T,
    ):
        with pytest.raises(UsageError, match="out must be a contiguous tensor"):
            tier.fill(out, split)
    with pytest.raises(UsageError, match=r"what lower\(\) returns must be"):
        assemble(np.arange(10), tier, lambda ids: torch.empty(len(ids) + 1, 4))
    with pytest.raises(IndexError):
        tier.split(np.array([10**6]))
