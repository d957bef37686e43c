"""A torch `DataLoader` that knows which batch is the next, and goes on there in another process.

Epochs, the order of the seeds, and the state that a checkpoint holds. What is in a batch and how
it is prepared is the business of the classes derived from it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, SequentialSampler

from gnnstore.errors import UsageError
from gnnstore.pipeline.order.cursor import Bookmark
from gnnstore.pipeline.order.external import UserOrder
from gnnstore.pipeline.order.ranks import Deal, DealtSampler
from gnnstore.pipeline.order.state import LoaderState, Position
from gnnstore.pipeline.seeds.nodes import SeededShuffle, epoch_permutation


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
    deal : Deal
        Which of the batches are this process's.
    """

    def __init__(
        self, num_seeds: int, *, seed: int | None, options: dict[str, Any], deal: Deal
    ) -> None:
        # Frameworks that build a loader anew pass these two, which are ours to choose.
        options = {k: v for k, v in options.items() if k not in {"dataset", "collate_fn"}}
        self._deal = deal
        self._shuffles = shuffles(options) or _is_shuffle(options.get("sampler"))
        if deal.world_size > 1:
            options |= {"shuffle": False, "sampler": self._dealt(num_seeds, seed, options)}
        elif self._shuffles:
            options |= {"shuffle": False, "sampler": SeededShuffle(num_seeds)}
        positions: Any = range(num_seeds)
        super().__init__(positions, collate_fn=self.collate_fn, **options)
        self.seed = seed
        self._num_seeds = num_seeds
        self._seed_is_given = seed is not None
        self.epoch = 0
        self._user_order = self._order_of_the_user()
        self._bookmark = Bookmark(self._user_order)

    @property
    def batches_left(self) -> int:
        """Batches of the epoch that are still to be handed out; all of them before it begins.

        0 between the last batch and what follows the loop: the next epoch has not begun.
        """
        done = self._bookmark.position(self.epoch).batches
        if self._user_order is not None:
            return max(0, len(self) - done)
        return self._deal.num_rounds(done, self._num_batches, drop_last=self.drop_last)

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
        self.epoch = epoch
        self._bookmark.leave()

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
        position = self._bookmark.position(self.epoch)
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
        if self._user_order is not None:
            self._user_order.check(found.position.sampler)
        elif found.position.batches > self._num_batches:
            raise UsageError(
                f"the state's 'batches' is {found.position.batches}; expected at most "
                f"{self._num_batches}, which is an epoch"
            )
        if self.seed != found.seed:
            self.seed = found.seed
            self._use_seed(found.seed)
        self.epoch = found.position.epoch
        self._bookmark.load(found.position)

    def _all_fingerprints(self) -> dict[str, Any]:
        return {
            **self._fingerprint(),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "shuffle": self._shuffles,
            "sampler": None if self._user_order is None else self._user_order.name,
        }

    def _draw_seed(self) -> None:
        """Draw the seed that nobody gave: late, so that `torch.manual_seed` may come late."""
        if self.seed is None:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self.seed = int(drawn)
            self._use_seed(self.seed)

    @property
    def _num_batches(self) -> int:
        """Of an epoch of all ranks, in the loader's own order."""
        size = self.batch_size or 1  # None: what the sampler gives are batches
        return self._num_seeds // size if self.drop_last else -(-self._num_seeds // size)

    def _number(self, first: int, k: int) -> int:
        """Return the number in its epoch of the k-th batch after the first so many."""
        if self._user_order is not None:
            return first + k
        return self._deal.number(first, k, self._num_batches)

    def _positions(self, start: Position) -> Iterator[tuple[int, Any, Position]]:
        """Yield the number, the positions in `input_nodes`, and the place after each batch."""
        if self._user_order is not None:
            for number, (index, said) in enumerate(self._user_order.batches(start), start.batches):
                yield number, index, Position(start.epoch, number + 1, said)
            return
        order: Any = range(self._num_seeds)
        if self._shuffles:
            order = epoch_permutation(self._num_seeds, self.seed or 0, start.epoch)
        size, total, drop_last = self.batch_size, self._num_batches, self.drop_last
        for number, done in self._deal.batches(start.batches, total, drop_last=drop_last):
            index = order[number] if size is None else order[number * size : (number + 1) * size]
            yield number, index, Position(start.epoch, done)

    def _dealt(self, num_seeds: int, seed: int | None, options: dict[str, Any]) -> DealtSampler:
        return DealtSampler(
            num_seeds,
            self._deal,
            batch_size=options.get("batch_size", 1),
            shuffle=self._shuffles,
            seed=seed or 0,
            drop_last=bool(options.get("drop_last")),
        )

    def _order_of_the_user(self) -> UserOrder | None:
        sampler: Any = self.sampler
        is_in_order = type(sampler) is SequentialSampler and len(sampler) == self._num_seeds
        is_ours = is_in_order or isinstance(sampler, (SeededShuffle, DealtSampler))
        if self.batch_sampler is None:
            return None if is_ours else UserOrder(sampler)
        if self.batch_size is None or not is_ours:
            return UserOrder(self.batch_sampler)
        return None


def _is_shuffle(sampler: Any) -> bool:
    """Whether a sampler is one of those that shuffling loaders make for themselves."""
    is_dealt = isinstance(sampler, DealtSampler) and sampler.shuffle
    return is_dealt or isinstance(sampler, SeededShuffle)


def shuffles(options: dict[str, Any]) -> bool:
    """Whether a `DataLoader` with these options would shuffle by itself."""
    own_order = options.get("sampler") is None and options.get("batch_sampler") is None
    return own_order and bool(options.get("shuffle"))
