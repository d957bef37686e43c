"""What is tried on hostile data, in a process of its own: `python fuzz_targets.py TARGET ...`.

Whatever the data are, one of two things happens: an error of ours, or results that are right. What
`verify` finds sound can be trained on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import gnnstore
from gnnstore.converters import partition
from gnnstore.disk.profile import load_profile
from gnnstore.errors import GnnstoreError, UsageError
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.testing.graphs import random_graph
from gnnstore.tools.cli import main
from gnnstore.tools.session import DEFECT
from tests.support.batches import batches_of
from tests.support.disks import keep_usual_profile
from tests.support.effort import choose
from tests.support.hetero import hetero_store, make_hetero
from tests.support.hostile import apply_edits, edits, json_edits
from tests.support.packing import pack
from tests.support.stores import write_example_store

NUM_NODES, NUM_EDGES = 40, 200
SPACE_BYTES = 2**31  # of addresses, for what a check takes
EXAMPLES = choose(4, 10)  # between two looks at the clock


# What is drawn, and what is tried with it.
Target: TypeAlias = tuple[st.SearchStrategy[Any], Callable[[Any], None]]


class UnsoundError(AssertionError):
    """Something other than an error of ours, or right results."""


def refused(action: Callable[[], object]) -> GnnstoreError | None:
    """Return the error with which an action refuses, if it does; no other leaves it."""
    try:
        action()
    except GnnstoreError as error:
        str(error).encode()
        return error
    return None


def verified(path: Path) -> list[str]:
    """Return all that `verify` finds."""
    try:
        report = gnnstore.verify(path, "full", num_threads=1)
    except GnnstoreError as error:
        return [str(error)]
    return [str(problem) for problem in report.problems]


def inspected(path: Path) -> None:
    """Print what there is to see."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        status = main(["inspect", str(path), "--stats", "--debug"])
    if status == DEFECT:
        raise UnsoundError(errors.getvalue())


def must_load(problems: list[str], load: Callable[[], object]) -> None:
    """Load what there is: where nothing was found, without an error."""
    error = refused(load)
    if error is not None and not problems:
        raise UnsoundError(f"verify finds nothing, but: {error!r}") from error


# ---- the targets: each makes its data in a folder, and returns a strategy and a check


def target_store(folder: Path) -> Target:
    base = write_example_store(
        folder / "base.gnn", num_nodes=NUM_NODES, num_edges=NUM_EDGES, feature_shape=(3,)
    ).path
    copy = folder / "copy.gnn"

    def check(drawn: Any) -> None:
        changes, strategy = drawn
        _changed(base, copy, changes)
        problems = verified(copy)
        inspected(copy)
        must_load(problems, lambda: _use_store(copy, strategy))

    return st.tuples(
        edits(), st.sampled_from([each.name for each in STRATEGIES if not each.alias_of])
    ), check


def target_types(folder: Path) -> Target:
    counts = {"paper": 12, "author": 7, "institution": 3}
    base = hetero_store(
        folder / "base.gnn",
        make_hetero(counts=counts),
        time_attr=["time", "edge_time"],
        weight_attr=["w"],
        reverse="cites",
    ).path
    copy = folder / "copy.gnn"

    def use() -> None:
        store = gnnstore.open(copy)
        store.to_pyg()
        for name in store.node_types:
            view = store[name]
            _ = dict(view.splits.items()), view.original_ids, view.num_nodes
        for edge_type in store.edge_types:
            store.topology().columns(edge_type)
            _ = store[edge_type].times, store[edge_type].weights

    def check(changes: Any) -> None:
        _changed(base, copy, changes)
        problems = verified(copy)
        inspected(copy)
        must_load(problems, use)

    return edits(), check


def _use_store(path: Path, strategy: str) -> None:
    store = gnnstore.open(path)
    if not store.schema.node.num_nodes:
        return
    rows = (
        store.reader.read(store.schema.node.attributes["x"])
        if "x" in store.schema.node.attributes
        else None
    )
    for name in store.schema.node.attributes:
        store.node_attribute(name)[0:2]
    _ = dict(store.splits.items()), store.original_ids, store.graph_attributes()
    store.to_pyg()
    of = STRATEGIES[strategy]
    options: dict[str, Any] = {"cache_bytes": "200B"} if of.caches or of.plans else {}
    options |= {"disk": "50MB"} if of.plans else {}
    loader = gnnstore.NeighborLoader(
        store,
        [3, 2],
        batch_size=16,
        seed=1,
        strategy=strategy,
        num_threads=1,
        memory="100MB",
        **options,
    )
    for number, batch in enumerate(loader):
        ids = batch.n_id.numpy()
        if len(ids) and not 0 <= ids.min() <= ids.max() < store.num_nodes:
            raise UnsoundError(f"batch {number} has nodes that do not exist")
        if batch.edge_index.numel() and int(batch.edge_index.max()) >= len(ids):
            raise UnsoundError(f"batch {number} has edges to nodes that it does not have")
        if rows is not None and len(rows) == store.num_nodes and "x" in batch:
            taken = np.moveaxis(rows[ids], 0, store.schema.node.attributes["x"].cat_dim)
            found = batch.x.contiguous().view(torch.uint8).numpy().tobytes()
            if found != np.ascontiguousarray(taken).tobytes():
                raise UnsoundError(f"batch {number} has other rows than the store")


