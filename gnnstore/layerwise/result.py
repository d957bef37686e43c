"""The result of inference: a row for each node, in a directory that can be opened again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import NotFoundError, checked_path, limits_named, storage_errors
from gnnstore.formats import StoreReader
from gnnstore.graph.arrays import ArrayRows
from gnnstore.graph.lazy import LazyTensor

ARRAY_NAME = "x"
_SCAN_BYTES = 64 << 20


class Embeddings(LazyTensor):
    """The rows that a model computes for the nodes of a store, by node id.

    A tensor that is read when it is used: `embeddings[ids]` reads rows, `embeddings.tensor()` all
    of them, `embeddings.read()` all into a NumPy array. The directory is in the format of stores,
    with one array and no edges: Zarr opens it, and `gnnstore verify` checks it.

    Attributes
    ----------
    path : Path
        The directory.
    """

    path: Path

    @staticmethod
    def __new__(cls: type[Self], reader: StoreReader) -> Self:
        """Return the rows in a directory."""
        if reader.manifest.provenance.get("kind") != "inference":
            raise NotFoundError(
                f"{reader.path}: a store, but not one that inference has written; "
                "open it with gnnstore.open",
                path=reader.path,
            )
        made = LazyTensor.__new__(cls, ArrayRows(reader, reader.schema.node.attributes[ARRAY_NAME]))
        made.path = reader.path
        return made

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        return (open_embeddings, (str(self.path),))

    @property
    def _reader(self) -> StoreReader:
        return self.source.reader  # type: ignore[attr-defined, no-any-return]

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The uuid of the store, and the layers that computed the rows."""
        return self._reader.manifest.provenance

    def scan(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield all rows in order, in pieces of about 64 MB: the first row's id, and the rows.

        It takes the memory of a piece. bfloat16 comes as its bits (uint16).
        """
        return self._reader.paged(self.spec).pieces(_SCAN_BYTES)

    def save_npy(self, path: str | os.PathLike[str]) -> None:
        """Write all rows to a new .npy file, in order and durably, a piece at a time.

        Raises
        ------
        StorageError
            If the file exists, or cannot be written.
        """
        dtype = self._reader.paged(self.spec).dtype
        header = {"descr": dtype.str, "fortran_order": False, "shape": tuple(self.shape)}
        with storage_errors("write the embeddings", path), Path(path).open("xb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for _, rows in self.scan():
                file.write(np.ascontiguousarray(rows).data)
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """Delete the directory."""
        _core.remove_tree(self.path)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Embeddings({str(self.path)!r}, {self.spec.dtype}, shape={list(self.shape)})"


@limits_named("open the embeddings")
def open_embeddings(path: str | os.PathLike[str]) -> Embeddings:
    """Open the directory that `gnnstore.inference` has written.

    Raises
    ------
    NotFoundError
        If there is none, or it is something else.
    UnsupportedVersionError, CorruptStoreError, StorageError
        As `gnnstore.open`.
    """
    try:
        reader = StoreReader.open(checked_path("path", path))
    except NotFoundError as error:
        raise NotFoundError(
            f"{os.fspath(path)}: there are no embeddings; write some with "
            "gnnstore.inference(layers, store, output)",
            path=os.fspath(path),
        ) from error
    return Embeddings(reader)
