"""The state of a loader, as plain values that a checkpoint can hold.

Batches are keyed by (seed, epoch, batch), so three numbers are all that is needed to go on, however
batches are prepared: no random stream is stored, and nothing that was prepared ahead is lost. The
rest of a state is a fingerprint of all that batches depend on besides, so that a state of other
batches is refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from gnnstore.errors import UsageError
from gnnstore.formats.packed import NUM_POSITIONS
from gnnstore.pipeline.order import Position

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore
    from gnnstore.sampling.neighbor import SamplingConfig
    from gnnstore.seeds.base import SeedSource

# The version of states, which also rises when the same options come to give other batches.
VERSION = 1

_ABSENT = object()


class OrderFields(NamedTuple):
    """The part of a fingerprint that is the order of epochs, but for the seed."""

    batch_size: int | None
    drop_last: bool
    shuffle: bool
    sampler: str | None = None  # name of the user's own sampler


@dataclass(frozen=True)
class LoaderState:
    """The contents of a loader's `state_dict`."""

    position: Position  # the next batch is the first after it
    seed: int  # key of sampling and shuffling, given or drawn
    # Other options that batches depend on, by the names that users know; plain values.
    fingerprint: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return a dict of its own, of values that JSON has (a user's sampler aside)."""
        state = {
            "version": VERSION,
            "epoch": self.position.epoch,
            "batches": self.position.batches,
            "seed": self.seed,
            "fingerprint": self.fingerprint,
            "sampler": self.position.sampler,
        }
        return copy.deepcopy(state)

    @classmethod
    def from_dict(cls, state: Any) -> Self:
        """Check and take over what `as_dict` returned."""
        version = checked(state, "version", int)
        if version != VERSION:
            raise UsageError(
                f"the state has version {version}, and this gnnstore reads version {VERSION}; "
                "resume with the gnnstore that wrote it, or begin a new run"
            )
        sampler = checked(state, "sampler", dict, type(None))
        epoch, batches, seed = (checked(state, name, int) for name in ("epoch", "batches", "seed"))
        fingerprint = checked(state, "fingerprint", dict)
        return copy.deepcopy(cls(Position(epoch, batches, sampler), seed, fingerprint))

    def refuse_unless_of(self, fingerprint: Mapping[str, Any], seed: int | None) -> None:
        """Check that a loader would go on with the same batches."""
        if different := self.differences(fingerprint, seed):
            raise UsageError(
                "the state (found) is not of a loader like this one (expected), and would give "
                f"other batches: {'; '.join(different)}. Make the loader as it was when the state "
                "was taken, or begin a new run"
            )

    def differences(self, fingerprint: Mapping[str, Any], seed: int | None) -> list[str]:
        """Return in words what is otherwise in a loader; see `refuse_unless_of`."""
        expected = {**fingerprint, **({} if seed is None else {"seed": seed})}
        found = {**self.fingerprint, **({} if seed is None else {"seed": self.seed})}
        names = [*expected, *(name for name in found if name not in expected)]
        if ("reorder" in expected) != ("reorder" in found):  # the other has no ranks, either
            names = [name for name in names if name != "world_size"]
        return [
            f"{name}: expected {_shown(expected, name)}, found {_shown(found, name)}"
            for name in names
            if not _is_equal(expected.get(name, _ABSENT), found.get(name, _ABSENT))
        ]


def sampling_fingerprint(
    store: GraphStore, config: SamplingConfig, seeds: SeedSource
) -> dict[str, Any]:
    """Return the values that sampled batches depend on besides their seed and their order."""
    fanouts: Any = config.fanouts
    if isinstance(fanouts, Mapping):
        fanouts = {"__".join(kind): list(hops) for kind, hops in fanouts.items()}
    more: dict[str, Any] = {}  # nothing of what is not used, as in older states
    if store.selected is not None:
        more["attributes"] = sorted(store.selected)
    more |= store.assigned.fingerprint()
    if config.time_attr is not None:
        more |= {
            "time_attr": config.time_attr,
            "temporal_strategy": config.temporal_strategy,
            "time_window": config.time_window,
        }
    if config.weight_attr is not None:
        more["weight_attr"] = config.weight_attr
    return {
        "store": store.reader.uuid,
        "num_neighbors": fanouts if isinstance(fanouts, dict) else list(fanouts),
        "replace": config.replace,
        "subgraph_type": config.subgraph_type,
        "disjoint": config.disjoint,
        **more,
        **seeds.labels.fingerprint(),
        NUM_POSITIONS: len(seeds),
        **seeds.fingerprint(),
    }


def checked(state: Any, name: str, *kinds: type) -> Any:
    """Return a value of a state, of one of some types; of numbers those that keys are made of."""
    if not isinstance(state, Mapping):
        raise UsageError(
            f"the state is a {type(state).__name__}; expected the dict that state_dict() of a "
            "loader returned"
        )
    values = state
    value = values.get(name, _ABSENT)
    # True is an int to Python, and no number of batches to anybody.
    is_kind = isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)
    if not is_kind or (isinstance(value, int) and not 0 <= value < 2**64):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise UsageError(
            f"the state has {name!r}: {_shown(values, name)}; expected {wanted}, as in the dict "
            "that state_dict() of a loader returned"
        )
    return value


def _is_equal(expected: Any, found: Any) -> bool:
    try:
        return bool(expected == found)
    except (ValueError, RuntimeError):  # arrays and tensors are compared element by element
        return False


def _shown(values: Mapping[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "nothing"
