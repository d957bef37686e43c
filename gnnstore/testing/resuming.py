"""Comparing batches, and loaders that stop and resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from gnnstore.nn.adjacency import AdjT


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

    A loader runs, and its state is taken before the first batch of each epoch, after the first, in
    the middle, before the last and after it. Each state goes through JSON to a new loader, which
    must give the batches that remain of the epoch and all of the epoch after it; stopped once
    more after a batch, it must resume again.

    Parameters
    ----------
    make_loader : callable
        Makes the loader anew, with the same options. Its epochs should differ, as with
        ``shuffle=True``: if they do not, a lost epoch number goes unnoticed. A batch is a PyG
        `Data` or `HeteroData`, or another object with `to_dict`.
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
    first = make_loader()
    epochs, states = zip(*(_run(first) for _ in range(num_epochs + 1)), strict=True)
    if not epochs[0]:
        raise AssertionError("the first epoch has no batches, so that nothing can be resumed")
    for epoch in range(num_epochs):
        batches, following = epochs[epoch : epoch + 2]
        size = len(batches)
        for stop in sorted({0, 1, size // 2, size - 1, size} & set(range(size + 1))):
            where = f"resumed in epoch {epoch} after {stop} of {size} batches"
            resumed = _resumed(make_loader(), states[epoch][stop])
            rest, taken = _run(resumed)
            if stop == size and rest:  # the state began the next epoch
                assert_same_batches(rest, following, where)
                continue
            assert_same_batches(rest, batches[stop:], where)
            assert_same_batches(_run(resumed)[0], following, f"{where}, in the epoch after that")
            if 0 < stop < size - 1:
                again = _run(_resumed(make_loader(), taken[1]))[0]
                assert_same_batches(again, batches[stop + 1 :], f"{where}, and again one later")


def _run(loader: ResumableLoader) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the batches that an epoch has left; and the states before, between and after them."""
    batches, states = [], [json.dumps(loader.state_dict())]
    for batch in loader:
        batches.append(batch.to_dict())
        states.append(json.dumps(loader.state_dict()))
    return batches, states


def _resumed(loader: ResumableLoader, state: str) -> ResumableLoader:
    loader.load_state_dict(json.loads(state))
    return loader


def assert_same_batches(
    found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]], where: str = ""
) -> None:
    """Check that batches are equal: names, their order, dtypes, shapes and values (NaN is NaN).

    Raises
    ------
    AssertionError
        Naming the first batch and the first of its values that differ.
    """
    at = f"{where}: " if where else ""
    if len(found) != len(expected):
        raise AssertionError(f"{at}{len(found)} batches, expected {len(expected)}")
    for number, pair in enumerate(zip(found, expected, strict=True)):
        ours, theirs = map(_flat, pair)
        if list(ours) != list(theirs):
            raise AssertionError(f"{at}batch {number} has {list(ours)}, expected {list(theirs)}")
        for name, value in theirs.items():
            if not _same(ours[name], value):
                raise AssertionError(f"{at}batch {number}: {name!r} differs")


def _flat(batch: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a batch's values by name; of a `HeteroData` by type and name."""
    found: dict[Any, Any] = {}
    for key, value in batch.items():
        is_part = isinstance(value, Mapping)
        found[key] = None if is_part else value  # also of a type that has nothing
        found |= {(key, name): value[name] for name in value} if is_part else {}
    return found


def _same(value: Any, expected: Any) -> bool:
    if isinstance(expected, AdjT):
        return (
            isinstance(value, AdjT)
            and value.size() == expected.size()
            and len(value.transposes) == len(expected.transposes)
            and all(map(_same, _arrays(value), _arrays(expected)))
        )
    if not isinstance(expected, torch.Tensor):
        return bool(value == expected)
    if value.dtype != expected.dtype or value.shape != expected.shape:
        return False
    if torch.equal(value, expected):
        return True
    return bool(((value == expected) | (value.isnan() & expected.isnan())).all())


def _arrays(adj_t: AdjT) -> list[torch.Tensor | None]:
    """Return the arrays of a matrix and of its transposes."""
    found = [
        adj_t.crow_indices(),
        adj_t.col_indices(),
        adj_t.values() if adj_t.has_values else None,
    ]
    for each in adj_t.transposes:
        found += [each.ptr, each.index, each.values]
    return found
