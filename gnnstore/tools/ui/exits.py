"""Turns a failure into one clear message and an exit status.

Scripts branch on the status and people read the message, so both are decided in this module
only. A traceback is shown for a defect of gnnstore, or when it is asked for.
"""

from __future__ import annotations

import errno
import os
import traceback
from contextlib import suppress

import click

from gnnstore.errors import GnnstoreError, described, resource_error
from gnnstore.tools.ui.session import Session

OK = 0
PROBLEM = 1  # the data has a problem
USAGE = 2
NOT_FOUND = 3
UNSUPPORTED_VERSION = 4
STORAGE = 5  # I/O error, no space, no memory
DEFECT = 70  # sysexits.h EX_SOFTWARE: an error that gnnstore did not foresee
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader of the output left


def report(error: BaseException, session: Session) -> int:
    """Print `error` on stderr (and, with --json, on stdout) and return the exit status."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        message, status = "interrupted", INTERRUPTED
    elif isinstance(error, click.ClickException):
        message, status = error.format_message(), USAGE
    else:
        message, status = _describe(error)
        if isinstance(error, GnnstoreError):
            message = session.in_flags(message)
    # The failure may be a stream that cannot be written, such as one to a full disk.
    with suppress(OSError):
        _print_error(error, message, with_traceback=session.debug or status == DEFECT)
    if session.as_json:
        with suppress(OSError):
            session.emit_json(
                {
                    "error": {
                        "kind": type(error).__name__,
                        "message": message,
                        "path": getattr(error, "path", None),
                        "offset": getattr(error, "offset", None),
                        "exit_status": status,
                    }
                }
            )
    return status


def _print_error(error: BaseException, message: str, *, with_traceback: bool) -> None:
    """Print an error on stderr."""
    if isinstance(error, click.ClickException):
        error.show()
        return
    if with_traceback and not isinstance(error, click.Abort | KeyboardInterrupt):
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    click.echo(f"gnnstore: {click.style('error:', fg='red')} {message}", err=True)


def _describe(error: BaseException) -> tuple[str, int]:
    error = resource_error(error, "go on") or error
    if isinstance(error, GnnstoreError):
        return str(error), error.exit_status
    if isinstance(error, OSError):
        where = f": {os.fsdecode(error.filename)}" if error.filename is not None else ""
        status = NOT_FOUND if error.errno == errno.ENOENT else STORAGE
        return f"{error.strerror or error}{where}", status
    defect = (
        f"gnnstore met an error it did not foresee: {described(error)}\n"
        "This is a defect. Please report it with the traceback above and what "
        "`gnnstore info` prints."
    )
    return defect, DEFECT