def _packed(folder: Path, **options: Any) -> Target:
    store = write_example_store(
        folder / "base.gnn", num_nodes=NUM_NODES, num_edges=NUM_EDGES, feature_shape=(3,)
    ).path
    base = pack(
        store,
        [3, 2],
        None,
        output=folder / "packed",
        batch_size=8,
        cache_bytes="100B",
        superbatch=4,
        num_threads=1,
        **options,
    )
    copy = folder / "copy"

    def check(changes: Any) -> None:
        _changed(base, copy, changes)
        problems = verified(copy)
        inspected(copy)
        must_load(problems, lambda: batches_of(gnnstore.open_packed(copy).loader(num_threads=1)))

    return edits(records=True), check


def target_packed(folder: Path) -> Target:
    return _packed(folder)


def target_shared(folder: Path) -> Target:
    return _packed(folder, segment=2)


def target_partitions(folder: Path) -> Target:
    store = write_example_store(
        folder / "base.gnn", num_nodes=NUM_NODES, num_edges=NUM_EDGES, feature_shape=(3,)
    ).path
    base = partition(store, 4, output=folder / "partitions")
    copy = folder / "copy"
    policy = gnnstore.PartitionPolicy("dispersed", capacity=2, name=str(copy))

    def train() -> None:
        try:
            loader = gnnstore.NeighborLoader(
                store, [3, 2], batch_size=16, seed=1, partitions=policy
            )
        except UsageError as error:
            if "partitions of another store" in str(error):
                return  # they are sound, as far as can be known without it
            raise
        for number, batch in enumerate(loader):
            ids = batch.n_id.numpy()
            if len(ids) and not 0 <= ids.min() <= ids.max() < NUM_NODES:
                raise UnsoundError(f"batch {number} has nodes that do not exist")

    def check(changes: Any) -> None:
        _changed(base, copy, changes)
        verified(copy)
        inspected(copy)
        refused(train)  # parts have checksums of their own, which are compared as they are read

    return edits(), check


def _changed(base: Path, copy: Path, changes: Any) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(base, copy)
    with contextlib.suppress(LookupError, TypeError, ValueError, OSError, AttributeError):
        apply_edits(copy, changes)


def target_state(folder: Path) -> Target:
    graph = random_graph(NUM_NODES, NUM_EDGES, seed=1, feature_dim=3, num_classes=2)
    store = gnnstore.open(graph.write(folder / "s.gnn"))

    def loader() -> Any:
        return gnnstore.NeighborLoader(
            store, [2], batch_size=8, seed=1, strategy="memory", num_threads=1, shuffle=True
        )

    first = loader()
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    del iterator

    def check(changes: Any) -> None:
        changed = json.loads(json.dumps(state))
        for change in changes:
            change.apply(changed)

        def resume() -> None:
            resumed = loader()
            resumed.load_state_dict(changed)
            batches_of(resumed)

        refused(resume)

    return st.lists(json_edits(), min_size=1, max_size=3), check


def target_cache(folder: Path) -> Target:
    """Read the profile of a disk, which only makes things faster, or else none."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    keep_usual_profile(folder)
    (file,) = (path for path in (folder / "cache").rglob("*") if path.is_file())
    whole = file.read_bytes()

    def check(changes: Any) -> None:
        document = json.loads(whole)
        for change in changes:
            change.apply(document)
        file.write_bytes(json.dumps(document).encode())
        load_profile(folder)

    return st.lists(json_edits(), max_size=2), check


TARGETS = {
    name.removeprefix("target_"): value
    for name, value in list(globals().items())
    if name.startswith("target_")
}


def examples(target: str, folder: Path, first_seed: int) -> Iterator[Callable[[], None]]:
    """Yield functions that try some examples each; the latest is in the file `latest`."""
    strategy, check = TARGETS[target](folder)
    latest = folder / "latest"
    number = first_seed
    while True:

        @seed(number)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def once(drawn: Any) -> None:
            latest.write_text(repr(drawn))
            check(drawn)

        yield once
        number += 1


def limit_space() -> None:
    """Limit the addresses of the process to what it has, and some more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPACE_BYTES, resource.RLIM_INFINITY))


def run(target: str, folder: Path, seconds: float, first_seed: int) -> None:
    """Try examples for some seconds."""
    faulthandler.enable()
    limit_space()
    end = time.monotonic() + seconds
    count = 0
    for some in examples(target, folder, first_seed):
        some()
        count += EXAMPLES
        if time.monotonic() > end:
            break
    print(count)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
