"""Write a store: the arrays of a graph, then one atomic commit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from gnnstore._version import __version__
from gnnstore.formats.container.writer import SealedWriter
from gnnstore.formats.store.manifest import StoreManifest
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import Schema


class StoreWriter(SealedWriter):
    """Builds a store under a temporary name; `commit` gives it its own."""

    READER: ClassVar[type[StoreReader]] = StoreReader

    def commit(self, schema: Schema, provenance: Mapping[str, Any]) -> Path:
        """Finish every array, write the manifest, and rename the store into place.

        Parameters
        ----------
        schema : Schema
            What the arrays are; every one of them must have been written.
        provenance : Mapping
            Where the data came from; JSON values.

        Returns
        -------
        Path
            The store's final path.

        Raises
        ------
        InputError
            If an array got fewer rows than declared, or the metadata cannot be JSON.
        StorageError, StoreExistsError
            See `DirectoryTransaction.commit`.
        """
        schema.checked(str(self.path))
        created_by = f"gnnstore {__version__}"
        return self.seal(StoreManifest(created_by=created_by, schema=schema, provenance=provenance))
