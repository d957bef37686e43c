"""A PyG `Data` that `torch.save` wrote, unpickled with a list of allowed names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.pickled import NotArraysError, PickledArray, read_pickled
from gnnstore.converters.memory import memory_ledger

if TYPE_CHECKING:
    from torch_geometric.data import Data

_MODULE = "torch_geometric.data"


def open_saved_data(path: PathLike, memory_bytes: int | None) -> Data:
    """Read a `Data`, or the single graph of an `InMemoryDataset`'s processed file."""

    class Saved:
        """An object of PyG; a class of its own for each file, which a pickle could change."""

        def __init__(self) -> None:
            self.state: Any = {}

        def __new__(cls, *_: Any) -> Saved:
            return super().__new__(cls)

        def __setstate__(self, state: Any) -> None:
            self.state = state

    names: dict[str, Any] = {
        f"{_MODULE}.data.Data": Saved,
        f"{_MODULE}.storage.GlobalStorage": Saved,
        f"{_MODULE}.data.DataEdgeAttr": None,
        f"{_MODULE}.data.DataTensorAttr": None,
        # What a `Data` that was used remembers of its attributes.
        f"{_MODULE}.storage.AttrType": lambda kind="": str(kind)[:16],
        "collections.defaultdict": lambda *_: {},
        "__builtin__.set": lambda *_: None,
        "builtins.set": lambda *_: None,
        "torch.Size": lambda shape=(): list(shape),
    }

    def read(found: Any) -> Data:
        if isinstance(found, tuple):  # of a data set: attributes, where each graph begins, a class
            _check_one_graph(found)
            attributes = found[0]
        else:
            attributes = found
        if isinstance(attributes, Saved):
            attributes = attributes.state
            store = attributes.get("_store") if isinstance(attributes, dict) else None
            if isinstance(store, Saved) and isinstance(store.state, dict):
                attributes = store.state.get("_mapping")
        if not isinstance(attributes, dict):
            raise NotArraysError(f"a {type(attributes).__name__}")
        return _data_of(attributes)

    place = Path(path)
    memory = memory_ledger("reading the data", memory_bytes)
    return read_pickled(place, "the data", memory, read, expected="a Data of PyG", names=names)


def _check_one_graph(found: tuple[Any, ...]) -> None:
    slices = found[1] if len(found) > 1 else None
    if not isinstance(slices, dict):
        return
    for places in slices.values():
        if isinstance(places, PickledArray) and len(places.values) > 2:
            raise NotArraysError(f"a data set of {len(places.values) - 1} graphs; save one of them")


def _data_of(attributes: Mapping[Any, Any]) -> Data:
    import torch  # noqa: PLC0415
    from torch_geometric.data import Data  # noqa: PLC0415  (seconds to import)

    data = Data()
    for name, value in attributes.items():
        if not isinstance(name, str) or name.startswith("_") or value is None:
            continue
        if isinstance(value, PickledArray):
            array = value.values
            data[name] = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))
        else:
            data[name] = _plain(value)
    return data


def _plain(value: Any) -> Any:
    """Return a value of numbers, texts, lists and dicts; refuse others."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise NotArraysError(f"a {type(value).__name__}")
