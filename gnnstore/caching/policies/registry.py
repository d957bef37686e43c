"""The registered cache policies."""

from __future__ import annotations

from gnnstore.caching.policies.base import CachePolicy
from gnnstore.caching.policies.belady import Belady
from gnnstore.units import Registry

BELADY = Belady()
POLICIES: Registry[CachePolicy] = Registry((BELADY,))
