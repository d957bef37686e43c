"""Runs Python in a process of its own, in a memory group if there is one, and reads its answer.

A process of its own, because a memory limit is one of a process, and because nothing that one
measurement has left in memory may help the next.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import IO, Any

from gnnstore.disk.profile.cgroup import MemoryGroup, memory_group

# Into its group before anything is loaded, so that all of the process is counted.
_ENTER = 'echo $$ > "$0" && exec "$@"'
# Removing what it has on disk may take a while; a second Ctrl-C ends it at once.
_LEAVING_SECONDS = 60.0


def group_if(is_limited: bool) -> AbstractContextManager[MemoryGroup | None]:
    """Return the context of a new memory group; without a limit, and where none can be, of None."""
    return memory_group() if is_limited else nullcontext()


def ask_process(
    words: Sequence[str],
    group: MemoryGroup | None = None,
    *,
    on_line: Callable[[str], None] = lambda _: None,
) -> dict[str, Any] | str:
    """Run `python *words` and return the JSON object of its last line, or why there is none."""
    command = [sys.executable, *words]
    if group is not None:
        command = ["sh", "-c", _ENTER, str(group.processes), *command]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        # A session of its own: Ctrl-C would come to it twice, from the terminal and from here.
        process = subprocess.Popen(  # noqa: S603 - this interpreter
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        answer = ""
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            for line in process.stdout:
                if line.strip():
                    answer = line.strip()
                    on_line(answer)
            status = process.wait()
        finally:
            _end(process)
        return _answer(status, answer, errors)


def _end(process: subprocess.Popen[str]) -> None:
    """Ask a process to end, unless it has, and then make it."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVING_SECONDS)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _answer(status: int, answer: str, errors: IO[str]) -> dict[str, Any] | str:
    if status == -signal.SIGKILL:
        return "killed by the kernel: it took more than the limit"
    if status == 0 and answer:
        document: dict[str, Any] = json.loads(answer)
        return str(document["problem"]) if "problem" in document else document
    errors.seek(0)
    return errors.read().strip().rpartition("\n")[2] or f"it ended with status {status}"
