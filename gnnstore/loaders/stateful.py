"""The state of a torch `DataLoader`: its position in an epoch, which another one can go on from.

A position is the consumer's (`pipeline.order`); a state adds the seed, and a fingerprint of
all that batches depend on besides (`pipeline.states`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex, cast

from torch.utils.data import DataLoader

from gnnstore.errors import UsageError, whole_number
from gnnstore.loaders.options import is_called_by_lightning
from gnnstore.pipeline.batch import BatchSource
from gnnstore.pipeline.order import EpochCursor, EpochOrder, Position
from gnnstore.pipeline.ranks import RankSampler, RankShard
from gnnstore.pipeline.shown_samplers import (
    SeededShuffle,
    SeedPositions,
    drawn_seed,
    order_of,
    own_sampler,
    shuffles,
)
from gnnstore.pipeline.states import LoaderState, OrderFields
from gnnstore.sampling.neighbor import check_word


class StatefulLoader(DataLoader[Any]):
    """A loader with an order of epochs, and a position in it that is its state."""

    _source: BatchSource  # of batches of the loader's seed
    _seed_is_given: bool  # by the user or by the source, and not drawn

    def __init__(
        self,
        num_seeds: int,
        *,
        fingerprint: Callable[[], Mapping[str, Any]],  # what batches depend on but seed and order
        seed: int | None,
        options: dict[str, Any],  # torch's
        shard: RankShard,
        own_order: Callable[[EpochOrder], EpochOrder] | None,
    ) -> None:
        options = options | own_sampler(num_seeds, seed, shard, options)
        positions: Any = SeedPositions(num_seeds)
        # By name: the next class in line may be PyG's loader.
        try:
            DataLoader.__init__(self, positions, **options)
        except (TypeError, ValueError) as error:
            raise UsageError(f"torch's DataLoader refuses its options: {error}") from error
        self.seed = None if seed is None else check_word("seed", seed)
        self._fingerprint = fingerprint
        self._shard = shard
        self._order: EpochOrder = order_of(self, num_seeds, shard, shuffles=shuffles(options))
        if own_order is not None:
            self._order = own_order(self._order)
        self._cursor = EpochCursor(self._order)
        if isinstance(self.sampler, (SeededShuffle, RankSampler)):
            self.sampler.cursor = self._cursor

    @property
    def batches_left(self) -> int:
        """Batches of the epoch that are still to be handed out; all batches before it begins.

        0 between the last batch and the end of the loop: the next epoch has not begun.
        """
        return self._order.num_left(self._cursor.position(self.epoch), self._known_seed())

    def __len__(self) -> int:
        """Return the number of batches of the epoch that comes next."""
        return self.len_of(self.epoch) if self._order.is_keyed else DataLoader.__len__(self)

    def len_of(self, epoch: int) -> int:
        """Return the number of batches of an epoch; with `partitions=`, epochs differ."""
        return self._order.num_left(Position(checked_epoch(epoch)), self._known_seed())

    def _known_seed(self) -> int | None:
        return self._draw_seed() if self._order.varies else self.seed

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration will be."""
        return self._cursor.epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._cursor.epoch = value

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Set the epoch that the next iteration will be: whole, or the rest of a loaded state's."""
        self.epoch = checked_epoch(epoch)
        self._cursor.leave()

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position: after the batch that was last handed out.

        As in torchdata's `StatefulDataLoader`, it is the newest iterator's; before the
        first one and after the end of an epoch, it is the start of the next epoch. A state that
        is taken after the last batch and before the loop ends has no batches left: a loop that
        resumes there ends at once, and the code after it runs.

        Returns
        -------
        dict
            Values that JSON has, with the state of a user's sampler if it has one.
        """
        seed = self._draw_seed()
        position = self._cursor.position(self.epoch)
        return LoaderState(position, seed, self._all_fingerprints()).as_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin where a loader stood when its state was taken.

        The batches that remain are the same on any machine and under any strategy. If Lightning
        calls it with a state after the last batch of an epoch, the next epoch follows.

        Raises
        ------
        UsageError
            If it is malformed, or of other batches, with every difference; nothing changes then.
        """
        found = LoaderState.from_dict(state)
        given = self.seed if self._seed_is_given else None
        found.refuse_unless_of(self._all_fingerprints(), given)
        self._order.check(found.position, found.seed)
        if self.seed != found.seed:
            self._use_seed(found.seed)
        self.epoch = found.position.epoch
        self._cursor.load(found.position)
        if self.batches_left == 0 and is_called_by_lightning():
            self.set_epoch(self.epoch + 1)

    def _all_fingerprints(self) -> dict[str, Any]:
        order = OrderFields(self.batch_size, self.drop_last, self._order.shuffles, self._order.name)
        return {**self._fingerprint(), **order._asdict()}

    def _draw_seed(self) -> int:
        """Draw the seed if none was given: late, so that `torch.manual_seed` may come late."""
        if self.seed is None:
            shown: Any = self.sampler
            is_shared = isinstance(shown, SeededShuffle)
            self._use_seed(shown.draw_seed() if is_shared else drawn_seed(self.generator))
        return cast("int", self.seed)

    def _use_seed(self, seed: int) -> None:
        self.seed = seed
        if isinstance(self.sampler, SeededShuffle):
            self.sampler.seed = seed
        self._source = self._source.with_seed(seed)


def checked_epoch(epoch: SupportsIndex) -> int:
    """Return the number of an epoch that the user gave."""
    number = whole_number("epoch", epoch)
    if not 0 <= number < 2**63:
        raise UsageError(f"epoch={epoch} is outside [0, 2^63); epochs count from 0")
    return number
