"""Keeps Ctrl-C from being lost where Python cannot raise it.

Python raises `KeyboardInterrupt` at any point of the program. Now and then that is a destructor or
the callback of a weak reference, from which nothing can be raised: the interpreter prints
"Exception ignored in ..." and goes on. Or it is the start of an extension module that ignores every
error (those made with Cython have such a place, numpy.random among them: one Ctrl-C in fifty was
lost there). A conversion of hours would then run to its end in spite of Ctrl-C.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

# Raised at once, it would end in the hook, which must not raise either.
_AGAIN_SECONDS = 0.02


@contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """Raise a `KeyboardInterrupt` again if it came where it could not be raised."""
    before = sys.unraisablehook

    def again(unraisable: UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            timer = threading.Timer(_AGAIN_SECONDS, _thread.interrupt_main)
            timer.daemon = True  # a process that ends anyway need not wait for it
            timer.start()
        else:
            before(unraisable)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block: for imports, which are short."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
