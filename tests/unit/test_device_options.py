"""`device=` of loaders as a word: what is taken, and what is refused before anything is touched."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import gnnstore
from gnnstore.converters import from_pyg
from gnnstore.errors import UsageError
from gnnstore.loaders.device import checked_device
from tests.support.packing import pack
from tests.support.stores import write_example_store

# A type of device that torch has a name for, and no module.
TYPE = "privateuseone"


class Module:
    """In place of `torch.cuda`; whatever is called but `device_count` fails."""

    def __init__(self, num_devices: int) -> None:
        self._num_devices = num_devices

    def device_count(self) -> int:
        return self._num_devices

    def __getattr__(self, name: str) -> Any:
        if name in {"Stream", "Event", "stream", "current_stream", "device", "current_device"}:
            return self._fail
        raise AttributeError(name)

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a device is touched")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / "s.gnn"
    write_example_store(path, num_nodes=60, num_edges=300)
    return path


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, TYPE, Module(2), raising=False)


@pytest.mark.parametrize("device", [None, "cpu", "cpu:0", torch.device("cpu")])
def test_the_cpu_is_host_memory(path: Path, device: Any) -> None:
    loader = gnnstore.NeighborLoader(path, [3], batch_size=8, device=device)
    assert loader._placer is None
    assert next(iter(loader)).x.device == torch.device("cpu")
    assert loader.stats().bytes_to_device == 0


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (0, 'device=0: expected the name of a device, such as "cuda:0", or a torch.device'),
        (True, "device=True: expected the name of a device"),
        (b"cuda", "device=b'cuda': expected the name of a device"),
        (torch.zeros(1), "expected the name of a device"),
        ("", "device='' is not the name of a device; write"),
        ("gpu", "device='gpu' is not the name of a device; write"),
        ("cuda:-1", "device='cuda:-1' is not the name"),
        ("cuda:256", "device='cuda:256' is not the name"),  # to torch the same as "cuda:0"
        ("cpu:1", "device='cpu:1': there is one CPU"),
        ("meta", "device='meta': loaders place batches where copies run on streams"),
        ("mps", "torch.mps has no Stream; leave the option out, and copy batches with batch.to"),
    ],
)
def test_other_words_are_refused(path: Path, device: Any, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        gnnstore.NeighborLoader(path, [3], device=device)
    with pytest.raises(UsageError, match=re.escape(words)):
        gnnstore.LinkNeighborLoader(path, [3], device=device)


@pytest.mark.usefixtures("two_devices")
def test_numbers_end_where_devices_do() -> None:
    assert checked_device(f"{TYPE}:1") == torch.device(TYPE, 1)
    assert checked_device(torch.device(TYPE)) == torch.device(TYPE)
    for device in (f"{TYPE}:2", torch.device(TYPE, 9)):
        words = f'torch finds 2 devices of this type, "{TYPE}:0" to "{TYPE}:1"; choose one of'
        with pytest.raises(UsageError, match=re.escape(words)):
            checked_device(device)


def test_a_type_without_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    words = f"device='cuda': torch {torch.__version__} finds no device of the type 'cuda' on this"
    with pytest.raises(UsageError, match=re.escape(words)):
        checked_device("cuda")


@pytest.mark.usefixtures("two_devices")
def test_a_loader_that_is_made_and_copied_touches_no_device(path: Path) -> None:
    loader = gnnstore.NeighborLoader(path, [3], batch_size=8, device=TYPE, memory="200MB")
    for each in (loader, copy.deepcopy(loader)):
        assert each.device == TYPE
        iter(each)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device_cache": 5}, "device_cache=5: rows stay on the device that device= names, and"),
        ({"device_cache": True}, "device_cache=True is not a size"),
        ({"device_cache": -1}, "device_cache=-1 is negative"),
        ({"device_cache": "much"}, "device_cache='much' is not a size"),
        ({"device_cache": 1.5}, "device_cache=1.5 is not a size"),
        ({"device_cache": None}, "device_cache=None is not a size"),
        (
            {"device_cache": 5, "transform_sampler_output": lambda output: output},
            "device_cache=5 with transform_sampler_output=: batches are joined whole",
        ),
        (
            {"device_cache": "2kB", "packed": "p"},
            "packed= has no use for device_cache='2kB'; leave it out",
        ),
        (
            {"device_cache": "2kB", "partitions": gnnstore.PartitionPolicy()},
            "partitions= has no use for device_cache='2kB'; leave it out",
        ),
        ({"device_cache": "auto"}, "device_cache='auto' is what a step of training leaves of a"),
        ({"device_cache": "auto", "device": None}, "device_cache='auto': rows stay on the device"),
        ({"device_cache": 5, "device": "gpu"}, "device='gpu' is not the name of a device"),
    ],
)
def test_rows_that_cannot_stay_on_a_device_are_refused(
    path: Path, options: dict[str, Any], words: str
) -> None:
    given = {"device": None if len(options) == 1 and options["device_cache"] == 5 else "cpu"}
    for kind in (gnnstore.NeighborLoader, gnnstore.LinkNeighborLoader):
        with pytest.raises(UsageError, match=re.escape(words)):
            kind(path, [3], **given | options)


def test_packed_epochs_have_decided_which_rows_stay_on_a_device(path: Path, tmp_path: Path) -> None:
    pack(path, [3], None, output=tmp_path / "p", batch_size=8)
    packed = gnnstore.open_packed(tmp_path / "p")
    several: list[dict[str, Any]] = [
        {"device_cache": "1kB"},
        {"reorder": 1},
        {"strategy": "belady"},
    ]
    for options in several:
        ((name, value),) = options.items()
        words = f"a loader of packed epochs has no use for {name}={value!r}; leave it out"
        with pytest.raises(UsageError, match=re.escape(words)):
            packed.loader(device="cpu", **options)
    assert len(packed.loader(device_cache=0, reorder=None)) == len(packed.loader())


def test_no_rows_stay_on_a_device_by_default(path: Path) -> None:
    for size in (0, "0", "0GB"):
        loader = gnnstore.NeighborLoader(path, [3], batch_size=8, device="cpu", device_cache=size)
        assert loader._placer is None
        assert loader.stats().device_cache_bytes == 0


def test_a_size_without_room_for_a_row_is_warned_of(path: Path, tmp_path: Path) -> None:
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.arange(2), num_nodes=2)
    of_labels = from_pyg(data, tmp_path / "labels.gnn")
    for kind in (gnnstore.NeighborLoader, gnnstore.LinkNeighborLoader):
        options: dict[str, Any] = {"batch_size": 2, "device": "cpu", "strategy": "memory"}
        words = (
            f"device_cache='8B' of {kind.__name__} keeps nothing on the device: a row takes "
            r"\d+ bytes; raise it, or leave it out"
        )
        with pytest.warns(UserWarning, match=words) as told:
            kind(path, [3], device_cache="8B", **options)
        assert told[0].filename == __file__
        with pytest.warns(UserWarning, match="device: no attribute of nodes in these batches"):
            kind(of_labels, [3], device_cache="1GB", **options)


@pytest.mark.usefixtures("two_devices")
def test_pin_memory_has_nothing_to_do_with_a_device(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.warns(UserWarning, match=r"pin_memory=True of NeighborLoader.* and no device="):
        gnnstore.NeighborLoader(path, [3], pin_memory=True, device=TYPE)
