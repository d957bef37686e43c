"""`gnnstore pack --device-cache`: rows that a device is to hold lie in the unit once."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.errors import BudgetError, CorruptStoreError, UsageError
from gnnstore.formats.packed import PackedReader
from gnnstore.packing.sampling import EpochSampler, PackSettings
from gnnstore.pipeline.check import verify
from gnnstore.sampling.neighbor import SamplingConfig
from tests.support.batches import Batches, assert_goes_on, assert_same_batches, batches_of
from tests.support.effort import choose, is_long
from tests.support.every_loader import TRAIN, write_stores
from tests.support.packing import pack, pack_part
from tests.support.twins.held import on_device

EPOCHS = 2
SIZE = 4000

# In `make test` the first two.
FORMS: dict[str, dict[str, Any]] = {
    "belady": {"cache_bytes": "2kB"},
    "by degree": {"cache": "degree", "cache_bytes": "2kB", "disjoint": True},
    "segments": {"cache_bytes": "1kB", "segment": 3},
    "all rows": {"cache_bytes": "1kB", "device_cache": 1 << 30},
    "no slots": {"cache_bytes": 0, "superbatch": 1},
    "fixed": {"cache": "frequency", "cache_bytes": "2kB"},
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_stores(tmp_path_factory.mktemp("packed_device"))


def packed_in(stores: Any, directory: Path, *, typed: bool, **form: Any) -> Path:
    """Pack epochs with rows for a device."""
    path = stores[0] if typed else stores[1]
    given = {"batch_size": 9, "device_cache": SIZE, "epochs": EPOCHS, **form}
    seeds = TRAIN if typed else range(30)
    return pack(path, [3, 2], seeds, output=directory / "unit", **given)


def plain_of(stores: Any, *, typed: bool, **options: Any) -> Any:
    """Return a loader of the same batches."""
    seeds: Any = TRAIN if typed else range(30)
    given = {"batch_size": 9, "seed": 3, "shuffle": True, **options}
    return NeighborLoader(stores[0] if typed else stores[1], [3, 2], seeds, **given)


def checked(loader: Any, expected: Batches) -> None:
    """Check batches of all epochs, and the counts of rows that the device has."""
    found = batches_of(loader, EPOCHS)
    assert_same_batches(found, expected)
    there, stats = on_device(loader, found), loader.stats()
    assert stats.rows_on_device == there.num_rows > 0
    assert stats.device_cache_bytes == loader._sources.chosen.num_bytes > 0


@pytest.mark.parametrize("form", [*FORMS][: choose(2, len(FORMS))])
@pytest.mark.parametrize("typed", [False, True], ids=["one type", "types"])
def test_batches_are_those_of_a_loader(
    stores: tuple[Path, Path], tmp_path: Path, form: str, typed: bool
) -> None:
    options = FORMS[form]
    unit = packed_in(stores, tmp_path, typed=typed, **options)
    own = {"disjoint": True} if options.get("disjoint") else {}
    expected = batches_of(plain_of(stores, typed=typed, **own), EPOCHS)
    manifest = PackedReader.open(unit).manifest
    assert manifest.reader_features == ("device-rows",)
    assert manifest.device is not None
    for device in choose((None,), (None, "cpu")):
        if is_long() or typed:
            checked(gnnstore.open_packed(unit).loader(device=device), expected)
        if is_long() or not typed:
            checked(plain_of(stores, typed=typed, packed=unit, device=device, **own), expected)
    assert verify(unit, "full").ok
    loader = gnnstore.open_packed(unit).loader(num_threads=0)
    for batch in islice(loader, 2):
        del batch
    resumed = gnnstore.open_packed(unit).loader()
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert_same_batches(batches_of(resumed, EPOCHS), expected[2:])
    if not (is_long() or typed):
        return
    (tmp_path / "other").mkdir()
    without = packed_in(stores, tmp_path / "other", typed=typed, **options | {"device_cache": None})
    assert PackedReader.open(without).manifest.device is None
    assert "device" not in (without / "zarr.json").read_text().replace("device_rows", "")
    missed, all_missed = (PackedReader.open(each).index[:, 3].sum() for each in (unit, without))
    assert missed < all_missed or form == "all rows"


@pytest.mark.long("the first test resumes in both")
def test_a_resumed_loader(stores: tuple[Path, Path], tmp_path: Path) -> None:
    unit = packed_in(stores, tmp_path, typed=False, cache="frequency", cache_bytes="1kB")
    assert_goes_on(lambda: gnnstore.open_packed(unit).loader(), num_epochs=1)


def test_parts_and_ranks(stores: tuple[Path, Path], tmp_path: Path) -> None:
    """The first part has the rows, whatever packs it; another size is refused."""
    given: dict[str, Any] = {"fanouts": [3, 2], "input_nodes": range(30), "batch_size": 9}
    given |= {"cache_bytes": "1kB", "device_cache": SIZE}
    for number in (1, 0, 2):
        pack_part(stores[1], tmp_path / "parts", number, 3, **given)
    expected = batches_of(plain_of(stores, typed=False), EPOCHS)
    checked(gnnstore.open_packed(tmp_path / "parts").loader(), expected)
    for rank in range(2):
        loader = gnnstore.open_packed(tmp_path / "parts").loader(rank=rank, world_size=2)
        assert_same_batches(batches_of(loader), expected[: len(expected) // EPOCHS][rank::2])
    assert verify(tmp_path / "parts", "full").ok
    assert (tmp_path / "parts/part-00000-of-00003/device").is_dir()
    assert not (tmp_path / "parts/part-00001-of-00003/device").exists()
    for other in (SIZE * 2, None):
        with pytest.raises(UsageError, match="device is "):
            pack_part(stores[1], tmp_path / "parts", 1, 3, **given | {"device_cache": other})


def test_what_is_packed_at_once_has_rows_of_its_own(stores: tuple[Path, Path]) -> None:
    """Of one open store, with other seeds and fan-outs."""
    store = gnnstore.open(stores[1])

    def sampler(seeds: range, *fanouts: int) -> EpochSampler:
        given: dict[str, Any] = {"device_cache": SIZE, "num_threads": 1}
        return EpochSampler(store, PackSettings(SamplingConfig(fanouts), seeds, 5, 1, **given))

    alone = sampler(range(40, 50), 1).device_nodes
    first = sampler(range(10), 4, 4)
    assert first.device_nodes.tolist() != alone.tolist()
    assert sampler(range(40, 50), 1).device_nodes.tolist() == alone.tolist()


def test_memory_and_options(stores: tuple[Path, Path], tmp_path: Path) -> None:
    unit = packed_in(stores, tmp_path, typed=False, cache_bytes="1kB")
    loader = gnnstore.open_packed(unit).loader(memory="60MB", num_threads=1)
    parts = {part.what for part in loader._sources.placement.ledger.reservations}
    assert {"rows for a device", "numbers of the device's rows"} <= parts
    for name in ("device_cache", "reorder"):
        with pytest.raises(UsageError, match=f"no use for {name}="):
            plain_of(stores, typed=False, packed=unit, device="cpu", **{name: 1})
    with pytest.raises(UsageError, match="transform_sampler_output= with packed epochs"):
        plain_of(stores, typed=False, packed=unit, transform_sampler_output=lambda output: output)
    with pytest.raises(BudgetError, match="too few"):
        gnnstore.open_packed(unit).loader(memory="20kB", num_threads=1)
    with pytest.raises(UsageError, match="no room for a row of"):
        packed_in(stores, tmp_path / "none", typed=False, cache_bytes="1kB", device_cache=8)


def test_damage_is_found(stores: tuple[Path, Path], tmp_path: Path) -> None:
    unit = packed_in(stores, tmp_path, typed=False, cache_bytes="1kB")
    for array in ("device/rows/x", "device/nodes"):
        (file,) = (each for each in (unit / array).iterdir() if each.name != "zarr.json")
        whole = file.read_bytes()
        file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        assert not verify(unit, "full").ok
        with pytest.raises(CorruptStoreError, match="device/"):
            next(iter(gnnstore.open_packed(unit).loader()))
        file.write_bytes(whole)
    assert verify(unit, "full").ok
