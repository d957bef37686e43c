"""Copying that is killed: the next process goes on, and nothing unverified is opened."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.remote.staging import stage
from tests.support.effort import choose
from tests.support.stores import assert_same_files, write_example_store

NUM_KILLS = choose(5, 30)

_SERVER = """
import os, signal, sys
from pathlib import Path

from gnnstore.remote import blocks, staging
from tests.support.filesystem_calls import signal_at_filesystem_call, serve

os.fsync = lambda file: None
staging._IN_MEMORY = ()
blocks._BLOCKS = 1  # many pieces

def run(task):
    signal_at_filesystem_call(task["touch"], sys.argv[2], signal.SIGKILL)
    staging.stage(Path(sys.argv[1]), sys.argv[2])
    return 0

serve(run)
"""


def test_killed_at_random_points(tmp_path: Path) -> None:
    source = write_example_store(tmp_path / "g.gnn", num_nodes=60_000, num_edges=40_000).path
    draw, kills, adopted = random.Random(1), 0, 0
    command = [sys.executable, "-c", _SERVER, str(source)]
    cache = tmp_path / "cache"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [*command, str(cache)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:

        def attempt(touch: int) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"touch": touch}) + "\n")
            process.stdin.flush()
            return int(json.loads(process.stdout.readline()))

        while kills < NUM_KILLS:
            status = attempt(draw.randrange(1, 200))
            copies = [path for path in cache.glob("*") if path.name[0] != "."]
            for path in copies:  # whole, or not there
                assert_same_files(source, path)
            if status == 0:
                assert copies
            else:
                assert status == -signal.SIGKILL
                kills += 1
            leftovers = list(find_leftovers(cache)) if cache.is_dir() else []
            assert {leftover.state for leftover in leftovers} <= {"unfinished"}
            assert len(leftovers) <= 1
            adopted += bool(leftovers) and status != 0
            for path in copies:  # the next attempts copy anew
                shutil.rmtree(path)
    assert adopted > 2
    assert_same_files(source, stage(source, cache))
    assert list(find_leftovers(cache)) == []


def test_a_waiter_goes_on_where_a_killed_process_stopped(tmp_path: Path) -> None:
    """Two processes; the one that copies is killed, and the other one finishes its work."""
    source = write_example_store(tmp_path / "g.gnn", num_nodes=30_000, num_edges=1000).path
    cache = tmp_path / "cache"
    code = f"""
import os, signal, sys
from gnnstore.remote import staging
from gnnstore.progress import NullProgress
staging._IN_MEMORY = ()
class Notes(NullProgress):
    def note(self, text, facts=None):
        print(text, flush=True)
def stop(*_):
    print("stopped", flush=True)
    signal.pause()
if sys.argv[1] == "first":
    staging.write_new = stop  # when all but the root is there
print(staging.stage({str(source)!r}, {str(cache)!r}, progress=Notes()), flush=True)
"""

    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, name]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with start("first") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "stopped\n"
        with start("second") as second:
            assert second.stdout is not None
            waits = second.stdout.readline()
            first.kill()
            assert f"waiting for process {first.pid} on " in waits
            assert_same_files(source, Path(second.stdout.readline().strip()))
    assert list(find_leftovers(cache)) == []
