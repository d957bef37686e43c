"""Batches sampled one after the other, in the way that suits where the graph lies."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from gnnstore.parallel import ordered_map
from gnnstore.sampling.disk import BatchRequest, DiskNeighborSampler
from gnnstore.sampling.neighbor import NeighborSampler, SampledSubgraph
from gnnstore.timeline import OFF, Timeline

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")

# Without a budget: enough for a few hundred batches to be read in nearly one pass.
BULK_BYTES = 1 << 30


def sample_in_order(
    sampler: NeighborSampler,
    items: Iterable[I],
    request: Callable[[int, I], BatchRequest],
    then: Callable[[int, SampledSubgraph, float], T],
    *,
    num_threads: int,
    lookahead: Callable[[], int],
    bulk_bytes: int | None,
    describe: Callable[[int], str],
    initializer: Callable[[], None] | None = None,
    timeout_seconds: float | None = None,
    timeline: Callable[[], Timeline] = lambda: OFF,
) -> Generator[T, None, None]:
    """Sample batches in threads; or together, where each hop is then one pass over a file.

    Parameters
    ----------
    items : iterable
        What batches are sampled for; consumed in the calling thread.
    request : callable
        Returns (seeds, epoch, batch) of the k-th item; in the thread that samples it.
    then : callable
        What to do with the k-th subgraph, and the seconds that sampling it has taken; in that
        thread too.
    lookahead : callable
        How many batches may be sampled ahead, where they are sampled one by one.
    bulk_bytes : int or None
        What those that are sampled together may take.
    describe : callable
        What the k-th batch is; noted on an exception.
    initializer, timeline : callable, optional
        Called once in each thread; returns where stages are recorded at present.
    timeout_seconds : float, optional
        The longest wait for a batch, where they are sampled one by one.

    Yields
    ------
    object
        What `then` has returned, in the order of the requests.
    """
    if isinstance(sampler, DiskNeighborSampler):
        together = sampler.sample_many(
            (request(k, item) for k, item in enumerate(items)),
            memory_bytes=bulk_bytes or BULK_BYTES,
            num_threads=max(1, num_threads),
        )
        done, start = 0, time.perf_counter()
        try:
            with timeline().span("sampling", together=True) as args:
                for subgraph in together:
                    result = then(done, subgraph, time.perf_counter() - start)
                    del subgraph
                    done += 1
                    yield result
                    start = time.perf_counter()
                args |= {"batches": done}
        except Exception as error:
            error.add_note(f"{describe(done)}, or one that was sampled together with it")
            raise
        return

    def sample(numbered: tuple[int, I]) -> T:
        place, item = numbered
        seeds, epoch, batch = request(place, item)
        start = time.perf_counter()
        with timeline().span("sampling", epoch=epoch, batch=batch) as args:
            subgraph = sampler.sample(seeds, epoch=epoch, batch=batch)
            args |= {"nodes": len(subgraph.n_id), "edges": len(subgraph.edge_pos)}
        return then(place, subgraph, time.perf_counter() - start)

    yield from ordered_map(
        sample,
        enumerate(items),
        num_threads=num_threads,
        lookahead=lookahead,
        timeout_seconds=timeout_seconds,
        initializer=initializer,
        describe=describe,
    )
