"""Batches in pinned memory, which a GPU fetches by itself; torch's loader calls it so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory
from torch_geometric.data.data import BaseData

from gnnstore.nn.adjacency import AdjT


def can_pin() -> bool:
    """Return whether there is an accelerator that reads pinned memory, as torch's loader asks."""
    if torch.cuda.is_available():
        return True
    found = torch.accelerator.current_accelerator(check_available=True)
    return found is not None and found.type != "mps"


def pinned(output: Any, hold: Callable[[Any], None], *, device: str) -> Any:
    """Return an output in pinned memory; `hold` is called with the memory of each copy."""
    before = _storages(output)  # kept, so that no copy takes the place of one
    output = pin_memory(output, device)
    for key, storage in _storages(output).items():
        if key not in before:  # else it was pinned already, and others may share it
            hold(storage)
    return output


def _storages(value: Any) -> dict[int, torch.UntypedStorage]:
    """Return the memory of all tensors in an output, by its address in torch."""
    found = (tensor.untyped_storage() for tensor in tensors_of(value))
    return {storage._cdata: storage for storage in found}


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an output, and the arrays of its matrices."""
    if isinstance(value, AdjT):
        yield from value.arrays()
    elif isinstance(value, Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, BaseData):
        for store in value.stores:
            yield from tensors_of(store.to_dict())
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_of(each)
