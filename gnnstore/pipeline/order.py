"""The order of an epoch, and where a loader is in it, as plain values that a checkpoint can hold.

A loader asks its order for positions and knows nothing else of it: whether they are shuffled, come
from a user's sampler or are this rank's share, or follow the partitions that lie in memory. An
`EpochCursor` is where the consumer is in it.

Batches are keyed by (seed, epoch, batch), so three numbers are all that is needed to go on,
whatever prepares them: there is no random stream to store, and nothing that was prepared ahead
is lost. The rest of a state is a fingerprint of all that batches depend on besides, so that
one that would give other batches is refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.formats.packed import NUM_POSITIONS
from gnnstore.random_words import keyed, permutation

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore
    from gnnstore.sampling.neighbor import SamplingConfig
    from gnnstore.seeds.base import SeedSource

# Raised too when the same options come to give other batches.
VERSION = 1

_ABSENT = object()


class Position(NamedTuple):
    """A place between two batches of a run."""

    epoch: int  # number of the epoch
    batches: int = 0  # batches of it that were handed out
    # State from which the user's own sampler resumes; None without one.
    sampler: dict[str, Any] | None = None


class OrderFields(NamedTuple):
    """The part of a fingerprint that tells the order of epochs, but for the seed."""

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
        """Return a dict of its own, of values that JSON knows (a user's sampler aside)."""
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
                f"the state has version {version}, this gnnstore knows version {VERSION}; resume "
                "with the gnnstore that wrote it, or begin a new run"
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
    values = state if isinstance(state, Mapping) else {}
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


Int64Array = npt.NDArray[np.int64]

# The sampling kernel's counter is (block, node, hop, batch). No batch has this number, so
# a shuffle never shares a draw with a sample.
_SHUFFLE_COUNTER = (0, 0, 0, 2**64 - 1)

# Positions that are shuffled by sorting: 16 bytes each while they are.
MAX_SORTED = 2**22
_NUM_ROUNDS = 8


class EpochOrder(Protocol):
    """Yields the batches of an epoch, as positions in what a loader starts from."""

    @property
    def name(self) -> str | None:
        """The name of a sampler that is not the loader's own; None for its own order."""

    @property
    def shuffles(self) -> bool:
        """Whether the loader draws the order itself, anew in each epoch."""

    @property
    def varies(self) -> bool:
        """Whether epochs differ in their number of batches, which depends on the seed then."""

    @property
    def is_keyed(self) -> bool:
        """Whether (seed, epoch) decides the batches, so that they are known before it begins."""

    def start(self) -> dict[str, Any] | None:
        """Return the state that a sampler needs to begin an epoch; None without one."""

    def check(self, position: Position, seed: int) -> None:
        """Refuse a position that is no place in an epoch of this order."""

    def number(self, first: int, k: int) -> int:
        """Return the number in its epoch of the k-th batch after the first `first` ones."""

    def num_left(self, position: Position, seed: int | None) -> int:
        """Return the number of batches after a position; without a seed if none is drawn yet."""

    def batches(self, start: Position, seed: int) -> Iterator[tuple[int, Any, Position]]:
        """Yield the number, the positions [B] and the place after each batch from `start` on."""


class EpochCursor:
    """The position of a loader's consumer between two batches, whatever was prepared beyond it.

    The newest iterator moves it; older ones that still run do not. At the end of an epoch it is
    before the first batch of the next one.
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self.epoch = 0  # the next to begin
        self.loaded: Position | None = None  # what a loaded state asks for
        self.newest: Iteration | None = None

    def position(self, epoch: int) -> Position:
        """Return the present position; `epoch` is the next to begin."""
        if self.newest is not None and not self.newest.is_left:
            return self.newest.position
        return self._loaded_for(epoch) or self._first(epoch)

    def load(self, position: Position) -> None:
        """Let the next iteration begin here, if it is one of the same epoch."""
        self.loaded, self.newest = position, None

    def leave(self) -> None:
        """Move on to the next epoch, until the iteration that is under way gives a batch."""
        if self.newest is not None:
            self.newest.is_left = True

    def advance(self, epoch: int) -> None:
        """Move on to a later epoch, and with it an iteration that has not begun to give batches."""
        newest = self.newest
        if newest is None or newest.has_begun or newest.is_left:
            if epoch > self.epoch:
                self.epoch = epoch
                self.leave()
        elif epoch > newest.start.epoch:
            newest.start, newest.position = Position(epoch), self._first(epoch)
            self.epoch = epoch  # until it begins: another iteration may take its place

    def begin(self, epoch: int) -> Iteration:
        """Return the iteration of an epoch that begins now."""
        loaded, self.loaded = self._loaded_for(epoch), None
        start = loaded or Position(epoch)
        self.newest = Iteration(self, start, loaded or self._first(epoch))
        return self.newest

    def _loaded_for(self, epoch: int) -> Position | None:
        return self.loaded if self.loaded is not None and self.loaded.epoch == epoch else None

    def _first(self, epoch: int) -> Position:
        return Position(epoch, 0, self._order.start())


class Iteration:
    """One iteration over an epoch, or over what is left of it."""

    def __init__(self, cursor: EpochCursor, start: Position, position: Position) -> None:
        self.start = start  # where it begins
        self.position = position  # where the consumer is
        # Whether the loader has moved on to another epoch since the last batch.
        self.is_left = False
        self.has_begun = False  # to give batches
        self._cursor = cursor

    def begin(self) -> Position:
        """Return where it begins, which it does now."""
        self.has_begun, cursor = True, self._cursor
        if self is cursor.newest and not self.is_left:
            cursor.epoch = max(cursor.epoch, self.start.epoch + 1)
        return self.start

    def end(self) -> None:
        """Move to the next epoch."""
        if self is not self._cursor.newest:
            return
        self._cursor.newest, start = None, self.start
        if start.sampler is not None and start.batches and start.sampler.get("epoch_done"):
            # The sampler was not asked for the nothing that was left, nor told where it is.
            self._cursor.loaded = Position(start.epoch + 1, 0, start.sampler)


def epoch_order(num_seeds: int, seed: int, epoch: int) -> Any:
    """Return the shuffled order of an epoch: of 0 to num_seeds - 1, to be indexed and sliced."""
    return drawn_order(num_seeds, shuffle_draws(seed, epoch))


def drawn_order(num_seeds: int, generator: np.random.Philox) -> Any:
    """Return a shuffled order as `epoch_order` does, by the words of a generator."""
    if num_seeds > MAX_SORTED:
        return KeyedBijection(num_seeds, generator)
    return permutation(num_seeds, generator)


def order_bytes(num_seeds: int, *, shuffles: bool, num_orders: int = 2) -> int:
    """Return the memory of epochs' orders, and of the keys that the newest is sorted by."""
    return 8 * num_seeds * (num_orders + 1) if shuffles and num_seeds <= MAX_SORTED else 0


def shuffle_draws(seed: int, epoch: int) -> np.random.Philox:
    """Return the generator of the shuffle of an epoch; of its words only raw ones are taken."""
    return keyed((seed, epoch), _SHUFFLE_COUNTER)


class KeyedBijection:
    """A permutation of many positions, each computed when it is asked for."""

    def __init__(self, num_seeds: int, generator: np.random.Philox) -> None:
        num_bits = max(2, (num_seeds - 1).bit_length())
        self._num_seeds = num_seeds
        # The halves of an odd number of bits differ by one: each round takes the other's width.
        self._widths = (np.uint64(num_bits // 2), np.uint64(num_bits - num_bits // 2))
        self._keys = np.asarray(generator.random_raw(_NUM_ROUNDS))

    def __len__(self) -> int:
        """Return the number of positions."""
        return self._num_seeds

    def __getitem__(self, key: int | slice) -> Any:
        """Return a position, or those of a slice: int64 [n]."""
        if isinstance(key, slice):
            places = np.arange(*key.indices(self._num_seeds), dtype=np.uint64)
            return self._walked(places).astype(np.int64)
        place = range(self._num_seeds)[key]
        return np.int64(self._walked(np.array([place], dtype=np.uint64))[0])

    def _walked(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        values = self._mixed(values)
        while (outside := np.flatnonzero(values >= self._num_seeds)).size:
            values[outside] = self._mixed(values[outside])
        return values

    def _mixed(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        low_bits, high_bits = self._widths
        left, right = values >> low_bits, values & _mask(low_bits)
        for key in self._keys:
            left, right = right, left ^ (_hash(right ^ key) & _mask(high_bits))
            low_bits, high_bits = high_bits, low_bits
        return left << low_bits | right


def _mask(num_bits: np.uint64) -> np.uint64:
    return (np.uint64(1) << num_bits) - np.uint64(1)


def _hash(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 64-bit words: the finalizer of SplitMix64, from its high half."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words >> np.uint64(32)
