"""The ways of loading that `gnnstore bench load` times: NumPy over a mapping, and each strategy."""

from __future__ import annotations

from dataclasses import dataclass

from gnnstore.strategies.builtin import auto

BASELINE = "numpy-mmap"
# Of a batch, in the order of its way.
STAGES = ("sampling", "planning", "filling", "packing", "reading", "assembling", "other")


@dataclass(frozen=True)
class Way:
    """A way of loading batches."""

    strategy: str = ""  # of a loader; none for the mapping
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
    for one in choice.loadable:
        found[one.choice] = Way(
            one.choice,
            is_compared=one.mode != "mmap",
            is_made_ahead=one.plans,
            is_even=not one.plans and one.score is None,
            reads_by_faults=one.mode == "mmap",
            packs=one.packs,
        )
    found[choice.name] = Way(choice.name, is_compared=False, is_made_ahead=True, packs=True)
    in_memory = choice.by_mode["memory"].name
    return {**found, in_memory: Way(in_memory, is_limited=False)}
