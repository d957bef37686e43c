"""The memory of a conversion, as a ledger."""

from __future__ import annotations

from gnnstore.budget.ledger import OF_FREE_MEMORY, Ledger
from gnnstore.budget.limits import available_bytes


def memory_ledger(who: str, memory_bytes: int | None) -> Ledger:
    """Return a ledger of the memory that a conversion may use."""
    if memory_bytes is None:
        return Ledger(available_bytes(), (), who, OF_FREE_MEMORY, "")
    return Ledger(memory_bytes, (), who, "of the memory_bytes= budget", "memory_bytes=")
