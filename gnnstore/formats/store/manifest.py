"""The manifest of a store: what a sealed directory says of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.manifest import Manifest, kind_of
from gnnstore.formats.container.strict_json import Fields
from gnnstore.formats.store.schema import Schema

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StoreManifest(Manifest):
    """Identity, contents and files of a store.

    Attributes
    ----------
    schema : Schema
        Node types, edge types, attributes.
    provenance : Mapping
        Where the data came from.
    """

    FORMAT: ClassVar[str] = "gnnstore"
    VERSION: ClassVar[int] = FORMAT_VERSION
    WORD: ClassVar[str] = "store"
    NOUN: ClassVar[str] = "a gnnstore store"
    VERB: ClassVar[str] = "convert"
    ATTEMPT: ClassVar[str] = "conversion"
    MAKE: ClassVar[str] = "make one with 'gnnstore convert' (see 'gnnstore convert --help')"

    schema: Schema
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of a store, as JSON values."""
        return {"provenance": dict(self.provenance), "schema": self.schema.to_json()}

    @classmethod
    def parse(cls, own: Fields) -> Mapping[str, Any]:
        """Check the fields of a store, and return them as arguments of the class."""
        schema = Schema.from_json(own.fields("schema"))
        return {"provenance": own.mapping("provenance"), "schema": schema}

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return every array of the schema."""
        return self.schema.arrays()


def is_store(path: Path) -> bool:
    """Whether a directory looks like a store, of any version, intact or not."""
    kind = kind_of(path)
    return kind is not None and kind.manifest is StoreManifest
