"""Checks that a loader resumes exactly, for authors of plug-ins and of loaders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import torch


class ResumableLoader(Protocol):
    """A loader with the state convention of torchdata's `StatefulDataLoader`."""

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a loader stood."""


def assert_resumes(make_loader: Callable[[], ResumableLoader], *, num_epochs: int = 2) -> None:
    """Check that a loader gives the same batches whether or not it is stopped and resumed.

    It is stopped before the first batch, after the first, in the middle, before the last one and
    after the last one of each epoch. Its state goes through JSON to a new loader, which must give
    the batches that remain of the epoch, and those of the epoch after it.

    Parameters
    ----------
    make_loader : callable
        Makes the loader anew, with the same options and the same seed. A batch is a PyG `Data`, or
        another object with `to_dict`.
    num_epochs : int
        Epochs in which it is stopped.

    Raises
    ------
    AssertionError
        Naming the place of the stop, and the first batch and attribute that differ.

    Examples
    --------
    >>> from gnnstore.testing import assert_resumes
    >>> assert_resumes(lambda: gnnstore.NeighborLoader(store, [5], seed=0))  # doctest: +SKIP
    """
    loader = make_loader()
    epochs = [[batch.to_dict() for batch in loader] for _ in range(num_epochs + 1)]
    if not epochs[0]:
        raise AssertionError("the first epoch has no batches, so that nothing can be resumed")
    for epoch, batches in enumerate(epochs[:num_epochs]):
        size = len(batches)
        for stop in sorted({0, 1, size // 2, size - 1, size} & set(range(size + 1))):
            state = _state_at(make_loader(), epoch, stop)
            resumed = make_loader()
            resumed.load_state_dict(json.loads(json.dumps(state)))
            where = f"resumed in epoch {epoch} after {stop} of {size} batches"
            rest = [batch.to_dict() for batch in resumed]
            if stop == size and rest:  # a state behind the loop: the next epoch has begun
                assert_same_batches(rest, epochs[epoch + 1], where)
                continue
            assert_same_batches(rest, batches[stop:], where)
            following = [batch.to_dict() for batch in resumed]
            assert_same_batches(following, epochs[epoch + 1], f"{where}, in the epoch after that")


def _state_at(loader: ResumableLoader, epoch: int, stop: int) -> dict[str, Any]:
    """Return the state of a loader in the middle of an epoch, while it prepares batches ahead."""
    for _ in range(epoch):
        for _batch in loader:
            pass
    if stop == 0:
        return loader.state_dict()
    batches = iter(loader)
    for _batch in islice(batches, stop):
        pass
    state = loader.state_dict()
    close = getattr(batches, "close", None)
    if close is not None:
        close()
    return state


def assert_same_batches(
    found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]], where: str = ""
) -> None:
    """Check that batches are equal: names, their order, dtypes, shapes and values.

    Raises
    ------
    AssertionError
        Naming the first batch and the first of its values that differ.
    """
    at = f"{where}: " if where else ""
    if len(found) != len(expected):
        raise AssertionError(f"{at}{len(found)} batches, expected {len(expected)}")
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if list(ours) != list(theirs):
            raise AssertionError(f"{at}batch {number} has {list(ours)}, expected {list(theirs)}")
        for name, value in theirs.items():
            if not _same(ours[name], value):
                raise AssertionError(f"{at}batch {number}: {name!r} differs")


def _same(value: Any, expected: Any) -> bool:
    if not isinstance(expected, torch.Tensor):
        return bool(value == expected)
    return value.dtype == expected.dtype and torch.equal(value, expected)
