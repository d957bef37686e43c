"""The way from ids of the original data to the ids of nodes in a store."""

from __future__ import annotations

import reprlib
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.errors import InputError
from gnnstore.formats import AttributeSpec, StoreReader

Int64Array = npt.NDArray[np.int64]

# A sorted copy of a map up to this size is kept; of a larger one, each look-up reads it once.
_KEPT_BYTES = 2**25
_PIECE_BYTES = 2**23
_NAMED_IDS = 5


class NodeIds:
    """Finds nodes by their ids in the original data."""

    def __init__(self, reader: StoreReader, original: AttributeSpec | None, num_nodes: int) -> None:
        self._reader = reader
        self._original = original
        self._num_nodes = num_nodes

    def find(self, ids: Any) -> Any:
        """Return nodes by their original ids, int64, as a tensor if these are one."""
        try:
            given = torch.as_tensor(ids).cpu().numpy()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"original ids are integers, got {reprlib.repr(ids)}; names are original_names"
            ) from error
        if given.dtype.kind not in "iu" and given.size:
            raise InputError(f"original ids are integers, got {given.dtype}; cast them")
        if given.dtype == np.uint64 and given.size and given.max() > np.iinfo(np.int64).max:
            raise InputError(f"{self._reader.path}: no node has the original id {given.max()}")
        asked, places = np.unique(given.astype(np.int64), return_inverse=True)
        nodes = self.find_ascending(asked)
        if (missing := asked[nodes < 0]).size:
            named = ", ".join(map(str, missing[:_NAMED_IDS].tolist()))
            more = f" and {len(missing) - _NAMED_IDS} more" if len(missing) > _NAMED_IDS else ""
            raise InputError(
                f"{self._reader.path}: no node has the original id {named}{more}; "
                "store.original_ids are those there are"
            )
        found = nodes[places].reshape(given.shape)
        return torch.from_numpy(found) if isinstance(ids, torch.Tensor) else found

    def find_ascending(self, asked: Int64Array) -> Int64Array:
        """Return the node of each id, -1 where there is none."""
        if self._original is None:
            return np.where((asked >= 0) & (asked < self._num_nodes), asked, -1)
        if not len(asked):
            return asked
        if self._original.num_bytes <= _KEPT_BYTES:
            ids, nodes = self._sorted
            rank = np.minimum(np.searchsorted(ids, asked), len(ids) - 1)
            return np.where(ids[rank] == asked, nodes[rank], -1) if len(ids) else asked * 0 - 1
        found = np.full(len(asked), -1, np.int64)
        for first, ids in self._reader.pieces(self._original, _PIECE_BYTES):
            rank = np.minimum(np.searchsorted(asked, ids), len(asked) - 1)
            here = np.flatnonzero(asked[rank] == ids)
            found[rank[here]] = first + here
        return found

    @cached_property
    def greatest(self) -> int:
        """The greatest of the original ids; -1 if there is none."""
        if self._original is None:
            return self._num_nodes - 1
        pieces = self._reader.pieces(self._original, _PIECE_BYTES)
        return max((int(ids.max(initial=-1)) for _, ids in pieces), default=-1)

    @cached_property
    def _sorted(self) -> tuple[Int64Array, Int64Array]:
        if self._original is None:
            raise AssertionError("there is a map")
        ids = self._reader.read(self._original)
        nodes = np.argsort(ids, kind="stable")
        return ids[nodes], nodes
