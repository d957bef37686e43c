"""The context of every command: where results, progress, messages and failures go.

Results go to stdout, as text for people or as one JSON document (`--json`); progress and messages
go to stderr. Scripts branch on the exit status and people read the message.
"""

from __future__ import annotations

import _thread
import errno
import importlib
import io
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from gnnstore.errors import GnnstoreError, described, resource_error
from gnnstore.progress import LOGGER, Progress, Style, is_open, is_terminal, open_progress
from gnnstore.tools.layout import Layout, print_document
from gnnstore.units import wrapped

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


# Raised by one whenever a field of a --json document changes its name or meaning;
# new fields may appear without that.
SCHEMA_VERSION = 3

# A pipe has no width. Wide enough that no table wraps, so that grep sees whole rows.
_PIPE_WIDTH = 240


# Exit statuses.
OK = 0
PROBLEM = 1  # the data has a problem
USAGE = 2
NOT_FOUND = 3
UNSUPPORTED_VERSION = 4
STORAGE = 5  # I/O error, no space, no memory
DEFECT = 70  # sysexits.h EX_SOFTWARE: an error that gnnstore did not foresee
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
BROKEN_PIPE = 141  # 128 + SIGPIPE: the reader of the output left

_ERROR = "error:"  # before the message of one

# The modules of plug-ins that were imported, and the plug-ins' names.
PLUGINS: dict[str, str] = {}


@dataclass
class Session:
    """The choices of one run of the command line, carried as click's context object."""

    command: str = ""
    words: Sequence[str] = ()  # all of the command line
    as_json: bool = False
    quiet: bool = False
    debug: bool = False
    # By Python's name of each of the command's options: its flag, whether it takes a value, and the
    # flag that turns it off.
    options: Mapping[str, tuple[str, bool, str]] = field(default_factory=dict)
    # STORE as it was given, and the directory of copies, if a copy is used.
    place: tuple[str, str | None] | None = None

    def __post_init__(self) -> None:
        """Let the environment turn tracebacks on if the option cannot be added."""
        self.debug = self.debug or os.environ.get("GNNSTORE_DEBUG", "") not in ("", "0")

    def emit(
        self,
        document: Mapping[str, Any],
        layout: Layout,
        commands: Sequence[Sequence[str]] = (),
        program: str = "",
    ) -> None:
        """Print a result on stdout: `document` with --json, else as `print_document` does."""
        if self.as_json:
            self.emit_json(document)
        else:
            print_text(document, layout, commands, program)

    def emit_json(self, document: Mapping[str, Any]) -> None:
        """Print one JSON document, led by the schema version and the command's name."""
        head = {"schema_version": SCHEMA_VERSION, "command": self.command}
        echo(json.dumps({**head, **document}, indent=2, allow_nan=False))

    def say(self, message: str) -> None:
        """Print a remark for people on stderr, unless --quiet."""
        if not self.quiet:
            tell(self.in_flags(message))

    def in_flags(self, message: str) -> str:
        """Return a message of the library with `--memory 1GB` for `memory=1GB`."""

        def flag(found: re.Match[str]) -> str:
            name, value = found.groups()
            if name not in self.options or "/" in value:
                return found[0]
            option, takes_value, off = self.options[name]
            if not takes_value:
                return off if value == "False" else option
            return option + f" {value}" * (value != "")

        return re.sub(r"(?<![^\s(])([a-z_]+)=([^\s,:;)]*(?<!\.))", flag, message)

    def without_estimate(self, output: str | None = None) -> tuple[str, ...]:
        """Return the command that does what was estimated, to an output if none was given."""
        words = [word for word in self.words if word != "--estimate"]
        if output is not None and click.get_current_context().params["output"] is None:
            words.append(output)
        return "gnnstore", *words

    @contextmanager
    def progress(self, *, style: Style = "auto") -> Iterator[Progress]:
        """Show progress on stderr: bars on a terminal, else a plain line now and then."""
        with interrupts_wait():
            importlib.import_module("rich.progress")  # else imported in the middle of the work
        with open_progress(quiet=self.quiet, style=style) as progress:
            yield progress


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print on stdout or stderr, unless a program has closed the stream or set it to None."""
    if is_open(sys.stderr if err else sys.stdout):
        click.echo(text, err=err, nl=nl)


def _width_of(stream: Any) -> int | None:
    """Return the columns of a terminal, or COLUMNS if that is exported; None for others."""
    if is_terminal(stream) or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def tell(text: str) -> None:
    """Print a message on stderr, in lines that end between words where there is a width."""
    if (width := _width_of(sys.stderr)) is not None:
        text = wrapped(text, width)
    # After the lines have been made, since colours take no room.
    echo(text.replace(_ERROR, click.style(_ERROR, fg="red"), 1), err=True)


def open_streams() -> None:
    """Make the standard streams safe to print anything on.

    Streams that the parent process has closed are opened on the null device: otherwise opened files
    would take their descriptors, and receive the output.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if not is_open(getattr(sys, name)):
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


