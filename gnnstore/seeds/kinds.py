"""The kinds of seeds whose labels packed epochs may hold. A new one is registered here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnnstore.errors import UnsupportedVersionError
from gnnstore.formats.packed.manifest import KIND
from gnnstore.seeds.base import SeedLabels
from gnnstore.seeds.link_labels import LinkLabels, TypedLinkLabels
from gnnstore.seeds.nodes import NodeLabels, TimedNodeLabels, TypedNodeLabels
from gnnstore.units import Registry

SEED_KINDS: Registry[type[SeedLabels]] = Registry(
    (NodeLabels, TimedNodeLabels, TypedNodeLabels, LinkLabels, TypedLinkLabels)
)


def labels_of(fingerprint: Mapping[str, Any]) -> type[SeedLabels]:
    """Return the kind of labels of the loader that has a fingerprint."""
    name = fingerprint.get(KIND, NodeLabels.name)
    if not isinstance(name, str) or name not in SEED_KINDS:
        raise UnsupportedVersionError(
            f"batches start from seeds of the kind {name!r}, and this gnnstore knows "
            f"{', '.join(SEED_KINDS.names)}; use the gnnstore that packed them"
        )
    return SEED_KINDS[name]
