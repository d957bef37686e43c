"""What a process does when a signal meets it at any touch of the file system.

A script calls `serve`, which forks a child for each task that comes on its standard input; in the
child `signal_at_filesystem_call` counts what Python's audit events have of files in a folder.
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
    """Have this process get a signal at its `point`-th touch of what lies in a folder.

    Returns
    -------
    callable
        Returns how often it has been touched so far.
    """
    touches = 0
    lock = threading.RLock()  # the collector may close a file in the middle of anything

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal touches
        if event.startswith(("open", "os.", "shutil.")) and folder in str(arguments[:1]):
            # Threads touch files too: each touch has a number of its own, so that one sends.
            with lock:
                touches += 1
                mine = touches
            if mine == point:
                os.kill(os.getpid(), number)

    sys.addaudithook(hook)
    return lambda: touches


def serve(perform: Callable[[Any], int]) -> None:
    """Perform each line of the standard input, JSON, in a forked child; print how it ended.

    Parameters
    ----------
    perform : callable
        Returns the status of the child: 130 if it is interrupted, 1 if it raises something else.
    """
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
