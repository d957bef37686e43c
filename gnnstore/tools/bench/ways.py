"""The ways of loading that `gnnstore bench load` times: NumPy over a mapping, and each strategy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gnnstore.strategies.builtin import auto

BASELINE = "numpy-mmap"


@dataclass(frozen=True)
class Way:
    """A way of loading batches."""

    options: dict[str, Any] = field(default_factory=dict)  # of the loader; none for the mapping
    is_compared: bool = True  # whether it is timed unless told otherwise
    is_limited: bool = True  # whether its memory is limited
    is_made_ahead: bool = False  # whether an epoch is prepared during the one before it
    is_even: bool = False  # whether all batches cost about the same, so that a sample is enough
    reads_by_faults: bool = False  # whether rows are read by page faults
    packs: bool = False  # whether packed rows may be written to disk


def ways() -> dict[str, Way]:
    """Return the ways by name, those without a memory limit at the end."""
    choice = auto()
    found = {BASELINE: Way(is_even=True, reads_by_faults=True)}
    for candidate in choice.loadable:
        is_mapped = candidate.mode == "mmap"
        found[candidate.choice] = Way(
            {"strategy": candidate.choice},
            is_compared=not is_mapped,
            is_made_ahead=candidate.plans,
            is_even=not candidate.plans and candidate.score is None,
            reads_by_faults=is_mapped,
            packs=candidate.packs,
        )
    options = {"strategy": choice.name}
    found[choice.name] = Way(options, is_compared=False, is_made_ahead=True, packs=True)
    in_memory = choice.by_mode["memory"].name
    return {**found, in_memory: Way({"strategy": in_memory}, is_limited=False)}
