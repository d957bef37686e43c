"""PyG's data with decoded rows, and a message on why there are no scales."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.storage import BaseStorage, GlobalStorage, NodeStorage

from gnnstore.formats.store.schema import SCALES_SUFFIX, NodeTypeSpec


def no_scales(name: str, kind: type[LookupError | AttributeError] = AttributeError) -> Exception:
    """Return the error for scales by which rows have been multiplied already."""
    own = name.removesuffix(SCALES_SUFFIX)
    return kind(
        f"there is no {name!r}: {own!r} comes decoded, multiplied by its scales; use {own!r} as it "
        "is, or ask for int8 and scales with decode=None"
    )


def refuse_scales(
    node: NodeTypeSpec, name: object, kind: type[LookupError | AttributeError] = AttributeError
) -> None:
    """Raise an error of a kind for the name of scales by which rows are multiplied."""
    if isinstance(name, str) and name.endswith(SCALES_SUFFIX):
        own = node.attributes.get(name.removesuffix(SCALES_SUFFIX))
        if own is not None and own.scaled is not None:
            raise no_scales(name, kind)


class _Decoded(BaseStorage):  # type: ignore[misc]
    def __getattr__(self, key: str) -> Any:
        if key.endswith(SCALES_SUFFIX) and key not in self:
            rows = self._mapping.get(key.removesuffix(SCALES_SUFFIX))
            if isinstance(rows, Tensor) and rows.is_floating_point():
                raise no_scales(key)
        return super().__getattr__(key)


class DecodedNodes(_Decoded, NodeStorage):  # type: ignore[misc]
    """What a `HeteroData` has of a node type with decoded rows."""


class DecodedGraph(_Decoded, GlobalStorage):  # type: ignore[misc]
    """What a `Data` with decoded rows has."""


def note_decoded(part: Any) -> None:
    """Make a `Data`, or a part of a `HeteroData`, explain why it has no scales."""
    storage = part._store if isinstance(part, Data) else part
    kinds = {GlobalStorage: DecodedGraph, NodeStorage: DecodedNodes}
    if (kind := kinds.get(type(storage))) is not None:
        object.__setattr__(storage, "__class__", kind)
