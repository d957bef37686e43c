"""Conversions that are interrupted or killed: the old store or the new one, never half of one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import textwrap
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

import gnnstore
from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.errors import UsageError
from gnnstore.formats import StoreReader
from gnnstore.formats.container.workdir import find_leftovers
from tests.support.effort import choose, paired
from tests.support.forks import ForkServer
from tests.support.graphs import read_store

SCALE = 9

# For each line that is read, converts in a forked child, which gets the signal at its k-th
# touch of the file system, as Python's audit events have it; prints how the child ended.
_SWEEP = """
    import errno, os, signal, sys
    from contextlib import nullcontext
    from pathlib import Path

    from gnnstore.converters import ConvertOptions, from_rmat
    from tests.support.faults import inject
    from tests.support.filesystem_calls import signal_at_filesystem_call, serve

    folder, name, overwrite = sys.argv[1:]
    os.fsync = lambda file: None  # what a process has written outlives it without
    no_exchange = inject("renameat2", errno=errno.EINVAL, times=-1)

    def convert(point):
        num_touches = signal_at_filesystem_call(point, folder, signal.Signals[name])
        options = ConvertOptions(overwrite=overwrite != "fresh")
        with no_exchange if overwrite == "by two renames" else nullcontext():
            from_rmat(Path(folder) / "r.gnn", scale=9, seed=point, options=options)
        return 0 if num_touches() < point else 3

    serve(convert)
"""

# Converts once, and says when it begins.
_ONCE = """
import sys
from gnnstore.converters import ConvertOptions, from_rmat

print("begin", flush=True)
from_rmat(sys.argv[1], scale=12, options=ConvertOptions(overwrite=True))
"""


def identity_if_whole(output: Path, scale: int = SCALE) -> str | None:
    """Return what tells the store, which must be whole, from another; None if there is none."""
    for left in () if output.exists() else find_leftovers(output.parent):
        if left.state == "set aside":  # between two renames: the next attempt puts it back
            output = left.path
    if not output.exists():
        return None
    report = gnnstore.verify(output, level="full")
    assert not report.problems
    assert read_store(output).num_nodes == 1 << scale
    return f"{StoreReader.open(output).uuid} {output.stat().st_ino}"


def leftovers(output: Path) -> list[str]:
    return sorted(path.name for path in output.parent.iterdir() if path != output)


@pytest.mark.parametrize(
    ("overwrite", "name"),
    paired(["fresh", "overwrite", "by two renames"], ["SIGKILL", "SIGINT"], 1),
)
@pytest.mark.timeout(300)
def test_a_signal_at_any_touch_of_the_disk(
    tmp_path: Path, name: str, overwrite: str, forks: ForkServer
) -> None:
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "r.gnn"
    # Of some 140 touches, the first of which remove what the attempt before left, the last dozen
    # rename: each of these, or a part of all.
    points = chain([80], range(choose(130, 81), 10_000))
    if overwrite != "by two renames":
        points = chain(range(1, 10_000, choose(25, 4)))
    outcomes = set()
    aside = False
    before = after = None
    if overwrite != "fresh":
        from_rmat(output, scale=SCALE)
        after = identity_if_whole(output)
    with forks.start(textwrap.dedent(_SWEEP), output.parent, name, overwrite) as process:
        for point in points:
            if overwrite == "fresh" and output.exists():
                shutil.rmtree(output)
            before = None if overwrite == "fresh" else after
            process.stdin.write(f"{point}\n")
            process.stdin.flush()
            status = json.loads(process.stdout.readline())
            after = identity_if_whole(output)
            if status == 0:
                break
            # 3: it came when the store was committed, and there was nothing left to stop.
            assert status in ((130, 3) if name == "SIGINT" else (-signal.SIGKILL,))
            assert before is None or after is not None
            # The new store and the old one, if neither has the name.
            assert len(leftovers(output)) <= (1 if output.exists() else 2)
            aside |= overwrite != "fresh" and not output.exists()
            outcomes.add("new" if after != before else "old")
        process.stdin.close()
    assert after not in (None, before)
    # The last run, which nothing stopped, swept up what the one before had left.
    assert leftovers(output) == []
    assert point > 100
    assert "old" in outcomes
    assert aside == (overwrite == "by two renames" and name == "SIGKILL")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.timeout(300)
def test_a_signal_at_any_time(tmp_path: Path, number: signal.Signals, forks: ForkServer) -> None:
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "r.gnn"
    draw = random.Random(0)
    began = time.monotonic()
    from_rmat(output, scale=12)
    seconds = time.monotonic() - began
    before = identity_if_whole(output, 12)
    num_stopped = 0
    while num_stopped < choose(1, 6):
        with (
            (tmp_path / "stderr").open("w") as errors,
            forks.start(_ONCE, output, stderr=errors.fileno()) as process,
        ):
            assert process.stdout.readline() == "begin\n"
            time.sleep(draw.random() * seconds)
            with suppress(ProcessLookupError):  # it has come to its end
                process.send_signal(number)
            is_stopped = process.wait() != 0
        num_stopped += is_stopped
        seconds *= 1 if is_stopped else 0.7
        after = identity_if_whole(output, 12)
        assert after is not None
        assert len(leftovers(output)) <= 1
        before = after
    from_rmat(output, scale=12, options=ConvertOptions(overwrite=True))
    assert leftovers(output) == []
    assert identity_if_whole(output, 12) != before


def test_what_a_killed_run_left_is_reported_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, forks: ForkServer
) -> None:
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "r.gnn"
    code = textwrap.dedent(_SWEEP)
    assert forks.run(code, output.parent, "SIGKILL", "fresh", text="60\n").returncode == 0
    (left,) = leftovers(output)
    assert left.startswith(".r.gnn.tmp-")
    assert not output.exists()
    from_rmat(output, scale=SCALE)
    assert leftovers(output) == []
    (record,) = caplog.records
    assert "that an interrupted attempt had left in" in record.getMessage()
    assert left in record.getMessage()


def stopped_child(pid: int) -> int:
    """Return the one child of a process, once it is stopped."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            state = Path(f"/proc/{children[0]}/stat").read_text().rsplit(")", 1)[1].split()[0]
            if state == "T":
                return int(children[0])
        time.sleep(0.01)
    raise AssertionError("no child stopped within a minute")


def test_a_run_that_is_at_work_is_left_alone(tmp_path: Path, forks: ForkServer) -> None:
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "r.gnn"
    with forks.start(textwrap.dedent(_SWEEP), output.parent, "SIGSTOP", "fresh") as process:
        process.stdin.write("60\n")
        process.stdin.flush()
        child = stopped_child(process.pid)
        try:
            with pytest.raises(UsageError, match=r"another process is writing this store right"):
                from_rmat(output, scale=SCALE)
            assert len(leftovers(output)) == 1
        finally:
            os.kill(child, signal.SIGCONT)
        process.stdout.readline()
        process.stdin.close()
    assert identity_if_whole(output) is not None
    assert leftovers(output) == []


_LIMITED = """
    import resource, sys
    from gnnstore.converters import from_rmat
    from gnnstore.errors import StorageError

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        from_rmat(sys.argv[1], scale=12)
    except StorageError as error:
        print(error)
"""


def test_a_file_that_cannot_grow_is_named_and_leaves_no_store(
    tmp_path: Path, forks: ForkServer
) -> None:
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "r.gnn"
    done = forks.run(textwrap.dedent(_LIMITED), output)
    assert done.returncode == 0, done.stderr
    assert "cannot write: " in done.stdout
    assert "File too large" in done.stdout
    assert not output.exists()
    assert len(leftovers(output)) <= 1
