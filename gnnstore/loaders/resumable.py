"""A torch `DataLoader` that knows which batch is the next, and goes on there in another process.

Epochs, the order of the seeds, and the state that a checkpoint holds. What is in a batch and how
it is prepared is the business of the classes derived from it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from gnnstore.errors import UsageError
from gnnstore.pipeline.order.cursor import EpochCursor
from gnnstore.pipeline.order.from_torch import order_of, own_sampler, shuffles
from gnnstore.pipeline.order.ranks import RankShard
from gnnstore.pipeline.order.state import LoaderState


class ResumableLoader(DataLoader[Any]):
    """Base of the loaders: epochs, order, and state.

    Parameters
    ----------
    num_seeds : int
        Samplers give positions from 0 to num_seeds - 1.
    seed : int or None
        Key of shuffling and sampling; None: drawn at the first use.
    options : dict
        Keyword arguments of torch's `DataLoader`.
    shard : RankShard
        Which of the batches are this process's.
    """

    def __init__(
        self, num_seeds: int, *, seed: int | None, options: dict[str, Any], shard: RankShard
    ) -> None:
        # Frameworks that build a loader anew pass these two, which are ours to choose.
        options = {k: v for k, v in options.items() if k not in {"dataset", "collate_fn"}}
        options |= own_sampler(num_seeds, seed, shard, options)
        positions: Any = range(num_seeds)
        super().__init__(positions, collate_fn=self.collate_fn, **options)
        self.seed = seed
        self._seed_is_given = seed is not None
        self.epoch = 0
        self._shard = shard
        self._order = order_of(self, num_seeds, shard, shuffles=shuffles(options))
        self._cursor = EpochCursor(self._order)

    @property
    def batches_left(self) -> int:
        """Batches of the epoch that are still to be handed out; all of them before it begins.

        0 between the last batch and what follows the loop: the next epoch has not begun.
        """
        return self._order.num_left(self._cursor.position(self.epoch).batches)

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """What prepares a batch on demand, from positions in the input nodes."""
        return self._collate

    @collate_fn.setter
    def collate_fn(self, _: Any) -> None:
        # Torch sets it, and frameworks look for it among a loader's attributes. Bound to the loader
        # it would keep one alive, with its files, that nobody else refers to.
        self.__dict__["collate_fn"] = type(self)._collate

    @abstractmethod
    def _collate(self, index: Any) -> Any:
        """Prepare a batch on demand."""

    @abstractmethod
    def _use_seed(self, seed: int) -> None:
        """Sample under the seed that has been drawn."""

    @abstractmethod
    def _fingerprint(self) -> dict[str, Any]:
        """Return what batches depend on besides seed and order, as plain values by name."""

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next iteration will be."""
        if epoch < 0:
            raise UsageError(f"epoch={epoch} is negative; epochs count from 0")
        if epoch >= 2**63:
            raise UsageError(f"epoch={epoch} is not less than 2^63")
        self.epoch = epoch
        self._cursor.leave()

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands: after the batch that was last handed out.

        The convention is that of torchdata's `StatefulDataLoader`. The state is that of the
        newest iterator; before the first one and after the end of an epoch, that of the start
        of the next epoch. Batches that are prepared but not handed out do not count.

        Returns
        -------
        dict
            A small one, of values that JSON and `torch.load(weights_only=True)` know. If the
            loader has a user's sampler with `state_dict`, what that returned is in it.
        """
        self._draw_seed()
        position = self._cursor.position(self.epoch)
        return LoaderState(position, self.seed or 0, self._all_fingerprints()).as_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin where a loader stood when its state was taken.

        It may have stood in another process, and read, cached or prepared its batches in
        another way: those that remain are the same. To be called before the iteration starts;
        nothing is sampled for the batches before it. `epoch` becomes that of the state, and
        iterations after the next are whole epochs.

        Raises
        ------
        UsageError
            If the state is malformed or of another version, or of a loader that gives other
            batches: every difference is named. The loader is left as it was.
        """
        found = LoaderState.from_dict(state)
        given = self.seed if self._seed_is_given else None
        found.refuse_unless_of(self._all_fingerprints(), given)
        self._order.check(found.position)
        if self.seed != found.seed:
            self.seed = found.seed
            self._use_seed(found.seed)
        self.epoch = found.position.epoch
        self._cursor.load(found.position)

    def _all_fingerprints(self) -> dict[str, Any]:
        return {
            **self._fingerprint(),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "shuffle": self._order.shuffles,
            "sampler": self._order.name,
        }

    def _draw_seed(self) -> None:
        """Draw the seed that nobody gave: late, so that `torch.manual_seed` may come late."""
        if self.seed is None:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self.seed = int(drawn)
            self._use_seed(self.seed)
