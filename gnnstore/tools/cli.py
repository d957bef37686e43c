"""The entry point of the command `gnnstore`.

It must answer `--version` at once, so a command's module is imported when that command
runs and not before; this module has only the names and one line about each.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache

import click

import gnnstore
from gnnstore.errors import described
from gnnstore.tools.options import GENERAL, Group, section
from gnnstore.tools.session import (
    BROKEN_PIPE,
    OK,
    PLUGINS,
    Session,
    interrupts_wait,
    no_interrupt_lost,
    open_streams,
    report,
    start_logging,
)

_LOG = logging.getLogger(__name__)
_STDOUT = 1  # its descriptor
_MOST_SHOWN = 200  # bytes that a plug-in printed

# By section: a command, and one line for --help.
_SECTIONS = {
    "Make": {
        "convert": "Convert a graph into a store.",
        "split-edges": "Split a store's edges for link prediction.",
        "add-order": "Prepare a store for temporal or weighted sampling.",
        "quantize": "Store a store's features as int8, a quarter of their bytes.",
        "reorder": "Renumber a store's nodes so that rows needed often lie together.",
        "copy": "Copy a store to another disk, or to or from a bucket.",
    },
    "Look": {
        "inspect": "Show the contents of a store and how they will be read.",
        "verify": "Check a store's files, checksums and contents.",
        "info": "Show versions, build and machine, for bug reports.",
    },
    "Predict": {
        "predict": "Predict epoch times and cache misses.",
        "bench": "Measure a disk, or strategies on a store.",
    },
    "Train ahead": {
        "pack": "Sample and pack epochs ahead of training.",
        "partition": "Write a partitioned copy of a store's nodes and edges.",
        "assign": "Divide a store's seed nodes into parts, one for each rank.",
    },
    "Clean up": {
        "rm": "Remove packed epochs, partitions or assignments of a store.",
        "gc": "List and remove the leftovers of interrupted runs.",
    },
}
# By command: the module that has it, if it has another name.
_MODULE_OF = dict.fromkeys(
    ("split-edges", "add-order", "quantize", "reorder", "partition", "assign"), "stores"
)
_MODULE_OF |= dict.fromkeys(("verify", "info", "rm", "gc"), "upkeep")
_MODULE_OF |= dict.fromkeys(("predict", "pack"), "epochs")
_MODULES = {name: _MODULE_OF.get(name, name) for names in _SECTIONS.values() for name in names}

# Commands that have what plug-ins register.
_WITH_PLUGINS = {"convert", "predict", "pack", "bench"}

_HELP = """Train graph neural networks on graphs many times larger than RAM.

A store is a directory (NAME.gnn) that the commands below create, inspect and verify, and that
gnnstore.open() and gnnstore.NeighborLoader read in Python.

\b
Examples:
  gnnstore convert snap com-friendster.ungraph.txt.gz friendster.gnn \\
    --undirected
  gnnstore inspect friendster.gnn
  gnnstore verify friendster.gnn --level full

\b
Exit status:
  0  success                         4  the store needs a newer gnnstore
  1  invalid or damaged data         5  I/O error, no space, no memory
  2  wrong usage                    70  internal error (a bug in gnnstore)
  3  not found                     130  interrupted
"""


@cache
def load_plugins() -> None:
    """Import the modules that entry points name; one that fails is named and skipped."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - of some commands only

    for plugin in entry_points(group="gnnstore.plugins"):
        PLUGINS[plugin.module] = plugin.name
        problem = ""
        with _stdout_kept() as printed:
            try:
                plugin.load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # any error of its author, exits too
                problem = f"cannot be imported and is left out: {described(error)}"
        for text in (
            problem,
            printed and f"printed on stdout when it was imported: {printed[0]!r}",
        ):
            if text:
                _LOG.warning("the plug-in %s (%s) %s", plugin.name, plugin.value, text)


@contextmanager
def _stdout_kept() -> Iterator[list[str]]:
    """Keep what a block prints on stdout, also by its descriptor, as the item of a list."""
    printed: list[str] = []
    with tempfile.TemporaryFile() as file:
        _flush()
        before = os.dup(_STDOUT)
        os.dup2(file.fileno(), _STDOUT)
        # Left open: what is imported may keep it, as handlers of logging do.
        stream = open(_STDOUT, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        try:
            with redirect_stdout(stream):
                yield printed
        finally:
            stream.flush()
            _flush()
            os.dup2(before, _STDOUT)
            os.close(before)
            file.seek(0)
            if text := file.read(_MOST_SHOWN).decode(errors="replace").strip():
                printed.append(text)


def _flush() -> None:
    """Write what streams on stdout hold: Python's, and the C library's."""
    for stream in (sys.stdout, sys.__stdout__):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()  # type: ignore[union-attr]
    ctypes.CDLL(None).fflush(None)


class _LazyGroup(Group):
    """A group whose commands are imported when they are first used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order a newcomer needs them."""
        del ctx
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its click command."""
        if cmd_name not in _MODULES:
            return None
        if isinstance(ctx.obj, Session):
            ctx.obj.command = cmd_name
        with interrupts_wait():
            module = importlib.import_module(f"gnnstore.tools.commands.{_MODULES[cmd_name]}")
            command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
            if cmd_name in _WITH_PLUGINS:
                start_logging()  # the group's callback comes later
                load_plugins()
        return command

    def advice(self, words: Sequence[str]) -> str:
        """Return the command for a kind of input that stands in place of `convert`."""
        ctx = click.get_current_context()
        convert = self.get_command(ctx, "convert")
        if isinstance(convert, Group) and words[0] in convert.list_commands(ctx):
            return f"It is a kind of input: gnnstore convert {words[0]}."
        return ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, without importing any."""
        del ctx
        width = max(map(len, _MODULES))  # that all sections have the same columns
        for title, commands in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(n.ljust(width), text) for n, text in commands.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a reader of its output that left (`| head`) is not an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(BROKEN_PIPE) from None


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"gnnstore {gnnstore.__version__}")
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    help=_HELP,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@section(
    GENERAL,
    click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version and exit.",
    ),
)
def root() -> None:
    """Hold the commands; users see `_HELP`."""
    start_logging()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    open_streams()
    words = sys.argv[1:] if arguments is None else list(arguments)
    session = Session(words=words)
    try:
        with no_interrupt_lost():
            status = root.main(
                args=words,
                prog_name="gnnstore",
                standalone_mode=False,
                obj=session,
            )
    except (Exception, KeyboardInterrupt) as error:
        # Words that cannot be parsed have not set it; a reader of stdout still needs a document.
        session.as_json = session.as_json or "--json" in words
        return report(error, session)
    return status if isinstance(status, int) else OK
