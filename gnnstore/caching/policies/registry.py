"""The cache policies that there are, and those of them that loaders do not follow."""

from __future__ import annotations

from gnnstore.caching.policies.base import CachePolicy
from gnnstore.caching.policies.belady import Belady
from gnnstore.caching.policies.online import Lru, Sieve
from gnnstore.registry import Registry

BELADY = Belady()
# The last is the one that nothing misses fewer rows than.
POLICIES: Registry[CachePolicy] = Registry((Lru(), Sieve(), BELADY))
