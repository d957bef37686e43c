"""The work of `gnnstore convert`: run a converter of the library, and print a summary."""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore import converters
from gnnstore.converters import ConvertOptions
from gnnstore.formats.store.reader import StoreReader
from gnnstore.progress import Style
from gnnstore.tools.inspect.describe_store import describe_store
from gnnstore.tools.inspect.node_order import (
    describe_saving,
    reorder_command,
    saving_by_degree,
)
from gnnstore.tools.inspect.programs import program_of
from gnnstore.tools.inspect.render_store import next_commands, render_summary
from gnnstore.tools.ui.interrupts import interrupts_wait
from gnnstore.tools.ui.session import Session
from gnnstore.tools.ui.tables import print_next, print_table, print_title
from gnnstore.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

# Arguments of a command that make up `ConvertOptions`; the others belong to its converter.
COMMON = tuple(field.name for field in fields(ConvertOptions))

_M_MMAP_THRESHOLD = -3  # of mallopt(3)
_THRESHOLD_BYTES = 2**20

_DEGREE_ROWS = {
    "num_nodes": ("nodes", "{:,}"),
    "num_edges": ("edges", "{:,}"),
    "mean": ("mean in-degree", "{:,.2f}"),
    "max": ("highest in-degree", "{:,}"),
    "zero_share": ("nodes without in-neighbours", "{:.1%}"),
    "tail_exponent": ("exponent of the tail", "{:.2f}"),
}


def convert(
    session: Session,
    converter: str | Callable[..., Path],
    *,
    style: Style,
    plot_file: Path | None = None,
    **arguments: Any,
) -> None:
    """Run a converter of the library and print a summary."""
    options = ConvertOptions(**{n: arguments.pop(n) for n in COMMON if n in arguments})
    if options.memory_bytes is not None:
        _return_large_blocks()
    with interrupts_wait():
        importlib.import_module("zarr.codecs")  # else imported in the middle of the work
    started = time.perf_counter()
    with session.progress(show_usage=True, style=style) as progress:
        run = getattr(converters, converter) if isinstance(converter, str) else converter
        path = run(options=options, progress=progress, **arguments)
        seconds = time.perf_counter() - started
        saving = None
        if converter != "reorder":
            saving = saving_by_degree(StoreReader.open(path), progress)
    document: dict[str, Any] = {
        "store": describe_store(StoreReader.open(path)),
        "seconds": seconds,
    }
    if saving is not None:
        document["node_order"] = saving.to_json()
    if converter == "from_kronecker":
        document |= _compare_degrees(arguments["seed_store"], path, plot_file)
    session.emit(document, lambda console: _render(console, document))


def _return_large_blocks() -> None:
    """Let glibc return blocks of 1 MiB and more to the system as soon as they are freed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


def _compare_degrees(before: str, after: Path, plot_file: Path | None) -> dict[str, Any]:
    from gnnstore.converters.synthetic.degrees import compare_degrees  # noqa: PLC0415 - on demand

    comparison = compare_degrees(before, after)
    document: dict[str, Any] = {"degrees": comparison.to_json()}
    if plot_file is not None:
        from gnnstore.tools.plots import draw_comparison  # noqa: PLC0415 - optional

        kind = StoreReader.open(before).manifest.provenance.get("kind", "")
        document["plot"] = str(draw_comparison(comparison, plot_file, kind))
    return document


def _render(console: Console, document: Mapping[str, Any]) -> None:
    store, seconds = document["store"], document["seconds"]
    render_summary(console, store)
    if "degrees" in document:
        _render_degrees(console, document)
    speed = format_size(store["state"]["disk_bytes"] / max(seconds, 1e-9))
    console.print(f"\nConverted in {seconds:.1f} s ({speed}/s written).")
    commands = next_commands(store["path"])
    saving = document.get("node_order")
    if saving and saving["is_worth_it"]:
        console.print(f"In another order, {describe_saving(saving)}.")
        commands.append(reorder_command(store["path"]))
    print_next(console, commands, program_of(store))


def _render_degrees(console: Console, document: Mapping[str, Any]) -> None:
    degrees = document["degrees"]
    rows = []
    for key, (label, form) in _DEGREE_ROWS.items():
        values = [degrees[side][key] for side in ("before", "after")]
        rows.append((label, *("-" if v is None else form.format(v) for v in values)))
    print_title(console, "Degrees")
    print_table(console, ("", "before", "after"), rows, right=("before", "after"))
    console.print(
        f"\n{degrees['node_factor']:g} times the nodes, {degrees['edge_factor']:.4g} times the "
        "edges. Distance of the distributions (Kolmogorov-Smirnov, degrees in units of their "
        f"mean): {degrees['ks_distance']:.4f}"
    )
    if "plot" in document:
        console.print(f"Plotted in {document['plot']}", soft_wrap=True)
