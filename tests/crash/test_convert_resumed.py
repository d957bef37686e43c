"""Conversions that are killed and resumed: the same store, byte for byte, as without."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.converters import ConvertOptions, from_numpy, from_typed, reorder, split_edges
from gnnstore.errors import NoSpaceError
from gnnstore.formats.arrays import pages
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.formats.container.writer import SealedWriter
from tests.support.effort import choose
from tests.support.forks import ForkServer
from tests.support.graphs import pair_weights
from tests.support.stores import assert_same_files

NUM_KILLS = choose(2, 30)
MAX_TOUCH = 280  # a conversion that nothing stops touches the disk about as often
NUM_NODES, NUM_EDGES = 3000, 20_000
SHARD_BYTES = 2**15
TYPED = {"time_attr": ["time"], "weight_attr": ["w"], "reverse": ["rates"]}

# Converts in a forked child for each line that is read: kills it at its k-th touch of the
# file system, or after so many seconds; prints how it ended.
_SERVER = """
    import os, signal, sys

    from gnnstore.converters import (
        ConvertOptions, from_numpy, from_typed, reorder, split_edges,
    )
    from gnnstore.converters.edges import builder as spill
    from gnnstore.formats.arrays import paged
    from gnnstore.formats.arrays import pages
    from tests.support.filesystem_calls import signal_at_filesystem_call, serve

    source, output = sys.argv[1:]
    folder = os.path.dirname(output)
    os.fsync = lambda file: None  # what a process has written outlives it without
    pages.MIN_DEFAULT_SHARD_BYTES = %(shard_bytes)d  # several shards of arrays of test size
    paged._BUFFER_BYTES = 2**13
    spill.MIN_SPILL_BYTES = 2**12

    def convert(task):
        signal_at_filesystem_call(task["touch"], folder, signal.SIGKILL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process at once
        signal.setitimer(signal.ITIMER_REAL, task["seconds"])
        if task["kind"] == "split":
            options = ConvertOptions(**task["options"])
            split_edges(source, output, num_negatives=3, strict=True, options=options)
        elif task["kind"] == "ordered":
            reorder(source, output, options=ConvertOptions(**task["options"]))
        elif task["kind"] == "typed":
            from_typed(source, output, options=ConvertOptions(**task["options"]))
        else:
            options = ConvertOptions(undirected=True, **task["options"])
            from_numpy(source, output, options=options)
        return 0

    serve(convert)
"""

Attempt = Callable[..., int]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write a graph with features and edge attributes of several shards."""
    rng = np.random.default_rng(0)
    path, edges = tmp_path / "graph.npz", rng.integers(0, NUM_NODES, (2, NUM_EDGES))
    np.savez(
        path,
        edge_index=edges,
        edge_weight=pair_weights(edges),
        x=rng.standard_normal((NUM_NODES, 40), dtype=np.float32),
        y=rng.integers(0, 5, NUM_NODES),
        train=np.arange(0, NUM_NODES, 3),
    )
    return path


def write_types(path: Path) -> Path:
    """Write two node types and two edge types, with times and weights."""
    rng = np.random.default_rng(0)
    counts = {"user": NUM_NODES, "item": NUM_NODES // 3}
    for name, count in counts.items():
        (path / "nodes").mkdir(parents=True, exist_ok=True)
        x = rng.standard_normal((count, 20), dtype=np.float32)
        np.savez(path / "nodes" / f"{name}.npz", x=x)
    (path / "edges").mkdir()
    for source, relation, target in (("user", "rates", "item"), ("item", "like", "item")):
        num_edges = NUM_EDGES // 2
        ends = [rng.integers(0, counts[name], num_edges) for name in (source, target)]
        np.savez(
            path / "edges" / f"{source}__{relation}__{target}.npz",
            edge_index=np.stack(ends),
            time=rng.integers(0, 999, num_edges),
            w=rng.random(num_edges, dtype=np.float32),
        )
    return path


@contextmanager
def server(forks: ForkServer, source: Path, output: Path) -> Iterator[Attempt]:
    """Yield a function that converts in a process of its own, and returns how that ended."""
    code = textwrap.dedent(_SERVER % {"shard_bytes": SHARD_BYTES})
    with forks.start(code, source, output) as process:

        def attempt(
            *, kind: str = "whole", touch: int = 0, seconds: float = 0, **options: Any
        ) -> int:
            task = {"kind": kind, "touch": touch, "seconds": seconds, "options": options}
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            return int(json.loads(process.stdout.readline()))

        yield attempt
        process.stdin.close()


def convert_whole(
    source: Path, output: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Path:
    """Convert as the server does, in one go."""
    monkeypatch.setattr(pages, "MIN_DEFAULT_SHARD_BYTES", SHARD_BYTES)
    if source.is_dir():
        return from_typed(source, output, options=ConvertOptions(**options))
    return from_numpy(source, output, options=ConvertOptions(undirected=True, **options))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["whole", "split", *choose([], ["ordered"]), "typed"])
def test_killed_at_random_points(
    tmp_path: Path, source: Path, kind: str, forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "typed":
        source = write_types(tmp_path / "types")
        whole = convert_whole(source, tmp_path / "whole.gnn", monkeypatch, **TYPED)
    else:
        whole = convert_whole(source, tmp_path / "whole.gnn", monkeypatch)
    if kind in ("split", "ordered"):
        source, whole = whole, tmp_path / "made.gnn"
        if kind == "split":
            split_edges(source, whole, num_negatives=3, strict=True)
        else:
            reorder(source, whole)
    folder, spill = tmp_path / "out", tmp_path / "spill"
    folder.mkdir()
    spill.mkdir()
    output = folder / "g.gnn"
    draw = random.Random(1)
    kills = resumed = 0
    with server(forks, source, output) as convert:
        attempt = partial(convert, kind=kind, **(TYPED if kind == "typed" else {}))
        began = time.monotonic()
        assert attempt(resume=False) == 0
        seconds = time.monotonic() - began
        shutil.rmtree(output)

        def draw_attempt() -> dict[str, Any]:
            # In memory or not, with runs here or there: none of it makes a difference.
            drawn: dict[str, Any] = {"memory_bytes": draw.choice([None, 350_000, 600_000])}
            drawn["spill_dir"] = draw.choice([None, str(spill)])
            if draw.random() < 0.5:
                return {**drawn, "touch": draw.randrange(1, MAX_TOUCH)}
            return {**drawn, "seconds": draw.uniform(0.01, 0.9) * seconds}

        while kills < NUM_KILLS:
            # The life of a store: killed, and resumed, until it is there.
            while not output.exists():
                resumed += any(item.state == "resumable" for item in find_leftovers(folder))
                status = attempt(resume=True, **draw_attempt())
                assert status in (0, -signal.SIGKILL, -signal.SIGALRM)
                kills += status != 0
                assert status != 0 or output.exists()
                assert len([item for item in folder.iterdir() if item != output]) <= 1
            assert_same_files(output, whole)
            assert gnnstore.verify(output, level="full").ok
            shutil.rmtree(output)
            # Without --resume the next one starts clean on what a kill leaves.
            while not output.exists():
                kills += attempt(resume=False, **draw_attempt()) != 0
                assert output.exists() or attempt(resume=False) == 0
            assert_same_files(output, whole)
            attempt(resume=False)  # refused, but it sweeps what a kill after the commit left
            assert list(folder.iterdir()) == [output]
            assert list(spill.iterdir()) == []
            shutil.rmtree(output)
    assert resumed >= NUM_KILLS // 5  # it did go on, rather than start again each time


@pytest.mark.parametrize("tiny_disk", ["300k"], indirect=True)
@pytest.mark.parametrize("is_known_before", [True, False])
def test_a_disk_that_is_too_small_is_refused_with_a_number(
    tmp_path: Path,
    source: Path,
    tiny_disk: Path,
    is_known_before: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = convert_whole(source, tmp_path / "whole.gnn", monkeypatch)
    options = ConvertOptions(undirected=True, resume=True)
    expected = r"a store of at least .* are needed, and .* are free\. Free .*, or choose"
    with monkeypatch.context() as patch:
        if not is_known_before:  # as with text: found out when the first array begins
            patch.setattr("gnnstore.converters.writer.estimates.require_space", lambda *_: None)
            expected = r"'x': no space left .* more are needed and .* are free: .* are missing\."
        with pytest.raises(NoSpaceError, match=expected):
            from_numpy(source, tiny_disk / "g.gnn", options=options)
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True)
    from_numpy(source, tiny_disk / "g.gnn", options=options)
    assert_same_files(tiny_disk / "g.gnn", whole)


@pytest.mark.parametrize("tiny_disk", ["300k"], indirect=True)
def test_a_disk_that_fills_up_meanwhile_stops_what_can_be_resumed(
    tmp_path: Path, source: Path, tiny_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fill the disk behind the back of a conversion that had looked for space."""
    whole = convert_whole(source, tmp_path / "whole.gnn", monkeypatch)
    subprocess.run(["mount", "-o", "remount,size=2m", str(tiny_disk)], check=True)
    (tiny_disk / "other").write_bytes(bytes(2**20))
    monkeypatch.setattr(SealedWriter, "_check_space", lambda *_: None)
    options = ConvertOptions(undirected=True, resume=True)
    with pytest.raises(NoSpaceError) as caught:
        from_numpy(source, tiny_disk / "g.gnn", options=options)
    (left,) = find_leftovers(tiny_disk)
    assert left.state == "resumable"
    assert left.num_bytes > SHARD_BYTES
    for expected in ("no space left for", "are missing", f"is kept in {left.path}", "resume=True"):
        assert expected in str(caught.value)
    (tiny_disk / "other").unlink()
    from_numpy(source, tiny_disk / "g.gnn", options=options)
    assert_same_files(tiny_disk / "g.gnn", whole)
    assert [path.name for path in tiny_disk.iterdir()] == ["g.gnn"]


_LIMITED = """
    import resource, sys
    from gnnstore.converters import ConvertOptions, from_numpy
    from gnnstore.errors import StorageError
    from gnnstore.formats.arrays import pages
    from gnnstore.progress import NullProgress

    class Limit(NullProgress):
        def phase(self, name, *arguments, **options):
            if name == "write edges":
                resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
            return super().phase(name, *arguments, **options)

    pages.MIN_DEFAULT_SHARD_BYTES = %(shard_bytes)d
    try:
        from_numpy(*sys.argv[1:], options=ConvertOptions(undirected=True), progress=Limit())
    except StorageError as error:
        print(error)
"""


def test_a_file_that_may_not_grow_stops_what_can_be_resumed(
    tmp_path: Path, source: Path, forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = convert_whole(source, tmp_path / "whole.gnn", monkeypatch)
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "g.gnn"
    done = forks.run(textwrap.dedent(_LIMITED % {"shard_bytes": SHARD_BYTES}), source, output)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    (left,) = find_leftovers(output.parent)
    assert f"is kept in {left.path}" in done.stdout
    from_numpy(source, output, options=ConvertOptions(undirected=True, resume=True))
    assert_same_files(output, whole)
