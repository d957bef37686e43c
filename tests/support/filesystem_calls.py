"""Sends a process a signal at any one of its file-system calls.

A script calls `serve`, which forks a child for each task on its standard input; in the child
`signal_at_filesystem_call` counts Python's audit events for files in a folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn


def signal_at_filesystem_call(point: int, folder: str, number: signal.Signals) -> Callable[[], int]:
    """Send a signal at the `point`-th call for paths in a folder; return what counts them."""
    calls = 0
    lock = threading.RLock()  # the collector may close a file in the middle of anything

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal calls
        if event.startswith(("open", "os.", "shutil.")) and folder in str(arguments[:1]):
            # Other threads call, too: each call has its own number, so that only one sends.
            with lock:
                calls += 1
                mine = calls
            if mine == point:
                os.kill(os.getpid(), number)

    sys.addaudithook(hook)
    return lambda: calls


def serve(perform: Callable[[Any], int]) -> None:
    """Perform each task, a JSON line of standard input, in a forked child; print its status."""
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if child == 0:
            _end_as(perform, task)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps(status), flush=True)


def _end_as(perform: Callable[[Any], int], task: Any) -> NoReturn:
    status = 1
    try:
        status = perform(task)
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()  # os._exit says nothing
    finally:
        os._exit(status)
