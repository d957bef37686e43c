"""Matrices of `scipy.sparse.save_npz`: an archive with the arrays of one sparse matrix."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.opening import open_zip
from gnnstore.converters.inputs.source import ArraySource, MemoryArray, SequentialArray
from gnnstore.errors import InputError

_MEMBERS = {"format.npy", "shape.npy", "data.npy"}
_FORMAT = re.compile(rb"(csr|csc|coo|bsr|dia|dok|lil)$")
_FORMAT_BYTES = 512  # of the member that names the format: a header, and three letters


def sparse_format(path: Path) -> str | None:
    """Return the format of a matrix that scipy wrote, such as "csr"; None for other archives."""
    try:
        with open_zip(path) as archive:
            if not set(archive.namelist()) >= _MEMBERS:
                return None
            with archive.open("format.npy") as stream:
                found = _FORMAT.search(stream.read(_FORMAT_BYTES).replace(b"\0", b""))
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError):
        return None  # which opening its arrays will name
    return None if found is None else found[1].decode()


def open_sparse(path: Path, kind: str) -> dict[str, ArraySource]:
    """Open a matrix as the arrays of a graph: entry [i, j] is the edge from i to j."""
    if kind not in ("csr", "csc", "coo"):
        raise InputError(
            f"{path}: is a sparse matrix in the format {kind}; save it as csr: "
            "scipy.sparse.save_npz(path, matrix.tocsr())",
            path=path,
        )
    members = open_npz(path, leave_out=("format", "_is_array"))
    wanted = ("row", "col") if kind == "coo" else ("indptr", "indices")
    missing = [name for name in (*wanted, "shape", "data") if name not in members]
    if missing:
        raise InputError(f"{path}: a matrix in the format {kind} has no {missing[0]!r}", path=path)
    shape = members["shape"].read().reshape(-1).tolist()
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(
            f"{path}: a matrix of {' x '.join(map(str, shape))} joins two kinds of nodes, and row "
            "and column of one number would be one node; convert it as a graph with two node "
            "types ('gnnstore convert typed')",
            path=path,
        )
    arrays: dict[str, ArraySource] = {
        "edge_weight": members["data"],
        "num_nodes": MemoryArray(f"{path}: shape", np.array(shape[0])),
    }
    if kind == "coo":
        return {**arrays, "edge_index": _Stacked(members["row"], members["col"])}
    return {**arrays, "indptr": members["indptr"], "indices": members["indices"]}


class _Stacked(SequentialArray):
    """Two arrays [E] as one [2, E]."""

    def __init__(self, row: ArraySource, column: ArraySource) -> None:
        if len(row.shape) != 1 or row.shape != column.shape or row.dtype != column.dtype:
            raise InputError(
                f"{row.label}: is {row.dtype} {list(row.shape)}, and {column.label} "
                f"{column.dtype} {list(column.shape)}; an entry has one of each"
            )
        self.label = row.label
        self.shape = (2, *row.shape)
        self.dtype = row.dtype
        self._parts = (row, column)

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on."""
        return MemoryArray(self.label, np.stack([part.read() for part in self._parts])).rows(
            step, start
        )

    def columns(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the columns, `step` at a time."""
        for pieces in zip(*(part.rows(step) for part in self._parts), strict=True):
            yield np.stack(pieces)