class _StderrHandler(logging.Handler):
    """Prints progress and messages of the library, such as on files removed after a crash."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == LOGGER.name:
            tell(record.getMessage())
        if record.levelno < logging.WARNING:
            return
        context, message = click.get_current_context(silent=True), record.getMessage()
        session = None if context is None else context.find_object(Session)
        message = message if session is None else session.in_flags(message)
        tell(f"gnnstore: {message}")


def start_logging() -> None:
    """Send the library's progress and warnings to stderr; idempotent."""
    logger = logging.getLogger("gnnstore")
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())


def print_text(document: Mapping[str, Any], layout: Layout, *more: Any) -> None:
    """Print a document on stdout: as wide as the terminal, or unwrapped in a pipe.

    Where COLUMNS is exported, a pipe has what a terminal of that width would.
    """
    from rich.console import Console  # noqa: PLC0415 - 40 ms that --version need not pay

    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    if is_terminal(sys.stdout):
        print_document(Console(file=sys.stdout, **plain), document, layout, *more)
        return
    # In memory first, to drop the spaces with which rich fills lines. The encoding matters: rich
    # chooses its characters by it.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    if (width := _width_of(sys.stdout)) is not None:
        plain |= {"force_terminal": True, "color_system": None}
    console = Console(file=text, width=width or _PIPE_WIDTH, **plain)
    print_document(console, document, layout, *more)
    text.seek(0)
    echo("\n".join(line.rstrip() for line in text))


@contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """Raise a `KeyboardInterrupt` again if it came where Python cannot raise it.

    That is in a destructor, the callback of a weak reference, or the start of an extension module
    that ignores errors. A conversion of hours would run to its end in spite of Ctrl-C.
    """
    before = sys.unraisablehook

    def again(unraisable: UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # At once, it would end in this hook, which must not raise either.
            timer = threading.Timer(0.02, _thread.interrupt_main)
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
        if isinstance(error, click.ClickException):
            text = io.StringIO()
            error.show(text)
            tell(text.getvalue().rstrip("\n"))
        else:
            if status == DEFECT or (session.debug and status != INTERRUPTED):
                echo("".join(traceback.format_exception(error)), err=True, nl=False)
            tell(f"gnnstore: {_ERROR} {message}")
    if session.as_json:
        with suppress(OSError):
            where = {name: getattr(error, name, None) for name in ("path", "offset")}
            found = {"kind": type(error).__name__, "message": message, **where}
            session.emit_json({"error": {**found, "exit_status": status}})
    return status


def _describe(error: BaseException) -> tuple[str, int]:
    error = resource_error(error, "go on") or error
    if isinstance(error, GnnstoreError):
        return str(error), error.exit_status
    if isinstance(error, OSError):
        where = f": {os.fsdecode(error.filename)}" if error.filename is not None else ""
        status = NOT_FOUND if error.errno == errno.ENOENT else STORAGE
        return f"{error.strerror or error}{where}", status
    if plugin := _plugin_of(error):
        said = (
            f"{plugin} raised {described(error)}\n"
            "Report it to the plug-in's author with the traceback above. For what is wrong with "
            "an input, a plug-in raises gnnstore.errors.InputError."
        )
        return said, DEFECT
    defect = (
        f"gnnstore met an error it did not foresee: {described(error)}\n"
        "This is a defect. Please report it with the traceback above and what "
        "`gnnstore info` prints."
    )
    return defect, DEFECT


def _plugin_of(error: BaseException) -> str:
    """Return the name of the plug-in in whose code an error was raised; "" if in none."""
    packages = {module.partition(".")[0]: module for module in PLUGINS}
    found = ""
    for part in (error.__cause__ or error.__context__, error):
        for frame, _ in traceback.walk_tb(None if part is None else part.__traceback__):
            module = packages.get(str(frame.f_globals.get("__name__")).partition(".")[0])
            if module is not None:
                found = f"the plug-in {PLUGINS[module]} ({module})"
    return found
