"""What all kinds of `gnnstore convert` share: their options, and the run itself."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, get_args

import click

from gnnstore import converters
from gnnstore.converters import ConvertOptions
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES
from gnnstore.formats.store.reader import StoreReader
from gnnstore.tools.inspect.describe_store import describe_store
from gnnstore.tools.inspect.render_store import next_commands, render_summary
from gnnstore.tools.ui.heap import return_large_blocks
from gnnstore.tools.ui.interrupts import interrupts_wait
from gnnstore.tools.ui.options import MEMORY, SIZE
from gnnstore.tools.ui.progress import Style
from gnnstore.tools.ui.session import Session
from gnnstore.tools.ui.tables import print_next
from gnnstore.units import format_size

# Names of the options' parameters that make up `ConvertOptions`; the rest are the kind's own.
_COMMON = (
    "undirected",
    "self_loops",
    "page_bytes",
    "feature_dtype",
    "overwrite",
    "memory_bytes",
    "edge_ids",
    "index_dtype",
    "resume",
    "spill_directory",
    "feature_scale",
)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `ConvertOptions` to a command."""
    options = (
        click.option(
            "--undirected", is_flag=True, help="Add the reverse of every edge; drop duplicates."
        ),
        click.option(
            "--self-loops",
            type=click.Choice(("keep", "drop", "add")),
            default="keep",
            show_default=True,
            help="What becomes of edges from a node to itself.",
        ),
        click.option(
            "--page-bytes",
            type=SIZE,
            default=DEFAULT_PAGE_BYTES,
            show_default=True,
            help="Page size of features; a power of two.",
        ),
        click.option(
            "--feature-dtype",
            type=click.Choice(tuple(STORAGE_DTYPES)),
            metavar="TYPE",
            help="Store x as this type, such as float16 or bfloat16.",
        ),
        click.option(
            "--feature-scale",
            type=click.Choice(("column",)),
            help="With --feature-dtype int8: a scale per column, kept as x_scale.",
        ),
        click.option(
            "--edge-ids/--no-edge-ids",
            default=None,
            help="Store each edge's position in the input; default: as the kind needs.",
        ),
        click.option(
            "--index-dtype",
            type=click.Choice(("int64", "int32")),
            help="Type of node ids in batches; default: the input's, else int64.",
        ),
        click.option(
            "--memory",
            "memory_bytes",
            type=MEMORY,
            metavar="SIZE",
            help="The most memory for building the adjacency, such as 8GB.",
        ),
        click.option(
            "--overwrite",
            is_flag=True,
            help="Replace an existing store, once the new one is complete.",
        ),
        click.option(
            "--resume",
            is_flag=True,
            help="Go on where an interrupted conversion of the same data stopped, if one did.",
        ),
        click.option(
            "--spill-dir",
            "spill_directory",
            type=click.Path(),
            metavar="DIR",
            help="Where edges that memory cannot hold are sorted; default: beside the output.",
        ),
        click.option(
            "--progress",
            "style",
            type=click.Choice(get_args(Style)),
            default="auto",
            show_default=True,
            help="How progress is shown on stderr; json: one object a line.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


class Report(Protocol):
    """What a kind has to say about the store that it made, beyond what all kinds say."""

    document: dict[str, Any]

    def render(self, console: Any) -> None:
        """Print it for people."""


def convert(
    session: Session,
    converter: str,
    output: str,
    *,
    style: Style,
    report: Callable[[Path], Report] | None = None,
    **arguments: Any,
) -> None:
    """Run one of the library's converters and print what it wrote.

    Parameters
    ----------
    converter : str
        Name of the function in `gnnstore.converters`.
    output : str
        The store to be.
    style : str
        How to show progress; "auto" with `--json`: as JSON too, unless a person looks on.
    report : callable, optional
        Is given the store when it is there, and says more about it.
    **arguments
        The options of the command: those of `ConvertOptions`, and the converter's own.
    """
    options = ConvertOptions(**{name: arguments.pop(name) for name in _COMMON})
    if options.memory_bytes is not None:
        return_large_blocks()
    if style == "auto" and session.as_json and not sys.stderr.isatty():
        style = "json"
    with interrupts_wait():
        importlib.import_module("zarr.codecs")  # else in the middle of the work
    started = time.perf_counter()
    with session.progress(show_usage=True, style=style) as progress:
        run = getattr(converters, converter)
        path = run(output=output, options=options, progress=progress, **arguments)
    seconds = time.perf_counter() - started
    described = describe_store(StoreReader.open(path))
    more = None if report is None else report(path)
    session.emit(
        {"store": described, "seconds": seconds, **(more.document if more else {})},
        lambda console: _render(console, described, seconds, more),
    )


def _render(console: Any, store: dict[str, Any], seconds: float, more: Report | None) -> None:
    render_summary(console, store)
    if more is not None:
        more.render(console)
    speed = format_size(store["state"]["disk_bytes"] / max(seconds, 1e-9))
    console.print(f"\nConverted in {seconds:.1f} s ({speed}/s written).")
    print_next(console, next_commands(store["path"]))
